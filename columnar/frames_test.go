package columnar

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"pgregory.net/rapid"

	"scribe/internal/format/record"
)

// frames is a payload of one frame with n messages.
func frames(tb testing.TB, key string, n int, env record.Envelope) []byte {
	tb.Helper()
	var b record.Builder
	if err := b.Reset(nil, env); err != nil {
		tb.Fatal(err)
	}
	for i := range n {
		m := record.Message{Payload: fmt.Appendf(nil, `{"n":%d,"text":"some text that is as long as a short line of a log"}`, i)}
		if key != "" {
			m.Key = []byte(key)
		}
		if err := b.Append(&m); err != nil {
			tb.Fatal(err)
		}
	}
	out, err := b.Finish()
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

func TestFromFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type message struct {
			payload, key []byte
			time         int64
		}
		var (
			payload []byte
			want    []message
			b       record.Builder
		)
		for range rapid.IntRange(1, 4).Draw(t, "frames") {
			base := rapid.Int64Range(0, 1e15).Draw(t, "base")
			if err := b.Reset(payload, record.Envelope{Category: "c", BaseTime: base}); err != nil {
				t.Fatal(err)
			}
			for range rapid.IntRange(1, 20).Draw(t, "messages") {
				m := message{payload: rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "payload"), time: base}
				in := record.Message{Payload: m.payload}
				if rapid.Bool().Draw(t, "keyed") {
					m.key = append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(t, "key")...)
					in.Key = m.key
				}
				if rapid.Bool().Draw(t, "timed") {
					m.time = rapid.Int64Range(1, 1e15).Draw(t, "time")
					in.Time = time.UnixMicro(m.time)
				}
				if err := b.Append(&in); err != nil {
					t.Fatal(err)
				}
				want = append(want, m)
			}
			var err error
			if payload, err = b.Finish(); err != nil {
				t.Fatal(err)
			}
		}
		meta := Meta{
			Shard:     record.ShardID(rapid.Uint64Range(0, 3).Draw(t, "shard")),
			LSN:       record.LSN(rapid.Uint64Range(0, uint64(MaxOffsetLSN)).Draw(t, "lsn")),
			Persisted: rapid.Int64Range(0, 3).Draw(t, "persisted"),
		}
		rec, err := FromFrames(payload, meta)
		if err != nil {
			t.Fatal(err)
		}
		clear(payload) // the batch has its own memory
		body, err := EncodeIPC(nil, rec)
		rec.Release()
		if err != nil {
			t.Fatal(err)
		}
		if rec, err = DecodeIPC(body); err != nil {
			t.Fatal(err)
		}
		defer rec.Release()
		if !rec.Schema().Equal(Schema()) || int(rec.NumRows()) != len(want) {
			t.Fatalf("%d rows of %v, want %d", rec.NumRows(), rec.Schema(), len(want))
		}
		for i, m := range want {
			if got := rec.Column(indexPayload).(*array.Binary).Value(i); !bytes.Equal(got, m.payload) {
				t.Fatalf("payload %d: %q, want %q", i, got, m.payload)
			}
			key := rec.Column(indexKey).(*array.Binary)
			if key.IsNull(i) != (m.key == nil) || !bytes.Equal(key.Value(i), m.key) {
				t.Fatalf("key %d: %q, want %q", i, key.Value(i), m.key)
			}
			if got := int64(rec.Column(indexTime).(*array.Timestamp).Value(i)); got != m.time {
				t.Fatalf("time %d: %d, want %d", i, got, m.time)
			}
			lsn, index := SplitOffset(rec.Column(indexOffset).(*array.Uint64).Value(i))
			if lsn != meta.LSN || index != i {
				t.Fatalf("offset of message %d is %d/%d, want %d/%d", i, lsn, index, meta.LSN, i)
			}
			shard := rec.Column(indexShard).(*array.Uint64)
			if shard.IsNull(i) != (meta.Shard == 0) || !shard.IsNull(i) && shard.Value(i) != uint64(meta.Shard) {
				t.Fatalf("shard of message %d: %v", i, shard.ValueStr(i))
			}
			persisted := rec.Column(indexPersisted).(*array.Timestamp)
			if persisted.IsNull(i) != (meta.Persisted == 0) || !persisted.IsNull(i) && int64(persisted.Value(i)) != meta.Persisted {
				t.Fatalf("persisted time of message %d: %v", i, persisted.ValueStr(i))
			}
		}
	})
}

func TestFromFramesRefuses(t *testing.T) {
	good := frames(t, "k", 10, record.Envelope{Category: "c"})
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		if rec, err := FromFrames(bad, Meta{}); err == nil {
			rec.Release()
			t.Fatalf("a flipped bit at %d went unseen", i)
		}
	}
	if _, err := FromFrames(good, Meta{LSN: MaxOffsetLSN + 1}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("an LSN without room: %v", err)
	}
	rec, err := FromFrames(good, Meta{})
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	arrow, err := record.AppendArrowFrame(bytes.Clone(good), record.Envelope{Category: "c"}, 10, encode(t, rec))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := FromFrames(arrow, Meta{}); !errors.Is(err, ErrArrowFrame) {
		t.Errorf("an Arrow frame: %v", err)
	}
}

// go test ./columnar -run - -bench FromFrames -count 6
func BenchmarkFromFrames(b *testing.B) {
	payload := frames(b, "key", 20_000, record.Envelope{Category: "bench"})
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		rec, err := FromFrames(payload, Meta{Shard: 1, LSN: 2, Persisted: 3})
		if err != nil {
			b.Fatal(err)
		}
		rec.Release()
	}
}
