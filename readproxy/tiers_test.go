package readproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/base/config"
	"scribe/internal/format/pointer"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readproxy/memcached"
	"scribe/readproxy/memcached/memcachedtest"
	"scribe/storage/blob"
)

// good fails the test unless a payload is what was written.
func good(t testing.TB, p *scribev1.Payload, want payload) {
	t.Helper()
	frames, err := open(p)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(frames, want.frames) {
		t.Fatal("the payload is not what was written")
	}
}

// withMemcached adds the shared tier.
func withMemcached(s *memcachedtest.Server, change ...func(*memcached.Config)) func(*Config) {
	return func(c *Config) {
		m := config.Defaults[memcached.Config]()
		m.Servers, m.Timeout = []string{s.Addr}, patience
		for _, fn := range change {
			fn(&m)
		}
		c.Memcached = &m
	}
}

// A block whose memory changes while it is in the cache is never served: it is fetched again, and counted.
func TestDamageInMemory(t *testing.T) {
	h := newHarness(t)
	whole := newPayload(t, "a", 500)
	small := []payload{newPayload(t, "b", 3), newPayload(t, "a", 4)}
	enc, _ := h.put(pointer.CodecZstd, []payload{whole}, small)
	wants := []payload{whole, small[1]}
	for round := range 2 {
		for i, p := range h.fetch(raw, "a", enc[0], enc[2]) {
			good(t, p, wants[i])
		}
		if round == 1 {
			break
		}
		for _, part := range [][]*checkedBlock{h.server.cache.mu.proven.Values(), h.server.cache.mu.trial.Values()} {
			for _, b := range part {
				b.data[len(b.data)/2] ^= 1
			}
		}
	}
	if n := h.metric("damaged_blocks_total", tierMemory); n != 2 {
		t.Errorf("%v damaged blocks counted", n)
	}
	if n := h.metric("store_blocks_total"); n != 4 {
		t.Errorf("%v blocks were read", n)
	}
}

// What one server has fetched, another one, or the same after a restart, gets from memcached; the store is asked once.
func TestMemcachedTier(t *testing.T) {
	cache := memcachedtest.Start(t)
	h := newHarness(t, withMemcached(cache, func(m *memcached.Config) { m.ItemBytes, m.ValueBytes = 1024, 1_000_000 }))
	whole := newPayload(t, "a", 500)
	small := []payload{newPayload(t, "b", 3), newPayload(t, "a", 4)}
	enc, _ := h.put(pointer.CodecZstd, []payload{whole}, small)
	good(t, h.fetch(raw, "a", enc[0])[0], whole)
	good(t, h.fetch(raw, "a", enc[2])[0], small[1])
	h.eventually(func() bool { return h.metric("memcached_fills_total", "stored") == 2 })
	reads := h.store.reads.Load()

	other := newHarnessWith(t, func(d *Deps) { d.Blobs = func(string) (blob.Store, error) { return h.store, nil } }, withMemcached(cache, func(m *memcached.Config) { m.ItemBytes, m.ValueBytes = 1024, 1_000_000 }))
	for i, p := range other.fetch(raw, "a", enc[0], enc[2]) {
		good(t, p, []payload{whole, small[1]}[i])
	}
	good(t, other.fetch(raw, "b", enc[1])[0], small[0])
	if h.store.reads.Load() != reads {
		t.Error("the store was read although memcached has the blocks")
	}
	if hits, saved := other.metric("cache_hits_total", tierShared), other.metric("saved_bytes_total", tierShared); hits != 2 || saved == 0 {
		t.Errorf("%v hits, %v bytes saved", hits, saved)
	}
	if other.metric("memcached_fills_total") != 0 {
		t.Error("what came out of memcached was put into it again")
	}
}

