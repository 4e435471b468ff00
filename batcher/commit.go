package batcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// prepare opens the flush's logs and predicts its places in them, after the flush before and beside its compression. What cannot
// be opened now is opened again when it is the flush's turn to commit; only that counts.
func (b *Batcher) prepare(ctx context.Context, f *flush) {
	<-f.afterPrepared
	if unopened := b.ledger.claim(f.order, b.deps.Slot()); len(unopened) > 0 {
		if err := b.open(ctx, unopened, func(metalog.State) {}); err != nil {
			b.deps.Logger.WarnContext(ctx, "opening logs failed", slog.Int("logs", len(unopened)), slog.Any("error", err))
		}
	}
	b.ledger.predict(f.order)
	close(f.prepared)
	f.number()
}

// open makes this batcher the writer of logs and tells of those that are sealed.
func (b *Batcher) open(ctx context.Context, shards []record.ShardID, sealed func(metalog.State)) error {
	for len(shards) > 0 {
		n := min(len(shards), metalog.MaxShards)
		states, err := b.openOnce(ctx, shards[:n])
		if err != nil {
			return err
		}
		shards = shards[n:]
		usable := states[:0]
		for _, s := range states {
			if s.Sealed {
				sealed(s)
				continue
			}
			usable = append(usable, s)
		}
		b.ledger.opened(usable)
		b.metrics.opens.Add(float64(len(usable)))
	}
	return nil
}

func (b *Batcher) openOnce(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.LogTimeout)
	defer cancel()
	states, err := b.deps.Log.Open(ctx, b.deps.Owner, shards)
	if err == nil && len(states) != len(shards) {
		err = fmt.Errorf("the metadata engine answered for %d of %d logs", len(states), len(shards))
	}
	return states, err
}

// commit appends the flush's pointers, all in one transaction, when every earlier flush has ended. Afterwards each payload either
// has its place or a fault.
type commit struct {
	b *Batcher
	f *flush
	// refusals counts the definite errors so far, attempts all of them.
	refusals int
	attempts int
	// unsure is when the first attempt of the present transaction ended with an unknown outcome; zero when none has. While it is
	// set the transaction must not be changed: it may have been applied.
	unsure time.Time
	done   bool // applied
}

func (b *Batcher) commit(ctx context.Context, f *flush) {
	<-f.afterDone
	c := &commit{b: b, f: f}
	for c.step(ctx) {
	}
	b.ledger.settle(f.order, func(g *group) int {
		if !c.done {
			return 0
		}
		return g.records()
	})
}

// step makes one attempt and reports whether another is needed.
func (c *commit) step(ctx context.Context) (again bool) {
	if c.unsure.IsZero() && !c.arrange(ctx) {
		return false
	}
	c.attempts++
	err := c.append(ctx)
	switch {
	case err == nil:
		c.done = true
		return false
	case !definite(err):
		return c.wait(ctx, err)
	case !c.unsure.IsZero():
		// An earlier attempt may have been applied: then this refusal is about the repetition. If it was not, it cannot be any
		// more: what refuses the repetition refuses the original, should it still be on its way.
		applied, rerr := c.applied(ctx)
		switch {
		case rerr != nil:
			return c.wait(ctx, errors.Join(err, rerr))
		case applied:
			c.done = true
			return false
		}
		c.unsure = time.Time{}
	}
	return c.refused(ctx, err)
}

