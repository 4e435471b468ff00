package discovery

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// frameOf returns a frame of a producer with the sequence.
func frameOf(t *testing.T, producer, first uint64) []byte {
	t.Helper()
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: "logs", Producer: producer, Epoch: 1, FirstSequence: first}); err != nil {
		t.Fatal(err)
	}
	if err := b.AppendPayload([]byte("message")); err != nil {
		t.Fatal(err)
	}
	frame, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

func writeFrame(ctx context.Context, c *Cell, frame []byte, follows ...uint32) error {
	_, err := c.Write().Write(ctx, &scribev1.WriteRequest{Frames: frame, Follows: follows})
	return err
}

// TestFollowingRequestsGoTogether: what follows others in flight goes to their write proxy.
func TestFollowingRequestsGoTogether(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		one, two := w.start("one", writeProxy, control), w.start("two", writeProxy)
		one.orders, two.orders = true, true
		c := w.cell("one")
		for range 2 { // both say that they keep the order
			if err := writeFrame(t.Context(), c, frameOf(t, 1, 0)); err != nil {
				t.Fatal(err)
			}
		}
		hold := make(chan struct{})
		one.write = func(context.Context) error { <-hold; return nil }
		two.write = one.write
		one.took("write")
		two.took("write")
		done := make(chan error)
		go func() { done <- writeFrame(t.Context(), c, frameOf(t, 7, 0)) }()
		synctest.Wait()
		home := one
		if two.took("write") == 1 {
			home = two
		}
		home.took("write")
		for i := range uint64(5) {
			go func() { done <- writeFrame(t.Context(), c, frameOf(t, 7, 1+i), 0) }()
			synctest.Wait()
		}
		if n := home.took("write"); n != 5 {
			t.Errorf("%d of 5 requests went where what they follow is", n)
		}
		close(hold)
		for range 6 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if n := c.writers.Len(); n != 0 {
			t.Errorf("%d streams are in flight after the last answer", n)
		}
	})
}

// TestOrderMustBePromised: a request that follows others is not sent where nobody has said that it keeps the order.
func TestOrderMustBePromised(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		one := w.start("one", writeProxy, control)
		c := w.cell("one")
		for _, promised := range []bool{false, true, false} {
			one.orders = promised
			if err := writeFrame(t.Context(), c, frameOf(t, 1, 0)); err != nil {
				t.Fatal(err)
			}
			one.took("write")
			err := writeFrame(t.Context(), c, frameOf(t, 1, 1), 0)
			if (err == nil) != promised || err != nil && rpc.ReasonOf(err) != scribev1.Reason_REASON_OUT_OF_ORDER || (one.took("write") == 1) != promised {
				t.Errorf("promised: %t, the request ended with %v", promised, err)
			}
		}
	})
}

func writeAt(ctx context.Context, c *Cell, level scribev1.AckLevel) error {
	_, err := c.Write().Write(ctx, &scribev1.WriteRequest{Frames: []byte("frames"), Ack: level})
	return err
}

func publishAt(ctx context.Context, c *Cell, level scribev1.AckLevel) error {
	_, err := c.Write().Publish(ctx, &scribev1.PublishRequest{Category: "logs", Ack: level})
	return err
}

// TestAgentKeepsItsWrites: what an agent answers for by itself waits for it while it stops and while it is away. Another host's agent would
// overtake what it holds.
func TestAgentKeepsItsWrites(t *testing.T) {
	t.Run("write", func(t *testing.T) { keepAtAgent(t, "write", writeAt) })
	t.Run("publish", func(t *testing.T) { keepAtAgent(t, "publish", publishAt) })
}

func keepAtAgent(t *testing.T, what string, write func(context.Context, *Cell, scribev1.AckLevel) error) {
	t.Helper()
	in(t, func(t *testing.T, w *world) {
		one, two := w.start("one", agent, writeProxy, control), w.start("two", agent, writeProxy)
		c := w.cell("one")
		levels := []scribev1.AckLevel{scribev1.AckLevel_ACK_LEVEL_NONE, scribev1.AckLevel_ACK_LEVEL_SPOOLED}
		for _, level := range levels {
			if err := write(t.Context(), c, level); err != nil {
				t.Fatal(err)
			}
		}
		one.roles, one.stops = nil, true
		one.write = func(context.Context) error { return rpc.Errorf(scribev1.Reason_REASON_SHUTTING_DOWN, "stopping") }
		<-time.After(2 * refreshEvery)
		for _, level := range levels {
			if err := write(t.Context(), c, level); rpc.ReasonOf(err) != scribev1.Reason_REASON_SHUTTING_DOWN {
				t.Errorf("%v while the agent stops: %v, want its own answer", level, err)
			}
		}
		if err := write(t.Context(), c, scribev1.AckLevel_ACK_LEVEL_COMMITTED); err != nil {
			t.Error("what waits for the commit, while the agent stops:", err)
		}
		if n := two.took(what); n != 1 {
			t.Errorf("the other host took %d writes, want the one that waits for the commit", n)
		}
		one.stop()
		<-time.After(2 * refreshEvery)
		for _, level := range levels {
			if err := write(t.Context(), c, level); rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND {
				t.Errorf("%v while the agent is away: %v", level, err)
			}
		}
		if n := two.took(what); n != 0 {
			t.Errorf("the other host took %d writes that the agent answers for", n)
		}
		one = w.start("one", agent, writeProxy, control)
		<-time.After(2 * refreshEvery)
		for _, level := range levels {
			if err := write(t.Context(), c, level); err != nil {
				t.Errorf("%v after the agent has come back: %v", level, err)
			}
		}
		if n := one.took(what); n != len(levels) {
			t.Errorf("the agent took %d of %d writes", n, len(levels))
		}
	})
}

// TestSpooledElsewhereIsCommitted: where the given address has no agent, no other host's takes frames into its spool.
func TestSpooledElsewhereIsCommitted(t *testing.T) {
	for name, given := range map[string]struct {
		roles []scribev1.Role
		want  scribev1.AckLevel
	}{
		"another host":      {[]scribev1.Role{control}, scribev1.AckLevel_ACK_LEVEL_COMMITTED},
		"the given address": {[]scribev1.Role{control, writeProxy}, scribev1.AckLevel_ACK_LEVEL_SPOOLED},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				one, two := w.start("one", given.roles...), w.start("two", agent, writeProxy)
				for _, write := range []func(context.Context, *Cell, scribev1.AckLevel) error{writeAt, publishAt} {
					one.mu.ack, two.mu.ack = 0, 0
					if err := write(t.Context(), w.cell("one"), scribev1.AckLevel_ACK_LEVEL_SPOOLED); err != nil {
						t.Fatal(err)
					}
					if got := max(one.mu.ack, two.mu.ack); got != given.want {
						t.Errorf("the write arrived as %v, want %v", got, given.want)
					}
				}
			})
		})
	}
}
