package sequencer

import (
	"context"
	"sync"
)

// stepInbox is the queue between a stream and its appender. It holds what the stream's credits allow. Steps that take no credits,
// such as gaps, make the stream wait when the inbox is full.
type stepInbox struct {
	limit   int // number of steps
	changed *sync.Cond

	mu struct {
		sync.Mutex
		steps []sourceStep
		// taken: the steps taken last are not appended yet.
		taken bool
		// pointers and bytes were appended, and are to be returned to the stream as credits.
		pointers int
		bytes    uint64
		ended    bool
		err      error
		// watermark is the stream's last watermark: everything older is in the inbox or was taken.
		watermark int64
	}
}

func newStepInbox(limit int) *stepInbox {
	b := &stepInbox{limit: limit}
	b.changed = sync.NewCond(&b.mu)
	return b
}

// applyChange makes a change.
func (b *stepInbox) applyChange(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
	b.changed.Broadcast()
}

// applyWhen waits until a condition holds, and then makes a change. It fails when ctx ends first.
func (b *stepInbox) applyWhen(ctx context.Context, ready func() bool, change func()) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !ready() {
		defer context.AfterFunc(ctx, func() { b.applyChange(func() {}) })()
	}
	for !ready() {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		b.changed.Wait()
	}
	change()
	b.changed.Broadcast()
	return nil
}

// putSteps adds steps. It waits while the inbox holds twice as many as the credits allow.
func (b *stepInbox) putSteps(ctx context.Context, watermark int64, steps ...sourceStep) error {
	return b.applyWhen(ctx, func() bool { return len(b.mu.steps) < 2*b.limit }, func() {
		b.mu.steps = append(b.mu.steps, steps...)
		b.mu.watermark = max(b.mu.watermark, watermark)
	})
}

// endStream records the end of the stream, with its error.
func (b *stepInbox) endStream(err error) {
	b.applyChange(func() { b.mu.ended, b.mu.err = true, err })
}

// takeSteps returns up to most steps as soon as there are any. done reports that there are none and no more will come; err then
// says why.
func (b *stepInbox) takeSteps(ctx context.Context, most int) (steps []sourceStep, done bool, err error) {
	waitErr := b.applyWhen(ctx, func() bool { return len(b.mu.steps) > 0 || b.mu.ended }, func() {
		n := min(len(b.mu.steps), most)
		if n == 0 {
			done, err = true, b.mu.err
			return
		}
		steps = b.mu.steps[:n:n]
		if b.mu.steps = b.mu.steps[n:]; len(b.mu.steps) == 0 {
			b.mu.steps = nil
		}
		b.mu.taken = true
	})
	if waitErr != nil {
		return nil, true, waitErr
	}
	return steps, done, err
}

// advanceWatermark records a watermark: everything older was put.
func (b *stepInbox) advanceWatermark(watermark int64) {
	b.applyChange(func() { b.mu.watermark = max(b.mu.watermark, watermark) })
}

// appendedWatermark returns the watermark if everything before it was appended; 0 otherwise.
func (b *stepInbox) appendedWatermark() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.mu.steps) > 0 || b.mu.taken {
		return 0
	}
	return b.mu.watermark
}

// confirmAppend records that the steps taken last are committed: the stream gets back the credits of so many pointers and bytes.
func (b *stepInbox) confirmAppend(pointers int, bytes uint64) {
	b.applyChange(func() {
		b.mu.taken = false
		b.mu.pointers += pointers
		b.mu.bytes += bytes
	})
}

// takeCredits waits until there are credits for the stream, and returns them.
func (b *stepInbox) takeCredits(ctx context.Context) (pointers int, bytes uint64, err error) {
	err = b.applyWhen(ctx, func() bool { return b.mu.pointers > 0 }, func() {
		pointers, bytes = b.mu.pointers, b.mu.bytes
		b.mu.pointers, b.mu.bytes = 0, 0
	})
	return pointers, bytes, err
}
