package scribed

import (
	"context"
	"errors"
	"log/slog"
	"time"

	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/spool"
)

// spoolAttempts is how often an append or a sync is tried that fails: the spool goes on in another file.
const spoolAttempts = 3

// execute carries an append out. Its entries are accounted for when it returns.
func (s *Scribed) execute(a *appending) error {
	for _, prev := range a.prevs {
		<-prev.a.done
		if prev.ordered {
			a.err = errors.Join(a.err, prev.a.err)
		}
	}
	a.prevs = nil
	defer close(a.done)
	if a.err != nil {
		s.finish(a, nil)
		return a.err
	}
	var refs []spool.Ref
	if len(a.records) > 0 {
		for range spoolAttempts {
			refs, a.err = s.spool.Append(a.records, a.claimed)
			if a.err == nil || errors.Is(a.err, spool.ErrFull) || errors.Is(a.err, spool.ErrClosed) {
				break
			}
		}
	}
	if a.err == nil {
		s.spool.Release(a.toBacklog(refs)...)
	} else if !errors.Is(a.err, spool.ErrFull) {
		s.notes.warn(s.ctx, "append", "the spool can't be written", slog.Any("error", a.err))
	}
	s.finish(a, refs)
	return a.err
}

// finish accounts for an append that has ended.
func (s *Scribed) finish(a *appending, refs []spool.Ref) {
	used, _ := s.spool.Used()
	s.mu.Lock()
	s.mu.queue.diskUsed = used
	fx := s.mu.queue.appended(a, refs, s.now())
	s.settle()
	s.mu.Unlock()
	s.carryOut(fx)
}

// toBacklog returns the records that belong to nobody once they are written: they go to the backlog.
func (a *appending) toBacklog(refs []spool.Ref) []spool.Ref {
	out := a.release
	for i := range a.parts {
		if p := &a.parts[i]; a.claimed && p.kind != stays {
			out = append(out, refs[p.from:p.to]...)
		}
	}
	return out
}

// carryOut does what an event left to be done outside of the lock. Letters come first: a frame leaves the spool when its letter is
// written.
func (s *Scribed) carryOut(fx effects) {
	s.bury(fx.letters)
	if len(fx.release) > 0 {
		s.spool.Release(fx.release...)
	}
	if len(fx.done) > 0 {
		s.spool.Done(fx.done...)
	}
	if len(fx.unused) == 0 && len(fx.letters) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range fx.unused {
		s.unref(m)
	}
	for i := range fx.letters {
		s.unref(fx.letters[i].mem)
	}
}

// unref gives memory back that nobody uses any more. The caller holds mu.
func (s *Scribed) unref(m *memory) {
	if m == nil {
		return
	}
	if m.refs--; m.refs == 0 {
		s.buffers.Put(m.buf)
		m.buf = nil
	}
}

// free gives the memory of entries back that have left the queue. The caller holds mu.
func (s *Scribed) free(entries ...*entry) {
	for _, e := range entries {
		s.unref(e.mem)
	}
}

// sync returns when everything that was appended is on disk.
func (s *Scribed) sync(ctx context.Context) (err error) {
	for range spoolAttempts {
		// What a failed file had is written again to another one, and the next call waits for that.
		if err = s.spool.Sync(ctx); !errors.Is(err, spool.ErrFailed) {
			return err
		}
	}
	s.notes.warn(ctx, "sync", "the spool can't be synced", slog.Any("error", err))
	return err
}

// dropBacklog takes the oldest frames of a category's backlog away.
func (s *Scribed) dropBacklog(category string, atLeast int64, olderThan time.Time, reason string) {
	got := s.spool.Drop(category, atLeast, olderThan)
	sum := amount{frames: got.Records, bytes: got.Bytes, messages: got.Messages}
	if sum.frames == 0 {
		return
	}
	s.mu.Lock()
	s.mu.queue.dropped(category, sum, reason, s.now())
	s.settle()
	s.mu.Unlock()
	s.notes.dropped(s.ctx, category, reason, sum)
}

// dropped is the event that frames of a backlog were given up.
func (q *queue) dropped(category string, sum amount, reason string, now time.Time) {
	l := q.lane(category)
	l.disk = l.disk.minus(sum)
	l.finished += sum.frames
	n := sum.bytes + sum.frames*recordOverhead
	l.held -= n
	q.held -= n
	q.freed = true
	q.counts.disk = q.counts.disk.minus(sum)
	q.lose(category, reason, sum, now)
	q.forget(l)
}

// spiller writes to the spool what has been in memory for too long, or is in the way there.
func (s *Scribed) spiller() {
	t := time.NewTicker(max(s.cfg.SpillAfter/4, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-s.crowded:
		case <-s.stopKeeping:
			return
		}
		for s.spillSome(false) {
		}
	}
}

// spillSome writes one part of what is to be spilled, and reports whether there was any that could be written.
func (s *Scribed) spillSome(everything bool) bool {
	s.mu.Lock()
	a := s.mu.queue.spill(s.now(), everything)
	if a == nil {
		s.mu.quietTill = s.now().Add(crowdedPause)
	}
	s.mu.Unlock()
	return a != nil && s.execute(a) == nil
}

// crowdedPause is how long a full memory of which nothing can be spilled is left alone.
const crowdedPause = 20 * time.Millisecond

// keeper looks after what changes with time: ages, damage, and the gauges that are dear to compute.
func (s *Scribed) keeper() {
	t := time.NewTicker(keeperInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			s.keep()
		case <-s.stopKeeping:
			return
		}
	}
}

