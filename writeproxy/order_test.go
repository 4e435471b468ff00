package writeproxy

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/base/config"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	"scribe/internal/transport/rpc/memhttp"
	scribev1 "scribe/proto/scribe/v1"
)

// journal is what all batchers have stored, in order.
type journal struct {
	mu     sync.Mutex
	stored [][]byte
}

// prefixes is a batcher that stores a prefix of each shard's frames and fails the rest, as drawn.
type prefixes struct {
	journal *journal
	fail    func() (reason scribev1.Reason, whole bool) // 0: store
}

func (p *prefixes) Submit(_ context.Context, req *scribev1.SubmitRequest) (*scribev1.SubmitResponse, error) {
	p.journal.mu.Lock()
	defer p.journal.mu.Unlock()
	reason, whole := p.fail()
	if whole && reason != 0 {
		return nil, rpc.Errorf(reason, "injected")
	}
	resp := &scribev1.SubmitResponse{}
	failed := map[string]scribev1.Reason{}
	for f, err := range record.Split(bytes.Clone(req.GetFrames())) {
		if err != nil {
			return nil, err
		}
		key := fmt.Sprintf("%s/%d", f.Category, f.Shard)
		if failed[key] == 0 {
			failed[key], _ = p.fail()
		}
		r := &scribev1.FrameResult{}
		if failed[key] != 0 {
			r.Error = rpc.Info(rpc.Errorf(failed[key], "injected"))
		} else {
			p.journal.stored = append(p.journal.stored, f.Bytes)
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

// TestOrder: whatever batchers fail of a request, the frames of a shard are stored in the order of the request, each once, and none
// without those before it.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			log := &journal{}
			percent := rapid.IntRange(0, 90).Draw(r, "failures")
			reason := func() (scribev1.Reason, bool) {
				if rapid.IntRange(0, 99).Draw(r, "dice") >= percent {
					return 0, false
				}
				return rapid.SampledFrom([]scribev1.Reason{
					overloaded, scribev1.Reason_REASON_FENCED, scribev1.Reason_REASON_NO_BACKEND, scribev1.Reason_REASON_SHUTTING_DOWN,
					scribev1.Reason_REASON_SEALED,
				}).Draw(r, "reason"), rapid.Bool().Draw(r, "whole")
			}
			c := newCell(t, config.Defaults[Config](), 0, func(d *Deps) {
				var snapshot []Batcher
				for i := range rapid.IntRange(1, 4).Draw(r, "batchers") {
					snapshot = append(snapshot, Batcher{ID: fmt.Sprint(i), Service: &prefixes{log, reason}})
				}
				d.Batchers = func() []Batcher { return snapshot }
			})
			c.catalog.limit("waits", 500, throttle)
			var frames [][]byte
			for i := range rapid.IntRange(1, 30).Draw(r, "frames") {
				category := rapid.SampledFrom([]string{"least", "once", "waits"}).Draw(r, "category")
				frames = append(frames, makeFrame(t, category, uint32(rapid.IntRange(0, 2).Draw(r, "shard")), category == "once", fmt.Sprint(i)))
			}
			resp, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: slices.Concat(frames...)})
			if err != nil {
				r.Fatal(err)
			}
			next := map[string]int{} // frames of a shard that are stored
			sent := map[string][][]byte{}
			acked := map[string]int{}
			key := func(f []byte) string {
				h, err := record.Check(f)
				if err != nil {
					r.Fatal(err)
				}
				return fmt.Sprintf("%s/%d", h.Category, h.Shard)
			}
			for i, f := range frames {
				sent[key(f)] = append(sent[key(f)], f)
				if resp.GetResults()[i].GetError() == nil {
					acked[key(f)]++
				}
			}
			for _, f := range log.stored {
				k := key(f)
				if next[k] >= len(sent[k]) || !bytes.Equal(f, sent[k][next[k]]) {
					r.Fatalf("%s: stored out of order", k)
				}
				next[k]++
			}
			for k, n := range acked {
				if next[k] != n {
					r.Fatalf("%s: %d frames are acknowledged, %d stored", k, n, next[k])
				}
			}
		})
	})
}

