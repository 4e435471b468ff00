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

	"scribe/internal/base/lifecycle"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readstream/feed"
	"scribe/readstream/merge"
	"scribe/storage/metalog"
)

// consumerStream is one open stream. Its driver is the goroutine of the call, which alone sends, starts reads, and takes from the
// merge. The driver owns everything outside of mu.
type consumerStream struct {
	s    *Server
	plan *streamPlan
	cat  *scribev1.Category
	log  *slog.Logger
	send func(*scribev1.StreamResponse) error

	// opening is StreamOpened's list of shards until it is sent.
	opening []*scribev1.StreamShard
	// skips are the requested positions within a payload that the stream has not passed yet.
	skips map[record.ShardID]*scribev1.ShardPosition
	// listed is the engine's time as of which the initial shards were listed, or, where the reader resumes, a time after everything that was listed;
	// 0 = unknown.
	listed int64
	// first are the states of the initial shards, until the stream follows them.
	first []metalog.State
	// member is the stream's membership in its category's feed.
	member *feed.Member

	// batch are the entries taken and not sent, the first of them at time taken; control is an item that follows them.
	batch      []merge.Item
	taken      time.Time
	sources    []sequenced.Record // of a sequenced log: the decoded records of batch
	batchBytes int
	skipped    skippedRuns // left-out pointers between entries of batch
	watermark  int64
	known      int64  // the knownUntil that goes with the watermark
	pending    uint64 // number of records after the batch
	control    *merge.Item
	wants      []merge.Want
	// reading are the running reads; late is the number of those that the stream does not wait for. results receives ended reads
	// and has capacity for all of them.
	reading map[*runningRead]struct{}
	late    int
	results chan readDone
	running sync.WaitGroup // the stream's goroutines

	silent       bool      // nothing was sent since the last tick
	stalled      bool      // the stream waits for credits
	resting      bool      // joining shards failed: no retry before the next tick
	look         bool      // the merge holds records back until the tails were looked at
	held         waitState // why the merge has no item
	standing     atomic.Uint32
	sentPointers atomic.Uint64
	shards       atomic.Int64 // number of shards that the stream follows
	// since is when the stream was opened; measured is sentPointers at the last measurement of its rate. The server's mutex
	// guards both.
	since    time.Time
	measured uint64
	// failing is the time since when calls of the engine fail for a shard; key 0 is the category.
	failing map[record.ShardID]time.Time

	// merge is guarded by mu once the stream runs.
	merge *merge.Merge
	// sourced is the source's persisted time of the last entry taken from a sequenced log; 0 for other logs.
	sourced atomic.Int64
	mu      struct {
		sync.Mutex
		credits creditBalance
		owed    sentRuns
		// appeared are shards that the feed has reported; joining: a join is running; joined is its result. horizon is what the
		// merge is told of looks when no shards are to be joined.
		appeared []record.ShardID
		joining  bool
		joined   *joinedShards
		horizon  int64
		// unowed is, of shards that were removed when the reader met them, the LSN below which nothing is owed to it.
		unowed map[record.ShardID]record.LSN
		// left are the queued records to be left out: about 150 bytes each.
		left map[recordPlace]prunedPointer
		// asking: a question about the category to the control plane is running.
		asking bool
		// err ends the stream; evict evicts it.
		err   error
		evict *evictionNotice
		// closed: the merge is closed.
		closed bool
	}
	// wake tells the driver that something under mu has changed.
	wake lifecycle.WakeChannel
}

func newStream(s *Server, p *streamPlan, cat *scribev1.Category, send func(*scribev1.StreamResponse) error) *consumerStream {
	p.window = p.windowIn(cat)
	st := &consumerStream{
		s: s, plan: p, cat: cat, send: send,
		log:   s.log.With(slog.String("category", p.category), slog.String("consumer", p.consumer)),
		skips: map[record.ShardID]*scribev1.ShardPosition{}, failing: map[record.ShardID]time.Time{},
		merge:   merge.New(merge.Options{Window: p.window, Limit: s.cfg.StreamBytes, Budget: s.budget}),
		wake:    lifecycle.NewWakeChannel(),
		reading: map[*runningRead]struct{}{}, results: make(chan readDone, (1+lateReads)*s.cfg.Reads),
	}
	st.mu.credits, st.mu.unowed = p.credits, map[record.ShardID]record.LSN{}
	return st
}

