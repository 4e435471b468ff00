package schema

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"pgregory.net/rapid"
)

func TestFromArrow(t *testing.T) {
	field := func(name string, dt arrow.DataType) arrow.Field { return arrow.Field{Name: name, Type: dt} }
	a := arrow.NewSchema([]arrow.Field{
		field("a", arrow.PrimitiveTypes.Uint16), field("_id", arrow.PrimitiveTypes.Uint64), field("id", arrow.PrimitiveTypes.Float32),
		field("d", &arrow.Decimal256Type{Precision: 20, Scale: 2}), field("t", arrow.FixedWidthTypes.Timestamp_ns),
		field("s", &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Uint8, ValueType: arrow.BinaryTypes.LargeString}),
		field("l", arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int8)), field("m", arrow.MapOf(arrow.BinaryTypes.String, arrow.BinaryTypes.Binary)),
		{Name: "n", Type: arrow.StructOf(field("x", arrow.PrimitiveTypes.Date32)), Nullable: true},
	}, nil)
	s, err := FromArrow(a, false)
	if err != nil {
		t.Fatal(err)
	}
	same(t, s)
	const want = "a int32 not null, id_2 uint64 not null, id float64 not null, d decimal(20,2) not null, t timestamp not null, s dictionary not null, " +
		"l list<int32> not null, m map<binary> not null, n struct<x date not null>"
	if got := fieldsText(s); got != want || s.Format != Arrow || s.Fields[1].Path[0] != "_id" {
		t.Errorf("%s, want\n%s", got, want)
	}
	if s, err = FromArrow(a, true); err != nil || strings.Contains(fieldsText(s), "not null") {
		t.Errorf("%s, %v", fieldsText(s), err)
	}
	for _, dt := range []arrow.DataType{
		arrow.FixedWidthTypes.Time64us, arrow.MapOf(arrow.PrimitiveTypes.Int64, arrow.BinaryTypes.String), &arrow.Decimal256Type{Precision: 70}, arrow.StructOf(),
	} {
		if _, err := FromArrow(arrow.NewSchema([]arrow.Field{field("x", dt)}, nil), false); err == nil || !strings.Contains(err.Error(), `column "x"`) {
			t.Errorf("%s: %v", dt, err)
		}
	}
}

// TestArrowRoundTrip: the schema of the batches that a schema makes is that schema again, but for what Arrow does not say.
func TestArrowRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSchema(t)
		fields := make([]arrow.Field, len(s.Fields))
		for i := range s.Fields {
			fields[i] = s.Fields[i].Arrow()
		}
		back, err := FromArrow(arrow.NewSchema(fields, nil), false)
		if err != nil {
			t.Fatal(err)
		}
		for i := range back.Fields {
			if a, b := &s.Fields[i], &back.Fields[i]; a.Name != b.Name || a.Nullable != b.Nullable || !a.Type.Equal(&b.Type) {
				t.Fatalf("%s %s is %s %s", a.Name, a.Type.Text(), b.Name, b.Type.Text())
			}
		}
	})
}
