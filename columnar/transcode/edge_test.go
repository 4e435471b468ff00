package transcode

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar"
	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/internal/format/record"
)

// edges are the rows of the table in docs/columnar/transcoding.md, with the columns i (int64), s (string), f (float64) and l (list of int64), and what
// _error says.
var edges = []struct{ name, row, want string }{
	{"an object", `{"i":1,"s":"x","f":1.5,"l":[1]}`, "1|x|1.5|[1]|(null)"},
	{"nothing is there", `{}`, "(null)|(null)|(null)|(null)|(null)"},
	{"null", `{"i":null,"s":null,"f":null,"l":null}`, "(null)|(null)|(null)|(null)|(null)"},
	{"escapes", `{"s":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"}`, "(null)|\"\\/\b\f\n\r\té😀|(null)|(null)|(null)"},
	{"an escape that JSON does not have", `{"i":1,"s":"\q"}`, "1|(null)|(null)|(null)|s at byte 12: an escape that JSON does not have"},
	{"an escape without digits", `{"s":"\u12"}`, "(null)|(null)|(null)|(null)|s at byte 6: \\u without four hexadecimal digits"},
	{"lone surrogates", `{"s":"\ud800x\udc00"}`, "(null)|\ufffdx\ufffd|(null)|(null)|(null)"},
	{"a key with escapes", `{"\u0069":1}`, "1|(null)|(null)|(null)|(null)"},
	{"the largest integer", `{"i":9223372036854775807}`, "9223372036854775807|(null)|(null)|(null)|(null)"},
	{"an integer that a float does not hold", `{"i":9007199254740993}`, "9007199254740993|(null)|(null)|(null)|(null)"},
	{"an integer that is too large", `{"i":9223372036854775808}`, "(null)|(null)|(null)|(null)|i at byte 5: the number is out of the type's range"},
	{"1e3 and 1.0 into an integer", `{"i":1e3,"l":[1.0,10.0e-1]}`, "1000|(null)|(null)|[1,1]|(null)"},
	{"1.5 into an integer", `{"i":1.5}`, "(null)|(null)|(null)|(null)|i at byte 5: the number is not an integer"},
	{"a number beyond floats", `{"f":1e999}`, "(null)|(null)|(null)|(null)|f at byte 5: the number is out of the type's range"},
	{"a text into numbers", `{"i":"1","f":"1.5"}`, "(null)|(null)|(null)|(null)|i at byte 5: a number belongs here; f at byte 13: a number belongs here"},
	{"a number into a text", `{"s":1.50}`, "(null)|1.50|(null)|(null)|(null)"},
	{"true into a text", `{"s":true}`, "(null)|true|(null)|(null)|(null)"},
	{"an object into a text", `{"s":{"a": [1]}}`, `(null)|{"a": [1]}|(null)|(null)|(null)`},
	{"an object that is not JSON into a text", `{"s":{"a": [01]}}`, `(null)|(null)|(null)|(null)|s at byte 5: the text is not a value of JSON`},
	{"duplicate keys", `{"i":1,"s":"a","i":2,"s":null}`, "1|a|(null)|(null)|(null)"},
	{"an element that does not fit", `{"i":1,"l":[1,"x"]}`, "1|(null)|(null)|(null)|l at byte 14: a number belongs here"},
	{"01", `{"i":01,"s":"x"}`, "(null)|x|(null)|(null)|i at byte 5: a number that is not written as JSON does"},
	{"NaN", `{"f":NaN,"s":"x"}`, "(null)|x|(null)|(null)|f at byte 5: neither a value of JSON nor a text in quotes"},
	{"tru", `{"i":tru,"s":"x"}`, "(null)|x|(null)|(null)|i at byte 5: neither a value of JSON nor a text in quotes"},
	{"malformed in what is not declared", `{"i":1,"z":[01,tru,"\q"]}`, "1|(null)|(null)|(null)|(null)"},
	{"a trailing comma", `{"i":1,}`, "(null)|(null)|(null)|(null)|row at byte 7: a key in quotes is missing"},
	{"a trailing comma in what is not declared", `{"i":1,"z":[1,]}`, "(null)|(null)|(null)|(null)|row at byte 14: a value is missing"},
	{"a comma is missing", `{"i":1 "s":"x"}`, "(null)|(null)|(null)|(null)|row at byte 7: a comma or } is missing behind a value"},
	{"a colon is missing", `{"i" 1}`, "(null)|(null)|(null)|(null)|row at byte 5: a colon is missing behind a key"},
	{"a value is missing", `{"i":,"s":"x"}`, "(null)|(null)|(null)|(null)|row at byte 5: a value is missing"},
	{"brackets that do not match", `{"z":[1}}`, "(null)|(null)|(null)|(null)|row at byte 7: a bracket does not match the one that was opened"},
	{"cut off in an object", `{"i":1`, "(null)|(null)|(null)|(null)|row at byte 6: a bracket is not closed"},
	{"cut off in a text", `{"i":1,"s":"x`, "(null)|(null)|(null)|(null)|row at byte 13: a string does not end"},
	{"something behind the object", `{"i":1}{"i":2}`, "(null)|(null)|(null)|(null)|row at byte 7: something follows the object"},
	{"no object", `[1]`, "(null)|(null)|(null)|(null)|row at byte 0: not an object"},
	{"empty", "", "(null)|(null)|(null)|(null)|row at byte 0: empty; an object belongs here"},
	{"white space only", " \n", "(null)|(null)|(null)|(null)|row at byte 2: empty; an object belongs here"},
	{"white space around everything", " { \"i\" :\t1 ,\r\n\"s\": \"x\" } ", "1|x|(null)|(null)|(null)"},
	{"a byte order mark", "\ufeff{\"i\":1}", "1|(null)|(null)|(null)|(null)"},
	{"a control character in a text", "{\"i\":1,\"z\":\"a\tb\"}", "(null)|(null)|(null)|(null)|row at byte 13: a control character in a string; it must be escaped"},
	{"a control character in nested text", "{\"i\":1,\"z\":[\"a\x01b\"]}", "(null)|(null)|(null)|(null)|row at byte 14: a control character in a string; it must be escaped"},
	{"invalid UTF-8", "{\"i\":1,\"z\":\"\xff\"}", "(null)|(null)|(null)|(null)|row at byte 12: the text is not UTF-8"},
	{"a surrogate in UTF-8", "{\"i\":1,\"z\":\"\xed\xa0\x80\"}", "(null)|(null)|(null)|(null)|row at byte 12: the text is not UTF-8"},
	{"128 levels", `{"i":1,"z":` + strings.Repeat("[", 127) + strings.Repeat("]", 127) + `}`, "1|(null)|(null)|(null)|(null)"},
	{"129 levels", `{"i":1,"z":` + strings.Repeat("[", 128) + strings.Repeat("]", 128) + `}`, "(null)|(null)|(null)|(null)|row at byte 138: nested too deep; the limit is 128"},
}

