package scribed

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// large makes a text that is worth a request of its own.
func large(text string) string { return text + strings.Repeat(" ", directBytes) }

// runningAt is how many requests the upstream has not answered.
func (c *cell) runningAt() int {
	synctest.Wait()
	c.up.mu.Lock()
	defer c.up.mu.Unlock()
	return c.up.running
}

// send sends frames of category a in the background, of which the first follows another if follows is set.
func (c *cell) send(follows bool, texts ...string) <-chan *scribev1.WriteResponse {
	var frames []byte
	for _, text := range texts {
		frames = append(frames, makeFrame(c.t, "a", text, true)...)
	}
	req := &scribev1.WriteRequest{Frames: frames, Ack: committed}
	if follows {
		req.Follows = []uint32{0}
	}
	out := make(chan *scribev1.WriteResponse, 1)
	go func() {
		resp, err := c.Write(c.t.Context(), req)
		if err != nil {
			c.t.Error(err)
		}
		out <- resp
	}()
	return out
}

func reasonsOf(resp *scribev1.WriteResponse) (reasons []scribev1.Reason) {
	for _, r := range resp.GetResults() {
		reasons = append(reasons, r.GetError().GetReason())
	}
	return reasons
}

// TestDrainAwaitsDirectCalls: what is in flight beside the queues is not forwarded yet.
func TestDrainAwaitsDirectCalls(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		hold := make(chan struct{})
		c.up.holds(hold)
		call := c.send(false, large("1"))
		if n := c.runningAt(); n != 1 {
			t.Errorf("%d requests are in flight", n)
		}
		if left := c.Backlogs(); len(left) != 1 || left[0].Frames != 1 {
			t.Errorf("%v are left", left)
		}
		close(hold)
		if left := c.Drain(t.Context()); left != nil {
			t.Errorf("%v are left after draining", left)
		}
		<-call
	})
}

// TestLargeCallsGoBesideOthers: callers that wait for large requests do not wait for one another, as those of small ones do, which share
// the next request.
func TestLargeCallsGoBesideOthers(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		hold := make(chan struct{})
		c.up.holds(hold)
		small := []<-chan *scribev1.WriteResponse{c.send(false, "small 1"), c.send(false, "small 2")}
		if n := c.runningAt(); n != 1 {
			t.Errorf("%d requests are in flight, of two small calls", n)
		}
		calls := []<-chan *scribev1.WriteResponse{c.send(false, large("1")), c.send(false, large("2")), c.send(true, "small, and follows")}
		if n := c.runningAt(); n != 4 {
			t.Errorf("%d requests are in flight, want 4", n)
		}
		close(hold)
		for _, done := range slices.Concat(small, calls) {
			if got := reasonsOf(<-done); got[0] != 0 {
				t.Errorf("failed with %v", got)
			}
		}
		c.mustBalance()
	})
}

// TestLargeCallWaitsForWhatNobodyWaitsFor: the agent keeps the order of what it has acknowledged.
func TestLargeCallWaitsForWhatNobodyWaitsFor(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		hold := make(chan struct{})
		c.up.holds(hold)
		c.mustWrite(none, "a/first")
		if n := c.runningAt(); n != 0 { // it lingers
			t.Errorf("%d requests are in flight", n)
		}
		done := c.send(false, large("second"))
		if n := c.runningAt(); n != 0 {
			t.Errorf("%d requests are in flight, while a message lingers that is older", n)
		}
		close(hold)
		if got := reasonsOf(<-done); got[0] != 0 {
			t.Errorf("failed with %v", got)
		}
		c.mustHold("a", "first", large("second"))
	})
}

// TestCallOutOfOrder: a call whose first frame follows one that the upstream does not have is answered at once, with nothing of the
// sequence stored behind it. What failed before it is repeated by the agent, as ever.
func TestCallOutOfOrder(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		c.up.ordered = true
		refused := false
		c.up.replies(func(_ int, call *call) reply {
			if len(call.follows) > 0 {
				return reply{each: keepOrder(call)} // the first call may share the request
			}
			if !refused {
				refused = true
				return reply{whole: rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "injected")}
			}
			return reply{}
		})
		first := c.send(false, large("first"))
		second := <-c.send(true, "second", "third")
		if got := reasonsOf(second); got[0] != scribev1.Reason_REASON_OUT_OF_ORDER || got[1] == 0 || !second.GetOrdered() {
			t.Errorf("failed with %v", got)
		}
		if got := reasonsOf(<-first); got[0] != 0 {
			t.Errorf("failed with %v", got)
		}
		c.mustHold("a", large("first"))
		c.mustBalance()
	})
}

