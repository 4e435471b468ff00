package schema_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"pgregory.net/rapid"

	"scribe/columnar/schema"
	"scribe/columnar/transcode"
	"scribe/internal/format/record"
)

// misfits returns what of rows does not fit a schema: one text a row, empty if all of it fits.
func misfits(t *rapid.T, s *schema.Schema, rows [][]byte) []string {
	lenient := *s
	lenient.OnError = schema.OnErrorNull
	tr, err := transcode.New(transcode.Spec{Schema: &lenient, Columns: []string{schema.ColumnError}})
	if err != nil {
		t.Fatal(err)
	}
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: "test"}); err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if err := b.AppendPayload(row); err != nil {
			t.Fatal(err)
		}
	}
	frame, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	batch, _, err := tr.Transcode(frame, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer batch.Release()
	texts, ok := batch.Column(0).(*array.String)
	if !ok || texts.Len() != len(rows) {
		t.Fatalf("%s of %d rows for %d", batch.Column(0).DataType(), batch.NumRows(), len(rows))
	}
	out := make([]string, len(rows))
	for i := range out {
		if !texts.IsNull(i) {
			out[i] = texts.Value(i)
		}
	}
	return out
}

// drawValue draws any JSON value.
func drawValue(t *rapid.T, depth int) any {
	most := 8
	if depth > 3 {
		most = 5
	}
	switch rapid.IntRange(0, most).Draw(t, "kind") {
	case 0:
		return nil
	case 1:
		return rapid.Bool().Draw(t, "bool")
	case 2:
		return json.Number(rapid.SampledFrom([]string{
			"0", "-1", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "18446744073709551616", "1700000000", "1700000000000",
			"123456789012345678901234567890123456789",
		}).Draw(t, "integer"))
	case 3:
		return json.Number(rapid.SampledFrom([]string{"0.5", "1e3", "-1.25E-3", "1.0"}).Draw(t, "number"))
	case 4, 5:
		return rapid.SampledFrom([]string{
			"", "text", "ü\u2028", "2024-01-02", "2024-01-02T03:04:05Z", "2024-01-02 03:04:05.678+01:00", "17/May/2015:10:05:03 +0000", "12", "true",
		}).Draw(t, "text")
	case 6:
		list := make([]any, rapid.IntRange(0, 3).Draw(t, "elements"))
		for i := range list {
			list[i] = drawValue(t, depth+1)
		}
		return list
	default:
		object := map[string]any{}
		for range rapid.IntRange(0, 4).Draw(t, "members") {
			object[rapid.SampledFrom([]string{"a", "b", "ts", "created_at", "200", "404", "x.org", "_id", "id", ""}).Draw(t, "key")] = drawValue(t, depth+1)
		}
		return object
	}
}

// TestInferredFits: every row from which a schema was inferred fits it.
func TestInferredFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := make([][]byte, rapid.IntRange(1, 6).Draw(t, "rows"))
		for i := range rows {
			object := map[string]any{}
			for range rapid.IntRange(0, 4).Draw(t, "fields") {
				object[rapid.SampledFrom([]string{"a", "b", "c", "ts", "_id", "id"}).Draw(t, "name")] = drawValue(t, 0)
			}
			var err error
			if rows[i], err = json.Marshal(object); err != nil {
				t.Fatal(err)
			}
		}
		o := schema.DefaultInferOptions()
		o.MinRows, o.Nullable = rapid.IntRange(1, 3).Draw(t, "min rows"), rapid.Bool().Draw(t, "nullable")
		s, _, err := schema.Infer(slices.Values(rows), schema.JSON, o)
		if err != nil {
			t.Skip(err) // rows without fields
		}
		for i, why := range misfits(t, s, rows) {
			if why != "" {
				t.Fatalf("%s\ndoes not fit\n%s\n%s", rows[i], s.Marshal(), why)
			}
		}
	})
}

// valueOf draws a value that mostly fits a type.
func valueOf(t *rapid.T, typ *schema.Type, depth int) any {
	if rapid.IntRange(0, 15).Draw(t, "odd") == 0 {
		return drawValue(t, depth)
	}
	switch typ.Kind {
	case schema.Bool:
		return rapid.Bool().Draw(t, "bool")
	case schema.Int32:
		return rapid.Int32().Draw(t, "int32")
	case schema.Int64:
		return rapid.Int64().Draw(t, "int64")
	case schema.Uint64:
		return rapid.Uint64().Draw(t, "uint64")
	case schema.Float64:
		return rapid.Float64Range(-1e100, 1e100).Draw(t, "float64")
	case schema.Decimal:
		digits := rapid.StringMatching(`[1-9]{0,3}[0-9]`).Draw(t, "digits")
		if len(digits) > int(typ.Precision-typ.Scale) {
			digits = "0"
		}
		return json.Number(strconv.Itoa(len(digits)))
	case schema.Date, schema.Timestamp:
		return rapid.SampledFrom([]any{"2024-01-02", "2024-01-02T03:04:05Z", "2024-01-02 03:04:05", 1700000000}).Draw(t, "instant")
	case schema.List:
		list := make([]any, rapid.IntRange(0, 2).Draw(t, "elements"))
		for i := range list {
			list[i] = valueOf(t, typ.Elem, depth+1)
		}
		return list
	case schema.Map:
		return map[string]any{"k": valueOf(t, typ.Elem, depth+1)}
	case schema.Struct:
		return objectOf(t, typ.Fields, depth+1)
	default:
		return rapid.SampledFrom([]string{"", "x", "aGk="}).Draw(t, "text")
	}
}

// objectOf draws an object that mostly has what fields want, at one of the positions where they look.
func objectOf(t *rapid.T, fields []schema.Field, depth int) map[string]any {
	object := map[string]any{}
	for i := range fields {
		f := &fields[i]
		if rapid.IntRange(0, 9).Draw(t, "absent") == 0 {
			continue
		}
		at := object
		path := rapid.SampledFrom(f.Sources()).Draw(t, "path")
		for _, step := range path[:len(path)-1] {
			inner, ok := at[step].(map[string]any)
			if !ok {
				inner = map[string]any{}
				at[step] = inner
			}
			at = inner
		}
		at[path[len(path)-1]] = valueOf(t, &f.Type, depth)
	}
	return object
}

// TestCompatibleFits: what fits a schema fits every one that is compatible with it. This is what the rules are for.
func TestCompatibleFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := schema.DrawSchema(t)
		before.Format = schema.JSON
		after := schema.Evolve(t, before, 1)
		if !schema.Compare(before, after).Compatible() {
			return
		}
		rows := make([][]byte, 4)
		for i := range rows {
			var err error
			if rows[i], err = json.Marshal(objectOf(t, before.Fields, 0)); err != nil {
				t.Fatal(err)
			}
		}
		was, is := misfits(t, before, rows), misfits(t, after, rows)
		for i := range rows {
			if was[i] == "" && is[i] != "" {
				t.Fatalf("%s\nfits\n%s\nand not\n%s\n%s\n%v", rows[i], before.Marshal(), after.Marshal(), is[i], fmt.Sprint(schema.Compare(before, after)))
			}
		}
	})
}
