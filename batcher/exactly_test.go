package batcher

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/transport/retry"
	scribev1 "scribe/proto/scribe/v1"
)

// TestExactlyOnce has producers of an exactly_once category that send to either of two batchers over one engine, under random faults:
// answers get lost, logs go from one batcher to the other, requests are repeated elsewhere while they are still on their way, and
// producers begin anew with what they had saved. Each of their messages is stored once and in order, and instances with an old epoch
// store nothing.
func TestExactlyOnce(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { exactlyOnce(t, seed) })
		})
	}
}

const onceMessages = 60 // of each producer in each shard

func exactlyOnce(t *testing.T, seed uint64) {
	cfg := testConfig()
	cfg.PayloadBytes, cfg.BlockBytes, cfg.FlushBytes = 256, 256, 1<<10
	cfg.PutAttempts, cfg.CommitPatience, cfg.StallAfter = 2, 5*time.Millisecond, 20*time.Millisecond
	a := newCell(t, cfg, nil, nil)
	b := newCell(t, cfg, a.log.Log, a.store.Store)
	b.slot.Store(8)
	cells := []*cell{a, b}
	calms := []func(){a.trouble(newChaos(seed), once0), b.trouble(newChaos(seed+100), record.MakeShardID(4, 1, 0))}
	var producers sync.WaitGroup
	for id := range uint64(4) {
		for shard := range uint32(2) {
			rng := rand.New(rand.NewPCG(seed, 100+2*id+uint64(shard)))
			producers.Go(func() { produceOnce(cells, rng, id+1, shard) })
		}
	}
	producers.Wait()
	for i, c := range cells {
		calms[i]()
		if err := c.Close(t.Context()); err != nil && !strings.Contains(err.Error(), "could not be made durable") {
			t.Error(err)
		}
		c.verify()
	}
	for shard := range uint16(2) {
		next := map[string]int{}
		for _, f := range a.frames(record.MakeShardID(4, shard, 0)) {
			for _, m := range messages(t, f) {
				producer, number, _ := strings.Cut(m, " ")
				if n, err := strconv.Atoi(number); err != nil || n != next[producer] {
					t.Errorf("shard %d: producer %s: message %s follows %d", shard, producer, number, next[producer]-1)
				}
				next[producer]++
			}
		}
		for producer, n := range next {
			if n != onceMessages {
				t.Errorf("shard %d: producer %s has %d messages", shard, producer, n)
			}
		}
		if len(next) != 4 {
			t.Errorf("shard %d: producers %v", shard, next)
		}
	}
}

// messages are those of a frame.
func messages(t testing.TB, f []byte) (out []string) {
	t.Helper()
	var d record.Decoder
	if _, err := d.Reset(f); err != nil {
		t.Fatal(err)
	}
	for r := (record.Record{}); d.Next(&r); {
		out = append(out, string(r.Payload))
	}
	return out
}

// produceOnce sends a producer's messages until all are acknowledged, in frames that it cuts once and repeats as they are.
func produceOnce(cells []*cell, rng *rand.Rand, producer uint64, shard uint32) {
	t := cells[0].t
	var frames [][]byte
	for first := 0; first < onceMessages; {
		n := min(1+rng.IntN(5), onceMessages-first)
		texts := make([]string, n)
		for i := range texts {
			texts[i] = fmt.Sprintf("%d %d", producer, first+i)
		}
		frames = append(frames, makeFrame(t, "once", shard, &sequence{producer: producer, epoch: 3, first: uint64(first)}, texts...))
		first += n
	}
	zombie := makeFrame(t, "once", shard, &sequence{producer: producer, epoch: 2, first: 1000}, "zombie")
	for acked := 0; acked < len(frames); {
		// What was saved may be behind: the frames before are repeated.
		from := max(0, acked-rng.IntN(2)*rng.IntN(3))
		window := frames[from:min(len(frames), from+1+rng.IntN(6))]
		c := cells[rng.IntN(len(cells))]
		if acked > 0 && rng.IntN(8) == 0 {
			mustBeStale(c, zombie)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(200))*time.Millisecond)
		resp, err := c.Submit(ctx, &scribev1.SubmitRequest{Frames: slices.Concat(window...)})
		cancel()
		for i, r := range resp.GetResults() {
			switch reason := r.GetError().GetReason(); {
			case r.GetError() == nil:
				acked = max(acked, from+i+1)
				continue
			case !retry.ClassOf(r.GetError().GetReason()).Retryable():
				t.Errorf("producer %d, frame %d: %v", producer, from+i, r.GetError())
			case reason == scribev1.Reason_REASON_OUT_OF_SEQUENCE:
				if next := r.GetError().GetConflicts()[0].GetNextSequence(); next > uint64(onceMessages) {
					t.Errorf("producer %d: the log expects %d", producer, next)
				}
			}
			break
		}
		if err != nil && !retry.Retryable(err) {
			t.Errorf("producer %d: %v", producer, err)
		}
		<-time.After(time.Duration(rng.IntN(5)) * time.Millisecond)
	}
}

