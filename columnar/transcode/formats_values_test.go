package transcode

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/twmb/avro"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"scribe/columnar/schema"
)

// into are the columns that each value is put into.
func into() []schema.Field {
	list, big := schema.Type{Kind: schema.Int64}, schema.Type{Kind: schema.Decimal, Precision: 38, Scale: 6}
	return []schema.Field{
		typed("i", schema.Int64), typed("u", schema.Uint64), typed("f", schema.Float64),
		{Name: "d", Type: big, Nullable: true},
		typed("s", schema.String),
		typed("b", schema.Binary), typed("day", schema.Date), typed("at", schema.Timestamp),
		{Name: "l", Type: schema.Type{Kind: schema.List, Elem: &list}, Nullable: true},
	}
}

const none = "(null)"

// valueCase is a value, in a type of a format, and the columns that it fits; all others are null.
type valueCase struct {
	typ, value string
	want       map[string]string
}

func (c *valueCase) check(t *testing.T, batch arrow.RecordBatch, stats Stats) {
	t.Helper()
	for i, f := range into() {
		want, fits := c.want[f.Name]
		if !fits {
			want = none
		}
		if got := batch.Column(i).ValueStr(0); got != want {
			t.Errorf("%s %s in a column of %s is %s, want %s", c.typ, c.value, &f.Type, got, want)
		}
	}
	if int(stats.BadValues) != len(into())-len(c.want) {
		t.Errorf("%s %s: %+v", c.typ, c.value, stats)
	}
}

// at gives every field one path.
func at(fields []schema.Field, path ...string) []schema.Field {
	for i := range fields {
		fields[i].Path = path
	}
	return fields
}

func number(text string) map[string]string {
	return map[string]string{"i": text, "u": text, "f": text, "d": text, "s": text}
}

func TestArrowValues(t *testing.T) {
	types := map[string]arrow.DataType{
		"int8": arrow.PrimitiveTypes.Int8, "int16": arrow.PrimitiveTypes.Int16, "uint8": arrow.PrimitiveTypes.Uint8, "uint16": arrow.PrimitiveTypes.Uint16,
		"uint32": arrow.PrimitiveTypes.Uint32, "float16": arrow.FixedWidthTypes.Float16, "float32": arrow.PrimitiveTypes.Float32, "float64": arrow.PrimitiveTypes.Float64,
		"decimal128": &arrow.Decimal128Type{Precision: 30, Scale: 3}, "decimal256": &arrow.Decimal256Type{Precision: 60, Scale: 3},
		"date64": arrow.FixedWidthTypes.Date64, "seconds": arrow.FixedWidthTypes.Timestamp_s, "milliseconds": arrow.FixedWidthTypes.Timestamp_ms,
		"duration": arrow.FixedWidthTypes.Duration_ms, "time32": arrow.FixedWidthTypes.Time32s, "fixed": &arrow.FixedSizeBinaryType{ByteWidth: 2},
		"list": arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int16), "map": arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int8),
		"struct": arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int8, Nullable: true}),
	}
	for _, c := range []valueCase{
		{"int8", "[7]", number("7")},
		{"int16", "[-7]", map[string]string{"i": "-7", "f": "-7", "d": "-7", "s": "-7"}},
		{"uint8", "[7]", number("7")},
		{"uint16", "[7]", number("7")},
		{"uint32", "[7]", number("7")},
		{"float16", "[0.5]", map[string]string{"f": "0.5", "d": "0.5", "s": "0.5"}},
		{"float32", "[0.1]", map[string]string{"f": "0.10000000149011612", "d": "0.1", "s": "0.1"}},
		{"float64", "[3]", number("3")},
		{"decimal128", `["1.500"]`, map[string]string{"f": "1.5", "d": "1.5", "s": "1.500"}},
		{"decimal256", `["-0.500"]`, map[string]string{"f": "-0.5", "d": "-0.5", "s": "-0.500"}},
		{"date64", `["2024-05-06"]`, map[string]string{"s": "2024-05-06T00:00:00Z", "day": "2024-05-06", "at": "2024-05-06T00:00:00Z"}},
		{"seconds", `["2024-05-06 00:00:01Z"]`, map[string]string{"s": "2024-05-06T00:00:01Z", "at": "2024-05-06T00:00:01Z"}},
		{"milliseconds", `["2024-05-06 00:00:01.5Z"]`, map[string]string{"s": "2024-05-06T00:00:01.5Z", "at": "2024-05-06T00:00:01.5Z"}},
		{"duration", `[5]`, number("5")},
		{"time32", `["00:00:05"]`, number("5")},
		{"fixed", `["YWI="]`, map[string]string{"s": "ab", "b": "YWI="}},
		{"list", `[[1,2]]`, map[string]string{"l": "[1,2]"}},
		{"map", `[[{"key":"a","value":1}]]`, nil},
		{"struct", `[{"x":1}]`, nil},
	} {
		a, _, err := array.FromJSON(memory.DefaultAllocator, types[c.typ], strings.NewReader(c.value))
		if err != nil {
			t.Fatalf("%s: %v", c.typ, err)
		}
		s := &schema.Schema{Version: 1, Format: schema.Arrow, Fields: at(into(), "x")}
		batch, stats := transcode(t, Spec{Schema: s, Columns: columnsOf(s)}, arrowFrame(t, "x", a))
		c.check(t, batch, stats)
	}
}

