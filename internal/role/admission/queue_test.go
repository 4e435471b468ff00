package admission

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func enter(t testing.TB, q *Queue, cost int64) func() {
	t.Helper()
	leave, err := q.Enter(t.Context(), cost)
	if err != nil {
		t.Fatal(err)
	}
	return func() { leave(0) }
}

func TestQueueRefusesAtOnceWhenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(100, 2, time.Minute)
		first, second := enter(t, q, 1), enter(t, q, 1)
		begin := time.Now()
		if _, err := q.Enter(t.Context(), 1); !errors.Is(err, ErrFull) || time.Since(begin) != 0 {
			t.Fatalf("got %v after %v", err, time.Since(begin))
		}
		q.Resize(1) // those inside stay
		first()
		if _, err := q.Enter(t.Context(), 1); !errors.Is(err, ErrFull) {
			t.Fatalf("got %v", err)
		}
		second()
		enter(t, q, 1)()
	})
}

// Requests wait in order of arrival, so that a large one is not passed by small ones for ever.
func TestQueueOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(100, 100, time.Hour)
		leave := enter(t, q, 100)
		var (
			mu    sync.Mutex
			order []int64
			all   sync.WaitGroup
		)
		for _, cost := range []int64{1000, 1, 60, 30} {
			all.Go(func() {
				leave := enter(t, q, cost)
				mu.Lock()
				order = append(order, cost)
				mu.Unlock()
				<-time.After(time.Second)
				leave()
			})
			synctest.Wait()
		}
		if s := q.ReadState(); s.Waiting != 4 || s.Inside != 5 || s.Bytes != 100 {
			t.Fatalf("%+v", s)
		}
		begin := time.Now()
		leave()
		all.Wait()
		if len(order) != 4 || order[0] != 1000 {
			t.Fatalf("they came in as %v", order)
		}
		// The one that costs more than all bytes is served alone, the others then together.
		if took := time.Since(begin); took != 2*time.Second {
			t.Fatalf("it took %v", took)
		}
		if s := q.ReadState(); s.Waiting != 0 || s.Inside != 0 || s.Bytes != 0 {
			t.Fatalf("%+v", s)
		}
	})
}

func TestQueuePatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(100, 100, time.Second)
		leave := enter(t, q, 60)
		var all sync.WaitGroup
		all.Go(func() {
			begin := time.Now()
			if _, err := q.Enter(t.Context(), 50); !errors.Is(err, ErrLate) || time.Since(begin) != time.Second {
				t.Errorf("got %v after %v", err, time.Since(begin))
			}
		})
		synctest.Wait()
		// It fits, but waits after the one that does not, until that gives up.
		all.Go(func() {
			<-time.After(time.Second / 2)
			begin := time.Now()
			leave, err := q.Enter(t.Context(), 40)
			if err != nil || time.Since(begin) != time.Second/2 {
				t.Errorf("got %v after %v", err, time.Since(begin))
				return
			}
			leave(0)
		})
		all.Wait()
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("gone")
		all.Go(func() {
			if _, err := q.Enter(ctx, 50); !errors.Is(err, gone) {
				t.Errorf("got %v", err)
			}
		})
		synctest.Wait()
		cancel(gone)
		all.Wait()
		leave()
		if s := q.ReadState(); s.Inside != 0 || s.Bytes != 0 || s.Waiting != 0 {
			t.Fatalf("%+v", s)
		}
	})
}

// Whatever comes, goes and gives up: the bounds hold, nothing that was let in is forgotten, and nobody waits who could be served.
func TestQueueProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bytes := rapid.Int64Range(1, 100).Draw(rt, "bytes")
		length := rapid.IntRange(1, 20).Draw(rt, "length")
		arrivals := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) [4]int64 {
			return [4]int64{rapid.Int64Range(0, 150).Draw(rt, "cost"), rapid.Int64Range(0, 50).Draw(rt, "pause"), rapid.Int64Range(0, 40).Draw(rt, "service"), rapid.Int64Range(0, 4).Draw(rt, "kept")}
		}), 1, 60).Draw(rt, "arrivals")
		synctest.Test(t, func(t *testing.T) {
			q := NewQueue(bytes, length, 80*time.Millisecond)
			var (
				all sync.WaitGroup
				bad error
			)
			for _, a := range arrivals {
				<-time.After(time.Duration(a[1]) * time.Millisecond)
				all.Go(func() {
					leave, err := q.Enter(t.Context(), a[0])
					if err != nil {
						return
					}
					<-time.After(time.Duration(a[2]) * time.Millisecond)
					kept := min(a[0], bytes) * a[3] / 4
					leave(kept)
					leave(0) // says nothing
					<-time.After(time.Duration(a[2]) * time.Millisecond)
					q.FreeBytes(kept)
				})
				synctest.Wait()
				switch s := q.ReadState(); {
				case s.Bytes > bytes, s.Inside > length, s.Waiting > s.Inside:
					bad = errors.New("a bound does not hold")
				case s.Waiting > 0 && s.Waiting == s.Inside && s.Bytes == 0:
					bad = errors.New("somebody waits for nobody")
				}
			}
			all.Wait()
			if s := q.ReadState(); s.Inside != 0 || s.Bytes != 0 || s.Waiting != 0 || bad != nil {
				rt.Fatalf("%+v, %v", s, bad)
			}
		})
	})
}
