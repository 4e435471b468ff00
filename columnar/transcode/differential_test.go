package transcode

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"pgregory.net/rapid"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/transcode/jsonscan"
	"scribe/columnar/vector"
	"scribe/columnar/zone"
)

// drawType draws a type of columns.
func drawType(t *rapid.T, depth int) schema.Type {
	kinds := []schema.Kind{
		schema.Bool, schema.Int32, schema.Int64, schema.Uint64, schema.Float64, schema.Decimal, schema.String, schema.String, schema.Binary, schema.Date,
		schema.Timestamp,
	}
	if depth > 0 {
		kinds = append(kinds, schema.List, schema.Struct, schema.Map)
	}
	typ := schema.Type{Kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
	switch typ.Kind {
	case schema.Decimal:
		typ.Precision = rapid.SampledFrom([]int32{1, 5, 18, 38}).Draw(t, "precision")
		typ.Scale = rapid.Int32Range(0, min(typ.Precision, 10)).Draw(t, "scale")
	case schema.String:
		typ.Dictionary = rapid.Bool().Draw(t, "dictionary")
	case schema.Timestamp, schema.Date:
		typ.Formats = rapid.SampledFrom([][]schema.TimeFormat{nil, {schema.UnixMillis, schema.RFC3339}, {schema.DateOnly, schema.UnixSeconds}, {"02/Jan/2006"}}).Draw(t, "formats")
	case schema.List, schema.Map:
		elem := drawType(t, depth-1)
		typ.Elem = &elem
	case schema.Struct:
		typ.Fields = drawFields(t, depth-1)
	default:
	}
	return typ
}

// keys are the names that fields and rows have: few, so that they meet, and some that begin alike or are long.
var keys = []string{"a", "b", "ab", "status", "a_rather_long_key_name", "a_rather_long_key_names", "é", `q"q`}

func drawFields(t *rapid.T, depth int) []schema.Field {
	var fields []schema.Field
	var taken [][]string
	// Paths must not be equal to, or the beginning of, another.
	path := func() []string {
		for range 10 {
			p := rapid.SliceOfN(rapid.SampledFrom(keys), 1, 3).Draw(t, "path")
			if !slices.ContainsFunc(taken, func(o []string) bool {
				n := min(len(o), len(p))
				return slices.Equal(o[:n], p[:n])
			}) {
				taken = append(taken, p)
				return p
			}
		}
		return nil
	}
	for i := range rapid.IntRange(1, 5).Draw(t, "fields") {
		f := schema.Field{Name: fmt.Sprintf("f%d", i), Type: drawType(t, depth), Nullable: rapid.IntRange(0, 3).Draw(t, "nullable") > 0}
		if f.Path = path(); f.Path == nil {
			continue
		}
		if rapid.IntRange(0, 3).Draw(t, "aliased") == 0 {
			if p := path(); p != nil {
				f.Aliases = append(f.Aliases, p)
			}
		}
		if rapid.IntRange(0, 3).Draw(t, "default") == 0 {
			f.Default = map[schema.Kind]string{
				schema.Bool: "true", schema.Int32: "7", schema.Int64: "404", schema.Uint64: "1e3", schema.Float64: "1.5", schema.Decimal: "1",
				schema.String: `"x\ny"`, schema.Binary: `"bin"`, schema.List: "[]", schema.Map: "{}",
			}[f.Type.Kind]
			if f.Type.Kind == schema.Decimal && f.Type.Precision == f.Type.Scale {
				f.Default = "0"
			}
		}
		fields = append(fields, f)
	}
	return fields
}

func drawSchema(t *rapid.T) *schema.Schema {
	return &schema.Schema{Version: 1, Format: schema.JSON, Fields: drawFields(t, 2)}
}

// texts are values of rows that are likely to mean something to a column, or to be wrong in an interesting way.
var texts = []string{
	"null", "true", "false", "0", "-0", "1", "404", "-1", "2147483648", "9007199254740993", "9223372036854775807", "9223372036854775808", "18446744073709551615",
	"18446744073709551616", "1e3", "1.0", "4.04e2", "40400e-2", "1.5", "-2.50", "0.1", "1e400", "1e-400", "0e999999999999", "123456789012345678901234567890.5", "01", "1.", ".5", "+1", "1e", "-", "NaN",
	"tru", "nulL", "truex", `""`, `"x"`, `"404"`, `"ERROR"`, `"an ERROR here"`, `"x\ny"`, `"\u0078"`, `"caf\u00e9"`, `"café"`, `"\ud83d\ude00"`, `"\ud800"`, `"\udc00\ud800x"`, `"\q"`, `"\u12g4"`,
	`"\\"`, `"\""`, `"a/b\/c"`, `"2024-02-29T23:59:60Z"`, `"2024-02-29T12:34:56.789+02:00"`, `"2023-02-29T00:00:00Z"`, `"2024-02-29"`, `"1969-12-31 23:59:59.5z"`, `"29/Feb/2024"`, "1709210096789",
	"-1709210096.25", `"1709210096"`, `[]`, `[1,2]`, `["a",null]`, `[[1],[2]]`, `{}`, `{"a":1}`, `{"a":1,"b":"x","a":2}`, `{"a":{"b":1,"status":404}}`, `{"\u0061":"y"}`, `[tru]`, `{"a":01}`, `[1e3, 2 , 3]`,
	`{"a":[{"b":"x","ab":1},{"b":null}],"status":"s"}`, `{"\q":1}`, `[{"a":1,"a":2,"b":null,"b":"x","ab":null,"status":null}]`,
	`{"a":{"a":null,"a":1,"b":2,"b":"x"},"b":{}}`,
}

// drawValue draws the text of a value.
func drawValue(t *rapid.T, depth int) string {
	switch n := rapid.IntRange(0, 9).Draw(t, "form"); {
	case n == 0 && depth > 0:
		return drawObject(t, depth-1)
	case n == 1 && depth > 0:
		items := make([]string, rapid.IntRange(0, 4).Draw(t, "items"))
		for i := range items {
			items[i] = drawValue(t, depth-1)
		}
		return "[" + strings.Join(items, drawSpace(t)+","+drawSpace(t)) + drawSpace(t) + "]"
	case n == 2:
		text, _ := json.Marshal(strings.Repeat("lorem ipsum, ", rapid.IntRange(0, 12).Draw(t, "long")))
		return string(text)
	default:
		return rapid.SampledFrom(texts).Draw(t, "text")
	}
}

func drawSpace(t *rapid.T) string {
	return rapid.SampledFrom([]string{"", "", "", " ", "\n\t ", strings.Repeat(" ", 70)}).Draw(t, "space")
}

func drawObject(t *rapid.T, depth int) string {
	var b strings.Builder
	b.WriteString("{" + drawSpace(t))
	for i := range rapid.IntRange(0, 6).Draw(t, "members") {
		if i > 0 {
			b.WriteString("," + drawSpace(t))
		}
		key, _ := json.Marshal(rapid.SampledFrom(keys).Draw(t, "key"))
		if rapid.IntRange(0, 15).Draw(t, "escaped") == 0 {
			key = []byte(strings.Replace(string(key), "a", `\u0061`, 1))
		}
		fmt.Fprintf(&b, "%s%s:%s%s%s", key, drawSpace(t), drawSpace(t), drawValue(t, depth), drawSpace(t))
	}
	return b.String() + "}"
}

// drawRow draws a row, now and then a damaged one.
func drawRow(t *rapid.T) string {
	row := drawObject(t, 3)
	switch rapid.IntRange(0, 11).Draw(t, "damage") {
	case 0:
		at := rapid.IntRange(0, len(row)-1).Draw(t, "at")
		return row[:at] + rapid.SampledFrom([]string{"", ",", "}", "]", `"`, "\\", "\x00", "\n", "\xff", "1", ":", " "}).Draw(t, "by") + row[at+1:]
	case 1:
		return row[:rapid.IntRange(0, len(row)).Draw(t, "end")]
	case 2:
		return rapid.SampledFrom([]string{"\ufeff" + row, row + " ", " \n" + row, row + row, "[" + row + "]", ""}).Draw(t, "around")
	}
	return row
}

// withBoth runs a check with the assembly and without, where there is some.
func withBoth(check func(scanner string)) {
	check("machine's")
	defer jsonscan.UsePortable()()
	check("portable")
}

// TestAgainstReference compares every column of random rows with the reference.
func TestAgainstReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSchema(t)
		rows := rapid.SliceOfN(rapid.Custom(drawRow), 1, 12).Draw(t, "rows")
		withBoth(func(scanner string) { compareWithReference(t, s, rows, scanner) })
	})
}

