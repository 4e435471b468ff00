package queryplan

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"scribe/columnar/schema/schematest"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func category(t *testing.T) *scribev1.Category {
	t.Helper()
	h := schematest.History(t, "format: json\nfields:\n  - {name: status, type: int32}\n")
	return &scribev1.Category{Name: "access", Id: 7, Schema: h.Marshal()}
}

func TestPlansAreBoundOnce(t *testing.T) {
	c, err := NewCache(4096)
	if err != nil {
		t.Fatal(err)
	}
	cat := category(t)
	query := func(n int) *scribev1.Query {
		return &scribev1.Query{Text: fmt.Sprintf("SELECT status FROM access WHERE status = %d", n), SchemaVersion: 1, Now: 5}
	}
	first, err := c.Bind(cat, query(1))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Bind(cat, query(1)); err != nil || again != first {
		t.Errorf("bound again: %v", err)
	}
	if version, now, text := Split(first.ID); version != 1 || now != 5 || text != query(1).GetText() {
		t.Errorf("the ID says %d, %d, %s", version, now, text)
	}
	for i := range 100 {
		if _, err := c.Bind(cat, query(i+2)); err != nil {
			t.Fatal(err)
		}
	}
	if c.mu.bytes > 4096 || c.mu.plans.Len() > 8 {
		t.Errorf("%d plans of %d bytes are kept", c.mu.plans.Len(), c.mu.bytes)
	}
	if again, err := c.Bind(cat, query(1)); err != nil || again == first {
		t.Errorf("the oldest is still there: %v", err)
	}
}

func TestQueriesThatCantBeBound(t *testing.T) {
	c, err := NewCache(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	cat := category(t)
	for text, says := range map[string]string{
		"SELECT stauts FROM access": "status", "SELECT status FROM other": "category", "SELECT": "query",
	} {
		_, err := c.Bind(cat, &scribev1.Query{Text: text, SchemaVersion: 1, Now: 5})
		if rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
	_, err = c.Bind(cat, &scribev1.Query{Text: "SELECT status FROM access", SchemaVersion: 2, Now: 5})
	if !errors.Is(err, ErrVersion) || rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID {
		t.Errorf("a version that is not there: %v", err)
	}
	opaque := &scribev1.Category{Name: "access", Id: 8}
	if p, err := c.Bind(opaque, &scribev1.Query{Text: "SELECT payload FROM access", Now: 5}); err != nil || p.Schema.Version != 0 {
		t.Errorf("a category without a schema: %v", err)
	}
}