// TestRecreatedCategory: when a category's logs are sealed, it is asked for again; its frames are sent again under what it is now.
func TestRecreatedCategory(t *testing.T) {
	sealed := func(call int, frames [][]byte) (*scribev1.SubmitResponse, error) {
		if call > 0 {
			return nil, nil
		}
		resp := taken(frames)
		for _, i := range []int{1, 2} {
			resp.Results[i] = &scribev1.FrameResult{Error: rpc.Info(rpc.Errorf(scribev1.Reason_REASON_SEALED, "injected"))}
		}
		return resp, nil
	}
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 1)
		c.batchers[0].answer = sealed
		fresh := &scribev1.Category{Name: "least", Id: 77, Shards: 3}
		c.catalog.all["least"] = fresh
		results := c.write(makeFrame(t, "once", 0, true, "x"), makeFrame(t, "least", 2, false, "y"), makeFrame(t, "least", 3, false, "z"))
		if got := reasons(results); !slices.Equal(got, []scribev1.Reason{0, 0, scribev1.Reason_REASON_UNKNOWN_SHARD}) {
			t.Errorf("reasons %v", got)
		}
		if n := c.batchers[0].calls(); n != 2 {
			t.Errorf("%d calls", n)
		}
	})
	// One that is gone for good is said to be.
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 1)
		c.batchers[0].answer = sealed
		delete(c.catalog.all, "least")
		results := c.write(makeFrame(t, "once", 0, true, "x"), makeFrame(t, "least", 2, false, "y"), makeFrame(t, "least", 3, false, "z"))
		gone := scribev1.Reason_REASON_UNKNOWN_CATEGORY
		if got := reasons(results); !slices.Equal(got, []scribev1.Reason{0, gone, gone}) {
			t.Errorf("reasons %v", got)
		}
	})
}

// recreated is a catalog whose view learns, after its first look at a category, that it was deleted and created again.
type recreated struct {
	*catalog
	id uint32
}

func (r *recreated) Lookup(name string) (*scribev1.Category, bool) {
	c, ok := r.catalog.Lookup(name)
	if ok && name == "once" {
		r.mu.Lock()
		r.view[name] = &scribev1.Category{Name: name, Id: r.id, Shards: c.GetShards(), Delivery: c.GetDelivery(), MaxMessageBytes: c.GetMaxMessageBytes()}
		r.all[name] = r.view[name]
		r.id++
		r.mu.Unlock()
	}
	return c, ok
}

