package readstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readstream/feed"
	"scribe/readstream/merge"
	"scribe/storage/metalog"
)

// consumerStream is one open stream. Its driver is the goroutine of the call, which alone sends, reads, and takes from the merge; what
// is outside of mu belongs to it.
type consumerStream struct {
	s    *Server
	plan *streamPlan
	cat  *scribev1.Category
	log  *slog.Logger
	send func(*scribev1.StreamResponse) error

	// opening is StreamOpened until it is sent.
	opening []*scribev1.StreamShard
	// skips are positions within a payload that were given and not passed yet.
	skips map[record.ShardID]*scribev1.ShardPosition
	// first are the states of the shards that the stream begins with, until it follows them.
	first []metalog.State
	// member is the stream's part in its category's feed.
	member *feed.Member

	// batch is what was taken and not sent, the first of it at taken; control an item that follows it.
	batch      []merge.Item
	taken      time.Time
	sources    []sequenced.Record // of a sequenced log: what the batch's items are
	batchBytes int
	skipped    skippedRuns // what was left out between them
	watermark  int64
	pending    uint64 // records behind the batch
	control    *merge.Item
	wants      []merge.Want
	// reading are the reads that run, late of them those that the stream does not wait for; results, with room for all, tells of those
	// that have ended.
	reading map[*runningRead]struct{}
	late    int
	results chan readDone
	running sync.WaitGroup // the stream's goroutines

	silent       bool      // nothing was sent since the last tick
	stalled      bool      // the stream waits for credits
	resting      bool      // taking in shards failed; not again before the next tick
	look         bool      // the merge holds something back until the tails were looked at
	held         waitState // why the merge has nothing, when it has nothing
	standing     atomic.Uint32
	sentPointers atomic.Uint64
	shards       atomic.Int64 // that it follows
	// since is when it was opened, measured what it had sent when its rate was measured last; guarded by the server's mutex.
	since    time.Time
	measured uint64
	// failing tells since when calls of the engine fail for a shard; 0 stands for the category.
	failing map[record.ShardID]time.Time

	// merge is guarded by mu once the stream runs.
	merge *merge.Merge
	// sourced is the persisted time, in its source, of what was taken last of a sequenced log; 0 for others.
	sourced atomic.Int64
	mu      struct {
		sync.Mutex
		credits creditBalance
		owed    sentRuns
		// appeared are shards that the feed has told of; joining, that some are being taken in, and joined what was found of them.
		// horizon is what the merge is told of looks when there are none.
		appeared []record.ShardID
		joining  bool
		joined   *joinedShards
		horizon  int64
		// left are records that will be left out, of those that the merge holds: some 150 bytes each.
		left map[recordPlace]prunedPointer
		// asking: the control plane is being asked for the category.
		asking bool
		// err ends the stream; evict sends it away.
		err   error
		evict *eviction
		// closed: the merge is closed.
		closed bool
	}
	// wake tells the driver that something under mu has changed.
	wake chan struct{}
}

func newStream(s *Server, p *streamPlan, cat *scribev1.Category, send func(*scribev1.StreamResponse) error) *consumerStream {
	p.window = p.windowIn(cat)
	st := &consumerStream{
		s: s, plan: p, cat: cat, send: send,
		log:   s.log.With(slog.String("category", p.category), slog.String("consumer", p.consumer)),
		skips: map[record.ShardID]*scribev1.ShardPosition{}, failing: map[record.ShardID]time.Time{},
		merge:   merge.New(merge.Options{Window: p.window, Limit: s.cfg.StreamBytes, Budget: s.budget}),
		wake:    make(chan struct{}, 1),
		reading: map[*runningRead]struct{}{}, results: make(chan readDone, (1+lateReads)*s.cfg.Reads),
	}
	st.mu.credits = p.credits
	return st
}

