package transcode

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/twmb/avro"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"scribe/columnar"
	"scribe/columnar/schema"
	"scribe/internal/format/record"
)

// logical is a row as every format can write it. Nil pointers are nulls.
type logical struct {
	flag   *bool
	small  *int32
	big    *int64
	huge   *uint64
	float  *float64
	price  *int64 // in hundredths
	name   *string
	code   *string
	raw    []byte
	day    *int32 // since 1970
	at     *int64 // Unix microseconds
	list   []int64
	tags   map[string]string // with one key at most: formats differ in the order of keys
	inner  *int64            // part of a struct
	label  *string
	deep   *int64
	moved  *string
	hasOld bool // moved stands at its alias
}

func logicalFields() []schema.Field {
	field := func(name string, t schema.Type) schema.Field {
		return schema.Field{Name: name, Type: t, Nullable: true}
	}
	deep := field("deep", schema.Type{Kind: schema.Int64})
	deep.Path = []string{"outer", "deep"}
	moved := field("moved", schema.Type{Kind: schema.String})
	moved.Aliases = [][]string{{"old"}}
	missing := schema.Field{Name: "missing", Type: schema.Type{Kind: schema.Int32}, Default: "42"}
	return []schema.Field{
		field("flag", schema.Type{Kind: schema.Bool}),
		field("small", schema.Type{Kind: schema.Int32}),
		field("big", schema.Type{Kind: schema.Int64}),
		field("huge", schema.Type{Kind: schema.Uint64}),
		field("float", schema.Type{Kind: schema.Float64}),
		field("price", schema.Type{Kind: schema.Decimal, Precision: 20, Scale: 4}),
		field("name", schema.Type{Kind: schema.String}),
		field("code", schema.Type{Kind: schema.String, Dictionary: true}),
		field("raw", schema.Type{Kind: schema.Binary}),
		field("day", schema.Type{Kind: schema.Date}),
		field("at", schema.Type{Kind: schema.Timestamp}),
		field("list", schema.Type{Kind: schema.List, Elem: &schema.Type{Kind: schema.Int64}}),
		field("tags", schema.Type{Kind: schema.Map, Elem: &schema.Type{Kind: schema.String}}),
		field("pair", schema.Type{Kind: schema.Struct, Fields: []schema.Field{
			field("inner", schema.Type{Kind: schema.Int64}), field("label", schema.Type{Kind: schema.String}),
		}}),
		deep, moved, missing,
	}
}

func drawLogical(t *rapid.T) logical {
	integer := rapid.SampledFrom([]int64{0, 1, -1, 404, 1<<53 + 1, 1<<63 - 1, -1 << 63})
	text := rapid.OneOf(rapid.SampledFrom([]string{"", "a", "null", "1", "é\n\"x\",", "\r\n", "😀"}), rapid.StringN(0, 12, -1))
	return logical{
		flag:   maybe(t, rapid.Bool()),
		small:  maybe(t, rapid.Int32()),
		big:    maybe(t, integer),
		huge:   maybe(t, rapid.SampledFrom([]uint64{0, 7, 1 << 63, 1<<64 - 1})),
		float:  maybe(t, rapid.Float64Range(-1e300, 1e300)),
		price:  maybe(t, rapid.Int64Range(-1e15, 1e15)),
		name:   maybe(t, text),
		code:   maybe(t, rapid.SampledFrom([]string{"red", "green", ""})),
		raw:    []byte(text.Draw(t, "raw")),
		day:    maybe(t, rapid.Int32Range(-700_000, 2_900_000)),
		at:     maybe(t, rapid.Int64Range(-62_135_596_800_000_000, 253_402_300_799_999_999)),
		list:   rapid.SliceOfN(integer, 0, 4).Draw(t, "list"),
		tags:   rapid.MapOfN(text, text, 0, 1).Draw(t, "tags"),
		inner:  maybe(t, integer),
		label:  maybe(t, text),
		deep:   maybe(t, integer),
		moved:  maybe(t, text),
		hasOld: rapid.Bool().Draw(t, "old"),
	}
}

