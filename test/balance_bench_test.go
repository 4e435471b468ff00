package test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/batcher"
	"scribe/internal/base/config"
	"scribe/internal/format/record"
	"scribe/internal/testkit/testsize"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
	"scribe/storage/blob/memory"
	"scribe/storage/metalog/pebblelog"
	"scribe/writeproxy"
)

// distantStore keeps nothing, and takes a while for each put.
type distantStore struct {
	blob.Store
	delay atomic.Int64 // nanoseconds
}

func (s *distantStore) Put(ctx context.Context, _ string, _ ...[]byte) error {
	select {
	case <-time.After(time.Duration(s.delay.Load())):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// oneCategory is a catalog of one category.
type oneCategory struct{ *scribev1.Category }

func (c oneCategory) Lookup(string) (*scribev1.Category, bool) { return c.Category, true }

func (c oneCategory) Resolve(context.Context, string) (*scribev1.Category, error) {
	return c.Category, nil
}

// unevenCell is a write proxy over batchers in this process.
type unevenCell struct {
	tb       testing.TB
	stores   []*distantStore
	batchers []*batcher.Batcher
	list     atomic.Pointer[[]writeproxy.Batcher]
	proxy    *writeproxy.Proxy
	frames   [][]byte
	closers  []func() error
}

// close ends the cell, the last part first.
func (c *unevenCell) close() {
	for _, end := range slices.Backward(c.closers) {
		if err := end(); err != nil {
			c.tb.Error(err)
		}
	}
}

const unevenShards = 512

func newUnevenCell(tb testing.TB, n int, delay time.Duration) *unevenCell {
	tb.Helper()
	c := &unevenCell{tb: tb}
	log, err := pebblelog.Open("log", pebblelog.Options{FS: vfs.NewMem()})
	if err != nil {
		tb.Fatal(err)
	}
	c.closers = append(c.closers, func() error { return log.Close() })
	known := oneCategory{&scribev1.Category{Name: "uneven", Id: 1, Shards: unevenShards, Delivery: scribev1.Delivery_DELIVERY_AT_LEAST_ONCE, MaxMessageBytes: 1 << 20}}
	var list []writeproxy.Batcher
	for i := range n {
		s := &distantStore{Store: memory.New()}
		s.delay.Store(int64(delay))
		bt, err := batcher.New(batcher.DefaultConfig(), batcher.Deps{Blobs: s, Log: log, Categories: known, Slot: func() uint16 { return uint16(i + 1) }})
		if err != nil {
			tb.Fatal(err)
		}
		c.closers = append(c.closers, func() error { return bt.Close(context.Background()) })
		c.stores, c.batchers = append(c.stores, s), append(c.batchers, bt)
		list = append(list, writeproxy.Batcher{ID: fmt.Sprint("batcher-", i), Service: bt})
	}
	c.announce(list)
	if c.proxy, err = writeproxy.New(config.Defaults[writeproxy.Config](), writeproxy.Deps{
		Categories: known, Batchers: func() []writeproxy.Batcher { return *c.list.Load() },
	}); err != nil {
		tb.Fatal(err)
	}
	c.closers = append(c.closers, func() error { return c.proxy.Close(context.Background()) })
	for shard := range uint32(unevenShards) {
		var builder record.Builder
		if err := builder.Reset(nil, record.Envelope{Category: "uneven", Shard: shard, BaseTime: 1}); err != nil {
			tb.Fatal(err)
		}
		for range 10 {
			if err := builder.AppendPayload(make([]byte, 100)); err != nil {
				tb.Fatal(err)
			}
		}
		frame, err := builder.Finish()
		if err != nil {
			tb.Fatal(err)
		}
		c.frames = append(c.frames, frame)
	}
	return c
}

func (c *unevenCell) announce(list []writeproxy.Batcher) { c.list.Store(&list) }

// write lets writers write one committed frame after another for a time, and returns the latencies in order.
func (c *unevenCell) write(d time.Duration) []time.Duration {
	ctx, cancel := context.WithTimeout(c.tb.Context(), d)
	defer cancel()
	var (
		mu    sync.Mutex
		all   []time.Duration
		group sync.WaitGroup
		shard atomic.Uint32
	)
	for range 48 {
		group.Go(func() {
			var own []time.Duration
			for ctx.Err() == nil {
				frame := c.frames[shard.Add(1)*7%unevenShards]
				begin := time.Now()
				resp, err := c.proxy.Write(c.tb.Context(), &scribev1.WriteRequest{Frames: frame, Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED})
				if err != nil || resp.GetResults()[0].GetError() != nil {
					c.tb.Errorf("write: %v, %v", rpc.Message(err), resp)
					return
				}
				own = append(own, time.Since(begin))
				select { // a writer has something else to do as well
				case <-time.After(20 * time.Millisecond):
				case <-ctx.Done():
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, own...)
		})
	}
	group.Wait()
	slices.Sort(all)
	return all
}

// measureUneven returns the 99th percentiles of committed writes over eight equal batchers, and over eight of which one is four times slower or
// has just started, in milliseconds.
func measureUneven(c *unevenCell, started bool, delay, settle, measured time.Duration) (equal, uneven float64) {
	percentile := func(all []time.Duration) float64 { return all[len(all)*99/100].Seconds() * 1e3 }
	if started {
		c.announce(slices.Clone(*c.list.Load())[1:])
	}
	c.write(settle)
	equal = percentile(c.write(measured))
	if started {
		c.announce(append([]writeproxy.Batcher{{ID: "batcher-0", Service: c.batchers[0], Start: 1}}, *c.list.Load()...))
	} else {
		c.stores[0].delay.Store(int64(4 * delay))
		c.write(settle)
	}
	return equal, percentile(c.write(measured))
}

// BenchmarkUnevenBatchers compares them. ratio is what it is about: writeproxy's TestTailOfUnevenBatchers has it in virtual time, without what
// processors take.
//
//	go test ./test -run '^$' -bench UnevenBatchers
func BenchmarkUnevenBatchers(b *testing.B) {
	const delay = 100 * time.Millisecond
	settle, measured := testsize.Benchmark(20*time.Second, 100*time.Millisecond), testsize.Benchmark(10*time.Second, 300*time.Millisecond)
	for _, name := range []string{"one=slow", "one=started"} {
		b.Run(name, func(b *testing.B) {
			var equal, uneven float64
			for range b.N {
				c := newUnevenCell(b, 8, delay)
				e, u := measureUneven(c, name == "one=started", delay, settle, measured)
				c.close()
				equal, uneven = equal+e/float64(b.N), uneven+u/float64(b.N)
			}
			b.ReportMetric(equal, "p99-equal-ms")
			b.ReportMetric(uneven, "p99-uneven-ms")
			b.ReportMetric(uneven/equal, "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}
