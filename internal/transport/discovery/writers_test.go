package discovery

import (
	"context"
	"testing"
	"testing/synctest"

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
