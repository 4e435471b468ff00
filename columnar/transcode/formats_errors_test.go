package transcode

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
	"pgregory.net/rapid"

	"scribe/columnar"
	"scribe/columnar/schema"
	"scribe/internal/format/record"
)

func typed(name string, k schema.Kind) schema.Field {
	return schema.Field{Name: name, Type: schema.Type{Kind: k}, Nullable: true}
}

// badCase is some messages with rows that do not fit, and the batch that is made of them.
type badCase struct {
	name     string
	schema   schema.Schema
	messages []string
	want     string // with the column _error
	good     int    // rows that are left when the category rejects
}

func csvCases() []badCase {
	three := []schema.Field{typed("a", schema.Int32), typed("b", schema.String), typed("c", schema.Timestamp)}
	strict := []schema.Field{{Name: "a", Type: schema.Type{Kind: schema.Int32}}, {Name: "b", Type: schema.Type{Kind: schema.String}, Default: `"d"`}}
	plain, header := &schema.CSVOptions{Delimiter: ","}, &schema.CSVOptions{Delimiter: ",", Header: true}
	return []badCase{
		{"numbers", schema.Schema{Fields: []schema.Field{
			typed("i", schema.Int64), typed("u", schema.Uint64), typed("f", schema.Float64), {Name: "d", Type: schema.Type{Kind: schema.Decimal, Precision: 5, Scale: 2}, Nullable: true}, typed("b", schema.Bool),
		}, CSV: plain}, []string{
			"1e3,007,+1.5,12.5,yes\n 5 ,1.0,NaN,1e2,0\n1.5,-1,x,1.234,maybe\n9223372036854775808,18446744073709551616,1e999,1000,\n",
		}, `1000|7|1.5|12.5|true|(null)
5|1|NaN|100|false|(null)
(null)|(null)|(null)|(null)|(null)|i at byte 0: the number is not an integer; u at byte 4: the number is out of the type's range; f at byte 7: a number belongs here; d at byte 9: the number has more digits than the type; b at byte 15: true or false belongs here
(null)|(null)|(null)|(null)|(null)|i at byte 0: the number is out of the type's range; u at byte 20: the number is out of the type's range; f at byte 41: the number is out of the type's range; d at byte 47: the number has more digits than the type
`, 2},
		{"quotes", schema.Schema{Fields: three[:2], CSV: plain}, []string{
			"1,\"x\"\"y\"\r\n2,a\"b\n3,\"c\"d\n\"4\",\"\"\n\n5,\"e\nf\",more\n6\n7,\"open\n8,x\n", "9,\xff", "", "\n\n", "\uFEFF10,bom",
		}, `1|x"y|(null)
(null)|(null)|row at byte 3: a quote inside a cell that does not begin with one
(null)|(null)|row at byte 5: something follows the quote that ends a cell
4||(null)
5|e
f|(null)
6|(null)|(null)
(null)|(null)|row at byte 2: a quote is not closed in the 10 bytes to the end of the message
9|(null)|b at byte 2: the text is not UTF-8
(null)|(null)|row at byte 0: empty; lines belong here
(null)|(null)|row at byte 0: empty; lines belong here
10|bom|(null)
`, 5},
		{"header", schema.Schema{Fields: three, CSV: header}, []string{
			"b,x,a,a\none,1,2,3\ntwo,1,2\nthree,1,,3\n", "a,c\r\n1,2024-01-02T03:04:05Z\r\n2,yesterday\r\n", "a\"b\n1\n2\n", "a,b\n",
		}, `2|one|(null)|(null)
(null)|(null)|(null)|row at byte 0: the line has 3 cells, the header has 4
(null)|three|(null)|(null)
1|(null)|2024-01-02T03:04:05Z|(null)
2|(null)|(null)|c at byte 2: the text is in none of the column's formats
(null)|(null)|(null)|row at byte 0: the header can't be read: a quote inside a cell that does not begin with one
(null)|(null)|(null)|row at byte 0: the header can't be read: a quote inside a cell that does not begin with one
`, 3},
		{"aliases", schema.Schema{Fields: []schema.Field{
			{Name: "a", Type: schema.Type{Kind: schema.Int32}, Aliases: [][]string{{"b"}}}, {Name: "c", Type: schema.Type{Kind: schema.Int32}, Aliases: [][]string{{"b"}}, Nullable: true},
		}, CSV: header}, []string{"a,b,c\n1,2,\n,3,\n", "b\n4\n", "c\n5\n"}, `1|(null)|(null)
3|(null)|(null)
4|4|(null)
(null)|5|a: no value, and the column is not nullable
`, 3},
		{"not nullable", schema.Schema{Fields: strict, CSV: &schema.CSVOptions{Delimiter: "||", Null: "-"}}, []string{"1||-\n-||\"-\"\n2\n"}, `1|d|(null)
(null)|-|a: no value, and the column is not nullable
2|d|(null)
`, 2},
		{"nested", schema.Schema{Fields: []schema.Field{
			{Name: "l", Type: schema.Type{Kind: schema.List, Elem: &schema.Type{Kind: schema.Int32}}, Nullable: true}, typed("z", schema.Binary),
		}, CSV: &schema.CSVOptions{Delimiter: "\t"}}, []string{"[1,2]\tx\n[1,\ty\n\"[\"\"a\"\"]\"\t\n"}, `[1,2]|eA==|(null)
(null)|eQ==|l at byte 0: a bracket is not closed
(null)|(null)|l at byte 1: a number belongs here
`, 1},
	}
}