// TestRecreatedMeanwhile: the frames of an exactly_once category keep one way, in their order, also when the category becomes another in
// the middle of a request: a frame that another overtakes is taken for a repetition.
func TestRecreatedMeanwhile(t *testing.T) {
	frames := func() [][]byte {
		var out [][]byte
		for i := range 8 {
			out = append(out, makeFrame(t, "once", uint32(i%2), true, fmt.Sprint(i)), makeFrame(t, "least", 0, false, "x"))
		}
		return out
	}
	ways := func(c *cell) map[uint32][]string {
		got := map[uint32][]string{}
		for n, b := range c.batchers {
			for i, r := range b.requests {
				for f, err := range record.Split(r.GetFrames()) {
					if err != nil {
						t.Fatal(err)
					}
					if f.CategoryName() == "once" {
						got[f.Shard] = append(got[f.Shard], fmt.Sprintf("batcher %d request %d", n, i))
					}
				}
			}
		}
		return got
	}
	oneWay := func(got map[uint32][]string) {
		t.Helper()
		for shard, list := range got {
			if slices.Sort(list); len(list) != 4 || list[0] != list[3] {
				t.Errorf("shard %d went by %v", shard, list)
			}
		}
		if len(got) != 2 {
			t.Errorf("shards %v", got)
		}
	}
	t.Run("while it is admitted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCell(t, config.Defaults[Config](), 8, func(d *Deps) {
				all, _ := d.Categories.(*catalog)
				d.Categories = &recreated{catalog: all, id: 100}
			})
			c.write(frames()...)
			oneWay(ways(c))
		})
	})
	t.Run("between attempts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			cfg := config.Defaults[Config]()
			cfg.Attempts = 1
			c := newCell(t, cfg, 8)
			c.catalog.all["once"] = &scribev1.Category{Name: "once", Id: 100, Shards: 64, Delivery: scribev1.Delivery_DELIVERY_EXACTLY_ONCE, MaxMessageBytes: 1 << 20}
			var sizes []int // of the requests in order
			for _, b := range c.batchers {
				b.answer = func(_ int, frames [][]byte) (*scribev1.SubmitResponse, error) {
					sizes = append(sizes, len(frames))
					resp := taken(frames)
					for i := range frames {
						switch {
						case len(sizes) > 1:
						case i == 0:
							resp.Results[i] = &scribev1.FrameResult{Error: rpc.Info(rpc.Errorf(scribev1.Reason_REASON_SEALED, "injected"))}
						default:
							resp.Results[i] = &scribev1.FrameResult{Error: rpc.Info(rpc.Errorf(scribev1.Reason_REASON_FENCED, "injected"))}
						}
					}
					return resp, nil
				}
			}
			var all [][]byte
			for i := range 4 {
				all = append(all, makeFrame(t, "once", 0, true, fmt.Sprint(i)))
			}
			if got := reasons(c.write(all...)); slices.Max(got) != 0 {
				t.Errorf("reasons %v", got)
			}
			if !slices.Equal(sizes, []int{4, 4}) {
				t.Errorf("requests of %d frames: what follows a sealed frame goes another way", sizes)
			}
		})
	})
}

// TestDeadlinesShrinkOverHops: over two hops of HTTP each one has less time than the one before it, so that an answer that is late at
// the end is in time at the beginning.
func TestDeadlinesShrinkOverHops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		serve := func(s *rpc.Services) *rpc.Transport {
			l := memhttp.Listen()
			mux := http.NewServeMux()
			s.Register(mux)
			server := rpc.NewServer(mux, slog.New(slog.DiscardHandler))
			server.Serve(l)
			transport := rpc.NewTransport(l.Dial)
			t.Cleanup(func() {
				transport.Close()
				if err := server.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
			return transport
		}
		b := &fakeBatcher{id: "b"}
		batcher := rpc.NewBatchClient(serve(&rpc.Services{Batch: b}), "http://batcher")
		c := newCell(t, config.Defaults[Config](), 0, func(d *Deps) {
			snapshot := []Batcher{{ID: "b", Service: batcher}}
			d.Batchers = func() []Batcher { return snapshot }
		})
		front := rpc.NewWriteClient(serve(&rpc.Services{Write: c.Proxy, Admit: c.Admit}), "http://proxy")
		frame := makeFrame(t, "least", 0, false, "x")
		write := func(patience time.Duration) (*scribev1.WriteResponse, error) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return front.Write(ctx, &scribev1.WriteRequest{Frames: frame})
		}
		for _, tc := range []struct{ patience, at time.Duration }{
			{10 * time.Second, 9750 * time.Millisecond}, {time.Second, 900 * time.Millisecond},
		} {
			if _, err := write(tc.patience); err != nil {
				t.Fatal(err)
			}
			if got := b.deadline[len(b.deadline)-1]; got > tc.at || got < tc.at-50*time.Millisecond {
				t.Errorf("%v at the producer is %v at the batcher, want about %v", tc.patience, got, tc.at)
			}
		}
		// A batcher that does not answer in its time is told of by the proxy, in the producer's time.
		b.set(func(b *fakeBatcher) { b.hold = make(chan struct{}) })
		start := time.Now()
		resp, err := write(time.Second)
		if err != nil || resp.GetResults()[0].GetError().GetReason() != scribev1.Reason_REASON_UNKNOWN_OUTCOME || time.Since(start) >= time.Second {
			t.Errorf("%v, %v after %v", resp, err, time.Since(start))
		}
	})
}
