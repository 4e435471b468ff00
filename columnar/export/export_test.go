package export

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"pgregory.net/rapid"

	"scribe/columnar/value"
)

var instant = &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}

// everything has a column of every type that a query can answer with but intervals, in three rows: ordinary values, awkward ones, nulls.
func everything(t testing.TB) arrow.RecordBatch {
	t.Helper()
	s := arrow.NewSchema([]arrow.Field{
		{Name: "b", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
		{Name: "i", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "u", Type: arrow.PrimitiveTypes.Uint64, Nullable: true},
		{Name: "f", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		{Name: "d", Type: &arrow.Decimal128Type{Precision: 38, Scale: 2}, Nullable: true},
		{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "code", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String}, Nullable: true},
		{Name: "raw", Type: arrow.BinaryTypes.Binary, Nullable: true},
		{Name: "day", Type: arrow.FixedWidthTypes.Date32, Nullable: true},
		{Name: "at", Type: instant, Nullable: true},
		{Name: "list", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true},
		{Name: "st", Type: arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int32, Nullable: true}), Nullable: true},
		{Name: "m", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.BinaryTypes.String), Nullable: true},
	}, nil)
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader(`[
		{"b":true,"i":42,"u":7,"f":1.5,"d":"12.50","s":"plain","code":"GET","raw":"aGk=","day":"2026-11-21","at":"2026-11-21T09:00:00.25Z","list":["a",null],"st":{"x":1},"m":[{"key":"k","value":"1"},{"key":"k","value":"2"}]},
		{"b":false,"i":-9223372036854775808,"u":18446744073709551615,"f":1e300,"d":"-99999999999999999999999999999999999.99","s":"a,\"b\"\n\u0001é","code":"GET","raw":"/w==","day":"0001-01-01","at":"1969-12-31T23:59:59.999999Z","list":[],"st":{"x":null},"m":[]},
		{"b":null,"i":null,"u":null,"f":null,"d":null,"s":null,"code":null,"raw":null,"day":null,"at":null,"list":null,"st":null,"m":null}]`))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// written is what a format makes of batches.
func written(t testing.TB, f Format, s *arrow.Schema, batches ...arrow.RecordBatch) string {
	t.Helper()
	var out bytes.Buffer
	w, err := New(f, &out, s)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range batches {
		if err := w.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestJSONLines(t *testing.T) {
	rec := everything(t)
	want := `{"b":true,"i":42,"u":7,"f":1.5,"d":12.50,"s":"plain","code":"GET","raw":"hi","day":"2026-11-21","at":"2026-11-21T09:00:00.25Z","list":["a",null],"st":{"x":1},"m":{"k":"2"}}
{"b":false,"i":-9223372036854775808,"u":18446744073709551615,"f":1e+300,"d":-99999999999999999999999999999999999.99,"s":"a,\"b\"\n\u0001é","code":"GET","raw":"\\xff","day":"0001-01-01","at":"1969-12-31T23:59:59.999999Z","list":[],"st":{"x":null},"m":{}}
{"b":null,"i":null,"u":null,"f":null,"d":null,"s":null,"code":null,"raw":null,"day":null,"at":null,"list":null,"st":null,"m":null}
`
	got := written(t, JSONLines, rec.Schema(), rec)
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for line := range strings.Lines(got) {
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON: %s", line)
		}
	}
}

func TestCSV(t *testing.T) {
	rec := everything(t)
	got := written(t, CSV, rec.Schema(), rec)
	rows, err := csv.NewReader(strings.NewReader(got)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 4 || rows[0][0] != "b" || rows[2][5] != "a,\"b\"\n\x01é" || rows[2][2] != "18446744073709551615" || rows[1][12] != `{"k":"2"}` {
		t.Errorf("read back %q", rows)
	}
	if !strings.HasSuffix(got, "\r\n,,,,,,,,,,,,\r\n") {
		t.Errorf("a row of nulls is not empty fields: %q", got)
	}
	texts := array.NewStringBuilder(memory.DefaultAllocator)
	texts.Append("")
	a := texts.NewArray()
	one := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "x,y", Type: a.DataType()}}, nil), []arrow.Array{a}, 1)
	if got := written(t, CSV, one.Schema(), one); got != "\"x,y\"\r\n\"\"\r\n" {
		t.Errorf("the empty text: %q", got)
	}
}

