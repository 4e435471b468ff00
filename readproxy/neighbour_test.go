package readproxy

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// severalLimited are categories with quotas; others have none.
type severalLimited []*scribev1.Category

func (l severalLimited) Lookup(name string) (*scribev1.Category, bool) {
	if i := slices.IndexFunc(l, func(c *scribev1.Category) bool { return c.GetName() == name }); i >= 0 {
		return l[i], true
	}
	return categories{"b"}.Lookup(name)
}

func (l severalLimited) Resolve(ctx context.Context, name string) (*scribev1.Category, error) {
	return categories{}.Resolve(ctx, name)
}

// TestGreedyReaderCostsOthersNothing: a hundred readers of five categories far beyond their quotas, with requests as large as they may be, take
// nothing from a reader of another category: none of its requests waits or is refused, and no more is admitted than the quotas pass.
func TestGreedyReaderCostsOthersNothing(t *testing.T) {
	const categories, greedy, perSecond, seconds = 5, 20, 4, 5
	for _, mode := range []scribev1.QuotaMode{block, throttle} {
		synctest.Test(t, func(t *testing.T) {
			var cats severalLimited
			for i := range uint32(categories) {
				cats = append(cats, &scribev1.Category{Name: fmt.Sprintf("a%d", i), Id: 1 + i, Shards: 1, ReadQuotaMode: mode})
			}
			// A thousandth of the memory of a large proxy, and readers to match.
			h := newHarnessWith(t, func(d *Deps) { d.Categories = cats }, func(c *Config) { c.RequestBytes = 8 << 20 })
			wanted := make([][][]byte, categories)
			for i, cat := range cats {
				all, pointers := h.put(pointer.CodecNone, []payload{newPayload(t, cat.GetName(), 10)})
				cat.ReadQuotaBytesPerSecond = perSecond * maxPointers * uint64(pointers[0].Length)
				wanted[i] = slices.Repeat(all, maxPointers)
			}
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
			for i := range greedy * categories {
				category, wanted := cats[i%categories].GetName(), wanted[i%categories]
				readers.Go(func() {
					for end.Err() == nil {
						ctx, cancel := context.WithTimeout(end, 30*time.Second)
						err := fetch(ctx, category, wanted)
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
			// Each category has one block, which is read once: what the quota refuses or holds back never comes as far as the store.
			if n := h.metric("store_blocks_total"); n > categories+1 {
				t.Errorf("mode %v: %v blocks were read", mode, n)
			}
			if n := h.metric("admitted_total"); mode == throttle && n > float64(asked+categories*perSecond*(seconds+2)) {
				t.Errorf("%v requests were admitted, %d of them the quiet reader's", n, asked)
			}
		})
	}
}
