package metalog_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
	"scribe/storage/metalog/remote"
)

// BenchmarkAppend measures what serving an engine costs, by transport: synced appends of one record.
//
//	go test ./storage/metalog -run '^$' -bench Append -benchtime 3s -count 6
func BenchmarkAppend(b *testing.B) {
	for _, c := range []struct {
		name    string
		connect connect
	}{{"direct", direct}, {"tcp", overTCP}} {
		for _, writers := range []int{1, 128} {
			b.Run(fmt.Sprintf("transport=%s/writers=%d", c.name, writers), func(b *testing.B) {
				e, err := pebblelog.Open(b.TempDir(), pebblelog.Options{})
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = e.Close() })
				log := remote.NewClient(c.connect(b, remote.NewServer(e)))
				states, err := log.Open(b.Context(), "bench", []record.ShardID{1})
				if err != nil {
					b.Fatal(err)
				}
				a := &metalog.Append{Shards: []metalog.ShardAppend{{Shard: 1, Epoch: states[0].Epoch, Records: [][]byte{make([]byte, 120)}}}}
				var left atomic.Int64
				left.Store(int64(b.N))
				b.ReportAllocs()
				b.ResetTimer()
				var wg sync.WaitGroup
				for range writers {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							if _, err := log.Append(b.Context(), a); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
			})
		}
	}
}
