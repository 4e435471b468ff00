package inflight

import (
	"testing"
	"time"
)

// TestWindow: a window opens with an answer that says that the order is kept, grows while it is used and answers come quickly, shrinks when
// they come late, and closes when frames come out of order, for longer each time.
func TestWindow(t *testing.T) {
	const first = 1000
	w := Window{First: first}
	now := time.Unix(1e6, 0)
	answer := func(n int64, took time.Duration, ordered bool) {
		used := w.NoteSent(n)
		now = now.Add(took)
		w.NoteAnswer(now, n, used, took, ordered)
	}
	mustBe := func(space int64) {
		t.Helper()
		if w.Space() != space || w.IsClosed() != (space == 0) || w.InFlight() != 0 {
			t.Fatalf("space for %d bytes, want %d; %d are in flight", w.Space(), space, w.InFlight())
		}
	}
	answer(500, time.Millisecond, false)
	mustBe(0)
	answer(500, time.Millisecond, true)
	mustBe(first)
	answer(first/2, time.Millisecond, true) // it was not used
	mustBe(first)
	for range 7 {
		answer(first, time.Millisecond, true)
	}
	mustBe(2 * first) // a request of 1000 does not use more than that
	answer(2*first, time.Millisecond, true)
	mustBe(4 * first)
	if n := w.WorthSending(1 << 20); n != 4*first/WindowParts {
		t.Errorf("%d bytes are worth sending", n)
	}
	if n := w.WorthSending(10); n != 10 {
		t.Errorf("%d bytes are worth sending of 10", n)
	}
	answer(4*first, 5*time.Millisecond, true)
	mustBe(4*first - 4*first/8)
	w.NoteSent(first)
	w.NoteFailure(now, first, false)
	mustBe((4*first - 4*first/8) / 2)
	for penalty := firstPenalty; penalty <= 400*time.Millisecond; penalty *= 2 {
		w.NoteSent(first)
		w.NoteFailure(now, first, true)
		answer(first, penalty-time.Millisecond, true)
		mustBe(0)
		answer(first, time.Millisecond, true)
		mustBe(first)
	}
	w.NoteSent(2 * first)
	if w.Space() != 0 || w.InFlight() != 2*first {
		t.Errorf("space for %d bytes beside %d", w.Space(), w.InFlight())
	}
}