// TestTableOfTerminal: no line is wider than the terminal, and whoever writes knows how many were cut. Without a limit none is.
func TestTableOfTerminal(t *testing.T) {
	rec := everything(t)
	whole := strings.Split(strings.TrimSuffix(written(t, Table, rec.Schema(), rec), "\n"), "\n")
	for _, width := range []int{0, 1, 7, 40, 80, 10_000} {
		var out bytes.Buffer
		w := NewTable(&out, rec.Schema(), TableLimits{Width: width})
		if err := errors.Join(w.Write(rec), w.Close()); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		cut := int64(0)
		for i, line := range lines {
			if n := displayWidth([]byte(line)); width > 0 && n > width {
				t.Errorf("width %d: a line of %d columns: %q", width, n, line)
			}
			if line == whole[i] {
				continue
			}
			cut++
			if begin, ok := strings.CutSuffix(line, "…"); !ok || !strings.HasPrefix(whole[i], begin) {
				t.Errorf("width %d: %q is not the beginning of %q", width, line, whole[i])
			}
		}
		if len(lines) != len(whole) || w.CutLines() != cut || (cut > 0) != (width == 1 || width == 7 || width == 40 || width == 80) {
			t.Errorf("width %d: %d lines of %d, %d cut, counted %d", width, len(lines), len(whole), cut, w.CutLines())
		}
	}
}

// TestTableOfFewRows: rows beyond the limit are counted, and so are columns that do not fit.
func TestTableOfFewRows(t *testing.T) {
	rec := everything(t)
	whole := strings.SplitAfter(written(t, Table, rec.Schema(), rec), "\n")
	var out bytes.Buffer
	w := NewTable(&out, rec.Schema(), TableLimits{Rows: rec.NumRows() + 1})
	if err := errors.Join(w.Write(rec), w.Write(rec), w.Write(rec), w.Close()); err != nil {
		t.Fatal(err)
	}
	rows := int(rec.NumRows()) + 1
	if lines := strings.Count(out.String(), "\n"); lines != 3+rows || w.HiddenRows() != 2*rec.NumRows()-1 || w.HiddenColumns() != 0 {
		t.Errorf("%d lines for %d rows, %d hidden, %d columns hidden", lines, rows, w.HiddenRows(), w.HiddenColumns())
	}
	for _, width := range []int{1, 8, 40, 10_000} {
		w := NewTable(io.Discard, rec.Schema(), TableLimits{Width: width})
		if err := errors.Join(w.Write(rec), w.Close()); err != nil {
			t.Fatal(err)
		}
		// Where the types begin: the second line has no blanks within a column.
		seen := 0
		if dashes := whole[2]; width < len(dashes) {
			dashes = dashes[:max(width-1, 0)]
			seen = len(strings.Fields(dashes))
		} else {
			seen = rec.Schema().NumFields()
		}
		if got := rec.Schema().NumFields() - w.HiddenColumns(); got != seen {
			t.Errorf("width %d: %d columns are seen, want %d", width, got, seen)
		}
	}
}

func TestTable(t *testing.T) {
	rec := everything(t)
	var cols []arrow.Array
	var fields []arrow.Field
	for _, i := range []int{5, 1, 9, 7} {
		cols, fields = append(cols, rec.Column(i)), append(fields, rec.Schema().Field(i))
	}
	few := array.NewRecordBatch(arrow.NewSchema(fields, nil), cols, 3)
	got := written(t, Table, few.Schema(), few)
	lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	if len(lines) != 6 {
		t.Fatalf("got\n%s", got)
	}
	for i, want := range []string{
		`s                                   i  at                           raw`,
		`string                          int64  timestamp                    binary`,
		`------------  --------------------  ---------------------------  ------`,
		`plain                             42  2026-11-21T09:00:00.25Z      hi`,
		`a,"b"\n\x01é    -9223372036854775808  1969-12-31T23:59:59.999999Z  \xff`,
		`NULL                            NULL  NULL                         NULL`,
	} {
		if strings.Join(strings.Fields(lines[i]), " ") != strings.Join(strings.Fields(want), " ") {
			t.Errorf("line %d: got %q, want the fields of %q", i, lines[i], want)
		}
	}
	at := strings.Index(lines[0], "at")
	for i, line := range lines[1:] {
		if []rune(line)[at-1] != ' ' || []rune(line)[at-3] == ' ' {
			t.Errorf("line %d: the number does not end, or the next column does not begin, in its place:\n%s", i+1, got)
		}
	}
}

