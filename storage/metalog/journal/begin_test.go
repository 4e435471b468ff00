package journal_test

import (
	"context"
	"errors"
	"testing"

	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/memjournal"
)

// TestBeginAt: a journal begins at a position, once: a repetition finds its own head, another beginning is refused, and entries follow.
func TestBeginAt(t *testing.T) {
	s := memjournal.New()
	j := s.Open()
	at, times := journal.Position{Seq: 8, Chain: journal.Position{}.Chain}, journal.Times{Time: 70, Bound: 90}
	at.Chain[0] = 5
	if _, err := journal.BeginAt(t.Context(), j, journal.Position{}, times); !errors.Is(err, journal.ErrInvalid) {
		t.Errorf("before the first entry: %v", err)
	}
	// The answer is lost after the head was stored.
	j.SetFault(func(_ context.Context, c memjournal.Call) error {
		if c.Done {
			return errCut
		}
		return nil
	})
	if _, err := journal.BeginAt(t.Context(), j, at, times); !errors.Is(err, errCut) {
		t.Fatalf("without an answer: %v", err)
	}
	j.SetFault(nil)
	head, err := journal.BeginAt(t.Context(), j, at, times)
	if err != nil || head.Position() != at || head.Snapshot != 8 || head.Time != 70 || head.Bound != 90 || !head.Free() || head.Revision != 1 {
		t.Fatalf("repeated: %+v, %v", head, err)
	}
	other := at
	other.Chain[0]++
	if _, err := journal.BeginAt(t.Context(), j, other, times); !errors.Is(err, journal.ErrLost) {
		t.Errorf("another beginning: %v", err)
	}
	if err := j.Read(t.Context(), 1, 1, nil); !errors.Is(err, journal.ErrTrimmed) {
		t.Errorf("an entry of before the beginning: %v", err)
	}
	l := leadAt(t, j)
	mustAppend(t, l, "next")
	if _, err := journal.BeginAt(t.Context(), j, at, times); !errors.Is(err, journal.ErrLost) {
		t.Errorf("beginning again a journal that goes on: %v", err)
	}
	r, err := journal.NewReader(s.Open())
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	_, err = r.ReadEntries(t.Context(), at, l.Head(), func(e journal.Entry, _ journal.Position) error {
		read++
		if e.Seq != 9 || e.Before != at.Chain || string(e.Payload) != "next" {
			t.Errorf("read %+v", e)
		}
		return nil
	})
	if err != nil || read != 1 {
		t.Errorf("read %d entries, %v", read, err)
	}
}

// TestDetachTo: a journal that has ended takes no change any more, from nobody, and its last head has the exact bound.
func TestDetachTo(t *testing.T) {
	s := memjournal.New()
	j := s.Open()
	l := leadAt(t, j)
	mustAppend(t, l, "last")
	for _, name := range []string{"", string(make([]byte, 64))} {
		if err := l.DetachTo(t.Context(), journal.Times{}, name); !errors.Is(err, journal.ErrInvalid) {
			t.Errorf("detach to a name of %d bytes: %v", len(name), err)
		}
	}
	if err := l.DetachTo(t.Context(), journal.Times{Bound: 1234}, "n2"); err != nil {
		t.Fatal(err)
	}
	head, err := s.Open().Head(t.Context())
	if err != nil || head.Detached != "n2" || head.Bound != 1234 || !head.Free() || head.Leader != "" || head.Seq != 1 {
		t.Fatalf("the last head is %+v, %v", head, err)
	}
	if err := l.Append(t.Context(), []byte("later"), journal.Times{}); !errors.Is(err, journal.ErrDeposed) {
		t.Errorf("an append afterwards: %v", err)
	}
	var detached *journal.DetachedError
	if _, err := journal.Lead(t.Context(), j, head, head.Position(), journal.Options{}); !errors.As(err, &detached) || detached.To != "n2" {
		t.Errorf("a takeover afterwards: %v", err)
	}
	next := head
	next.Term, next.Detached = head.Term+1, ""
	if _, err := j.Swap(t.Context(), head, next, nil); !errors.Is(err, journal.ErrInvalid) {
		t.Errorf("a swap afterwards: %v", err)
	}
	if err := journal.CheckDetached(journal.Head{Seq: 1}); err != nil {
		t.Errorf("a head that goes on: %v", err)
	}
}
