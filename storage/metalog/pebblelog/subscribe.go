package pebblelog

import (
	"context"
	"errors"
	"sync"
	"time"

	"scribe/internal/base/lifecycle"
	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog/schema"
)

// Bounds of one call of a subscriber's function, and so of a subscription's memory. The first record of a round may exceed them.
const (
	maxRoundUpdates = 1024
	maxRoundRecords = 4096
	maxRoundBytes   = 1 << 20
	// keptBuffer bounds the buffers that an idle subscription keeps.
	keptBuffer = 16 << 10
)

// watcherTable maps shards to the subscriptions that follow them.
type watcherTable struct {
	mu struct {
		sync.RWMutex
		byShard map[record.ShardID][]shardWatcher
	}
}

// shardWatcher is one shard of one subscription.
type shardWatcher struct {
	sub   *shardSubscription
	index int32
}

func (w *watcherTable) addSubscription(sub *shardSubscription) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.byShard == nil {
		w.mu.byShard = make(map[record.ShardID][]shardWatcher)
	}
	for i := range sub.shards {
		id := sub.shards[i].shard
		w.mu.byShard[id] = append(w.mu.byShard[id], shardWatcher{sub, int32(i)})
	}
}

func (w *watcherTable) remove(sub *shardSubscription, shards ...followedShard) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range shards {
		id := shards[i].shard
		of := w.mu.byShard[id]
		for k := range of {
			if of[k].sub == sub {
				of[k] = of[len(of)-1]
				of[len(of)-1] = shardWatcher{}
				of = of[:len(of)-1]
				break
			}
		}
		if len(of) == 0 {
			delete(w.mu.byShard, id)
		} else {
			w.mu.byShard[id] = of
		}
	}
}

// follows reports whether any subscription follows the shard.
func (w *watcherTable) follows(id record.ShardID) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return len(w.mu.byShard[id]) > 0
}

// wakeAll tells the subscriptions of shards that there are new records or states.
func (w *watcherTable) wakeAll(shards []*shardEntry) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if len(w.mu.byShard) == 0 {
		return
	}
	for _, sh := range shards {
		for _, x := range w.mu.byShard[sh.id] {
			x.sub.markNews(x.index)
		}
	}
}

