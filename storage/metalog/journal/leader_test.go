package journal_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/memjournal"
)

var errCut = errors.New("planted: no answer")

// leadAt takes over a journal that the replica has applied.
func leadAt(t *testing.T, j journal.Journal) *journal.Leader {
	t.Helper()
	head, err := j.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l, err := journal.Lead(t.Context(), j, head, head.Position(), journal.Options{URL: "http://a"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustAppend(t *testing.T, l *journal.Leader, payload string) {
	t.Helper()
	if err := l.Append(t.Context(), []byte(payload), journal.Times{}); err != nil {
		t.Fatal(err)
	}
}

// payloads returns what a journal has.
func payloads(t *testing.T, s *memjournal.Store) []string {
	t.Helper()
	j := s.Open()
	head, err := j.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := journal.NewReader(j)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	if _, err := r.ReadEntries(t.Context(), journal.Position{}, head, func(e journal.Entry, _ journal.Position) error {
		out = append(out, string(e.Payload))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func wantPayloads(t *testing.T, s *memjournal.Store, want ...string) {
	t.Helper()
	if got := payloads(t, s); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the journal has %q, want %q", got, want)
	}
}

// failSwaps fails swaps before they take effect, or after.
func failSwaps(after bool) memjournal.Fault {
	return func(_ context.Context, c memjournal.Call) error {
		if c.Kind == memjournal.CallSwap && c.Done == after {
			return errCut
		}
		return nil
	}
}

// TestDoubt: an append without an answer stays in doubt until it is resolved, and the leader goes on after that.
func TestDoubt(t *testing.T) {
	for _, after := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := memjournal.New()
			j := store.Open()
			l := leadAt(t, j)
			mustAppend(t, l, "one")
			j.SetFault(failSwaps(after))
			if err := l.Append(t.Context(), []byte("two"), journal.Times{}); !errors.Is(err, journal.ErrUnknown) {
				t.Fatalf("an append without answer: %v", err)
			}
			if err := l.Beat(t.Context(), journal.Times{}); !errors.Is(err, journal.ErrUnknown) {
				t.Fatalf("a beat while the append is in doubt: %v", err)
			}
			j.SetFault(nil)
			if applied, err := l.Resolve(t.Context()); err != nil || !applied {
				t.Fatalf("resolved: %v, %v", applied, err)
			}
			mustAppend(t, l, "three")
			wantPayloads(t, store, "one", "two", "three")
		})
	}
}

// TestForgottenSwap: a swap that nobody ever answers is repeated soon, and appended once.
func TestForgottenSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memjournal.New()
		j := store.Open()
		l := leadAt(t, j)
		var swaps atomic.Int64
		j.SetFault(func(ctx context.Context, c memjournal.Call) error {
			if c.Kind == memjournal.CallSwap && !c.Done && swaps.Add(1) == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		began := time.Now()
		mustAppend(t, l, "one")
		if took := time.Since(began); took > 150*time.Millisecond || swaps.Load() != 2 {
			t.Errorf("it took %v and %d swaps", took, swaps.Load())
		}
		wantPayloads(t, store, "one")
	})
}

// TestFullAfterDoubt: a journal that refuses the repetition of a swap tells nothing of the first try, so that is fenced off.
func TestFullAfterDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memjournal.New()
		j := store.Open()
		l := leadAt(t, j)
		var late memjournal.Call
		j.SetFault(func(_ context.Context, c memjournal.Call) error {
			if c.Kind != memjournal.CallSwap || c.Done || late.Entry != nil {
				return nil
			}
			late = c
			store.SetCapacity(1)
			return errCut
		})
		if err := l.Append(t.Context(), []byte("refused"), journal.Times{}); !errors.Is(err, journal.ErrFull) {
			t.Fatalf("append: %v", err)
		}
		store.SetCapacity(0)
		if _, err := store.Open().Swap(t.Context(), late.Known, late.Next, late.Entry); !errors.Is(err, journal.ErrLost) {
			t.Fatalf("the first try comes late: %v", err)
		}
		mustAppend(t, l, "next")
		wantPayloads(t, store, "next")
	})
}