// addShard gives the merge a shard.
func (st *consumerStream) addShard(v metalog.State, from record.LSN) {
	st.merge.Add(v.Shard, from)
	st.merge.Tail(v.Shard, v.NextLSN, v.Watermark, v.Sealed)
	if st.skips[v.Shard] != nil {
		st.merge.Begin(v.Shard)
	}
	st.opening = append(st.opening, &scribev1.StreamShard{Shard: uint64(v.Shard), Lsn: uint64(from), NextLsn: uint64(v.NextLSN)})
}

// wakeDriver wakes the driver.
func (st *consumerStream) wakeDriver() {
	select {
	case st.wake <- struct{}{}:
	default: // it will look at everything anyway
	}
}

// failStream ends the stream with an error, the first one.
func (st *consumerStream) failStream(err error) {
	st.mu.Lock()
	st.mu.err = cmp.Or(st.mu.err, err)
	st.mu.Unlock()
	st.wakeDriver()
}

// eviction is why a stream is sent away.
type eviction struct {
	reason  scribev1.Reason
	message string
}

// sendAway makes the stream end with an eviction, for the first reason given.
func (st *consumerStream) sendAway(e eviction) {
	st.mu.Lock()
	if st.mu.evict == nil {
		st.mu.evict = &e
	}
	st.mu.Unlock()
	st.wakeDriver()
}

// addShards counts shards that the stream follows from now on, or follows no more. It returns how many all streams follow.
func (st *consumerStream) addShards(n int) int64 {
	st.s.metrics.shards.Add(float64(n))
	st.shards.Add(int64(n))
	return st.s.cursors.Add(int64(n))
}

// closeStream gives back what a stream holds that does not run, or does no more.
func (st *consumerStream) closeStream() {
	st.addShards(-int(st.shards.Load()))
	st.mu.Lock()
	defer st.mu.Unlock()
	st.mu.closed = true
	st.merge.Close()
}

// runStream serves the stream until it ends. It returns nil after an eviction.
func (st *consumerStream) runStream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		st.running.Wait()
		if st.member != nil {
			st.member.Leave()
		}
		st.closeStream()
	}()
	// The client may do with it as it likes; the view's own is shared.
	opened := &scribev1.StreamOpened{Category: proto.CloneOf(st.cat), Shards: st.opening}
	if w := st.plan.window; st.plan.sequenced {
		opened.Window = durationpb.New(0)
	} else if w != merge.Unbounded {
		opened.Window = durationpb.New(time.Duration(min(w, math.MaxInt64/1000)) * time.Microsecond)
	}
	st.opening = nil
	if err := st.sendNow(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_Opened{Opened: opened}}); err != nil {
		return err
	}
	st.running.Go(func() { st.receiveCredits(ctx, recv) })
	st.member = st.s.hub.Join(st.cat.GetId(), feedListener{st})
	st.member.Follow(st.first)
	st.first = nil
	return st.driveStream(ctx)
}

// receiveCredits takes the client's credits.
func (st *consumerStream) receiveCredits(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error)) {
	for {
		req, err := recv(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return // the client has nothing more to say; it still listens
		case err != nil:
			if ctx.Err() == nil {
				st.failStream(err)
			}
			return
		case req.GetCredits() == nil:
			st.failStream(rpc.Errorf(scribev1.Reason_REASON_INVALID, "after its start a stream takes credits and nothing else"))
			return
		}
		st.mu.Lock()
		st.mu.credits.addCredits(req.GetCredits())
		st.mu.owed.noteReturned(req.GetCredits().GetPointers())
		st.mu.Unlock()
		st.wakeDriver()
	}
}

// stopReason is why fill stopped.
type stopReason uint8

const (
	stopFull    stopReason = 1 // the batch is
	stopControl stopReason = 2 // control is set
	stopCredits stopReason = 3
	stopRead    stopReason = 4
	stopIdle    stopReason = 5
)