func maybe[T any](t *rapid.T, g *rapid.Generator[T]) *T {
	if rapid.IntRange(0, 3).Draw(t, "null") == 0 {
		return nil
	}
	v := g.Draw(t, "value")
	return &v
}

// formatCase is a format with an encoder: it makes the frames of some rows.
type formatCase struct {
	name   string
	schema func() *schema.Schema
	frames func(t testing.TB, rows []logical) []byte
}

func formatCases() []formatCase {
	of := func(f schema.Format) func() *schema.Schema {
		return func() *schema.Schema { return &schema.Schema{Version: 1, Format: f, Fields: logicalFields()} }
	}
	return []formatCase{
		{"json", of(schema.JSON), func(t testing.TB, rows []logical) []byte {
			var messages []string
			for i := range rows {
				messages = append(messages, rows[i].json(t))
			}
			return frameOf(t, messages...)
		}},
		{"ndjson", of(schema.NDJSON), func(t testing.TB, rows []logical) []byte {
			var b strings.Builder
			for i := range rows {
				b.WriteString(rows[i].json(t) + "\n")
			}
			return frameOf(t, b.String())
		}},
		{"csv", csvSchema(true), func(t testing.TB, rows []logical) []byte { return frameOf(t, csvOf(t, rows, true, false)) }},
		{"csv without header", csvSchema(false), func(t testing.TB, rows []logical) []byte { return frameOf(t, csvOf(t, rows, false, false)) }},
		{"avro", avroSchema, avroFrames},
		{"protobuf", protoSchema, protoFrames},
		{"arrow", of(schema.Arrow), arrowFrames},
	}
}

// object is the row as encoding/json takes it.
func (r *logical) object() map[string]any {
	o := map[string]any{"undeclared": []any{1, map[string]any{"x": "y"}}}
	put(o, "flag", r.flag)
	put(o, "small", r.small)
	put(o, "big", r.big)
	put(o, "huge", r.huge)
	put(o, "float", r.float)
	put(o, "name", r.name)
	put(o, "code", r.code)
	if r.price != nil {
		o["price"] = json.Number(hundredths(*r.price))
	}
	o["raw"] = string(r.raw)
	if r.day != nil {
		o["day"] = dayText(*r.day)
	}
	if r.at != nil {
		o["at"] = time.UnixMicro(*r.at).UTC().Format(time.RFC3339Nano)
	}
	o["list"] = append([]int64{}, r.list...)
	o["tags"] = r.tags
	o["pair"] = r.pair()
	if r.deep != nil {
		o["outer"] = map[string]any{"deep": *r.deep}
	}
	if r.moved != nil {
		o[r.place()] = *r.moved
	}
	return o
}

func (r *logical) place() string {
	if r.hasOld {
		return "old"
	}
	return "moved"
}

func (r *logical) pair() map[string]any {
	pair := map[string]any{}
	put(pair, "inner", r.inner)
	put(pair, "label", r.label)
	return pair
}

func put[T any](o map[string]any, name string, v *T) {
	if v != nil {
		o[name] = *v
	}
}

func hundredths(v int64) string {
	return new(big.Rat).SetFrac64(v, 100).FloatString(2)
}

func dayText(days int32) string { return time.Unix(int64(days)*86400, 0).UTC().Format(time.DateOnly) }

