package schedule

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestReadyOrder: streams are sent in the order in which they became ready; those that are returned come first, in their order.
func TestReadyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := New[int](time.Unix(0, 0))
		var want []*int
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				s := new(int)
				q.PushReady(s)
				want = append(want, s)
			case 1:
				var wanted *int
				if len(want) > 0 {
					wanted, want = want[0], want[1:]
				}
				if got := q.PopReady(); got != wanted {
					t.Fatal("another stream is next")
				}
			case 2:
				n := rapid.IntRange(0, len(want)).Draw(t, "returned")
				var popped []*int
				for range n {
					popped = append(popped, q.PopReady())
				}
				if !slices.Equal(popped, want[:n]) {
					t.Fatal("other streams are next")
				}
				for range rapid.IntRange(0, 2).Draw(t, "pushed") {
					s := new(int)
					q.PushReady(s)
					want = append(want, s)
				}
				q.ReturnReady(popped)
			}
			if ready := q.StartRequest(time.Time{}, 1<<30); ready != (len(want) > 0) {
				t.Fatalf("a request starts: %t, with %d ready streams", ready, len(want))
			}
		}
	})
}

func TestTimes(t *testing.T) {
	q := New[int](time.Unix(0, 0))
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	a, b := new(int), new(int)
	q.AddLingering(b, at(11))
	q.AddLingering(a, at(10))
	q.Park(a, at(20))
	q.Park(b, at(5))
	if got := q.NextWake(1); !got.Equal(at(5)) {
		t.Errorf("the loop looks again at %v", got)
	}
	if q.Unpark(at(4)) != nil || q.Unpark(at(5)) != b || q.Unpark(at(6)) != nil {
		t.Error("parked streams return at another time")
	}
	if due := q.TakeDue(at(10), nil); len(due) != 1 || due[0] != a {
		t.Errorf("due are %v", due)
	}
	if due := q.TakeDue(at(12), nil); len(due) != 1 || due[0] != b {
		t.Errorf("due later are %v", due)
	}
	pause := func(failures int) time.Duration { return time.Duration(failures) * time.Second }
	q.PushReady(a)
	q.ShutGate(at(30), at(29), pause)
	q.ShutGate(at(30), at(29), pause) // failed with the other
	if q.StartRequest(at(30), 1) || !q.NextWake(1).Equal(at(20)) || !q.StartRequest(at(31), 1) || q.StartRequest(at(31), 1) {
		t.Error("requests start before the pause is over, or beyond the limit")
	}
	q.EndRequest()
	q.Stop()
	if q.StartRequest(at(40), 1) || !q.IsStopped() {
		t.Error("a request starts after the end")
	}
}