// mustBeStale sends a frame of an instance that was replaced.
func mustBeStale(c *cell, frame []byte) {
	resp, err := c.Submit(context.Background(), &scribev1.SubmitRequest{Frames: frame})
	if err != nil {
		return
	}
	switch e := resp.GetResults()[0].GetError(); {
	case e == nil:
		c.t.Error("a frame of an old epoch is acknowledged")
	case e.GetReason() != scribev1.Reason_REASON_STALE_PRODUCER && !retry.ClassOf(e.GetReason()).Retryable():
		c.t.Errorf("a frame of an old epoch is refused with %v", e)
	}
}

// A producer that begins anew with a higher epoch goes on wherever it likes, and the instance before it is refused from then on, by
// batchers that knew it and by others.
func TestZombieProducer(t *testing.T) {
	a := newCell(t, testConfig(), nil, nil)
	b := newCell(t, testConfig(), a.log.Log, a.store.Store)
	a.commit(a.run(1, 1, 1, 3))
	b.commit(b.run(1, 2, 4, 6)) // continues
	for _, c := range []*cell{a, b, a} {
		results := c.submit(committed, c.run(1, 1, 4, 4), makeFrame(t, "once", 0, nil, "x"))
		if got := reasons(results); !slices.Equal(got, []scribev1.Reason{scribev1.Reason_REASON_STALE_PRODUCER, 0}) {
			t.Errorf("reasons %v", got)
		}
		if conflict := results[0].GetError().GetConflicts()[0]; conflict.GetEpoch() != 2 || conflict.GetNextSequence() != 7 {
			t.Errorf("conflict %v", conflict)
		}
	}
	a.commit(a.run(1, 2, 7, 7))
	a.mustBe(once0, "1.1.1", "1.1.2", "1.1.3", "1.2.4", "1.2.5", "1.2.6", "x", "x", "x", "1.2.7")
	a.verify()
	b.verify()
}

// What this batcher remembers of a producer is old when another one has written: a gap is one only if the engine says so, now.
func TestGapsAreNotToldFromMemory(t *testing.T) {
	a := newCell(t, testConfig(), nil, nil)
	b := newCell(t, testConfig(), a.log.Log, a.store.Store)
	a.commit(a.run(1, 0, 1, 1))
	b.commit(b.run(1, 0, 2, 2)) // takes the log; a does not know
	a.commit(a.run(1, 0, 3, 3))
	// Nor when the engine does not answer: then the append decides.
	a.log.sequences.plan(step{err: errInjected})
	results := a.submit(committed, a.run(1, 0, 5, 5))
	if got := reasons(results); got[0] != scribev1.Reason_REASON_OUT_OF_SEQUENCE {
		t.Errorf("reasons %v", got)
	}
	if n := counterValue(t, a.metrics.appendFailures.WithLabelValues("sequence")); n != 1 {
		t.Errorf("%v appends were refused", n)
	}
	// When it does, nothing is uploaded.
	blobs := len(a.blobs())
	if got := reasons(a.submit(committed, a.run(1, 0, 5, 5))); got[0] != scribev1.Reason_REASON_OUT_OF_SEQUENCE {
		t.Errorf("reasons %v", got)
	}
	if n := len(a.blobs()); n != blobs {
		t.Errorf("%d blobs were put", n-blobs)
	}
	a.mustBe(once0, "1.0.1", "1.0.2", "1.0.3")
	a.verify()
	b.verify()
}

