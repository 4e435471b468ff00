package gate_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"scribe/storage/blob"
	"scribe/storage/blob/internal/gate"
)

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate.Gate
		for range 2 {
			if err := g.Enter(); err != nil {
				t.Fatal(err)
			}
		}
		var closed atomic.Int32
		for range 2 {
			go func() {
				g.Close()
				closed.Add(1)
			}()
		}
		synctest.Wait()
		// A call within a call is refused and does not hang.
		if err := g.Enter(); !errors.Is(err, blob.ErrClosed) {
			t.Errorf("Enter while Close waits: %v", err)
		}
		g.Leave()
		synctest.Wait()
		if closed.Load() != 0 {
			t.Error("Close returns while a call runs")
		}
		g.Leave()
		synctest.Wait()
		if closed.Load() != 2 {
			t.Errorf("%d of 2 calls of Close have returned", closed.Load())
		}
		g.Close()
		if err := g.Enter(); !errors.Is(err, blob.ErrClosed) {
			t.Errorf("Enter after Close: %v", err)
		}
	})
}
