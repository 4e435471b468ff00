package layout_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/storage/blob"
	"scribe/storage/blob/layout"
	"scribe/storage/blob/memory"
)

const created = 1_709_208_000_123_456 // 2024-02-29T12:00:00.123456Z

// blobID is the n-th id, by time.
func blobID(n int) pointer.BlobID {
	return pointer.MakeBlobID(created+int64(n)*1000, [10]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
}

// frame encodes messages of a category.
func frame(tb testing.TB, env record.Envelope, messages ...string) []byte {
	tb.Helper()
	var b record.Builder
	if err := b.Reset(nil, env); err != nil {
		tb.Fatal(err)
	}
	for _, m := range messages {
		if err := b.AppendPayload([]byte(m)); err != nil {
			tb.Fatal(err)
		}
	}
	f, err := b.Finish()
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// compress is deterministic for a version of the library; golden blobs are read and not compared, where they hold it.
func compress(tb testing.TB, raw []byte) []byte {
	tb.Helper()
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	return e.EncodeAll(raw, nil)
}

// payload is frames with what a pointer says of them.
type payload struct {
	entry  layout.Entry
	frames []byte
}

// describe makes the entry of frames.
func describe(tb testing.TB, shard record.ShardID, epoch uint64, lsn record.LSN, frames ...[]byte) payload {
	tb.Helper()
	p := payload{entry: layout.Entry{Shard: shard, Epoch: epoch, LSN: lsn}, frames: slices.Concat(frames...)}
	ptr := &p.entry.Pointer
	for f, err := range record.Split(p.frames) {
		if err != nil {
			tb.Fatal(err)
		}
		p.entry.Category = f.CategoryName()
		if ptr.Frames == 0 {
			ptr.MinTime, ptr.MaxTime = f.BaseTime, f.BaseTime
		}
		ptr.MinTime, ptr.MaxTime = min(ptr.MinTime, f.BaseTime), max(ptr.MaxTime, f.BaseTime)
		ptr.Frames++
		ptr.Messages += uint32(f.Count)
		if !f.Sequenced() {
			continue
		}
		run := pointer.Sequence{Producer: f.Producer, Epoch: f.Epoch, First: f.FirstSequence, Last: f.NextSequence() - 1}
		if n := len(ptr.Sequences) - 1; n >= 0 && ptr.Sequences[n].Producer == run.Producer && ptr.Sequences[n].Last+1 == run.First {
			ptr.Sequences[n].Last = run.Last
		} else {
			ptr.Sequences = append(ptr.Sequences, run)
		}
	}
	return p
}

// web and orders are shards of two categories.
var (
	web    = record.MakeShardID(17, 0, 1)
	orders = record.MakeShardID(4, 3, 0)
)

// sampleHistory is of a writer that has put a blob again, and has one on its way.
func sampleHistory() layout.History {
	return layout.History{
		Run: 0x1122334455667788, Build: 300, Window: 200,
		Exceptions: []layout.Exception{{Build: 299}, {Build: 298, Void: true}, {Build: 100}},
	}
}

// sample is two blocks: one of its own for a payload, compressed, and one that two payloads share, as it is.
func sample(tb testing.TB) (large payload, shared []payload) {
	tb.Helper()
	large = describe(tb, web, 7, 100,
		frame(tb, record.Envelope{Category: "web.access", BaseTime: created - 5_000_000}, "GET / HTTP/1.1", "GET /a HTTP/1.1", "GET /b HTTP/1.1"),
		frame(tb, record.Envelope{Category: "web.access", BaseTime: created - 9_000_000, SampleRate: 10}, "GET /c HTTP/1.1"),
	)
	producer := record.Envelope{Category: "orders.eu", Shard: 3, BaseTime: created - 1, Sequenced: true, Producer: 0x0123456789abcdef, Epoch: 2, FirstSequence: 40}
	next := producer
	next.FirstSequence = 42
	other := producer
	other.Producer, other.FirstSequence = 5, 0
	shared = []payload{
		describe(tb, orders, 3, 1, frame(tb, producer, "{}", "{1}"), frame(tb, next, "{2}"), frame(tb, other, "")),
		describe(tb, web, 7, 101, frame(tb, record.Envelope{Category: "web.access", BaseTime: created + 17}, "GET /d HTTP/1.1")),
	}
	// The same epoch of a shard has the same beginning.
	large.entry.Start, shared[0].entry.Start, shared[1].entry.Start = 90, 1, 90
	shared[1].entry.Predicted = true
	large.entry.Settings = &layout.Settings{Retention: 72 * time.Hour, Shards: 4, Delivery: 2}
	shared[1].entry.Settings = large.entry.Settings
	shared[0].entry.Settings = &layout.Settings{Retention: 90 * time.Minute, Shards: 12, Delivery: 3, Repeatable: 1}
	return large, shared
}

// built is a blob and its pointers.
type built struct {
	key      string
	bytes    []byte
	pointers []pointer.Pointer
	entries  []layout.Entry // as they should be read
}

// assemble builds blob 0 of class 72 out of blocks that hold payloads; every other one is compressed.
func assemble(tb testing.TB, b *layout.Builder, blocks ...[]payload) built {
	tb.Helper()
	out := built{key: pointer.Key(72, blobID(0))}
	for i, payloads := range blocks {
		var raw []byte
		for _, p := range payloads {
			raw = append(raw, p.frames...)
		}
		codec, stored := pointer.CodecNone, raw
		if i%2 == 0 {
			codec, stored = pointer.CodecZstd, compress(tb, raw)
		}
		n := b.AddBlock(codec, stored, len(raw))
		offset := uint32(0)
		for _, p := range payloads {
			e := p.entry
			e.Pointer = b.AddPayload(n, offset, uint32(len(p.frames)), p.entry)
			offset += uint32(len(p.frames))
			out.pointers = append(out.pointers, e.Pointer)
			out.entries = append(out.entries, e)
		}
	}
	size := b.Size()
	parts, err := b.Finish()
	if err != nil {
		tb.Fatal(err)
	}
	out.bytes = bytes.Join(parts, nil)
	if int64(len(out.bytes)) != size {
		tb.Errorf("Size is %d, the parts have %d bytes", size, len(out.bytes))
	}
	return out
}

func sampleBlob(tb testing.TB) built {
	tb.Helper()
	large, shared := sample(tb)
	b := layout.NewBuilder(blobID(0), 72, "eu-west-1", created)
	b.SetHistory(sampleHistory())
	return assemble(tb, b, []payload{large}, shared)
}

// store holds one blob.
func store(tb testing.TB, key string, data []byte) blob.Store {
	tb.Helper()
	s := memory.New()
	if err := s.Put(tb.Context(), key, data); err != nil {
		tb.Fatal(err)
	}
	return s
}

// text is a description of a footer for comparisons.
func text(f *layout.Footer) string { return fmt.Sprintf("%+v", *f) }
