package schema

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func parse(t *testing.T, fields string) *Schema {
	t.Helper()
	text := fields
	if !strings.Contains(fields, "fields:") {
		text = "fields: [" + fields + "]"
	}
	s, err := Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", fields, err)
	}
	return s
}

// TestCompare: each rule, with what is said of it. An exclamation mark stands before what is not compatible.
func TestCompare(t *testing.T) {
	for _, c := range []struct{ before, after, want string }{
		{"{name: a, type: int32}", "{name: a, type: int32}, {name: b, type: string}", `field "b": is added, string`},
		{"{name: a, type: int32}", "{name: a, type: int32}, {name: b, type: string, nullable: false, default: x}", `field "b": is added`},
		{"{name: a, type: int32}", "{name: a, type: int32}, {name: b, type: string, nullable: false}", `!field "b": is added, string, and is not nullable`},
		{"{name: a, type: int32}, {name: b, type: string}", "{name: a, type: int32}", `!field "b": is removed`},
		{"{name: a, type: int32}", "{name: a, type: int64}", "becomes wider, from int32 to int64"},
		{"{name: a, type: int32}", "{name: a, type: 'decimal(12,2)'}", "becomes wider"},
		{"{name: a, type: int32}", "{name: a, type: 'decimal(11,2)'}", "!the type changes"},
		{"{name: a, type: int64}", "{name: a, type: float64}", "becomes wider"},
		{"{name: a, type: uint64}", "{name: a, type: int64}", "!the type changes"},
		{"{name: a, type: int64}", "{name: a, type: int32}", "!the type changes"},
		{"{name: a, type: int64}", "{name: a, type: string}", "!the type changes"},
		{"{name: a, type: 'decimal(4,2)'}", "{name: a, type: 'decimal(5,3)'}", "becomes wider"},
		{"{name: a, type: 'decimal(4,2)'}", "{name: a, type: 'decimal(9,1)'}", "!keep as many digits"},
		{"{name: a, type: date}", "{name: a, type: timestamp}", "!add '2006-01-02' to its formats"},
		{"{name: a, type: date}", "{name: a, type: timestamp, formats: [rfc3339, 2006-01-02]}", "becomes wider"},
		{"{name: a, type: timestamp}", "{name: a, type: timestamp, formats: [rfc3339, unix_s]}", "reads more time formats"},
		{"{name: a, type: timestamp}", "{name: a, type: timestamp, formats: [unix_s, rfc3339]}", "!keep the old formats in their order"},
		{"{name: a, type: string}", "{name: a, type: dictionary}", "which reads the same"},
		{"{name: a, type: int32, nullable: false}", "{name: a, type: int32}", "becomes nullable"},
		{"{name: a, type: int32}", "{name: a, type: int32, nullable: false}", "!is no longer nullable"},
		{"{name: a, type: int32}", "{name: a, type: int32, default: 1}", "!the default changes from none to 1"},
		{"{name: a, type: int32}", "{name: b, type: int32, path: a}", `field "b": is the new name of "a"`},
		{"{name: a, type: int32}", "{name: b, type: int64, aliases: [a]}", `field "b": is the new name of "a"`},
		{"{name: a, type: int32}", "{name: a, type: int32, path: b}", "!keep it under aliases: [a]"},
		{"{name: a, type: int32, aliases: [b]}", "{name: a, type: int32}", "!is no longer read from b"},
		{"{name: a, type: int32}, {name: b, type: int32}", "{name: a, type: int32, aliases: [b]}", "!replaces both"},
		{"{name: a, type: int32}, {name: b, type: int32}", "{name: b, type: int32}, {name: a, type: int32}", "order of the fields changes"},
		{"{name: a, type: int32, doc: x}", "{name: a, type: int32, doc: y}", "the description changes"},
		{"{name: a, type: 'struct<b int32>'}", "{name: a, type: 'struct<b int64, c bool>'}", `field "a.c": is added, bool`},
		{"{name: a, type: 'list<struct<b int64>>'}", "{name: a, type: 'list<struct<b int32>>'}", `!field "a[].b": the type changes`},
		{"{name: a, type: 'map<int64>'}", "{name: a, type: 'list<int64>'}", "!the type changes"},
		{"fields: [{name: a, type: int32}]", "format: ndjson\nfields: [{name: a, type: int32}]", "!the format changes from json to ndjson"},
		{"fields: [{name: a, type: int32}]", "on_error: reject\nfields: [{name: a, type: int32}]", "!on_error changes"},
		{
			"format: csv\nfields: [{name: a, type: int32}]", "format: csv\nfields: [{name: b, type: string}, {name: a, type: int32}]",
			"!is read from column 2 of a line instead of column 1",
		},
		{"format: csv\nfields: [{name: a, type: int32}]", "format: csv\nfields: [{name: b, type: int32, aliases: [a]}, {name: c, type: string}]", "is added"},
		{
			"format: csv\ncsv: {header: true}\nfields: [{name: a, type: int32}]",
			"format: csv\ncsv: {header: true}\nfields: [{name: b, type: string}, {name: a, type: int32}]", "is added",
		},
		{
			"format: csv\nfields: [{name: a, type: int32}]", "format: csv\ncsv: {delimiter: ;}\nfields: [{name: a, type: int32}]", "!delimiter, header or null changes",
		},
	} {
		changes := Compare(parse(t, c.before), parse(t, c.after))
		want, bad := strings.CutPrefix(c.want, "!")
		if !strings.Contains(changes.String(), want) || changes.Compatible() == bad {
			t.Errorf("from %s\nto   %s:\n%v\ncompatible: %v", c.before, c.after, changes, changes.Compatible())
		}
	}
}

