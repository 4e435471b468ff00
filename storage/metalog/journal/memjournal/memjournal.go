package memjournal

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"scribe/storage/metalog/journal"
)

// Store is the content of a journal.
type Store struct {
	mu struct {
		sync.Mutex
		head journal.Head
		// entries are those from number first to head.Seq. A lost one is nil.
		entries [][]byte
		first   uint64
		// size is the sum of the entries' bytes, capacity its bound, 0 for none.
		size, capacity int
		// changed is closed when the head changes or a handle closes.
		changed chan struct{}
	}
}

// New returns the store of a journal that was never written.
func New() *Store {
	s := &Store{}
	s.mu.first = 1
	s.mu.changed = make(chan struct{})
	return s
}

// Open returns a handle.
func (s *Store) Open() *Journal { return &Journal{store: s} }

// wakeWaiters makes every Wait look again. s.mu is held.
func (s *Store) wakeWaiters() {
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
}

// Journal is a handle of a journal in memory.
type Journal struct {
	store  *Store
	fault  atomic.Pointer[Fault]
	closed atomic.Bool
	// seen is the highest revision that was returned.
	seen atomic.Uint64
}

var _ journal.Journal = (*Journal)(nil)

// enterCall checks what every call does first.
func (j *Journal) enterCall(ctx context.Context, c Call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if j.closed.Load() {
		return journal.ErrClosed
	}
	if f := j.fault.Load(); f != nil {
		return (*f)(ctx, c)
	}
	return nil
}

// leaveCall runs the fault after the call took effect.
func (j *Journal) leaveCall(ctx context.Context, c Call) error {
	if f := j.fault.Load(); f != nil {
		c.Done = true
		return (*f)(ctx, c)
	}
	return nil
}

// checkHead notices a head that is older than one that was returned before the call.
func (j *Journal) checkHead(seen uint64, head journal.Head) (journal.Head, error) {
	if head.Revision < seen {
		return journal.Head{}, &journal.WentBackError{Detail: fmt.Sprintf("its head has revision %d, after revision %d was seen", head.Revision, seen)}
	}
	for {
		old := j.seen.Load()
		if old >= head.Revision || j.seen.CompareAndSwap(old, head.Revision) {
			return head, nil
		}
	}
}

// Head implements journal.Journal.
func (j *Journal) Head(ctx context.Context) (journal.Head, error) {
	seen, call := j.seen.Load(), Call{Kind: CallHead}
	if err := j.enterCall(ctx, call); err != nil {
		return journal.Head{}, err
	}
	head, _ := j.store.readHead()
	if err := j.leaveCall(ctx, call); err != nil {
		return journal.Head{}, err
	}
	return j.checkHead(seen, head)
}

// readHead returns the head, and a channel that is closed when it changes.
func (s *Store) readHead() (journal.Head, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.head, s.mu.changed
}

// Swap implements journal.Journal.
func (j *Journal) Swap(ctx context.Context, known, next journal.Head, entry []byte) (journal.Head, error) {
	seen, call := j.seen.Load(), Call{Kind: CallSwap, Known: known, Next: next, Entry: entry}
	if err := journal.ValidateSwap(known, next, entry); err != nil {
		return journal.Head{}, err
	}
	if err := j.enterCall(ctx, call); err != nil {
		return journal.Head{}, err
	}
	head, swapErr := j.store.swapHead(known.Revision, next, entry)
	if err := j.leaveCall(ctx, call); err != nil {
		return journal.Head{}, err
	}
	if swapErr != nil && head.Revision == known.Revision {
		return journal.Head{}, swapErr
	}
	head, err := j.checkHead(seen, head)
	if err != nil {
		return journal.Head{}, err
	}
	if swapErr != nil {
		return journal.Head{}, &journal.LostError{Head: head}
	}
	return head, nil
}

// swapHead returns the head after the swap, or the present one with an error.
func (s *Store) swapHead(known uint64, next journal.Head, entry []byte) (journal.Head, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.head.Revision != known {
		return s.mu.head, journal.ErrLost
	}
	if entry != nil && s.mu.capacity > 0 && s.mu.size+len(entry) > s.mu.capacity {
		return s.mu.head, &journal.FullError{Detail: fmt.Sprintf("entries take %d of %d bytes; they are removed after the next snapshot", s.mu.size, s.mu.capacity)}
	}
	if known == 0 && entry == nil {
		s.mu.first = next.Seq + 1 // it begins with a snapshot: see journal.BeginAt
	}
	next.Revision = known + 1
	s.mu.head = next
	if entry != nil {
		s.mu.entries = append(s.mu.entries, bytes.Clone(entry))
		s.mu.size += len(entry)
	}
	s.wakeWaiters()
	return next, nil
}

// Read implements journal.Journal.
func (j *Journal) Read(ctx context.Context, from, to uint64, fn func(seq uint64, entry []byte) error) error {
	call := Call{Kind: CallRead, Seq: from}
	if err := j.enterCall(ctx, call); err != nil {
		return err
	}
	for seq := from; seq <= to; seq++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		entry, err := j.store.readEntry(seq)
		if err != nil {
			return err
		}
		if err := fn(seq, entry); err != nil {
			return err
		}
	}
	return j.leaveCall(ctx, call)
}

func (s *Store) readEntry(seq uint64) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seq < s.mu.first {
		return nil, &journal.TrimmedError{Seq: seq, Snapshot: s.mu.head.Snapshot}
	}
	if seq > s.mu.head.Seq || s.mu.entries[seq-s.mu.first] == nil {
		return nil, &journal.CorruptError{Seq: seq, Detail: "it is missing"}
	}
	return bytes.Clone(s.mu.entries[seq-s.mu.first]), nil
}

// Wait implements journal.Journal.
func (j *Journal) Wait(ctx context.Context, after journal.Head) (journal.Head, error) {
	seen, call := j.seen.Load(), Call{Kind: CallWait, Known: after}
	for {
		if err := j.enterCall(ctx, call); err != nil {
			return journal.Head{}, err
		}
		head, changed := j.store.readHead()
		if head.Revision != after.Revision {
			if err := j.leaveCall(ctx, call); err != nil {
				return journal.Head{}, err
			}
			return j.checkHead(seen, head)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return journal.Head{}, ctx.Err()
		}
	}
}

// Trim implements journal.Journal.
func (j *Journal) Trim(ctx context.Context, below uint64) error {
	call := Call{Kind: CallTrim, Seq: below}
	if err := j.enterCall(ctx, call); err != nil {
		return err
	}
	if err := j.store.trimEntries(below); err != nil {
		return err
	}
	return j.leaveCall(ctx, call)
}

func (s *Store) trimEntries(below uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := journal.ValidateTrim(s.mu.head, below); err != nil {
		return err
	}
	for s.mu.first < below {
		s.mu.size -= len(s.mu.entries[0])
		s.mu.entries, s.mu.first = s.mu.entries[1:], s.mu.first+1
	}
	return nil
}

// Close implements journal.Journal.
func (j *Journal) Close() error {
	j.closed.Store(true)
	j.store.mu.Lock()
	defer j.store.mu.Unlock()
	j.store.wakeWaiters()
	return nil
}
