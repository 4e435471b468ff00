package catalog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func wantReason(t *testing.T, err error, want scribev1.Reason, texts ...string) {
	t.Helper()
	if rpc.ReasonOf(err) != want {
		t.Fatalf("error %v has reason %v, want %v", err, rpc.ReasonOf(err), want)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
}

// TestResolve: a category is found before the watch tells of it, and is there from then on.
func TestResolve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		v := newView(t, p, nil)
		defer runView(t, v)()
		a := p.put("a", 1, false)
		c, err := v.Resolve(t.Context(), "a")
		if err != nil || c.GetId() != 1 {
			t.Fatalf("%v, %v", c, err)
		}
		wantID(t, v, "a", 1)
		// It stays over a reset whose set is older, and goes with one that is newer.
		p.tell(&scribev1.WatchCategoriesResponse{Reset_: true, Synced: true, Revision: a.GetRevision() - 1})
		synctest.Wait()
		wantID(t, v, "a", 1)
		p.tell(&scribev1.WatchCategoriesResponse{Reset_: true, Synced: true, Revision: a.GetRevision()})
		synctest.Wait()
		wantID(t, v, "a", 0)
	})
}

// TestResolveChanged: what was changed in a category is found before the watch tells of it, and when nothing was, the control plane
// is asked so many times in a while.
func TestResolveChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		v := newView(t, p, nil)
		p.put("a", 1, false)
		defer runView(t, v)()
		if old, ok := v.Lookup("a"); !ok || old.GetShards() != 1 {
			t.Fatalf("the view has %v", old)
		}
		changed := p.put("a", 1, false)
		p.set(func(*plane) { changed.Shards = 4 })
		if c, err := v.Resolve(t.Context(), "a"); err != nil || c.GetShards() != 4 {
			t.Fatalf("%v, %v", c, err)
		}
		for range 20 {
			if c, err := v.Resolve(t.Context(), "a"); err != nil || c.GetShards() != 4 {
				t.Fatalf("%v, %v", c, err)
			}
		}
		if c, _ := v.Lookup("a"); c.GetShards() != 4 {
			t.Errorf("the view has %v", c)
		}
		if n := p.gets(); n != 6 {
			t.Errorf("%d questions, want 6: one that brought something, and five that did not", n)
		}
		// It was deleted meanwhile.
		advance(time.Second)
		p.remove("a", false)
		_, err := v.Resolve(t.Context(), "a")
		wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_CATEGORY)
	})
}

// TestResolveNotConfirmed: a category that the watch never confirms does not outlive many resets.
func TestResolveNotConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		v := newView(t, p, nil)
		defer runView(t, v)()
		p.put("a", 1, false)
		if _, err := v.Resolve(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		advance(maxAheadAge)
		p.tell(&scribev1.WatchCategoriesResponse{Reset_: true, Synced: true})
		synctest.Wait()
		wantID(t, v, "a", 0)
	})
}

// TestResolveDeleted: an answer that the watch has overtaken does not bring a category back.
func TestResolveDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		v := newView(t, p, nil)
		defer runView(t, v)()
		p.set(func(p *plane) { p.mu.slow = time.Second })
		p.put("a", 1, false)
		answer := make(chan error, 1)
		go func() {
			_, err := v.Resolve(t.Context(), "a")
			answer <- err
		}()
		advance(500 * time.Millisecond)
		p.remove("a", true)
		if err := <-answer; err != nil {
			t.Errorf("the answer was right when it was given: %v", err)
		}
		synctest.Wait()
		wantID(t, v, "a", 0)
	})
}

// TestResolveUnknown: a name that does not exist is asked for so many times in a while, and then its last answer is repeated.
func TestResolveUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		v := newView(t, p, nil)
		defer runView(t, v)()
		for range 20 {
			_, err := v.Resolve(t.Context(), "nothing")
			wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_CATEGORY, `did you mean "x"?`)
		}
		if n := p.gets(); n != 5 {
			t.Errorf("%d questions, want 5", n)
		}
		_, err := v.Resolve(t.Context(), "no/name")
		wantReason(t, err, scribev1.Reason_REASON_INVALID)
		if n := p.gets(); n != 5 {
			t.Errorf("%d questions, want 5", n)
		}
		advance(time.Second)
		p.put("nothing", 1, false)
		if c, err := v.Resolve(t.Context(), "nothing"); err != nil || c.GetId() != 1 {
			t.Errorf("after its creation: %v, %v", c, err)
		}
	})
}

// TestResolveReadsItsWrites: an unknown answer does not hide a category that is created right after.
func TestResolveReadsItsWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		v := newView(t, p, nil)
		defer runView(t, v)()
		_, err := v.Resolve(t.Context(), "a")
		wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_CATEGORY)
		p.put("a", 1, false)
		if _, err = v.Resolve(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	})
}

// TestResolveFlood: many names cost so many questions a second, and so much memory, in all.
func TestResolveFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		v := newView(t, p, func(c *ViewConfig) { c.ResolveRate, c.UnknownNames = 10, 4 })
		defer runView(t, v)()
		limited := 0
		for i := range 100 {
			if _, err := v.Resolve(t.Context(), fmt.Sprintf("n%d", i)); rpc.ReasonOf(err) == scribev1.Reason_REASON_OVERLOADED {
				limited++
			}
		}
		if p.gets() != 10 || limited != 90 || v.mu.unknown.Len() != 4 {
			t.Errorf("%d questions, %d refused, %d names remembered", p.gets(), limited, v.mu.unknown.Len())
		}
	})
}

// TestResolveShared: callers of one name share a question, and one that gives up does not take it from the others.
func TestResolveShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		v := newView(t, p, nil)
		defer runView(t, v)()
		p.put("a", 1, false)
		p.set(func(p *plane) { p.mu.slow = time.Second })
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				ctx := t.Context()
				if i == 0 {
					ctx = short
				}
				_, err := v.Resolve(ctx, "a")
				if (i == 0) != errors.Is(err, context.DeadlineExceeded) || (i > 0 && err != nil) {
					t.Errorf("caller %d: %v", i, err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if n := p.gets(); n != 1 {
			t.Errorf("%d questions, want 1", n)
		}
	})
}

// TestResolveOutage: without the control plane nothing is said to be unknown.
func TestResolveOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		v := newView(t, p, nil)
		p.put("a", 1, false)
		defer runView(t, v)()
		p.set(func(p *plane) { p.mu.down = true })
		_, err := v.Resolve(t.Context(), "b")
		wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND)
		if rpc.Info(err).GetRetryAfter().AsDuration() <= 0 {
			t.Error("the error does not say when to try again")
		}
		wantID(t, v, "a", 1)
		_, err = v.Resolve(t.Context(), "a") // it may have changed
		wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND)
		p.set(func(p *plane) { p.mu.slow = time.Minute })
		begin := time.Now()
		_, err = v.Resolve(t.Context(), "c")
		wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND)
		if d := time.Since(begin); d != v.cfg.ResolveTimeout {
			t.Errorf("the answer took %v", d)
		}
	})
}

// TestCloseWaitsForResolve: a question that runs is waited for.
func TestCloseWaitsForResolve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		v := newView(t, p, nil)
		p.set(func(p *plane) { p.mu.slow = time.Second })
		go func() { _, _ = v.Resolve(t.Context(), "a") }()
		synctest.Wait()
		begin := time.Now()
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := v.Close(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v", err)
		}
		if err := v.Close(t.Context()); err != nil || time.Since(begin) != time.Second {
			t.Errorf("Close: %v after %v", err, time.Since(begin))
		}
	})
}
