package sequencer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/cell/positions"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// errFenced ends a term: another sequencer has taken the category over.
var errFenced = errors.New("sequencer: fenced: another sequencer took over the category")

// errLost means that the two logs do not match.
var errLost = errors.New("sequencer: sequenced log and positions do not match: metadata was lost or partly restored")

// categoryRun is a category while this process sequences it, term after term.
type categoryRun struct {
	s      *Sequencer
	cat    *scribev1.Category
	log    *slog.Logger
	cancel context.CancelFunc
	done   chan struct{}
	// reached is the persisted time up to which everything was sequenced, or when the run began; Unix microseconds.
	reached atomic.Int64
	// sequencing: a term has a stream. failing: the last attempt failed.
	sequencing, failing atomic.Bool
}

// categoryTerm is a period in which only this process appends to the logs of a category.
type categoryTerm struct {
	r      *categoryRun
	ledger *appendLedger
}

// runTerms runs terms until ctx ends.
func (r *categoryRun) runTerms(ctx context.Context) {
	defer close(r.done)
	failures := 0
	for ctx.Err() == nil {
		began := time.Now()
		err := r.runTerm(ctx)
		r.sequencing.Store(false)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > r.s.cfg.MaxBackoff {
			failures = 0
		}
		pause := r.s.retryPause(failures)
		failures++
		switch {
		case errors.Is(err, errFenced):
			r.s.metrics.fenced.Inc()
			pause = max(pause, backoff.Jitter(r.s.deps.Random, r.s.cfg.Contest, jitterShare))
			r.log.Info("another sequencer took over the category", "pause", pause, "error", err)
		default:
			r.failing.Store(true)
			step := stepStream
			if f, ok := errors.AsType[*termError](err); ok {
				step = f.step
			}
			r.s.metrics.failures.WithLabelValues(step).Inc()
			r.log.Warn("sequencing failed, retrying from the last commit", "pause", pause, "error", err)
		}
		if backoff.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// termError is an error of a term with the step that failed, for metrics.
type termError struct {
	step string
	err  error
}

func (f *termError) Error() string { return f.step + ": " + f.err.Error() }
func (f *termError) Unwrap() error { return f.err }

// runTerm takes over the category and sequences it until something fails.
func (r *categoryRun) runTerm(ctx context.Context) error {
	t, err := r.openTerm(ctx)
	if err != nil {
		return err
	}
	for failures := 0; ; failures++ {
		began := time.Now()
		err, lost := t.followStream(ctx)
		if lost || ctx.Err() != nil {
			return err
		}
		// The stream ended; this term still owns the logs.
		if time.Since(began) > r.s.cfg.MaxBackoff || err == nil {
			failures = 0
		}
		pause := r.s.retryPause(failures)
		if err != nil {
			r.failing.Store(true)
			r.s.metrics.failures.WithLabelValues(stepStream).Inc()
			r.log.Warn("read stream ended, reopening it", "pause", pause, "error", err)
		}
		if backoff.Sleep(ctx, pause) != nil {
			return ctx.Err()
		}
	}
}

// openTerm opens the logs, which ends every other term, and reads the committed state.
func (r *categoryRun) openTerm(ctx context.Context) (*categoryTerm, error) {
	select {
	case r.s.starts <- struct{}{}:
		defer func() { <-r.s.starts }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, r.s.cfg.OpenTimeout)
	defer cancel()
	id := r.cat.GetId()
	shards := []record.ShardID{sequenced.Log(id), sequenced.Positions(id)}
	states, err := r.s.deps.Log.Open(ctx, r.s.deps.ID, shards)
	if err != nil {
		return nil, &termError{stepOpen, fmt.Errorf("open the sequenced log: %w", err)}
	}
	// From here on no other process appends: what is read stays true.
	state, err := positions.Read(ctx, r.s.deps.Log, id)
	if err != nil {
		return nil, &termError{stepOpen, err}
	}
	if states[0].NextLSN == states[0].FirstLSN && states[1].NextLSN == states[1].FirstLSN {
		// The log is new. If metadata was recovered, it may begin above LSN 1.
		state.Next, state.Offset = states[0].NextLSN, uint64(states[0].NextLSN-record.FirstLSN)
	}
	if state.Next != states[0].NextLSN {
		return nil, &termError{stepOpen, fmt.Errorf("%w: the log's next LSN is %d, the positions' is %d", errLost, states[0].NextLSN, state.Next)}
	}
	r.s.metrics.terms.Inc()
	r.log.Info("took over the category", "epoch", states[0].Epoch, "next_lsn", uint64(state.Next), "offset", state.Offset, "sources", len(state.At))
	return &categoryTerm{r: r, ledger: &appendLedger{
		category: id, logEpoch: states[0].Epoch, positionsEpoch: states[1].Epoch, nextPosition: states[1].NextLSN, state: state,
		limit: r.s.cfg.ChangeBytes,
	}}, nil
}

// followStream sequences one stream. lost reports that the term is over; otherwise only the stream ended, and another one can
// continue.
func (t *categoryTerm) followStream(ctx context.Context) (err error, lost bool) { //nolint:revive // an error that ends two things
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	in := newStepInbox(t.r.s.cfg.Pointers)
	reading.Go(func() { in.endStream(t.readStream(ctx, in)) })
	t.r.sequencing.Store(true)
	defer t.r.sequencing.Store(false)
	for {
		steps, done, err := in.takeSteps(ctx, t.r.s.cfg.AppendRecords)
		if done {
			return err, false
		}
		b, err := t.appendSteps(ctx, steps)
		if err != nil {
			return err, true
		}
		in.confirmAppend(b.pointers, b.bytes)
		t.r.recordProgress(in)
	}
}

// appendSteps appends steps. An error ends the term: the logs show whether the steps were appended.
func (t *categoryTerm) appendSteps(ctx context.Context, steps []sourceStep) (*preparedAppend, error) {
	b, err := t.ledger.prepareAppend(steps)
	if err != nil {
		return nil, &termError{stepPointer, err}
	}
	actx, cancel := context.WithTimeout(ctx, t.r.s.cfg.AppendTimeout)
	defer cancel()
	began := time.Now()
	_, err = t.r.s.deps.Log.Append(actx, b.append)
	switch {
	case errors.Is(err, metalog.ErrFenced):
		return nil, fmt.Errorf("%w: %w", errFenced, err)
	case err != nil:
		return nil, &termError{stepAppend, fmt.Errorf("append %d records from LSN %d: %w", len(steps), t.ledger.state.Next, err)}
	}
	t.ledger.commitAppend(b)
	m := t.r.s.metrics
	m.appendSeconds.Observe(time.Since(began).Seconds())
	m.pointers.Add(float64(b.pointers))
	m.messages.Add(float64(b.messages))
	m.gaps.Add(float64(b.gaps))
	if b.late > 0 {
		m.late.Add(float64(b.late))
		t.r.log.Error("pointers sequenced out of order of persisted time", "pointers", b.late)
	}
	if b.gaps > 0 {
		t.r.log.Warn("gaps sequenced: pointers were trimmed or damaged", "gaps", b.gaps)
	}
	t.r.reached.Store(max(t.r.reached.Load(), t.ledger.state.Horizon))
	if b.trim > record.FirstLSN {
		if err := t.r.s.deps.Log.Trim(ctx, sequenced.Positions(t.ledger.category), b.trim); err != nil && ctx.Err() == nil {
			m.failures.WithLabelValues(stepTrim).Inc()
			t.r.log.Warn("trimming the log of positions failed, the next trim retries", "error", err)
		}
	}
	return b, nil
}

// recordProgress records success, and how far everything was sequenced.
func (r *categoryRun) recordProgress(in *stepInbox) {
	r.failing.Store(false)
	if at := in.appendedWatermark(); at > r.reached.Load() {
		r.reached.Store(at)
	}
}

// retryPause returns the jittered pause after a number of consecutive failures.
func (s *Sequencer) retryPause(failures int) time.Duration {
	pauses := backoff.Backoff{Min: s.cfg.MinBackoff, Max: s.cfg.MaxBackoff}
	return backoff.Jitter(s.deps.Random, pauses.Mean(failures+1), jitterShare)
}

// jitterShare spreads pauses, so that sequencers that failed together do not retry together.
const jitterShare = 0.2