// varint, text and so on write Avro.
func varint(n int64) string {
	return string(binary.AppendUvarint(nil, uint64(n<<1^n>>63)))
}

func avroCases() []badCase {
	of := func(fields string) string { return `{"type":"record","name":"R","fields":[` + fields + `]}` }
	list := schema.Field{Name: "l", Type: schema.Type{Kind: schema.List, Elem: &schema.Type{Kind: schema.Int32}}, Nullable: true}
	nulls := list
	nulls.Type.Elem = &schema.Type{Kind: schema.List, Elem: &schema.Type{Kind: schema.Bool}}
	return []badCase{
		{"values", schema.Schema{
			Avro:   of(`{"name":"a","type":["null","long"]},{"name":"b","type":"boolean"},{"name":"s","type":["string","bytes",{"type":"enum","name":"E","symbols":["X"]}]}`),
			Fields: []schema.Field{typed("a", schema.Int32), typed("b", schema.Bool), typed("s", schema.String)},
		}, []string{
			"\x00\x01\x00\x02x", "\x02" + varint(1<<40) + "\x02\x02\x04ok", "\x02" + varint(-7) + "\x00\x00\x02\xff", "\x00\x01\x04\x00", "\x00\x00\x04\x02",
			"", "\x00", "\x04\x01\x00\x00", "\x00\x01\x00\x02x!", "\x00\x01\x00\x7F", "\x00\x01\x00\x01", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02\x00",
		}, `(null)|true|x|(null)
(null)|(null)|ok|a at byte 0: the number is out of the type's range; b at byte 7: the bytes are not a value of their type
-7|false|(null)|s at byte 3: the text is not UTF-8
(null)|true|X|(null)
(null)|false|(null)|s at byte 2: an enum has no such symbol
(null)|(null)|(null)|row at byte 0: empty; a datum belongs here
(null)|(null)|(null)|row at byte 1: the datum is cut off
(null)|(null)|(null)|row at byte 0: a union has no such branch
(null)|(null)|(null)|row at byte 5: the datum ends here, and bytes follow
(null)|(null)|(null)|row at byte 3: a negative length
(null)|(null)|(null)|row at byte 3: a negative length
(null)|(null)|(null)|row at byte 0: a number longer than its type
`, 2},
		{"null is nothing", schema.Schema{
			Avro: of(`{"name":"a","type":["null","int"]},{"name":"b","type":["null","int"]},{"name":"c","type":["null","int"]}`),
			Fields: []schema.Field{
				{Name: "a", Type: schema.Type{Kind: schema.Int32}, Aliases: [][]string{{"b"}}}, {Name: "c", Type: schema.Type{Kind: schema.Int32}, Default: "7"},
			},
		}, []string{"\x00\x02\x04\x00", "\x00\x00\x02\x06", "\x02\x08\x02\x06\x02\x0a"}, `2|7|(null)
(null)|3|a: no value, and the column is not nullable
4|5|(null)
`, 2},
		{"lengths", schema.Schema{Avro: of(`{"name":"l","type":{"type":"array","items":"int"}}`), Fields: []schema.Field{list}}, []string{
			varint(2) + "\x02\x04" + varint(-1) + varint(1) + "\x06\x00", varint(math.MaxInt64), varint(math.MinInt64) + "\x00", varint(-1) + varint(2) + "\x02\x00",
			varint(-1) + varint(-5) + "\x00", varint(1) + varint(1<<40) + "\x00",
		}, `[1,2,3]|(null)
(null)|row at byte 0: the datum is cut off
(null)|row at byte 0: a negative length
(null)|row at byte 0: a block of an array or map has another length than it says
(null)|row at byte 1: a negative length
(null)|row at byte 1: a number longer than its type
`, 1},
		{"values without bytes", schema.Schema{
			Avro: of(`{"name":"l","type":{"type":"array","items":{"type":"array","items":"null"}}}`), Fields: []schema.Field{nulls},
		}, []string{
			varint(1) + varint(2) + "\x00\x00", varint(2) + varint(4000) + "\x00" + varint(4000) + "\x00\x00", varint(1) + varint(math.MaxInt64) + "\x00\x00",
		}, `[[null,null]]|(null)
(null)|l at byte 0: too many values that take no bytes
(null)|l at byte 0: too many values that take no bytes
`, 1},
		{"depth", schema.Schema{
			Avro: of(`{"name":"n","type":["null","R"]},{"name":"a","type":"int"}`), Fields: []schema.Field{{Name: "x", Type: schema.Type{Kind: schema.Int32}, Path: []string{"n", "n", "a"}, Nullable: true}},
		}, []string{
			"\x02\x02\x00\x08\x06\x04", "\x02\x00\x06\x04", strings.Repeat("\x02", 10_000), strings.Repeat("\x02", 40) + "\x00" + strings.Repeat("\x02", 41),
		}, `4|(null)
(null)|(null)
(null)|row at byte 64: nested more than 128 deep
1|(null)
`, 3},
	}
}