func TestMemcachedPolicies(t *testing.T) {
	old := time.Now().Add(-3 * time.Hour).UnixMicro()
	for _, c := range []struct {
		name    string
		rule    Rule
		old     bool
		fetches int
		gets    int // calls to memcached
		fills   float64
		reads   int64
	}{
		{"always", Rule{}, false, 2, 1, 1, 1},
		{"never", Rule{Shared: KeepNever}, false, 2, 0, 0, 1},
		{"reused, once", Rule{Shared: KeepReused}, false, 1, 1, 0, 1},
		{"reused, twice", Rule{Shared: KeepReused}, true, 2, 0, 0, 1},
		{"too old", Rule{}, true, 2, 0, 0, 1},
		{"old enough", Rule{SharedAge: 4 * time.Hour}, true, 2, 1, 1, 1},
		{"memory never", Rule{Memory: KeepNever, Shared: KeepNever}, false, 2, 0, 0, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			cache := memcachedtest.Start(t)
			c.rule.Pattern = "a"
			h := newHarness(t, withMemcached(cache), func(cfg *Config) { cfg.Rules = []Rule{c.rule} })
			if c.old {
				h.created = old
			}
			want := newPayload(t, "a", 100)
			enc, _ := h.put(pointer.CodecZstd, []payload{want})
			for range c.fetches {
				good(t, h.fetch(raw, "a", enc[0])[0], want)
			}
			h.eventually(func() bool { return h.metric("memcached_fills_total", "stored") == c.fills })
			if n := cache.CountCalls("get"); n != c.gets {
				t.Errorf("memcached was asked %d times", n)
			}
			if n := h.store.reads.Load(); n != c.reads {
				t.Errorf("%d reads", n)
			}
		})
	}
	// On trial, the second look is what fills.
	cache := memcachedtest.Start(t)
	h := newHarness(t, withMemcached(cache), func(c *Config) { c.Rules, c.TailAge = []Rule{{Pattern: "a", Shared: KeepReused}}, 0 })
	enc, _ := h.put(pointer.CodecZstd, []payload{newPayload(t, "a", 100)})
	for range 3 {
		h.fetch(raw, "a", enc[0])
	}
	h.eventually(func() bool { return h.metric("memcached_fills_total", "stored") == 1 })
}

