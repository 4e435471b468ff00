package divide_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar"
	"scribe/columnar/divide"
	"scribe/internal/format/placement"
)

func layout(t *testing.T, field string) *placement.Layout {
	t.Helper()
	l, err := placement.NewLayout(placement.ByField, field, 8)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// batch reads a batch from JSON.
func batch(t *testing.T, rows string, fields ...arrow.Field) arrow.RecordBatch {
	t.Helper()
	b, _, err := array.RecordFromJSON(memory.DefaultAllocator, arrow.NewSchema(fields, nil), strings.NewReader(rows))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestFind: the rows with a text, of a column and of a field of structs.
func TestFind(t *testing.T) {
	inner := arrow.StructOf(arrow.Field{Name: "c", Type: arrow.PrimitiveTypes.Float64, Nullable: true})
	body, err := columnar.EncodeIPC(nil, batch(t, `[{"a":{"c":42}},{"a":null},{"a":{"c":41.5}},{"a":{"c":42.0}},{"a":{"c":7}}]`, arrow.Field{Name: "a", Type: inner, Nullable: true}))
	if err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]string{"a.c": "[0 3]", "a.d": "[]", "b": "[]"} {
		rows, err := divide.Find(body, layout(t, field).Path(), func(text []byte) bool { return string(text) == "42" })
		if err != nil || fmt.Sprint(rows) != want {
			t.Errorf("%s: rows %v, %v, want %s", field, rows, err, want)
		}
	}
	if _, err := divide.Find(body, layout(t, "a").Path(), func([]byte) bool { return true }); !errors.Is(err, divide.ErrType) {
		t.Errorf("structs: %v", err)
	}
	if _, err := divide.Find(body[:20], layout(t, "a").Path(), func([]byte) bool { return true }); err == nil {
		t.Error("half a stream is read")
	}
}

// TestTypes: values that are equal are in one shard, whatever the type of their column, where JSON would put them.
func TestTypes(t *testing.T) {
	types := []arrow.DataType{
		arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Uint8,
		arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Uint32, arrow.PrimitiveTypes.Uint64, arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64,
	}
	l := layout(t, "c")
	other := (l.ShardOf([]byte("42")) + 1) % 8
	for _, typ := range types {
		b := batch(t, `[{"c":42},{"c":null},{"c":42}]`, arrow.Field{Name: "c", Type: typ, Nullable: true})
		parts, err := divide.Rows(b, l, other)
		if err != nil || len(parts) != 2 || parts[0].Shard != l.ShardOf([]byte("42")) || parts[0].Rows.NumRows() != 2 || parts[1].Shard != other {
			t.Errorf("%v: %v, %v", typ, parts, err)
		}
	}
	for text, f := range map[string]arrow.Field{
		`"42"`: {Type: arrow.BinaryTypes.String}, `"NDI="`: {Type: arrow.BinaryTypes.Binary}, `"42" `: {Type: arrow.BinaryTypes.LargeString},
		`"42"  `: {Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}},
	} {
		f.Name = "c"
		parts, err := divide.Rows(batch(t, `[{"c":`+text+`}]`, f), l, other)
		if err != nil || len(parts) != 1 || parts[0].Shard != l.ShardOf([]byte("42")) {
			t.Errorf("%v: %v, %v", f.Type, parts, err)
		}
	}
	floats := array.NewFloat64Builder(memory.DefaultAllocator)
	floats.AppendValues([]float64{1.5, math.NaN(), math.Inf(1), 1e300}, nil)
	b := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "c", Type: arrow.PrimitiveTypes.Float64}}, nil), []arrow.Array{floats.NewArray()}, 4)
	if parts, err := divide.Rows(b, l, other); err != nil || len(parts) != 1 || parts[0].Shard != other || parts[0].Rows.NumRows() != 4 {
		t.Errorf("floats without a shard: %v, %v", parts, err)
	}
	for _, typ := range []arrow.DataType{arrow.FixedWidthTypes.Timestamp_us, &arrow.Decimal128Type{Precision: 5}, arrow.ListOf(arrow.BinaryTypes.String), arrow.FixedWidthTypes.Date32} {
		if _, err := divide.Rows(batch(t, `[{"c":null}]`, arrow.Field{Name: "c", Type: typ, Nullable: true}), l, other); !errors.Is(err, divide.ErrType) {
			t.Errorf("%v: %v", typ, err)
		}
	}
}

// TestNested: the field may be in structs; one in a null struct, or that is not there, has no value.
func TestNested(t *testing.T) {
	user := arrow.Field{Name: "user", Nullable: true, Type: arrow.StructOf(arrow.Field{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true})}
	b := batch(t, `[{"user":{"id":7}},{"user":null},{"user":{"id":null}},{"user":{"id":7}}]`, user)
	l := layout(t, "user.id")
	other := (l.ShardOf([]byte("7")) + 1) % 8
	parts, err := divide.Rows(b.NewSlice(1, 4), l, other)
	if err != nil || len(parts) != 2 || parts[0].Shard != other || parts[0].Rows.NumRows() != 2 || parts[1].Shard != l.ShardOf([]byte("7")) {
		t.Errorf("%v, %v", parts, err)
	}
	for _, field := range []string{"user.name", "id", "user.id.x"} {
		if parts, err := divide.Rows(b, layout(t, field), 3); err != nil || len(parts) != 1 || parts[0].Shard != 3 || parts[0].Rows.NumRows() != 4 {
			t.Errorf("%s: %v, %v", field, parts, err)
		}
	}
}

// TestStream: the parts of a stream have all rows, each once, in order.
func TestStream(t *testing.T) {
	var rows []string
	for i := range 1000 {
		rows = append(rows, fmt.Sprintf(`{"c":"key-%d","n":%d}`, i%37, i))
	}
	b := batch(t, "["+strings.Join(rows, ",")+"]", arrow.Field{Name: "c", Type: arrow.BinaryTypes.String}, arrow.Field{Name: "n", Type: arrow.PrimitiveTypes.Int64})
	body, err := columnar.EncodeIPC(nil, b)
	if err != nil {
		t.Fatal(err)
	}
	l := layout(t, "c")
	frames, err := divide.Stream(body, l, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []int64
	for _, f := range frames {
		part, err := columnar.DecodeIPC(f.Body)
		if err != nil || int(part.NumRows()) != f.Rows {
			t.Fatalf("%v rows, %v", part, err)
		}
		numbers := part.Column(1).(*array.Int64).Int64Values()
		if !slices.IsSorted(numbers) {
			t.Errorf("the rows of shard %d are out of order", f.Shard)
		}
		for i, n := range numbers {
			if key := part.Column(0).(*array.String).Value(i); key != fmt.Sprint("key-", n%37) || l.ShardOf([]byte(key)) != f.Shard {
				t.Fatalf("row %d has the key %s in shard %d", n, key, f.Shard)
			}
		}
		all = append(all, numbers...)
	}
	if slices.Sort(all); len(all) != 1000 || all[0] != 0 || all[999] != 999 {
		t.Errorf("%d rows", len(all))
	}
	if _, err := divide.Stream([]byte("no stream"), l, 0); err == nil {
		t.Error("damage is divided")
	}
}
