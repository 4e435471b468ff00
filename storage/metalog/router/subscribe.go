package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"scribe/internal/base/lifecycle"
	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Subscribe implements metalog.Log. It subscribes to each log where it is, and goes on in the next engine when the log has moved.
func (l *Log) Subscribe(ctx context.Context, from []metalog.Position, heartbeat time.Duration, fn func([]metalog.Update) error) error {
	if err := l.enterCall(ctx); err != nil {
		return err
	}
	defer l.calls.Leave()
	heartbeat, err := metalog.ValidateSubscribe(from, heartbeat)
	if err != nil {
		return err
	}
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.life, func() { cancel(metalog.ErrClosed) })()
	s := &subscription{
		l: l, ctx: inner, end: cancel, fn: fn, heartbeat: heartbeat, regroup: lifecycle.NewWakeChannel(),
		shards: make(map[record.ShardID]*followedShard, len(from)),
	}
	for _, p := range from {
		f := &followedShard{shard: p.Shard, next: p.LSN}
		s.shards[p.Shard], s.order = f, append(s.order, f)
		s.mu.adrift = append(s.mu.adrift, f)
	}
	s.followAll()
	if err := ctx.Err(); err != nil {
		return err
	}
	return context.Cause(inner)
}

// subscription follows logs in several engines. Each of its groups is a subscription at one engine; the caller's goroutine makes and ends them.
type subscription struct {
	l         *Log
	ctx       context.Context //nolint:containedctx // of the call
	end       context.CancelCauseFunc
	heartbeat time.Duration
	shards    map[record.ShardID]*followedShard
	order     []*followedShard // as the caller named them
	regroup   lifecycle.WakeChannel
	groups    []*engineGroup

	mu struct {
		sync.Mutex
		// adrift are the shards that are in no group. fn is called with the mutex held, so never concurrently.
		adrift []*followedShard
	}
	fn func([]metalog.Update) error
}

// followedShard is what the caller was told of a shard. The subscription's mutex guards it.
type followedShard struct {
	shard     record.ShardID
	next      record.LSN
	tail      record.LSN
	watermark int64
	ended     bool
	// found is the tail that the log had when it was looked for last. An engine that had the log before knows a lower one.
	found record.LSN
	// exists: the shard was found in an engine, which tells when it moves. group is where it is followed; nil while it is adrift. told is the engine
	// that the last one named.
	exists bool
	group  *engineGroup
	told   string
}

// engineGroup is a subscription at one engine.
type engineGroup struct {
	engine string
	shards []*followedShard
	cancel context.CancelFunc
	done   chan struct{}
}

// followAll makes groups until the subscription ends, and then waits for them.
func (s *subscription) followAll() {
	defer func() {
		s.end(nil)
		for _, g := range s.groups {
			<-g.done
		}
	}()
	failures := 0
	for s.ctx.Err() == nil {
		changed := s.l.awaitChange()
		var again <-chan time.Time
		switch left, err := s.groupAdrift(); {
		case err != nil && isFinal(err):
			s.end(err)
			return
		case left && s.ctx.Err() == nil:
			if failures++; err != nil && failures == 1 {
				s.l.logger.WarnContext(s.ctx, "the metadata engines do not tell where logs are, asking again", slog.Any("error", err))
			}
			again = time.After(s.l.pauses.Pause(failures))
		default:
			failures = 0
		}
		select {
		case <-s.ctx.Done():
		case <-s.regroup:
		case <-again:
		case <-changed: // an absent shard may be created in another engine than the one where it is waited for
			s.setAdrift(func(f *followedShard) bool { return !f.exists })
		}
	}
}

// isFinal reports whether a subscription that failed so would fail again.
func isFinal(err error) bool {
	sentinel := metalog.FindSentinel(err)
	return errors.Is(sentinel, metalog.ErrCorrupt) || errors.Is(sentinel, metalog.ErrInvalid)
}