// A tier that hangs, is away, or lies costs time at most: payloads come from the store, are right, and what happened is counted.
func TestMemcachedTrouble(t *testing.T) {
	for name, c := range map[string]struct {
		damage  func(*memcachedtest.Server)
		counted string
	}{
		"hangs": {func(s *memcachedtest.Server) { s.Hang(true) }, "timeout"},
		"away":  {func(s *memcachedtest.Server) { s.Stop() }, "connection"},
		"damaged": {func(s *memcachedtest.Server) {
			s.ChangeItems(func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		}, tierShared},
		"shorter":  {func(s *memcachedtest.Server) { s.ChangeItems(func(b []byte) []byte { return b[1:] }) }, "protocol"},
		"longer":   {func(s *memcachedtest.Server) { s.ChangeItems(func(b []byte) []byte { return append(b, 0) }) }, "protocol"},
		"nonsense": {func(s *memcachedtest.Server) { s.ReplaceAnswers(func([]byte) []byte { return []byte("nonsense\r\n") }) }, "protocol"},
		"partly":   {func(s *memcachedtest.Server) { s.DropItems("/1") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cache := memcachedtest.Start(t)
			small := func(m *memcached.Config) { m.ItemBytes, m.ValueBytes = 1024, 1_000_000 }
			impatient := func(m *memcached.Config) {
				if name == "hangs" {
					m.Timeout = 50 * time.Millisecond
				}
			}
			h := newHarness(t, withMemcached(cache, small))
			want := newPayload(t, "a", 500)
			enc, _ := h.put(pointer.CodecNone, []payload{want})
			good(t, h.fetch(raw, "a", enc[0])[0], want)
			h.eventually(func() bool { return h.metric("memcached_fills_total", "stored") == 1 })
			c.damage(cache)
			other := newHarnessWith(t, func(d *Deps) { d.Blobs = func(string) (blob.Store, error) { return h.store, nil } }, withMemcached(cache, small, impatient))
			good(t, other.fetch(raw, "a", enc[0])[0], want)
			if n := other.metric("store_reads_total"); n != 1 {
				t.Errorf("%v reads", n)
			}
			if c.counted != "" && other.metric("memcached_failures_total", c.counted)+other.metric("damaged_blocks_total", c.counted) < 1 {
				t.Errorf("%q is not counted", c.counted)
			}
			if name == "damaged" && cache.CountCalls("delete") != 1 {
				t.Error("the damaged block was left there")
			}
		})
	}
}

// A tier that is too slow to be filled drops what does not fit its queue; nobody waits for it.
func TestMemcachedFillsAreBounded(t *testing.T) {
	cache := memcachedtest.Start(t)
	h := newHarness(t, withMemcached(cache), func(c *Config) { c.FillBytes = 10_000 })
	cache.Hang(true)
	h.server.cfg.Rules = []Rule{{Pattern: "a"}}
	for range 10 {
		want := newPayload(t, "a", 40) // about 3 KB
		enc, _ := h.put(pointer.CodecNone, []payload{want})
		h.server.fills.addBlock(&Rule{Pattern: "a", SharedAge: time.Hour}, mustDecode(t, enc[0]), want.frames)
	}
	if n := h.metric("memcached_fills_total", "dropped"); n != 7 {
		t.Errorf("%v fills were dropped", n)
	}
	cache.Hang(false)
	h.eventually(func() bool { return h.metric("memcached_fills_total", "stored") == 3 })
}

func mustDecode(t testing.TB, b []byte) *pointer.Pointer {
	t.Helper()
	p, err := pointer.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	return &p
}

// neighbour is a read proxy with a store, as another region sees it.
type neighbour struct {
	*harness
	broken atomic.Pointer[func(context.Context) (*scribev1.FetchResponse, error)]
	asked  atomic.Int64
}

func (r *neighbour) Fetch(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	r.asked.Add(1)
	if fn := r.broken.Load(); fn != nil {
		return (*fn)(ctx)
	}
	res, err := r.server.Fetch(ctx, req)
	if err != nil {
		return nil, err
	}
	// What comes over a network is memory of its own.
	for _, p := range res.GetPayloads() {
		p.Data = bytes.Clone(p.GetData())
	}
	return res, nil
}

// twoRegions returns a read proxy in "here", which reaches the read proxy of "there", and its store too if direct.
func twoRegions(t *testing.T, direct bool, change ...func(*Config)) (here *harness, there *neighbour) {
	there = &neighbour{harness: newHarness(t, func(c *Config) { c.Region = "there" })}
	there.region = "there"
	here = newHarnessWith(t, func(d *Deps) {
		local := d.Blobs
		d.Blobs = func(name string) (blob.Store, error) {
			if name == "there" && direct {
				return there.store, nil
			}
			return local(name)
		}
		d.Peers = func(name string) Peer {
			if name == "there" {
				return there
			}
			return nil
		}
	}, append([]func(*Config){func(c *Config) { c.Region = "here" }}, change...)...)
	here.region = "here"
	return here, there
}

// A block of another region comes through that region's read proxy, which keeps it for the next region; here it is fetched once.
func TestChaining(t *testing.T) {
	here, there := twoRegions(t, false)
	whole := newPayload(t, "a", 500)
	small := []payload{newPayload(t, "b", 3), newPayload(t, "a", 4)}
	enc, _ := there.put(pointer.CodecZstd, []payload{whole}, small)
	for range 3 {
		for i, p := range here.fetch(raw, "a", enc[0], enc[2]) {
			good(t, p, []payload{whole, small[1]}[i])
		}
	}
	good(t, here.fetch(raw, "b", enc[1])[0], small[0])
	if n := there.asked.Load(); n != 1 {
		t.Errorf("the other region was asked %d times", n)
	}
	if n := there.metric("store_blocks_total"); n != 2 {
		t.Errorf("it read %v blocks", n)
	}
	if here.metric("store_reads_total") != 0 || here.metric("cache_hits_total", tierRegion) != 2 || here.metric("region_bytes_total") == 0 {
		t.Error("what came from the other region is not counted as such")
	}
	// A third region finds the blocks in the memory of the second.
	before := there.store.reads.Load()
	third := newHarnessWith(t, func(d *Deps) { d.Peers = func(string) Peer { return there } })
	good(t, third.fetch(raw, "a", enc[0])[0], whole)
	if there.store.reads.Load() != before {
		t.Error("the store was read again for the third region")
	}
	// A server's own region is the local store.
	own := newPayload(t, "a", 10)
	enc, _ = here.put(pointer.CodecZstd, []payload{own})
	good(t, here.fetch(raw, "a", enc[0])[0], own)
	// Other categories' payloads are refused here as anywhere.
	wantReason(t, here.fetch(raw, "b", enc[0])[0], scribev1.Reason_REASON_INVALID)
}

// Many blocks go in as many requests as it takes, and what one answer does not hold is asked for again.
func TestChainingInPortions(t *testing.T) {
	here, there := twoRegions(t, false)
	there.server.cfg.AnswerBytes = 20_000
	var enc [][]byte
	var wants []payload
	for range 250 {
		want := newPayload(t, "a", 10)
		e, _ := there.put(pointer.CodecNone, []payload{want})
		enc, wants = append(enc, e...), append(wants, want)
	}
	for i, p := range here.fetch(raw, "a", enc...) {
		good(t, p, wants[i])
	}
	if n := there.asked.Load(); n <= 3 {
		t.Errorf("%d requests", n)
	}
}

func TestChainingTrouble(t *testing.T) {
	answer := func(p *scribev1.Payload) func(context.Context) (*scribev1.FetchResponse, error) {
		return func(context.Context) (*scribev1.FetchResponse, error) {
			return &scribev1.FetchResponse{Payloads: []*scribev1.Payload{p}}, nil
		}
	}
	fail := func(err error) func(context.Context) (*scribev1.FetchResponse, error) {
		return func(context.Context) (*scribev1.FetchResponse, error) { return nil, err }
	}
	for name, c := range map[string]struct {
		broken func(context.Context) (*scribev1.FetchResponse, error)
		want   scribev1.Reason // without a store to go to
		final  bool            // with one, too
	}{
		"away":        {fail(errors.New("connection refused")), scribev1.Reason_REASON_NO_BACKEND, false},
		"busy":        {fail(rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, time.Second, "busy")), scribev1.Reason_REASON_OVERLOADED, false},
		"damaged":     {answer(&scribev1.Payload{Data: []byte("damaged")}), scribev1.Reason_REASON_NO_BACKEND, false},
		"empty":       {fail(nil), scribev1.Reason_REASON_NO_BACKEND, false},
		"missing":     {answer(&scribev1.Payload{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_MISSING}}), scribev1.Reason_REASON_MISSING, true},
		"trimmed":     {answer(&scribev1.Payload{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_TRIMMED}}), scribev1.Reason_REASON_TRIMMED, true},
		"corrupt":     {answer(&scribev1.Payload{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_CORRUPT}}), scribev1.Reason_REASON_CORRUPT, false},
		"hangs":       {func(ctx context.Context) (*scribev1.FetchResponse, error) { <-ctx.Done(); return nil, ctx.Err() }, scribev1.Reason_REASON_NO_BACKEND, false},
		"another one": {answer(&scribev1.Payload{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_INVALID}}), scribev1.Reason_REASON_INVALID, false},
	} {
		for _, direct := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/store=%v", name, direct), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					here, there := twoRegions(t, direct, func(c *Config) { c.PeerTimeout = 20 * time.Millisecond })
					there.broken.Store(&c.broken)
					for range peerTrip + 2 {
						want := newPayload(t, "a", 20)
						enc, _ := there.put(pointer.CodecNone, []payload{want})
						got := here.fetch(raw, "a", enc[0])[0]
						if !direct || c.final {
							wantReason(t, got, c.want)
							if retry.ClassOf(got.GetError().GetReason()).Retryable() && c.want == scribev1.Reason_REASON_NO_BACKEND && got.GetError().GetRetryAfter().AsDuration() <= 0 {
								t.Error("no hint when to try again")
							}
							continue
						}
						good(t, got, want)
					}
					if direct && !c.final && here.metric("region_fallbacks_total") != peerTrip+2 {
						t.Error("the way around is not counted")
					}
					there.broken.Store(nil)
					if direct {
						return
					}
					// It is left alone by now, and says so at once; after a while it is asked again.
					want := newPayload(t, "a", 20)
					enc, _ := there.put(pointer.CodecNone, []payload{want})
					if resting := c.want == scribev1.Reason_REASON_NO_BACKEND && name != "damaged" || name == "busy"; resting {
						asked := there.asked.Load()
						got := here.fetch(raw, "a", enc[0])[0]
						wantReason(t, got, c.want)
						if after := got.GetError().GetRetryAfter().AsDuration(); there.asked.Load() != asked || after <= 0 || after > 2*peerFirstPause {
							t.Errorf("it was asked again, or the hint of %v is not", after)
						}
						if !strings.Contains(got.GetError().GetMessage(), `region "there"`) || here.metric("regions_away") != 1 {
							t.Errorf("the region is not named: %v", got.GetError())
						}
					}
					h := here
					h.eventually(func() bool { return h.fetch(raw, "a", enc[0])[0].GetError() == nil })
					good(t, here.fetch(raw, "a", enc[0])[0], want)
				})
			})
		}
	}
}