func protoCases() []badCase {
	options := protoSchema().Protobuf
	field := func(n protowire.Number, wire protowire.Type) []byte { return protowire.AppendTag(nil, n, wire) }
	text := func(n protowire.Number, s string) string {
		return string(protowire.AppendString(field(n, protowire.BytesType), s))
	}
	number := func(n protowire.Number, v uint64) string {
		return string(protowire.AppendVarint(field(n, protowire.VarintType), v))
	}
	deep := schema.Field{Name: "deep", Type: schema.Type{Kind: schema.Int32}, Path: []string{"outer", "deep"}, Nullable: true}
	label := schema.Field{Name: "label", Type: schema.Type{Kind: schema.String}, Path: []string{"pair", "label"}, Nullable: true}
	inner := schema.Field{Name: "inner", Type: schema.Type{Kind: schema.Int64}, Path: []string{"pair", "inner"}, Nullable: true}
	tag := schema.Field{Name: "tag", Type: schema.Type{Kind: schema.String}, Path: []string{"tags", "k"}, Nullable: true}
	whole := schema.Field{Name: "pair", Type: schema.Type{Kind: schema.Struct, Fields: []schema.Field{typed("inner", schema.Int64), {Name: "label", Type: schema.Type{Kind: schema.String}}}}, Nullable: true}
	list := schema.Field{Name: "list", Type: schema.Type{Kind: schema.List, Elem: &schema.Type{Kind: schema.Int32}}, Nullable: true}
	return []badCase{
		{"values", schema.Schema{Protobuf: options, Fields: []schema.Field{typed("flag", schema.Bool), typed("name", schema.String), typed("price", schema.Float64), typed("at", schema.Date)}}, []string{
			number(1, 1) + text(7, "a") + text(7, "b"), number(1, 7) + text(7, "\xff") + text(6, "1.5"), text(1, "x") + number(7, 3), text(11, number(1, 86400)), text(11, number(1, 86401)),
			"", "\x08", "\x0f", text(7, "cut")[:3], string(field(99, protowire.StartGroupType)), text(11, "\xff"),
		}, `true|b|(null)|(null)|(null)
true|(null)|(null)|(null)|name at byte 4: the text is not UTF-8; price at byte 7: a number belongs here
(null)|(null)|(null)|(null)|(null)
(null)|(null)|(null)|1970-01-02|(null)
(null)|(null)|(null)|(null)|at at byte 2: the instant is not at midnight UTC
(null)|(null)|(null)|(null)|(null)
(null)|(null)|(null)|(null)|row at byte 0: the message is cut off, or not a protobuf message
(null)|(null)|(null)|(null)|row at byte 0: the message is cut off, or not a protobuf message
(null)|(null)|(null)|(null)|row at byte 0: the message is cut off, or not a protobuf message
(null)|(null)|(null)|(null)|row at byte 0: the message is cut off, or not a protobuf message
(null)|(null)|(null)|(null)|at at byte 2: the message is cut off, or not a protobuf message
`, 4},
		{"nested", schema.Schema{Protobuf: options, Fields: []schema.Field{deep, label, inner, tag, whole, list}}, []string{
			text(14, number(1, 5)+text(2, "x")) + text(14, number(1, 6)) + text(13, text(1, "k")+text(2, "v")) + text(13, text(1, "k")) + number(12, 1) + text(12, "\x02\x03"),
			string(field(15, protowire.StartGroupType)) + number(1, 9) + string(field(15, protowire.EndGroupType)) + text(14, text(2, "l")+"\x08"),
			text(14, number(1, 1)) + number(12, 1<<40), text(13, "\xff") + text(14, text(2, "y")),
		}, `(null)|x|6||{"inner":6,"label":"x"}|[1,2,3]|(null)
9|(null)|(null)|(null)|(null)|[]|label at byte 9: the message is cut off, or not a protobuf message; inner at byte 9: the message is cut off, or not a protobuf message; pair at byte 9: the message is cut off, or not a protobuf message
(null)|(null)|1|(null)|(null)|(null)|pair at byte 2: label: no value, and it is not nullable; list at byte 5: the number is out of the type's range
(null)|y|(null)|(null)|{"inner":null,"label":"y"}|[]|tag at byte 2: the message is cut off, or not a protobuf message
`, 1},
	}
}

