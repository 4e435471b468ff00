package moving

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/base/entropy"
	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Move says which log moves, and between which engines.
type Move struct {
	Shard record.ShardID
	// From and To are the names of the engines, Source and Destination the engines.
	From, To            string
	Source, Destination metalog.Log
}

// Options are the settings of a move.
type Options struct {
	// Patience bounds how long a step is repeated whose error may pass; 0 means DefaultPatience.
	Patience time.Duration
	// Random draws the jitter of pauses.
	Random *entropy.Source
}

// DefaultPatience is the default of Options.Patience: several times what it takes to elect a leader.
const DefaultPatience = 30 * time.Second

// Moved is the outcome of a move.
type Moved struct {
	// Handover is what was handed over, State the log's state in its new engine afterwards: it may have gone on since.
	Handover metalog.Handover
	State    metalog.State
	// Pause is how long writers were refused by this call's doing: from before the log was handed over until it was adopted. If another process had
	// handed it over, they were refused before, too: Resumed says so.
	Pause   time.Duration
	Resumed bool
}

// MoveLog moves a log, or finishes its move. It returns when the log can be written in its new engine. A step that fails in a way that may pass, or
// whose outcome is unknown, is repeated. With any error the log is where it was, or between the engines: the same call finishes the move then.
//
// It refuses to begin a move between engines whose clocks are more than metalog.MaxClockJump apart, with a *metalog.ClockError: the log's readers
// would wait for that long, or all logs of the new engine would get times that far ahead. Other errors that callers branch on are those of
// metalog.Log.MoveOut and MoveIn.
func MoveLog(ctx context.Context, m Move, o Options) (Moved, error) {
	r := &run{Move: m, patience: cmp.Or(o.Patience, DefaultPatience)}
	r.pauses = backoff.Backoff{Min: 20 * time.Millisecond, Max: time.Second, Random: o.Random}
	done, err := r.move(ctx)
	if err != nil {
		return done, fmt.Errorf("move shard %v from engine %q to %q: %w", m.Shard, m.From, m.To, err)
	}
	return done, nil
}

// run is one call of MoveLog.
type run struct {
	Move
	patience time.Duration
	pauses   backoff.Backoff
}

func (r *run) move(ctx context.Context) (done Moved, err error) {
	if done.Resumed, err = r.check(ctx); err != nil {
		return done, err
	}
	began := time.Now()
	done.Handover, err = repeat(ctx, r, func() (metalog.Handover, error) { return r.Source.MoveOut(ctx, r.Shard, r.From, r.To) })
	if err != nil {
		return done, fmt.Errorf("hand over: %w", err)
	}
	done.State, err = r.adopt(ctx, done.Handover)
	done.Pause = time.Since(began)
	return done, err
}

// check reports whether the log was handed over already. If not, the clocks of the engines must be near each other.
func (r *run) check(ctx context.Context) (resumed bool, err error) {
	here, err := r.tail(ctx, r.Source)
	if err != nil || here.MovedTo == r.To && here.Epoch != 0 {
		return err == nil, err
	}
	if here.MovedTo != "" || here.Epoch == 0 { // the engine says what is wrong
		return false, nil
	}
	source, err := r.clock(ctx, r.Source)
	if err != nil {
		return false, err
	}
	destination, err := r.clock(ctx, r.Destination)
	if err == nil && distance(source, destination) > metalog.MaxClockJump {
		err = &metalog.ClockError{Time: source, Clock: destination}
	}
	return false, err
}

// clock returns an engine's clock, as far as it tells it: the watermark of a log that never moves, since no category has the last id.
func (r *run) clock(ctx context.Context, log metalog.Log) (int64, error) {
	st, err := r.tailOf(ctx, log, math.MaxUint64)
	return st.Watermark, err
}

func distance(a, b int64) time.Duration {
	return time.Duration(max(a, b)-min(a, b)) * time.Microsecond
}

func (r *run) tail(ctx context.Context, log metalog.Log) (metalog.State, error) {
	return r.tailOf(ctx, log, r.Shard)
}

func (r *run) tailOf(ctx context.Context, log metalog.Log, shard record.ShardID) (metalog.State, error) {
	return repeat(ctx, r, func() (st metalog.State, err error) {
		states, err := log.Tail(ctx, []record.ShardID{shard})
		if err == nil {
			st = states[0]
		}
		return st, err
	})
}

// adopt has the destination adopt the log, unless it has.
func (r *run) adopt(ctx context.Context, h metalog.Handover) (metalog.State, error) {
	there, err := r.tail(ctx, r.Destination)
	if err != nil || there.Adopted >= h.Epoch {
		return there, err
	}
	producers, err := r.readProducers(ctx, h)
	if errors.Is(err, metalog.ErrFenced) { // it came back meanwhile, so another process has finished this move
		if again, terr := r.tail(ctx, r.Destination); terr == nil && again.Adopted >= h.Epoch {
			return again, nil
		}
	}
	if err != nil {
		return there, fmt.Errorf("read its producers: %w", err)
	}
	st, err := repeat(ctx, r, func() (metalog.State, error) { return r.Destination.MoveIn(ctx, h, producers) })
	if err != nil {
		return st, fmt.Errorf("adopt: %w", err)
	}
	return st, nil
}

// readProducers returns what the log knows of producers. Nobody changes that while it is handed over.
func (r *run) readProducers(ctx context.Context, h metalog.Handover) ([]metalog.MovedProducer, error) {
	out := make([]metalog.MovedProducer, 0, min(h.Producers, metalog.MaxMovedProducers))
	for first := uint64(0); ; {
		page, err := repeat(ctx, r, func() ([]metalog.MovedProducer, error) {
			return r.Source.MovedProducers(ctx, r.Shard, h.Epoch, first, metalog.MaxProducers)
		})
		if err != nil {
			return nil, err
		}
		out = append(out, page...)
		if len(out) > h.Producers {
			return nil, fmt.Errorf("engine %q has more than the %d producers that it handed over", r.From, h.Producers)
		}
		if len(page) < metalog.MaxProducers || page[len(page)-1].Producer == math.MaxUint64 {
			return out, nil
		}
		first = page[len(page)-1].Producer + 1
	}
}

// repeat makes a call until it succeeds, fails for a reason that does not pass, or has failed for too long. Every call of a move may be repeated whatever
// became of it.
func repeat[T any](ctx context.Context, r *run, call func() (T, error)) (T, error) {
	began := time.Now()
	for failures := 1; ; failures++ {
		res, err := call()
		if err == nil || isFinal(err) || ctx.Err() != nil {
			return res, err
		}
		pause := r.pauses.Pause(failures)
		if waited := time.Since(began); waited+pause > r.patience {
			return res, fmt.Errorf("given up after %d attempts in %v: %w", failures, waited, err)
		}
		if serr := backoff.Sleep(ctx, pause); serr != nil {
			return res, errors.Join(serr, err)
		}
	}
}

// isFinal reports whether an error is about the call, so that the same call fails again.
func isFinal(err error) bool {
	sentinel := metalog.FindSentinel(err)
	return sentinel != nil && !errors.Is(sentinel, metalog.ErrNotLeader) && !errors.Is(sentinel, metalog.ErrClosed)
}