// definite reports whether an append that failed with err has changed nothing.
func definite(err error) bool {
	for _, kind := range []error{
		metalog.ErrFenced, metalog.ErrSealed, metalog.ErrConflict, metalog.ErrSequence, metalog.ErrStaleBlob,
		metalog.ErrInvalid, metalog.ErrClosed, metalog.ErrCorrupt,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// arrange brings the flush to the state of the logs: it opens those that were lost, numbers the pointers, and puts blobs that say
// otherwise again. It returns false when nothing is left to append.
func (c *commit) arrange(ctx context.Context) bool {
	for {
		live := c.f.live()
		if len(live) == 0 {
			return false
		}
		if lost := c.b.ledger.head(live); len(lost) > 0 {
			c.reopen(ctx, lost)
			continue
		}
		c.f.number()
		clean := true
		for _, part := range c.f.blobs {
			clean = clean && !part.dirty
		}
		if clean {
			return true
		}
		c.b.put(ctx, c.f)
	}
}

// reopen opens logs again, or fails their groups.
func (c *commit) reopen(ctx context.Context, lost []*group) {
	byShard := make(map[record.ShardID]*group, len(lost))
	shards := make([]record.ShardID, 0, len(lost))
	for _, g := range lost {
		if !c.settled(g) {
			continue
		}
		if _, ok := byShard[g.shard]; !ok {
			byShard[g.shard] = g
			shards = append(shards, g.shard)
		}
	}
	var err error
	for attempt := 1; ; attempt++ {
		err = c.b.open(ctx, shards, func(s metalog.State) {
			byShard[s.Shard].fail(&scribev1.ErrorInfo{
				Reason: scribev1.Reason_REASON_SEALED, Message: fmt.Sprintf("shard %v takes no more records", s.Shard),
			})
		})
		if err == nil || attempt >= c.b.cfg.PutAttempts || c.b.pause(ctx, attempt) != nil {
			break
		}
	}
	if err == nil {
		return
	}
	for _, g := range c.b.ledger.head(lost) {
		g.fail(c.b.logFault(ctx, fmt.Errorf("shard %v could not be opened: %w", g.shard, err)))
	}
}

// settled reports whether the group's log is to be opened. A log of a writer slot that is not this batcher's any more is another
// writer's: the group moves to the log of the present slot. Then the caller looks at it again.
func (c *commit) settled(g *group) bool {
	if g.exactlyOnce || g.records() == 0 {
		return g.records() > 0
	}
	slot := c.b.deps.Slot()
	switch slot {
	case g.shard.Writer():
		return true
	case 0:
		g.fail(&scribev1.ErrorInfo{
			Reason: scribev1.Reason_REASON_FENCED, Message: "the batcher has lost its writer slot: send to another one",
			RetryAfter: durationpb.New(c.b.cfg.RetryBase),
		})
		return false
	}
	to := record.MakeShardID(g.shard.Category(), g.shard.Logical(), slot)
	delete(c.f.groups, g.shard)
	c.b.ledger.move(g, to)
	if other := c.f.groups[to]; other != nil && other != g {
		// The frames of the old slot came first.
		other.payloads = append(g.payloads, other.payloads...)
		other.claimed += g.claimed
		for _, pl := range g.payloads {
			pl.group = other
		}
		g.payloads, g.claimed = nil, 0
		return false
	}
	c.f.groups[to] = g
	return false
}

// append makes one attempt.
func (c *commit) append(ctx context.Context) error {
	a := &metalog.Append{}
	for _, g := range c.f.live() {
		s := metalog.ShardAppend{Shard: g.shard, Epoch: g.epoch, ExpectLSN: g.lsn}
		for _, pl := range g.payloads {
			for i := range pl.extents {
				e := &pl.extents[i]
				s.Records = append(s.Records, e.record)
				for _, r := range e.runs {
					s.Sequences = append(s.Sequences, metalog.Sequence(r))
				}
			}
		}
		a.Shards = append(a.Shards, s)
	}
	for _, part := range c.f.blobs {
		if t := part.id.Time(); !part.empty() && (a.OldestBlob == 0 || t < a.OldestBlob) {
			a.OldestBlob = t
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.b.cfg.LogTimeout)
	defer cancel()
	start := c.b.now()
	where, err := c.b.deps.Log.Append(ctx, a)
	c.b.metrics.stage(stageAppend, c.b.now().Sub(start))
	for i := range where {
		if where[i].FirstLSN != a.Shards[i].ExpectLSN {
			return fmt.Errorf("shard %v: appended at LSN %d instead of %d", a.Shards[i].Shard, where[i].FirstLSN, a.Shards[i].ExpectLSN)
		}
	}
	return err
}

// wait pauses after an attempt whose outcome is unknown, or gives up.
func (c *commit) wait(ctx context.Context, err error) (again bool) {
	c.b.metrics.appendFailures.WithLabelValues("unknown").Inc()
	now := c.b.now()
	if c.unsure.IsZero() {
		c.unsure = now
		c.b.deps.Logger.WarnContext(ctx, "the outcome of an append is unknown, repeating it", slog.Any("error", err))
	}
	if now.Sub(c.unsure) < c.b.cfg.CommitPatience && c.b.pause(ctx, c.attempts) == nil {
		return true
	}
	// Opening the logs before they are used again ends what may still be on its way.
	for _, g := range c.f.live() {
		c.b.ledger.lose(g.shard)
	}
	for _, part := range c.f.blobs {
		part.unsure = !part.empty()
	}
	c.f.fail(&scribev1.ErrorInfo{
		Reason:  scribev1.Reason_REASON_UNKNOWN_OUTCOME,
		Message: fmt.Sprintf("the pointers may or may not have been stored, after %d attempts: %v", c.attempts, err),
	})
	return false
}

// applied reports whether the present transaction was applied although its answer was lost: one of its records tells, since all
// of them are there or none is.
func (c *commit) applied(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.b.cfg.LogTimeout)
	defer cancel()
	g := c.f.live()[0]
	e := g.first()
	found, err := c.b.deps.Log.Read(ctx, g.shard, e.lsn, 1, 0)
	if err != nil {
		return false, fmt.Errorf("read shard %v at LSN %d to see whether it was stored: %w", g.shard, e.lsn, err)
	}
	return len(found) > 0 && bytes.Equal(found[0].Data, e.record), nil
}

// refused changes the flush after a definite error, or gives up.
func (c *commit) refused(ctx context.Context, err error) (again bool) {
	c.refusals++
	c.b.metrics.appendFailures.WithLabelValues(refusalKind(err)).Inc()
	c.b.deps.Logger.InfoContext(ctx, "the metadata engine refused a flush",
		slog.Uint64("ticket", c.f.ticket), slog.Int("refusals", c.refusals), slog.Any("error", err))
	sequences := new(metalog.SequenceError)
	switch {
	case c.refusals > c.b.cfg.CommitAttempts:
		c.f.fail(c.b.logFault(ctx, fmt.Errorf("refused %d times: %w", c.refusals, err)))
		return false
	case errors.As(err, &sequences):
		if c.judge(sequences) && len(sequences.Conflicts) >= metalog.MaxConflicts {
			c.refusals-- // the list was cut off, and the next one will be shorter
		}
	case errors.Is(err, metalog.ErrSealed), errors.Is(err, metalog.ErrFenced), errors.Is(err, metalog.ErrConflict):
		c.lose(err)
	case errors.Is(err, metalog.ErrStaleBlob):
		for _, part := range c.f.blobs {
			part.dirty = true
		}
	default: // closed, invalid or damaged
		c.f.fail(c.b.logFault(ctx, err))
		return false
	}
	if c.refusals <= 1 {
		return true
	}
	// Two writers of a log that take it from each other must not do so in step.
	if perr := c.b.pause(ctx, c.refusals-1); perr != nil {
		c.f.fail(c.b.logFault(ctx, err))
		return false
	}
	return true
}

// lose marks the logs that refused an append, so that arrange opens them.
func (c *commit) lose(err error) {
	refusal := new(metalog.RefusedError)
	if !errors.As(err, &refusal) || len(refusal.Refusals) >= metalog.MaxConflicts {
		// There may be more than those that are listed.
		for _, g := range c.f.live() {
			c.b.ledger.lose(g.shard)
		}
		return
	}
	for _, r := range refusal.Refusals {
		c.b.ledger.lose(r.State.Shard)
	}
}

// judge leaves out the frames whose sequences were refused, and reports whether there were any.
func (c *commit) judge(err *metalog.SequenceError) (changed bool) {
	known := make(map[record.ShardID]map[uint64]metalog.ProducerState)
	for _, x := range err.Conflicts {
		if known[x.Shard] == nil {
			known[x.Shard] = make(map[uint64]metalog.ProducerState)
		}
		known[x.Shard][x.Run.Producer] = x.Known
	}
	for shard, producers := range known {
		g := c.f.groups[shard]
		if g == nil || !judge(g, producers) {
			continue
		}
		changed = true
		for _, pl := range g.payloads {
			if pl.fault == nil {
				pl.extend()
				pl.block.part.dirty = true
			}
		}
	}
	return changed
}

// logFault is what writers are told when the metadata engine has definitely not stored their pointers.
func (b *Batcher) logFault(ctx context.Context, err error) *scribev1.ErrorInfo {
	fault := &scribev1.ErrorInfo{
		Reason: scribev1.Reason_REASON_NO_BACKEND, Message: err.Error(), RetryAfter: durationpb.New(b.cfg.RetryMax),
	}
	switch {
	case ctx.Err() != nil:
		fault.Reason = scribev1.Reason_REASON_SHUTTING_DOWN
	case errors.Is(err, metalog.ErrFenced), errors.Is(err, metalog.ErrConflict):
		fault.Reason = scribev1.Reason_REASON_FENCED
	case errors.Is(err, metalog.ErrSealed):
		fault.Reason, fault.RetryAfter = scribev1.Reason_REASON_SEALED, nil
	case errors.Is(err, metalog.ErrInvalid), errors.Is(err, metalog.ErrCorrupt):
		fault.Reason, fault.RetryAfter = scribev1.Reason_REASON_UNSPECIFIED, nil
	}
	return fault
}

// refusalKind is the label of a definite error.
func refusalKind(err error) string {
	switch {
	case errors.Is(err, metalog.ErrSequence):
		return "sequence"
	case errors.Is(err, metalog.ErrSealed):
		return "sealed"
	case errors.Is(err, metalog.ErrFenced):
		return "fenced"
	case errors.Is(err, metalog.ErrConflict):
		return "conflict"
	case errors.Is(err, metalog.ErrStaleBlob):
		return "stale_blob"
	default:
		return "other"
	}
}