// evolve draws a schema that differs from another by steps that may be compatible or not.
func evolve(t *rapid.T, s *Schema, n int) *Schema {
	next, err := Parse(s.Marshal())
	if err != nil {
		t.Fatal(err)
	}
	for range rapid.IntRange(0, 3).Draw(t, "steps") {
		f := &next.Fields[rapid.IntRange(0, len(next.Fields)-1).Draw(t, "field")]
		switch rapid.IntRange(0, 7).Draw(t, "step") {
		case 0:
			n++
			next.Fields = append(next.Fields, Field{
				Name: fmt.Sprintf("added%d_%d", n, len(next.Fields)), Type: drawType(t, 2), Nullable: rapid.Bool().Draw(t, "nullable"),
			})
		case 1:
			f.Nullable = rapid.IntRange(0, 3).Draw(t, "nullable") > 0
		case 2:
			old := f.Source()
			f.Name, f.Path = fmt.Sprintf("renamed%d", n), nil
			if rapid.IntRange(0, 3).Draw(t, "kept") > 0 {
				f.Aliases = append([][]string{old}, f.Aliases...)
			}
		case 3:
			if f.Type = (Type{Kind: Int64}); rapid.Bool().Draw(t, "decimal") {
				f.Type = Type{Kind: Decimal, Precision: 30, Scale: 2}
			}
			f.Default = ""
		case 4:
			if f.Type.Kind == Struct || f.Type.Kind == String {
				f.Type.Dictionary = f.Type.Kind == String
				if f.Type.Kind == Struct {
					f.Type.Fields[0].Nullable = true
				}
			}
		case 5:
			if f.Type.Kind == Timestamp && len(f.Type.Formats) < 10 {
				f.Type.Formats = append(f.Type.Formats, TimeFormat(fmt.Sprintf("2006-01-02 %d.%d", n, len(f.Type.Formats))))
			}
		case 6:
			if i := rapid.IntRange(0, len(next.Fields)-1).Draw(t, "other"); len(next.Fields) > 1 {
				next.Fields[0], next.Fields[i] = next.Fields[i], next.Fields[0]
			}
		case 7:
			f.Type = Type{Kind: Float64}
			f.Default = ""
		}
	}
	if next.Validate() != nil {
		return s // some steps spoil each other
	}
	return next
}

// TestCompatibleChain: a schema is compatible with itself, and a chain of compatible changes is one.
func TestCompatibleChain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := drawSchema(t)
		if c := Compare(a, a); len(c) > 0 || !Same(a, a) {
			t.Fatalf("compared with itself: %v", c)
		}
		b := evolve(t, a, 1)
		c := evolve(t, b, 2)
		if Compare(a, b).Compatible() && Compare(b, c).Compatible() && !Compare(a, c).Compatible() {
			t.Fatalf("from\n%s\nover\n%s\nto\n%s:\n%v", a.Marshal(), b.Marshal(), c.Marshal(), Compare(a, c).Incompatible())
		}
		if len(Compare(a, b)) == 0 && a.Fields[0].Doc == "" && !Same(a, b) && string(a.Marshal()) == string(b.Marshal()) {
			t.Fatalf("not the same: %s", b.Marshal())
		}
	})
}