// groupAdrift puts the shards that are in no group into groups, except for those that are between two engines: left says that there are some.
//
// Where a shard goes on is asked anew. An engine that has not adopted it yet may say that it creates no shards of the category, and name another one.
func (s *subscription) groupAdrift() (left bool, err error) {
	s.mu.Lock()
	adrift := s.mu.adrift
	s.mu.adrift = nil
	s.mu.Unlock()
	if len(adrift) == 0 {
		return false, nil
	}
	ids := make([]record.ShardID, len(adrift))
	for i, f := range adrift {
		ids[i] = f.shard
	}
	found, err := s.l.findLogs(s.ctx, ids)
	byEngine, rest := map[string][]*followedShard{}, adrift
	if err == nil {
		rest = nil
		s.noteFound(adrift, found)
		for i, f := range adrift {
			at := found[i].engine
			switch {
			case found[i].isNowhere() && found[i].state.Sealed: // of a retired category, which no engine says that does not know whether another one has it
				s.endShard(f, found[i].state.Watermark)
				continue
			case found[i].between && f.next >= found[i].state.NextLSN, found[i].isNowhere():
				rest = append(rest, f)
				continue
			case found[i].hasOlder() && f.next < found[i].state.Begin && f.told != "": // in an older stay, as an engine has said
				at = f.told
			}
			f.exists, f.told = found[i].state.Epoch != 0, ""
			byEngine[at] = append(byEngine[at], f)
		}
	}
	s.mu.Lock()
	s.mu.adrift = append(s.mu.adrift, rest...)
	s.mu.Unlock()
	for _, name := range inOrder(s.l, byEngine) {
		s.startGroup(name, byEngine[name])
	}
	return len(rest) > 0, err
}

// endShard tells the caller that a shard that never existed, and is in no group, has ended.
func (s *subscription) endShard(f *followedShard, watermark int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := f.takeUpdate(metalog.Update{Shard: f.shard, NextLSN: f.next, Watermark: watermark, Sealed: true})
	if err == nil && s.ctx.Err() == nil {
		err = s.fn([]metalog.Update{u})
	}
	if err != nil {
		s.end(err)
	}
}

// noteFound takes the tails of logs that were looked for.
func (s *subscription) noteFound(shards []*followedShard, found []foundLog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, f := range shards {
		if st := &found[i].state; st.Epoch != 0 {
			f.found = max(f.found, st.NextLSN)
		}
	}
}

// startGroup follows shards at an engine. The group absorbs those of the engine that are not larger, so there are few, and a shard rarely changes
// its group, also when logs move one by one.
func (s *subscription) startGroup(name string, shards []*followedShard) {
	kept := s.groups[:0]
	for _, g := range s.groups {
		select {
		case <-g.done: // it has given up its shards
			continue
		default:
		}
		if g.engine != name || len(g.shards) > len(shards) {
			kept = append(kept, g)
			continue
		}
		g.cancel()
		<-g.done
		shards = append(shards, s.takeFrom(g)...)
	}
	s.groups = kept
	ctx, cancel := context.WithCancel(s.ctx)
	g := &engineGroup{engine: name, shards: shards, cancel: cancel, done: make(chan struct{})}
	s.mu.Lock()
	for _, f := range shards {
		f.group = g
	}
	s.mu.Unlock()
	s.groups = append(s.groups, g)
	go func() {
		defer close(g.done)
		defer cancel()
		s.followGroup(ctx, g)
	}()
}

// takeFrom returns the shards that a group that has ended still had.
func (s *subscription) takeFrom(g *engineGroup) (shards []*followedShard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range g.shards {
		if f.group == g && !f.ended {
			shards = append(shards, f)
		}
	}
	return shards
}

// setAdrift takes shards that match out of their groups.
func (s *subscription) setAdrift(match func(*followedShard) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.order {
		if f.group != nil && !f.ended && match(f) {
			f.group, f.told = nil, ""
			s.mu.adrift = append(s.mu.adrift, f)
		}
	}
}

