package batcher

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/klauspost/compress/zstd"

	"scribe/batcher/logqueue"
	"scribe/internal/format/record"
	"scribe/internal/testkit/sample"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob/memory"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
)

// workloads are messages of real text.
func workloads() map[string][][]byte {
	cut := func(text []byte, n int) [][]byte {
		m := slices.Collect(slices.Chunk(text, n))
		return m[:len(m)-1]
	}
	return map[string][][]byte{
		"100B":      cut(sample.AccessLog(), 100),
		"accesslog": bytes.SplitAfter(sample.AccessLog(), []byte{'\n'}),
		"10KB":      cut(sample.NginxStatus(), 10_000),
	}
}

// requests packs messages into frames of about size bytes, each a request, until there are total bytes.
func requests(b *testing.B, messages [][]byte, shards uint32, size, total int) [][]byte {
	b.Helper()
	var (
		out     [][]byte
		builder record.Builder
		sum, at int
	)
	for shard := uint32(0); sum < total; shard = (shard + 1) % shards {
		if err := builder.Reset(nil, record.Envelope{Category: "alpha", Shard: shard, BaseTime: 1}); err != nil {
			b.Fatal(err)
		}
		for builder.Len() < size {
			if err := builder.AppendPayload(messages[at%len(messages)]); err != nil {
				b.Fatal(err)
			}
			at++
		}
		f, err := builder.Finish()
		if err != nil {
			b.Fatal(err)
		}
		out = append(out, f)
		sum += len(f)
	}
	return out
}

// cpu is the process's CPU time.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// zstdAlone is the CPU time of compressing the same bytes in payloads, per byte.
func zstdAlone(b *testing.B, frames [][]byte) (nsPerByte, ratio float64) {
	b.Helper()
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
	if err != nil {
		b.Fatal(err)
	}
	var blocks [][]byte
	var block []byte
	for _, f := range frames {
		if len(block)+len(f) > 2<<20 {
			blocks = append(blocks, block)
			block = nil
		}
		block = append(block, f...)
	}
	blocks = append(blocks, block)
	var dst []byte
	run := func() (raw, packed int) {
		for _, src := range blocks {
			dst = enc.EncodeAll(src, dst[:0])
			raw += len(src)
			packed += len(dst)
		}
		return raw, packed
	}
	run()
	start, raw, packed := cpu(), 0, 0
	for cpu()-start < 300*time.Millisecond {
		r, p := run()
		raw, packed = raw+r, packed+p
	}
	return float64(cpu()-start) / float64(raw), float64(raw) / float64(packed)
}

// BenchmarkCommit is the whole way from Submit to the answer, over stores in memory, in CPU time beside zstd alone.
//
//	go test ./batcher -run '^$' -bench Commit -benchtime 2s -count 6
func BenchmarkCommit(b *testing.B) {
	for _, name := range []string{"100B", "accesslog", "10KB"} {
		for _, frame := range []int{64 << 10, 1 << 20} {
			for _, writers := range []int{1, 16} {
				b.Run(fmt.Sprintf("messages=%s/frame=%dKiB/writers=%d", name, frame>>10, writers), func(b *testing.B) {
					frames := requests(b, workloads()[name], 4, frame, 16<<20)
					alone, ratio := zstdAlone(b, frames)
					benchmarkCommit(b, frames, writers, alone)
					b.ReportMetric(ratio, "compression")
				})
			}
		}
	}
}

// BenchmarkSmall is the cost of a request of one small frame: with one writer its latency, with many what a flush shares.
//
//	go test ./batcher -run '^$' -bench Small -benchtime 1s -count 6
func BenchmarkSmall(b *testing.B) {
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprintf("messages=100B/frame=1KiB/writers=%d", writers), func(b *testing.B) {
			benchmarkCommit(b, requests(b, workloads()["100B"], 4, 1<<10, 1<<20), writers, 0)
		})
	}
}

