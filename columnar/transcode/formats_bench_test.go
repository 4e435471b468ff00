package transcode

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/twmb/avro"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"scribe/columnar"
	"scribe/columnar/schema"
	"scribe/internal/format/record"
)

// access is a row of an access log.
type access struct {
	IP       string `json:"ip" avro:"ip"`
	Time     int64  `json:"time" avro:"time"`
	Method   string `json:"method" avro:"method"`
	Path     string `json:"path" avro:"path"`
	Protocol string `json:"protocol" avro:"protocol"`
	Status   int32  `json:"status" avro:"status"`
	Bytes    int64  `json:"bytes" avro:"bytes"`
	Agent    string `json:"agent" avro:"agent"`
	Referrer string `json:"referrer" avro:"referrer"`
}

const accessAvro = `{"type":"record","name":"Access","fields":[{"name":"ip","type":"string"},{"name":"time","type":"long"},{"name":"method","type":"string"},
{"name":"path","type":"string"},{"name":"protocol","type":"string"},{"name":"status","type":"int"},{"name":"bytes","type":"long"},{"name":"agent","type":"string"},
{"name":"referrer","type":"string"}]}`

func accessFields() []schema.Field {
	text, coded := schema.Type{Kind: schema.String}, schema.Type{Kind: schema.String, Dictionary: true}
	big := schema.Type{Kind: schema.Int64}
	var fields []schema.Field
	for i, name := range accessNames {
		t := []schema.Type{text, big, coded, text, coded, {Kind: schema.Int32}, big, text, text}[i]
		fields = append(fields, schema.Field{Name: name, Type: t, Nullable: true})
	}
	return fields
}

var accessNames = []string{"ip", "time", "method", "path", "protocol", "status", "bytes", "agent", "referrer"}

func accessRows() []access {
	rows := make([]access, 4000)
	for i := range rows {
		rows[i] = access{
			IP: fmt.Sprintf("10.%d.%d.%d", i%7, i%251, i*31%253), Time: 1_700_000_000 + int64(i), Method: []string{"GET", "GET", "POST"}[i%3],
			Path: fmt.Sprintf("/shop/products/%d/reviews?page=%d", i*7919%5000, i%9), Protocol: "HTTP/1.1", Status: []int32{200, 200, 200, 304, 404}[i%5],
			Bytes: int64(i * 37 % 90000), Agent: "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36", Referrer: "-",
		}
	}
	return rows
}

func accessDescriptors() *schema.ProtobufOptions {
	row := &descriptorpb.DescriptorProto{Name: new("Access")}
	for i, name := range accessNames {
		t := descriptorpb.FieldDescriptorProto_TYPE_STRING
		switch name {
		case "time", "bytes":
			t = descriptorpb.FieldDescriptorProto_TYPE_INT64
		case "status":
			t = descriptorpb.FieldDescriptorProto_TYPE_INT32
		}
		row.Field = append(row.Field, &descriptorpb.FieldDescriptorProto{
			Name: new(name), Number: new(int32(i + 1)), Type: t.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		})
	}
	set := &descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{{
		Name: new("access.proto"), Syntax: new("proto3"), MessageType: []*descriptorpb.DescriptorProto{row},
	}}}
	b, err := proto.Marshal(set)
	if err != nil {
		panic(err)
	}
	return &schema.ProtobufOptions{Descriptors: b, Message: "Access"}
}

