package readproxy

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readproxy/memcached/memcachedtest"
	"scribe/storage/blob"
)

// pushed returns the block of a pointer as a batcher pushes it.
func (h *harness) pushed(encoded []byte, categories ...string) *scribev1.PushedBlock {
	h.t.Helper()
	p, err := pointer.Decode(encoded)
	if err != nil {
		h.t.Fatal(err)
	}
	stored := make([]byte, p.BlockLen)
	if err := h.store.Store.ReadAt(h.t.Context(), p.Key(), stored, int64(p.BlockOffset)); err != nil {
		h.t.Fatal(err)
	}
	return &scribev1.PushedBlock{Pointer: encoded, Data: stored, Categories: categories}
}

func (h *harness) push(blocks ...*scribev1.PushedBlock) *scribev1.PushResponse {
	h.t.Helper()
	res, err := h.server.Push(h.t.Context(), &scribev1.PushRequest{Blocks: blocks})
	if err != nil {
		h.t.Fatal(err)
	}
	return res
}

// outcome checks that the only pushes counted since the last call have an outcome.
func (h *harness) outcome(want string, n float64) {
	h.t.Helper()
	if got, all := h.metric("pushed_blocks_total", want), h.metric("pushed_blocks_total"); got != n {
		h.t.Fatalf("%v blocks are %s, want %v of %v", got, want, n, all)
	}
}

// What was pushed is served without a read of the store, in the form that was asked for: whole blocks, parts of shared ones, and the
// stored form of shared ones for regions that read those.
func TestPushedBlocksAreServed(t *testing.T) {
	h := newHarness(t)
	whole := newPayload(t, "a", 500)
	small := []payload{newPayload(t, "b", 3), newPayload(t, "a", 4)}
	enc, _ := h.put(pointer.CodecZstd, []payload{whole}, small)
	h.push(h.pushed(enc[0], "a"), h.pushed(enc[1], "a", "b"))
	h.outcome(pushKept, 2)
	for i, p := range h.fetch(raw, "a", enc[0], enc[2]) {
		good(t, p, []payload{whole, small[1]}[i])
	}
	good(t, h.fetch(raw, "b", enc[1])[0], small[0])
	if n := h.store.reads.Load(); n != 0 {
		t.Errorf("%d reads of the store", n)
	}
	if n := h.metric("pushed_reads_total"); n != 2 {
		t.Errorf("%v pushed blocks were read", n)
	}
	h.push(h.pushed(enc[0], "a"))
	h.outcome(pushPresent, 1)

	// A region's read proxies read blocks.
	block := scribev1.PayloadEncoding_PAYLOAD_ENCODING_BLOCK
	h.fetch(block, "a", enc[2])
	if n := h.store.reads.Load(); n != 1 {
		t.Fatalf("%d reads of the store", n)
	}
	again, _ := h.put(pointer.CodecZstd, small)
	h.push(h.pushed(again[0], "a"))
	h.fetch(block, "a", again[1])
	good(t, h.fetch(raw, "a", again[1])[0], small[1])
	if n := h.store.reads.Load(); n != 1 {
		t.Errorf("%d reads of the store after a push to readers of blocks and payloads", n)
	}
}

