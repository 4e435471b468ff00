package consumer

import (
	"context"
	"errors"
	"testing"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	"scribe/consumer/internal/payload"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

func fuzzFrame(tb testing.TB, texts ...string) []byte {
	tb.Helper()
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: "a", Shard: 1}); err != nil {
		tb.Fatal(err)
	}
	for _, t := range texts {
		if err := b.AppendPayload([]byte(t)); err != nil {
			tb.Fatal(err)
		}
	}
	f, err := b.Finish()
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// No answer makes decode panic or hold more than the pointer announces, and what it accepts is what the pointer says.
//
//	go test ./consumer -run '^$' -fuzz FuzzDecode -fuzztime 10s
func FuzzDecode(f *testing.F) {
	plain := fuzzFrame(f, "one", "two")
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	dec, err := newDecoder(1)
	if err != nil {
		f.Fatal(err)
	}
	packed := enc.EncodeAll(plain, nil)
	n := uint32(len(plain))
	f.Add(plain, uint32(1), uint64(n), n, uint32(1), uint32(2), true)
	f.Add(packed, uint32(2), uint64(n), n, uint32(1), uint32(2), true)
	f.Add(packed, uint32(2), uint64(n)-1, n-1, uint32(1), uint32(2), true)
	f.Add(enc.EncodeAll(make([]byte, 1<<20), nil), uint32(2), uint64(10), uint32(10), uint32(1), uint32(1), true)
	f.Add([]byte{}, uint32(3), uint64(0), uint32(0), uint32(0), uint32(0), false)
	f.Fuzz(func(t *testing.T, data []byte, codec uint32, raw uint64, length, frames, messages uint32, sound bool) {
		p := &scribev1.Payload{Codec: codec, Data: data, RawLength: raw}
		if sound {
			p.Crc = record.CRC(data)
		}
		ptr := &pointer.Pointer{Length: length % (1 << 20), Frames: frames, Messages: messages}
		at := &payload.Payload{Category: "a", Source: record.MakeShardID(1, 1, 1), SourceLSN: 1}
		got, buf, _, err := decodePayload(dec, p, ptr, at)
		if err != nil {
			if !errors.Is(err, ErrDamaged) || got != nil || buf != nil {
				t.Fatalf("error is %v with %d bytes", err, len(got))
			}
			return
		}
		defer pool.Put(buf)
		if len(got) != int(ptr.Length) {
			t.Fatalf("%d bytes, want %d", len(got), ptr.Length)
		}
		count, sum := uint32(0), uint32(0)
		for fr, err := range record.Split(got) {
			if err != nil || string(fr.Category) != "a" || fr.Shard != 1 {
				t.Fatalf("accepted frame %d: %v, %+v", count, err, fr.Header)
			}
			count++
			sum += uint32(fr.Count)
		}
		if count != frames || sum != messages {
			t.Fatalf("accepted %d frames of %d messages", count, sum)
		}
	})
}

// dead never answers.
type dead struct{}

func (dead) Stream(ctx context.Context, _ func(context.Context) (*scribev1.StreamRequest, error), _ func(*scribev1.StreamResponse) error) error {
	<-ctx.Done()
	return ctx.Err()
}

func (dead) Bounds(ctx context.Context, _ *scribev1.BoundsRequest) (*scribev1.BoundsResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (dead) Fetch(ctx context.Context, _ *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// No stream makes a consumer panic, lose a place, or hold more than its credits.
//
//	go test ./consumer -run '^$' -fuzz FuzzStream -fuzztime 10s
func FuzzStream(f *testing.F) {
	shard := uint64(record.MakeShardID(1, 1, 1))
	add := func(msgs ...*scribev1.StreamResponse) {
		var b []byte
		for _, m := range msgs {
			enc, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			b = append(append(b, byte(len(enc))), enc...)
		}
		f.Add(b)
	}
	opened := &scribev1.StreamResponse{Step: &scribev1.StreamResponse_Opened{Opened: &scribev1.StreamOpened{Shards: []*scribev1.StreamShard{{Shard: shard, Lsn: 1, NextLsn: 5}}}}}
	ptr := pointer.Append(nil, &pointer.Pointer{Blob: pointer.NewBlobID(), Class: 1, Codec: 1, BlockLen: 9, BlockRawLen: 9, Length: 9, Frames: 1, Messages: 1})
	entry := &scribev1.StreamResponse{Step: &scribev1.StreamResponse_Entries{Entries: &scribev1.StreamEntries{Entries: []*scribev1.StreamEntry{{Shard: shard, Lsn: 1, Time: 5, Pointer: ptr}}, Watermark: 9}}}
	gap := &scribev1.StreamResponse{Step: &scribev1.StreamResponse_Gap{Gap: &scribev1.StreamGap{Shard: shard, From: 1, To: 3}}}
	ended := &scribev1.StreamResponse{Step: &scribev1.StreamResponse_ShardEnded{ShardEnded: &scribev1.StreamShard{Shard: shard}}}
	beat := &scribev1.StreamResponse{Step: &scribev1.StreamResponse_Heartbeat{Heartbeat: &scribev1.StreamHeartbeat{Watermark: 7}}}
	add(opened, entry, gap, beat, ended)
	add(opened, entry, entry, opened)
	add(entry)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := New("", "a", WithServices(dead{}, dead{}), WithStart(Earliest()), WithUntilEnd())
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.beginIteration(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.endIteration(s)
		conn := &streamConnection{s: s}
		for len(b) > 0 {
			n := min(int(b[0]), len(b)-1)
			m := &scribev1.StreamResponse{}
			if proto.Unmarshal(b[1:1+n], m) == nil {
				if conn.takeMessage(m) != nil {
					return
				}
			}
			b = b[1+n:]
		}
		remaining := 0
		for id, sh := range c.mu.share.shards {
			q := sh.live[0]
			if q.received < q.lsn || q.shard != id {
				t.Errorf("shard %v received up to %d, delivered up to %d", id, q.received, q.lsn)
			}
			if q.received < sh.end {
				remaining++
			}
		}
		if remaining != c.mu.share.undone {
			t.Errorf("%d shards remain, %d counted", remaining, c.mu.share.undone)
		}
		if s.queue.mu.pointers > maxQueued {
			t.Errorf("%d pointers are queued", s.queue.mu.pointers)
		}
	})
}
