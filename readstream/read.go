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

// wholeCategory is the key in consumerStream.failing for calls that are not about one shard.
const wholeCategory record.ShardID = 0

// handleFailure handles a failed call of the engine: the stream continues, and retries at the next tick, unless calls have failed
// for Config.FailAfter without a success.
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

// engineClosed evicts the client: the engine of this process is closed when the process ends.
func (st *consumerStream) engineClosed() {
	st.sendAway(evictionNotice{scribev1.Reason_REASON_SHUTTING_DOWN, "the metadata engine of this server is closed"})
}

// runningRead is a running read. A shard may briefly have two: the merge is told of the first one's result before the driver is.
type runningRead struct {
	shard record.ShardID
	since time.Time
	late  bool
}

// readDone is a read whose result the merge has received.
type readDone struct {
	*runningRead
	err error
}

// promptReads returns the number of running reads that the stream waits for.
func (st *consumerStream) promptReads() int { return len(st.reading) - st.late }

// mayRead reports whether a read is running that the stream waits for, or another one may start.
func (st *consumerStream) mayRead() bool {
	return st.promptReads() > 0 || st.late < lateReads*st.s.cfg.Reads
}

// startReads starts the reads that the merge wants, up to the limits, and waits until one has ended, since it may bring what
// comes first. The wait is bounded by ReadGrace and by the batch's linger: a shard that does not answer holds back only what its
// window covers.
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
		return nil // updates have brought what was wanted
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

// graceLeft returns how long the stream still waits for the running reads. It marks reads that exceed ReadGrace as late.
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

// finishRead handles the end of a read.
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

// recordCost is the memory of a small record in a queue. It keeps a read of many small records within its limit.
const recordCost = 160

// readOne makes one read and gives its result to the merge.
func (st *consumerStream) readOne(ctx context.Context, w merge.Want) error {
	st.s.metrics.reads.Inc()
	entries, err := st.s.deps.Log.Read(ctx, w.Shard, w.LSN, w.MaxBytes/recordCost+1, w.MaxBytes)
	at := damagedAt(err, w.LSN)
	if at > w.LSN {
		// The damage is after good records, or the engine does not say where. Then reading the first record alone tells.
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
		to, cause, err = st.firstLSN(ctx, w, err)
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

// Results of damagedAt that are not the LSN of a record.
const (
	// unknownPlace: a record is damaged, but it is not known which.
	unknownPlace record.LSN = 1<<64 - 1
	// noRecord: no record is damaged. The shard's own state may be.
	noRecord record.LSN = 0
)

// damagedAt returns the LSN of the record that a read's error reports as damaged.
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

// firstLSN returns up to where nothing can be read of a shard whose read failed with ErrTrimmed, and why. Who is at the shard's first LSN, and has
// read nothing of it, goes first to where it began for this reader: only what was trimmed since is missing.
func (st *consumerStream) firstLSN(ctx context.Context, w merge.Want, err error) (record.LSN, merge.Cause, error) {
	t := new(metalog.TrimmedError)
	known := errors.As(err, &t) && t.First > 0
	if known && w.LSN > record.FirstLSN {
		return t.First, merge.Trimmed, nil
	}
	if at := st.unowedBelow(w.Shard); at > w.LSN {
		return at, merge.Unbegun, nil
	}
	states, terr := st.s.deps.Log.Tail(ctx, []record.ShardID{w.Shard})
	if terr != nil {
		return 0, 0, terr
	}
	// What a recovery did not find may be more than the reader was owed, or less. What was trimmed before the shard was removed was owed, unless
	// the shard was removed when the reader met it: that was noted then.
	if v := &states[0]; v.Origin > w.LSN && v.OriginTime == 0 && w.LSN == record.FirstLSN && st.plan.resume[w.Shard].GetSkip() == 0 {
		return v.Origin, merge.Unbegun, nil
	}
	if known {
		return max(t.First, states[0].FirstLSN), merge.Trimmed, nil
	}
	return states[0].FirstLSN, merge.Trimmed, nil
}

// unowedBelow returns the LSN below which nothing of a shard is owed to the reader; 0 if everything is.
func (st *consumerStream) unowedBelow(shard record.ShardID) record.LSN {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.mu.unowed[shard]
}
