// Package history keeps the newest changes of a store in memory and serves watches from them. Engines without a history of their
// own share it.
//
// A watch is a cursor into the one history, not a queue: a thousand slow watches cost a thousand cursors. A watch whose position
// is older than the history ends with kv.ErrCompacted.
package history

import (
	"context"
	"sort"
	"strings"
	"sync"

	"scribe/storage/kv"
)

// Limits bound a history. At least the newest transaction is kept.
type Limits struct {
	// Events is the largest number of changes kept.
	Events int
	// Bytes is the largest size of their keys and values.
	Bytes int
}

// Bounds of one call of a watch's function, so that a watch with a long backlog does not hold all of it.
const (
	maxBatchEvents = 1024
	maxBatchBytes  = 4 << 20
)

// EventLog is the history of a store.
type EventLog struct {
	limits  Limits
	watches sync.WaitGroup

	mu struct {
		sync.Mutex
		// changes are in the order of revisions, and begin with the first change of a transaction.
		changes []kv.KeyEvent
		bytes   int
		// oldest is the revision after which every change is in changes; newest is the store's revision.
		oldest, newest uint64
		// grown is closed and replaced when changes are added, and closed when the history is closed.
		grown  chan struct{}
		closed bool
	}
}

// New returns an empty history of a store whose revision is newest.
func New(newest uint64, limits Limits) *EventLog {
	l := &EventLog{limits: limits}
	l.mu.oldest, l.mu.newest = newest, newest
	l.mu.grown = make(chan struct{})
	return l
}

// Append adds the changes of committed transactions, in order. The history keeps the slice's elements and the values' memory.
func (l *EventLog) Append(events []kv.KeyEvent) {
	if len(events) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.changes = append(l.mu.changes, events...)
	for _, e := range events {
		l.mu.bytes += size(e)
	}
	l.mu.newest = events[len(events)-1].Revision
	l.trimOldest()
	close(l.mu.grown)
	l.mu.grown = make(chan struct{})
}

// trimOldest drops whole transactions, oldest first, until the limits hold. l.mu is held.
func (l *EventLog) trimOldest() {
	c := l.mu.changes
	drop := 0
	for len(c)-drop > l.limits.Events || l.mu.bytes > l.limits.Bytes {
		revision, end := c[drop].Revision, drop
		if revision == l.mu.newest {
			break
		}
		for c[end].Revision == revision {
			l.mu.bytes -= size(c[end])
			c[end] = kv.KeyEvent{} // the array stays alive: do not let it hold the value
			end++
		}
		drop, l.mu.oldest = end, revision
	}
	l.mu.changes = c[drop:]
}

func size(e kv.KeyEvent) int { return len(e.Key) + len(e.Value) }

// Watch implements the Watch of kv.Store.
func (l *EventLog) Watch(ctx context.Context, prefix string, after uint64, fn func(kv.EventBatch) error) error {
	l.mu.Lock()
	if l.mu.closed {
		l.mu.Unlock()
		return kv.ErrClosed
	}
	l.watches.Add(1)
	l.mu.Unlock()
	defer l.watches.Done()
	for {
		batch, grown, err := l.nextBatch(prefix, after)
		if err != nil {
			return err
		}
		if len(batch.Events) > 0 {
			if err := fn(batch); err != nil {
				return err
			}
		}
		after = batch.Revision
		if err := ctx.Err(); err != nil {
			return err
		}
		if grown == nil {
			continue
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// nextBatch returns changes after a revision. If they are the last ones, it also returns the channel that announces more.
func (l *EventLog) nextBatch(prefix string, after uint64) (kv.EventBatch, <-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return kv.EventBatch{}, nil, kv.ErrClosed
	}
	if after < l.mu.oldest || after > l.mu.newest {
		return kv.EventBatch{}, nil, &kv.CompactedError{After: after, Oldest: l.mu.oldest, Newest: l.mu.newest}
	}
	c := l.mu.changes
	i := sort.Search(len(c), func(i int) bool { return c[i].Revision > after })
	batch := kv.EventBatch{Revision: after}
	for bytes := 0; i < len(c); i++ {
		full := len(batch.Events) >= maxBatchEvents || bytes >= maxBatchBytes
		if full && c[i].Revision != batch.Revision {
			return batch, nil, nil
		}
		batch.Revision = c[i].Revision
		if strings.HasPrefix(c[i].Key, prefix) {
			batch.Events = append(batch.Events, c[i])
			bytes += size(c[i])
		}
	}
	batch.Revision = l.mu.newest
	return batch, l.mu.grown, nil
}

// Close ends all watches with kv.ErrClosed and waits for them. Repeating it is harmless.
func (l *EventLog) Close() {
	l.mu.Lock()
	if !l.mu.closed {
		l.mu.closed = true
		close(l.mu.grown)
		l.mu.changes = nil
	}
	l.mu.Unlock()
	l.watches.Wait()
}
