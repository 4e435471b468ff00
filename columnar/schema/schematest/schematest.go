// Package schematest has what tests of categories with schemas share.
package schematest

import (
	"testing"

	"scribe/columnar/schema"
)

// History returns what a category keeps of the versions of its schema: their texts, the oldest first.
func History(t testing.TB, texts ...string) *schema.History {
	t.Helper()
	h, err := schema.ParseHistory("")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		s, err := schema.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := h.Append(s, false); err != nil {
			t.Fatal(err)
		}
	}
	return h
}
