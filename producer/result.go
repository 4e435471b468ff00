package producer

import (
	"context"
	"fmt"
	"iter"
	"time"
)

// Result is the pending outcome of a message. Messages that travel in one frame share it.
type Result struct {
	done chan struct{} // closed after err and at are set; they do not change afterwards
	err  error
	at   Position

	// stream is the one of the message's frame, if that may linger long; else nil.
	stream *shardStream
	core   *sharedCore
}

func newResult() *Result { return &Result{done: make(chan struct{})} }

// settledResult returns the result of a message that was refused.
func settledResult(err error) *Result {
	r := newResult()
	r.err = err
	close(r.done)
	return r
}

// Done returns a channel that is closed when the outcome is known. From the first call on, the message lingers no longer than [WithLinger]
// says, as somebody waits for it.
func (r *Result) Done() <-chan struct{} {
	r.endLongLinger()
	return r.done
}

// Err returns the error of a message that failed. It is nil if the message was acknowledged, if the server left it out by
// sampling ([Position] tells), and while the outcome is pending.
func (r *Result) Err() error {
	select {
	case <-r.done:
		return r.err
	default:
		return nil
	}
}

// Position returns the position of an acknowledged message; it is zero while the outcome is pending.
func (r *Result) Position() Position {
	select {
	case <-r.done:
		return r.at
	default:
		return Position{}
	}
}

// Wait waits for the outcome and returns [Result.Err]. The message lingers no longer than [WithLinger] says. If ctx ends first, the producer continues to send the message, and the
// error matches [ErrUnknownOutcome] and the cause of ctx.
func (r *Result) Wait(ctx context.Context) error {
	select {
	case <-r.done:
		return r.err
	default:
	}
	r.endLongLinger()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return fmt.Errorf("%w: stopped waiting for it: %w", ErrUnknownOutcome, context.Cause(ctx))
	}
}

// Batch is the pending outcome of the messages of a batch.
type Batch struct {
	spans []resultSpan
	few   [4]resultSpan // memory of spans while they fit
	total int
}

// resultSpan is a run of neighbouring messages that share a result.
type resultSpan struct {
	r *Result
	n int
}

// addResult appends the result of the next messages.
func (b *Batch) addResult(r *Result, messages int) {
	if n := len(b.spans); n > 0 && b.spans[n-1].r == r {
		b.spans[n-1].n += messages
		return
	}
	b.spans = append(b.spans, resultSpan{r, messages})
}

// Results yields the results of the messages, in order. Messages that travel in one frame share one.
func (b *Batch) Results() iter.Seq[*Result] {
	return func(yield func(*Result) bool) {
		for _, sp := range b.spans {
			for range sp.n {
				if !yield(sp.r) {
					return
				}
			}
		}
	}
}

// Wait waits until every message is acknowledged or has failed. Its error is a *[BatchError] that lists the failed messages;
// messages that a server left out by sampling ([Position]) are not among them. If ctx ends first, the producer continues to send
// the pending messages, and their errors match [ErrUnknownOutcome] and the cause of ctx.
func (b *Batch) Wait(ctx context.Context) error {
	var failed []MessageError
	index := 0
	for _, sp := range b.spans {
		if err := sp.r.Wait(ctx); err != nil {
			for i := range sp.n {
				failed = append(failed, MessageError{Index: index + i, Err: err})
			}
		}
		index += sp.n
	}
	if failed != nil {
		return &BatchError{Messages: failed, Total: b.total}
	}
	return nil
}

// Position is the location of messages that were written without an error. Shard and LSN are 0 below [AckCommitted]. LSN is also
// 0 for a duplicate whose position the server no longer knows.
type Position struct {
	// Shard is the physical shard. LSN is the log sequence number of the pointer that covers the message.
	Shard, LSN uint64
	// Duplicate reports that an earlier attempt, or an earlier producer with the same identity, had stored the message.
	Duplicate bool
	// Sampled reports that the message was not stored: the category is over its quota, and sampling left the message out. Stored
	// messages carry the rate, so that readers can extrapolate. Retrying would only draw again.
	Sampled bool
}

// Drop describes messages that the producer dropped.
type Drop struct {
	Shard    Shard
	Messages int
	// Bytes is the sum of [Message.Size].
	Bytes  int64
	Reason DropReason
	Err    error
}

// Sampled describes a frame that the server left out by sampling, because its category is over its quota.
type Sampled struct {
	Shard    Shard
	Messages int
	// Bytes is the sum of [Message.Size].
	Bytes int64
}

// Acked describes an acknowledged frame.
type Acked struct {
	Shard    Shard
	Messages int
	// Bytes is the sum of [Message.Size].
	Bytes    int64
	Position Position
	// Attempts is the number of times the frame was sent.
	Attempts int
	// Latency is the time since the first message of the frame was accepted.
	Latency time.Duration
}
