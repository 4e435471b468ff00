package producer

import (
	"context"
	"fmt"
	"time"
)

// Result is the pending outcome of a message. Messages that travel in one frame share it.
type Result struct {
	done chan struct{} // closed once the rest is set, for good
	err  error
	at   Position
}

func newResult() *Result { return &Result{done: make(chan struct{})} }

// settledResult is the result of a message that was not taken.
func settledResult(err error) *Result {
	r := newResult()
	r.err = err
	close(r.done)
	return r
}

// Done is closed when the outcome is known.
func (r *Result) Done() <-chan struct{} { return r.done }

// Err is why the message was not acknowledged. It is nil when it was, and as long as the outcome is not known.
func (r *Result) Err() error {
	select {
	case <-r.done:
		return r.err
	default:
		return nil
	}
}

// Position is where an acknowledged message is, and zero as long as that is not known.
func (r *Result) Position() Position {
	select {
	case <-r.done:
		return r.at
	default:
		return Position{}
	}
}

// Wait waits for the outcome and returns [Result.Err]. When ctx ends before, the message is still being sent, and the error
// matches [ErrUnknownOutcome] and what ended ctx.
func (r *Result) Wait(ctx context.Context) error {
	select {
	case <-r.done:
		return r.err
	default:
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return fmt.Errorf("%w: stopped waiting for it: %w", ErrUnknownOutcome, context.Cause(ctx))
	}
}

// Position is where acknowledged messages are. Shard and LSN are 0 below [AckCommitted], and LSN for a repeated message whose
// place the server no longer knows.
type Position struct {
	// Shard is the physical shard, LSN the log sequence number of the pointer that covers the message.
	Shard, LSN uint64
	// Duplicate says that an earlier attempt, or an earlier producer of the same identity, had stored it.
	Duplicate bool
}

// Drop tells of messages that were lost to this producer.
type Drop struct {
	Shard    Shard
	Messages int
	// Bytes is the sum of [Message.Size].
	Bytes  int64
	Reason DropReason
	Err    error
}

// Acked tells of a frame that was acknowledged.
type Acked struct {
	Shard    Shard
	Messages int
	// Bytes is the sum of [Message.Size].
	Bytes    int64
	Position Position
	// Attempts is how often the frame was sent.
	Attempts int
	// Latency is the time since its first message was taken.
	Latency time.Duration
}
