package schema

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const example = `# Access log
format: json
on_error: null
fields:
  - name: ts
    type: timestamp
    nullable: false
    formats: [rfc3339, unix_ms]
    aliases: [time, [log, "@timestamp"]]
  - {name: status, type: int32, default: 200}
  - name: agent
    type: dictionary
    path: request.headers."user-agent"
    doc: as the client says
  - name: price
    type: decimal(10, 2)
  - name: zones
    type: map<struct<requests int64 not null, "1xx" int64>>
  - name: peers
    type: list<struct>
    fields:
      - {name: id, type: int64}
      - {name: since, type: "timestamp('2006-01-02 15:04:05')", path: [state, since]}
`

func TestParse(t *testing.T) {
	s, err := Parse([]byte(example))
	if err != nil {
		t.Fatal(err)
	}
	want := &Schema{Version: 1, Format: JSON, OnError: OnErrorNull, Fields: []Field{
		{Name: "ts", Type: Type{Kind: Timestamp, Formats: []TimeFormat{RFC3339, UnixMillis}}, Aliases: [][]string{{"time"}, {"log", "@timestamp"}}},
		{Name: "status", Type: Type{Kind: Int32}, Nullable: true, Default: "200"},
		{Name: "agent", Type: Type{Kind: String, Dictionary: true}, Nullable: true, Path: []string{"request", "headers", "user-agent"}, Doc: "as the client says"},
		{Name: "price", Type: Type{Kind: Decimal, Precision: 10, Scale: 2}, Nullable: true},
		{Name: "zones", Nullable: true, Type: Type{Kind: Map, Elem: &Type{Kind: Struct, Fields: []Field{
			{Name: "requests", Type: Type{Kind: Int64}}, {Name: "1xx", Type: Type{Kind: Int64}, Nullable: true},
		}}}},
		{Name: "peers", Nullable: true, Type: Type{Kind: List, Elem: &Type{Kind: Struct, Fields: []Field{
			{Name: "id", Type: Type{Kind: Int64}, Nullable: true},
			{Name: "since", Type: Type{Kind: Timestamp, Formats: []TimeFormat{"2006-01-02 15:04:05"}}, Nullable: true, Path: []string{"state", "since"}},
		}}}},
	}}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("read as\n%s\nwant\n%s", s.Marshal(), want.Marshal())
	}
	same(t, s)
}

// same fails unless the schema's texts are read as the schema.
func same(t interface{ Fatalf(string, ...any) }, s *Schema) {
	text := s.Marshal()
	back, err := Parse(text)
	if err != nil {
		t.Fatalf("%s\nis read with %v", text, err)
	}
	if !reflect.DeepEqual(back, s) {
		t.Fatalf("%s\nis read as\n%s", text, back.Marshal())
	}
	text, err = s.YAML()
	if err != nil {
		t.Fatalf("%v", err)
	}
	if back, err = Parse(text); err != nil {
		t.Fatalf("%s\nis read with %v", text, err)
	}
	if !reflect.DeepEqual(back, s) {
		t.Fatalf("%s\nis read as\n%s", text, back.Marshal())
	}
}

// TestRoundTrip: both texts of a schema say all of it, and so does that of a type.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSchema(t)
		if err := s.Validate(); err != nil {
			t.Fatalf("%s: %v", s.Marshal(), err)
		}
		same(t, s)
		for i := range s.Fields {
			typ := &s.Fields[i].Type
			back, err := parseWholeType(typ.Text())
			if err != nil || back.Text() != typ.Text() {
				t.Fatalf("%s is read as %s: %v", typ.Text(), back.Text(), err)
			}
			if in := innermostType(typ); (in.Kind != Struct || plainFields(in.Fields)) && !reflect.DeepEqual(&back, typ) {
				t.Fatalf("%s is read as %s", typ.Text(), back.Text())
			}
		}
	})
}