// A push that is damaged, lies or is not for this server leaves no trace.
func TestBadPushes(t *testing.T) {
	h := newHarness(t)
	want, other := newPayload(t, "a", 50), newPayload(t, "a", 60)
	enc, pointers := h.put(pointer.CodecZstd, []payload{want}, []payload{other})

	damaged := h.pushed(enc[0], "a")
	damaged.Data[len(damaged.Data)/2] ^= 1
	h.push(damaged)
	lie := h.pushed(enc[0], "a")
	lie.Data = h.pushed(enc[1], "a").Data
	h.push(lie)
	h.outcome(pushDamaged, 2)
	if n := h.metric("damaged_blocks_total", tierPush); n != 2 {
		t.Errorf("%v damaged blocks counted", n)
	}
	// Bytes that match their pointer, but another one than the reader's.
	forged := pointers[0]
	forged.BlockCRC, forged.BlockLen, forged.BlockRawLen, forged.Length = pointers[1].BlockCRC, pointers[1].BlockLen, pointers[1].BlockRawLen, pointers[1].BlockRawLen
	h.push(&scribev1.PushedBlock{Pointer: pointer.Append(nil, &forged), Data: lie.GetData(), Categories: []string{"a"}})
	// Bytes that match their checksum, and are no block.
	junk := pointers[0]
	junk.Codec, junk.BlockLen, junk.BlockRawLen, junk.Length, junk.BlockCRC = pointer.CodecNone, 4, 4, 4, 0x00000000
	h.push(&scribev1.PushedBlock{Pointer: pointer.Append(nil, &junk), Data: []byte("junk"), Categories: []string{"a"}})

	foreign := pointers[0]
	foreign.Region = "far"
	invalid := []*scribev1.PushedBlock{
		{Pointer: enc[0][:len(enc[0])-1], Data: lie.GetData(), Categories: []string{"a"}},
		{Pointer: enc[0], Data: h.pushed(enc[0]).GetData()},
		{Pointer: enc[0], Data: h.pushed(enc[0]).GetData(), Categories: slices.Repeat([]string{"a"}, maxPushedCategories+1)},
		{Pointer: pointer.Append(nil, &foreign), Data: h.pushed(enc[0]).GetData(), Categories: []string{"a"}},
	}
	h.push(invalid...)
	h.outcome(pushInvalid, float64(len(invalid)))
	h.push(h.pushed(enc[0], "nobody's"))
	h.outcome(pushPolicy, 1)
	_, err := h.server.Push(t.Context(), &scribev1.PushRequest{Blocks: make([]*scribev1.PushedBlock, maxPushedBlocks+1)})
	if rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID {
		t.Errorf("too many blocks: %v", err)
	}
	good(t, h.fetch(raw, "a", enc[0])[0], want)
	if n := h.store.reads.Load(); n != 1 {
		t.Errorf("%d reads of the store", n)
	}

	h.created = time.Now().Add(-time.Hour).UnixMicro()
	old, _ := h.put(pointer.CodecZstd, []payload{want})
	h.push(h.pushed(old[0], "a"))
	h.outcome(pushOld, 1)
}

// Pushed blocks are kept where the category's policy says, and its blocks are wanted only if that is anywhere.
func TestPushPolicies(t *testing.T) {
	for _, c := range []struct {
		name      string
		rule      Rule
		memcached bool
		outcome   string
		reads     int64   // of the store, here and by another server
		stored    float64 // in memcached
	}{
		{"both", Rule{}, true, pushKept, 0, 1},
		{"memory", Rule{Shared: KeepNever}, true, pushKept, 1, 0},
		{"memory, reused", Rule{Shared: KeepReused}, true, pushKept, 1, 0},
		{"memcached", Rule{Memory: KeepNever}, true, pushKept, 0, 1},
		{"memcached alone, which is not there", Rule{Memory: KeepNever}, false, pushPolicy, 2, 0},
		{"none", Rule{Memory: KeepNever, Shared: KeepNever}, true, pushPolicy, 2, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			change := []func(*Config){func(cfg *Config) { cfg.Rules = []Rule{c.rule} }}
			if c.rule.Pattern = "a"; c.memcached {
				change = append(change, withMemcached(memcachedtest.Start(t)))
			}
			h := newHarness(t, change...)
			want := newPayload(t, "a", 100)
			enc, _ := h.put(pointer.CodecZstd, []payload{want})
			h.push(h.pushed(enc[0], "a"))
			h.outcome(c.outcome, 1)
			h.eventually(func() bool { return h.metric("memcached_fills_total", "stored") == c.stored })
			other := newHarnessWith(t, func(d *Deps) { d.Blobs = func(string) (blob.Store, error) { return h.store, nil } }, change...)
			for _, x := range []*harness{h, other} {
				good(t, x.fetch(raw, "a", enc[0])[0], want)
			}
			if n := h.store.reads.Load(); n != c.reads {
				t.Errorf("%d reads of the store", n)
			}
			if wanted := h.push().GetWanted(); (len(wanted) == 1) != (c.outcome == pushKept) {
				t.Errorf("wants %v", wanted)
			}
		})
	}
}

