package expr

import (
	"reflect"
	"testing"
)

func TestParsePattern(t *testing.T) {
	for _, c := range []struct {
		text   string
		escape rune
		want   []Part
	}{
		{"", '\\', []Part{{}}},
		{"abc", '\\', []Part{{Text: "abc"}}},
		{"%a_é%%", '\\', []Part{{}, {Text: "a_é", Any: []bool{false, true, false}}, {}, {}}},
		{`a\%b\_c\\`, '\\', []Part{{Text: `a%b_c\`}}},
		{`a\%`, 0, []Part{{Text: `a\`}, {}}},
		{"a!%!_!!", '!', []Part{{Text: "a%_!"}}},
		{"_%_", '\\', []Part{{Text: "_", Any: []bool{true}}, {Text: "_", Any: []bool{true}}}},
		{`\a`, '\\', []Part{{Text: "a"}}},
	} {
		p, err := ParsePattern(c.text, c.escape, true)
		if err != nil || !reflect.DeepEqual(p.Parts, c.want) || p.Text != c.text || p.Escape != c.escape || !p.Fold {
			t.Errorf("%q: %+v, %v", c.text, p, err)
		}
	}
	if _, err := ParsePattern(`a\`, '\\', false); err == nil {
		t.Error("a pattern that ends in its escape character was read")
	}
}