// TestProblems: one error names everything, with lines and what may have been meant.
func TestProblems(t *testing.T) {
	_, err := Parse([]byte(`format: jsn
fields:
  - name: a
    tpye: int64
  - name: b
    type: itn64
  - name: c
    type: text
    nullable: 1
`))
	wantProblems(t, err,
		`line 4, column 11: field "a": unknown key "tpye"; did you mean "type"?`,
		`line 3, column 5: field "a": the type is missing`,
		`line 6, column 11: field "b": unknown type "itn64", at character 1 of the type; did you mean "int64" or "uint64"?`,
		`field "c": unknown type "text", at character 1 of the type; did you mean "string"?`,
		`line 9, column 15: field "c": nullable: got 1, want true or false`)
	_, err = Parse([]byte(`{"format": "jsn", "on_error": "drop", "fields": [
 {"name": "a", "type": "int64"},
 {"name": "a", "type": "decimal(3,4)", "path": "b"},
 {"name": "_time", "type": "string", "default": 1},
 {"name": "c", "type": "string", "path": ["d", "e"], "aliases": ["a"]},
 {"name": "d", "type": "timestamp('%Y-%m-%d')"},
 {"name": "f", "type": "int32", "default": 2147483648}]}`))
	wantProblems(t, err, `format: invalid value "jsn": want one of json, `, `did you mean "json"?`, `on_error: invalid value "drop"`, `line 3, column 2: field "a": duplicate name`,
		`decimal(3,4): want a precision`, `line 4, column 2: field "_time": names that begin with an underscore`, `invalid default 1 for string`,
		`line 5, column 2: field "c": the path a is already read by the field "a"`, `the path d.e is inside the field "d"`, `"%Y-%m-%d" is in the syntax of strftime`,
		`field "f": invalid default 2147483648 for int32: out of range`)
}

func wantProblems(t *testing.T, err error, wants ...string) {
	t.Helper()
	list := new(Error)
	if !errors.As(err, &list) {
		t.Fatalf("%v is no list of problems", err)
	}
	for _, want := range wants {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in\n%v", want, err)
		}
	}
}

