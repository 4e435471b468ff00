package batcher

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// numbered is a frame of alpha/0 with one message, which is the n-th of a producer.
func (c *cell) numbered(n uint64) []byte {
	return makeFrame(c.t, "alpha", 0, &sequence{producer: 9, epoch: 1, first: n}, string(rune('a'+n)))
}

// following submits frames of which the first follows another, and returns the channel of the results.
func (c *cell) following(frames ...[]byte) <-chan []*scribev1.FrameResult {
	out := make(chan []*scribev1.FrameResult, 1)
	go func() {
		resp, err := c.Submit(c.t.Context(), &scribev1.SubmitRequest{Frames: slices.Concat(frames...), Ack: committed, Follows: []uint32{0}})
		if err != nil {
			resp = &scribev1.SubmitResponse{Results: []*scribev1.FrameResult{{Error: rpc.Info(err)}}}
		}
		out <- resp.GetResults()
	}()
	return out
}

func mustFail(t *testing.T, results []*scribev1.FrameResult, want ...scribev1.Reason) {
	t.Helper()
	var got []scribev1.Reason
	for _, r := range results {
		got = append(got, r.GetError().GetReason())
	}
	if !slices.Equal(got, want) {
		t.Errorf("the frames failed with %v, want %v", got, want)
	}
}

// TestFollowingFramesWait: frames that come before those that they follow are held, and stored after them.
func TestFollowingFramesWait(t *testing.T) {
	bubble(t, testConfig(), func(t *testing.T, c *cell) {
		third := c.following(c.numbered(3))
		second := c.following(c.numbered(1), c.numbered(2))
		synctest.Wait()
		if len(second)+len(third) > 0 || c.store.puts.count() > 0 {
			t.Fatal("stored before what they follow")
		}
		begun := time.Now()
		mustFail(t, c.submit(committed, c.numbered(0)), 0)
		mustFail(t, <-second, 0, 0)
		mustFail(t, <-third, 0)
		if waited := time.Since(begun); waited != 0 {
			t.Errorf("took %v", waited)
		}
		c.mustBe(alpha0, "a", "b", "c", "d")
		// What follows a frame that was stored long ago is stored at once.
		mustFail(t, <-c.following(c.numbered(4)), 0)
		c.mustBe(alpha0, "a", "b", "c", "d", "e")
	})
}

// TestPredecessorMissing: frames whose predecessor does not come are refused after a while, with all that comes after them in the
// shard. Others of the request are stored.
func TestPredecessorMissing(t *testing.T) {
	bubble(t, testConfig(), func(t *testing.T, c *cell) {
		begun := time.Now()
		other := makeFrame(t, "beta", 0, nil, "other")
		mustFail(t, <-c.following(c.numbered(1), other, makeFrame(t, "alpha", 0, nil, "later")),
			scribev1.Reason_REASON_OUT_OF_ORDER, 0, scribev1.Reason_REASON_OUT_OF_ORDER)
		if waited := time.Since(begun); waited != c.cfg.FollowWait {
			t.Errorf("took %v", waited)
		}
		c.mustBe(alpha0)
	})
}

// TestPredecessorRefused: frames that follow one which was refused are refused at once; when it is sent again they can follow.
func TestPredecessorRefused(t *testing.T) {
	bubble(t, testConfig(), func(t *testing.T, c *cell) {
		held := c.following(c.numbered(1))
		synctest.Wait()
		c.slot.Store(0) // no frame is taken
		begun := time.Now()
		mustFail(t, c.submit(committed, c.numbered(0)), scribev1.Reason_REASON_NO_BACKEND)
		mustFail(t, <-held, scribev1.Reason_REASON_NO_BACKEND)
		c.slot.Store(7)
		mustFail(t, <-c.following(c.numbered(2)), scribev1.Reason_REASON_OUT_OF_ORDER)
		if waited := time.Since(begun); waited != 0 {
			t.Errorf("took %v", waited)
		}
		// It comes first, and is not stored yet when the others come.
		put := make(chan struct{})
		c.store.puts.plan(step{hold: put})
		first := c.async(c.numbered(0))
		synctest.Wait()
		held = c.following(c.numbered(2))
		between := c.following(c.numbered(1))
		synctest.Wait()
		close(put)
		mustFail(t, <-first, 0)
		mustFail(t, <-between, 0)
		mustFail(t, <-held, 0)
		c.mustBe(alpha0, "a", "b", "c")
	})
}