func benchmarkCommit(b *testing.B, frames [][]byte, writers int, alone float64) {
	log, err := pebblelog.Open("log", pebblelog.Options{FS: vfs.NewMem()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	store := &forgetful{Store: memory.New()}
	bt, err := New(DefaultConfig(), Deps{Blobs: store, Log: log, Categories: testCatalog(), Slot: func() uint16 { return 1 }})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(frames[0])))
	b.ReportAllocs()
	b.ResetTimer()
	start, bytes := cpu(), int64(0)
	var group sync.WaitGroup
	var mu sync.Mutex
	next := 0
	for range writers {
		group.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= b.N {
					return
				}
				f := frames[i%len(frames)]
				resp, err := bt.Submit(b.Context(), &scribev1.SubmitRequest{Frames: f})
				if err != nil || resp.GetResults()[0].GetError() != nil {
					b.Error(err, resp)
					return
				}
				mu.Lock()
				bytes += int64(len(f))
				mu.Unlock()
			}
		})
	}
	group.Wait()
	if err := bt.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	used := float64(cpu()-start) / float64(bytes)
	b.StopTimer()
	b.ReportMetric(used, "cpu-ns/B")
	b.ReportMetric(float64(b.N)/counterValue(b, bt.metrics.blobs), "requests/blob")
	b.ReportMetric(counterValue(b, bt.metrics.orphans), "orphans")
	if alone > 0 {
		b.ReportMetric(alone, "zstd-ns/B")
		b.ReportMetric(used/alone, "x-zstd")
	}
}

// forgetful copies what is put, as a store must, and forgets it, so that a long benchmark does not measure the heap.
type forgetful struct {
	*memory.Store
	mu  sync.Mutex
	buf []byte
}

func (s *forgetful) Put(_ context.Context, _ string, parts ...[]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf = s.buf[:0]
	for _, p := range parts {
		s.buf = append(s.buf, p...)
	}
	return nil
}

// BenchmarkIdleLogs is the memory that a log takes which was written to once.
//
//	go test ./batcher -run '^$' -bench IdleLogs -benchtime 100000x
func BenchmarkIdleLogs(b *testing.B) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	q := logqueue.New(logqueue.Limits{Logs: 1 << 30}, nil)
	for i := range b.N {
		p := logqueue.NewPart(uint64(i), time.Time{})
		e := []*logqueue.Entry{{Shard: target0(uint32(i), 0).shard}}
		q.Claim(&p, e)
		q.Opened([]metalog.State{{Shard: target0(uint32(i), 0).shard, Epoch: 1, NextLSN: 1}}, time.Time{})
		q.Finish(e, true, time.Time{})
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(b.N), "B/log")
	runtime.KeepAlive(q)
}

// BenchmarkTrickle is a flush of many categories with one small frame each: what a payload costs, compression included.
//
//	go test ./batcher -run '^$' -bench Trickle -benchtime 50x -count 6
func BenchmarkTrickle(b *testing.B) {
	for _, categories := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("categories=%d/frame=300B", categories), func(b *testing.B) { benchmarkTrickle(b, categories) })
	}
}

func benchmarkTrickle(b *testing.B, categories int) {
	log, err := pebblelog.Open("log", pebblelog.Options{FS: vfs.NewMem()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	known, messages := catalog{}, workloads()["accesslog"]
	var requests [][]byte
	for i := range categories {
		name := fmt.Sprintf("trickle-%d", i)
		known[name] = &scribev1.Category{Name: name, Id: uint32(100 + i), Shards: 1}
		if i%200 == 0 {
			requests = append(requests, nil)
		}
		m := messages[i%len(messages)]
		requests[len(requests)-1] = append(requests[len(requests)-1], makeFrame(b, name, 0, nil, string(m[:min(len(m), 200)]))...)
	}
	cfg := DefaultConfig()
	cfg.MaxAge = time.Hour // the last request of each round cuts
	bt, err := New(cfg, Deps{Blobs: &forgetful{Store: memory.New()}, Log: log, Categories: known, Slot: func() uint16 { return 1 }})
	if err != nil {
		b.Fatal(err)
	}
	round := func() {
		for i, r := range requests {
			ack := none
			if i == len(requests)-1 {
				ack = committed
			}
			if _, err := bt.Submit(b.Context(), &scribev1.SubmitRequest{Frames: r, Ack: ack}); err != nil {
				b.Fatal(err)
			}
		}
	}
	round() // opens the logs
	b.ReportAllocs()
	b.ResetTimer()
	start := cpu()
	for range b.N {
		round()
	}
	used := cpu() - start
	b.StopTimer()
	b.ReportMetric(float64(used.Microseconds())/float64(b.N*categories), "cpu-us/payload")
	b.ReportMetric(float64(b.N+1)/counterValue(b, bt.metrics.blobs), "rounds/blob")
	if err := bt.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
}