// knownUntil returns the time up to which the stream's shards are known to its reader, of what was sent so far; 0 = unknown. The mutex is held.
//
// Who resumes knows no more than before until a later look: a removed shard may have been opened between the listings of shards and of removed ones.
// It is in neither, and the reader, which is owed what the shard had, is told of it by the feed.
func (st *consumerStream) knownUntil() int64 {
	switch horizon := st.merge.Horizon(); {
	case st.listed == 0:
		return 0
	case horizon > st.listed:
		return horizon
	case st.plan.resumes():
		return st.plan.knownUntil
	default:
		return st.listed
	}
}

// metUntil returns the time before which nothing is owed to the reader of shards that join the stream late.
func (st *consumerStream) metUntil() int64 {
	if st.plan.resumes() {
		return st.plan.knownUntil // what was removed later is in the stream, unless it was opened while that was opened
	}
	return st.listed
}

// addShard adds a shard to the merge.
func (st *consumerStream) addShard(v metalog.State, from record.LSN) {
	st.merge.Add(v.Shard, from)
	st.merge.Tail(v.Shard, v.NextLSN, v.Watermark, v.Sealed)
	if st.skips[v.Shard] != nil {
		st.merge.Begin(v.Shard)
	}
	st.opening = append(st.opening, &scribev1.StreamShard{
		Shard: uint64(v.Shard), Lsn: uint64(from), NextLsn: uint64(v.NextLSN), Origin: uint64(st.mu.unowed[v.Shard]),
	})
}

// failStream ends the stream with an error. The first error counts.
func (st *consumerStream) failStream(err error) {
	st.mu.Lock()
	st.mu.err = cmp.Or(st.mu.err, err)
	st.mu.Unlock()
	st.wake.WakeUp()
}

// evictionNotice is the reason for evicting a stream.
type evictionNotice struct {
	reason  scribev1.Reason
	message string
}

// sendAway requests an eviction of the stream. The first reason counts.
func (st *consumerStream) sendAway(e evictionNotice) {
	st.mu.Lock()
	if st.mu.evict == nil {
		st.mu.evict = &e
	}
	st.mu.Unlock()
	st.wake.WakeUp()
}

// addShards adds n, which may be negative, to the number of shards that the stream follows. It returns the total of all streams.
func (st *consumerStream) addShards(n int) int64 {
	st.s.metrics.shards.Add(float64(n))
	st.shards.Add(int64(n))
	return st.s.cursors.Add(int64(n))
}

// closeStream releases the resources of a stream that never ran or has ended.
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
	// The client may change it, but the view's own is shared.
	opened := &scribev1.StreamOpened{Category: proto.CloneOf(st.cat), Shards: st.opening, KnownUntil: st.knownUntil()}
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

// receiveCredits receives the client's credits until the client closes its side.
func (st *consumerStream) receiveCredits(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error)) {
	for {
		req, err := recv(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return // the client has closed its side, but still receives
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
		st.wake.WakeUp()
	}
}

// stopReason is why fillBatch stopped.
type stopReason uint8

const (
	stopFull    stopReason = 1 // the batch is full
	stopControl stopReason = 2 // control is set
	stopCredits stopReason = 3
	stopRead    stopReason = 4
	stopIdle    stopReason = 5
)

// driveStream is the loop of the stream. Each turn takes what the merge has, and then does the one most urgent thing.
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
		if st.promptReads() == 0 { // otherwise a running read may bring what comes first
			why, err = st.fillBatch()
		}
		if err != nil {
			return err
		}
		if st.look {
			st.look = false
			st.member.Look() // concurrently with sending the batch
		}
		switch {
		case why == stopRead && st.mayRead() && !st.batchOverdue():
			// The batch waits, to become larger. Not for long: several reads in a row may bring nothing for it.
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

// lingerLeft returns how long the batch may still wait.
func (st *consumerStream) lingerLeft() time.Duration {
	return st.s.cfg.BatchLinger - time.Since(st.taken)
}

// batchOverdue reports whether a batch has waited for BatchLinger.
func (st *consumerStream) batchOverdue() bool { return len(st.batch) > 0 && st.lingerLeft() <= 0 }

// checkEnd reports whether the stream is over. It also starts and finishes joins of shards.
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
		return true, st.evictClient(evictionNotice{scribev1.Reason_REASON_SHUTTING_DOWN, "the server is shutting down"})
	case joined != nil:
		return false, st.finishJoin(ctx, joined)
	}
	return false, nil
}

// waitForWork waits for an event: a wake-up, a finished read, a tick, or the end.
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

