package sequencer

import (
	"context"
	"sync"
)

// stepInbox is the queue between a stream and its appender. It holds what the stream's credits allow. Steps that take no credits,
// such as gaps, make the stream wait when the inbox is full.
type stepInbox struct {
	limit int // number of steps
	// news, room and owed signal changes; each has capacity 1.
	news, room, owed chan struct{}

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
	return &stepInbox{limit: limit, news: make(chan struct{}, 1), room: make(chan struct{}, 1), owed: make(chan struct{}, 1)}
}

func sendSignal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a pending signal covers every change
	}
}

// putSteps adds steps. It waits while the inbox holds twice as many as the credits allow.
func (b *stepInbox) putSteps(ctx context.Context, watermark int64, steps ...sourceStep) error {
	for {
		b.mu.Lock()
		if len(b.mu.steps) < 2*b.limit {
			b.mu.steps = append(b.mu.steps, steps...)
			b.mu.watermark = max(b.mu.watermark, watermark)
			b.mu.Unlock()
			sendSignal(b.news)
			return nil
		}
		b.mu.Unlock()
		select {
		case <-b.room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// endStream records the end of the stream, with its error.
func (b *stepInbox) endStream(err error) {
	b.mu.Lock()
	b.mu.ended, b.mu.err = true, err
	b.mu.Unlock()
	sendSignal(b.news)
}

// takeSteps returns up to most steps as soon as there are any. done reports that there are none and no more will come; err then
// says why.
func (b *stepInbox) takeSteps(ctx context.Context, most int) (steps []sourceStep, done bool, err error) {
	for {
		b.mu.Lock()
		if n := min(len(b.mu.steps), most); n > 0 {
			steps = b.mu.steps[:n:n]
			if b.mu.steps = b.mu.steps[n:]; len(b.mu.steps) == 0 {
				b.mu.steps = nil
			}
			b.mu.taken = true
			b.mu.Unlock()
			sendSignal(b.room)
			return steps, false, nil
		}
		done, err = b.mu.ended, b.mu.err
		b.mu.Unlock()
		if done {
			return nil, true, err
		}
		select {
		case <-b.news:
		case <-ctx.Done():
			return nil, true, context.Cause(ctx)
		}
	}
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
	if pointers > 0 {
		sendSignal(b.owed)
	}
}

// takeCredits waits until there are credits for the stream, and returns them.
func (b *stepInbox) takeCredits(ctx context.Context) (pointers int, bytes uint64, err error) {
	for {
		b.mu.Lock()
		pointers, bytes = b.mu.pointers, b.mu.bytes
		b.mu.pointers, b.mu.bytes = 0, 0
		b.mu.Unlock()
		if pointers > 0 {
			return pointers, bytes, nil
		}
		select {
		case <-b.owed:
		case <-ctx.Done():
			return 0, 0, context.Cause(ctx)
		}
	}
}
