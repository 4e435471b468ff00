package linear

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Log is the part of a metadata engine that histories use; see metalog.Log.
type Log interface {
	Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error)
	Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error)
	Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]metalog.Entry, error)
	Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error)
	Subscribe(ctx context.Context, from []metalog.Position, heartbeat time.Duration, fn func([]metalog.Update) error) error
	Trim(ctx context.Context, shard record.ShardID, before record.LSN) error
}

// Mover is a log over several engines. MoveLog moves a shard to another one, wherever it is, or finishes a move.
type Mover interface {
	MoveLog(ctx context.Context, shard record.ShardID) (metalog.Handover, error)
}

// errBroken is the outcome of a call during which the engine crashed. It is returned once the next engine is there: after that
// the call can't take effect any more.
var errBroken = errors.New("linear: the engine crashed during the call")

// Line is a log whose engine may crash under its callers and be replaced. Answers of an engine after its crash began are
// discarded. It is safe for concurrent use.
type Line struct {
	mu struct {
		sync.RWMutex // held for writing while there is no engine
		log          Log
	}
	// broken counts crashes; it is odd from the crash of an engine until its replacement.
	broken atomic.Int64
}

// NewLine returns a line with an engine.
func NewLine(log Log) *Line {
	l := new(Line)
	l.mu.log = log
	return l
}

// Break crashes the engine: it calls replace, after which callers get no more answers of the old engine, and uses the result as
// the new engine. Calls made meanwhile wait. One Break runs at a time.
//
// broken is set after the lock is taken. If the engine were marked broken before, a call made in between would go to the engine
// that is about to crash and return errBroken, although its effects there could still be carried out.
func (l *Line) Break(replace func() Log) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken.Add(1)
	l.mu.log = replace()
	l.broken.Add(1)
}

// Replace is Break for an engine that is closed cleanly: all of its answers count.
func (l *Line) Replace(replace func() Log) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.log = replace()
}

// duringCall makes a call. whole reports whether the engine that it was made to is still there.
func duringCall[T any](l *Line, call func(log Log, whole func() bool) (T, error)) (T, error) {
	l.mu.RLock()
	log, generation := l.mu.log, l.broken.Load()
	l.mu.RUnlock()
	whole := func() bool { return l.broken.Load() == generation && generation%2 == 0 }
	answer, err := call(log, whole)
	if whole() {
		return answer, err
	}
	l.mu.RLock() // until there is another engine
	defer l.mu.RUnlock()
	return answer, errBroken
}

// Open implements Log.
func (l *Line) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	return duringCall(l, func(log Log, _ func() bool) ([]metalog.State, error) { return log.Open(ctx, owner, shards) })
}

// Append implements Log.
func (l *Line) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	return duringCall(l, func(log Log, _ func() bool) ([]metalog.Appended, error) { return log.Append(ctx, a) })
}

// Read implements Log.
func (l *Line) Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]metalog.Entry, error) {
	return duringCall(l, func(log Log, _ func() bool) ([]metalog.Entry, error) {
		return log.Read(ctx, shard, from, maxRecords, maxBytes)
	})
}

// Tail implements Log.
func (l *Line) Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	return duringCall(l, func(log Log, _ func() bool) ([]metalog.State, error) { return log.Tail(ctx, shards) })
}

// Trim implements Log.
func (l *Line) Trim(ctx context.Context, shard record.ShardID, before record.LSN) error {
	_, err := duringCall(l, func(log Log, _ func() bool) (any, error) { return nil, log.Trim(ctx, shard, before) })
	return err
}

// MoveLog implements Mover; the engine must be one.
func (l *Line) MoveLog(ctx context.Context, shard record.ShardID) (metalog.Handover, error) {
	return duringCall(l, func(log Log, _ func() bool) (metalog.Handover, error) { return log.(Mover).MoveLog(ctx, shard) })
}

// Subscribe implements Log.
func (l *Line) Subscribe(ctx context.Context, from []metalog.Position, heartbeat time.Duration, fn func([]metalog.Update) error) error {
	_, err := duringCall(l, func(log Log, whole func() bool) (any, error) {
		return nil, log.Subscribe(ctx, from, heartbeat, func(updates []metalog.Update) error {
			if !whole() {
				return errBroken
			}
			return fn(updates)
		})
	})
	return err
}