// handleTick runs the periodic checks, and sends a heartbeat if nothing else was sent.
func (st *consumerStream) handleTick(ctx context.Context) error {
	st.categoryExists(ctx)
	st.resting = false
	if most := st.s.cfg.MaxStreamAge; most > 0 && st.s.clock().Sub(st.since) >= most {
		st.sendAway(evictionNotice{scribev1.Reason_REASON_OVERLOADED, fmt.Sprintf("the stream has run for %v: it can go on here or at another server", most)})
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
	beat := &scribev1.StreamHeartbeat{Watermark: st.merge.Low(), Pending: st.merge.Pending(), KnownUntil: st.knownUntil()}
	st.mu.Unlock()
	st.s.metrics.heartbeats.Inc()
	return st.sendNow(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_Heartbeat{Heartbeat: beat}})
}

// fillBatch takes items from the merge into the batch, until the batch is full or something else has to be done.
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
			oldest = st.sources[before].Time // entries are in the order of their sources' times
		}
		st.mu.owed.noteSent(len(taken), oldest)
	}
	return why, err
}

// takeItems is fillBatch's loop. The mutex is held.
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

// standStill records why the merge has no item.
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

// takeItem takes the merge's next item: an entry goes into the batch, anything else becomes the control message after it. The
// mutex is held.
func (st *consumerStream) takeItem() error {
	it := st.nextItem()
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
	return nil
}

// nextItem removes the next item from the merge. The mutex is held.
func (st *consumerStream) nextItem() merge.Item {
	it, _ := st.merge.Next()
	if len(st.skips) > 0 {
		delete(st.skips, it.Shard)
	}
	st.forgetPruned(&it)
	if it.Kind == merge.Entry {
		st.watermark, st.pending, st.known = st.merge.Low(), st.merge.Pending(), st.knownUntil()
	}
	return it
}

// passesOverNext drops the merge's next entry if it is in a bucket of another member, and reports whether it did. A dropped entry
// takes no credits and no space in the batch. The mutex is held.
func (st *consumerStream) passesOverNext() bool {
	b := st.plan.buckets
	if b == nil || b.Has(st.merge.Head()) {
		return false
	}
	st.nextItem()
	st.s.metrics.filtered.Inc()
	return true
}

// flushBatch sends the batch, and then the control message.
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
			Entries: &scribev1.StreamEntries{Entries: entries, Watermark: st.watermark, Pending: st.pending, KnownUntil: st.known, Skipped: st.skipped.takeRuns()},
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
	if it.Cause == merge.Unbegun {
		return st.sendNow(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_Gap{
			Gap: &scribev1.StreamGap{
				Shard: uint64(it.Shard), From: uint64(it.LSN), To: uint64(it.To), Reason: scribev1.Reason_REASON_TRIMMED, BeforeOrigin: true,
			},
		}})
	}
	reason := scribev1.Reason_REASON_TRIMMED
	if it.Cause == merge.Corrupt {
		reason = scribev1.Reason_REASON_CORRUPT
	}
	st.s.metrics.gaps.WithLabelValues(rpc.ReasonLabel(reason)).Inc()
	if n := it.To - it.LSN; n < uncountedGap {
		st.s.metrics.lost.WithLabelValues(rpc.ReasonLabel(reason)).Add(float64(n))
	}
	st.log.Warn("gap", "shard", it.Shard.String(), "from", uint64(it.LSN), "to", uint64(it.To), "reason", rpc.ReasonLabel(reason))
	return st.sendNow(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_Gap{
		Gap: &scribev1.StreamGap{Shard: uint64(it.Shard), From: uint64(it.LSN), To: uint64(it.To), Reason: reason},
	}})
}

// uncountedGap is the length of a gap that is no number of records: a log that was lost begins far above its former LSNs.
const uncountedGap = 1 << 32

func (st *consumerStream) sendNow(r *scribev1.StreamResponse) error {
	st.silent = false
	st.standing.Store(uint32(waitsSend))
	defer st.standing.Store(uint32(runs))
	return st.send(r)
}

// evictClient sends the batch, and then an eviction with all positions.
func (st *consumerStream) evictClient(why evictionNotice) error {
	if err := st.flushBatch(); err != nil {
		return err
	}
	st.mu.Lock()
	resume := make([]*scribev1.ShardPosition, 0, st.merge.Total())
	for shard, lsn := range st.merge.Positions() {
		p := &scribev1.ShardPosition{Shard: uint64(shard), Lsn: uint64(max(lsn, st.mu.unowed[shard]))}
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
		st.s.metrics.evictions.WithLabelValues(rpc.ReasonLabel(why.reason)).Inc()
	}
	return err
}