// Two regions that each take the other for the owner answer with an error, at once, instead of asking each other for ever.
func TestChainingInACircle(t *testing.T) {
	var one, two *harness
	peer := func(h **harness) func(*Deps) {
		return func(d *Deps) {
			d.Peers = func(string) Peer { return (*h).server }
		}
	}
	one = newHarnessWith(t, peer(&two))
	two = newHarnessWith(t, peer(&one))
	one.region = "nowhere"
	enc, _ := one.put(pointer.CodecZstd, []payload{newPayload(t, "a", 20)})
	wantReason(t, one.fetch(raw, "a", enc[0])[0], scribev1.Reason_REASON_NO_BACKEND)
}

// A block asked for by a peer is given whole, whoever's payloads are in it, for a category that need not be known.
func TestBlocks(t *testing.T) {
	h := newHarness(t)
	small := []payload{newPayload(t, "b", 3), newPayload(t, "a", 4)}
	enc, ptrs := h.put(pointer.CodecZstd, small)
	res, err := h.server.Fetch(t.Context(), &scribev1.FetchRequest{Pointers: enc[:1], Encoding: blockEncoding, Category: "elsewhere", Peer: true})
	if err != nil {
		t.Fatal(err)
	}
	frames, err := open(res.GetPayloads()[0])
	if err != nil || !bytes.Equal(frames, append(bytes.Clone(small[0].frames), small[1].frames...)) {
		t.Fatalf("%d bytes, %v", len(frames), err)
	}
	if res.GetPayloads()[0].GetCrc() != ptrs[0].BlockCRC {
		t.Error("it is not the block as stored")
	}
}

