package metalogtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
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
	next      record.LSN
	entries   []metalog.Entry
	updates   int
	trimmedTo record.LSN
	tail      record.LSN
	watermark int64
	sealed    bool
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
		f.shards[p.Shard] = &followedShard{next: p.LSN}
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
	switch {
	case s == nil:
		return errors.New("was not asked for")
	case s.sealed:
		return errors.New("an update came after the last one")
	case u.TrimmedTo != 0 && u.TrimmedTo <= s.next:
		return fmt.Errorf("trimmed to %d, but the position is %d already", u.TrimmedTo, s.next)
	case u.NextLSN < s.tail:
		return fmt.Errorf("the tail went back from %d to %d", s.tail, u.NextLSN)
	}
	if u.TrimmedTo != 0 {
		s.next, s.trimmedTo = u.TrimmedTo, u.TrimmedTo
	}
	for _, en := range u.Entries {
		if en.LSN != s.next {
			return fmt.Errorf("LSN %d came instead of %d", en.LSN, s.next)
		}
		if en.Time < s.watermark {
			return fmt.Errorf("LSN %d has time %d, but the watermark was %d before", en.LSN, en.Time, s.watermark)
		}
		if n := len(s.entries); n > 0 && en.Time < s.entries[n-1].Time {
			return fmt.Errorf("LSN %d has time %d, the one before %d", en.LSN, en.Time, s.entries[n-1].Time)
		}
		en.Data = append([]byte(nil), en.Data...)
		s.entries = append(s.entries, en)
		s.next++
	}
	if u.NextLSN < s.next && len(u.Entries) > 0 {
		return fmt.Errorf("the tail is %d after LSN %d", u.NextLSN, s.next-1)
	}
	if s.next < u.NextLSN && (u.Watermark != 0 || u.Sealed) {
		return fmt.Errorf("at %d, before the tail %d, with watermark %d and sealed %v", s.next, u.NextLSN, u.Watermark, u.Sealed)
	}
	if s.next >= u.NextLSN && u.Watermark == 0 {
		return fmt.Errorf("at the tail %d without a watermark", u.NextLSN)
	}
	if u.Watermark != 0 {
		if u.Watermark < s.watermark {
			return fmt.Errorf("the watermark went back from %d to %d", s.watermark, u.Watermark)
		}
		s.watermark = u.Watermark
	}
	s.tail, s.sealed = u.NextLSN, u.Sealed
	s.updates++
	return nil
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
				what, shard, f.e.ctx.Err(), len(s.entries), s.next, s.tail, s.watermark, s.updates)
		}
	}
}

// waitPosition waits for a position.
func (f *checkedFollower) waitPosition(shard record.ShardID, next record.LSN) followedShard {
	f.e.Helper()
	return f.waitFor(shard, fmt.Sprintf("position %d", next), func(s *followedShard) bool { return s.next >= next })
}

// waitWatermark waits for a watermark at or above w.
func (f *checkedFollower) waitWatermark(shard record.ShardID, w int64) followedShard {
	f.e.Helper()
	return f.waitFor(shard, fmt.Sprintf("watermark %d", w), func(s *followedShard) bool { return s.watermark >= w })
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