func TestRowsThatDoNotFit(t *testing.T) {
	for format, cases := range map[schema.Format][]badCase{schema.CSV: csvCases(), schema.Avro: avroCases(), schema.Protobuf: protoCases()} {
		for _, c := range cases {
			t.Run(string(format)+"/"+c.name, func(t *testing.T) {
				s := c.schema
				s.Version, s.Format = 1, format
				var columns []string
				for _, f := range s.Fields {
					columns = append(columns, f.Name)
				}
				payload := frameOf(t, c.messages...)
				batch, stats := transcode(t, Spec{Schema: &s, Columns: append(slices.Clone(columns), schema.ColumnError)}, payload)
				if got := lines(batch); got != c.want {
					t.Errorf("got\n%swant\n%s", got, c.want)
				}
				// What a column is does not depend on which others are asked for.
				for i, name := range columns {
					one, _ := transcode(t, Spec{Schema: &s, Columns: []string{name}}, payload)
					if one.Column(0).String() != batch.Column(i).String() {
						t.Errorf("%s alone is %v, with others %v", name, one.Column(0), batch.Column(i))
					}
				}
				s.OnError = schema.OnErrorReject
				left, rejected := transcode(t, Spec{Schema: &s, Columns: columns[:1]}, payload)
				if int(left.NumRows()) != c.good || rejected.Rejected != stats.Rows-int64(c.good) || rejected.Rows != stats.Rows {
					t.Errorf("%d rows are left, want %d: %+v", left.NumRows(), c.good, rejected)
				}
			})
		}
	}
}