// driveStream is the loop of the stream. Each turn takes what the merge has, and then does the one thing that it needs next.
func (st *consumerStream) driveStream(ctx context.Context) error {
	// Two ticks without a message make one heartbeat.
	ticker := time.NewTicker(st.plan.heartbeat / 2)
	defer ticker.Stop()
	for {
		if done, err := st.checkEnd(ctx); done || err != nil {
			return err
		}
		select {
		case <-ticker.C:
			if err := st.handleTick(ctx); err != nil {
				return err
			}
		default:
		}
		why, err := stopRead, error(nil)
		if st.promptReads() == 0 { // else it is not known what comes first
			why, err = st.fillBatch()
		}
		if err != nil {
			return err
		}
		if st.look {
			st.look = false
			st.member.Look() // while what there is is sent
		}
		switch {
		case why == stopRead && st.mayRead() && !st.batchOverdue():
			// The batch waits: it will be larger. Reads may bring nothing for it, one after another, so it does not wait for long.
			err = st.startReads(ctx)
		case len(st.batch) > 0 || len(st.skipped.runs) > 0 || st.control != nil:
			err = st.flushBatch()
		default:
			err = st.waitForWork(ctx, ticker.C, why)
		}
		if err != nil {
			return err
		}
	}
}

// lingerLeft is how long the batch may wait yet.
func (st *consumerStream) lingerLeft() time.Duration {
	return st.s.cfg.BatchLinger - time.Since(st.taken)
}

// batchOverdue reports whether there is a batch that has waited for long enough.
func (st *consumerStream) batchOverdue() bool { return len(st.batch) > 0 && st.lingerLeft() <= 0 }

// checkEnd reports whether the stream is over.
func (st *consumerStream) checkEnd(ctx context.Context) (done bool, _ error) {
	st.mu.Lock()
	err, evict := st.mu.err, st.mu.evict
	joined, appeared := st.mu.joined, st.mu.appeared
	st.mu.joined = nil
	if len(appeared) > 0 && !st.mu.joining && !st.resting {
		st.mu.appeared, st.mu.joining = nil, true
	} else {
		appeared = nil
	}
	st.mu.Unlock()
	if len(appeared) > 0 {
		st.startJoin(ctx, appeared)
	}
	switch {
	case ctx.Err() != nil:
		return true, context.Cause(ctx)
	case err != nil:
		return true, err
	case evict != nil:
		return true, st.evictClient(*evict)
	case st.s.evicting.Err() != nil:
		return true, st.evictClient(eviction{scribev1.Reason_REASON_SHUTTING_DOWN, "the server is shutting down"})
	case joined != nil:
		return false, st.finishJoin(ctx, joined)
	}
	return false, nil
}

// waitForWork sleeps until there is something to do.
func (st *consumerStream) waitForWork(ctx context.Context, tick <-chan time.Time, why stopReason) error {
	if starving := why == stopCredits; starving != st.stalled {
		if st.stalled = starving; starving {
			st.s.metrics.stalls.Inc()
		}
	}
	switch why {
	case stopCredits:
		st.standing.Store(uint32(waitsCredits))
	case stopRead:
		st.standing.Store(uint32(waitsLog))
	default:
		st.standing.Store(uint32(st.held))
	}
	defer st.standing.Store(uint32(runs))
	select {
	case <-st.wake:
	case done := <-st.results:
		return st.finishRead(ctx, done)
	case <-tick:
		return st.handleTick(ctx)
	case <-ctx.Done():
	case <-st.s.evicting.Done():
	}
	return nil
}

