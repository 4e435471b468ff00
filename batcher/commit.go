package batcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// commit appends a part's pointers, all in one transaction. It is the part's turn in all its logs. It reports whether they were
// appended; if not, the part has changed, or nothing is left of it.
func (b *Batcher) commit(ctx context.Context, p *part) (committed bool) {
	p.drop(b.cfg.RetryMax)
	b.recall(ctx, p)
	if p.empty() {
		return false
	}
	p.number()
	if p.dirty {
		b.put(ctx, p)
	}
	if p.empty() {
		return false
	}
	// unsure is when the first attempt ended with an unknown outcome; zero when none has. While it is set the transaction must not be
	// changed: it may have been applied.
	var unsure time.Time
	for attempt := 1; ; attempt++ {
		err := b.append(ctx, p)
		if err == nil {
			return true
		}
		if definite(err) {
			applied, rerr := false, error(nil)
			if !unsure.IsZero() {
				// An earlier attempt may have been applied: then this refusal is about the repetition. If it was not, it cannot be any
				// more: what refuses the repetition refuses the original, should it still be on its way.
				applied, rerr = b.applied(ctx, p)
			}
			switch {
			case applied:
				return true
			case rerr == nil:
				b.refused(ctx, p, err)
				return false
			}
			err = errors.Join(err, rerr)
		}
		b.metrics.appendFailures.WithLabelValues("unknown").Inc()
		now := b.now()
		if unsure.IsZero() {
			unsure = now
			b.deps.Logger.WarnContext(ctx, "the outcome of an append is unknown, repeating it", slog.Any("error", err))
		}
		if now.Sub(unsure) >= b.cfg.CommitPatience || b.pause(ctx, attempt) != nil {
			b.doubt(p, attempt, err)
			return false
		}
	}
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

// doubt gives up a part that may have been appended.
func (b *Batcher) doubt(p *part, attempts int, err error) {
	// Opening the logs before they are used again ends what may still be on its way.
	b.ledger.lose(p.live())
	p.unsure = true
	p.fail(&scribev1.ErrorInfo{
		Reason:  scribev1.Reason_REASON_UNKNOWN_OUTCOME,
		Message: fmt.Sprintf("the pointers may or may not have been stored, after %d attempts: %v", attempts, err),
	})
}

// transaction is what is appended.
func (p *part) transaction() *metalog.Append {
	live := p.live()
	total := 0
	for _, g := range live {
		total += g.records()
	}
	a := &metalog.Append{OldestBlob: p.id.Time(), Shards: make([]metalog.ShardAppend, len(live))}
	records := make([][]byte, 0, total)
	for i, g := range live {
		s := &a.Shards[i]
		s.Shard, s.Epoch, s.ExpectLSN = g.shard, g.epoch, g.lsn
		start := len(records)
		for _, pl := range g.payloads {
			for j := range pl.extents {
				e := &pl.extents[j]
				records = append(records, e.record)
				for _, r := range e.runs {
					s.Sequences = append(s.Sequences, metalog.Sequence(r))
				}
			}
		}
		s.Records = records[start:len(records):len(records)]
	}
	return a
}

// append makes one attempt.
func (b *Batcher) append(ctx context.Context, p *part) error {
	a := p.transaction()
	ctx, cancel := context.WithTimeout(ctx, b.cfg.LogTimeout)
	defer cancel()
	start := b.now()
	defer time.AfterFunc(b.stallAfter(), func() { b.hung(ctx, p, start) }).Stop()
	where, err := b.deps.Log.Append(ctx, a)
	b.metrics.stage(stageAppend, b.now().Sub(start))
	for i := range where {
		if where[i].FirstLSN != a.Shards[i].ExpectLSN {
			return fmt.Errorf("shard %v: appended at LSN %d instead of %d", a.Shards[i].Shard, where[i].FirstLSN, a.Shards[i].ExpectLSN)
		}
	}
	return err
}

// hung is what happens when an append takes long: unless all of them do, others do not wait for it.
func (b *Batcher) hung(ctx context.Context, p *part, since time.Time) {
	switch {
	case ctx.Err() != nil:
		return
	case !b.ledger.alive().After(since):
		time.AfterFunc(b.stallAfter(), func() { b.hung(ctx, p, since) })
		return
	}
	b.mu.Lock()
	b.mu.acc.detach(b.now(), p)
	jobs := b.settle()
	b.mu.Unlock()
	b.drive(jobs)
}

// applied reports whether the present transaction was applied although its answer was lost: one of its records tells, since all
// of them are there or none is.
func (b *Batcher) applied(ctx context.Context, p *part) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.LogTimeout)
	defer cancel()
	g := p.live()[0]
	e := g.first()
	found, err := b.deps.Log.Read(ctx, g.shard, e.lsn, 1, 0)
	if err != nil {
		return false, fmt.Errorf("read shard %v at LSN %d to see whether it was stored: %w", g.shard, e.lsn, err)
	}
	return len(found) > 0 && bytes.Equal(found[0].Data, e.record), nil
}