// A category is wanted for a while after a read at its tail. Who knows no other read proxy makes all of its blocks wanted.
func TestWantedCategories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		ask := func(version uint64) *scribev1.PushResponse {
			t.Helper()
			res, err := h.server.Push(t.Context(), &scribev1.PushRequest{Version: version})
			if err != nil || res.GetVersion() == 0 {
				t.Fatalf("version %d, %v", res.GetVersion(), err)
			}
			return res
		}
		read := func(category string, sole bool, age time.Duration) {
			t.Helper()
			h.created = time.Now().Add(-age).UnixMicro()
			enc, _ := h.put(pointer.CodecZstd, []payload{newPayload(t, category, 10)})
			if _, err := h.server.Fetch(t.Context(), &scribev1.FetchRequest{Pointers: enc, Category: category, Sole: sole}); err != nil {
				t.Fatal(err)
			}
		}
		nothing := ask(0)
		read("a", false, tailReadAge+time.Second) // a replay
		if res := ask(nothing.GetVersion()); res.GetVersion() != nothing.GetVersion() || len(res.GetWanted()) != 0 {
			t.Fatalf("%v is wanted, %v before", res, nothing)
		}
		read("a", false, 0)
		first := ask(nothing.GetVersion())
		if fmt.Sprint(first.GetWanted()) != fmt.Sprint([]*scribev1.WantedCategory{{Name: "a"}}) {
			t.Fatalf("%v is wanted", first)
		}
		if res := ask(first.GetVersion()); res.GetVersion() != first.GetVersion() || len(res.GetWanted()) != 0 {
			t.Errorf("%v although nothing changed", res)
		}
		read("b", true, 0)
		if res := ask(first.GetVersion()); fmt.Sprint(res.GetWanted()) != fmt.Sprint([]*scribev1.WantedCategory{{Name: "a"}, {Name: "b", All: true}}) {
			t.Errorf("%v is wanted", res)
		}
		<-time.After(h.cfg.PushInterest)
		read("b", false, 0)
		<-time.After(pruneTailsEvery)
		if res := ask(first.GetVersion()); fmt.Sprint(res.GetWanted()) != fmt.Sprint([]*scribev1.WantedCategory{{Name: "b"}}) {
			t.Errorf("%v is wanted later", res)
		}
		for i := range maxTailCategories + 10 {
			h.server.tails.noteRead(fmt.Sprint("c", i), false, false, time.Now())
		}
		if n := len(ask(0).GetWanted()); n != maxTailCategories {
			t.Errorf("%d categories are wanted", n)
		}
	})
}

