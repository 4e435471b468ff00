package pebblekv

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"scribe/storage/kv"
)

// Bounds of a group, so that its batch fits Pebble's buffers, and a transaction does not wait for too many others.
const (
	maxGroup      = 256
	maxGroupBytes = 2 << 20
)

// pendingCommit is a queued Commit.
type pendingCommit struct {
	ctx context.Context
	// ops are the engine's own copies: the caller may have returned before they are committed.
	ops []kv.Op
	// done receives the outcome; its buffer lets the committer continue if the caller has returned.
	done chan commitOutcome
}

type commitOutcome struct {
	revision uint64
	err      error
}

func (t *pendingCommit) byteSize() int {
	n := 0
	for _, op := range t.ops {
		n += len(op.Key) + len(op.Value)
	}
	return n
}

// Commit implements kv.Store.
func (s *Store) Commit(ctx context.Context, ops ...kv.Op) (uint64, error) {
	if err := kv.ValidateOps(ops); err != nil {
		return 0, err
	}
	if err := s.enterCall(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	t := &pendingCommit{ctx: ctx, ops: make([]kv.Op, len(ops)), done: make(chan commitOutcome, 1)}
	for i, op := range ops {
		op.Value = append(make([]byte, 0, len(op.Value)), op.Value...)
		t.ops[i] = op
	}
	select {
	case s.queue <- t:
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-s.calls.Draining():
		return 0, kv.ErrClosed
	}
	var o commitOutcome
	select {
	case o = <-t.done:
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-s.done:
		// The committer may have answered before it returned, or have returned before the transaction was queued.
		select {
		case o = <-t.done:
		default:
			o.err = kv.ErrClosed
		}
	}
	return o.revision, o.err
}

// commitLoop is the committer: the only goroutine that decides and writes. revision is the store's revision.
func (s *Store) commitLoop(revision uint64) {
	defer close(s.done)
	for {
		select {
		case <-s.calls.Draining():
			return
		case t := <-s.queue:
			revision = s.commitGroup(s.gatherGroup(t), revision)
		}
	}
}

// gatherGroup takes queued transactions, within the bounds of a group.
func (s *Store) gatherGroup(first *pendingCommit) []*pendingCommit {
	group := []*pendingCommit{first}
	for bytes := first.byteSize(); len(group) < maxGroup && bytes < maxGroupBytes; {
		select {
		case t := <-s.queue:
			group = append(group, t)
			bytes += t.byteSize()
		default:
			return group
		}
	}
	return group
}

// commitGroup decides and commits transactions with one sync, answers them, and returns the store's new revision.
//
// Conflicts too are answered after the sync: the conflicting revision may belong to a transaction of the group.
func (s *Store) commitGroup(group []*pendingCommit, revision uint64) uint64 {
	batch := s.db.NewIndexedBatch()
	outcomes := make([]commitOutcome, len(group))
	var events []kv.KeyEvent
	next := revision
	for i, t := range group {
		changes, err := s.stageCommit(batch, t, next+1)
		if err == nil && len(changes) > 0 {
			next++
			events = append(events, changes...)
		}
		outcomes[i] = commitOutcome{revision: next, err: err}
	}
	err := s.failedError()
	if err == nil && next > revision {
		err = s.writeBatch(batch, next)
	}
	if cerr := batch.Close(); cerr != nil && err == nil {
		s.logger.Error("control store batch not closed", "error", cerr)
	}
	if err == nil && next > revision {
		s.publishView(next, events)
	}
	s.metrics.groupSize.Observe(float64(len(group)))
	for i, t := range group {
		if err != nil {
			outcomes[i] = commitOutcome{err: err}
		}
		s.metrics.commits.WithLabelValues(resultOf(outcomes[i].err)).Inc()
		t.done <- outcomes[i]
	}
	if err != nil {
		return revision
	}
	return next
}

func resultOf(err error) string {
	switch {
	case err == nil:
		return resultCommitted
	case errors.Is(err, kv.ErrConflict):
		return resultConflict
	default:
		return resultFailed
	}
}

// stageCommit checks a transaction against the store as the batch leaves it, and adds it to the batch. An error leaves the batch
// unchanged, except for errors of the batch itself, after which the store fails.
func (s *Store) stageCommit(batch *pebble.Batch, t *pendingCommit, revision uint64) ([]kv.KeyEvent, error) {
	if err := t.ctx.Err(); err != nil {
		return nil, err
	}
	var conflicts []kv.KeyConflict
	exists := make([]bool, len(t.ops))
	for i, op := range t.ops {
		if !op.Conditional && op.Kind != kv.OpDelete {
			continue
		}
		e, err := readEntry(batch, op.Key)
		if err != nil && !errors.Is(err, kv.ErrNotFound) {
			return nil, err
		}
		exists[i] = err == nil
		if op.Conditional && e.Revision != op.Revision {
			conflicts = append(conflicts, kv.KeyConflict{Key: op.Key, Expected: op.Revision, Actual: e.Revision})
		}
	}
	if len(conflicts) > 0 {
		return nil, &kv.ConflictError{Conflicts: conflicts}
	}
	var events []kv.KeyEvent
	for i, op := range t.ops {
		var err error
		switch {
		case op.Kind == kv.OpPut:
			err = batch.Set(storedKey(op.Key), appendStored(make([]byte, 0, headerLen+len(op.Value)), op.Key, revision, op.Value), nil)
			events = append(events, kv.KeyEvent{Key: op.Key, Value: op.Value, Revision: revision})
		case op.Kind == kv.OpDelete && exists[i]:
			err = batch.Delete(storedKey(op.Key), nil)
			events = append(events, kv.KeyEvent{Key: op.Key, Revision: revision, Deleted: true})
		}
		if err != nil {
			s.setFailed(err)
			return nil, s.failedError()
		}
	}
	return events, nil
}

// writeBatch makes a batch durable with the store's new revision.
func (s *Store) writeBatch(batch *pebble.Batch, revision uint64) error {
	if err := batch.Set(stateKey, encodeState(revision), nil); err != nil {
		s.setFailed(err)
		return s.failedError()
	}
	start := time.Now()
	if err := batch.Commit(pebble.Sync); err != nil {
		s.setFailed(err)
	}
	s.metrics.syncTime.Observe(time.Since(start).Seconds())
	if err := s.failedError(); err != nil {
		return fmt.Errorf("%w (revision %d)", err, revision)
	}
	return nil
}

// publishView shows a durable state to reads and watches. The history is published first, and both under one lock: a watch that
// begins after the revision of a read finds it in the history, and a read from within a watch sees the events of the watch.
func (s *Store) publishView(revision uint64, events []kv.KeyEvent) {
	v := &storeView{snapshot: s.db.NewSnapshot(), revision: revision, refs: 1}
	s.mu.Lock()
	s.history.Append(events)
	old := s.mu.view
	s.mu.view = v
	s.mu.Unlock()
	s.releaseView(old)
}