// TestNoOrderWithoutWaiting: several calls at a level that the agent answers for itself could change their order on the way to it.
func TestNoOrderWithoutWaiting(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		c.up.ordered = true
		c.mustWrite(committed, "a/first")
		req := &scribev1.WriteRequest{Frames: makeFrame(t, "a", "second", true), Ack: none}
		if resp, err := c.Write(t.Context(), req); err != nil || resp.GetOrdered() {
			t.Errorf("%v, %v", resp, err)
		}
		req.Follows = []uint32{0}
		if _, err := c.Write(t.Context(), req); rpc.ReasonOf(err) != scribev1.Reason_REASON_OUT_OF_ORDER {
			t.Errorf("a frame that follows: %v", err)
		}
	})
}

// keepOrder answers as a batcher would that has nothing of what listed frames follow.
func keepOrder(call *call) func(string) error {
	return func(m string) error {
		for _, i := range call.follows {
			if call.messages[i] == m {
				return rpc.Errorf(scribev1.Reason_REASON_OUT_OF_ORDER, "injected")
			}
		}
		return nil
	}
}

// TestDividedCallFollows: of a call that follows and is refused as a whole, each half follows.
func TestDividedCallFollows(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		c.up.ordered = true
		c.up.replies(func(n int, call *call) reply {
			if n == 0 {
				return reply{whole: rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "injected")}
			}
			return reply{each: keepOrder(call)}
		})
		if got := reasonsOf(<-c.send(true, "first", "second")); got[0] == 0 || got[1] == 0 {
			t.Errorf("failed with %v", got)
		}
		c.mustHold("a")
	})
}

// TestRestOfCallFollows: when the first frame of a call that follows is refused for good, the next one follows what that one did.
func TestRestOfCallFollows(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		c.up.ordered = true
		c.up.replies(func(n int, call *call) reply {
			if n > 0 {
				return reply{each: keepOrder(call)}
			}
			return reply{each: func(m string) error {
				if m == "a/first" {
					return rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "injected")
				}
				return rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "injected")
			}}
		})
		if got := reasonsOf(<-c.send(true, "first", "second")); got[0] != scribev1.Reason_REASON_CORRUPT || got[1] != scribev1.Reason_REASON_OUT_OF_ORDER {
			t.Errorf("failed with %v", got)
		}
		c.mustHold("a")
	})
}

// TestJoinedCallsFollow: of calls that share a request, one that follows does so even behind another one of its producer, unless that one
// ends where it begins.
func TestJoinedCallsFollow(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		c.up.ordered = true
		failed := false
		c.up.replies(func(int, *call) reply {
			if !failed {
				failed = true
				return reply{whole: rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "injected")}
			}
			return reply{}
		})
		send := func(first uint64, follows bool) <-chan *scribev1.WriteResponse {
			env := record.Envelope{Category: "a", Sequenced: true, Producer: 1, FirstSequence: first}
			req := &scribev1.WriteRequest{Frames: buildFrame(t, env, fmt.Sprint(first)), Ack: committed}
			if follows {
				req.Follows = []uint32{0}
			}
			out := make(chan *scribev1.WriteResponse, 1)
			go func() {
				resp, err := c.Write(t.Context(), req)
				if err != nil {
					t.Error(err)
				}
				out <- resp
			}()
			synctest.Wait()
			return out
		}
		calls := []<-chan *scribev1.WriteResponse{send(0, false), send(1, true), send(3, true)} // 2 is on another way
		for _, done := range calls {
			<-done
		}
		last := c.up.history()[c.up.count()-1]
		if !slices.Equal(last.messages, []string{"a/0", "a/1", "a/3"}) || !slices.Equal(last.follows, []uint32{2}) {
			t.Errorf("the last request has %q, of which %v follow", last.messages, last.follows)
		}
	})
}