// arrowFrame is a frame of one column.
func arrowFrame(t testing.TB, name string, column arrow.Array) []byte {
	t.Helper()
	s := arrow.NewSchema([]arrow.Field{{Name: name, Type: column.DataType(), Nullable: true}}, nil)
	body, err := columnar.EncodeIPC(nil, array.NewRecordBatch(s, []arrow.Array{column}, int64(column.Len())))
	if err != nil {
		t.Fatal(err)
	}
	frame, err := record.AppendArrowFrame(nil, record.Envelope{Category: "test", BaseTime: 77}, column.Len(), body)
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

func arrayOf(dt arrow.DataType, fill func(b array.Builder)) arrow.Array {
	b := array.NewBuilder(memory.DefaultAllocator, dt)
	fill(b)
	return b.NewArray()
}

func TestArrowFrames(t *testing.T) {
	wide := arrayOf(arrow.PrimitiveTypes.Int64, func(b array.Builder) {
		b.(*array.Int64Builder).AppendValues([]int64{1, 1 << 40, 3}, []bool{true, true, false})
	})
	same := arrayOf(arrow.PrimitiveTypes.Int32, func(b array.Builder) {
		b.(*array.Int32Builder).AppendValues([]int32{5, 0, 7}, []bool{true, false, true})
	})
	texts := arrayOf(arrow.BinaryTypes.String, func(b array.Builder) { b.(*array.StringBuilder).AppendValues([]string{"\xc3", "\xa9", "ok"}, nil) })
	days := arrayOf(arrow.FixedWidthTypes.Timestamp_ns, func(b array.Builder) {
		b.(*array.TimestampBuilder).AppendValues([]arrow.Timestamp{-1, 86_400_000_000_000}, nil)
	})
	nothing := array.NewNull(2)
	strict := schema.Field{Name: "x", Type: schema.Type{Kind: schema.Int32}}
	const damagedText = "(null)|row: columnar: invalid Arrow stream: text that begins within a character\n"
	for _, c := range []struct {
		name  string
		field schema.Field
		frame []byte
		want  string
		good  int
	}{
		{"narrowed", typed("x", schema.Int32), arrowFrame(t, "x", wide), "1|(null)\n(null)|x: the number is out of the type's range\n(null)|(null)\n", 2},
		{"as it is", typed("x", schema.Int32), arrowFrame(t, "x", same), "5|(null)\n(null)|(null)\n7|(null)\n", 3},
		{"not nullable", strict, arrowFrame(t, "x", same), "5|(null)\n(null)|x: no value, and it is not nullable\n7|(null)\n", 2},
		{"missing", strict, arrowFrame(t, "y", nothing), "(null)|x: no value, and it is not nullable\n(null)|x: no value, and it is not nullable\n", 0},
		{"nulls", typed("x", schema.String), arrowFrame(t, "x", nothing), "(null)|(null)\n(null)|(null)\n", 2},
		{"cut inside a character", typed("x", schema.String), arrowFrame(t, "x", texts), damagedText + damagedText + damagedText, 0},
		{"another type", typed("x", schema.Bool), arrowFrame(t, "x", days), "(null)|x: an instant does not belong here\n(null)|x: an instant does not belong here\n", 0},
		{"instants", typed("x", schema.Timestamp), arrowFrame(t, "x", days), "1969-12-31T23:59:59.999999Z|(null)\n1970-01-02T00:00:00Z|(null)\n", 2},
		{"dates", typed("x", schema.Date), arrowFrame(t, "x", days), "(null)|x: the instant is not at midnight UTC\n1970-01-02|(null)\n", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &schema.Schema{Version: 1, Format: schema.Arrow, Fields: []schema.Field{c.field}}
			batch, stats := transcode(t, Spec{Schema: s, Columns: []string{"x", schema.ColumnError}}, c.frame)
			if got := lines(batch); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
			s.OnError = schema.OnErrorReject
			left, rejected := transcode(t, Spec{Schema: s, Columns: []string{"x"}}, c.frame)
			if int(left.NumRows()) != c.good || rejected.Rejected != stats.Rows-int64(c.good) {
				t.Errorf("%d rows are left, want %d: %+v", left.NumRows(), c.good, rejected)
			}
		})
	}
}