const keeperInterval = time.Second

func (s *Scribed) keep() {
	used := int64(0)
	if s.spool != nil {
		used, _ = s.spool.Used()
	}
	s.mu.Lock()
	s.mu.queue.diskUsed = used
	s.mu.queue.freed = true // the spool gives files back when it has time
	s.settle()
	s.mu.Unlock()
	if s.spool != nil {
		s.noteLosses()
		s.reconcile()
		s.noteOldest()
	}
	if s.cfg.ages() {
		s.expire()
	}
}

// ages reports whether any category has an age limit.
func (c *Config) ages() bool {
	for i := range c.Rules {
		if c.Rules[i].MaxAge > 0 {
			return true
		}
	}
	return false
}

// expire drops what is older than its category allows.
func (s *Scribed) expire() {
	now := s.now()
	type limit struct {
		category string
		before   time.Time
	}
	var onDisk []limit
	s.mu.Lock()
	for _, l := range s.mu.queue.lanes {
		if l.rule.MaxAge == 0 {
			continue
		}
		before := now.Add(-l.rule.MaxAge)
		if l.disk.frames > 0 {
			onDisk = append(onDisk, limit{l.name, before})
		}
		s.giveUpEntries(s.mu.queue.expire(l, before), expiredReason)
	}
	s.settle()
	s.mu.Unlock()
	for _, o := range onDisk {
		s.dropBacklog(o.category, 0, o.before, expiredReason)
	}
}

// giveUpEntries counts entries that were taken out of memory and are lost on purpose. The caller holds mu.
func (s *Scribed) giveUpEntries(entries []*entry, reason string) {
	for _, e := range entries {
		sum := s.mu.queue.loseFrames(e.category, reason, e.frames, s.now())
		s.notes.dropped(s.ctx, e.category, reason, sum)
		s.free(e)
	}
}

// noteLosses looks for damage that the spool has found. Until the account of a category was compared, the lost frames count as
// buffered.
func (s *Scribed) noteLosses() {
	losses := s.spool.Losses()
	if len(losses) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range losses {
		if l := s.mu.queue.lanes[losses[i].Category]; losses[i].Category != "" && l != nil {
			l.doubt, s.mu.doubts = true, true
			continue
		}
		for _, l := range s.mu.queue.lanes {
			l.doubt, s.mu.doubts = true, true
		}
	}
}

// reconcile compares the account of categories that may have lost frames with what the spool has of them, at a moment when nothing
// of them is being written or sent; others wait for the next time.
func (s *Scribed) reconcile() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.doubts {
		return
	}
	s.mu.doubts = false
	q := &s.mu.queue
	for _, l := range q.lanes {
		if !l.doubt {
			continue
		}
		if l.appends > 0 || l.filling || l.busy || l.copies() > 0 {
			s.mu.doubts = true
			continue
		}
		l.doubt = false
		got := s.spool.Queue(l.name).Held
		lost := l.disk.minus(amount{frames: got.Records, bytes: got.Bytes, messages: got.Messages})
		if lost == (amount{}) {
			continue
		}
		q.dropped(l.name, lost, damagedReason, s.now())
		s.notes.dropped(s.ctx, l.name, damagedReason, lost)
	}
	s.settle()
}

// copies is how many frames are in memory and in the spool.
func (l *lane) copies() (n int) {
	for _, e := range l.entries {
		for i := range e.frames {
			if e.frames[i].spooled {
				n++
			}
		}
	}
	return n
}

// noteOldest finds out since when the oldest frame waits, for the gauge.
func (s *Scribed) noteOldest() {
	var oldest time.Time
	for _, q := range s.spool.Queues() {
		oldest = earlier(oldest, q.Oldest)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.oldest = oldest
	for _, l := range s.mu.queue.turn {
		s.mu.oldest = earlier(s.mu.oldest, l.entries[0].since)
	}
}

// recover takes over what the spool holds of the last run.
func (s *Scribed) recover() {
	q := &s.mu.queue
	for _, held := range s.spool.Queues() {
		sum := amount{frames: held.Held.Records, bytes: held.Held.Bytes, messages: held.Held.Messages}
		l := q.lane(held.Category)
		l.sequenced = true // nobody knows
		l.disk = sum
		l.held = sum.bytes + sum.frames*recordOverhead
		q.held += l.held
		q.counts.disk.plus(sum)
		q.counts.recovered.plus(sum)
		q.joinBacklog(l)
	}
	losses := s.spool.Losses()
	for i := range losses {
		if losses[i].Records > 0 {
			sum := amount{frames: losses[i].Records, bytes: losses[i].Bytes, messages: losses[i].Messages}
			q.counts.recovered.plus(sum)
			if losses[i].Category != "" {
				q.lose(losses[i].Category, damagedReason, sum, s.now())
			} else { // nobody knows whom to tell
				q.counts.drop(damagedReason, sum)
			}
		}
	}
	if sum := q.counts.disk; sum.frames > 0 {
		s.deps.Logger.Info("the spool has frames of the last run", slog.Int64("frames", sum.frames),
			slog.Int64("messages", sum.messages), slog.Int64("bytes", sum.bytes), slog.Int("categories", len(q.lanes)))
	}
}

// refuse is the error of a write for which the spool has no room, or which it can't write.
func (s *Scribed) spoolError(e *entry, err error) error {
	return retryHint(s.retryAfter(), scribev1.Reason_REASON_OVERLOADED, "%d bytes of category %s do not fit into the agent's spool: %w", e.bytes, e.category, err)
}