// TestTableWidths: wide and combining characters are counted as a terminal shows them, and a text of a megabyte pads no other row.
func TestTableWidths(t *testing.T) {
	b := array.NewStringBuilder(memory.DefaultAllocator)
	b.AppendValues([]string{"日本", "e\u0301e\u0301", "abcd", strings.Repeat("x", 1<<20), "\u202e"}, nil)
	n := array.NewInt64Builder(memory.DefaultAllocator)
	n.AppendValues([]int64{1, 2, 3, 4, 5}, nil)
	s := arrow.NewSchema([]arrow.Field{{Name: "t", Type: arrow.BinaryTypes.String}, {Name: "n", Type: arrow.PrimitiveTypes.Int64}}, nil)
	rec := array.NewRecordBatch(s, []arrow.Array{b.NewArray(), n.NewArray()}, 5)
	lines := strings.Split(written(t, Table, s, rec), "\n")
	pad := func(n int) string { return strings.Repeat(" ", n+6) } // an int64's name is 5 wide
	for i, want := range []string{"日本" + pad(widest-4) + "1", "e\u0301e\u0301" + pad(widest-2) + "2", "abcd" + pad(widest-4) + "3"} {
		if lines[3+i] != want {
			t.Errorf("got %q, want %q", lines[3+i], want)
		}
	}
	if len(lines[6]) != 1<<20+7 || !strings.HasPrefix(lines[7], `\u202e `) {
		t.Errorf("the last lines are of %d bytes, and %q", len(lines[6]), lines[7])
	}
}

func TestIntervals(t *testing.T) {
	for want, v := range map[string]arrow.MonthDayNanoInterval{
		"00:00:00":                      {},
		"1 year 2 mons 3 days 04:05:06": {Months: 14, Days: 3, Nanoseconds: (4*3600 + 5*60 + 6) * 1e9},
		"-1 days -00:00:00.25":          {Days: -1, Nanoseconds: -250_000_000},
		"1 day":                         {Days: 1},
		"26:00:00.000001":               {Nanoseconds: 26*3600*1e9 + 1000},
	} {
		b := array.NewMonthDayNanoIntervalBuilder(memory.DefaultAllocator)
		b.Append(v)
		s := arrow.NewSchema([]arrow.Field{{Name: "i", Type: arrow.FixedWidthTypes.MonthDayNanoInterval}}, nil)
		if got := written(t, JSONLines, s, array.NewRecordBatch(s, []arrow.Array{b.NewArray()}, 1)); got != fmt.Sprintf("{\"i\":%q}\n", want) {
			t.Errorf("%+v: got %s, want %q", v, got, want)
		}
	}
}

func TestFloats(t *testing.T) {
	b := array.NewFloat64Builder(memory.DefaultAllocator)
	b.AppendValues([]float64{math.NaN(), math.Inf(1), math.Inf(-1), 0.1, 1e21, 1e-7, 123456789}, nil)
	s := arrow.NewSchema([]arrow.Field{{Name: "f", Type: arrow.PrimitiveTypes.Float64}}, nil)
	got := written(t, JSONLines, s, array.NewRecordBatch(s, []arrow.Array{b.NewArray()}, 7))
	want := `{"f":"NaN"}|{"f":"Infinity"}|{"f":"-Infinity"}|{"f":0.1}|{"f":1e+21}|{"f":1e-07}|{"f":123456789}|`
	if strings.ReplaceAll(got, "\n", "|") != want {
		t.Errorf("got %s", got)
	}
}

// TestStrings: what is written as a JSON string is read back as the text, whatever is in it.
func TestStrings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOf(rapid.Byte()).Draw(t, "text"))
		var got string
		if err := json.Unmarshal(value.AppendJSONString(nil, text), &got); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if want := strings.ToValidUTF8(text, "\ufffd"); len([]rune(text)) != len([]rune(got)) || strings.ToValidUTF8(got, "") != got && got != want {
			t.Fatalf("%q came back as %q", text, got)
		}
		if want := string([]rune(text)); got != want {
			t.Fatalf("%q came back as %q", text, got)
		}
	})
}

