package producer

import (
	"context"
	"fmt"
	"iter"
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

// Err is why the message was not acknowledged. It is nil when it was, when the server left it out on purpose ([Position] says so),
// and as long as the outcome is not known.
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

// Batch is the pending outcome of the messages of a batch.
type Batch struct {
	spans []resultSpan
	few   [4]resultSpan // spans, unless there are more
	total int
}

// resultSpan is a row of messages of a batch with one result.
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

// Wait waits until every message is acknowledged or has failed: then the error is a *[BatchError] that names the failed ones. It is
// nil for those that a server left out on purpose ([Position]). When ctx ends before, messages are still being sent, and their errors
// match [ErrUnknownOutcome] and what ended ctx.
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

// Position is where messages are whose outcome is no error. Shard and LSN are 0 below [AckCommitted], and LSN for a repeated message whose
// position the server no longer knows.
type Position struct {
	// Shard is the physical shard, LSN the log sequence number of the pointer that covers the message.
	Shard, LSN uint64
	// Duplicate says that an earlier attempt, or an earlier producer of the same identity, had stored it.
	Duplicate bool
	// Sampled says that it is nowhere: the category is over its quota and keeps a sample, which the message is not part of. Those
	// that are kept carry the rate, so that readers can count it. Sending it again would only be another draw.
	Sampled bool
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

// Sampled tells of a frame that the server left out on purpose, because its category is over its quota and keeps a sample.
type Sampled struct {
	Shard    Shard
	Messages int
	// Bytes is the sum of [Message.Size].
	Bytes int64
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