// TestRefused: texts that are no schemas, each with the word that says why.
func TestRefused(t *testing.T) {
	deep := strings.Repeat("list<", 12) + "int64" + strings.Repeat(">", 12)
	for text, want := range map[string]string{
		"":                                 "empty",
		"\xff":                             "UTF-8",
		"fields: []":                       "fields: the schema has no fields",
		"[]":                               "want an object",
		"a: &x 1\nb: *x":                   "anchors and aliases",
		"--- {}\n--- {}":                   "more than one document",
		"{\"a\": 1, \"a\": 2}":             "duplicate key",
		"fields: [":                        "neither JSON nor YAML",
		"fields: [{name: a, type: 1}]":     "want a text",
		"fields: [{name: 1, type: int64}]": "in quotes",
		"fields: [{name: a, type: " + deep + "}]":                                                                                   "limit is 12 levels",
		"fields: [{name: a, type: 'struct<>'}]":                                                                                     "missing field name",
		"fields: [{name: a, type: struct}]":                                                                                         "the struct has no fields",
		"fields: [{name: a, type: 'struct<b struct>', fields: []}]":                                                                 "has no fields",
		"fields: [{name: a, type: int64, fields: [{name: b, type: int64}]}]":                                                        "the type int64 has no",
		"fields: [{name: a, type: int64, formats: [unix_s]}]":                                                                       "the type int64 has no",
		"fields: [{name: a, type: timestamp(unix_seconds)}]":                                                                        "unknown",
		"fields: [{name: a, type: timestamp, formats: ['15:04']}]":                                                                  "does not have year",
		"fields: [{name: a, type: 'list<int64> x'}]":                                                                                "after the type",
		"fields: [{name: a, type: string, path: ''}]":                                                                               "empty step in the path",
		"fields: [{name: a, type: string, path: 'a.'}]":                                                                             "empty step in the path",
		"fields: [{name: a, type: string, path: '\"a\"b'}]":                                                                         "after a step in quotes",
		"fields: [{name: a, type: string, default: [1]}]":                                                                           "want a text in quotes",
		"fields: [{name: a, type: \"string\", default: 2024-01-01T00:00:00Z, x: 1}]":                                                "unknown key \"x\"",
		"fields: [{name: a, type: date, default: 2024-02-30}]":                                                                      "want a time in the format",
		"fields: [{name: a, type: uint64, default: -1}]":                                                                            "out of range",
		"fields: [{name: a, type: int64, default: 1e999999}]":                                                                       "exponent",
		"fields: [{name: a, type: 'decimal(4,2)', default: 100}]":                                                                   "more than 4 digits",
		"format: csv\nfields: [{name: a, type: int64, path: b.c}]":                                                                  "more than one step",
		"format: csv\ncsv: {columns: [foo]}\nfields: [{name: fooo, type: int64}]":                                                   `did you mean "foo"`,
		"format: csv\ncsv: {delimiter: ab}\nfields: [{name: a, type: int64}]":                                                       "want one character",
		"csv: {}\nfields: [{name: a, type: int64}]":                                                                                 "does not apply to the format",
		"format: avro\nfields: [{name: a, type: int64}]":                                                                            "avro: is missing",
		"format: avro\navro: {type: recrod}\nfields: [{name: a, type: int64}]":                                                      "avro: ",
		"format: avro\navro: '[\"int\"]'\nfields: [{name: a, type: int64}]":                                                         "not a record",
		"format: avro\navro: {type: record, name: R, fields: [{name: a, type: S}]}\nfields: [{name: a, type: int64}]":               "avro: ",
		"format: avro\navro: {type: record, name: R, namespace: n, fields: [{name: a, type: R}]}\nfields: [{name: a, type: int64}]": "R contains itself without end",
		"format: avro\navro: '" + avroLists(200) + "'\nfields: [{name: a, type: int64}]":                                            "nested too deep: the limit is 128",
		"format: avro\navro: '" + avroFields(4000) + "'\nfields: [{name: a, type: int64}]":                                          "too many types: the limit is 4000",
		"format: avro\navro_file: x\nfields: [{name: a, type: int64}]":                                                              "command line",
		"format: protobuf\nprotobuf: {message: a.B}\nfields: [{name: a, type: int64}]":                                              "descriptors are missing",
		"format: protobuf\nprotobuf: {descriptors: '!'}\nfields: [{name: a, type: int64}]":                                          "base64",
		"fields: {}":  "want a list",
		"fields: [a]": "want an object",
		"version: 0\nfields: [{name: a, type: bool}]":                          "a number from 1",
		"fields: [{name: a, type: decimal}]":                                   `"(" is missing after decimal`,
		"fields: [{name: a, type: 'decimal(x,1)'}]":                            "decimal(18,2)",
		"fields: [{name: a, type: list<int64}]":                                `">" is missing`,
		"fields: [{name: a, type: '<'}]":                                       "is not a type",
		"fields: [{name: a, type: ''}]":                                        "missing type",
		"fields: [{name: a, type: frobnicate}]":                                "types are bool",
		"fields: [{name: a, type: \"timestamp('x)\"}]":                         "missing closing",
		"fields: [{name: a, type: 'struct<\"b int64>'}]":                       "missing closing",
		"fields: [{name: a, type: 'struct<b int64 not>'}]":                     `not followed by "null"`,
		"fields: [{name: a, type: list<int64>, default: [1, x]}]":              "for list: want a number",
		"fields: [{name: a, type: list<int64>, default: {}}]":                  "want a list",
		"fields: [{name: a, type: map<int64>, default: [1]}]":                  "want an object",
		"fields: [{name: a, type: map<int64>, default: {b: 1.5}}]":             "want an integer",
		"fields: [{name: a, type: bool, default: 1}]":                          "want true or false",
		"fields: [{name: a, type: float64, default: 1e999}]":                   "the number is too large",
		"fields: [{name: a, type: 'decimal(4,1)', default: 1.25}]":             "more than 1 digits after the point",
		"fields: [{name: a, type: timestamp, default: 5}]":                     "in the format rfc3339",
		"fields: [{name: \"a\\x01\", type: bool}]":                             "control character",
		"fields: [{name: a, type: bool, aliases: [[]]}]":                       "an alias is empty",
		"fields: [{name: a, type: bool, aliases: [b, b]}]":                     "duplicate path b",
		"fields: [{name: a, type: bool, path: b, aliases: [b.c]}]":             "b is a prefix of its path b.c",
		"fields: [{name: a, type: !x bool}]":                                   "the YAML tag !x is not supported",
		"fields: [{[a]: b}]":                                                   "a key must be a text",
		strings.Repeat("[", 99) + strings.Repeat("]", 99):                      "nested too deep",
		strings.Repeat("- ", 500_000):                                          "too large to be read as YAML",
		strings.Repeat(" ", MaxText+1):                                         "limit is",
		`{"fields":` + strings.Repeat("[", 99) + strings.Repeat("]", 99) + "}": "nested too deep",
		`{"fields":[` + strings.Repeat("1,", 200_000) + "1]}":                  "the limit is 100000",
	} {
		_, err := Parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", clipText(text), err, want)
		}
	}
}

