package batcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
	"scribe/storage/metalog"
)

// commitPart appends a part's pointers in one transaction. The part must be at the head of all its queues. It reports whether
// they were appended; if not, the part has changed or is empty.
func (b *Batcher) commitPart(ctx context.Context, p *flushPart) (committed bool) {
	p.dropChained(b.cfg.RetryMax)
	b.dropDuplicates(ctx, p)
	if p.isEmpty() {
		return false
	}
	p.assignPositions()
	if p.stale {
		b.putBlob(ctx, p)
	}
	if p.isEmpty() {
		return false
	}
	// unknownSince is the time of the first attempt with an unknown outcome; zero if there is none. While it is set, the
	// transaction must not change: it may have been applied.
	var unknownSince time.Time
	for attempt := 1; ; attempt++ {
		err := b.appendOnce(ctx, p)
		if err == nil {
			return true
		}
		if isDefinite(err) {
			applied, rerr := false, error(nil)
			if !unknownSince.IsZero() {
				// An earlier attempt may have been applied; then this refusal concerns only the repetition. If it was not, it
				// never will be: the cause that refuses the repetition also refuses the original, should it still arrive.
				applied, rerr = b.wasApplied(ctx, p)
			}
			switch {
			case applied:
				return true
			case rerr == nil:
				b.handleRefusal(ctx, p, err)
				return false
			}
			err = errors.Join(err, rerr)
		}
		b.metrics.appendFailures.WithLabelValues("unknown").Inc()
		now := b.now()
		if unknownSince.IsZero() {
			unknownSince = now
			b.deps.Logger.WarnContext(ctx, "append has an unknown outcome, repeating it", slog.Any("error", err))
		}
		if now.Sub(unknownSince) >= b.cfg.CommitPatience || b.waitBackoff(ctx, attempt) != nil {
			b.failUnknown(p, attempt, err)
			return false
		}
	}
}

// definiteFailures are the failures of an append that was certainly not applied.
var definiteFailures = []error{
	metalog.ErrFenced, metalog.ErrSealed, metalog.ErrConflict, metalog.ErrSequence, metalog.ErrStaleBlob,
	metalog.ErrInvalid, metalog.ErrClosed, metalog.ErrCorrupt,
}

// isDefinite reports whether an append that failed with err was certainly not applied.
func isDefinite(err error) bool {
	return slices.ContainsFunc(definiteFailures, func(kind error) bool { return errors.Is(err, kind) })
}

// failUnknown fails a part that may have been appended.
func (b *Batcher) failUnknown(p *flushPart, attempts int, err error) {
	// Opening the logs again fences appends that may still arrive.
	b.queues.Reopen(entries(p.liveBatches()))
	p.unknown = true
	p.failAll(&scribev1.ErrorInfo{
		Reason:  scribev1.Reason_REASON_UNKNOWN_OUTCOME,
		Message: fmt.Sprintf("the pointers may or may not have been stored, after %d attempts: %v", attempts, err),
	})
}

// newTransaction returns the transaction that appends the part's pointers.
func (p *flushPart) newTransaction() *metalog.Append {
	live := p.liveBatches()
	total := 0
	for _, g := range live {
		total += g.pointerCount()
	}
	a := &metalog.Append{OldestBlob: p.id.Time(), Shards: make([]metalog.ShardAppend, len(live))}
	records := make([][]byte, 0, total)
	for i, g := range live {
		s := &a.Shards[i]
		s.Shard, s.Epoch, s.ExpectLSN = g.shard, g.entry.Epoch, g.entry.LSN
		start := len(records)
		for e := range g.allRanges() {
			records = append(records, e.record)
			for _, r := range e.runs {
				s.Sequences = append(s.Sequences, metalog.Sequence(r))
			}
		}
		s.Records = records[start:len(records):len(records)]
	}
	return a
}

// appendOnce makes one attempt to append the part's pointers.
func (b *Batcher) appendOnce(ctx context.Context, p *flushPart) error {
	a := p.newTransaction()
	ctx, cancel := context.WithTimeout(ctx, b.cfg.LogTimeout)
	defer cancel()
	start := b.now()
	defer time.AfterFunc(b.stallAfter(), func() { b.detachHung(ctx, p, start) }).Stop()
	where, err := b.deps.Log.Append(ctx, a)
	b.metrics.observeStage(stageAppend, b.now().Sub(start))
	for i := range where {
		if where[i].FirstLSN != a.Shards[i].ExpectLSN {
			return fmt.Errorf("shard %v: appended at LSN %d instead of %d", a.Shards[i].Shard, where[i].FirstLSN, a.Shards[i].ExpectLSN)
		}
	}
	return err
}

// detachHung detaches a part whose append hangs, so that other flushes do not wait for it. While the whole engine hangs, it
// checks again later.
func (b *Batcher) detachHung(ctx context.Context, p *flushPart, since time.Time) {
	switch {
	case ctx.Err() != nil:
		return
	case !b.queues.EngineAlive().After(since):
		time.AfterFunc(b.stallAfter(), func() { b.detachHung(ctx, p, since) })
		return
	}
	b.update(func(now time.Time) { b.mu.acc.detachPart(now, p) })
}