// However a pointer lies about the blob, those whose blocks are read together with its do not pay for it.
func TestNeighboursOfALie(t *testing.T) {
	h := newHarness(t)
	wants := []payload{newPayload(t, "a", 20), newPayload(t, "a", 30)}
	enc, ptrs := h.put(pointer.CodecZstd, wants[:1], wants[1:])
	lie := ptrs[1]
	lie.BlockOffset += uint64(lie.BlockLen) + 10
	lie.BlockLen += 2000
	got := h.fetch(raw, "a", enc[0], pointer.Append(nil, &lie), enc[1])
	good(t, got[0], wants[0])
	good(t, got[2], wants[1])
	wantReason(t, got[1], scribev1.Reason_REASON_CORRUPT)
}

// Neighbours of one request are one read, whose waste is counted; without coalescing each is one.
func TestCoalescing(t *testing.T) {
	for _, most := range []int64{0, 1 << 20} {
		h := newHarness(t, func(c *Config) { c.CoalesceBytes = most })
		var blocks [][]payload
		for range 10 {
			blocks = append(blocks, []payload{newPayload(t, "a", 50)})
		}
		enc, _ := h.put(pointer.CodecNone, blocks...)
		enc[4], enc[9] = enc[9], enc[4]
		for i, p := range h.fetch(raw, "a", enc[:9]...) { // all but the fifth
			good(t, p, blocks[i][0])
		}
		reads, got, waste := h.store.reads.Load(), h.metric("store_bytes_total"), h.metric("store_waste_bytes_total")
		if most == 0 && (reads != 9 || waste != 0) || most > 0 && (reads != 1 || waste != got/10) {
			t.Errorf("%d reads of %v bytes, %v in vain", reads, got, waste)
		}
	}
}

// Reads of the store are paced by the bucket, and coalesced while they wait.
func TestReadsArePaced(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.ReadsPerSecond, c.ReadBurst = 20, 1 })
	var enc [][]byte
	for range 3 {
		e, _ := h.put(pointer.CodecNone, []payload{newPayload(t, "a", 5)})
		enc = append(enc, e...)
	}
	begin := time.Now()
	var all sync.WaitGroup
	for _, e := range enc {
		all.Go(func() {
			if p := h.fetch(raw, "a", e)[0]; p.GetError() != nil {
				t.Error(p.GetError())
			}
		})
	}
	all.Wait()
	if took := time.Since(begin); took < 90*time.Millisecond {
		t.Errorf("three reads took %v", took)
	}
	if h.metric("store_reads_paced_total") == 0 {
		t.Error("it is not counted")
	}
}
