package sequencer

import (
	"context"
	"sync"

	"scribe/internal/base/lifecycle"
)

// stepInbox is the queue between a stream and its appender. It holds what the stream's credits allow. Steps that take no credits,
// such as gaps, make the stream wait when the inbox is full.
type stepInbox struct {
	limit int // number of steps
	// news signals the appender that there are steps, or the end; room the stream that steps were taken; owed its sender that there
	// are credits.
	news, room, owed lifecycle.WakeChannel

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
	return &stepInbox{limit: limit, news: lifecycle.NewWakeChannel(), room: lifecycle.NewWakeChannel(), owed: lifecycle.NewWakeChannel()}
}

// tryUntil tries to make a change, again after each signal, until it succeeds. It fails when ctx ends first.
func (b *stepInbox) tryUntil(ctx context.Context, signal lifecycle.WakeChannel, change func() bool) error {
	for {
		b.mu.Lock()
		changed := change()
		b.mu.Unlock()
		if changed {
			return nil
		}
		select {
		case <-signal:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// putSteps adds steps. It waits while the inbox holds twice as many as the credits allow.
func (b *stepInbox) putSteps(ctx context.Context, watermark int64, steps ...sourceStep) error {
	err := b.tryUntil(ctx, b.room, func() bool {
		if len(b.mu.steps) >= 2*b.limit {
			return false
		}
		b.mu.steps = append(b.mu.steps, steps...)
		b.mu.watermark = max(b.mu.watermark, watermark)
		return true
	})
	if err == nil {
		b.news.WakeUp()
	}
	return err
}

// endStream records the end of the stream, with its error.
func (b *stepInbox) endStream(err error) {
	b.mu.Lock()
	b.mu.ended, b.mu.err = true, err
	b.mu.Unlock()
	b.news.WakeUp()
}

// takeSteps returns up to most steps as soon as there are any. done reports that there are none and no more will come; err then
// says why.
func (b *stepInbox) takeSteps(ctx context.Context, most int) (steps []sourceStep, done bool, err error) {
	waitErr := b.tryUntil(ctx, b.news, func() bool {
		n := min(len(b.mu.steps), most)
		if n == 0 {
			done, err = b.mu.ended, b.mu.err
			return done
		}
		steps = b.mu.steps[:n:n]
		if b.mu.steps = b.mu.steps[n:]; len(b.mu.steps) == 0 {
			b.mu.steps = nil
		}
		b.mu.taken = true
		return true
	})
	if waitErr != nil {
		return nil, true, waitErr
	}
	b.room.WakeUp()
	return steps, done, err
}

// advanceWatermark records a watermark: everything older was put.
func (b *stepInbox) advanceWatermark(watermark int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.watermark = max(b.mu.watermark, watermark)
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
	b.mu.Lock()
	b.mu.taken = false
	b.mu.pointers += pointers
	b.mu.bytes += bytes
	b.mu.Unlock()
	b.owed.WakeUp()
}

// takeCredits waits until there are credits for the stream, and returns them.
func (b *stepInbox) takeCredits(ctx context.Context) (pointers int, bytes uint64, err error) {
	err = b.tryUntil(ctx, b.owed, func() bool {
		pointers, bytes = b.mu.pointers, b.mu.bytes
		if pointers > 0 {
			b.mu.pointers, b.mu.bytes = 0, 0
		}
		return pointers > 0
	})
	return pointers, bytes, err
}
