package pebblelog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/pebblelog/schema"
)

// headLimit bounds one look at the journal's head, barrierLimit how long a read waits for it and for the entries up to there.
const (
	headLimit    = 2500 * time.Millisecond
	barrierLimit = 10 * time.Second
)

// headBarrier makes reads linearizable at every replica, also at a leader that does not know yet that it was deposed: a read looks at
// the journal's head after it was called, and waits until everything up to there is applied. Reads that wait share one look, which
// must begin after the call.
type headBarrier struct {
	mu struct {
		sync.Mutex
		// next is the look that begins next, nil if nobody waits for it. running says that a goroutine makes looks.
		next    *headLook
		running bool
	}
}

// headLook is one look at the head. The result is set before done is closed.
type headLook struct {
	done chan struct{}
	head journal.Head
	err  error
}

// awaitBarrier waits until this replica shows everything that was acknowledged, by any replica, before the call.
func (e *Engine) awaitBarrier(ctx context.Context) error {
	if e.replica == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	limit := barrierLimit
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/2) // the other half is for another replica
	}
	return e.replica.passBarrier(ctx, limit)
}

// lookLimit bounds the barrier at the begin of a subscription.
const lookLimit = time.Second

// tryBarrier is awaitBarrier for calls that go on with what is applied if the journal does not answer soon.
func (e *Engine) tryBarrier(ctx context.Context) {
	if e.replica == nil || ctx.Err() != nil {
		return
	}
	if err := e.replica.passBarrier(ctx, lookLimit); err != nil {
		e.opts.Logger.DebugContext(ctx, "subscription begins with what is applied", "error", err)
	}
}

// passBarrier waits for at most limit. That its time was over is no error of the caller's context, who may ask another replica then.
func (r *replica) passBarrier(ctx context.Context, limit time.Duration) error {
	start := time.Now()
	limited, cancel := context.WithTimeoutCause(ctx, limit, errBehind)
	defer cancel()
	look := r.joinLook()
	select {
	case <-look.done:
	case <-limited.Done():
		return r.barrierError(limited, "the journal does not answer")
	case <-r.e.leaving():
		return r.e.closingError()
	case <-r.e.calls.Draining():
		return r.e.closingError()
	case <-r.e.failed:
		return r.e.failedError()
	}
	if look.err != nil {
		return fmt.Errorf("metalog: the journal does not answer, so this replica can't tell whether it is up to date: %w", look.err)
	}
	if err := journal.CheckDetached(look.head); err != nil {
		return err
	}
	if err := r.awaitState(limited, r.e.leaving(), func() bool { return r.mu.applied.Seq >= look.head.Seq }); err != nil {
		if limited.Err() != nil {
			return r.barrierError(limited, fmt.Sprintf("it has applied entry %d of %d", r.position().Seq, look.head.Seq))
		}
		return err
	}
	r.e.metrics.barrierSeconds.Observe(time.Since(start).Seconds())
	return nil
}

// errBehind is the cause of a context whose barrierLimit is over.
var errBehind = errors.New("the replica is behind")

// barrierError is the error of a barrier whose context is over: the caller's, or that of its limit.
func (r *replica) barrierError(limited context.Context, why string) error {
	if !errors.Is(context.Cause(limited), errBehind) {
		return limited.Err()
	}
	return fmt.Errorf("metalog: the replica on %s is behind: %s: ask another one", r.e.dir, why)
}

// joinLook returns the look that begins next.
func (r *replica) joinLook() *headLook {
	b := &r.barrier
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.next == nil {
		b.mu.next = &headLook{done: make(chan struct{})}
	}
	if !b.mu.running {
		b.mu.running = true
		r.work.Go(r.makeLooks)
	}
	return b.mu.next
}

// makeLooks makes looks, one after another, until nobody waits for one.
func (r *replica) makeLooks() {
	for {
		look := r.barrier.takeNext()
		if look == nil {
			return
		}
		if look.head, look.err = r.readHead(r.life); look.err == nil {
			r.offerHead(look.head)
		}
		close(look.done)
	}
}

func (b *headBarrier) takeNext() *headLook {
	b.mu.Lock()
	defer b.mu.Unlock()
	look := b.mu.next
	b.mu.next, b.mu.running = nil, look != nil
	return look
}

// readHead reads the head within headLimit.
func (r *replica) readHead(ctx context.Context) (journal.Head, error) {
	ctx, cancel := context.WithTimeout(ctx, headLimit)
	defer cancel()
	return r.journal.Head(ctx)
}

// readSequences is Sequences of a replica: producers' states are read from Pebble, where what is not durable never is.
func (e *Engine) readSequences(ctx context.Context, shard record.ShardID, producers []uint64) ([]metalog.ProducerState, error) {
	if err := e.enterCall(); err != nil {
		return nil, err
	}
	defer e.leaveCall()
	if err := metalog.ValidateProducers(producers); err != nil {
		return nil, err
	}
	if err := e.awaitBarrier(ctx); err != nil {
		return nil, err
	}
	st, err := e.table.stateOf(shard)
	if err != nil {
		return nil, err
	}
	out := make([]metalog.ProducerState, len(producers))
	for i, p := range producers {
		out[i].Producer = p
		if st.Epoch == 0 { // absent, or erased
			continue
		}
		known, _, err := lookUp(e.db, schema.AppendProducerKey(nil, shard, p), schema.DecodeProducer)
		if err != nil {
			return nil, readError(shard, 0, fmt.Errorf("producer %d: %w", p, err))
		}
		out[i].Epoch, out[i].Next = known.Epoch, known.Next
	}
	return out, nil
}

// readBoundary is AdvanceBoundary of a replica that only reads.
func (e *Engine) readBoundary(ctx context.Context) (int64, error) {
	if err := e.enterCall(); err != nil {
		return 0, err
	}
	defer e.leaveCall()
	if err := e.awaitBarrier(ctx); err != nil {
		return 0, err
	}
	return e.boundary.Load(), nil
}
