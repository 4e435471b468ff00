package batcher

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Large frames of a writer that waits are not copied. One that gives up has its memory back at once, and what it sent is stored as
// it was.
func TestCallerTakesItsMemoryBack(t *testing.T) {
	cfg := testConfig()
	cfg.GroupCommit, cfg.MaxInFlight = 1, 1
	bubble(t, cfg, func(t *testing.T, c *cell) {
		hold := make(chan struct{})
		c.store.puts.plan(step{hold: hold})
		first := make(chan []*scribev1.FrameResult, 1)
		go func() { first <- c.submit(committed, makeFrame(t, "alpha", 0, nil, "first")) }()
		synctest.Wait()

		// It gathers behind the first flush: nothing of it is compressed.
		frame := makeFrame(t, "alpha", 0, nil, strings.Repeat("large", 100_000))
		body := bytes.Clone(frame)
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := c.Submit(ctx, &scribev1.SubmitRequest{Frames: body, Ack: committed})
			failed <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-failed; rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_OUTCOME || !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		clear(body)
		close(hold)
		<-first
		c.commit(makeFrame(t, "alpha", 0, nil, "last"))
		got := c.frames(record.MakeShardID(1, 0, 7))
		if len(got) != 3 || !bytes.Equal(got[1], frame) {
			t.Errorf("%d frames are stored, or another one", len(got))
		}
		c.verify()
	})
}

// A caller in this process that has checked the frames is believed; any other is not.
func TestCheckedFramesAreNotSummedAgain(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	frame := makeFrame(t, "alpha", 0, nil, "one")
	frame[len(frame)-1] ^= 1
	for _, ctx := range []context.Context{t.Context(), rpc.WithChecked(t.Context())} {
		resp, err := c.Submit(ctx, &scribev1.SubmitRequest{Frames: frame, Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED})
		if err != nil {
			t.Fatal(err)
		}
		if refused := resp.GetResults()[0].GetError() != nil; refused == rpc.Checked(ctx) {
			t.Errorf("checked before: %t, refused: %t", rpc.Checked(ctx), refused)
		}
	}
}
