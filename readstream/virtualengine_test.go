package readstream

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// engine is a metadata engine in memory. What a stream server does not call it does not have.
type engine struct {
	metalog.Log
	mu struct {
		sync.Mutex
		random *rand.Rand
		shards map[record.ShardID]*simShard
		ids    []record.ShardID
		subs   map[*simSub]struct{}
		watch  chan struct{} // closed when a shard appears
		// blind: watches tell nothing any more. deaf: tails and listings are not answered.
		blind, deaf bool
		reads       int
		slow        time.Duration // how long each read takes beside that
	}
}

type simShard struct {
	entries []metalog.Entry
	// stalled: until then neither reads nor subscriptions bring anything of it. was are the times at which that ended.
	stalled time.Time
	was     [][2]int64
}

func (sh *simShard) next() record.LSN { return record.LSN(len(sh.entries)) + 1 }

type simSub struct {
	at    map[record.ShardID]record.LSN
	dirty map[record.ShardID]struct{}
	wake  chan struct{}
	dead  bool // it tells nothing any more, and does not end either
}

func newEngine(seed uint64) *engine {
	e := &engine{}
	e.mu.random = rand.New(rand.NewPCG(seed, 1))
	e.mu.shards, e.mu.subs, e.mu.watch = map[record.ShardID]*simShard{}, map[*simSub]struct{}{}, make(chan struct{})
	return e
}

func micros() int64 { return time.Now().UnixMicro() }

// pause waits; false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// latency is how long an answer takes.
func (e *engine) latency(ctx context.Context) bool {
	e.mu.Lock()
	d := time.Duration(100+e.mu.random.IntN(2000)) * time.Microsecond
	e.mu.Unlock()
	return pause(ctx, d)
}

func (e *engine) create() record.ShardID {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(e.mu.ids)
	id := shardID((n*37)%100, n/100+1) // not in the order of ids
	e.mu.ids = append(e.mu.ids, id)
	e.mu.shards[id] = &simShard{}
	close(e.mu.watch)
	e.mu.watch = make(chan struct{})
	return id
}

// append adds a record to each of some shards, in one transaction.
func (e *engine) append(ids ...record.ShardID) {
	data := encoded(100)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range ids {
		sh := e.mu.shards[id]
		sh.entries = append(sh.entries, metalog.Entry{LSN: sh.next(), Time: micros(), Data: data})
		e.dirty(id)
	}
}

// dirty wakes the subscriptions of a shard. The mutex is held.
func (e *engine) dirty(id record.ShardID) {
	for s := range e.mu.subs {
		if _, ok := s.at[id]; ok {
			s.dirty[id] = struct{}{}
			select {
			case s.wake <- struct{}{}:
			default:
			}
		}
	}
}

// stall keeps a shard from answering for a while.
func (e *engine) stall(id record.ShardID, d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	sh := e.mu.shards[id]
	until := time.Now().Add(d)
	if until.After(sh.stalled) {
		sh.stalled = until
	}
	sh.was = append(sh.was, [2]int64{micros(), until.UnixMicro()})
	time.AfterFunc(d, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.dirty(id)
	})
}

// answered reports whether a shard was not stalled since t, nor shortly before.
func (e *engine) answered(id record.ShardID, t int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !slices.ContainsFunc(e.mu.shards[id].was, func(w [2]int64) bool { return w[1] >= t-1_000_000 })
}

func (e *engine) total() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, sh := range e.mu.shards {
		n += len(sh.entries)
	}
	return n
}

func (e *engine) state(id record.ShardID) metalog.State {
	sh := e.mu.shards[id]
	st := metalog.State{Shard: id, FirstLSN: 1, NextLSN: 1, Watermark: micros()}
	if sh != nil {
		st.NextLSN, st.Epoch = sh.next(), 1
	}
	return st
}

// hears waits until an answer to a question about many shards may be given.
func (e *engine) hears(ctx context.Context) bool {
	e.mu.Lock()
	deaf := e.mu.deaf
	e.mu.Unlock()
	if deaf {
		<-ctx.Done()
	}
	return e.latency(ctx)
}

// set changes what the engine does.
func (e *engine) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

func (e *engine) Shards(ctx context.Context, _ uint32) ([]metalog.State, error) {
	if !e.hears(ctx) {
		return nil, ctx.Err()
	}
	e.mu.Lock()
	out := make([]metalog.State, len(e.mu.ids))
	for i, id := range e.mu.ids {
		out[i] = e.state(id)
	}
	e.mu.Unlock()
	e.latency(ctx)
	return out, ctx.Err()
}

func (e *engine) RemovedShards(context.Context, uint32, int64) ([]metalog.State, error) { return nil, nil }

func (e *engine) Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	if !e.hears(ctx) {
		return nil, ctx.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]metalog.State, len(shards))
	for i, id := range shards {
		out[i] = e.state(id)
	}
	return out, nil
}

func (e *engine) Read(ctx context.Context, shard record.ShardID, from record.LSN, _, maxBytes int) ([]metalog.Entry, error) {
	e.mu.Lock()
	e.mu.reads++
	stalled := max(time.Until(e.mu.shards[shard].stalled), 0) + e.mu.slow
	e.mu.Unlock()
	if stalled > 0 && !pause(ctx, stalled) || !e.latency(ctx) {
		return nil, ctx.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	sh := e.mu.shards[shard]
	var out []metalog.Entry
	for _, x := range sh.entries[min(int(from)-1, len(sh.entries)):] {
		if maxBytes -= len(x.Data); maxBytes < 0 && len(out) > 0 {
			break
		}
		out = append(out, x)
	}
	return out, nil
}

func (e *engine) WatchShards(ctx context.Context, _ uint32, fn func([]record.ShardID) error) error {
	for told := 0; ; {
		e.mu.Lock()
		fresh, more, blind := slices.Clone(e.mu.ids[told:]), e.mu.watch, e.mu.blind
		told = len(e.mu.ids)
		e.mu.Unlock()
		if !blind {
			if err := fn(fresh); err != nil {
				return err
			}
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (e *engine) Subscribe(ctx context.Context, from []metalog.Position, heartbeat time.Duration, fn func([]metalog.Update) error) error {
	s := &simSub{at: map[record.ShardID]record.LSN{}, dirty: map[record.ShardID]struct{}{}, wake: make(chan struct{}, 1)}
	for _, p := range from {
		s.at[p.Shard], s.dirty[p.Shard] = p.LSN, struct{}{}
	}
	e.mu.Lock()
	e.mu.subs[s] = struct{}{}
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.mu.subs, s)
		e.mu.Unlock()
	}()
	beats := time.NewTicker(heartbeat)
	defer beats.Stop()
	for {
		updates := e.gather(s)
		if len(updates) > 0 {
			if !e.latency(ctx) { // what is told is a little old
				return ctx.Err()
			}
			if err := fn(updates); err != nil {
				return err
			}
		}
		select {
		case <-s.wake:
		case <-beats.C:
			e.mu.Lock()
			for id := range s.at {
				s.dirty[id] = struct{}{}
			}
			e.mu.Unlock()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (e *engine) gather(s *simSub) (updates []metalog.Update) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.dead {
		return nil
	}
	for id := range s.dirty {
		u := metalog.Update{Shard: id, NextLSN: 1, Watermark: micros()}
		if sh := e.mu.shards[id]; sh != nil {
			if time.Now().Before(sh.stalled) {
				continue
			}
			u.Entries, u.NextLSN = sh.entries[s.at[id]-1:], sh.next()
		}
		s.at[id] = u.NextLSN
		updates = append(updates, u)
	}
	clear(s.dirty)
	return updates
}
