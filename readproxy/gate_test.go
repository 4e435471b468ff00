package readproxy

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/role/admission"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// A herd on a server that was just started: 5,000 consumers ask for the same few blocks at once. Each block is read once; who is
// refused is told when to come back, keeps to it, and is served, all within the time that the rate gives.
func TestHerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const consumers, rate = 5000, 1000
		h := newHarness(t, func(c *Config) {
			c.RequestsPerSecond, c.RequestBurst = rate, 500
			c.Queue = admission.ControllerConfig{Target: 1, Least: 100, Most: 100}
		})
		var enc [][]byte
		for range 4 {
			e, _ := h.put(pointer.CodecNone, []payload{newPayload(t, "a", 50)})
			enc = append(enc, e...)
		}
		h.store.onRead(func(context.Context, []byte, int64) error { <-time.After(50 * time.Millisecond); return nil })
		begin := time.Now()
		var all sync.WaitGroup
		var tries atomic.Int64
		for i := range consumers {
			all.Go(func() {
				for {
					tries.Add(1)
					res, err := h.server.Fetch(t.Context(), &scribev1.FetchRequest{Pointers: enc[i%4 : i%4+1], Category: "a"})
					if err == nil {
						if _, err := open(res.GetPayloads()[0]); err != nil {
							t.Error(err)
						}
						return
					}
					after := rpc.Info(err).GetRetryAfter().AsDuration()
					if rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED || after <= 0 {
						t.Errorf("got %v, try again after %v", err, after)
						return
					}
					<-time.After(after)
				}
			})
		}
		all.Wait()
		if n := h.store.reads.Load(); n != 4 {
			t.Errorf("%d reads of 4 blocks", n)
		}
		if took := time.Since(begin); took > consumers/rate*2*time.Second {
			t.Errorf("it took %v", took)
		}
		if n := tries.Load(); n > 5*consumers {
			t.Errorf("%d requests of %d consumers", n, consumers)
		}
		if h.metric("denied_total", "herd") == 0 {
			t.Error("what was refused is not counted")
		}
	})
}

// A host that is busy takes fewer requests in, and all again when it is not.
func TestBusyHostShortensItsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		var used atomic.Int64
		last := time.Now()
		h := newHarnessWith(t, func(d *Deps) {
			d.CPUTime = func() time.Duration {
				if now := time.Now(); busy.Load() {
					used.Add(int64(64 * now.Sub(last)))
					last = now
				} else {
					last = now
				}
				return time.Duration(used.Load())
			}
		}, func(c *Config) { c.Queue = admission.ControllerConfig{Target: 0.9, Least: 2, Most: 1000} })
		enc, _ := h.put(pointer.CodecNone, []payload{newPayload(t, "a", 50)})
		ask := func(d time.Duration) {
			for range d / (100 * time.Millisecond) {
				<-time.After(100 * time.Millisecond)
				h.fetch(raw, "a", enc[0])
			}
		}
		ask(time.Second)
		if n := h.metric("queue_length"); n != 1000 {
			t.Fatalf("length %v while idle", n)
		}
		busy.Store(true)
		ask(10 * time.Second)
		if n, u := h.metric("queue_length"), h.metric("utilisation"); n != 2 || u < 0.99 {
			t.Fatalf("length %v at a utilisation of %v", n, u)
		}
		// Two wait for the store; the third is refused at once, with a hint.
		slow, _ := h.put(pointer.CodecNone, []payload{newPayload(t, "a", 50)})
		release := make(chan struct{})
		h.store.onRead(func(context.Context, []byte, int64) error { <-release; return nil })
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() { h.fetch(raw, "a", slow[0]) })
		}
		synctest.Wait()
		_, err := h.server.Fetch(t.Context(), &scribev1.FetchRequest{Pointers: enc, Category: "a"})
		if rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED || rpc.Info(err).GetRetryAfter().AsDuration() <= 0 || h.metric("denied_total", "queue") != 1 {
			t.Errorf("got %v", err)
		}
		close(release)
		all.Wait()
		busy.Store(false)
		ask(5 * time.Second)
		if n := h.metric("queue_length"); n != 1000 {
			t.Errorf("length %v when it is idle again", n)
		}
	})
}

// Under any load the bounds hold: bytes in the cache, bytes being read, bytes of requests, and requests queued or in service.
func TestBoundsUnderLoad(t *testing.T) {
	const (
		cacheBytes, requestBytes = 200_000, 1 << 20
		askers                   = 64
	)
	h := newHarness(t, func(c *Config) {
		c.CacheBytes, c.RequestBytes, c.Fetches, c.RequestsPerSecond = cacheBytes, requestBytes, 8, 0
		c.Queue = admission.ControllerConfig{Target: 1, Least: 40, Most: 40}
	})
	var enc [][]byte
	for range 60 {
		e, _ := h.put(pointer.CodecZstd, []payload{newPayload(t, "a", 200)}, []payload{newPayload(t, "a", 30), newPayload(t, "a", 30)}, []payload{newPayload(t, "a", 200)})
		enc = append(enc, e...)
	}
	var reading, running atomic.Int64
	h.store.onRead(func(_ context.Context, dst []byte, _ int64) error {
		defer reading.Add(-int64(len(dst)))
		defer running.Add(-1)
		if reading.Add(int64(len(dst))) > h.cfg.FetchBytes || running.Add(1) > 8 {
			t.Error("a bound on reads does not hold")
		}
		return nil
	})
	var all sync.WaitGroup
	var served, refused atomic.Int64
	for i := range askers {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for range 50 {
				at := rng.IntN(len(enc) - 5)
				res, err := h.server.Fetch(t.Context(), &scribev1.FetchRequest{Pointers: enc[at : at+1+rng.IntN(5)], Category: "a"})
				if err != nil {
					if rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED {
						t.Error(err)
					}
					refused.Add(1)
					continue
				}
				for _, p := range res.GetPayloads() {
					if _, err := open(p); err != nil {
						t.Error(err)
					}
				}
				served.Add(1)
				if s := h.server.cache.readStats(); s.bytes > cacheBytes {
					t.Errorf("%d bytes in the cache", s.bytes)
				}
				if s := h.server.gate.queue.ReadState(); s.Inside > 40 || s.Bytes > requestBytes {
					t.Errorf("%+v", s)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d requests served, %d refused", served.Load(), refused.Load())
	if served.Load() == 0 {
		t.Error("nothing was served")
	}
	if s := h.server.gate.queue.ReadState(); s.Inside != 0 || s.Bytes != 0 || h.metric("fetches_in_flight") != 0 {
		t.Errorf("%+v, %v fetches are left", s, h.metric("fetches_in_flight"))
	}
	if !h.server.fetchBytes.TryAcquire(h.cfg.FetchBytes) {
		t.Error("bytes of fetches were not given back")
	} else {
		h.server.fetchBytes.Release(h.cfg.FetchBytes)
	}
}

// TestLoad: the read proxy's load is the used part of its queue or of its memory, whichever is more.
func TestLoad(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.RequestBytes = 1 << 20
		c.Queue = admission.ControllerConfig{Target: 1, Least: 10, Most: 10}
	})
	if got := h.server.Load(); got != 0 {
		t.Errorf("load %d at rest", got)
	}
	for i, want := range []struct {
		cost int64
		load uint32
	}{{0, 100}, {512 << 10, 500}} {
		leave, err := h.server.gate.queue.Enter(t.Context(), want.cost)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { leave(0) })
		if got := h.server.Load(); got != want.load {
			t.Errorf("load %d with %d requests inside, want %d", got, i+1, want.load)
		}
	}
}