func edgeSchema() *schema.Schema {
	return &schema.Schema{Version: 1, Format: schema.JSON, Fields: []schema.Field{
		nullable("i", tInt), nullable("s", tString), nullable("f", tFloat), nullable("l", schema.Type{Kind: schema.List, Elem: &tInt}),
	}}
}

func TestEdges(t *testing.T) {
	s := edgeSchema()
	for _, edge := range edges {
		t.Run(edge.name, func(t *testing.T) {
			withBoth(func(scanner string) {
				batch, _ := transcode(t, Spec{Schema: s, Columns: []string{"i", "s", "f", "l", "_error"}}, frameOf(t, edge.row))
				if got := strings.TrimSuffix(lines(batch), "\n"); got != edge.want {
					t.Errorf("%s scanner: %q\nbecomes %s\nwant    %s", scanner, edge.row, got, edge.want)
				}
				// No column depends on which others are asked for.
				for j, name := range []string{"i", "s", "f", "l"} {
					alone, _ := transcode(t, Spec{Schema: s, Columns: []string{name}}, frameOf(t, edge.row))
					if got, want := alone.Column(0).ValueStr(0), batch.Column(j).ValueStr(0); got != want {
						t.Errorf("%s scanner: %q: column %s alone is %s, with the others %s", scanner, edge.row, name, got, want)
					}
				}
			})
		})
	}
}