// handleTick does what is done now and then.
func (st *consumerStream) handleTick(ctx context.Context) error {
	st.categoryExists(ctx)
	st.resting = false
	if most := st.s.cfg.MaxStreamAge; most > 0 && st.s.clock().Sub(st.since) >= most {
		st.sendAway(eviction{scribev1.Reason_REASON_OVERLOADED, fmt.Sprintf("the stream has run for %v: it can go on here or at another server", most)})
		return nil
	}
	st.mu.Lock()
	st.merge.Retry()
	lagging := st.plan.window != merge.Unbounded && st.merge.Lagging()
	st.mu.Unlock()
	if lagging {
		st.member.Look()
	}
	if !st.silent {
		st.silent = true
		return nil
	}
	if len(st.batch) > 0 || len(st.skipped.runs) > 0 {
		return st.flushBatch()
	}
	st.mu.Lock()
	beat := &scribev1.StreamHeartbeat{Watermark: st.merge.Low(), Pending: st.merge.Pending()}
	st.mu.Unlock()
	st.s.metrics.heartbeats.Inc()
	return st.sendNow(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_Heartbeat{Heartbeat: beat}})
}

// fillBatch takes items from the merge into the batch, until something else is to be done.
func (st *consumerStream) fillBatch() (stopReason, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	before := len(st.batch)
	why, err := st.takeItems()
	if taken := st.batch[before:]; len(taken) > 0 {
		if before == 0 {
			st.taken = time.Now()
		}
		oldest := taken[0].Time
		for i := range taken {
			oldest = min(oldest, taken[i].Time)
		}
		if st.plan.sequenced {
			oldest = st.sources[before].Time // they are in this order
		}
		st.mu.owed.noteSent(len(taken), oldest)
	}
	return why, err
}

// takeItems is fill with the mutex held.
func (st *consumerStream) takeItems() (stopReason, error) {
	for st.control == nil {
		kind, status := st.merge.Peek()
		if status != merge.Ready {
			return st.standStill(status), nil
		}
		if kind == merge.Entry {
			switch {
			case len(st.skipped.runs) >= st.s.cfg.BatchEntries:
				return stopFull, nil
			case st.passesOverNext() || st.prunesNext():
				continue
			case len(st.batch) >= st.s.cfg.BatchEntries || st.batchBytes >= st.s.cfg.BatchBytes:
				return stopFull, nil
			case !st.mu.credits.hasCredits():
				return stopCredits, nil
			}
		}
		if err := st.takeItem(); err != nil {
			return 0, err
		}
	}
	return stopControl, nil
}

// standStill takes note of why the merge has no item.
func (st *consumerStream) standStill(status merge.Status) stopReason {
	switch {
	case status == merge.Read:
		return stopRead
	case status == merge.Look:
		st.look, st.held = true, waitsWindow
	case st.merge.Pending() > 0:
		st.held = waitsLog
	default:
		st.held = waitsNews
	}
	return stopIdle
}

// takeItem takes the merge's next item: an entry into the batch, anything else as the control message behind it. The mutex is held.
func (st *consumerStream) takeItem() error {
	it, _ := st.merge.Next()
	if len(st.skips) > 0 {
		delete(st.skips, it.Shard)
	}
	st.forgetPruned(&it)
	if it.Kind != merge.Entry {
		st.control = &it
		return nil
	}
	p, err := st.unwrapEntry(&it)
	switch {
	case err == nil && it.Kind != merge.Entry: // a gap, in a sequenced log
		st.control = &it
	case errors.Is(err, pointer.ErrVersion), errors.Is(err, sequenced.ErrVersion):
		return rpc.Errorf(scribev1.Reason_REASON_UNSPECIFIED, "shard %v, LSN %d: %w", it.Shard, it.LSN, err)
	case err != nil:
		st.log.Error("a record holds no pointer", "shard", it.Shard.String(), "lsn", uint64(it.LSN), "error", err)
		st.control = &merge.Item{Kind: merge.Gap, Cause: merge.Corrupt, Shard: it.Shard, LSN: it.LSN, To: it.LSN + 1}
	default:
		st.mu.credits.spendCredits(p.Length)
		st.s.metrics.payloadBytes.Add(float64(p.Length))
		st.batch = append(st.batch, it)
		st.batchBytes += len(it.Data)
	}
	st.watermark, st.pending = st.merge.Low(), st.merge.Pending()
	return nil
}

