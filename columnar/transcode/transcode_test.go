package transcode

import (
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/schema"
	"scribe/internal/format/record"
)

// frameOf puts messages into one frame.
func frameOf(t testing.TB, messages ...string) []byte {
	t.Helper()
	frame, err := makeFrame(messages)
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

// makeFrame makes a frame of messages, of which every third has a key.
func makeFrame(messages []string) ([]byte, error) {
	b := record.Builder{MaxMessageSize: record.MaxFrameLen}
	if err := b.Reset(nil, record.Envelope{Category: "test", BaseTime: 1}); err != nil {
		return nil, err
	}
	for i, m := range messages {
		message := record.Message{Payload: []byte(m), Time: time.UnixMicro(int64(1000 + i))}
		if i%3 == 2 {
			message.Key = []byte("x")
		}
		if err := b.Append(&message); err != nil {
			return nil, err
		}
	}
	return b.Finish()
}

// transcode makes a batch, or ends the test.
func transcode(t testing.TB, spec Spec, payload []byte) (arrow.RecordBatch, Stats) {
	t.Helper()
	tr, err := New(spec)
	if err != nil {
		t.Fatal(err)
	}
	batch, stats, err := tr.Transcode(payload, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(batch.Release)
	return batch, stats
}

// lines writes a batch as a line a row, with the values between bars.
func lines(batch arrow.RecordBatch) string {
	var b strings.Builder
	for i := range int(batch.NumRows()) {
		for j, c := range batch.Columns() {
			if j > 0 {
				b.WriteString("|")
			}
			b.WriteString(c.ValueStr(i))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestColumnsOfJSON(t *testing.T) {
	s := &schema.Schema{Version: 1, Format: schema.JSON, Fields: []schema.Field{
		{Name: "a", Type: schema.Type{Kind: schema.Int64}, Nullable: true},
		{Name: "s", Type: schema.Type{Kind: schema.String}, Nullable: true},
		{Name: "d", Type: schema.Type{Kind: schema.String, Dictionary: true}, Nullable: true},
		{Name: "x", Type: schema.Type{Kind: schema.Float64}, Path: []string{"deep", "x"}, Aliases: [][]string{{"old"}}, Nullable: true},
		{Name: "l", Type: schema.Type{Kind: schema.List, Elem: &schema.Type{Kind: schema.Int32}}, Nullable: true},
		{Name: "m", Type: schema.Type{Kind: schema.Map, Elem: &schema.Type{Kind: schema.String}}, Nullable: true},
		{Name: "st", Type: schema.Type{Kind: schema.Struct, Fields: []schema.Field{
			{Name: "u", Type: schema.Type{Kind: schema.Uint64}, Nullable: true}, {Name: "t", Type: schema.Type{Kind: schema.Timestamp}, Nullable: true},
		}}, Nullable: true},
	}}
	payload := frameOf(t,
		`{"a":1,"s":"x","d":"one","deep":{"x":1.5},"l":[1,2],"m":{"k":"v"},"st":{"u":18446744073709551615,"t":"2024-01-02T03:04:05Z"},"other":[1]}`,
		`{"st":null,"m":{},"l":[],"old":2,"d":"one","s":"\u00e9\ud800","a":"x"}`,
		`{"a":1`)
	batch, stats := transcode(t, Spec{Schema: s, Columns: []string{"a", "s", "d", "x", "l", "m", "st", "_rest", "_error", "_time", "_index"}}, payload)
	want := `1|x|one|1.5|[1,2]|[{"key":"k","value":"v"}]|{"t":"2024-01-02T03:04:05Z","u":18446744073709551615}|{"other":[1]}|(null)|1970-01-01T00:00:00.001Z|0
(null)|é�|one|2|[]|[]|(null)|(null)|a at byte 66: a number belongs here|1970-01-01T00:00:00.001001Z|1
(null)|(null)|(null)|(null)|(null)|(null)|(null)|(null)|row at byte 6: a bracket is not closed|1970-01-01T00:00:00.001002Z|2
`
	if got := lines(batch); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if stats.Rows != 3 || stats.Kept != 3 || stats.BadRows != 1 || stats.BadValues != 1 || stats.Bytes != int64(len(payload)) {
		t.Errorf("stats are %+v", stats)
	}
}