func TestRowsThatDoNotFitAreRejected(t *testing.T) {
	s := edgeSchema()
	s.OnError = schema.OnErrorReject
	var rows []string
	fit := int64(0)
	for _, edge := range edges {
		rows = append(rows, edge.row)
		if strings.HasSuffix(edge.want, "|(null)") {
			fit++
		}
	}
	for _, columns := range [][]string{nil, {"i"}, {"_index", "s", "l"}} {
		batch, stats := transcode(t, Spec{Schema: s, Columns: columns}, frameOf(t, rows...))
		if batch.NumRows() != fit || stats.Kept != fit || stats.Rejected != int64(len(rows))-fit || stats.Rows != int64(len(rows)) {
			t.Errorf("with the columns %v %d rows are left of %d, %+v", columns, batch.NumRows(), len(rows), stats)
		}
	}
}

func TestLinesOfJSON(t *testing.T) {
	s := edgeSchema()
	s.Format = schema.NDJSON
	payload := frameOf(t, "{\"i\":1}\n\n{\"i\":2}\r\n \n\ufeff{\"i\":3}", "", "\n", `{"i":4`, `{"i":5}`)
	batch, stats := transcode(t, Spec{Schema: s, Columns: []string{"i", "_index", "_error", "_key"}}, payload)
	want := `1|0|(null)|(null)
2|0|(null)|(null)
3|0|(null)|(null)
(null)|1|row at byte 0: empty; an object belongs here|(null)
(null)|2|row at byte 0: empty; an object belongs here|eA==
(null)|3|row at byte 6: a bracket is not closed|(null)
5|4|(null)|(null)
`
	if got := lines(batch); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if stats.Rows != 7 {
		t.Errorf("%d rows", stats.Rows)
	}
	// The same with a search that finds one row, and one that a message's time rules out.
	for _, where := range []expr.Expr{
		callOf(expr.Eq, columnOf(s, "i"), literal(tInt, int64(55))),
		callOf(expr.Lt, columnOf(s, "_time"), literal(tTime, arrow.Timestamp(0))),
	} {
		batch, stats := transcode(t, Spec{Schema: s, Columns: []string{"i"}, Where: where, EarlyStop: true}, payload)
		if batch.NumRows() != 0 || stats.Rows != 7 {
			t.Errorf("%d rows of %d are left", batch.NumRows(), stats.Rows)
		}
	}
}

func TestCategoriesWithoutSchema(t *testing.T) {
	s := &schema.Schema{}
	payload := frameOf(t, "one", "\xff two", "")
	batch, _ := transcode(t, Spec{
		Schema: s, Columns: []string{"payload", "_index"},
		Where: callOf(expr.Ne, columnOf(s, "payload"), literal(schema.Type{Kind: schema.Binary}, []byte("one"))),
	}, payload)
	if got := lines(batch); got != "/yB0d28=|1\n|2\n" {
		t.Errorf("got %q", got)
	}
}

