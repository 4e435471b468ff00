// Package memkv keeps a kv.Store in memory. It is for tests and for processes without persistent state. It starts no goroutine,
// so it can live inside a testing/synctest bubble.
package memkv

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"

	"scribe/storage/kv"
	"scribe/storage/kv/internal/history"
)

// Store is a kv.Store in memory.
type Store struct {
	history *history.EventLog

	mu struct {
		sync.Mutex
		entries map[string]kv.Entry
		// keys are the keys of entries, in order unless stale.
		keys     []string
		stale    bool
		revision uint64
		closed   bool
	}
}

// New returns an empty store that keeps 100,000 changes for watches.
func New() *Store { return NewWithHistory(100_000) }

// NewWithHistory returns an empty store that keeps a number of changes for watches.
func NewWithHistory(events int) *Store {
	s := &Store{history: history.New(0, history.Limits{Events: events, Bytes: 64 << 20})}
	s.mu.entries = make(map[string]kv.Entry)
	return s
}

var (
	_ kv.Store       = (*Store)(nil)
	_ kv.Snapshotter = (*Store)(nil)
)

// Get implements kv.Store.
func (s *Store) Get(ctx context.Context, key string) (kv.Entry, error) {
	if err := cmp.Or(ctx.Err(), kv.ValidateKey(key)); err != nil {
		return kv.Entry{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return kv.Entry{}, kv.ErrClosed
	}
	e, ok := s.mu.entries[key]
	if !ok {
		return kv.Entry{}, kv.ErrNotFound
	}
	return cloneEntry(e), nil
}

// Range implements kv.Store.
func (s *Store) Range(ctx context.Context, r kv.KeyRange) (kv.RangePage, error) {
	r, err := kv.ValidateRange(r)
	if err := cmp.Or(ctx.Err(), err); err != nil {
		return kv.RangePage{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return kv.RangePage{}, kv.ErrClosed
	}
	if s.mu.stale {
		s.mu.keys, s.mu.stale = slices.Sorted(maps.Keys(s.mu.entries)), false
	}
	from := r.Prefix
	if r.After >= from {
		from = r.After + "\x00"
	}
	p := kv.RangePage{Revision: s.mu.revision}
	size := 0
	for _, key := range s.mu.keys[sort.SearchStrings(s.mu.keys, from):] {
		if !strings.HasPrefix(key, r.Prefix) {
			break
		}
		e := s.mu.entries[key]
		size += len(key) + len(e.Value)
		if len(p.Entries) == r.Limit || (len(p.Entries) > 0 && size > kv.MaxRangeBytes) {
			p.More = true
			break
		}
		p.Entries = append(p.Entries, cloneEntry(e))
	}
	return p, nil
}

// ReadAll implements kv.Snapshotter.
func (s *Store) ReadAll(ctx context.Context, fn func(kv.Entry) error) (uint64, error) {
	s.mu.Lock()
	closed, revision := s.mu.closed, s.mu.revision
	entries := make([]kv.Entry, 0, len(s.mu.entries))
	for _, key := range slices.Sorted(maps.Keys(s.mu.entries)) {
		entries = append(entries, cloneEntry(s.mu.entries[key]))
	}
	s.mu.Unlock()
	if closed {
		return 0, kv.ErrClosed
	}
	for _, e := range entries {
		if err := cmp.Or(ctx.Err(), fn(e)); err != nil {
			return 0, err
		}
	}
	return revision, ctx.Err()
}

// Commit implements kv.Store.
func (s *Store) Commit(ctx context.Context, ops ...kv.Op) (uint64, error) {
	if err := cmp.Or(ctx.Err(), kv.ValidateOps(ops)); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return 0, kv.ErrClosed
	}
	var conflicts []kv.KeyConflict
	for _, op := range ops {
		if actual := s.mu.entries[op.Key].Revision; op.Conditional && actual != op.Revision {
			conflicts = append(conflicts, kv.KeyConflict{Key: op.Key, Expected: op.Revision, Actual: actual})
		}
	}
	if len(conflicts) > 0 {
		return 0, &kv.ConflictError{Conflicts: conflicts}
	}
	s.applyOps(ops)
	return s.mu.revision, nil
}

// applyOps executes operations whose conditions hold. s.mu is held.
func (s *Store) applyOps(ops []kv.Op) {
	var events []kv.KeyEvent
	revision := s.mu.revision + 1
	for _, op := range ops {
		_, exists := s.mu.entries[op.Key]
		switch {
		case op.Kind == kv.OpPut:
			value := append(make([]byte, 0, len(op.Value)), op.Value...)
			s.mu.entries[op.Key] = kv.Entry{Key: op.Key, Value: value, Revision: revision}
			s.mu.stale = s.mu.stale || !exists
			events = append(events, kv.KeyEvent{Key: op.Key, Value: value, Revision: revision})
		case op.Kind == kv.OpDelete && exists:
			delete(s.mu.entries, op.Key)
			s.mu.stale = true
			events = append(events, kv.KeyEvent{Key: op.Key, Revision: revision, Deleted: true})
		}
	}
	if len(events) > 0 {
		s.mu.revision = revision
		s.history.Append(events)
	}
}

// Watch implements kv.Store.
func (s *Store) Watch(ctx context.Context, prefix string, after uint64, fn func(kv.EventBatch) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.history.Watch(ctx, prefix, after, fn)
}

// Close implements kv.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	s.mu.closed = true
	s.mu.Unlock()
	s.history.Close()
	return nil
}

func cloneEntry(e kv.Entry) kv.Entry {
	e.Value = append(make([]byte, 0, len(e.Value)), e.Value...)
	return e
}