// TestFailedPredecessor: if a frame turns out not to be stored, those that follow it in later flushes are not either.
func TestFailedPredecessor(t *testing.T) {
	cfg := testConfig()
	cfg.GroupCommit, cfg.PutAttempts = 3, 1
	bubble(t, cfg, func(t *testing.T, c *cell) {
		hold := make(chan struct{})
		c.store.puts.plan(step{hold: hold, err: errInjected})
		first := c.async(c.numbered(0))
		synctest.Wait()
		second := c.following(c.numbered(1)) // in a flush of its own, whose blob is put
		synctest.Wait()
		third := c.following(c.numbered(2))
		synctest.Wait()
		if n := c.store.puts.count(); n != 3 {
			t.Fatalf("%d blobs are being put", n)
		}
		close(hold)
		mustFail(t, <-first, scribev1.Reason_REASON_NO_BACKEND)
		mustFail(t, <-second, scribev1.Reason_REASON_NO_BACKEND)
		mustFail(t, <-third, scribev1.Reason_REASON_NO_BACKEND)
		c.mustBe(alpha0)
		second = c.following(c.numbered(1), c.numbered(2))
		mustFail(t, c.submit(committed, c.numbered(0)), 0)
		mustFail(t, <-second, 0, 0)
		c.mustBe(alpha0, "a", "b", "c")
	})
}

// TestPutAfterFailedPredecessor: a blob that is put ahead of its turn has no frame whose predecessor has failed. If the metadata is lost before its
// turn, a recovery takes the blob for committed.
func TestPutAfterFailedPredecessor(t *testing.T) {
	cfg := testConfig()
	cfg.GroupCommit, cfg.PutAttempts = 2, 1
	bubble(t, cfg, func(t *testing.T, c *cell) {
		turn, put := make(chan struct{}), make(chan struct{})
		c.log.appends.plan(step{hold: turn})
		before := c.async(makeFrame(t, "alpha", 0, nil, "before")) // nothing gets its turn
		synctest.Wait()
		c.store.puts.plan(step{hold: put, err: errInjected})
		first := c.async(c.numbered(0))
		synctest.Wait()
		second := c.following(c.numbered(1)) // accepted, and in no flush yet
		synctest.Wait()
		if n := c.store.puts.count(); n != 2 {
			t.Fatalf("%d blobs were put", n)
		}
		close(put)
		mustFail(t, <-first, scribev1.Reason_REASON_NO_BACKEND)
		mustFail(t, <-second, scribev1.Reason_REASON_NO_BACKEND)
		if n := c.store.puts.count(); n != 2 {
			t.Errorf("a blob was put for a frame whose predecessor has failed: %d", n)
		}
		close(turn)
		mustFail(t, <-before, 0)
		c.mustBe(alpha0, "before")
	})
}

// TestUnknownPredecessor: what follows a frame with an unknown outcome is not stored.
func TestUnknownPredecessor(t *testing.T) {
	cfg := testConfig()
	cfg.GroupCommit, cfg.CommitPatience = 2, time.Second
	bubble(t, cfg, func(t *testing.T, c *cell) {
		c.log.appends.always(step{err: errInjected})
		first := c.async(c.numbered(0))
		synctest.Wait()
		second := c.following(c.numbered(1))
		mustFail(t, <-first, scribev1.Reason_REASON_UNKNOWN_OUTCOME)
		mustFail(t, <-second, scribev1.Reason_REASON_NO_BACKEND)
		c.mustBe(alpha0)
	})
}