// fataler is a test, or a check of random values.
type fataler interface {
	Fatalf(string, ...any)
	Helper()
}

func compareWithReference(t fataler, s *schema.Schema, rows []string, scanner string) {
	t.Helper()
	wanted := append(names(s), schema.ColumnError, schema.ColumnRest)
	tr, err := New(Spec{Schema: s, Columns: wanted})
	if err != nil {
		t.Fatalf("%v", err)
	}
	payload, err := makeFrame(rows)
	if err != nil {
		t.Fatalf("%v", err)
	}
	batch, stats, err := tr.Transcode(payload, nil)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer batch.Release()
	if batch.NumRows() != int64(len(rows)) || stats.Rows != int64(len(rows)) {
		t.Fatalf("%d rows of %d", batch.NumRows(), len(rows))
	}
	for i, row := range rows {
		object, sound := naiveRow(row)
		bad := !sound
		for j := range s.Fields {
			want := any(nil)
			if sound {
				if want = naiveField(&s.Fields[j], &object); want == (misfit{}) {
					bad, want = true, nil
				}
			}
			if got := cell(&s.Fields[j].Type, batch.Column(j), i); got != show(want) {
				t.Fatalf("%s scanner: row %q: column %s of type %s is %q, the reference has %q (error %s)", scanner, row, s.Fields[j].Name, s.Fields[j].Type.String(), got,
					show(want), batch.Column(len(s.Fields)).ValueStr(i))
			}
		}
		if got := batch.Column(len(s.Fields)).IsValid(i); got != bad {
			t.Fatalf("%s scanner: row %q: an error is there: %v (%s), the reference says %v", scanner, row, got, batch.Column(len(s.Fields)).ValueStr(i), bad)
		}
		compareRest(t, s, row, &object, sound, batch.Column(len(s.Fields)+1), i)
	}
}

