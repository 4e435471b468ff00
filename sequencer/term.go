package sequencer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/cell/positions"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// errFenced ends a term: another sequencer has taken the category over.
var errFenced = errors.New("sequencer: another one has taken the category over")

// errLost says that the two logs do not belong together.
var errLost = errors.New("sequencer: the sequenced log and the positions do not belong together: metadata was lost or restored in part")

// run is a category while it is this process's: term after term.
type run struct {
	s      *Sequencer
	cat    *scribev1.Category
	log    *slog.Logger
	cancel context.CancelFunc
	done   chan struct{}
	// reached is the persisted time up to which everything was sequenced, or when the run began; Unix microseconds.
	reached atomic.Int64
	// sequencing says that a term has a stream, failing that the last try did not succeed.
	sequencing, failing atomic.Bool
}

// term is the time in which this process alone appends to the logs of a category.
type term struct {
	r      *run
	ledger *ledger
}

// loop runs terms until ctx ends.
func (r *run) loop(ctx context.Context) {
	defer close(r.done)
	failures := 0
	for ctx.Err() == nil {
		began := time.Now()
		err := r.once(ctx)
		r.sequencing.Store(false)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > r.s.cfg.MaxBackoff {
			failures = 0
		}
		pause := r.s.backoff(failures)
		failures++
		switch {
		case errors.Is(err, errFenced):
			r.s.metrics.fenced.Inc()
			pause = max(pause, r.s.jitter(r.s.cfg.Contest))
			r.log.Info("another sequencer has taken the category over", "pause", pause, "error", err)
		default:
			r.failing.Store(true)
			r.s.metrics.failures.WithLabelValues(stepOf(err)).Inc()
			r.log.Warn("sequencing failed, it is begun again from what was committed", "pause", pause, "error", err)
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

// failure is an error of a step of a term, for metrics.
type failure struct {
	step string
	err  error
}

func (f *failure) Error() string { return f.step + ": " + f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func stepOf(err error) string {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.step
	}
	return stepStream
}

// once takes the category over and sequences it until something fails.
func (r *run) once(ctx context.Context) error {
	t, err := r.take(ctx)
	if err != nil {
		return err
	}
	for failures := 0; ; failures++ {
		began := time.Now()
		err, lost := t.follow(ctx)
		if lost || ctx.Err() != nil {
			return err
		}
		// The stream ended; the logs are still this one's.
		if time.Since(began) > r.s.cfg.MaxBackoff || err == nil {
			failures = 0
		}
		pause := r.s.backoff(failures)
		if err != nil {
			r.failing.Store(true)
			r.s.metrics.failures.WithLabelValues(stepStream).Inc()
			r.log.Warn("the read stream ended, opening it again", "pause", pause, "error", err)
		}
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// take opens the logs, which ends every other term, and reads what was committed.
func (r *run) take(ctx context.Context) (*term, error) {
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
		return nil, &failure{stepOpen, fmt.Errorf("open the sequenced log: %w", err)}
	}
	// From here on nobody else appends: what is read stays true.
	state, err := positions.Read(ctx, r.s.deps.Log, id)
	if err != nil {
		return nil, &failure{stepOpen, err}
	}
	if state.Next != states[0].NextLSN {
		return nil, &failure{stepOpen, fmt.Errorf("%w: the log's next LSN is %d, the positions say %d", errLost, states[0].NextLSN, state.Next)}
	}
	r.s.metrics.terms.Inc()
	r.log.Info("this process sequences the category", "epoch", states[0].Epoch, "next_lsn", uint64(state.Next), "offset", state.Offset, "sources", len(state.At))
	return &term{r: r, ledger: &ledger{
		category: id, logEpoch: states[0].Epoch, positionsEpoch: states[1].Epoch, nextPosition: states[1].NextLSN, state: state,
		limit: r.s.cfg.ChangeBytes,
	}}, nil
}

// follow sequences what one stream brings. lost says that the term is over; else the stream ended, and another one can go on.
func (t *term) follow(ctx context.Context) (err error, lost bool) { //nolint:revive // an error that ends two things
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	in := newInbox(t.r.s.cfg.Pointers)
	reading.Go(func() { in.end(t.read(ctx, in)) })
	t.r.sequencing.Store(true)
	defer t.r.sequencing.Store(false)
	for {
		steps, done, err := in.take(ctx, t.r.s.cfg.AppendRecords)
		if done {
			return err, false
		}
		b, err := t.append(ctx, steps)
		if err != nil {
			return err, true
		}
		in.appended(b.pointers, b.bytes)
		t.r.progress(in)
	}
}

// append appends steps. After an error the term is over: what became of them is in the logs.
func (t *term) append(ctx context.Context, steps []step) (*batch, error) {
	b, err := t.ledger.prepare(steps)
	if err != nil {
		return nil, &failure{stepPointer, err}
	}
	actx, cancel := context.WithTimeout(ctx, t.r.s.cfg.AppendTimeout)
	defer cancel()
	began := time.Now()
	_, err = t.r.s.deps.Log.Append(actx, b.append)
	switch {
	case errors.Is(err, metalog.ErrFenced):
		return nil, fmt.Errorf("%w: %w", errFenced, err)
	case err != nil:
		return nil, &failure{stepAppend, fmt.Errorf("append %d records from LSN %d: %w", len(steps), t.ledger.state.Next, err)}
	}
	t.ledger.commit(b)
	m := t.r.s.metrics
	m.appendSeconds.Observe(time.Since(began).Seconds())
	m.pointers.Add(float64(b.pointers))
	m.messages.Add(float64(b.messages))
	m.gaps.Add(float64(b.gaps))
	if b.late > 0 {
		m.late.Add(float64(b.late))
		t.r.log.Error("pointers were sequenced behind later ones", "pointers", b.late)
	}
	if b.gaps > 0 {
		t.r.log.Warn("there are gaps in what was sequenced", "gaps", b.gaps)
	}
	t.r.reached.Store(max(t.r.reached.Load(), t.ledger.state.Horizon))
	if b.trim > record.FirstLSN {
		if err := t.r.s.deps.Log.Trim(ctx, sequenced.Positions(t.ledger.category), b.trim); err != nil && ctx.Err() == nil {
			m.failures.WithLabelValues(stepTrim).Inc()
			t.r.log.Warn("the log of positions could not be trimmed, the next one is", "error", err)
		}
	}
	return b, nil
}

// progress takes note that all is well, and of how far everything was sequenced.
func (r *run) progress(in *inbox) {
	r.failing.Store(false)
	if at := in.reached(); at > r.reached.Load() {
		r.reached.Store(at)
	}
}

// backoff is the pause after so many failures in a row.
func (s *Sequencer) backoff(failures int) time.Duration {
	d := s.cfg.MaxBackoff
	if failures < 32 && s.cfg.MinBackoff<<failures < d && s.cfg.MinBackoff<<failures > 0 {
		d = s.cfg.MinBackoff << failures
	}
	return s.jitter(d)
}

// jitter changes a pause by up to a fifth, so that those that failed together do not come back together.
func (s *Sequencer) jitter(d time.Duration) time.Duration { return d - d/5 + rand.N(2*d/5+1) }

// sleep waits; it reports false when ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
