package readproxy

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// TestGreedyReaderCostsOthersNothing: forty readers of a category far beyond its quota, with requests as large as they may be, take nothing
// from a reader of another category: none of its requests waits or is refused, and no more is admitted than the quota passes.
func TestGreedyReaderCostsOthersNothing(t *testing.T) {
	const greedy, perSecond, seconds = 40, 4, 5
	for _, mode := range []scribev1.QuotaMode{block, throttle} {
		synctest.Test(t, func(t *testing.T) {
			cat := &scribev1.Category{Name: "a", Id: 1, Shards: 1, ReadQuotaMode: mode}
			// A thousandth of the memory of a large proxy, and readers to match.
			h := newHarnessWith(t, func(d *Deps) { d.Categories = limited{cat} }, func(c *Config) { c.RequestBytes = 8 << 20 })
			wanted, pointers := h.put(pointer.CodecNone, []payload{newPayload(t, "a", 10)})
			cat.ReadQuotaBytesPerSecond = perSecond * maxPointers * uint64(pointers[0].Length)
			wanted = slices.Repeat(wanted, maxPointers)
			quiet, _ := h.put(pointer.CodecNone, []payload{newPayload(t, "b", 10)})
			quiet = slices.Repeat(quiet, maxPointers)
			// fetch asks as a request that comes over the network does.
			fetch := func(ctx context.Context, category string, pointers [][]byte) error {
				n := 0
				for _, p := range pointers {
					n += len(p)
				}
				release, err := h.server.Admit(int64(n))
				if err != nil {
					return err
				}
				defer release()
				_, err = h.server.Fetch(ctx, &scribev1.FetchRequest{Pointers: pointers, Encoding: raw, Category: category})
				return err
			}
			var readers sync.WaitGroup
			end, stop := context.WithTimeout(t.Context(), seconds*time.Second)
			defer stop()
			for range greedy {
				readers.Go(func() {
					for end.Err() == nil {
						ctx, cancel := context.WithTimeout(end, 30*time.Second)
						err := fetch(ctx, "a", wanted)
						cancel()
						select {
						case <-time.After(max(rpc.Info(err).GetRetryAfter().AsDuration(), 50*time.Millisecond)):
						case <-end.Done():
						}
					}
				})
			}
			asked := 0
			for range 10 * (seconds - 1) {
				<-time.After(100 * time.Millisecond)
				synctest.Wait()
				begin := time.Now()
				if err := fetch(t.Context(), "b", quiet); err != nil {
					t.Fatalf("mode %v: a quiet reader beside greedy ones: %v", mode, err)
				}
				if waited := time.Since(begin); waited > 0 {
					t.Fatalf("mode %v: a quiet reader waited for %v", mode, waited)
				}
				asked++
			}
			stop()
			readers.Wait()
			// Both categories have one block, which is read once each: what the quota refuses or holds back never comes as far as the store.
			if n := h.metric("store_blocks_total"); n > 2 {
				t.Errorf("mode %v: %v blocks were read", mode, n)
			}
			if n := h.metric("admitted_total"); mode == throttle && n > float64(asked+perSecond*(seconds+2)) {
				t.Errorf("%v requests were admitted, %d of them the quiet reader's", n, asked)
			}
		})
	}
}