// positionsOf returns where a group's shards go on.
func (s *subscription) positionsOf(g *engineGroup) (positions []metalog.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range g.shards {
		if f.group == g && !f.ended {
			positions = append(positions, metalog.Position{Shard: f.shard, LSN: f.next})
		}
	}
	return positions
}

// followGroup subscribes at the group's engine, again after failures that pass, until the group has no shards left.
func (s *subscription) followGroup(ctx context.Context, g *engineGroup) {
	failures := 0
	for ctx.Err() == nil {
		positions := s.positionsOf(g)
		if len(positions) == 0 {
			return
		}
		e, err := s.l.engine(g.engine)
		if err == nil {
			err = e.Subscribe(ctx, positions, s.heartbeat, func(updates []metalog.Update) error {
				failures = 0
				return s.takeUpdates(g, updates)
			})
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errRegrouped):
			continue
		case err != nil && isFinal(err):
			s.end(err)
			return
		}
		if failures++; failures == 1 {
			s.l.logger.WarnContext(ctx, "a metadata engine does not tell of its logs: subscribing again", slog.String("engine", g.engine), slog.Any("error", err))
		}
		if s.l.sleep(ctx, s.l.pauses.Pause(failures)) != nil {
			return
		}
	}
}

// errRegrouped ends an engine's subscription whose shards have all left.
var errRegrouped = errors.New("metalog router: the shards have left the engine")

// takeUpdates passes an engine's updates to the caller.
func (s *subscription) takeUpdates(g *engineGroup, updates []metalog.Update) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ctx.Err(); err != nil {
		return err
	}
	var fresh []metalog.Update
	left := false
	for i := range updates {
		f := s.shards[updates[i].Shard]
		if f == nil || f.group != g || f.ended {
			continue
		}
		u, err := f.takeUpdate(updates[i])
		if err != nil {
			s.end(err)
			return err
		}
		if to := updates[i].MovedTo; to != "" {
			f.group, f.told = nil, to
			s.mu.adrift = append(s.mu.adrift, f)
			left = true
		}
		if len(u.Entries) > 0 || u.TrimmedTo != 0 || u.Sealed || u.Watermark != 0 {
			fresh = append(fresh, u)
		}
	}
	if len(fresh) > 0 {
		if err := s.fn(fresh); err != nil {
			s.end(err)
			return err
		}
	}
	if left {
		s.regroup.WakeUp()
		if !slices.ContainsFunc(g.shards, func(f *followedShard) bool { return f.group == g && !f.ended }) {
			return errRegrouped
		}
	}
	return nil
}

// takeUpdate returns an engine's update as the caller has to see it: neither the tail nor the watermark goes back where the next engine knows
// less, and a log that goes on elsewhere has not ended.
func (f *followedShard) takeUpdate(u metalog.Update) (metalog.Update, error) {
	if u.TrimmedTo <= f.next {
		u.TrimmedTo = 0
	}
	next := max(f.next, u.TrimmedTo)
	if len(u.Entries) > 0 && u.Entries[0].LSN != next {
		return u, fmt.Errorf("metalog: shard %v: an engine sent LSN %d, expected %d", u.Shard, u.Entries[0].LSN, next)
	}
	next += record.LSN(len(u.Entries))
	f.exists = f.exists || len(u.Entries) > 0 || u.TrimmedTo != 0
	tail := max(f.tail, f.found)
	if u.Sealed && next < tail { // erased: what the subscriber lacks was trimmed
		u.TrimmedTo, next = tail, tail
	}
	u.NextLSN = max(u.NextLSN, tail, next)
	if u.MovedTo != "" && len(u.Entries) == 0 && u.TrimmedTo == 0 {
		u.Watermark = 0 // the position may be in an older stay, and the next engine will tell
	}
	u.MovedTo = ""
	if next < u.NextLSN {
		u.Watermark, u.Sealed = 0, false
	} else if u.Watermark != 0 {
		u.Watermark = max(u.Watermark, f.watermark)
	}
	f.next, f.tail, f.ended = next, u.NextLSN, u.Sealed
	f.watermark = max(f.watermark, u.Watermark)
	return u, nil
}
