package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// infer infers from lines, each a message.
func infer(t *testing.T, format Format, o InferOptions, messages ...string) (*Schema, Report) {
	t.Helper()
	s, r, err := Infer(each(messages...), format, o)
	if err != nil {
		t.Fatalf("%v: %v", messages, err)
	}
	same(t, s)
	return s, r
}

func each(messages ...string) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for _, m := range messages {
			if !yield([]byte(m)) {
				return
			}
		}
	}
}

// fieldsText is the fields of a schema as short as they can be written.
func fieldsText(s *Schema) string {
	t := Type{Kind: Struct, Fields: s.Fields}
	return strings.TrimSuffix(strings.TrimPrefix(t.Text(), "struct<"), ">")
}

func TestInfer(t *testing.T) {
	few := DefaultInferOptions()
	few.MinRows = 1
	for _, c := range []struct {
		rows string // several, with a space between
		want string
	}{
		{`{"a":1} {"a":-2}`, "a int64 not null"},
		{`{"a":1} {"a":null} {"b":true}`, "a int64, b bool"},
		{`{"a":1} {"a":1.5}`, "a float64 not null"},
		{`{"a":18446744073709551615} {"a":1}`, "a uint64 not null"},
		{`{"a":18446744073709551615} {"a":-1}`, "a decimal(38,0) not null"},
		{`{"a":` + strings.Repeat("9", 39) + `}`, "a float64 not null"},
		{`{"a":1} {"a":"x"}`, "a string not null"},
		{`{"a":{"b":1}} {"a":[1]}`, "a string not null"},
		{`{"a":{"b":1,"c":"x"}} {"a":{"b":2}}`, "a struct<b int64 not null, c string> not null"},
		{`{"a":[1,2]} {"a":[]} {"a":[null]}`, "a list<int64> not null"},
		{`{"a":[{"b":1},{"c":[2.5]}]}`, "a list<struct<b int64, c list<float64>>> not null"},
		{`{"a":null,"b":[],"c":{}}`, "a string, b list<string> not null, c map<string> not null"},
		{`{"t":"2024-01-02T03:04:05.678Z"} {"t":"2024-01-02 03:04:05+01:00"}`, "t timestamp not null"},
		{`{"t":"2024-01-02"}`, "t date not null"},
		{`{"t":"2024-01-02"} {"t":"2024-01-02T03:04:05Z"}`, "t timestamp(rfc3339, '2006-01-02') not null"},
		{`{"t":"17/May/2015:10:05:03 +0000"}`, "t timestamp('02/Jan/2006:15:04:05 -0700') not null"},
		{`{"t":"2024-01-02"} {"t":"soon"}`, "t string not null"},
		{`{"created_at":1700000000} {"created_at":1700000001}`, "created_at timestamp(unix_s) not null"},
		{`{"timestamp":1700000000000}`, "timestamp timestamp(unix_ms) not null"},
		{`{"eventTime":1700000000000000000}`, "eventTime timestamp(unix_ns) not null"},
		{`{"timestamp":1700000000000} {"timestamp":0}`, "timestamp int64 not null"},
		{`{"bytes":1700000000}`, "bytes int64 not null"},
		{`{"z":{"a.org":{"n":1},"b.org":{"n":2}}}`, "z map<struct<n int64 not null>> not null"},
		{`{"z":{"200":1,"404":2}}`, "z map<int64> not null"},
		{`{"z":{"up":{"a":1,"b":2},"down":{"a":1,"b":2},"lost":{"a":0,"b":1}}}`, "z map<struct<a int64 not null, b int64 not null>> not null"},
		{`{"z":{"client":{"ip":"a","port":1},"server":{"ip":"b","port":2}}}`, "z struct<client struct<ip string not null, port int64 not null> not null, server struct<ip string not null, port int64 not null> not null> not null"},
		{`{"_id":1,"id":2,"":3,"a\u0001b":4}`, `id_2 int64 not null, id int64 not null, empty int64 not null, a_b int64 not null`},
		{`{"a":1,"a":"first wins"}`, "a int64 not null"},
	} {
		var rows []string
		for i, row := range strings.Split(c.rows, " {") {
			if i > 0 {
				row = "{" + row
			}
			rows = append(rows, row)
		}
		s, report := infer(t, "", few, rows...)
		if got := fieldsText(s); got != c.want || s.Format != JSON || report.Rows != int64(len(rows)) {
			t.Errorf("%s is\n%s, want\n%s", c.rows, got, c.want)
		}
	}
}