// TestFieldsOfCSV: any text comes back as the field that it was.
func TestFieldsOfCSV(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a,"\n ']{0,12}`).Draw(t, "text")
		rows, err := csv.NewReader(bytes.NewReader(append(appendCSVField(nil, []byte(text)), newline...))).ReadAll()
		if err != nil || len(rows) != 1 || len(rows[0]) != 1 || rows[0][0] != text {
			t.Fatalf("%q came back as %q, %v", text, rows, err)
		}
	})
}

func TestArrow(t *testing.T) {
	rec := everything(t)
	var out bytes.Buffer
	w, err := New(Arrow, &out, rec.Schema())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil || out.Len() == 0 {
		t.Fatalf("the schema is not there at once: %d bytes, %v", out.Len(), err)
	}
	if err := errors.Join(w.Write(rec), w.Write(rec), w.Close()); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{"begun with a flush": out.String(), "in one go": written(t, Arrow, rec.Schema(), rec, rec)} {
		r, err := ipc.NewReader(strings.NewReader(data))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n := 0
		for r.Next() {
			if n++; !array.RecordEqual(r.RecordBatch(), rec) {
				t.Errorf("%s: read back %v", name, r.RecordBatch())
			}
		}
		if r.Err() != nil || n != 2 {
			t.Errorf("%s: %d batches, %v", name, n, r.Err())
		}
	}
	r, err := ipc.NewReader(strings.NewReader(written(t, Arrow, rec.Schema())))
	if err != nil || r.Next() || !r.Schema().Equal(rec.Schema()) {
		t.Errorf("an answer without rows: %v", err)
	}
}

func TestParquet(t *testing.T) {
	rec := everything(t)
	checkParquet(t, rec.Schema(), rec, rec.NewSlice(1, 3))
	checkParquet(t, rec.Schema())
}

// Columns keep their order and may have any name, even the same.
func TestParquetNamesAndNesting(t *testing.T) {
	cells := arrow.ListOf(arrow.StructOf(arrow.Field{Name: "y", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32), Nullable: true},
		arrow.Field{Name: "x", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.ListOf(arrow.PrimitiveTypes.Uint64)), Nullable: true}))
	s := arrow.NewSchema([]arrow.Field{
		{Name: "round(z, 2)", Type: cells, Nullable: true},
		{Name: "a", Type: arrow.PrimitiveTypes.Float64},
		{Name: "a", Type: &arrow.TimestampType{Unit: arrow.Microsecond}, Nullable: true},
	}, nil)
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{
		s.Field(0),
		{Name: "b", Type: s.Field(1).Type},
		{Name: "c", Type: s.Field(2).Type, Nullable: true},
	}, nil), strings.NewReader(`[
		{"round(z, 2)":[{"y":[1,null,3],"x":[{"key":"k","value":[1]},{"key":"l","value":[]}]},null,{"y":[],"x":[]},{"y":null,"x":null}],"b":1.5,"c":"2026-11-21T09:00:00"},
		{"round(z, 2)":[],"b":0,"c":null},
		{"round(z, 2)":null,"b":-1,"c":"1969-12-31T23:59:59"}]`))
	if err != nil {
		t.Fatal(err)
	}
	checkParquet(t, s, array.NewRecordBatch(s, rec.Columns(), rec.NumRows()))
}

// Texts of more bytes than a dictionary may have, in more than one row group.
func TestParquetDistinctTexts(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true}}, nil)
	b := array.NewStringBuilder(memory.DefaultAllocator)
	for i := range 1000 {
		b.Append(strings.Repeat(strconv.Itoa(i), 12_000))
	}
	texts := array.NewRecordBatch(s, []arrow.Array{b.NewArray()}, 1000)
	checkParquet(t, s, texts, texts)
}

