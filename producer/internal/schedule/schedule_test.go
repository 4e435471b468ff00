package schedule

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestReadyOrder: the streams of each lane are sent in the order in which they became ready; those that are returned come first, in their
// order. Requests of the lane that goes first start first.
func TestReadyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := New[int](time.Unix(0, 0))
		var wants [lanes][]*int
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			lane := rapid.SampledFrom([]Lane{Awaited, Lingered}).Draw(t, "lane")
			want := &wants[lane]
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				s := new(int)
				q.PushReady(lane, s)
				*want = append(*want, s)
			case 1:
				var wanted *int
				if len(*want) > 0 {
					wanted, *want = (*want)[0], (*want)[1:]
				}
				if got := q.PopReady(lane); got != wanted {
					t.Fatal("another stream is next")
				}
			case 2:
				n := rapid.IntRange(0, len(*want)).Draw(t, "returned")
				var popped []*int
				for range n {
					popped = append(popped, q.PopReady(lane))
				}
				if !slices.Equal(popped, (*want)[:n]) {
					t.Fatal("other streams are next")
				}
				for range rapid.IntRange(0, 2).Draw(t, "pushed") {
					s := new(int)
					q.PushReady(lane, s)
					*want = append(*want, s)
				}
				q.ReturnReady(lane, popped)
			}
			first := slices.IndexFunc(wants[:], func(want []*int) bool { return len(want) > 0 })
			if lane, ok := q.StartRequest(time.Time{}, 1<<30); ok != (first >= 0) || ok && int(lane) != first {
				t.Fatalf("a request starts: %t, of lane %d, with the ready streams %v", ok, lane, wants)
			}
		}
	})
}

// TestLimits: each lane has as many requests in flight, so that one does not wait for the other.
func TestLimits(t *testing.T) {
	q := New[int](time.Unix(0, 0))
	starts := func(wanted ...Lane) {
		t.Helper()
		for _, want := range wanted {
			if lane, ok := q.StartRequest(time.Time{}, 2); !ok || lane != want {
				t.Errorf("a request starts: %t, of lane %d instead of %d", ok, lane, want)
			}
		}
		if lane, ok := q.StartRequest(time.Time{}, 2); ok {
			t.Errorf("a request of lane %d starts beyond the limit", lane)
		}
	}
	q.PushReady(Lingered, new(int))
	starts(Lingered, Lingered)
	q.PushReady(Awaited, new(int))
	starts(Awaited, Awaited)
	q.EndRequest(Lingered)
	starts(Lingered)
	q.EndRequest(Awaited)
	starts(Awaited)
}

// TestDepart: lingered streams leave together. A stream that is ready early waits for the departure; one that a departure leaves behind does not wait for the next.
func TestDepart(t *testing.T) {
	q := New[int](time.Unix(0, 0))
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	starts := func(now int) bool {
		_, ok := q.StartRequest(at(now), 8)
		return ok
	}
	q.Depart(at(10))
	q.PushReady(Lingered, new(int))
	if starts(9) || !q.NextWake(8).Equal(at(10)) {
		t.Error("it does not wait for the departure")
	}
	q.PushReady(Awaited, new(int))
	if !starts(9) || q.PopReady(Awaited) == nil {
		t.Error("what is awaited waits for the departure")
	}
	q.Depart(at(20))
	for range 2 {
		if !starts(10) {
			t.Error("what is left waits for the next departure")
		}
	}
	q.PopReady(Lingered)
	q.Depart(at(20))
	q.PushReady(Lingered, new(int))
	if starts(19) || !starts(20) {
		t.Error("what came later left at another time")
	}
	q.PopReady(Lingered)
	q.Depart(at(30))
	q.PushReady(Lingered, new(int))
	q.DepartNow()
	if !starts(21) {
		t.Error("it waits although it was told to leave")
	}
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
	q.PushReady(Lingered, a)
	start := func(now time.Time) bool {
		_, ok := q.StartRequest(now, 1)
		return ok
	}
	q.ShutGate(at(30), at(29), pause)
	q.ShutGate(at(30), at(29), pause) // failed with the other
	if start(at(30)) || !q.NextWake(1).Equal(at(20)) || !start(at(31)) || start(at(31)) {
		t.Error("requests start before the pause is over, or beyond the limit")
	}
	q.EndRequest(Lingered)
	q.Stop()
	if start(at(40)) || !q.IsStopped() {
		t.Error("a request starts after the end")
	}
}