// TestInferNullable: a column is declared to have a value always only when enough rows say so, and never if that is not wanted.
func TestInferNullable(t *testing.T) {
	rows := slices.Repeat([]string{`{"a":1}`}, 150)
	for _, c := range []struct {
		rows     int
		nullable bool
		want     string
	}{{99, false, "a int64"}, {100, false, "a int64 not null"}, {150, true, "a int64"}} {
		o := DefaultInferOptions()
		o.Nullable = c.nullable
		s, _ := infer(t, JSON, o, rows[:c.rows]...)
		if got := fieldsText(s); got != c.want {
			t.Errorf("%d rows, %v: %s, want %s", c.rows, c.nullable, got, c.want)
		}
	}
}

func TestInferDictionary(t *testing.T) {
	var rows []string
	for i := range 200 {
		rows = append(rows, fmt.Sprintf(`{"few":"v%d","many":"v%d","in":{"few":"x"},"list":["x"]}`, i%25, i%26))
	}
	s, r := infer(t, "", DefaultInferOptions(), rows...)
	if got, want := fieldsText(s), "few dictionary not null, many string not null, in struct<few dictionary not null> not null, list list<string> not null"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if f := r.Fields[0]; f.Name != "few" || f.Distinct != 25 || f.Present != 200 || f.Kinds[0] != (KindCount{"text", 200}) || f.Example != `"v0"` {
		t.Errorf("reported as %+v", f)
	}
}

func TestInferLines(t *testing.T) {
	o := DefaultInferOptions()
	s, r := infer(t, "", o, "{\"a\":1}\n\n{\"b\":2}\n", "{\"a\":3}")
	if s.Format != NDJSON || r.Rows != 3 || r.Messages != 2 || fieldsText(s) != "a int64, b int64" {
		t.Errorf("%s of %s, %+v", s.Format, fieldsText(s), r)
	}
	for _, c := range []struct {
		messages []string
		want     string
		csv      CSVOptions
		rows     int64
	}{
		{[]string{"a,b\n1,x\n2,\n"}, "a int64, b string", CSVOptions{Delimiter: ",", Header: true}, 2},
		{[]string{"a;b\n1;x\n", "a;b\n2.5;y\n"}, "a float64, b string", CSVOptions{Delimiter: ";", Header: true}, 2},
		{[]string{"a\tb", "1\ttrue", "2\tfalse"}, "a int64, b bool", CSVOptions{Delimiter: "\t", Columns: []string{"a", "b"}}, 2},
		{[]string{"1,2024-01-02", "\"2\",\"2024-01-03\""}, "c1 int64, c2 date", CSVOptions{Delimiter: ",", Columns: []string{"c1", "c2"}}, 2},
	} {
		s, r := infer(t, CSV, o, c.messages...)
		if got := fieldsText(s); got != c.want || fmt.Sprint(*s.CSV) != fmt.Sprint(c.csv) || r.Rows != c.rows {
			t.Errorf("%q is %s, %+v, %d rows, want %s, %+v", c.messages, got, *s.CSV, r.Rows, c.want, c.csv)
		}
	}
	o.CSV = &CSVOptions{Delimiter: ",", Columns: []string{"x", "", "_y"}, Null: "-"}
	s, _ = infer(t, CSV, o, "1,2,-", "-,2,3")
	if got := fieldsText(s); got != "x int64, y int64" || s.Fields[1].Path[0] != "_y" {
		t.Errorf("with names given: %s", got)
	}
}

