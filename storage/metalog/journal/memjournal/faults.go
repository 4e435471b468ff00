package memjournal

import (
	"context"
	"slices"

	"scribe/storage/metalog/journal"
)

// CallKind says which method a fault sees.
type CallKind uint8

// The methods.
const (
	CallHead CallKind = 1
	CallSwap CallKind = 2
	CallRead CallKind = 3
	CallWait CallKind = 4
	CallTrim CallKind = 5
)

// Call is a call that a fault decides on.
type Call struct {
	Kind CallKind
	// Done is false before the call takes effect, and true after it did.
	Done bool
	// Known, Next and Entry are those of a Swap.
	Known, Next journal.Head
	Entry       []byte
	// Seq is the from of a Read and the below of a Trim.
	Seq uint64
}

// Fault is called twice a call: before and after it takes effect. An error is returned to the caller, so one that comes before
// keeps the call from happening, and one that comes after hides that it happened. A Fault may wait, until ctx ends, too. It must
// be safe for concurrent use.
type Fault func(ctx context.Context, c Call) error

// SetFault sets the fault of this handle; nil removes it.
func (j *Journal) SetFault(f Fault) {
	if f == nil {
		j.fault.Store(nil)
		return
	}
	j.fault.Store(&f)
}

// SetCapacity bounds the bytes of entries; 0 means no bound. Appends beyond it fail with ErrFull.
func (s *Store) SetCapacity(bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.capacity = bytes
}

// Copy returns a store with the same content, as a backup would have it.
func (s *Store) Copy() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := New()
	c.mu.head, c.mu.first, c.mu.size, c.mu.capacity = s.mu.head, s.mu.first, s.mu.size, s.mu.capacity
	c.mu.entries = slices.Clone(s.mu.entries)
	return c
}

// Restore replaces the content by that of another store, as restoring a backup does.
func (s *Store) Restore(from *Store) {
	c := from.Copy()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.head, s.mu.first, s.mu.size, s.mu.entries = c.mu.head, c.mu.first, c.mu.size, c.mu.entries
	s.wakeWaiters()
}

// Damage replaces an entry by what change returns for a copy of it; nil removes it, as a store that lost it would.
func (s *Store) Damage(seq uint64, change func(entry []byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seq >= s.mu.first && seq <= s.mu.head.Seq {
		s.mu.entries[seq-s.mu.first] = change(slices.Clone(s.mu.entries[seq-s.mu.first]))
	}
}