func TestAvroValues(t *testing.T) {
	for _, c := range []valueCase{
		{`"int"`, "7", number("7")},
		{`{"type":"int","logicalType":"date"}`, "1", map[string]string{"i": "1", "u": "1", "f": "1", "d": "1", "s": "1", "day": "1970-01-02", "at": "1970-01-02T00:00:00Z"}},
		// No timestamp is as far away as the last date.
		{`{"type":"int","logicalType":"date"}`, "2147483647", map[string]string{
			"i": "2147483647", "u": "2147483647", "f": "2.147483647e+09", "d": "2147483647", "s": "2147483647", "day": "5881580-07-11",
		}},
		{`{"type":"long","logicalType":"timestamp-millis"}`, "1500", map[string]string{"i": "1500", "u": "1500", "f": "1500", "d": "1500", "s": "1500", "at": "1970-01-01T00:00:01.5Z"}},
		{`{"type":"long","logicalType":"timestamp-nanos"}`, "1500", map[string]string{"i": "1500", "u": "1500", "f": "1500", "d": "1500", "s": "1500", "at": "1970-01-01T00:00:00.000001Z"}},
		{`"float"`, "0.25", map[string]string{"f": "0.25", "d": "0.25", "s": "0.25"}},
		{`"double"`, "1e300", map[string]string{"f": "1e+300", "s": "1e+300"}},
		{`"boolean"`, "true", map[string]string{"s": "true"}},
		{`{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}`, `"\u00ff\u0038"`, map[string]string{"i": "-2", "f": "-2", "d": "-2", "s": "-2.00", "b": "/zg="}},
		{`{"type":"fixed","name":"F","size":2}`, `"ab"`, map[string]string{"s": "ab", "b": "YWI="}},
		{`{"type":"enum","name":"E","symbols":["X","Y"]}`, `"Y"`, map[string]string{"s": "Y", "b": "WQ=="}},
		{`"string"`, `"2024-05-06"`, map[string]string{"s": "2024-05-06", "b": "MjAyNC0wNS0wNg==", "day": "2024-05-06"}},
		{`{"type":"array","items":["int","long"]}`, `[{"int":1},{"long":2}]`, map[string]string{"l": "[1,2]"}},
		{`{"type":"map","values":"int"}`, `{"a":1}`, nil},
	} {
		text := `{"type":"record","name":"R","fields":[{"name":"x","type":` + c.typ + `}]}`
		parsed, err := avro.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := parsed.DecodeJSON([]byte(`{"x":`+c.value+`}`), &v); err != nil {
			t.Fatalf("%s: %v", c.typ, err)
		}
		datum, err := parsed.Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		s := &schema.Schema{Version: 1, Format: schema.Avro, Avro: text, Fields: at(into(), "x")}
		batch, stats := transcode(t, Spec{Schema: s, Columns: columnsOf(s)}, frameOf(t, string(datum)))
		c.check(t, batch, stats)
	}
}

