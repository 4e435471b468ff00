package scribed

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/spool"
)

// spoolAttempts is how often a failing append or sync is tried: after a failure the spool continues in another file.
const spoolAttempts = 3

// runAppend runs an append. When it returns, the queue has accounted for the entries.
func (s *Scribed) runAppend(a *spoolAppend) error {
	for _, prev := range a.prevs {
		<-prev.a.done
		if prev.ordered {
			a.err = errors.Join(a.err, prev.a.err)
		}
	}
	a.prevs = nil
	defer close(a.done)
	if a.err != nil {
		s.endAppend(a, nil)
		return a.err
	}
	var refs []spool.Ref
	if len(a.records) > 0 {
		for range spoolAttempts {
			refs, a.err = s.spool.Append(a.records)
			if a.err == nil || errors.Is(a.err, spool.ErrFull) || errors.Is(a.err, spool.ErrClosed) {
				break
			}
		}
	}
	if a.err != nil && !errors.Is(a.err, spool.ErrFull) {
		s.throttled.warn(s.ctx, "append", "spool append failed", slog.Any("error", a.err))
	}
	s.endAppend(a, refs)
	return a.err
}

func (s *Scribed) endAppend(a *spoolAppend, refs []spool.Ref) {
	used, _ := s.spool.Used()
	s.mu.Lock()
	s.mu.queue.diskUsed = used
	s.mu.queue.finishAppend(a, refs, s.now())
	s.notifyChange()
	s.mu.Unlock()
}

// syncSpool makes everything durable that was appended before the call.
func (s *Scribed) syncSpool(ctx context.Context) (err error) {
	for range spoolAttempts {
		// The contents of a failed file are rewritten to another one; the next Sync waits for that.
		if err = s.spool.Sync(ctx); !errors.Is(err, spool.ErrFailed) {
			return err
		}
	}
	s.throttled.warn(ctx, "sync", "spool sync failed", slog.Any("error", err))
	return err
}

// dropBacklog drops the oldest frames of a category's backlog, see spool.Drop.
func (s *Scribed) dropBacklog(category string, atLeast int64, olderThan time.Time, reason string) {
	s.spool.Drop(category, atLeast, olderThan, reason)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readBacklog()
	s.notifyChange()
}

// readBacklog returns the frames that are in the spool only, and counts those gone since the last call: the two are read
// together, so the balance holds. The caller holds mu.
func (s *Scribed) readBacklog() request.Amount {
	if s.spool == nil {
		return request.Amount{}
	}
	q := &s.mu.queue
	backlog, gone := s.spool.Account()
	for _, g := range gone {
		sum := amountOf(g.Amount)
		q.freed = true
		q.countLoss(g.Category, g.Reason, sum, s.now())
		s.throttled.warnDropped(s.ctx, g.Category, g.Reason, sum)
		if l := q.queues[g.Category]; l != nil {
			q.forgetIdle(l)
		}
	}
	return amountOf(backlog)
}

// spillLoop spills frames that have been in memory for too long, or that crowd it.
func (s *Scribed) spillLoop() {
	runEvery(max(s.cfg.SpillAfter/4, time.Millisecond), s.crowded, s.stopKeeping, func() {
		for s.spillOnce(false) {
		}
	})
}

// runEvery calls f in each interval, and at each wake-up, until stop is closed.
func runEvery(interval time.Duration, wakeUps, stop <-chan struct{}, f func()) {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-wakeUps:
		case <-stop:
			return
		}
		f()
	}
}

// spillOnce writes one append of what must be spilled, and reports whether it wrote any.
func (s *Scribed) spillOnce(everything bool) bool {
	s.mu.Lock()
	a := s.mu.queue.planSpill(s.now(), everything)
	if a == nil {
		s.mu.quietTill = s.now().Add(crowdedPause)
	}
	s.mu.Unlock()
	return a != nil && s.runAppend(a) == nil
}

// crowdedPause is how long the spiller waits when the memory is crowded and nothing can be spilled.
const crowdedPause = 20 * time.Millisecond

// upkeepLoop handles what changes with time: ages, damage, and gauges that are expensive to compute.
func (s *Scribed) upkeepLoop() { runEvery(keeperInterval, nil, s.stopKeeping, s.runUpkeep) }

const keeperInterval = time.Second

func (s *Scribed) runUpkeep() {
	used := int64(0)
	if s.spool != nil {
		used, _ = s.spool.Used()
	}
	s.mu.Lock()
	s.mu.queue.diskUsed = used
	s.mu.queue.freed = true // the spool frees files asynchronously
	s.readBacklog()
	s.notifyChange()
	s.mu.Unlock()
	if s.spool != nil {
		s.noteOldest()
	}
	if slices.ContainsFunc(s.cfg.Rules, func(r Rule) bool { return r.MaxAge > 0 }) {
		s.dropExpired()
	}
}

// dropExpired drops frames older than their category's MaxAge.
func (s *Scribed) dropExpired() {
	now := s.now()
	type limit struct {
		category string
		before   time.Time
	}
	var onDisk []limit
	s.mu.Lock()
	for _, l := range s.mu.queue.queues {
		if l.rule.MaxAge == 0 {
			continue
		}
		before := now.Add(-l.rule.MaxAge)
		if s.mu.queue.backlogOf(l).Frames > 0 {
			onDisk = append(onDisk, limit{l.name, before})
		}
		s.giveUpEntries(s.mu.queue.takeEntries(l, func(e *queueEntry, _ int64) bool { return e.since.Before(before) }), expiredReason)
	}
	s.notifyChange()
	s.mu.Unlock()
	for _, o := range onDisk {
		s.dropBacklog(o.category, 0, o.before, expiredReason)
	}
}

// giveUpEntries counts entries that were removed from memory and are dropped on purpose. The caller holds mu.
func (s *Scribed) giveUpEntries(entries []*queueEntry, reason string) {
	for _, e := range entries {
		sum := s.mu.queue.countLostFrames(e.category, reason, e.frames, s.now())
		s.throttled.warnDropped(s.ctx, e.category, reason, sum)
		s.mu.queue.releaseBuffer(e.mem)
	}
}

// noteOldest updates the time of the oldest frame, for the gauge.
func (s *Scribed) noteOldest() {
	var oldest time.Time
	for _, q := range s.spool.Queues() {
		oldest = earlierOf(oldest, q.Oldest)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.oldest = oldest
	for _, l := range s.mu.queue.turn {
		s.mu.oldest = earlierOf(s.mu.oldest, l.entries[0].since)
	}
}

// recoverBacklog takes over the spool's contents from the last run. Records found damaged count as recovered and as dropped.
func (s *Scribed) recoverBacklog() {
	q := &s.mu.queue
	for _, held := range s.spool.Queues() {
		l := q.queueOf(held.Category)
		l.sequenced = true // unknown; assume the worst
		l.end = held.Last
		q.joinBacklog(l)
	}
	backlog := s.readBacklog()
	q.counts.recovered = backlog
	for _, a := range q.counts.dropped {
		q.counts.recovered = q.counts.recovered.Plus(a)
	}
	if backlog.Frames > 0 {
		s.deps.Logger.Info("forwarding the backlog of the last run", slog.Int64("frames", backlog.Frames),
			slog.Int64("messages", backlog.Messages), slog.Int64("bytes", backlog.Bytes), slog.Int("categories", len(q.queues)))
	}
}

// spoolError is the error of a write that the spool has no capacity for, or cannot write.
func (s *Scribed) spoolError(e *queueEntry, err error) error {
	return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, s.retryAfter(), "%d bytes of category %s do not fit into the agent's spool: %v", e.bytes, e.category, err)
}