// TestHostileRows gives rows that are made to cost: a row of 64 MB, a depth of a million, and more.
func TestHostileRows(t *testing.T) {
	s := edgeSchema()
	const most = 63 << 20
	for _, hostile := range []struct{ name, row, want string }{
		{"64 MB of text", `{"s":"` + strings.Repeat("x", most) + `"}`, "row at byte 16777216: longer than the limit of rows"},
		{"a depth of a million", `{"z":` + strings.Repeat("[", 1_000_000), "row at byte 132: nested too deep; the limit is 128"},
		{"a depth of a million objects", strings.Repeat(`{"i":`, 1_000_000), "row at byte 640: nested too deep; the limit is 128"},
		{"a million backslashes", `{"s":"` + strings.Repeat(`\`, 1_000_001), "row at byte 1000007: a string does not end"},
		{"a million commas", `{"l":[` + strings.Repeat(`,`, 1_000_000), "row at byte 6: a value is missing"},
		{"a million keys", `{` + strings.Repeat(`"k":1,`, 1_000_000), "row at byte 6000001: a key in quotes is missing"},
		{"a number of a million digits", `{"i":` + strings.Repeat("1", 1_000_000) + `}`, "i at byte 5: the number is out of the type's range"},
		{"an exponent of a million digits", `{"f":1e` + strings.Repeat("1", 1_000_000) + `}`, "f at byte 5: the number is out of the type's range"},
	} {
		t.Run(hostile.name, func(t *testing.T) {
			payload := frameOf(t, hostile.row, `{"i":1}`)
			tr, err := New(Spec{Schema: s, Columns: []string{"i", "_error"}})
			if err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			batch, _, err := tr.Transcode(payload, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer batch.Release()
			runtime.ReadMemStats(&after)
			if got, want := lines(batch), "(null)|"+hostile.want+"\n1|(null)\n"; got != want {
				t.Errorf("got %s\nwant %s", got, want)
			}
			if spent := after.TotalAlloc - before.TotalAlloc; spent > uint64(2*len(hostile.row)+1<<20) {
				t.Errorf("%d bytes were allocated for a row of %d", spent, len(hostile.row))
			}
		})
	}
}

func TestBatchesAreBounded(t *testing.T) {
	s := edgeSchema()
	s.Fields[1].Default = `"` + strings.Repeat("x", 10_000) + `"`
	rows := make([]string, 5000)
	for i := range rows {
		rows[i] = "{}"
	}
	payload := frameOf(t, rows...)
	for name, limits := range map[string]Limits{"rows": {Rows: 4999}, "bytes": {Bytes: 10 << 20}} {
		tr, err := New(Spec{Schema: s, Columns: []string{"s"}, Limits: limits})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err = tr.Transcode(payload, nil); !errors.Is(err, columnar.ErrTooLarge) || !strings.Contains(err.Error(), name) {
			t.Errorf("limit on %s: %v", name, err)
		}
		// What has failed leaves nothing after.
		batch, _, err := tr.Transcode(frameOf(t, `{"s":"y"}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := lines(batch); got != "y\n" {
			t.Errorf("after a failure there is %q", got)
		}
		batch.Release()
	}
}

func TestSpecsThatContradictThemselves(t *testing.T) {
	s := edgeSchema()
	for want, spec := range map[string]Spec{
		"without a schema":       {},
		`unknown column "nope"`:  {Schema: s, Columns: []string{"nope"}},
		`have the pointer`:       {Schema: s, Columns: []string{"_offset"}},
		`limit of -1 rows`:       {Schema: s, Limits: Limits{Rows: -1}},
		`limit of -2 bytes a ro`: {Schema: s, Limits: Limits{RowBytes: -2}},
		`the format "xml"`:       {Schema: &schema.Schema{Version: 1, Format: "xml"}},
	} {
		if _, err := New(spec); err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "that have the pointer", "have the pointer"), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}

func TestDamagedFramesAreErrors(t *testing.T) {
	tr, err := New(Spec{Schema: edgeSchema(), Columns: []string{"i"}})
	if err != nil {
		t.Fatal(err)
	}
	payload := frameOf(t, `{"i":1}`)
	payload[len(payload)-1] ^= 1
	if _, _, err := tr.Transcode(payload, nil); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("a damaged frame: %v", err)
	}
	if _, _, err := tr.Transcode(payload[:20], nil); err == nil {
		t.Error("a payload that is cut off is no error")
	}
	batch, _, err := tr.Transcode(nil, nil)
	if err != nil || batch.NumRows() != 0 || !batch.Schema().Equal(tr.Schema()) {
		t.Errorf("no frames: %v", err)
	}
}

// TestSharing runs one transcoder from several goroutines.
func TestSharing(t *testing.T) {
	s := accessSchema(tDict)
	where := callOf(expr.Ge, columnOf(s, "status"), literal(tInt, int64(300)))
	tr, err := New(Spec{Schema: s, Columns: names(s), Where: where, EarlyStop: true})
	if err != nil {
		t.Fatal(err)
	}
	rows := sampleLines(t, "access.jsonl")
	payload := frameOf(t, rows...)
	want := 0
	for _, row := range rows {
		if strings.Contains(row, `"status":3`) || strings.Contains(row, `"status":4`) || strings.Contains(row, `"status":5`) {
			want++
		}
	}
	got := make(chan int64)
	for range 4 {
		go func() {
			batch, _, err := tr.Transcode(payload, nil)
			if err != nil {
				got <- -1
				return
			}
			defer batch.Release()
			got <- batch.NumRows()
		}()
	}
	for range 4 {
		if n := <-got; n != int64(want) {
			t.Errorf("%d rows, want %d", n, want)
		}
	}
}

// FuzzRow holds a row against the reference, with the assembly and without.
func FuzzRow(f *testing.F) {
	for _, edge := range edges {
		f.Add(edge.row)
	}
	status, err := os.ReadFile("testdata/nginx_status.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(strings.SplitN(string(status), "\n", 2)[0])
	s := edgeSchema()
	s.Fields = append(s.Fields,
		schema.Field{Name: "u", Type: schema.Type{Kind: schema.Uint64}, Path: []string{"deep", "u"}, Aliases: [][]string{{"u"}}},
		nullable("d", schema.Type{Kind: schema.Decimal, Precision: 10, Scale: 2}), nullable("t", tTime), nullable("m", schema.Type{Kind: schema.Map, Elem: &tDict}),
		nullable("st", schema.Type{Kind: schema.Struct, Fields: []schema.Field{nullable("a", tBool), {Name: "b", Type: tString, Default: `"x"`}}}),
		nullable("ls", schema.Type{Kind: schema.List, Elem: &schema.Type{Kind: schema.Struct, Fields: []schema.Field{nullable("a", tInt), {Name: "b", Type: tString}}}}),
		nullable("ms", schema.Type{Kind: schema.Map, Elem: &schema.Type{Kind: schema.Struct, Fields: []schema.Field{
			{Name: "a", Type: tInt, Path: []string{"p", "a"}, Aliases: [][]string{{"b"}, {"c"}}}, nullable("d", schema.Type{Kind: schema.List, Elem: &tFloat}),
		}}}),
	)
	f.Add(`{"ls":[{"a":1,"a":2,"b":"x"},{"b":null},{}],"ms":{"k":{"b":null,"c":5,"p":{"a":null}},"l":{"p":1,"d":[1.5]}},"st":{"a":true,"a":false}}`)
	f.Fuzz(func(t *testing.T, row string) {
		if len(row) > 1<<16 {
			return
		}
		withBoth(func(scanner string) { compareWithReference(t, s, []string{row, "{}"}, scanner) })
	})
}

// FuzzPredicate holds what a condition keeps under the transcoder against a filter of the batch.
func FuzzPredicate(f *testing.F) {
	f.Add(`{"i":4.04e2}`, int64(404), "x")
	f.Add(`{"i":404,"s":"\u0078"}`, int64(404), "x")
	f.Add(`{"s":"a x b","i":1}`, int64(2), "x")
	f.Add(`{"s":["x"],"i":`, int64(2), "x")
	s := edgeSchema()
	f.Fuzz(func(t *testing.T, row string, n int64, text string) {
		if len(row) > 1<<16 || strings.ToValidUTF8(text, "") != text {
			return
		}
		i, column := columnOf(s, "i"), columnOf(s, "s")
		rows := []string{row, `{"i":404,"s":"x"}`, `{"s":"` + strings.ReplaceAll(text, "\\", "") + `"}`}
		for _, where := range []expr.Expr{
			callOf(expr.Eq, i, literal(tInt, n)),
			callOf(expr.In, column, literal(tString, text), literal(tString, "abc")),
			callOf(expr.And, callOf(expr.Eq, column, literal(tString, text)), callOf(expr.IsNull, i)),
			callOf(expr.Or, callOf(expr.Gt, i, literal(tInt, n)), callOf(expr.Ne, column, literal(tString, text))),
		} {
			withBoth(func(scanner string) { comparePushed(t, s, rows, where, scanner) })
		}
	})
}

// Of equal keys the first counts in objects inside lists and maps, too, and null is nothing to a field that is not nullable: its aliases are
// looked at.
func TestKeysOfNestedObjects(t *testing.T) {
	strict := schema.Field{Name: "n", Type: tInt, Aliases: [][]string{{"old"}, {"x", "n"}}}
	plainItem := schema.Type{Kind: schema.Struct, Fields: []schema.Field{nullable("a", tInt), nullable("b", tString)}}
	aliased := schema.Type{Kind: schema.Struct, Fields: []schema.Field{nullable("a", tInt), strict}}
	s := &schema.Schema{Version: 1, Format: schema.JSON, Fields: []schema.Field{
		nullable("l", schema.Type{Kind: schema.List, Elem: &plainItem}), nullable("m", schema.Type{Kind: schema.Map, Elem: &plainItem}),
		nullable("k", schema.Type{Kind: schema.List, Elem: &aliased}), nullable("o", aliased),
	}}
	for _, c := range []struct{ row, want string }{
		{`{"l":[{"a":1,"a":2,"b":"x","b":"y"}]}`, `[{"a":1,"b":"x"}]|(null)|(null)|(null)|(null)`},
		{`{"l":[{"a":1,"\u0061":[2],"b":null,"b":"y"},{}]}`, `[{"a":1,"b":null},{"a":null,"b":null}]|(null)|(null)|(null)|(null)`},
		{`{"m":{"q":{"b":"x","b":{},"a":3}}}`, `(null)|[{"key":"q","value":{"a":3,"b":"x"}}]|(null)|(null)|(null)`},
		{`{"k":[{"n":null,"old":5}],"o":{"n":null,"old":5}}`, `(null)|(null)|[{"a":null,"n":5}]|{"a":null,"n":5}|(null)`},
		{`{"k":[{"n":null,"old":null,"x":{"n":6}}],"o":{"n":null,"old":null,"x":{"n":6}}}`, `(null)|(null)|[{"a":null,"n":6}]|{"a":null,"n":6}|(null)`},
		{`{"k":[{"old":5,"n":null,"n":7}],"o":{"old":5,"n":null,"n":7}}`, `(null)|(null)|[{"a":null,"n":5}]|{"a":null,"n":5}|(null)`},
		{`{"k":[{"n":null,"n":7,"old":5,"old":8}],"o":{"n":null,"n":7,"old":5,"old":8}}`, `(null)|(null)|[{"a":null,"n":5}]|{"a":null,"n":5}|(null)`},
		{`{"k":[{"n":1,"n":2,"old":3}],"o":{"n":1,"n":2,"old":3}}`, `(null)|(null)|[{"a":null,"n":1}]|{"a":null,"n":1}|(null)`},
	} {
		withBoth(func(scanner string) {
			batch, _ := transcode(t, Spec{Schema: s, Columns: []string{"l", "m", "k", "o", "_error"}}, frameOf(t, c.row))
			if got := strings.TrimSuffix(lines(batch), "\n"); got != c.want {
				t.Errorf("%s scanner: %s\nbecomes %s\nwant    %s", scanner, c.row, got, c.want)
			}
		})
	}
	// At the top, where the values are found by another way, and conditions are decided on what is found.
	top := &schema.Schema{Version: 1, Format: schema.JSON, Fields: []schema.Field{strict, nullable("s", tString)}}
	rows := []string{`{"n":null,"old":5}`, `{"old":5,"n":null,"n":7}`, `{"n":null,"old":null}`, `{"n":null}`, `{"n":6,"old":5}`}
	batch, _ := transcode(t, Spec{Schema: top, Columns: []string{"n"}}, frameOf(t, rows...))
	if got := lines(batch); got != "5\n5\n(null)\n(null)\n6\n" {
		t.Errorf("at the top the values are\n%s", got)
	}
	five := &expr.Call{Op: expr.Eq, T: schema.Type{Kind: schema.Bool}, Args: []expr.Expr{
		&expr.Column{Name: "n", T: tInt}, &expr.Literal{T: tInt, Value: int64(5)},
	}}
	batch, _ = transcode(t, Spec{Schema: top, Columns: []string{"_index"}, Where: five, EarlyStop: true}, frameOf(t, rows...))
	if got := lines(batch); got != "0\n1\n" {
		t.Errorf("n = 5 is true of the messages\n%s", got)
	}
}
