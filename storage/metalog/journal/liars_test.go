package journal_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/memjournal"
)

// liar is an engine that is wrong in one way.
type liar struct {
	journal.Journal
	store  *memjournal.Store
	swap   func(ctx context.Context, l *liar, known, next journal.Head, entry []byte) (journal.Head, error)
	head   func(ctx context.Context, l *liar) (journal.Head, error)
	read   func(ctx context.Context, l *liar, from, to uint64, fn func(uint64, []byte) error) error
	wait   func(ctx context.Context, l *liar, after journal.Head) (journal.Head, error)
	trim   func(ctx context.Context, l *liar, below uint64) error
	calls  int
	memory journal.Head
}

func (l *liar) Swap(ctx context.Context, known, next journal.Head, entry []byte) (journal.Head, error) {
	if l.swap == nil {
		return l.Journal.Swap(ctx, known, next, entry)
	}
	return l.swap(ctx, l, known, next, entry)
}

func (l *liar) Head(ctx context.Context) (journal.Head, error) {
	if l.head == nil {
		return l.Journal.Head(ctx)
	}
	return l.head(ctx, l)
}

func (l *liar) Read(ctx context.Context, from, to uint64, fn func(uint64, []byte) error) error {
	if l.read == nil {
		return l.Journal.Read(ctx, from, to, fn)
	}
	return l.read(ctx, l, from, to, fn)
}

func (l *liar) Wait(ctx context.Context, after journal.Head) (journal.Head, error) {
	if l.wait == nil {
		return l.Journal.Wait(ctx, after)
	}
	return l.wait(ctx, l, after)
}

func (l *liar) Trim(ctx context.Context, below uint64) error {
	if l.trim == nil {
		return l.Journal.Trim(ctx, below)
	}
	return l.trim(ctx, l, below)
}

// liars are the planted faults, by what is wrong.
func liars() map[string]liar {
	return map[string]liar{
		"a lost swap that is acknowledged": {swap: func(ctx context.Context, l *liar, known, next journal.Head, entry []byte) (journal.Head, error) {
			head, err := l.Journal.Swap(ctx, known, next, entry)
			if errors.Is(err, journal.ErrLost) {
				next.Revision = known.Revision + 1
				return next, nil
			}
			return head, err
		}},
		"put if absent instead of a swap": {swap: putIfAbsent},
		"applied, and told to be refused": {swap: func(ctx context.Context, l *liar, known, next journal.Head, entry []byte) (journal.Head, error) {
			head, err := l.Journal.Swap(ctx, known, next, entry)
			if l.calls++; err == nil && entry != nil && l.calls%7 == 0 {
				return journal.Head{}, journal.ErrFull
			}
			return head, err
		}},
		"acknowledged, and not stored": {swap: func(ctx context.Context, l *liar, known, next journal.Head, entry []byte) (journal.Head, error) {
			if l.calls++; l.calls%7 == 0 {
				next.Revision = known.Revision + 1
				return next, nil
			}
			return l.Journal.Swap(ctx, known, next, entry)
		}},
		"a full journal that stores": {swap: func(ctx context.Context, l *liar, known, next journal.Head, entry []byte) (journal.Head, error) {
			head, err := l.Journal.Swap(ctx, known, next, entry)
			if errors.Is(err, journal.ErrFull) {
				l.store.SetCapacity(0)
				_, _ = l.Journal.Swap(ctx, known, next, entry)
			}
			return head, err
		}},
		"a head that stays behind": {head: func(ctx context.Context, l *liar) (journal.Head, error) {
			head, err := l.Journal.Head(ctx)
			if l.calls++; l.calls%2 == 1 {
				l.memory = head
			}
			return l.memory, err
		}},
		"a store that went back unnoticed": {head: func(ctx context.Context, l *liar) (journal.Head, error) {
			j := l.store.Open()
			return j.Head(ctx)
		}},
		"holes are passed over": {read: func(ctx context.Context, l *liar, from, to uint64, fn func(uint64, []byte) error) error {
			for seq := from; seq <= to; seq++ {
				if err := l.Journal.Read(ctx, seq, seq, fn); err != nil && !errors.Is(err, journal.ErrCorrupt) {
					return err
				}
			}
			return nil
		}},
		"an entry is left out": {read: func(ctx context.Context, l *liar, from, to uint64, fn func(uint64, []byte) error) error {
			return l.Journal.Read(ctx, from, to, func(seq uint64, b []byte) error {
				if seq == 17 {
					return nil
				}
				return fn(seq, b)
			})
		}},
		"a read that ends early": {read: func(ctx context.Context, l *liar, from, to uint64, fn func(uint64, []byte) error) error {
			return l.Journal.Read(ctx, from, min(to, from+9), fn)
		}},
		"trimmed is told as damaged": {read: func(ctx context.Context, l *liar, from, to uint64, fn func(uint64, []byte) error) error {
			err := l.Journal.Read(ctx, from, to, fn)
			if errors.Is(err, journal.ErrTrimmed) {
				return journal.ErrCorrupt
			}
			return err
		}},
		"a wait that never ends": {wait: func(ctx context.Context, _ *liar, _ journal.Head) (journal.Head, error) {
			<-ctx.Done()
			return journal.Head{}, ctx.Err()
		}},
		"a wait that returns an old head": {wait: func(ctx context.Context, l *liar, after journal.Head) (journal.Head, error) {
			head, err := l.Journal.Wait(ctx, after)
			head.Seq = max(head.Seq, 1) - 1
			return head, err
		}},
		"a trim of one too many": {trim: func(ctx context.Context, l *liar, below uint64) error {
			err := l.Journal.Trim(ctx, below)
			if err == nil && below > 1 {
				l.store.Damage(below, func([]byte) []byte { return nil })
			}
			return err
		}},
		"a trim that does nothing": {trim: func(ctx context.Context, l *liar, _ uint64) error {
			_, err := l.Head(ctx)
			return err
		}},
		"a trim above the snapshot": {trim: func(ctx context.Context, l *liar, below uint64) error {
			err := l.Journal.Trim(ctx, below)
			if errors.Is(err, journal.ErrInvalid) {
				l.store.Damage(below-1, func([]byte) []byte { return nil })
				return nil
			}
			return err
		}},
	}
}

// putIfAbsent stores an entry when its number is free, as journals on object stores do.
func putIfAbsent(ctx context.Context, l *liar, known, next journal.Head, entry []byte) (journal.Head, error) {
	present, err := l.Journal.Head(ctx)
	if err != nil {
		return journal.Head{}, err
	}
	taken := l.Journal.Read(ctx, next.Seq, next.Seq, func(uint64, []byte) error { return nil }) == nil
	if entry != nil && !taken && present.Seq > known.Seq {
		next.Revision = present.Revision
		return next, nil // stored, and never read: the head has passed it
	}
	return l.Journal.Swap(ctx, known, next, entry)
}

// TestLiars: the suite finds each planted fault.
func TestLiars(t *testing.T) {
	for name, planted := range liars() {
		t.Run(name, func(t *testing.T) {
			var found []string
			for _, c := range suiteChecks() {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					s := openMemory(func(s *memjournal.Store, j *memjournal.Journal) journal.Journal {
						l := planted
						l.Journal, l.store = j, s
						return &l
					})
					s.Rounds = 2
					if err := c.check(ctx, s); err != nil {
						found = append(found, fmt.Sprintf("%s: %v", c.name, err))
					}
				})
				if len(found) > 0 {
					t.Log(found[0])
					return
				}
			}
			t.Error("the suite passes")
		})
	}
}