func compareRest(t fataler, s *schema.Schema, row string, object *naiveValue, sound bool, a arrow.Array, i int) {
	t.Helper()
	var want map[string]any
	if sound {
		want = naiveRest(s, object)
	}
	if a.IsNull(i) {
		if want != nil {
			t.Fatalf("row %q: the rest is null, the reference has %v", row, want)
		}
		return
	}
	got, ok := decoded([]byte(a.ValueStr(i)))
	if !ok || !reflect.DeepEqual(got, any(want)) {
		t.Fatalf("row %q: the rest is %s, the reference has %v", row, a.ValueStr(i), want)
	}
}

// TestValidityOfRows holds what counts as damage against encoding/json: an object that is valid there is never damaged, and one that is not damaged, and has
// no value in it that is malformed, is valid there.
func TestValidityOfRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		checkValidity(t, drawRow(t))
	})
}

func checkValidity(t fataler, row string) {
	t.Helper()
	s := &schema.Schema{Version: 1, Format: schema.JSON, Fields: []schema.Field{nullable("none", tInt, "no such key")}}
	withBoth(func(scanner string) {
		tr, err := New(Spec{Schema: s, Columns: []string{schema.ColumnError}})
		if err != nil {
			t.Fatalf("%v", err)
		}
		payload, err := makeFrame([]string{row})
		if err != nil {
			t.Fatalf("%v", err)
		}
		batch, _, err := tr.Transcode(payload, nil)
		if err != nil {
			t.Fatalf("%v", err)
		}
		defer batch.Release()
		object, sound := naiveRow(row)
		if damaged := batch.Column(0).IsValid(0); damaged == sound {
			t.Fatalf("%s scanner: row %q: damaged %v (%s), the reference says %v", scanner, row, damaged, batch.Column(0).ValueStr(0), !sound)
		}
		if sound && allValid(&object) != json.Valid([]byte(strings.TrimPrefix(row, "\ufeff"))) {
			t.Fatalf("row %q: sound, with valid values %v, and for encoding/json %v", row, allValid(&object), !allValid(&object))
		}
	})
}