// go test ./columnar/transcode -run '^$' -bench BenchmarkFormats -benchtime 0.3s
func BenchmarkFormats(b *testing.B) {
	rows := accessRows()
	s := schema.Schema{Version: 1, Fields: accessFields(), Avro: accessAvro, Protobuf: accessDescriptors(), CSV: &schema.CSVOptions{Delimiter: ","}}
	parsed := avro.MustParse(accessAvro)
	d, err := s.Protobuf.Descriptor()
	if err != nil {
		b.Fatal(err)
	}
	var objects, data, messages []string
	var lines bytes.Buffer
	w := csv.NewWriter(&lines)
	for i := range rows {
		r := &rows[i]
		object, err1 := json.Marshal(r)
		datum, err2 := parsed.Encode(r)
		m := dynamicpb.NewMessage(d)
		cells := []string{r.IP, fmt.Sprint(r.Time), r.Method, r.Path, r.Protocol, fmt.Sprint(r.Status), fmt.Sprint(r.Bytes), r.Agent, r.Referrer}
		for k, v := range []any{r.IP, r.Time, r.Method, r.Path, r.Protocol, r.Status, r.Bytes, r.Agent, r.Referrer} {
			set(m, d.Fields().Get(k), &v)
		}
		message, err3 := proto.Marshal(m)
		if err1 != nil || err2 != nil || err3 != nil || w.Write(cells) != nil {
			b.Fatal(err1, err2, err3)
		}
		objects, data, messages = append(objects, string(object)), append(data, string(datum)), append(messages, string(message))
	}
	w.Flush()
	arrowFrame := batchFrame(b, &s, objects)
	for _, c := range []struct {
		format  schema.Format
		frames  []byte
		library string
		decode  func() error
	}{
		{schema.JSON, frameOf(b, objects...), "", nil},
		{schema.CSV, frameOf(b, lines.String()), "encoding-csv", func() error { return readCSV(lines.Bytes()) }},
		{schema.Avro, frameOf(b, data...), "twmb-avro", func() error {
			for _, m := range data {
				var a access
				if _, err := parsed.Decode([]byte(m), &a); err != nil {
					return err
				}
			}
			return nil
		}},
		{schema.Protobuf, frameOf(b, messages...), "dynamicpb", func() error {
			for _, m := range messages {
				if err := proto.Unmarshal([]byte(m), dynamicpb.NewMessage(d)); err != nil {
					return err
				}
			}
			return nil
		}},
		{schema.Arrow, arrowFrame, "DecodeIPC", func() error { return decodeFrame(arrowFrame) }},
	} {
		s := s
		s.Format = c.format
		for _, q := range []struct {
			name    string
			columns []string
		}{{"all", accessNames}, {"two", []string{"status", "path"}}} {
			b.Run(fmt.Sprintf("format=%s/columns=%s", c.format, q.name), func(b *testing.B) {
				tr, err := New(Spec{Schema: &s, Columns: q.columns})
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(len(c.frames)))
				for b.Loop() {
					batch, _, err := tr.Transcode(c.frames, nil)
					if err != nil || int(batch.NumRows()) != len(rows) {
						b.Fatal(err)
					}
					batch.Release()
				}
				b.ReportMetric(float64(b.N*len(rows))/b.Elapsed().Seconds()/1e6, "Mrows/s")
			})
		}
		if c.decode == nil {
			continue
		}
		b.Run(fmt.Sprintf("format=%s/library=%s", c.format, c.library), func(b *testing.B) {
			b.SetBytes(int64(len(c.frames)))
			for b.Loop() {
				if err := c.decode(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*len(rows))/b.Elapsed().Seconds()/1e6, "Mrows/s")
		})
	}
}

func readCSV(b []byte) error {
	r := csv.NewReader(bytes.NewReader(b))
	r.ReuseRecord = true
	for {
		if _, err := r.Read(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func decodeFrame(frame []byte) error {
	for f, err := range record.Split(frame) {
		if err != nil {
			return err
		}
		rec, err := columnar.DecodeIPC(f.Body())
		if err != nil {
			return err
		}
		rec.Release()
	}
	return nil
}

// batchFrame makes an Arrow frame of JSON rows.
func batchFrame(b *testing.B, s *schema.Schema, objects []string) []byte {
	of := *s
	of.Format = schema.JSON
	batch, _ := transcode(b, Spec{Schema: &of, Columns: accessNames}, frameOf(b, objects...))
	plainSchema := arrow.NewSchema(batch.Schema().Fields(), nil)
	body, err := columnar.EncodeIPC(nil, array.NewRecordBatch(plainSchema, batch.Columns(), batch.NumRows()))
	if err != nil {
		b.Fatal(err)
	}
	frame, err := record.AppendArrowFrame(nil, record.Envelope{Category: "test"}, len(objects), body)
	if err != nil {
		b.Fatal(err)
	}
	return frame
}