// A frame that is no batch has rows that can't be read; the frames around it are read. No batch shares memory with its payload.
func TestArrowFramesAreApart(t *testing.T) {
	same := arrayOf(arrow.PrimitiveTypes.Int32, func(b array.Builder) { b.(*array.Int32Builder).AppendValues([]int32{5, 6}, nil) })
	good := arrowFrame(t, "x", same)
	damaged, err := record.AppendArrowFrame(nil, record.Envelope{Category: "test", BaseTime: 77}, 2, []byte("no stream"))
	if err != nil {
		t.Fatal(err)
	}
	body := columnarBody(t, same)
	lying, err := record.AppendArrowFrame(nil, record.Envelope{Category: "test", BaseTime: 77}, 3, body)
	if err != nil {
		t.Fatal(err)
	}
	payload := slices.Concat(frameOf(t, `{"x":1}`), good, damaged, lying, frameOf(t, `{"x":2}`))
	s := &schema.Schema{Version: 1, Format: schema.JSON, Fields: []schema.Field{typed("x", schema.Int32)}}
	batch, stats := transcode(t, Spec{Schema: s, Columns: []string{"x", ColumnIndex, "_key", "_attr", "_time"}}, payload)
	want := `1|0|(null)|[]|1970-01-01T00:00:00.001Z
5|1|(null)|[]|1970-01-01T00:00:00.000077Z
6|2|(null)|[]|1970-01-01T00:00:00.000077Z
(null)|3|(null)|[]|1970-01-01T00:00:00.000077Z
(null)|4|(null)|[]|1970-01-01T00:00:00.000077Z
(null)|5|(null)|[]|1970-01-01T00:00:00.000077Z
(null)|6|(null)|[]|1970-01-01T00:00:00.000077Z
(null)|7|(null)|[]|1970-01-01T00:00:00.000077Z
2|8|(null)|[]|1970-01-01T00:00:00.001Z
`
	if got := lines(batch); got != want || stats.BadRows != 5 {
		t.Errorf("%+v, got\n%s", stats, got)
	}
	alone, _ := transcode(t, Spec{Schema: s, Columns: []string{"x"}}, good)
	clear(good)
	if got := lines(alone); got != "5\n6\n" {
		t.Errorf("after the payload has changed the batch is %s", got)
	}
}

func FuzzCSV(f *testing.F) {
	for _, s := range []string{"a,b\n1,\"x\"\"\n\"\n", "\"", "a\"b\n", "\r\n,,\r", "\uFEFF1,2"} {
		f.Add(s)
	}
	reader := fuzzed(f, schema.Schema{Format: schema.CSV, Fields: logicalFields()[:12], CSV: &schema.CSVOptions{Delimiter: ",", Header: true}})
	f.Fuzz(func(t *testing.T, text string) { reader(t, []byte(text)) })
}

func columnarBody(t testing.TB, column arrow.Array) []byte {
	t.Helper()
	for f, err := range record.Split(arrowFrame(t, "x", column)) {
		if err != nil {
			t.Fatal(err)
		}
		return f.Body()
	}
	return nil
}

