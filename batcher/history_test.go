package batcher

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// chaos makes every call of a store and an engine fail or take long with some probability, fail before or after it is carried out, and
// takes logs away now and then.
type chaos struct {
	mu         sync.Mutex
	rng        *rand.Rand
	rate, slow float64
}

func newChaos(seed uint64) *chaos {
	rng := rand.New(rand.NewPCG(seed, 2))
	return &chaos{rng: rng, rate: 0.25 * rng.Float64(), slow: 0.1 * rng.Float64()}
}

func (c *chaos) step() (s step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rng.Float64() < c.slow {
		s.delay = time.Duration(c.rng.IntN(300)) * time.Millisecond
	}
	if c.rng.Float64() < c.rate {
		s.err, s.after = errInjected, c.rng.IntN(2) == 0
	}
	return s
}

// shard makes calls about one shard fail or hang, for a while and with some probability.
func (c *chaos) shard(bad record.ShardID) func(context.Context, []record.ShardID) error {
	return func(ctx context.Context, shards []record.ShardID) error {
		if !slices.Contains(shards, bad) {
			return nil
		}
		c.mu.Lock()
		fate, delay := c.rng.IntN(4), time.Duration(c.rng.IntN(1000))*time.Millisecond
		c.mu.Unlock()
		switch fate {
		case 0:
			return errInjected
		case 1:
			_ = until(ctx, after(delay))
			return ctx.Err()
		}
		return nil
	}
}

// after is a channel that is closed after d.
func after(d time.Duration) <-chan struct{} {
	done := make(chan struct{})
	time.AfterFunc(d, func() { close(done) })
	return done
}

// trouble makes what a cell works with fail at random.
func (c *cell) trouble(ch *chaos, bad record.ShardID) (calm func()) {
	all := []*faults{&c.store.puts, &c.log.opens, &c.log.appends, &c.log.reads, &c.log.sequences}
	for _, f := range all {
		f.random = ch.step
	}
	c.log.onOpen.set(ch.shard(bad))
	c.log.onAppend.set(ch.shard(bad))
	return func() {
		for _, f := range all {
			f.always(step{})
		}
		c.log.onOpen.set(nil)
		c.log.onAppend.set(nil)
	}
}

// TestHistories has writers with random frames under random faults, and checks what the batcher promises: what was acknowledged is
// readable, where it was said to be, byte for byte; a writer's frames are in the order in which they were acknowledged, and those of a
// request and shard a prefix; what definitely failed is not there; sequenced frames are there once.
func TestHistories(t *testing.T) {
	seeds := uint64(24)
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { history(t, seed) })
		})
	}
}

// outcome is what a writer knows of a frame.
type outcome struct {
	frame  []byte
	shard  record.ShardID // of a frame that was acknowledged with a place
	lsn    record.LSN
	acked  bool
	denied bool // definitely not stored
}

func history(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	cfg := testConfig()
	cfg.PayloadBytes, cfg.BlockBytes, cfg.FlushBytes = 4<<10, 1<<10, 16<<10
	cfg.MaxInFlight, cfg.GroupCommit = 1+rng.IntN(4), 1
	cfg.GroupCommit += rng.IntN(cfg.MaxInFlight)
	cfg.PutAttempts, cfg.CommitPatience = 2, time.Duration(rng.IntN(10))*time.Millisecond
	cfg.MemoryBytes, cfg.StallAfter = 1<<20, time.Duration(1+rng.IntN(50))*time.Millisecond
	var slot atomic.Uint32
	slot.Store(7)
	c := newCellWith(t, cfg, nil, nil, func(d *Deps) { d.Slot = func() uint16 { return uint16(slot.Load()) } })
	calm := c.trouble(newChaos(seed), record.MakeShardID(uint32(1+rng.IntN(3)), uint16(rng.IntN(2)), 7))
	stop := make(chan struct{})
	var thief, writers sync.WaitGroup
	thief.Go(func() { steal(c, rand.New(rand.NewPCG(seed, 3)), stop) })
	if seed%3 == 0 {
		thief.Go(func() { reslot(&slot, rand.New(rand.NewPCG(seed, 4)), stop) })
	}
	outcomes := make([][]outcome, 5)
	for w := range outcomes {
		writers.Go(func() { outcomes[w] = write(c, uint64(w), rand.New(rand.NewPCG(seed, uint64(10+w)))) })
	}
	writers.Wait()
	close(stop)
	thief.Wait()
	calm()
	if err := c.Close(t.Context()); err != nil && !strings.Contains(err.Error(), "could not be made durable") {
		t.Error(err)
	}
	c.verify()
	checkHistory(c, outcomes)
}