// A fetch that is a moment too early waits for the push, but not for long, and only if blocks of the category are pushed.
func TestFetchWaitsForPush(t *testing.T) {
	for _, shared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t)
			block := []payload{newPayload(t, "a", 100)}
			if shared {
				block = append(block, newPayload(t, "b", 100))
			}
			fetch := func(enc []byte) (done chan *scribev1.Payload) {
				done = make(chan *scribev1.Payload, 1)
				go func() { done <- h.fetch(raw, "a", enc)[0] }()
				synctest.Wait()
				return done
			}
			// Nothing is pushed: nothing is waited for.
			begin := time.Now()
			enc, _ := h.put(pointer.CodecZstd, block)
			good(t, <-fetch(enc[0]), block[0])
			h.push(h.pushed(enc[0], "a"))

			enc, _ = h.put(pointer.CodecZstd, block)
			early, second := fetch(enc[0]), fetch(enc[0])
			if len(early) != 0 || time.Since(begin) != 0 {
				t.Fatal("the fetch did not wait")
			}
			h.push(h.pushed(enc[0], "a"))
			good(t, <-early, block[0])
			good(t, <-second, block[0])
			good(t, <-fetch(enc[0]), block[0])
			if n := h.store.reads.Load(); n != 1 || h.metric("push_waits_total", "arrived") != 1 {
				t.Errorf("%d reads of the store", n)
			}
			if time.Since(begin) != 0 {
				t.Errorf("%v passed", time.Since(begin))
			}

			enc, _ = h.put(pointer.CodecZstd, block)
			good(t, <-fetch(enc[0]), block[0])
			if d := time.Since(begin); d != h.cfg.PushWait || h.store.reads.Load() != 2 || h.metric("push_waits_total", "missed") != 1 {
				t.Errorf("waited for %v, %d reads of the store", d, h.store.reads.Load())
			}
			// An old block will not be pushed any more.
			h.created = time.Now().Add(-2 * freshAge).UnixMicro()
			enc, _ = h.put(pointer.CodecZstd, block)
			good(t, <-fetch(enc[0]), block[0])
			if d := time.Since(begin); d != h.cfg.PushWait {
				t.Errorf("waited for %v", d)
			}
		})
	}
}

// Pushed blocks displace neither blocks that are read, nor each other once they are read.
func TestPushesDisplaceNothingRead(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.CacheBytes = 100_000 })
	var enc [][]byte
	block := make([]payload, 1)
	for range 100 {
		block[0] = newPayload(t, "a", 50)
		e, _ := h.put(pointer.CodecNone, block)
		enc = append(enc, e...)
	}
	stats := func() cacheStats { return h.server.cache.readStats() }
	good(t, h.fetch(raw, "a", enc[0])[0], block[0])
	one := stats().bytes
	n := int(stats().limit * 3 / 4 / one) // the proven part
	for i := range n {
		h.fetch(raw, "a", enc[i])
	}
	reads, proven := h.store.reads.Load(), stats().proven
	for _, e := range enc[n:] {
		h.push(h.pushed(e, "a"))
	}
	if stats().proven != proven || stats().bytes > stats().limit || h.metric("pushed_unread_total") == 0 {
		t.Errorf("%+v, %d proven before", stats(), proven)
	}
	for i := range n {
		h.fetch(raw, "a", enc[i])
	}
	good(t, h.fetch(raw, "a", enc[99])[0], block[0]) // the last one pushed
	if got := h.store.reads.Load(); got != reads {
		t.Errorf("%d blocks were displaced", got-reads)
	}
}

// A server that shuts down, or has no memory, refuses pushes.
func TestPushRefused(t *testing.T) {
	h := newHarness(t)
	if _, err := h.server.AdmitPush(h.cfg.RequestBytes); rpc.ReasonOf(err) != scribev1.Reason_REASON_TOO_LARGE {
		t.Errorf("a request of all memory: %v", err)
	}
	small := []payload{newPayload(t, "b", 3), newPayload(t, "a", 4)}
	enc, _ := h.put(pointer.CodecZstd, small)
	if !h.server.fetchBytes.TryAcquire(h.cfg.FetchBytes) {
		t.Fatal("memory is in use")
	}
	h.push(h.pushed(enc[0], "a"))
	h.outcome(pushBusy, 1)
	h.server.fetchBytes.Release(h.cfg.FetchBytes)
	if err := h.server.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := h.server.Push(t.Context(), &scribev1.PushRequest{}); rpc.ReasonOf(err) != scribev1.Reason_REASON_SHUTTING_DOWN {
		t.Errorf("after Close: %v", err)
	}
}