// TestSeveralPredecessorsMissing: the limit of the wait is that of the request, however many of its frames wait.
func TestSeveralPredecessorsMissing(t *testing.T) {
	bubble(t, testConfig(), func(t *testing.T, c *cell) {
		begun := time.Now()
		other := makeFrame(t, "beta", 0, &sequence{producer: 9, epoch: 1, first: 5}, "other")
		resp, err := c.Submit(t.Context(), &scribev1.SubmitRequest{Frames: slices.Concat(c.numbered(1), other), Ack: committed, Follows: []uint32{0, 1}})
		if err != nil {
			t.Fatal(err)
		}
		mustFail(t, resp.GetResults(), scribev1.Reason_REASON_OUT_OF_ORDER, scribev1.Reason_REASON_OUT_OF_ORDER)
		if waited := time.Since(begun); waited != c.cfg.FollowWait {
			t.Errorf("took %v", waited)
		}
		if _, err := c.Submit(t.Context(), &scribev1.SubmitRequest{Frames: c.numbered(1), Follows: []uint32{1, 0}}); rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID {
			t.Errorf("a list that does not ascend: %v", err)
		}
	})
}

// TestFollowingFrameRefused: when the frame that follows is refused for good, the next one of the producer is no less behind what is missing.
func TestFollowingFrameRefused(t *testing.T) {
	bubble(t, testConfig(), func(t *testing.T, c *cell) {
		damaged := c.numbered(1)
		damaged[len(damaged)-1] ^= 1
		got := <-c.following(damaged, c.numbered(2))
		if got[0].GetError().GetReason() != scribev1.Reason_REASON_CORRUPT || got[1].GetError() == nil {
			t.Errorf("the frames failed with %v", got)
		}
		c.mustBe(alpha0)
	})
}

// TestSlotChangesBetween: logs do not wait for each other, so what follows a frame in the log of a former writer slot is not taken.
func TestSlotChangesBetween(t *testing.T) {
	cfg := testConfig()
	cfg.GroupCommit, cfg.PutAttempts = 3, 1
	bubble(t, cfg, func(t *testing.T, c *cell) {
		hold := make(chan struct{})
		c.store.puts.plan(step{hold: hold, err: errInjected})
		first := c.async(c.numbered(0))
		synctest.Wait()
		c.slot.Store(8)
		mustFail(t, <-c.following(c.numbered(1)), scribev1.Reason_REASON_OUT_OF_ORDER)
		close(hold)
		<-first
	})
}

// TestSeveralChains: what an agent forwards of a producer follows what is in flight of its backlog, or of live traffic. Neither keeps the
// other from following, also when a frame of one is refused.
func TestSeveralChains(t *testing.T) {
	bubble(t, testConfig(), func(t *testing.T, c *cell) {
		begun := time.Now()
		mustFail(t, c.submit(committed, c.numbered(10)), 0)
		live := c.following(c.numbered(12))
		mustFail(t, c.submit(committed, c.numbered(0)), 0)
		mustFail(t, <-c.following(c.numbered(1)), 0)
		mustFail(t, <-c.following(c.numbered(11)), 0)
		mustFail(t, <-live, 0)
		mustFail(t, <-c.following(c.numbered(2)), 0)
		damaged := c.numbered(3)
		damaged[len(damaged)-1] ^= 1
		live = c.following(c.numbered(14))
		synctest.Wait()
		mustFail(t, <-c.following(damaged), scribev1.Reason_REASON_CORRUPT)
		mustFail(t, <-c.following(c.numbered(4)), scribev1.Reason_REASON_OUT_OF_ORDER)
		mustFail(t, <-c.following(c.numbered(13)), 0)
		mustFail(t, <-live, 0)
		older := makeFrame(t, "alpha", 0, &sequence{producer: 9, epoch: 0, first: 0}, "z")
		mustFail(t, c.submit(committed, older), 0)
		mustFail(t, <-c.following(c.numbered(15)), 0)
		if waited := time.Since(begun); waited != 0 {
			t.Errorf("took %v", waited)
		}
		c.mustBe(alpha0, "k", "a", "b", "l", "m", "c", "n", "o", "z", "p")
	})
}

// TestChainsAreBounded: of a producer with many chains, the one that was not continued for longest is forgotten.
func TestChainsAreBounded(t *testing.T) {
	bubble(t, testConfig(), func(t *testing.T, c *cell) {
		for i := range uint64(maxChains + 1) {
			mustFail(t, c.submit(committed, c.numbered(4*i)), 0)
		}
		mustFail(t, <-c.following(c.numbered(1)), scribev1.Reason_REASON_OUT_OF_ORDER)
		mustFail(t, <-c.following(c.numbered(5)), 0)
	})
}
