package lifecycle

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestCallsAreDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		for range 2 {
			if !c.Enter() {
				t.Fatal("an open component refuses calls")
			}
		}
		if c.Running() != 2 || c.Closed() {
			t.Errorf("%d calls run, closed: %t", c.Running(), c.Closed())
		}
		if !c.Drain() || c.Drain() {
			t.Error("Drain must report that it began once")
		}
		<-c.Draining()
		if c.Enter() || c.Running() != 2 {
			t.Error("a call entered during the drain, or a refused one is counted")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait while calls run: %v", err)
		}
		c.Leave()
		c.Leave()
		if err := c.Wait(ctx); err != nil {
			t.Errorf("Wait with an ended context when no call runs: %v", err)
		}
		if c.Enter() {
			t.Error("a call entered after the drain")
		}
	})
}

// TestCloseRunsOnce: repeated calls wait for the first, and return its error.
func TestCloseRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		fault, runs := errors.New("disk"), 0
		shutdown := func() error {
			runs++
			<-time.After(time.Minute)
			return fault
		}
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if err := c.Close(t.Context(), shutdown); !errors.Is(err, fault) {
					t.Errorf("Close: %v", err)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Close(ctx, shutdown); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close whose context ends first: %v", err)
		}
		all.Wait()
		if runs != 1 {
			t.Errorf("shutdown ran %d times", runs)
		}
	})
}

// TestNoCallOutlivesTheDrain: when Wait returns, every admitted call has left.
func TestNoCallOutlivesTheDrain(t *testing.T) {
	for range 200 {
		var (
			c       Calls
			running sync.WaitGroup
			mu      sync.Mutex
			busy    int
		)
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			busy += n
		}
		for range 4 {
			running.Go(func() {
				for c.Enter() {
					count(1)
					count(-1)
					c.Leave()
				}
			})
		}
		c.Drain()
		if err := c.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		if busy != 0 {
			t.Fatalf("%d calls run after Wait", busy)
		}
		mu.Unlock()
		running.Wait()
	}
}
