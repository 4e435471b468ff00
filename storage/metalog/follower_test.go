package metalog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/linear"
)

// checkedFollower runs a subscription, stores its updates, and checks each against the contract.
type checkedFollower struct {
	e      *caseEnv
	cancel context.CancelFunc
	done   chan struct{} // closed when Subscribe has returned
	err    error         // what it returned
	inside atomic.Bool   // within the callback
	// hold, when set, is called within the callback, outside of the lock.
	hold func([]metalog.Update)

	mu      sync.Mutex
	changed chan struct{} // closed and replaced with each update
	shards  map[record.ShardID]*followedShard
	broken  error // violation of the contract
}

// followedShard is the part of a shard that the updates have shown.
type followedShard struct {
	linear.FollowedShard
	entries []metalog.Entry
	updates int
}

// follow subscribes from the given positions.
func (e *caseEnv) follow(heartbeat time.Duration, from ...metalog.Position) *checkedFollower {
	return e.followWith(heartbeat, nil, from...)
}

func (e *caseEnv) followWith(heartbeat time.Duration, hold func([]metalog.Update), from ...metalog.Position) *checkedFollower {
	e.Helper()
	ctx, cancel := context.WithCancel(e.ctx)
	f := &checkedFollower{e: e, cancel: cancel, done: make(chan struct{}), hold: hold, changed: make(chan struct{}), shards: map[record.ShardID]*followedShard{}}
	for _, p := range from {
		f.shards[p.Shard] = &followedShard{FollowedShard: linear.FollowedShard{Next: p.LSN}}
	}
	log := e.log
	go func() {
		defer close(f.done)
		f.err = log.Subscribe(ctx, from, heartbeat, f.takeUpdates)
	}()
	e.Cleanup(func() {
		cancel()
		<-f.done
	})
	return f
}

func (f *checkedFollower) takeUpdates(updates []metalog.Update) error {
	if f.inside.Swap(true) {
		return errors.New("the callback was called concurrently")
	}
	defer f.inside.Store(false)
	if f.hold != nil {
		f.hold(updates)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range updates {
		if err := f.checkUpdate(&updates[i]); err != nil {
			f.broken = fmt.Errorf("shard %v: %w", updates[i].Shard, err)
			break
		}
	}
	close(f.changed)
	f.changed = make(chan struct{})
	return f.broken
}

// checkUpdate checks one update.
func (f *checkedFollower) checkUpdate(u *metalog.Update) error {
	s := f.shards[u.Shard]
	if s == nil {
		return errors.New("was not asked for")
	}
	for _, en := range u.Entries {
		en.Data = bytes.Clone(en.Data)
		s.entries = append(s.entries, en)
	}
	s.updates++
	return s.TakeUpdate(u)
}

// waitFor waits until the state of a followed shard satisfies ok, and returns a copy.
func (f *checkedFollower) waitFor(shard record.ShardID, what string, ok func(*followedShard) bool) followedShard {
	f.e.Helper()
	for {
		f.mu.Lock()
		s, changed, broken := *f.shards[shard], f.changed, f.broken
		good := ok(&s)
		f.mu.Unlock()
		switch {
		case broken != nil:
			f.e.Fatalf("subscription: %v", broken)
		case good:
			return s
		}
		select {
		case <-changed:
		case <-f.done:
			f.mu.Lock()
			good := ok(f.shards[shard])
			f.mu.Unlock()
			if !good {
				f.e.Fatalf("waiting for %s: the subscription ended: %v", what, f.err)
			}
		case <-f.e.ctx.Done():
			f.e.Fatalf("waiting for %s of shard %v: %v; saw %d records, next %d, tail %d, watermark %d, %d updates",
				what, shard, f.e.ctx.Err(), len(s.entries), s.Next, s.Tail, s.Watermark, s.updates)
		}
	}
}

// waitPosition waits for a position.
func (f *checkedFollower) waitPosition(shard record.ShardID, next record.LSN) followedShard {
	f.e.Helper()
	return f.waitFor(shard, fmt.Sprintf("position %d", next), func(s *followedShard) bool { return s.Next >= next })
}

// waitWatermark waits for a watermark at or above w.
func (f *checkedFollower) waitWatermark(shard record.ShardID, w int64) followedShard {
	f.e.Helper()
	return f.waitFor(shard, fmt.Sprintf("watermark %d", w), func(s *followedShard) bool { return s.Watermark >= w })
}

// stopChecked ends the subscription and fails the case if it violated the contract.
func (f *checkedFollower) stopChecked() {
	f.e.Helper()
	f.cancel()
	<-f.done
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken != nil {
		f.e.Fatalf("subscription: %v", f.broken)
	}
	if !errors.Is(f.err, context.Canceled) {
		f.e.Fatalf("the cancelled subscription ended with %v", f.err)
	}
}
