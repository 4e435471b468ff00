package readstream

import (
	"context"
	"errors"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readstream/merge"
	"scribe/storage/metalog"
)

// wholeCategory stands in stream.failing for calls that are not about one shard.
const wholeCategory record.ShardID = 0

// handleFailure is what the driver makes of a failed call: it goes on, and tries again at the next tick, unless it has failed for too
// long without a success between.
func (st *consumerStream) handleFailure(ctx context.Context, shard record.ShardID, call string, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, metalog.ErrClosed):
		st.engineClosed()
		return nil
	}
	st.s.metrics.engineErrors.WithLabelValues(call).Inc()
	since, ok := st.failing[shard]
	if !ok {
		since = time.Now()
		st.failing[shard] = since
		st.log.Warn("the metadata engine failed", "call", call, "shard", shard.String(), "error", err)
	}
	if time.Since(since) >= st.s.cfg.FailAfter {
		return st.engineLost(err)
	}
	return nil
}

func (st *consumerStream) engineLost(err error) error {
	return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, st.s.cfg.RetryAfter,
		"the metadata engine has failed for more than %v: %w", st.s.cfg.FailAfter, err)
}

// engineClosed sends the client away: the engine of this process is closed with the process.
func (st *consumerStream) engineClosed() {
	st.sendAway(evictionNotice{scribev1.Reason_REASON_SHUTTING_DOWN, "the metadata engine of this server is closed"})
}

// runningRead is a read that runs. There may be two of a shard for a moment: the merge is told of the first one before the driver is.
type runningRead struct {
	shard record.ShardID
	since time.Time
	late  bool
}

// readDone is a read that the merge was told of.
type readDone struct {
	*runningRead
	err error
}

// promptReads is how many reads run that the stream waits for.
func (st *consumerStream) promptReads() int { return len(st.reading) - st.late }

// mayRead reports whether there is a read to wait for, or a place for another one.
func (st *consumerStream) mayRead() bool {
	return st.promptReads() > 0 || st.late < lateReads*st.s.cfg.Reads
}

// startReads begins the reads that the merge wants, some at a time, and waits until one has ended, since what it brings may come first. It does
// not wait for long: a shard that does not answer keeps back what its window says, and nothing else. Nor does a batch that waits beside it.
func (st *consumerStream) startReads(ctx context.Context) error {
	st.s.relieveMemory()
	st.mu.Lock()
	st.wants = st.merge.Wants(st.wants[:0], min(st.s.cfg.Reads-st.promptReads(), lateReads*st.s.cfg.Reads-st.late))
	st.mu.Unlock()
	for _, w := range st.wants {
		r := &runningRead{shard: w.Shard, since: time.Now()}
		st.reading[r] = struct{}{}
		st.running.Go(func() {
			rctx, cancel := context.WithTimeout(ctx, st.s.cfg.ReadTimeout)
			defer cancel()
			st.results <- readDone{r, st.readOne(rctx, w)}
		})
	}
	if st.promptReads() == 0 {
		return nil // what was wanted has come in the meantime
	}
	wait := st.graceLeft(time.Now())
	if len(st.batch) > 0 {
		wait = min(wait, st.lingerLeft())
	}
	grace := time.NewTimer(wait)
	defer grace.Stop()
	st.standing.Store(uint32(waitsLog))
	defer st.standing.Store(uint32(runs))
	select {
	case done := <-st.results:
		return st.finishRead(ctx, done)
	case <-grace.C:
		st.graceLeft(time.Now())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// graceLeft is how long the stream waits for the reads that run. Those that have run for long enough are late.
func (st *consumerStream) graceLeft(now time.Time) time.Duration {
	left := st.s.cfg.ReadGrace
	for r := range st.reading {
		switch d := st.s.cfg.ReadGrace - now.Sub(r.since); {
		case r.late:
		case d > 0:
			left = min(left, d)
		default:
			r.late = true
			st.late++
			st.s.metrics.lateReads.Inc()
			st.mu.Lock()
			st.merge.Late(r.shard)
			st.mu.Unlock()
		}
	}
	return left
}

// finishRead takes note of a read that has ended.
func (st *consumerStream) finishRead(ctx context.Context, done readDone) error {
	if done.late {
		st.late--
	}
	delete(st.reading, done.runningRead)
	if done.err == nil {
		delete(st.failing, done.shard)
		return nil
	}
	return st.handleFailure(ctx, done.shard, "read", done.err)
}

// recordCost is what a small record takes in a queue, to keep a read of many small ones within its room.
const recordCost = 160

// readOne does one read and tells the merge.
func (st *consumerStream) readOne(ctx context.Context, w merge.Want) error {
	st.s.metrics.reads.Inc()
	entries, err := st.s.deps.Log.Read(ctx, w.Shard, w.LSN, w.MaxBytes/recordCost+1, w.MaxBytes)
	at := damagedAt(err, w.LSN)
	if at > w.LSN {
		// The damage is behind good records, or the engine does not say where; then the first record alone tells.
		good := 1
		if at > w.LSN && at != unknownPlace {
			good = int(at - w.LSN)
		}
		entries, err = st.s.deps.Log.Read(ctx, w.Shard, w.LSN, good, w.MaxBytes)
		if at = damagedAt(err, w.LSN); at == unknownPlace && good == 1 {
			at = w.LSN
		}
	}
	to, cause := record.LSN(0), merge.Trimmed
	switch {
	case at == w.LSN:
		st.log.Error("a record is damaged in the metadata engine", "shard", w.Shard.String(), "lsn", uint64(w.LSN), "error", err)
		to, cause, err = w.LSN+1, merge.Corrupt, nil
	case errors.Is(err, metalog.ErrTrimmed):
		to, err = st.firstLSN(ctx, w.Shard, err)
	}
	var leave map[record.LSN]prunedPointer
	if err == nil && to == 0 {
		leave = st.judgeEntries(ctx, w.Shard, entries)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case err != nil:
		st.merge.Fail(w.Shard)
	case to > 0:
		st.merge.Skip(w.Shard, to, cause)
	default:
		st.merge.Loaded(w.Shard, entries)
		st.keepPruned(w.Shard, leave)
	}
	return err
}

// Answers of damagedAt that are no LSN of a record.
const (
	// unknownPlace: some record is damaged.
	unknownPlace record.LSN = 1<<64 - 1
	// noRecord: none is. The shard's own state may be.
	noRecord record.LSN = 0
)

// damagedAt returns which record the error of a read from an LSN says is damaged.
func damagedAt(err error, from record.LSN) record.LSN {
	c := new(metalog.CorruptError)
	switch {
	case errors.As(err, &c) && c.LSN >= from:
		return c.LSN
	case errors.Is(err, metalog.ErrCorrupt) && (c.Shard == 0 || c.LSN != 0):
		return unknownPlace
	}
	return noRecord
}

// firstLSN is where a shard begins whose read failed with ErrTrimmed.
func (st *consumerStream) firstLSN(ctx context.Context, shard record.ShardID, err error) (record.LSN, error) {
	if t := new(metalog.TrimmedError); errors.As(err, &t) && t.First > 0 {
		return t.First, nil
	}
	states, terr := st.s.deps.Log.Tail(ctx, []record.ShardID{shard})
	if terr != nil {
		return 0, terr
	}
	return states[0].FirstLSN, nil
}
