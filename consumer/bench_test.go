//go:build unix

package consumer_test

import (
	"bytes"
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/testkit/sample"
	"scribe/internal/testkit/testsize"
	scribev1 "scribe/proto/scribe/v1"
)

// warm is a cell whose payloads are ready to be sent: what is measured is the consumer.
type warm struct {
	*cell
	answers map[string]*scribev1.Payload
}

func (w warm) Fetch(_ context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	res := &scribev1.FetchResponse{Payloads: make([]*scribev1.Payload, len(req.GetPointers()))}
	for i, p := range req.GetPointers() {
		res.Payloads[i] = w.answers[string(p)]
	}
	return res, nil
}

// access is a cell with an access log, a line a message, in payloads of about 2.6 MB, and those as they are stored.
func access(b testing.TB, payloads int) (w warm, raw, messages int, blocks [][]byte) {
	b.Helper()
	w = warm{newCell(), map[string]*scribev1.Payload{}}
	var builder record.Builder
	if err := builder.Reset(nil, record.Envelope{Category: categoryName}); err != nil {
		b.Fatal(err)
	}
	for line := range bytes.Lines(sample.AccessLog()) {
		if err := builder.AppendPayload(bytes.TrimSuffix(line, []byte("\n"))); err != nil {
			b.Fatal(err)
		}
	}
	messages = builder.Count() * payloads
	f, err := builder.Finish()
	if err != nil {
		b.Fatal(err)
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		b.Fatal(err)
	}
	for range payloads {
		w.addFrames(shardID(0, 1), f)
	}
	for _, e := range w.logs[shardID(0, 1)].entries {
		data := encoder.EncodeAll(f, nil) // each its own memory, as on the network
		blocks = append(blocks, data)
		w.answers[string(e.pointer)] = &scribev1.Payload{Codec: uint32(pointer.CodecZstd), Data: data, RawLength: e.length, Crc: record.CRC(data)}
	}
	return w, len(f) * payloads, messages, blocks
}

// cpu is the processor time that this process has used: on a machine that is shared, it says more than the clock does.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// perByte reports the processor time since begun for each of n bytes.
func perByte(b *testing.B, begun time.Duration, n int) {
	b.Helper()
	b.ReportMetric(float64(cpu(b)-begun)/float64(n), "cpu-ns/B")
}

// Reading messages on one core, beside decompression alone of the same payloads in the same run. The design allows twice its time.
//
//	go test ./consumer -run '^$' -bench Consume -cpu 1 -count 6
func BenchmarkConsume(b *testing.B) {
	w, raw, messages, blocks := access(b, 32)
	b.Run("part=zstd", func(b *testing.B) {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.IgnoreChecksum(true))
		if err != nil {
			b.Fatal(err)
		}
		defer d.Close()
		dst := make([]byte, 0, raw/32)
		b.SetBytes(int64(raw))
		begun := cpu(b)
		for b.Loop() {
			for _, block := range blocks {
				if _, err := d.DecodeAll(block, dst); err != nil {
					b.Fatal(err)
				}
			}
		}
		perByte(b, begun, raw*b.N)
	})
	open := func(b *testing.B) *consumer.Consumer {
		b.Helper()
		c, err := consumer.New("", categoryName, consumer.WithServices(w, w), consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
		if err != nil {
			b.Fatal(err)
		}
		return c
	}
	b.Run("part=records", func(b *testing.B) {
		b.SetBytes(int64(raw))
		b.ReportAllocs()
		begun := cpu(b)
		for b.Loop() {
			n := 0
			for rec, err := range open(b).Records(b.Context()) {
				if err != nil {
					b.Fatal(err)
				}
				n += len(rec.Payload) & 1
				n++
			}
			if n < messages {
				b.Fatalf("%d messages, want %d", n, messages)
			}
		}
		perByte(b, begun, raw*b.N)
		b.ReportMetric(float64(messages)*float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
	})
	b.Run("part=batches", func(b *testing.B) {
		b.SetBytes(int64(raw))
		b.ReportAllocs()
		begun := cpu(b)
		for b.Loop() {
			n := 0
			for batch, err := range columns.Batches(b.Context(), open(b)) {
				if err != nil {
					b.Fatal(err)
				}
				n += int(batch.NumRows())
			}
			if n != messages {
				b.Fatalf("%d messages, want %d", n, messages)
			}
		}
		perByte(b, begun, raw*b.N)
		b.ReportMetric(float64(messages)*float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
	})
}

// Many tiny payloads, as of a category with little traffic: the cost is that of pointers.
//
//	go test ./consumer -run '^$' -bench Trickle -cpu 1 -count 6
func BenchmarkTrickle(b *testing.B) {
	w := warm{newCell(), map[string]*scribev1.Payload{}}
	w.perMessage = 500
	const n = 10_000
	for range n {
		w.add(shardID(0, 1), "one message of a category with little traffic")
	}
	for _, e := range w.logs[shardID(0, 1)].entries {
		st := w.payloads[string(e.pointer)]
		w.answers[string(e.pointer)] = &scribev1.Payload{Codec: uint32(st.codec), Data: st.data, RawLength: e.length, Crc: record.CRC(st.data)}
	}
	b.ReportAllocs()
	for b.Loop() {
		c, err := consumer.New("", categoryName, consumer.WithServices(w, w), consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
		if err != nil {
			b.Fatal(err)
		}
		got := 0
		for _, err := range c.Records(b.Context()) {
			if err != nil {
				b.Fatal(err)
			}
			got++
		}
		if got != n {
			b.Fatalf("%d messages, want %d", got, n)
		}
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "pointers/s")
}

// Delivering alone: messages of 100 bytes in payloads that were not compressed.
//
//	go test ./consumer -run '^$' -bench Deliver -cpu 1 -count 6
func BenchmarkDeliver(b *testing.B) {
	w := warm{newCell(), map[string]*scribev1.Payload{}}
	const payloads = 16
	each := testsize.Benchmark(20_000, 1000)
	texts := make([]string, each)
	for i := range texts {
		texts[i] = strings.Repeat("0123456789", 10)
	}
	f := frame(0, texts...)
	for range payloads {
		w.addFrames(shardID(0, 1), f)
	}
	for _, e := range w.logs[shardID(0, 1)].entries {
		w.answers[string(e.pointer)] = &scribev1.Payload{Codec: uint32(pointer.CodecNone), Data: f, RawLength: e.length, Crc: record.CRC(f)}
	}
	begun := cpu(b)
	for b.Loop() {
		c, err := consumer.New("", categoryName, consumer.WithServices(w, w), consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
		if err != nil {
			b.Fatal(err)
		}
		n := 0
		for rec, err := range c.Records(b.Context()) {
			if err != nil {
				b.Fatal(err)
			}
			n += len(rec.Payload)
		}
		if n != 100*each*payloads {
			b.Fatalf("%d bytes", n)
		}
	}
	b.ReportMetric(float64(cpu(b)-begun)/float64(b.N*payloads*each), "cpu-ns/message")
}