// fuzzed returns what reads a message, and checks what must always hold.
func fuzzed(f *testing.F, s schema.Schema) func(t *testing.T, message []byte) arrow.RecordBatch {
	s.Version = 1
	tr, err := New(Spec{Schema: &s, Columns: columnsOf(&s), Limits: Limits{Bytes: 64 << 20}})
	if err != nil {
		f.Fatal(err)
	}
	return func(t *testing.T, message []byte) arrow.RecordBatch {
		if len(message) > 1<<20 {
			t.Skip()
		}
		batch, stats, err := tr.Transcode(frameOf(t, string(message)), nil)
		if err != nil {
			t.Fatal(err)
		}
		if batch.NumRows() != stats.Rows {
			t.Fatalf("%d rows of %d", batch.NumRows(), stats.Rows)
		}
		for i := range int(batch.NumRows()) {
			bad := batch.Column(int(batch.NumCols()) - 1).IsValid(i)
			if bad && stats.BadRows+stats.BadValues == 0 {
				t.Fatalf("an error that was not counted: %s", lines(batch))
			}
		}
		return batch
	}
}

func columnsOf(s *schema.Schema) []string {
	var columns []string
	for _, f := range s.Fields {
		columns = append(columns, f.Name)
	}
	return append(columns, schema.ColumnError)
}

// What the library decodes is read, and what is damaged is refused by both.
func FuzzAvro(f *testing.F) {
	rows := rapid.Custom(drawLogical)
	for i := range 5 {
		for _, m := range messagesOf(f, avroFrames(f, []logical{rows.Example(i)})) {
			f.Add(m)
			f.Add(m[:len(m)/2])
		}
	}
	reader := fuzzed(f, *avroSchema())
	f.Fuzz(func(t *testing.T, message []byte) { reader(t, message) })
}

func FuzzProtobuf(f *testing.F) {
	rows := rapid.Custom(drawLogical)
	for i := range 5 {
		for _, m := range messagesOf(f, protoFrames(f, []logical{rows.Example(i)})) {
			f.Add(m)
			f.Add(m[:len(m)/2])
		}
	}
	reader := fuzzed(f, *protoSchema())
	d, err := protoSchema().Protobuf.Descriptor()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		batch := reader(t, message)
		why := batch.Column(int(batch.NumCols()) - 1)
		m := dynamicpb.NewMessage(d)
		if proto.Unmarshal(message, m) != nil || why.IsValid(0) {
			return
		}
		// Both read it: they agree on a few.
		for i, name := range []string{"flag", "small", "huge"} {
			fd := d.Fields().ByTextName(name)
			if m.Has(fd) != batch.Column([]int{0, 1, 3}[i]).IsValid(0) || m.Has(fd) && m.Get(fd).String() != batch.Column([]int{0, 1, 3}[i]).ValueStr(0) {
				t.Fatalf("%s is %v, read as %s", name, m.Get(fd), lines(batch))
			}
		}
	})
}

func FuzzArrowFrame(f *testing.F) {
	rows := rapid.Custom(drawLogical)
	for i := range 3 {
		for frame, err := range record.Split(arrowFrames(f, []logical{rows.Example(i), rows.Example(i + 10)})) {
			if err != nil {
				f.Fatal(err)
			}
			f.Add(frame.Body())
		}
	}
	s := &schema.Schema{Version: 1, Format: schema.Arrow, Fields: logicalFields()}
	tr, err := New(Spec{Schema: s, Columns: columnsOf(s), Limits: Limits{Bytes: 64 << 20}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		frame, err := record.AppendArrowFrame(nil, record.Envelope{Category: "test"}, min(2, len(body)), body)
		if err != nil {
			t.Skip()
		}
		batch, stats, err := tr.Transcode(frame, nil)
		if err != nil {
			t.Fatal(err)
		}
		if batch.NumRows() != stats.Rows {
			t.Fatalf("%d rows of %d", batch.NumRows(), stats.Rows)
		}
		_ = lines(batch)
	})
}

func messagesOf(t testing.TB, frames []byte) (messages [][]byte) {
	t.Helper()
	var d record.Decoder
	var r record.Record
	if _, err := d.Reset(frames); err != nil {
		t.Fatal(err)
	}
	for d.Next(&r) {
		messages = append(messages, bytes.Clone(r.Payload))
	}
	return messages
}