// TestDefaults: a default is a value of its type, as rows write it.
func TestDefaults(t *testing.T) {
	for typ, value := range map[string]string{
		"bool": "true", "int32": "-2147483648", "uint64": "18446744073709551615", "float64": "1e300", "decimal(4,2)": "99.99", "int64": "1e3", "string": `"x"`,
		"date": `"2024-02-29"`, "timestamp": `"2024-02-29 00:00:00Z"`, "timestamp(unix_s)": "1.5", "list<int64>": "[1, null]", "map<list<bool>>": `{"a": [true]}`,
		"struct<a int64>": `{"a": 1}`, "binary": `"x"`,
	} {
		s, err := Parse([]byte(`{"fields":[{"name":"a","type":"` + typ + `","default":` + value + `}]}`))
		if err != nil {
			t.Errorf("%s as %s: %v", value, typ, err)
			continue
		}
		same(t, s)
	}
	bad := &Schema{Format: JSON, OnError: OnErrorNull, Fields: []Field{{Name: "a", Type: Type{Kind: Int64}}}}
	for _, text := range []string{"null", "1 2", "x", strings.Repeat("1", MaxDefault+1)} {
		if bad.Fields[0].Default = text; bad.Validate() == nil {
			t.Errorf("%s was taken", clipText(text))
		}
	}
}

// TestTypeParts: types that no text makes are found out too.
func TestTypeParts(t *testing.T) {
	for _, typ := range []Type{
		{},
		{Kind: Null},
		{Kind: Interval},
		{Kind: 99},
		{Kind: List},
		{Kind: Struct},
		{Kind: Int64, Dictionary: true},
		{Kind: Int64, Precision: 1},
		{Kind: Bool, Elem: &Type{Kind: Bool}},
		{Kind: Date, Formats: make([]TimeFormat, MaxFormats+1)},
		{Kind: Bool, Formats: []TimeFormat{RFC3339}},
		{Kind: Date, Formats: []TimeFormat{DateOnly, DateOnly}},
	} {
		if s := (&Schema{Format: JSON, OnError: OnErrorNull, Fields: []Field{{Name: "a", Type: typ}}}); s.Validate() == nil {
			t.Errorf("%+v was taken", typ)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte(`{"format":"csv","csv":{"delimiter":";","header":true},"fields":[{"name":"a","type":"date('02.01.2006')","default":"01.02.2003"}]}`))
	f.Add([]byte("fields: [{name: a, type: 'struct<\"x\"\"y\" map<decimal(1,1)> not null, b dictionary>'}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		same(t, s)
		if c := Compare(s, s); len(c) > 0 {
			t.Fatalf("compared with itself: %v", c)
		}
	})
}

// parseWholeType parses a type without struct fields that are written elsewhere.
func parseWholeType(text string) (Type, error) {
	t, bare, failed := parseType(text)
	if failed != nil || bare != nil {
		return Type{}, fmt.Errorf("%q is not a type: %v", text, failed)
	}
	return *t, nil
}

func FuzzParseType(f *testing.F) {
	f.Add("struct<a list<int64> not null, \"b c\" timestamp(unix_s, '2006-01-02')>")
	f.Fuzz(func(t *testing.T, text string) {
		typ, err := parseWholeType(text)
		if err != nil {
			return
		}
		back, err := parseWholeType(typ.Text())
		if err != nil || !reflect.DeepEqual(back, typ) {
			t.Fatalf("%s is read as %s: %v", typ.Text(), back.Text(), err)
		}
	})
}

// avroLists is an Avro schema of lists of lists.
func avroLists(depth int) string {
	return `{"type":"record","name":"R","fields":[{"name":"a","type":` + strings.Repeat(`{"type":"array","items":`, depth) + `"int"` + strings.Repeat("}", depth) + `}]}`
}

// avroFields is an Avro schema of so many fields.
func avroFields(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,{"name":"f%d","type":"int"}`, i)
	}
	return `{"type":"record","name":"R","fields":[` + b.String()[1:] + `]}`
}

// TestAvroThatEnds: records may hold themselves where a value can do without.
func TestAvroThatEnds(t *testing.T) {
	for _, text := range []string{
		`{"type":"record","name":"R","namespace":"n","fields":[{"name":"a","type":["null","R"]},{"name":"b","type":{"type":"array","items":"n.R"}},{"name":"c","type":{"type":"map","values":"R"}}]}`,
		`{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"record","name":"S","fields":[{"name":"b","type":["R","int"]}]}},{"name":"c","type":"S"}]}`,
		avroLists(100), avroFields(3000),
	} {
		if err := checkAvro(text); err != nil {
			t.Errorf("%.200s: %v", text, err)
		}
	}
}
