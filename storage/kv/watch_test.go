package kv_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"scribe/storage/kv"
)

var errEnough = errors.New("enough")

// collectEvents returns the first n changes of a watch. It checks that they are in order, and that the changes of one transaction
// come in one batch.
func collectEvents(t *testing.T, s kv.Store, prefix string, after uint64, n int) []kv.KeyEvent {
	t.Helper()
	var events []kv.KeyEvent
	last := after
	err := s.Watch(t.Context(), prefix, after, func(b kv.EventBatch) error {
		if len(b.Events) == 0 || b.Events[0].Revision <= last || b.Revision < b.Events[len(b.Events)-1].Revision {
			t.Errorf("batch %+v after revision %d", b, last)
		}
		for _, e := range b.Events {
			if e.Revision < last {
				t.Errorf("revision %d after %d", e.Revision, last)
			}
			last = e.Revision
		}
		last = b.Revision
		events = append(events, b.Events...)
		if len(events) >= n {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Fatalf("Watch: %v", err)
	}
	return events
}

func showEvents(events []kv.KeyEvent) string {
	var b strings.Builder
	for _, e := range events {
		if e.Deleted {
			fmt.Fprintf(&b, "-%s ", e.Key)
		} else {
			fmt.Fprintf(&b, "%s=%s ", e.Key, e.Value)
		}
	}
	return strings.TrimSpace(b.String())
}

func wantEvents(t *testing.T, events []kv.KeyEvent, want string) {
	t.Helper()
	if got := showEvents(events); got != want {
		t.Fatalf("a watch tells %q, want %q", got, want)
	}
}

func testWatchReplay(t *testing.T, h storeFactory) {
	s := openStore(t, h.Open)
	r0 := mustPut(t, s, "a/0", "0")
	r1 := mustPut(t, s, "a/1", "1")
	mustPut(t, s, "b", "x")
	r2 := mustCommit(t, s, kv.Put("a/1", []byte("2")).If(r1), kv.Put("b", []byte("y")), kv.Delete("a/0"), kv.Delete("a/none"), kv.Check("a/2", 0))
	if _, err := s.Commit(t.Context(), kv.Put("a/9", nil).If(99)); !errors.Is(err, kv.ErrConflict) {
		t.Fatal(err)
	}
	mustPut(t, s, "a/1", "3")
	wantEvents(t, collectEvents(t, s, "a/", r0, 4), "a/1=1 a/1=2 -a/0 a/1=3")
	wantEvents(t, collectEvents(t, s, "a/", r1, 3), "a/1=2 -a/0 a/1=3")
	wantEvents(t, collectEvents(t, s, "", r1, 5), "b=x a/1=2 b=y -a/0 a/1=3")
	wantEvents(t, collectEvents(t, s, "", r2, 1), "a/1=3")
	for _, e := range collectEvents(t, s, "a/", r1, 3)[:2] {
		if e.Revision != r2 {
			t.Errorf("%+v, want revision %d", e, r2)
		}
	}
}

// testWatchWhole checks that a watch with a long backlog gets all changes of a transaction at once.
func testWatchWhole(t *testing.T, h storeFactory) {
	s := openStore(t, h.Open)
	begin := mustPut(t, s, "begin", "")
	const transactions, size = 30, 100
	for i := range transactions {
		ops := make([]kv.Op, size)
		for j := range ops {
			ops[j] = kv.Put(fmt.Sprintf("k%03d", j), fmt.Append(nil, i))
		}
		mustCommit(t, s, ops...)
	}
	told := 0
	err := s.Watch(t.Context(), "k", begin, func(b kv.EventBatch) error {
		of := map[uint64]int{}
		for _, e := range b.Events {
			of[e.Revision]++
		}
		for revision, n := range of {
			if n != size {
				t.Errorf("a batch has %d of %d changes of revision %d", n, size, revision)
			}
		}
		if told += len(b.Events); told == transactions*size {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Fatalf("Watch: %v", err)
	}
}

func testWatchLive(t *testing.T, h storeFactory) {
	s := openStore(t, h.Open)
	r := mustPut(t, s, "a/0", "0")
	const watchers, changes = 3, 50
	var wg sync.WaitGroup
	got := make([][]kv.KeyEvent, watchers)
	for i := range watchers {
		wg.Go(func() {
			// A read from inside a watch sees at least the events that the watch delivered.
			err := s.Watch(t.Context(), "a/", r, func(b kv.EventBatch) error {
				got[i] = append(got[i], b.Events...)
				e := b.Events[len(b.Events)-1]
				if now, err := s.Get(t.Context(), e.Key); err != nil || now.Revision < e.Revision {
					t.Errorf("the watch told revision %d, Get %d, %v", e.Revision, now.Revision, err)
				}
				if len(got[i]) == changes {
					return errEnough
				}
				return nil
			})
			if !errors.Is(err, errEnough) {
				t.Errorf("Watch: %v", err)
			}
		})
	}
	for i := range changes {
		mustPut(t, s, "b/", "other")
		mustPut(t, s, "a/1", fmt.Sprint(i))
	}
	wg.Wait()
	for i := range watchers {
		for j, e := range got[i] {
			if string(e.Value) != fmt.Sprint(j) {
				t.Fatalf("watch %d: change %d is %q", i, j, e.Value)
			}
		}
	}
}

func testWatchEnds(t *testing.T, h storeFactory) {
	s := h.Open(t)
	r := mustPut(t, s, "a", "1")
	wait := func(ctx context.Context, started chan<- struct{}) <-chan error {
		done := make(chan error, 1)
		go func() {
			done <- s.Watch(ctx, "", r-1, func(kv.EventBatch) error { close(started); return nil })
		}()
		return done
	}
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan struct{})
	done := wait(ctx, started)
	<-started
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("after cancel: %v", err)
	}
	started = make(chan struct{})
	done = wait(t.Context(), started)
	<-started
	closeStore(t, s)
	if err := <-done; !errors.Is(err, kv.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func testWatchCompacted(t *testing.T, h storeFactory) {
	s := openStore(t, h.OpenShort)
	r := mustPut(t, s, "a", "0")
	for i := range 200 {
		mustPut(t, s, "a", fmt.Sprint(i))
	}
	err := s.Watch(t.Context(), "", r, func(kv.EventBatch) error { return errEnough })
	var compacted *kv.CompactedError
	if !errors.Is(err, kv.ErrCompacted) || !errors.As(err, &compacted) || compacted.After != r {
		t.Fatalf("from a revision long ago: %v, want a *CompactedError", err)
	}
	newest := mustPut(t, s, "a", "end")
	wantEvents(t, collectEvents(t, s, "", newest-1, 1), "a=end")
	if err := s.Watch(t.Context(), "", newest+1, func(kv.EventBatch) error { return errEnough }); !errors.Is(err, kv.ErrCompacted) {
		t.Fatalf("from a revision to come: %v, want ErrCompacted", err)
	}
	if h.Reopen == nil {
		return
	}
	s2 := h.Open(t)
	r = mustPut(t, s2, "a", "1")
	mustPut(t, s2, "a", "2")
	s2 = h.Reopen(t, s2)
	defer closeStore(t, s2)
	newest = mustPut(t, s2, "a", "3")
	wantEvents(t, collectEvents(t, s2, "", newest-1, 1), "a=3")
	// An engine may have changes from before it was opened, or not; it must not skip any.
	err = s2.Watch(t.Context(), "", r, func(b kv.EventBatch) error {
		if string(b.Events[0].Value) != "2" {
			t.Errorf("a watch from before the store was opened tells %q first", showEvents(b.Events))
		}
		return errEnough
	})
	if !errors.Is(err, errEnough) && !errors.Is(err, kv.ErrCompacted) {
		t.Errorf("from before the store was opened: %v", err)
	}
}

// testWatchSlow checks that a blocked watch delays no other call, and gets an error that says that it lost changes.
func testWatchSlow(t *testing.T, h storeFactory) {
	s := openStore(t, h.OpenShort)
	r := mustPut(t, s, "a", "0")
	first, release := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		var once sync.Once
		done <- s.Watch(t.Context(), "", r-1, func(kv.EventBatch) error {
			once.Do(func() { close(first) })
			<-release
			return nil
		})
	}()
	<-first
	for i := range 300 {
		mustPut(t, s, "a", fmt.Sprint(i))
	}
	close(release)
	if err := <-done; !errors.Is(err, kv.ErrCompacted) {
		t.Fatalf("%v, want ErrCompacted", err)
	}
}

// testWatchMirror follows a prefix during writes, as the comment of package kv describes, and must reach the same state.
func testWatchMirror(t *testing.T, h storeFactory) {
	s := openStore(t, h.Open)
	const keys, writers, rounds = 40, 4, 60
	for i := range keys {
		mustPut(t, s, fmt.Sprintf("m/%02d", i), "begin")
	}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range rounds {
				key := fmt.Sprintf("m/%02d", (i*7+w*11)%keys)
				op := kv.Put(key, fmt.Appendf(nil, "%d.%d", w, i))
				if i%3 == 0 {
					op = kv.Delete(key)
				}
				if _, err := s.Commit(t.Context(), op); err != nil {
					t.Errorf("Commit: %v", err)
				}
			}
		})
	}
	state, begin := map[string]kv.Entry{}, uint64(0)
	for after := ""; ; {
		p, err := s.Range(t.Context(), kv.KeyRange{Prefix: "m/", After: after, Limit: 3})
		if err != nil {
			t.Fatal(err)
		}
		if begin == 0 {
			begin = p.Revision
		}
		for _, e := range p.Entries {
			state[e.Key] = e
			after = e.Key
		}
		if !p.More {
			break
		}
	}
	wg.Wait()
	end := mustPut(t, s, "m/end", "end")
	err := s.Watch(t.Context(), "m/", begin, func(b kv.EventBatch) error {
		for _, e := range b.Events {
			if e.Revision <= state[e.Key].Revision {
				continue
			}
			if e.Deleted {
				delete(state, e.Key)
			} else {
				state[e.Key] = kv.Entry{Key: e.Key, Value: e.Value, Revision: e.Revision}
			}
		}
		if b.Revision == end {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	p, err := s.Range(t.Context(), kv.KeyRange{Prefix: "m/"})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Entries) != len(state) {
		t.Fatalf("the copy has %d keys, the store %d", len(state), len(p.Entries))
	}
	for _, e := range p.Entries {
		if c := state[e.Key]; c.Revision != e.Revision || string(c.Value) != string(e.Value) {
			t.Errorf("the copy has %+v, the store %+v", c, e)
		}
	}
}