// passesOverNext takes the merge's next entry out, and reports that it did, if it is in buckets of others: it takes neither credits nor room. The
// mutex is held.
func (st *consumerStream) passesOverNext() bool {
	b := st.plan.buckets
	if b == nil || b.Has(st.merge.Head()) {
		return false
	}
	it, _ := st.merge.Next()
	delete(st.skips, it.Shard)
	st.forgetPruned(&it)
	st.watermark, st.pending = st.merge.Low(), st.merge.Pending()
	st.s.metrics.filtered.Inc()
	return true
}

// flushBatch sends the batch, and the control message that follows it.
func (st *consumerStream) flushBatch() error {
	if n := len(st.batch); n > 0 || len(st.skipped.runs) > 0 {
		slab := make([]scribev1.StreamEntry, n)
		entries := make([]*scribev1.StreamEntry, n)
		for i := range st.batch {
			it, e := &st.batch[i], &slab[i]
			e.Shard, e.Lsn, e.Time, e.Pointer = uint64(it.Shard), uint64(it.LSN), it.Time, it.Data
			entries[i] = e
		}
		st.addSources(entries)
		err := st.sendNow(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_Entries{
			Entries: &scribev1.StreamEntries{Entries: entries, Watermark: st.watermark, Pending: st.pending, Skipped: st.skipped.takeRuns()},
		}})
		if err != nil {
			return err
		}
		st.sentPointers.Add(uint64(n))
		st.s.metrics.pointers.Add(float64(n))
		st.s.metrics.pointerBytes.Add(float64(st.batchBytes))
		clear(st.batch)
		st.batch, st.batchBytes, st.stalled = st.batch[:0], 0, false
	}
	if st.control == nil {
		return nil
	}
	it := st.control
	st.control = nil
	if it.Kind == merge.End {
		return st.sendNow(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_ShardEnded{
			ShardEnded: &scribev1.StreamShard{Shard: uint64(it.Shard), Lsn: uint64(it.LSN), NextLsn: uint64(it.LSN)},
		}})
	}
	reason := scribev1.Reason_REASON_TRIMMED
	if it.Cause == merge.Corrupt {
		reason = scribev1.Reason_REASON_CORRUPT
	}
	st.s.metrics.gaps.WithLabelValues(label(reason)).Inc()
	st.s.metrics.lost.WithLabelValues(label(reason)).Add(float64(it.To - it.LSN))
	st.log.Warn("gap", "shard", it.Shard.String(), "from", uint64(it.LSN), "to", uint64(it.To), "reason", label(reason))
	return st.sendNow(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_Gap{
		Gap: &scribev1.StreamGap{Shard: uint64(it.Shard), From: uint64(it.LSN), To: uint64(it.To), Reason: reason},
	}})
}

func (st *consumerStream) sendNow(r *scribev1.StreamResponse) error {
	st.silent = false
	st.standing.Store(uint32(waitsSend))
	defer st.standing.Store(uint32(runs))
	return st.send(r)
}

// evictClient sends what was taken, and then the client away.
func (st *consumerStream) evictClient(why eviction) error {
	if err := st.flushBatch(); err != nil {
		return err
	}
	st.mu.Lock()
	resume := make([]*scribev1.ShardPosition, 0, st.merge.Total())
	for shard, lsn := range st.merge.Positions() {
		p := &scribev1.ShardPosition{Shard: uint64(shard), Lsn: uint64(lsn)}
		if r := st.skips[shard]; r != nil {
			p.Skip = r.GetSkip()
		}
		resume = append(resume, p)
	}
	st.mu.Unlock()
	slices.SortFunc(resume, func(a, b *scribev1.ShardPosition) int { return cmp.Compare(a.GetShard(), b.GetShard()) })
	err := st.sendNow(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_Evicted{Evicted: &scribev1.StreamEvicted{
		Reason: why.reason, Message: why.message, Resume: resume,
	}}})
	if err == nil {
		st.s.metrics.evictions.WithLabelValues(label(why.reason)).Inc()
	}
	return err
}