func TestAvroSchemas(t *testing.T) {
	for text, says := range map[string]string{
		`{"type":"record","name":"R","fields":[{"name":"x","type":"R"}]}`: "without end",
		`"int"`:           "not a record",
		`{"type":"nope"}`: "Avro schema",
	} {
		s := &schema.Schema{Version: 1, Format: schema.Avro, Avro: text, Fields: into()}
		if _, err := New(Spec{Schema: s, Columns: []string{"i"}}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
		s.OnError = schema.OnErrorNull
		if err := s.Validate(); err == nil { // nothing is stored that can't be read
			t.Errorf("%s is a valid schema", text)
		}
	}
}

func TestProtobufValues(t *testing.T) {
	for _, c := range []valueCase{
		{`"type":"TYPE_INT32"`, "7", number("7")},
		{`"type":"TYPE_UINT32"`, "7", number("7")},
		{`"type":"TYPE_FIXED32"`, "7", number("7")},
		{`"type":"TYPE_SFIXED64"`, `"-7"`, map[string]string{"i": "-7", "f": "-7", "d": "-7", "s": "-7"}},
		{`"type":"TYPE_SINT64"`, `"-7"`, map[string]string{"i": "-7", "f": "-7", "d": "-7", "s": "-7"}},
		{`"type":"TYPE_UINT64"`, `"18446744073709551615"`, map[string]string{"u": "18446744073709551615", "f": "1.8446744073709552e+19", "d": "18446744073709551615", "s": "18446744073709551615"}},
		{`"type":"TYPE_FLOAT"`, "0.5", map[string]string{"f": "0.5", "d": "0.5", "s": "0.5"}},
		{`"type":"TYPE_DOUBLE"`, `"-Infinity"`, map[string]string{"f": "-Inf", "s": "-Infinity"}},
		{`"type":"TYPE_BOOL"`, "true", map[string]string{"s": "true"}},
		{`"type":"TYPE_STRING"`, `"1.5"`, map[string]string{"d": "1.5", "s": "1.5", "b": "MS41"}},
		{`"type":"TYPE_BYTES"`, `"/w=="`, map[string]string{"b": "/w=="}},
		{`"type":"TYPE_ENUM","typeName":".E"`, `"ONE"`, map[string]string{"i": "1", "u": "1", "f": "1", "d": "1", "s": "ONE"}},
		{`"type":"TYPE_ENUM","typeName":".E"`, `9`, number("9")},
		{`"type":"TYPE_MESSAGE","typeName":".google.protobuf.Duration"`, `"-1.5s"`, map[string]string{"f": "-1.5", "d": "-1.5", "s": "-1.5s"}},
		{`"type":"TYPE_MESSAGE","typeName":".google.protobuf.Duration"`, `"3s"`, map[string]string{"i": "3", "u": "3", "f": "3", "d": "3", "s": "3s"}},
		{`"type":"TYPE_MESSAGE","typeName":".google.protobuf.UInt32Value"`, `0`, number("0")},
		{`"type":"TYPE_INT32","label":"LABEL_REPEATED"`, `[1,-2]`, map[string]string{"l": "[1,-2]"}},
		{`"type":"TYPE_SINT32","label":"LABEL_REPEATED","options":{"packed":false}`, `[1,-2]`, map[string]string{"l": "[1,-2]"}},
		{`"type":"TYPE_MESSAGE","typeName":".google.protobuf.Int64Value","label":"LABEL_REPEATED"`, `["1","0"]`, map[string]string{"l": "[1,0]"}},
		{`"type":"TYPE_MESSAGE","typeName":".M"`, `{}`, nil},
	} {
		set := protoOf(t, c.typ)
		b, err := proto.Marshal(set)
		if err != nil {
			t.Fatal(err)
		}
		s := &schema.Schema{Version: 1, Format: schema.Protobuf, Protobuf: &schema.ProtobufOptions{Descriptors: b, Message: "M"}, Fields: at(into(), "x")}
		d, err := s.Protobuf.Descriptor()
		if err != nil {
			t.Fatal(err)
		}
		m := dynamicpb.NewMessage(d)
		if err := protojson.Unmarshal([]byte(`{"x":`+c.value+`}`), m); err != nil {
			t.Fatalf("%s: %v", c.typ, err)
		}
		message, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		batch, stats := transcode(t, Spec{Schema: s, Columns: columnsOf(s)}, frameOf(t, string(message)))
		c.check(t, batch, stats)
	}
}

// protoOf is a message M with a field x, whose type is part of a FieldDescriptorProto in JSON.
func protoOf(t *testing.T, field string) *descriptorpb.FileDescriptorSet {
	t.Helper()
	if !strings.Contains(field, "label") {
		field += `,"label":"LABEL_OPTIONAL"`
	}
	file := &descriptorpb.FileDescriptorProto{}
	err := protojson.Unmarshal([]byte(`{"name":"m.proto","dependency":["google/protobuf/duration.proto","google/protobuf/wrappers.proto"],
		"enumType":[{"name":"E","value":[{"name":"ZERO","number":0},{"name":"ONE","number":1}]}],
		"messageType":[{"name":"M","field":[{"name":"x","number":100,`+field+`}]}],"syntax":"proto3"}`), file)
	if err != nil {
		t.Fatal(err)
	}
	return &descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{
		protodesc.ToFileDescriptorProto(durationpb.File_google_protobuf_duration_proto), protodesc.ToFileDescriptorProto(wrapperspb.File_google_protobuf_wrappers_proto), file,
	}}
}

// Fields without presence are there, with their zero values.
func TestProtobufZeros(t *testing.T) {
	for typ, want := range map[string]string{
		`"type":"TYPE_INT32"`: "0", `"type":"TYPE_STRING"`: "", `"type":"TYPE_BOOL"`: "false", `"type":"TYPE_ENUM","typeName":".E"`: "ZERO",
		`"type":"TYPE_MESSAGE","typeName":".google.protobuf.Int32Value"`: none, `"type":"TYPE_INT32","proto3Optional":true,"oneofIndex":0`: none,
	} {
		set := protoOf(t, typ)
		if strings.Contains(typ, "oneof") {
			set.File[2].MessageType[0].OneofDecl = []*descriptorpb.OneofDescriptorProto{{Name: new("_x")}}
		}
		b, err := proto.Marshal(set)
		if err != nil {
			t.Fatal(err)
		}
		field := typed("x", schema.String)
		s := &schema.Schema{Version: 1, Format: schema.Protobuf, Protobuf: &schema.ProtobufOptions{Descriptors: b, Message: "M"}, Fields: []schema.Field{field}}
		batch, _ := transcode(t, Spec{Schema: s, Columns: []string{"x"}}, frameOf(t, ""))
		if got := batch.Column(0).ValueStr(0); got != want {
			t.Errorf("%s that is not there is %q, want %q", typ, got, want)
		}
	}
}