// refused changes the part after a definite error, or gives it up.
func (b *Batcher) refused(ctx context.Context, p *part, err error) {
	b.metrics.appendFailures.WithLabelValues(refusalKind(err)).Inc()
	b.deps.Logger.InfoContext(ctx, "the metadata engine refused a flush",
		slog.Uint64("ticket", p.flush.ticket), slog.Int("refusals", p.refusals), slog.Any("error", err))
	sequences := new(metalog.SequenceError)
	switch {
	case errors.As(err, &sequences):
		b.ledger.learnConflicts(sequences.Conflicts)
		if !p.judge(sequences) || len(sequences.Conflicts) < metalog.MaxConflicts {
			p.refusals++ // else the list was cut off, and the next one will be shorter
		}
	case errors.Is(err, metalog.ErrSealed), errors.Is(err, metalog.ErrFenced), errors.Is(err, metalog.ErrConflict):
		b.lost(ctx, p, err)
		return
	case errors.Is(err, metalog.ErrStaleBlob):
		p.dirty = true
		p.refusals++
	case errors.Is(err, metalog.ErrClosed):
		b.away(ctx, p, err)
		return
	default: // invalid or damaged
		p.fail(b.logFault(ctx, err))
		return
	}
	if p.refusals > b.cfg.CommitAttempts || p.refusals > 1 && b.pause(ctx, p.refusals-1) != nil {
		p.fail(b.logFault(ctx, fmt.Errorf("refused %d times: %w", p.refusals, err)))
	}
}

// away waits for an engine that says that it is closed, and has done nothing: it may be about to start again.
func (b *Batcher) away(ctx context.Context, p *part, err error) {
	now := b.now()
	if p.broken.IsZero() {
		p.broken = now
	}
	p.closings++
	if now.Sub(p.broken) >= b.cfg.CommitPatience || b.pause(ctx, p.closings) != nil {
		p.fail(b.logFault(ctx, err))
	}
}

// lost is what happens when logs refused an append: the sealed ones are given up, the others are opened again, apart from those
// that did not refuse.
func (b *Batcher) lost(ctx context.Context, p *part, err error) {
	why := make(map[record.ShardID]error)
	if e := new(metalog.RefusedError); errors.As(err, &e) && len(e.Refusals) < metalog.MaxConflicts {
		for _, r := range e.Refusals {
			why[r.State.Shard] = r.Err
		}
	}
	var sealed, taken []*group
	for _, g := range p.groups {
		switch {
		case errors.Is(why[g.shard], metalog.ErrSealed):
			sealed = append(sealed, g)
		case why[g.shard] != nil, len(why) == 0: // there may be more than those that are listed
			taken = append(taken, g)
		}
	}
	b.ledger.refusedAppend(taken, err, b.now(), b.backoff)
	if len(sealed) > 0 {
		b.ledger.lose(sealed)
		faults := make([]*scribev1.ErrorInfo, len(sealed))
		for i, g := range sealed {
			b.endedLogs.add(g.shard)
			faults[i] = b.logFault(ctx, fmt.Errorf("shard %v: %w", g.shard, metalog.ErrSealed))
		}
		b.dismiss(p, sealed, faults)
	}
	if len(taken) > 0 && len(taken) < len(p.groups) {
		b.start(ctx, b.divide(p, taken))
	}
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
	case errors.Is(err, metalog.ErrClosed):
		return "closed"
	default:
		return "other"
	}
}