func (r *logical) json(t testing.TB) string {
	b, err := json.Marshal(r.object())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const csvNull = `\N`

func csvSchema(header bool) func() *schema.Schema {
	return func() *schema.Schema {
		s := &schema.Schema{Version: 1, Format: schema.CSV, Fields: logicalFields(), CSV: &schema.CSVOptions{Header: header, Null: csvNull}}
		for i := range s.Fields {
			s.Fields[i].Path = nil
		}
		if !header {
			s.CSV.Columns = csvColumnNames
		}
		return s
	}
}

var csvColumnNames = []string{
	"undeclared", "flag", "small", "big", "huge", "float", "price", "name", "code", "raw", "day", "at", "list", "tags", "pair", "deep", "moved",
}

func csvOf(t testing.TB, rows []logical, header, crlf bool) string {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	w.UseCRLF = crlf
	if header {
		if err := w.Write(csvColumnNames); err != nil {
			t.Fatal(err)
		}
	}
	text := func(v any) string {
		if s, ok := v.(string); ok {
			return s
		}
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	for i := range rows {
		o := rows[i].object()
		o["deep"], o["undeclared"] = nil, "x\"\n,"
		if rows[i].deep != nil {
			o["deep"] = *rows[i].deep
		}
		if old, ok := o["old"]; ok {
			o["moved"] = old
		}
		var line []string
		for _, name := range csvColumnNames {
			if v := o[name]; v == nil {
				line = append(line, csvNull)
			} else {
				line = append(line, text(v))
			}
		}
		if err := w.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	w.Flush()
	return b.String()
}

const logicalAvro = `{"type":"record","name":"test.Row","fields":[
 {"name":"undeclared","type":{"type":"array","items":{"type":"map","values":["null","string","double"]}}},
 {"name":"flag","type":["null","boolean"]},{"name":"small","type":["null","int"]},{"name":"big","type":["long","null"]},
 {"name":"huge","type":["null",{"type":"bytes","logicalType":"decimal","precision":20,"scale":0}]},
 {"name":"float","type":["null","double"]},
 {"name":"price","type":["null",{"type":"fixed","name":"F12","size":12,"logicalType":"decimal","precision":20,"scale":2}]},
 {"name":"name","type":["null","string"]},
 {"name":"code","type":["null",{"type":"enum","name":"Code","symbols":["red","green","nothing"]},"string"]},
 {"name":"raw","type":"bytes"},
 {"name":"day","type":["null",{"type":"int","logicalType":"date"}]},
 {"name":"at","type":["null",{"type":"long","logicalType":"timestamp-micros"}]},
 {"name":"list","type":{"type":"array","items":"long"}},
 {"name":"tags","type":{"type":"map","values":"string"}},
 {"name":"pair","type":{"type":"record","name":"Pair","fields":[{"name":"label","type":["null","string"]},{"name":"inner","type":["null","long"]}]}},
 {"name":"outer","type":["null",{"type":"record","name":"Outer","fields":[{"name":"more","type":"string"},{"name":"deep","type":"long"}]}]},
 {"name":"places","type":{"type":"map","values":"string"}}]}`

func avroSchema() *schema.Schema {
	s := &schema.Schema{Version: 1, Format: schema.Avro, Fields: logicalFields(), Avro: logicalAvro}
	for i := range s.Fields {
		// Of the two positions one is there, which fields of records can't do.
		if f := &s.Fields[i]; f.Name == "moved" {
			f.Path, f.Aliases = []string{"places", "moved"}, [][]string{{"places", "old"}}
		}
	}
	return s
}

func avroFrames(t testing.TB, rows []logical) []byte {
	parsed, err := avro.Parse(logicalAvro)
	if err != nil {
		t.Fatal(err)
	}
	var messages []string
	for i := range rows {
		r := &rows[i]
		o := map[string]any{
			"undeclared": []any{map[string]any{"a": "b", "c": 1.5, "d": nil}},
			"raw":        append([]byte{}, r.raw...), "list": append([]int64{}, r.list...), "tags": r.tags, "pair": map[string]any{"inner": nil, "label": nil}, "outer": nil,
			"flag": nil, "small": nil, "big": nil, "huge": nil, "float": nil, "price": nil, "name": nil, "code": nil, "day": nil, "at": nil,
		}
		if o["tags"] == nil {
			o["tags"] = map[string]string{}
		}
		put(o, "flag", r.flag)
		put(o, "small", r.small)
		put(o, "big", r.big)
		put(o, "float", r.float)
		put(o, "name", r.name)
		put(o, "code", r.code)
		put(o["pair"].(map[string]any), "inner", r.inner)
		put(o["pair"].(map[string]any), "label", r.label)
		if r.huge != nil {
			o["huge"] = new(big.Rat).SetInt(new(big.Int).SetUint64(*r.huge))
		}
		if r.price != nil {
			o["price"] = big.NewRat(*r.price, 100)
		}
		if r.day != nil {
			o["day"] = time.Unix(int64(*r.day)*86400, 0).UTC()
		}
		if r.at != nil {
			o["at"] = time.UnixMicro(*r.at).UTC()
		}
		if r.deep != nil {
			o["outer"] = map[string]any{"more": "x", "deep": *r.deep}
		}
		places := map[string]string{"other": "z"}
		if r.moved != nil {
			places[r.place()] = *r.moved
		}
		o["places"] = places
		b, err := parsed.Encode(o)
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, string(b))
	}
	return frameOf(t, messages...)
}

// logicalProto is the descriptors of the protobuf messages, as protoc writes them.
func logicalProto() *descriptorpb.FileDescriptorSet {
	number := int32(0)
	field := func(name string, typ descriptorpb.FieldDescriptorProto_Type, more ...func(*descriptorpb.FieldDescriptorProto)) *descriptorpb.FieldDescriptorProto {
		number++
		f := &descriptorpb.FieldDescriptorProto{
			Name: new(name), Number: new(number), Type: typ.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
		for _, m := range more {
			m(f)
		}
		return f
	}
	of := func(name string) func(*descriptorpb.FieldDescriptorProto) {
		return func(f *descriptorpb.FieldDescriptorProto) { f.TypeName = new(name) }
	}
	repeated := func(f *descriptorpb.FieldDescriptorProto) {
		f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	}
	far := func(f *descriptorpb.FieldDescriptorProto) { f.Number = new(int32(5000)) }
	const (
		message = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
		int64s  = descriptorpb.FieldDescriptorProto_TYPE_INT64
		strings = descriptorpb.FieldDescriptorProto_TYPE_STRING
	)
	timestamp := protodesc.ToFileDescriptorProto(timestamppb.File_google_protobuf_timestamp_proto)
	wrappers := protodesc.ToFileDescriptorProto(wrapperspb.File_google_protobuf_wrappers_proto)
	row := &descriptorpb.DescriptorProto{Name: new("Row"), Field: []*descriptorpb.FieldDescriptorProto{
		field("flag", descriptorpb.FieldDescriptorProto_TYPE_BOOL),
		field("small", descriptorpb.FieldDescriptorProto_TYPE_SINT32),
		field("big", message, of(".google.protobuf.Int64Value")),
		field("huge", descriptorpb.FieldDescriptorProto_TYPE_FIXED64),
		field("float", descriptorpb.FieldDescriptorProto_TYPE_DOUBLE, far),
		field("price", strings),
		field("name", strings),
		field("code", strings),
		field("raw", descriptorpb.FieldDescriptorProto_TYPE_BYTES),
		field("day", strings),
		field("at", message, of(".google.protobuf.Timestamp")),
		field("list", int64s, repeated),
		field("tags", message, of(".test.Row.TagsEntry"), repeated),
		field("pair", message, of(".test.Row.Pair")),
		field("outer", descriptorpb.FieldDescriptorProto_TYPE_GROUP, of(".test.Row.Outer")),
		field("moved", strings),
		field("old", strings),
		field("undeclared", message, of(".test.Row.Pair"), repeated),
	}}
	number = 0
	entry := &descriptorpb.DescriptorProto{
		Name: new("TagsEntry"), Options: &descriptorpb.MessageOptions{MapEntry: new(true)},
		Field: []*descriptorpb.FieldDescriptorProto{field("key", strings), field("value", strings)},
	}
	number = 0
	pair := &descriptorpb.DescriptorProto{Name: new("Pair"), Field: []*descriptorpb.FieldDescriptorProto{field("inner", int64s), field("label", strings)}}
	number = 0
	outer := &descriptorpb.DescriptorProto{Name: new("Outer"), Field: []*descriptorpb.FieldDescriptorProto{field("deep", int64s)}}
	row.NestedType = []*descriptorpb.DescriptorProto{entry, pair, outer}
	return &descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{timestamp, wrappers, {
		Name: new("row.proto"), Package: new("test"), Dependency: []string{timestamp.GetName(), wrappers.GetName()},
		MessageType: []*descriptorpb.DescriptorProto{row}, Syntax: new("proto2"),
	}}}
}

func protoSchema() *schema.Schema {
	b, err := proto.Marshal(logicalProto())
	if err != nil {
		panic(err)
	}
	return &schema.Schema{
		Version: 1, Format: schema.Protobuf, Fields: logicalFields(),
		Protobuf: &schema.ProtobufOptions{Descriptors: b, Message: "test.Row"},
	}
}

func protoFrames(t testing.TB, rows []logical) []byte {
	d, err := protoSchema().Protobuf.Descriptor()
	if err != nil {
		t.Fatal(err)
	}
	var messages []string
	for i := range rows {
		b, err := proto.Marshal(rows[i].proto(d))
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, string(b))
	}
	return frameOf(t, messages...)
}

func (r *logical) proto(d protoreflect.MessageDescriptor) *dynamicpb.Message {
	m := dynamicpb.NewMessage(d)
	field := func(name string) protoreflect.FieldDescriptor { return d.Fields().ByName(protoreflect.Name(name)) }
	set(m, field("flag"), r.flag)
	set(m, field("small"), r.small)
	set(m, field("huge"), r.huge)
	set(m, field("float"), r.float)
	set(m, field("name"), r.name)
	set(m, field("code"), r.code)
	set(m, field(r.place()), r.moved)
	m.Set(field("raw"), protoreflect.ValueOfBytes(r.raw))
	if r.big != nil {
		set(m.Mutable(field("big")).Message(), field("big").Message().Fields().ByNumber(1), r.big)
	}
	if r.price != nil {
		m.Set(field("price"), protoreflect.ValueOfString(hundredths(*r.price)))
	}
	if r.day != nil {
		m.Set(field("day"), protoreflect.ValueOfString(dayText(*r.day)))
	}
	if r.at != nil {
		at, of := m.Mutable(field("at")).Message(), field("at").Message().Fields()
		when := time.UnixMicro(*r.at)
		at.Set(of.ByNumber(1), protoreflect.ValueOfInt64(when.Unix()))
		at.Set(of.ByNumber(2), protoreflect.ValueOfInt32(int32(when.Nanosecond())))
	}
	for _, v := range r.list {
		m.Mutable(field("list")).List().Append(protoreflect.ValueOfInt64(v))
	}
	for k, v := range r.tags {
		m.Mutable(field("tags")).Map().Set(protoreflect.ValueOfString(k).MapKey(), protoreflect.ValueOfString(v))
	}
	pair, of := m.Mutable(field("pair")).Message(), field("pair").Message().Fields()
	set(pair, of.ByName("inner"), r.inner)
	set(pair, of.ByName("label"), r.label)
	if r.deep != nil {
		set(m.Mutable(d.Fields().ByNumber(15)).Message(), d.Fields().ByNumber(15).Message().Fields().ByNumber(1), r.deep)
	}
	extra := m.Mutable(field("undeclared")).List()
	extra.Append(extra.NewElement())
	return m
}

func set[T any](m protoreflect.Message, f protoreflect.FieldDescriptor, v *T) {
	if v != nil {
		m.Set(f, protoreflect.ValueOf(*v))
	}
}

// arrowFrames writes the rows with types that are near to those of the columns, so that they have to be converted.
func arrowFrames(t testing.TB, rows []logical) []byte {
	list := arrow.LargeListOf(arrow.PrimitiveTypes.Int64)
	nullable := func(name string, dt arrow.DataType) arrow.Field {
		return arrow.Field{Name: name, Type: dt, Nullable: true}
	}
	s := arrow.NewSchema([]arrow.Field{
		nullable("small", arrow.PrimitiveTypes.Int64), nullable("flag", arrow.FixedWidthTypes.Boolean), nullable("big", arrow.PrimitiveTypes.Int64),
		nullable("huge", arrow.PrimitiveTypes.Uint64), nullable("float", arrow.PrimitiveTypes.Float64),
		nullable("price", &arrow.Decimal128Type{Precision: 22, Scale: 2}), nullable("name", arrow.BinaryTypes.String),
		nullable("code", &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}),
		nullable("raw", arrow.BinaryTypes.LargeBinary), nullable("day", arrow.FixedWidthTypes.Date32), nullable("at", arrow.FixedWidthTypes.Timestamp_us),
		nullable("list", list), nullable("tags", arrow.MapOf(arrow.BinaryTypes.String, arrow.BinaryTypes.LargeString)),
		nullable("pair", arrow.StructOf(nullable("label", arrow.BinaryTypes.String), nullable("inner", arrow.PrimitiveTypes.Int64))),
		nullable("outer", arrow.StructOf(nullable("deep", arrow.PrimitiveTypes.Int64))),
		nullable("moved", arrow.BinaryTypes.String),
	}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	for i := range rows {
		appendLogical(b, &rows[i])
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	body, err := columnar.EncodeIPC(nil, rec)
	if err != nil {
		t.Fatal(err)
	}
	frame, err := record.AppendArrowFrame(nil, record.Envelope{Category: "test", BaseTime: 1}, int(rec.NumRows()), body)
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

func appendLogical(b *array.RecordBuilder, r *logical) {
	i := -1
	next := func() array.Builder { i++; return b.Field(i) }
	var small *int64
	if r.small != nil {
		v := int64(*r.small)
		small = &v
	}
	add(next().(*array.Int64Builder), small)
	add(next().(*array.BooleanBuilder), r.flag)
	add(next().(*array.Int64Builder), r.big)
	add(next().(*array.Uint64Builder), r.huge)
	add(next().(*array.Float64Builder), r.float)
	if price := next().(*array.Decimal128Builder); r.price != nil {
		price.Append(decimal128.FromI64(*r.price))
	} else {
		price.AppendNull()
	}
	add(next().(*array.StringBuilder), r.name)
	if code := next().(*array.BinaryDictionaryBuilder); r.code != nil {
		if err := code.AppendString(*r.code); err != nil {
			panic(err)
		}
	} else {
		code.AppendNull()
	}
	next().(*array.BinaryBuilder).Append(r.raw)
	add(next().(*array.Date32Builder), (*arrow.Date32)(r.day))
	add(next().(*array.TimestampBuilder), (*arrow.Timestamp)(r.at))
	list := next().(*array.LargeListBuilder)
	list.Append(true)
	list.ValueBuilder().(*array.Int64Builder).AppendValues(r.list, nil)
	tags := next().(*array.MapBuilder)
	tags.Append(true)
	for k, v := range r.tags {
		tags.KeyBuilder().(*array.StringBuilder).Append(k)
		tags.ItemBuilder().(*array.LargeStringBuilder).Append(v)
	}
	pair := next().(*array.StructBuilder)
	pair.Append(true)
	add(pair.FieldBuilder(0).(*array.StringBuilder), r.label)
	add(pair.FieldBuilder(1).(*array.Int64Builder), r.inner)
	outer := next().(*array.StructBuilder)
	if r.deep != nil {
		outer.Append(true)
		add(outer.FieldBuilder(0).(*array.Int64Builder), r.deep)
	} else {
		outer.AppendNull()
	}
	add(next().(*array.StringBuilder), r.moved)
}

func add[T any](b interface {
	Append(T)
	AppendNull()
}, v *T,
) {
	if v == nil {
		b.AppendNull()
		return
	}
	b.Append(*v)
}