// allValid reports whether all that stands in a value of sound structure is valid.
func allValid(v *naiveValue) bool {
	for i := range v.values {
		if !allValid(&v.values[i]) || i < len(v.keyOK) && !v.keyOK[i] {
			return false
		}
	}
	return v.kind == '{' || v.kind == '[' || json.Valid([]byte(v.raw))
}

// drawPredicate draws a condition over the columns of a schema, with constants that rows may have.
func drawPredicate(t *rapid.T, s *schema.Schema, depth int) expr.Expr {
	if depth > 0 {
		switch rapid.IntRange(0, 6).Draw(t, "node") {
		case 0, 1:
			return callOf(expr.And, drawPredicate(t, s, depth-1), drawPredicate(t, s, depth-1))
		case 2:
			return callOf(expr.Or, drawPredicate(t, s, depth-1), drawPredicate(t, s, depth-1))
		case 3:
			op := rapid.SampledFrom([]expr.Op{expr.Not, expr.IsTrue, expr.IsNotTrue, expr.IsFalse, expr.IsNotFalse, expr.IsNull, expr.IsNotNull}).Draw(t, "test")
			return callOf(op, drawPredicate(t, s, depth-1))
		}
	}
	all := s.Columns()
	c := all[rapid.IntRange(0, len(all)-1).Draw(t, "column")]
	if c.Field < 0 && c.Name != schema.ColumnTime && c.Name != schema.ColumnKey {
		return callOf(expr.IsNotNull, &expr.Column{Name: schema.ColumnKey, T: schema.Type{Kind: schema.Binary}})
	}
	column := &expr.Column{Name: c.Name, T: c.Type}
	value := func() expr.Expr { return drawLiteral(t, c.Type) }
	if _, ok := constants[c.Type.Kind]; !ok || rapid.IntRange(0, 7).Draw(t, "null test") == 0 {
		return callOf(rapid.SampledFrom([]expr.Op{expr.IsNull, expr.IsNotNull}).Draw(t, "op"), column)
	}
	switch n := rapid.IntRange(0, 5).Draw(t, "comparison"); {
	case n == 0:
		args := []expr.Expr{column}
		for range rapid.IntRange(1, 5).Draw(t, "values") {
			args = append(args, value())
		}
		return callOf(expr.In, args...)
	case n == 1 && c.Type.Kind == schema.String:
		return like(column, rapid.SampledFrom([]string{"%ERROR%", "x%", "%x", "x", "%", "%caf_%", "l%rem%", "%\u00e9", "_", "%ipsum, lorem%", "%/%"}).Draw(t, "pattern"))
	default:
		op := rapid.SampledFrom([]expr.Op{expr.Eq, expr.Eq, expr.Ne, expr.Lt, expr.Le, expr.Gt, expr.Ge, expr.IsDistinct, expr.IsNotDistinct}).Draw(t, "op")
		if rapid.IntRange(0, 4).Draw(t, "turned") == 0 {
			return callOf(op, value(), column)
		}
		return callOf(op, column, value())
	}
}

var constants = map[schema.Kind][]any{
	schema.Bool: {true, false}, schema.Int32: {int32(404), int32(1), int32(1000)}, schema.Int64: {int64(404), int64(1000), int64(9007199254740993), int64(-1)},
	schema.Uint64: {uint64(404), uint64(18446744073709551615)}, schema.Float64: {404.0, 1.5, 0.1, 0.0},
	schema.String: {"x", "ERROR", "x\ny", "caf\u00e9", "404", "a/b/c", "\ufffd", `{"a":1}`, ""}, schema.Binary: {[]byte("x"), []byte("caf\u00e9")},
	schema.Date: {arrow.Date32(19782)}, schema.Timestamp: {arrow.Timestamp(1709210096789000), arrow.Timestamp(1001), arrow.Timestamp(-500000)},
}