// wakeCategories tells the subscriptions of shards that do not exist, of categories whose marks have changed: they may be created elsewhere. It looks at
// all followed shards, since marks are rare.
func (w *watcherTable) wakeCategories(marks map[uint32]schema.Forward) {
	if len(marks) == 0 {
		return
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	for id, of := range w.mu.byShard {
		if _, ok := marks[id.Category()]; !ok {
			continue
		}
		for _, x := range of {
			x.sub.markNews(x.index)
		}
	}
}

// shardSubscription follows shards on the goroutine of its caller. New records are not queued for it. A subscription is notified once
// that a shard has news, and reads from its own position when it gets to that shard. So its memory does not depend on how slow it
// is.
type shardSubscription struct {
	e      *Engine
	fn     func([]metalog.Update) error
	shards []followedShard

	wake lifecycle.WakeChannel
	mu   struct {
		sync.Mutex
		marked []int32 // shards with news, by index, each at most once
		isIn   []bool  // by index
	}

	// ready are the shards to look at, in order; followedShard.queued is set for each.
	ready []int32

	// Reused in every round.
	ids     []record.ShardID
	states  []schema.State
	updates []metalog.Update
	entries []metalog.Entry
	buf     []byte
}

// followedShard is a subscription's position in a shard.
type followedShard struct {
	shard record.ShardID
	next  record.LSN
	// tail is the tail that was sent last, watermark the newest watermark that was.
	tail      record.LSN
	watermark int64
	// queued: the shard is in ready. due: an update is sent even without news. told: the watermark was sent since the last
	// heartbeat. more: the last update did not reach the tail. finished: the shard is sealed, and everything was sent.
	queued, due, told, more, finished bool
}

// Subscribe implements metalog.Log.
func (e *Engine) Subscribe(ctx context.Context, from []metalog.Position, heartbeat time.Duration, fn func([]metalog.Update) error) error {
	if err := e.enterCall(); err != nil {
		return err
	}
	defer e.leaveCall()
	heartbeat, err := metalog.ValidateSubscribe(from, heartbeat)
	if err != nil {
		return err
	}
	e.tryBarrier(ctx)
	s := newSubscription(e, from, fn)
	e.metrics.subscriptions.Inc()
	defer e.metrics.subscriptions.Dec()
	// Registered before the first look, so that nothing is missed between the two.
	e.watchers.addSubscription(s)
	defer func() { e.watchers.remove(s, s.shards...) }()
	return s.serve(ctx, heartbeat)
}

func newSubscription(e *Engine, from []metalog.Position, fn func([]metalog.Update) error) *shardSubscription {
	s := &shardSubscription{e: e, fn: fn, shards: make([]followedShard, len(from)), ready: make([]int32, len(from)), wake: lifecycle.NewWakeChannel()}
	s.mu.isIn = make([]bool, len(from))
	for i, p := range from {
		s.shards[i] = followedShard{shard: p.Shard, next: p.LSN, queued: true, due: true}
		s.ready[i] = int32(i)
	}
	return s
}

// markNews marks a shard as having news. It never waits for the subscriber.
func (s *shardSubscription) markNews(i int32) {
	s.mu.Lock()
	if !s.mu.isIn[i] {
		s.mu.isIn[i] = true
		s.mu.marked = append(s.mu.marked, i)
	}
	s.mu.Unlock()
	s.wake.WakeUp()
}

// collectMarked moves the marked shards to ready.
func (s *shardSubscription) collectMarked() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.mu.marked {
		s.mu.isIn[i] = false
		s.queueShard(i)
	}
	s.mu.marked = s.mu.marked[:0]
}

func (s *shardSubscription) queueShard(i int32) {
	if p := &s.shards[i]; !p.queued && !p.finished {
		p.queued = true
		s.ready = append(s.ready, i)
	}
}

// markHeartbeat makes an update due in every shard that got none since the last heartbeat.
func (s *shardSubscription) markHeartbeat() {
	for i := range s.shards {
		if p := &s.shards[i]; !p.told && !p.finished {
			p.due = true
			s.queueShard(int32(i))
		}
		s.shards[i].told = false
	}
}

func (s *shardSubscription) serve(ctx context.Context, heartbeat time.Duration) error {
	beats := time.NewTicker(heartbeat) // drops heartbeats while fn is slow
	defer beats.Stop()
	leaving := s.e.leaving()
	for {
		s.collectMarked()
		if len(s.ready) > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-leaving:
				return s.e.closingError()
			case <-s.e.calls.Draining():
				return s.e.closingError()
			case <-s.e.failed:
				return s.e.failedError()
			case <-beats.C:
				s.markHeartbeat()
			default:
			}
			if err := s.sendRound(ctx); err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-leaving:
			return s.e.closingError()
		case <-s.e.calls.Draining():
			return s.e.closingError()
		case <-s.e.failed:
			return s.e.failedError()
		case <-beats.C:
			s.markHeartbeat()
		case <-s.wake:
		}
	}
}

// sendRound looks at the first shards of ready and sends their updates.
func (s *shardSubscription) sendRound(ctx context.Context) error {
	defer s.resetBuffers()
	now := s.ready[:min(len(s.ready), maxRoundUpdates)]
	for _, i := range now {
		s.ids = append(s.ids, s.shards[i].shard)
		s.states = append(s.states, schema.State{})
	}
	w, err := s.e.publishedStates(ctx, s.ids, s.states)
	if err != nil {
		return err
	}
	done, err := s.gatherUpdates(now, w)
	if err != nil {
		return err
	}
	// Shards with more records go to the end, so that a shard with a long backlog does not delay the others.
	again := make([]int32, 0, 8)
	for _, i := range now[:done] {
		p := &s.shards[i]
		p.queued = false
		if p.more {
			again = append(again, i)
		}
	}
	s.ready = append(s.ready[:0], s.ready[done:]...)
	for _, i := range again {
		s.queueShard(i)
	}
	if len(s.updates) == 0 {
		return nil
	}
	return s.fn(s.updates)
}