// TestDeposed: a leader that was deposed changes nothing any more. One whose entry was stored before is told so.
func TestDeposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memjournal.New()
		j := store.Open()
		old := leadAt(t, j)
		tries := 0
		j.SetFault(func(_ context.Context, c memjournal.Call) error {
			if c.Kind != memjournal.CallSwap || !c.Done {
				return nil
			}
			if tries++; tries == 1 {
				mustAppend(t, leadAt(t, store.Open()), "of the next leader")
			}
			return errCut
		})
		err := old.Append(t.Context(), []byte("stored before"), journal.Times{})
		j.SetFault(nil)
		if errors.Is(err, journal.ErrUnknown) {
			var applied bool
			if applied, err = old.Resolve(t.Context()); !applied {
				t.Errorf("not applied: %v", err)
			}
		}
		if err != nil {
			t.Errorf("an entry that was stored: %v", err)
		}
		for _, err := range []error{
			old.Append(t.Context(), []byte("late"), journal.Times{}), old.Beat(t.Context(), journal.Times{}),
			old.RecordSnapshot(t.Context(), 1), old.HandOver(t.Context(), journal.Times{}),
		} {
			if !errors.Is(err, journal.ErrDeposed) || errors.Is(err, journal.ErrUnknown) {
				t.Errorf("after being deposed: %v", err)
			}
		}
		wantPayloads(t, store, "stored before", "of the next leader")
	})
}

// TestHandOver: the head is free, and has the exact bound.
func TestHandOver(t *testing.T) {
	store := memjournal.New()
	j := store.Open()
	l := leadAt(t, j)
	if err := l.Append(t.Context(), []byte("a"), journal.Times{Time: 100, Bound: 5000}); err != nil {
		t.Fatal(err)
	}
	if err := l.HandOver(t.Context(), journal.Times{Time: 150, Bound: 160}); err != nil {
		t.Fatal(err)
	}
	head, err := j.Head(t.Context())
	if err != nil || !head.Free() || head.Leader != "" || head.Time != 150 || head.Bound != 160 {
		t.Errorf("%+v, %v", head, err)
	}
	if err := l.Beat(t.Context(), journal.Times{}); !errors.Is(err, journal.ErrDeposed) {
		t.Errorf("a beat after that: %v", err)
	}
	// Who has not applied everything can't take over.
	if _, err := journal.Lead(t.Context(), j, head, journal.Position{}, journal.Options{}); !errors.Is(err, journal.ErrInvalid) {
		t.Errorf("a takeover without the entries: %v", err)
	}
	stale := head
	stale.Revision--
	var lost *journal.LostError
	if _, err := journal.Lead(t.Context(), j, stale, head.Position(), journal.Options{}); !errors.As(err, &lost) || lost.Head != head {
		t.Errorf("a takeover of an older head: %v", err)
	}
}

// TestReader finds what was exchanged, damaged or set back.
func TestReader(t *testing.T) {
	store := memjournal.New()
	l := leadAt(t, store.Open())
	for i := range 5 {
		mustAppend(t, l, fmt.Sprint(i))
	}
	other := memjournal.New()
	o := leadAt(t, other.Open())
	mustAppend(t, o, "of another journal")
	j := store.Open()
	r, err := journal.NewReader(j)
	if err != nil {
		t.Fatal(err)
	}
	accept := func(journal.Entry, journal.Position) error { return nil }
	foreign := o.Head().Position()
	ahead := journal.Position{Seq: 9}
	for what, after := range map[string]journal.Position{"another journal": foreign, "a journal that was longer": ahead, "another end": {Seq: 5}} {
		if _, err := r.ReadEntries(t.Context(), after, l.Head(), accept); !errors.Is(err, journal.ErrWentBack) {
			t.Errorf("%s: %v", what, err)
		}
	}
	store.Damage(3, func(b []byte) []byte { b[10] ^= 1; return b })
	at, err := r.ReadEntries(t.Context(), journal.Position{}, l.Head(), accept)
	if !errors.Is(err, journal.ErrCorrupt) || at.Seq != 2 {
		t.Errorf("a damaged entry: read up to %d, %v", at.Seq, err)
	}
}