// wasApplied reports whether the current transaction was applied although its answer was lost. It reads one record: transactions
// are atomic, so either all records are there or none.
func (b *Batcher) wasApplied(ctx context.Context, p *flushPart) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.LogTimeout)
	defer cancel()
	g := p.liveBatches()[0]
	e := g.firstRange()
	found, err := b.deps.Log.Read(ctx, g.shard, e.lsn, 1, 0)
	if err != nil {
		return false, fmt.Errorf("read shard %v at LSN %d to see whether it was stored: %w", g.shard, e.lsn, err)
	}
	return len(found) > 0 && bytes.Equal(found[0].Data, e.record), nil
}

// handleRefusal changes the part after a definite failure, or fails it.
func (b *Batcher) handleRefusal(ctx context.Context, p *flushPart, err error) {
	b.metrics.appendFailures.WithLabelValues(refusalKind(err)).Inc()
	b.deps.Logger.InfoContext(ctx, "metadata engine refused an append",
		slog.Uint64("ticket", p.flush.ticket), slog.Int("refusals", p.refusals), slog.Any("error", err))
	sequences := new(metalog.SequenceError)
	switch {
	case errors.As(err, &sequences):
		if !b.judgeConflicts(p, sequences) || len(sequences.Conflicts) < metalog.MaxConflicts {
			p.refusals++ // otherwise the list was truncated, and the next one will be shorter
		}
	case errors.Is(err, metalog.ErrSealed), errors.Is(err, metalog.ErrFenced), errors.Is(err, metalog.ErrConflict):
		b.reopenLogs(ctx, p, err)
		return
	case errors.Is(err, metalog.ErrStaleBlob):
		p.stale = true
		p.refusals++
	case errors.Is(err, metalog.ErrClosed):
		b.waitForEngine(ctx, p, err)
		return
	case errors.As(err, new(*metalog.SpreadError)): // a log has moved to another engine: what follows divides the part
		p.refusals++
	default: // invalid or damaged
		p.failAll(b.storageErrorInfo(ctx, err))
		return
	}
	if p.refusals > b.cfg.CommitAttempts || p.refusals > 1 && b.waitBackoff(ctx, p.refusals-1) != nil {
		p.failAll(b.storageErrorInfo(ctx, fmt.Errorf("refused %d times: %w", p.refusals, err)))
	}
}

// waitForEngine waits for an engine that reports to be closed. It applied nothing, and may be restarting.
func (b *Batcher) waitForEngine(ctx context.Context, p *flushPart, err error) {
	now := b.now()
	if p.closedSince.IsZero() {
		p.closedSince = now
	}
	p.closings++
	if now.Sub(p.closedSince) >= b.cfg.CommitPatience || b.waitBackoff(ctx, p.closings) != nil {
		p.failAll(b.storageErrorInfo(ctx, err))
	}
}

// reopenLogs handles logs that refused an append. It fails the batches of sealed logs, and divides off those of the others, whose
// logs are opened again.
func (b *Batcher) reopenLogs(ctx context.Context, p *flushPart, err error) {
	why := make(map[record.ShardID]error)
	if e := new(metalog.RefusedError); errors.As(err, &e) && len(e.Refusals) < metalog.MaxConflicts {
		for _, r := range e.Refusals {
			why[r.State.Shard] = r.Err
		}
	}
	var sealed, taken []*logBatch
	for _, g := range p.batches {
		switch {
		case errors.Is(why[g.shard], metalog.ErrSealed):
			sealed = append(sealed, g)
		case why[g.shard] != nil, len(why) == 0: // the list of refusals is incomplete or missing
			taken = append(taken, g)
		}
	}
	b.queues.AppendRefused(entries(taken), err, b.now())
	if len(sealed) > 0 {
		b.queues.Reopen(entries(sealed))
		b.failBatches(p, sealed, func(g *logBatch) *scribev1.ErrorInfo {
			b.sealedLogs.addLog(g.shard)
			return b.storageErrorInfo(ctx, fmt.Errorf("shard %v: %w", g.shard, metalog.ErrSealed))
		})
	}
	if len(taken) > 0 && len(taken) < len(p.batches) {
		b.startPart(ctx, b.dividePart(p, taken))
	}
}

// storageErrorInfo returns the writers' error for a definite failure of the metadata engine or of the object store.
func (b *Batcher) storageErrorInfo(ctx context.Context, err error) *scribev1.ErrorInfo {
	fault := &scribev1.ErrorInfo{
		Reason: scribev1.Reason_REASON_NO_BACKEND, Message: err.Error(), RetryAfter: durationpb.New(b.cfg.RetryMax),
	}
	switch {
	case ctx.Err() != nil:
		fault.Reason = scribev1.Reason_REASON_SHUTTING_DOWN
	case errors.Is(err, blob.ErrNoSpace):
		fault.Reason = scribev1.Reason_REASON_OVERLOADED
	case errors.Is(err, metalog.ErrFenced), errors.Is(err, metalog.ErrConflict):
		fault.Reason = scribev1.Reason_REASON_FENCED
	case errors.Is(err, metalog.ErrSealed):
		fault.Reason, fault.RetryAfter = scribev1.Reason_REASON_SEALED, nil
	case errors.Is(err, metalog.ErrInvalid), errors.Is(err, metalog.ErrCorrupt):
		fault.Reason, fault.RetryAfter = scribev1.Reason_REASON_UNSPECIFIED, nil
	}
	return fault
}

// refusalKind returns the metrics label of a definite error.
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