// gatherUpdates makes the updates of shards, whose states are in s.states, until the budget of a round is spent. It returns the
// number of shards that it processed.
func (s *shardSubscription) gatherUpdates(indexes []int32, w int64) (done int, err error) {
	b := readBudget{records: maxRoundRecords, bytes: maxRoundBytes}
	r := recordReader{db: s.e.db, buf: s.buf[:0]}
	for done < len(indexes) && !b.spent() && err == nil {
		err = s.makeUpdate(&s.shards[indexes[done]], s.states[done], w, &r, &b)
		done++
	}
	s.buf = r.buf
	return done, errors.Join(err, r.close())
}

// makeUpdate makes the update of one shard, if there is one to send.
func (s *shardSubscription) makeUpdate(p *followedShard, st schema.State, w int64, r *recordReader, b *readBudget) error {
	u := metalog.Update{Shard: p.shard}
	begin := len(s.entries)
	var part shardPart
	for {
		if st == erasedState { // an erased shard has no tail, but the tail that was sent must not go back
			st.Next = max(p.next, p.tail)
			st.First = st.Next
		}
		part = partAt(st, p.next)
		if p.next < part.first {
			u.TrimmedTo, p.next = part.first, part.first
			part = partAt(st, p.next)
		}
		u.NextLSN = part.next
		err := s.readShard(p, part.next, r, b)
		if err == nil {
			break
		}
		if !errors.Is(err, errMissing) {
			return err
		}
		// The record was trimmed since the state was read, or lost.
		if err := s.e.checkMissing(p.shard, p.next, st); err != nil {
			return err
		}
		if st, err = s.e.table.stateOf(p.shard); err != nil {
			return err
		}
		if err := r.close(); err != nil {
			return err
		}
	}
	u.Entries = s.entries[begin:len(s.entries):len(s.entries)]
	p.next += record.LSN(len(u.Entries))
	p.more = p.next < part.next
	if !p.more {
		u.Watermark, u.Sealed, u.MovedTo = w, st.Sealed, part.to
	}
	if u.MovedTo != "" && !p.more {
		// What was promised before stays true, wherever the shard goes on.
		u.Watermark, u.Sealed = max(min(w, part.left), p.watermark, 1), false
	}
	if len(u.Entries) == 0 && u.TrimmedTo == 0 && !u.Sealed && u.MovedTo == "" && (p.more || !p.due) {
		return nil
	}
	p.due, p.told, p.tail = p.more && p.due, !p.more, u.NextLSN
	p.watermark = max(p.watermark, u.Watermark)
	if u.Sealed || u.MovedTo != "" {
		p.finished = true
		s.e.watchers.remove(s, *p)
	}
	s.updates = append(s.updates, u)
	return nil
}

// readShard appends the shard's records to s.entries: from the tail cache if they are there, else from Pebble.
func (s *shardSubscription) readShard(p *followedShard, next record.LSN, r *recordReader, b *readBudget) (err error) {
	if p.next >= next {
		return nil
	}
	var cached bool
	if s.entries, cached = s.e.tails.readCached(s.entries, p.shard, p.next, next, b); cached {
		return nil
	}
	s.entries, err = r.readEntries(s.entries, p.shard, p.next, next, b)
	return err
}

// resetBuffers releases the entries of the last round.
func (s *shardSubscription) resetBuffers() {
	clear(s.updates)
	clear(s.entries)
	s.ids, s.states, s.updates, s.entries = s.ids[:0], s.states[:0], s.updates[:0], s.entries[:0]
	if cap(s.buf) > keptBuffer {
		s.buf = nil
	}
	const keptEntries = keptBuffer / 40
	if cap(s.entries) > keptEntries {
		s.entries = nil
	}
}