// TestInferBounds: what is too much is left out and said, and costs no more.
func TestInferBounds(t *testing.T) {
	o := DefaultInferOptions()
	o.MaxRows, o.MaxBytes = 10, 1<<10
	var read int
	messages := func(yield func([]byte) bool) {
		for ; ; read++ {
			if !yield([]byte(`{"a":1}`)) {
				return
			}
		}
	}
	if _, r, err := Infer(messages, JSON, o); err != nil || read > 11 || r.Rows != 10 || !r.Cut {
		t.Errorf("%d messages were taken, %+v, %v", read, r, err)
	}
	s, r := infer(t, NDJSON, o, strings.Repeat("{\"a\":1}\n", 1000))
	if r.Rows != 10 || !r.Cut || len(s.Fields) != 1 {
		t.Errorf("%+v", r)
	}
	if _, r, err := Infer(each(`{"a":"`+strings.Repeat("x", 2000)+`"}`), JSON, o); !errors.Is(err, ErrNoRows) || r.Skipped != 1 {
		t.Errorf("%+v, %v", r, err)
	}

	o = DefaultInferOptions()
	wide := make([]string, 0, 30)
	for i := range 30 {
		row := map[string]any{}
		for j := range 1000 {
			row[fmt.Sprintf("k%d_%d", i, j)] = map[string]any{"v": j}
		}
		b, err := json.Marshal(map[string]any{"in": row, fmt.Sprint("top", i): row})
		if err != nil {
			t.Fatal(err)
		}
		wide = append(wide, string(b))
	}
	if s, r = infer(t, "", o, wide...); len(s.Fields) == 0 || countTypes(s.Fields) > MaxTypes {
		t.Errorf("%d fields of %d types, %v", len(s.Fields), countTypes(s.Fields), r.Notes)
	}
	if f := s.Fields[slices.IndexFunc(s.Fields, func(f Field) bool { return f.Name == "in" })]; f.Type.Kind != Map {
		t.Errorf("an object of 30,000 keys is a %s", f.Type.Kind)
	}
	deep := strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100)
	if s, _ := infer(t, "", o, deep); !strings.Contains(fieldsText(s), "a string") {
		t.Errorf("a row that nests 100 deep is %s", fieldsText(s))
	}
}

// TestInferNothing: rows that can't be read are counted with the reason, and are an error when there are no others.
func TestInferNothing(t *testing.T) {
	deep := `{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "}"
	bad := []string{"", "plain text", `{"a":`, `[1]`, "{\"a\":\"\xff\"}", deep}
	_, r, err := Infer(each(bad...), JSON, DefaultInferOptions())
	if !errors.Is(err, ErrNoRows) || r.Skipped != int64(len(bad)) || len(r.Why) == 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, _, err = Infer(each(bad...), "", DefaultInferOptions()); !errors.Is(err, ErrNoRows) || !strings.Contains(err.Error(), "name the format") {
		t.Errorf("%v", err)
	}
	if _, _, err = Infer(each(), "", DefaultInferOptions()); !errors.Is(err, ErrNoRows) {
		t.Errorf("%v", err)
	}
	if _, _, err = Infer(each("{}"), "", DefaultInferOptions()); !errors.Is(err, ErrNoRows) {
		t.Errorf("rows without fields: %v", err)
	}
	if _, r := infer(t, JSON, DefaultInferOptions(), append(bad, `{"a":1}`)...); r.Rows != 1 || r.Skipped != int64(len(bad)) {
		t.Errorf("%+v", r)
	} else {
		var b bytes.Buffer
		if err := r.Print(&b); err != nil || !strings.Contains(b.String(), "6 rows could not be read") || !strings.Contains(b.String(), "int64") {
			t.Errorf("printed as %s", b.String())
		}
	}
	for _, format := range []Format{Avro, Protobuf, Arrow, "x"} {
		if _, _, err := Infer(each("{}"), format, DefaultInferOptions()); err == nil {
			t.Errorf("%s was inferred", format)
		}
	}
	if _, _, err := Infer(each("{}"), JSON, InferOptions{}); err == nil {
		t.Error("no options were taken")
	}
}

// FuzzInfer: whatever the messages are, the answer is an error or a valid schema.
func FuzzInfer(f *testing.F) {
	f.Add([]byte(`{"a":{"b.c":[1,{"d":null}]}}`), []byte(`{"a":"2024-01-02","_a":1e9}`), true)
	f.Add([]byte("a,b\n1,2"), []byte("a,b\n\"x\",2"), false)
	f.Fuzz(func(t *testing.T, a, b []byte, isJSON bool) {
		format := CSV
		if isJSON {
			format = ""
		}
		s, r, err := Infer(each(string(a), string(b)), format, DefaultInferOptions())
		if err != nil {
			return
		}
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		same(t, s)
		if err := r.Print(io.Discard); err != nil {
			t.Fatal(err)
		}
	})
}