// What a refused frame is told to send next is durable: not what stands before it in a flush that then fails.
func TestNextSequenceIsDurable(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprintf("fails=%v", fails), func(t *testing.T) {
			cfg := testConfig()
			cfg.PutAttempts = 1
			c := newCell(t, cfg, nil, nil)
			c.commit(c.run(1, 0, 1, 1))
			if fails {
				c.store.puts.plan(step{err: errInjected})
			}
			results := c.submit(committed, c.run(1, 0, 2, 4), c.run(1, 0, 9, 9))
			want := uint64(5)
			if fails {
				want = 2
			}
			conflicts := results[1].GetError().GetConflicts()
			if len(conflicts) != 1 || conflicts[0].GetNextSequence() != want {
				t.Errorf("conflicts %v, want next %d", conflicts, want)
			}
			c.verify()
		})
	}
}

// Frames of the other encoding, and atomic ones, go through as any: they are counted by their headers, and stay whole.
func TestArrowAndAtomicFrames(t *testing.T) {
	cfg := testConfig()
	cfg.PayloadBytes, cfg.BlockBytes = 2000, 1000
	c := newCell(t, cfg, nil, nil)
	noise := make([]byte, 10_000)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(noise)
	env := record.Envelope{Category: "alpha", BaseTime: 5}
	arrow, err := record.AppendArrowFrame(nil, env, 777, noise[:1500])
	if err != nil {
		t.Fatal(err)
	}
	env.Atomic = true
	var builder record.Builder
	if err := builder.Reset(nil, env); err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		if err := builder.AppendPayload(noise[1000*i : 1000*(i+1)]); err != nil {
			t.Fatal(err)
		}
	}
	atomic, err := builder.Finish()
	if err != nil {
		t.Fatal(err)
	}
	sent := [][]byte{text(t, "alpha", 0, "a"), arrow, text(t, "alpha", 0, "b"), atomic, arrow, text(t, "alpha", 0, "c")}
	c.commit(sent...)
	if got := c.frames(alpha0); !slices.EqualFunc(got, sent, slices.Equal) { // which checks what pointers count
		t.Errorf("%d frames are stored, or others", len(got))
	}
	c.mu.Lock()
	if n := c.mu.counts.committed.Messages; n != 3+2*777+8 {
		t.Errorf("%d messages are counted", n)
	}
	c.mu.Unlock()
	c.verify()
}

// A frame that repeats another of its flush is acknowledged only if that one is stored, also when that one is in another payload, which came to nothing.
func TestRepeatOfWhatCameToNothing(t *testing.T) {
	fault := &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_FENCED}
	once := frame{size: 10, messages: 2, producer: 7, epoch: 1, first: 4, sequenced: true}
	again := once
	again.outcome = frameRepeated
	for name, c := range map[string]struct {
		fault     *scribev1.ErrorInfo // of the payload of the first one
		verdict   frameOutcome        // of the first one
		duplicate bool
	}{
		"stored now":    {nil, frameKept, true},
		"stored before": {fault, frameStored, true},
		"given up":      {fault, frameKept, false},
		"dropped":       {nil, frameDropped, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := newLogBatch(logTarget{exactlyOnce: true}, nil)
			first := once
			if first.outcome = c.verdict; c.verdict == frameDropped {
				first.fault = fault
			}
			writer := &waitingRequest{results: make([]scribev1.FrameResult, 1)}
			a, b := newPayload(g, time.Time{}), newPayload(g, time.Time{})
			a.spans = []frameSpan{{frames: []frame{first}}}
			b.spans = []frameSpan{{frames: []frame{again}, sub: writer}}
			a.fault = c.fault
			a.rebuildRanges()
			b.rebuildRanges()
			g.payloads = []*payload{a, b}
			setResults(&flushPart{batches: []*logBatch{g}})
			r := &writer.results[0]
			if r.GetDuplicate() != c.duplicate || (r.GetError().GetReason() == fault.GetReason()) == c.duplicate {
				t.Errorf("the one that repeats it is told: %v", r)
			}
		})
	}
}
