package pebblelog

import "testing"

// TestClock walks a clock through the cases of its comment. The wall is set by hand.
func TestClock(t *testing.T) {
	var wall int64
	c := &watermarkClock{wall: func() int64 { return wall }, lease: 100}
	check := func(what string, wantW int64, wantStale bool) {
		t.Helper()
		if w, stale, _ := c.watermark(); w != wantW || stale != wantStale {
			t.Errorf("%s: the watermark is %d (stale %v), want %d (%v)", what, w, stale, wantW, wantStale)
		}
	}
	begin := func(what string, wantNow, wantBound int64) {
		t.Helper()
		if now, bound := c.beginBatch(); now != wantNow || bound != wantBound {
			t.Errorf("%s: the batch has time %d and writes the bound %d, want %d and %d", what, now, bound, wantNow, wantBound)
		}
	}
	wall = 1000
	c.startAt(900)
	check("nothing is promised above the bound", 900, true)
	begin("first batch", 1000, 1100)
	check("the bound is not durable yet", 900, true)
	c.endBatch(1100)
	check("no batch", 1000, false)
	wall = 1010
	begin("the bound is far enough", 1010, 0)
	wall = 1020
	check("a batch is being committed", 1010, false)
	c.endBatch(0)
	check("it is published", 1020, false)
	wall = 1051
	if _, _, extend := c.watermark(); !extend {
		t.Error("half of the lease is over, and the bound need not move")
	}
	wall = 500
	check("the wall went back", 1051, false)
	begin("the wall went back", 1051, 1151)
	c.endBatch(1151)
	wall = 2000
	check("the lease is over", 1151, true)
	if got := c.exactBound(); got != 2000 {
		t.Errorf("the exact bound is %d", got)
	}
	wall = 1900
	if got := c.microsAhead(); got != 100 {
		t.Errorf("the clock is ahead by %d", got)
	}

	// Batches have later times than those before them, though the wall stands still.
	begin("the wall stands still", 2000, 2100)
	c.endBatch(2100)
	begin("the wall stands still", 2001, 0)
	c.endBatch(0)
	check("the watermark goes with the batches", 2001, false)
	begin("the wall stands still", 2002, 0)
	c.endBatch(0)
	wall = 2050
	begin("the wall is ahead again", 2050, 0)
	c.endBatch(0)

	// After a crash the next clock begins where nothing was promised yet, behind the last batch.
	next := &watermarkClock{wall: func() int64 { return 0 }, lease: 100}
	next.startAt(1151)
	if now, bound := next.beginBatch(); now != 1152 || bound != 1252 {
		t.Errorf("after a crash the first time is %d, the bound %d", now, bound)
	}
	// Without any time before, times begin above 0, which stands for none.
	first := &watermarkClock{wall: func() int64 { return -5 }, lease: 100}
	first.startAt(0)
	if now, _ := first.beginBatch(); now != 1 {
		t.Errorf("the first time is %d", now)
	}
}