func TestHistory(t *testing.T) {
	h, err := ParseHistory("")
	if err != nil || h.Latest() != nil || h.Infer() || h.Current().Version != 0 || h.Version(0) != Opaque() {
		t.Fatalf("%+v, %v", h, err)
	}
	first := parse(t, "{name: a, type: int32}")
	if added, _, err := h.Append(first, false); !added || err != nil || h.Latest().Version != 1 {
		t.Fatal(added, err)
	}
	if added, changes, err := h.Append(parse(t, "{name: a, type: int32}"), false); added || err != nil || len(changes) > 0 {
		t.Errorf("the same again: %v, %v, %v", added, changes, err)
	}
	bad := new(IncompatibleError)
	if _, _, err := h.Append(parse(t, "{name: a, type: string}"), false); !errors.As(err, &bad) || !errors.Is(err, ErrIncompatible) || bad.Version != 1 || len(h.Versions()) != 1 {
		t.Errorf("an incompatible one: %v", err)
	}
	if added, changes, err := h.Append(parse(t, "{name: a, type: string}"), true); !added || err != nil || changes.Compatible() {
		t.Errorf("an incompatible one by force: %v, %v, %v", added, changes, err)
	}
	if _, _, err := h.Append(&Schema{}, true); err == nil {
		t.Error("an invalid one was taken")
	}
	back, err := ParseHistory(h.Marshal())
	if err != nil || back.Marshal() != h.Marshal() || back.Version(1).Fields[0].Type.Kind != Int32 || back.Version(2).Fields[0].Type.Kind != String || back.Version(3) != nil {
		t.Fatalf("%s: %v", h.Marshal(), err)
	}
	h.Clear(true)
	if back, err = ParseHistory(h.Marshal()); err != nil || !back.Infer() || back.Latest() != nil {
		t.Fatalf("%s: %v", h.Marshal(), err)
	}
	if _, _, err := back.Append(first, false); err != nil || back.Latest().Version != 3 || back.Infer() || !IsHistory(back.Marshal()) {
		t.Errorf("a number was used again: %s, %v", back.Marshal(), err)
	}
	for text, want := range map[string]string{
		`{"versions":[]}`:                       "not a history",
		`{"next":1,"versions":[{"fields":[]}]}`: "version 1: fields",
		`{"next":1,"versions":[{"fields":[{"name":"a","type":"int32"}]}]}`:                                          "above all versions",
		`{"next":9,"versions":[{"fields":[{"name":"a","type":"int32"}]},{"fields":[{"name":"a","type":"int32"}]}]}`: "version 1 follows version 1: versions must increase",
		`{"next":0,"versions":[]}`: "from 1",
		`{"next":2,"x":[]}`:        "unknown key",
	} {
		if _, err := ParseHistory(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestHistoryBound: when all versions together are too long the oldest go, and what is kept can be read.
func TestHistoryBound(t *testing.T) {
	h, err := ParseHistory(inferText)
	if err != nil || !h.Infer() {
		t.Fatal(err)
	}
	const n = 12
	for i := range uint32(n) {
		s := &Schema{Format: JSON, OnError: OnErrorNull}
		for j := range 1500 {
			s.Fields = append(s.Fields, Field{
				Name: fmt.Sprintf("field%d", j), Type: Type{Kind: Int64}, Nullable: true, Doc: strings.Repeat("x", 100) + fmt.Sprint(i),
			})
		}
		if added, _, err := h.Append(s, false); err != nil || !added || h.Latest().Version != i+1 {
			t.Fatal(added, err)
		}
	}
	back, err := ParseHistory(h.Marshal())
	if err != nil || len(back.Versions()) == n || len(back.Versions()) < 2 || back.Latest().Version != n || back.Version(1) != nil {
		t.Errorf("%d versions, %d bytes, %v", len(back.Versions()), len(h.Marshal()), err)
	}
}

func TestCache(t *testing.T) {
	c := NewCache(2)
	a, err := c.History(1, inferText)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := c.History(1, inferText); again != a {
		t.Error("read twice")
	}
	if b, err := c.History(1, ""); err != nil || b == a || b.Infer() {
		t.Errorf("the old text's: %v", err)
	}
	if _, err := c.History(2, "x"); err == nil {
		t.Error("a broken text was taken")
	}
	for id := range uint32(10) {
		if _, err := c.History(id, inferText); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.entries.Len(); n != 2 {
		t.Errorf("%d entries", n)
	}
}

// TestGolden: the text that categories keep does not change, and is read as what it was made of.
func TestGolden(t *testing.T) {
	h, err := ParseHistory("")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		example, strings.Replace(example, "type: int32, default", "type: int64, default", 1),
		"format: csv\non_error: reject\ncsv: {delimiter: ;, columns: [a, ''], 'null': '-'}\nfields: [{name: a, type: date, formats: [02.01.2006]}]",
		"format: avro\navro: {type: record, name: R, fields: []}\nfields: [{name: a, type: binary}]",
	} {
		if added, _, err := h.Append(parse(t, text), true); err != nil || !added {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/golden/history.json")
	if err != nil {
		t.Fatal(err)
	}
	if got := h.Marshal(); got != strings.TrimSuffix(string(want), "\n") {
		t.Errorf("written as\n%s", got)
	}
	back, err := ParseHistory(string(want))
	if err != nil || back.Marshal() != h.Marshal() {
		t.Errorf("read as\n%s, %v", back.Marshal(), err)
	}
}

func FuzzParseHistory(f *testing.F) {
	golden, err := os.ReadFile("testdata/golden/history.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(golden))
	f.Add(`{"next":7,"infer":true,"versions":[]}`)
	f.Add(inferText)
	f.Fuzz(func(t *testing.T, text string) {
		h, err := ParseHistory(text)
		if err != nil {
			return
		}
		back, err := ParseHistory(h.Marshal())
		if err != nil || back.Marshal() != h.Marshal() || back.Infer() != h.Infer() || back.Current().Version != h.Current().Version {
			t.Fatalf("%s is read as %s: %v", h.Marshal(), back.Marshal(), err)
		}
	})
}
