package jsonline_test

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"scribe/consumer"
	"scribe/consumer/jsonline"
	"scribe/internal/format/record"
)

// someShard is a shard of category 7.
func someShard(logical uint16) record.ShardID { return record.MakeShardID(7, logical, 1) }

// attributes encodes names and values in turn.
func attributes(t *testing.T, pairs ...string) consumer.Attributes {
	t.Helper()
	var m record.Message
	for pair := range slices.Chunk(pairs, 2) {
		m.Attributes = append(m.Attributes, record.Attribute{Name: pair[0], Value: []byte(pair[1])})
	}
	var b record.Builder
	err := b.Reset(nil, record.Envelope{Category: "c", BaseTime: 1})
	if err := errors.Join(err, b.Append(&m)); err != nil {
		t.Fatal(err)
	}
	frame, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	var (
		d record.Decoder
		r record.Record
	)
	if _, err := d.Reset(frame); err != nil || !d.Next(&r) {
		t.Fatal(err, d.Err())
	}
	return r.Attributes
}

// TestJSONLine: text is text, other bytes are base64 under another name, and every time can be written.
func TestJSONLine(t *testing.T) {
	for _, c := range []struct {
		rec  consumer.Record
		want string
	}{
		{
			consumer.Record{Payload: []byte(`<"é`), Key: []byte{}, Time: time.UnixMicro(1_700_000_000_000_001), Persisted: time.UnixMicro(2), Shard: someShard(3), LSN: 4, Index: 5},
			`{"time":"2023-11-14T22:13:20.000001Z","persisted":"1970-01-01T00:00:00.000002Z","key":"","payload":"<\"é","shard":"7/3/1","lsn":4,"index":5}`,
		},
		{
			consumer.Record{Payload: []byte{0xff}, Key: []byte{0xfe}, Time: time.UnixMicro(math.MaxInt64), Persisted: time.UnixMicro(0), Shard: someShard(0), LSN: 1},
			`{"time_us":9223372036854775807,"persisted":"1970-01-01T00:00:00Z","key_base64":"/g==","payload_base64":"/w==","shard":"7/0/1","lsn":1,"index":0}`,
		},
		{
			consumer.Record{Payload: []byte{}, Time: time.UnixMicro(-1 << 60), Persisted: time.UnixMicro(0), Shard: someShard(0), LSN: 1},
			`{"time_us":-1152921504606846976,"persisted":"1970-01-01T00:00:00Z","payload":"","shard":"7/0/1","lsn":1,"index":0}`,
		},
		{
			consumer.Record{
				Payload: []byte("p"), Attributes: attributes(t, "trace", "0af7é", "raw", "\xfe\xff", "trace", "\xff", "empty", "", "raw", "text"),
				Time: time.UnixMicro(0), Persisted: time.UnixMicro(0), Shard: someShard(0), LSN: 1,
			},
			`{"time":"1970-01-01T00:00:00Z","persisted":"1970-01-01T00:00:00Z","payload":"p","attributes":{"empty":"","trace":"0af7é"},"attributes_base64":{"raw":"/v8="},"shard":"7/0/1","lsn":1,"index":0}`,
		},
	} {
		got, err := jsonline.AppendRecord([]byte("before "), &c.rec)
		if err != nil || string(got) != "before "+c.want+"\n" || !json.Valid(got[len("before "):]) {
			t.Errorf("%v\ngot  %s\nwant %s", err, got, c.want)
		}
	}
}