// steal opens logs as somebody else.
func steal(c *cell, rng *rand.Rand, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(1+rng.IntN(20)) * time.Millisecond):
		}
		shard := record.MakeShardID(uint32(1+rng.IntN(4)), uint16(rng.IntN(2)), 7)
		if shard.Category() == 4 {
			shard = record.MakeShardID(4, shard.Logical(), 0)
		}
		if _, err := c.log.Log.Open(context.Background(), "thief", []record.ShardID{shard}); err != nil {
			c.t.Error(err)
		}
	}
}

// reslot gives the batcher another writer slot now and then.
func reslot(slot *atomic.Uint32, rng *rand.Rand, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(1+rng.IntN(100)) * time.Millisecond):
		}
		slot.Store(7 + uint32(rng.IntN(2)))
	}
}

// write sends requests one after another, and sequenced frames again until it knows what became of them.
func write(c *cell, id uint64, rng *rand.Rand) (out []outcome) {
	next := [2]uint64{1, 1}
	for i := range 40 {
		<-time.After(time.Duration(rng.IntN(3)) * time.Millisecond)
		category := []string{"alpha", "beta", "brief", "once"}[rng.IntN(4)]
		shard := rng.IntN(2)
		var frames [][]byte
		for j := range 1 + rng.IntN(6) {
			message := fmt.Sprintf("%d.%d.%d ", id, i, j) + strings.Repeat("x", rng.IntN(2000))
			var seq *sequence
			if category == "once" {
				seq = &sequence{producer: id + 1, first: next[shard]}
				next[shard]++
			}
			frames = append(frames, makeFrame(c.t, category, uint32(shard), seq, message))
		}
		results := c.attempt(frames)
		for category == "once" && !slices.ContainsFunc(results, func(o outcome) bool { return o.acked }) ||
			category == "once" && slices.ContainsFunc(results, func(o outcome) bool { return !o.acked }) {
			<-time.After(time.Millisecond) // some refusals are immediate
			results = c.attempt(frames)
		}
		out = append(out, results...)
	}
	return out
}

// attempt sends frames and says what became of them.
func (c *cell) attempt(frames [][]byte) []outcome {
	out := make([]outcome, len(frames))
	for i, f := range frames {
		out[i].frame = f
	}
	resp, err := c.Submit(context.Background(), &scribev1.SubmitRequest{Frames: slices.Concat(frames...)})
	if err != nil {
		if reason := rpc.ReasonOf(err); reason != scribev1.Reason_REASON_OVERLOADED {
			c.t.Errorf("Submit: %v", err)
		}
		for i := range out {
			out[i].denied = true
		}
		return out
	}
	for i, r := range resp.GetResults() {
		o := &out[i]
		switch reason := r.GetError().GetReason(); {
		case r.GetError() == nil:
			o.acked, o.shard, o.lsn = true, record.ShardID(r.GetShard()), record.LSN(r.GetLsn())
		case reason == scribev1.Reason_REASON_UNKNOWN_OUTCOME:
		case reason == scribev1.Reason_REASON_UNSPECIFIED, reason == scribev1.Reason_REASON_INVALID:
			c.t.Errorf("frame %d: %v", i, r.GetError())
		default:
			o.denied = true
		}
		// All of them are of one shard, and no fault here is a frame's own but for gaps, which its own producer's earlier ones make.
		if i > 0 && o.acked && !out[i-1].acked {
			c.t.Errorf("frame %d is stored behind one that is not", i)
		}
	}
	return out
}

func checkHistory(c *cell, outcomes [][]outcome) {
	c.t.Helper()
	stored := map[string]int{} // copies of each frame
	for category := range uint32(4) {
		for shard := range uint16(2) {
			for _, slot := range []uint16{0, 7, 8} {
				for _, f := range c.frames(record.MakeShardID(category+1, shard, slot)) {
					stored[string(f)]++
				}
			}
		}
	}
	for w, list := range outcomes {
		last := map[record.ShardID]record.LSN{}
		for i, o := range list {
			n := stored[string(o.frame)]
			once := bytes.Contains(o.frame[:record.HeaderLen+4], []byte("once"))
			switch {
			case o.acked && n != 1:
				c.t.Errorf("writer %d, frame %d: acknowledged and stored %d times", w, i, n)
			case o.denied && !once && n != 0:
				c.t.Errorf("writer %d, frame %d: failed and stored %d times", w, i, n)
			case n > 1:
				c.t.Errorf("writer %d, frame %d: stored %d times", w, i, n)
			}
			if o.lsn == 0 {
				continue
			}
			if o.lsn < last[o.shard] {
				c.t.Errorf("writer %d, frame %d: at %v/%d after %d", w, i, o.shard, o.lsn, last[o.shard])
			}
			last[o.shard] = o.lsn
			c.mustHold(&scribev1.FrameResult{Shard: uint64(o.shard), Lsn: uint64(o.lsn)}, o.frame)
		}
	}
}