func drawLiteral(t *rapid.T, typ schema.Type) expr.Expr {
	if rapid.IntRange(0, 9).Draw(t, "null") == 0 {
		return literal(typ, nil)
	}
	return literal(typ, rapid.SampledFrom(constants[typ.Kind]).Draw(t, "constant"))
}

// TestPushedPredicates compares what a predicate under the transcoder keeps with what a filter of the whole batch keeps.
func TestPushedPredicates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSchema(t)
		if rapid.Bool().Draw(t, "rejects") {
			s.OnError = schema.OnErrorReject
		}
		rows := rapid.SliceOfN(rapid.Custom(drawRow), 1, 12).Draw(t, "rows")
		where := drawPredicate(t, s, 2)
		withBoth(func(scanner string) { comparePushed(t, s, rows, where, scanner) })
	})
}

func comparePushed(t fataler, s *schema.Schema, rows []string, where expr.Expr, scanner string) {
	t.Helper()
	payload, err := makeFrame(rows)
	if err != nil {
		t.Fatalf("%v", err)
	}
	run := func(spec Spec, zones *zone.Builder) arrow.RecordBatch {
		tr, err := New(spec)
		if err != nil {
			t.Fatalf("%v", err)
		}
		batch, _, err := tr.Transcode(payload, zones)
		if err != nil {
			t.Fatalf("%v", err)
		}
		return batch
	}
	columns := append(names(s), ColumnIndex)
	whole := run(Spec{Schema: s, Columns: append(columns, schema.ColumnTime, schema.ColumnKey)}, nil)
	defer whole.Release()
	filter, err := vector.CompileFilter(where, whole.Schema())
	if err != nil {
		t.Fatalf("%v", err)
	}
	selection, err := filter.Select(whole, nil)
	if err != nil {
		t.Fatalf("%v", err)
	}
	want := ""
	for i := range int(whole.NumRows()) {
		if selection.Has(i) {
			want += cells(s, whole, i)
		}
	}
	zones := func() *zone.Builder { return zone.NewBuilder(zone.Define(s)) }
	for _, early := range []bool{false, true} {
		if early && s.OnError != schema.OnErrorReject && nullPasses(t, s, where) {
			continue
		}
		for _, z := range []*zone.Builder{nil, zones()} {
			spec := Spec{Schema: s, Columns: columns, Where: where, EarlyStop: early}
			if z != nil {
				spec.Zones = names(s)
			}
			batch := run(spec, z)
			got := ""
			for i := range int(batch.NumRows()) {
				got += cells(s, batch, i)
			}
			batch.Release()
			if got != want {
				t.Fatalf("%s scanner, early stop %v, zones %v: %s\nof %q\nkeeps\n%swant\n%s", scanner, early, z != nil, expr.Text(where), rows, got, want)
			}
		}
	}
}

// nullPasses reports whether the condition is true of a row in which nothing fits.
func nullPasses(t fataler, s *schema.Schema, where expr.Expr) bool {
	payload, err := makeFrame([]string{""})
	if err != nil {
		t.Fatalf("%v", err)
	}
	c := *s
	c.OnError = schema.OnErrorNull
	tr, err := New(Spec{Schema: &c, Where: where})
	if err != nil {
		t.Fatalf("%v", err)
	}
	batch, _, err := tr.Transcode(payload, nil)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer batch.Release()
	return batch.NumRows() > 0
}

// cells are the declared columns and the index of a row.
func cells(s *schema.Schema, batch arrow.RecordBatch, i int) string {
	var b strings.Builder
	for j := range s.Fields {
		b.WriteString(cell(&s.Fields[j].Type, batch.Column(j), i) + "|")
	}
	return b.String() + batch.Column(len(s.Fields)).ValueStr(i) + "\n"
}