// checkParquet writes batches of a schema and compares what Arrow's own reader makes of the file.
func checkParquet(t *testing.T, s *arrow.Schema, batches ...arrow.RecordBatch) {
	t.Helper()
	r, err := file.NewParquetReader(strings.NewReader(written(t, Parquet, s, batches...)))
	if err != nil {
		t.Fatal(err)
	}
	ar, err := pqarrow.NewFileReader(r, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	table, err := ar.ReadTable(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer table.Release()
	for i, f := range s.Fields() {
		var want []arrow.Array
		for _, b := range batches {
			want = append(want, b.Column(i))
		}
		if got := table.Column(i); got.Name() != f.Name || !arrow.TypeEqual(got.DataType(), withoutDictionary(f.Type)) {
			t.Errorf("column %d is %q of %s, want %q of %s", i, got.Name(), got.DataType(), f.Name, f.Type)
		}
		if got, want := jsonTexts(table.Column(i).Data().Chunks()), jsonTexts(want); !slices.Equal(got, want) {
			t.Errorf("%s: got %.300q, want %.300q", f.Name, got, want)
		}
	}
}

func jsonTexts(chunks []arrow.Array) (texts []string) {
	for _, chunk := range chunks {
		value := jsonValue(chunk)
		for row := range chunk.Len() {
			texts = append(texts, string(value(nil, row)))
		}
	}
	return texts
}

func TestParquetRefusesIntervals(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "age", Type: arrow.ListOf(arrow.FixedWidthTypes.MonthDayNanoInterval)}}, nil)
	if _, err := New(Parquet, io.Discard, s); err == nil || !strings.Contains(err.Error(), `"age"`) || !strings.Contains(err.Error(), "cast it to text") {
		t.Errorf("got %v", err)
	}
}

func TestFormats(t *testing.T) {
	for _, f := range Formats() {
		if got, err := ParseFormat(string(f)); got != f || err != nil || f.ContentType() == "" {
			t.Errorf("%s: %q, %v", f, got, err)
		}
	}
	if _, err := ParseFormat("xml"); err == nil || !strings.Contains(err.Error(), "table, jsonl, csv, arrow, parquet") {
		t.Errorf("got %v", err)
	}
	if _, err := New("xml", io.Discard, arrow.NewSchema(nil, nil)); err == nil {
		t.Error("a format that there is not")
	}
}

// fails takes some bytes, and then no more.
type fails struct{ left int }

var errFull = errors.New("full")

func (f *fails) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, errFull
	}
	return len(b), nil
}

// TestErrors: that the writer below fails is seen by who writes, at the latest when he closes.
func TestErrors(t *testing.T) {
	rec := everything(t)
	for _, f := range Formats() {
		w, err := New(f, &fails{}, rec.Schema())
		if err != nil {
			if !errors.Is(err, errFull) {
				t.Errorf("%s: %v", f, err)
			}
			continue
		}
		if err := errors.Join(w.Write(rec), w.Close()); !errors.Is(err, errFull) && f != Parquet || err == nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}

// A row group is as large as its values, however many rows share a text in their batch.
func TestParquetGroupsBySize(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "s", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String}}}, nil)
	b := array.NewDictionaryBuilder(memory.DefaultAllocator, s.Field(0).Type.(*arrow.DictionaryType)).(*array.BinaryDictionaryBuilder)
	for i := range 3000 {
		if err := b.AppendString(strings.Repeat(strconv.Itoa(i%4), 50_000)); err != nil {
			t.Fatal(err)
		}
	}
	batch := array.NewRecordBatch(s, []arrow.Array{b.NewArray()}, 3000)
	r, err := file.NewParquetReader(strings.NewReader(written(t, Parquet, s, batch.NewSlice(0, 1000), batch.NewSlice(1000, 1001), batch.NewSlice(1001, 3000))))
	if err != nil {
		t.Fatal(err)
	}
	if r.NumRows() != 3000 || r.NumRowGroups() != 3 {
		t.Errorf("%d rows in %d groups", r.NumRows(), r.NumRowGroups())
	}
}

// The caller sends headers after New.
func TestNewWritesNothing(t *testing.T) {
	var fields []arrow.Field
	for i := range 1000 {
		fields = append(fields, arrow.Field{Name: fmt.Sprintf("%0200d", i), Type: arrow.PrimitiveTypes.Int64})
	}
	for _, f := range []Format{Table, JSONLines, CSV, Arrow, Parquet} {
		var out strings.Builder
		if _, err := New(f, &out, arrow.NewSchema(fields, nil)); err != nil || out.Len() > 0 {
			t.Errorf("%v: %d bytes, %v", f, out.Len(), err)
		}
	}
}
