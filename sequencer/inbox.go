package sequencer

import (
	"context"
	"sync"
)

// inbox is between a stream and the one who appends. It holds what the stream's credits allow; gaps and what else goes without credits
// makes the stream wait when there is no room.
type inbox struct {
	limit int // of steps
	// news, room and owed tell of changes; each has room for one.
	news, room, owed chan struct{}

	mu struct {
		sync.Mutex
		steps []step
		// taken says that the last steps that were taken are not appended yet.
		taken bool
		// pointers and bytes were appended, and can be given back to the stream as credits.
		pointers int
		bytes    uint64
		ended    bool
		err      error
		// watermark is what the stream said last: everything older was put.
		watermark int64
	}
}

func newInbox(limit int) *inbox {
	return &inbox{limit: limit, news: make(chan struct{}, 1), room: make(chan struct{}, 1), owed: make(chan struct{}, 1)}
}

func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // whoever takes it sees everything
	}
}

// put adds steps. It waits while there are twice as many as the credits allow.
func (b *inbox) put(ctx context.Context, watermark int64, steps ...step) error {
	for {
		b.mu.Lock()
		if len(b.mu.steps) < 2*b.limit {
			b.mu.steps = append(b.mu.steps, steps...)
			b.mu.watermark = max(b.mu.watermark, watermark)
			b.mu.Unlock()
			kick(b.news)
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

// end says that nothing more comes, and why.
func (b *inbox) end(err error) {
	b.mu.Lock()
	b.mu.ended, b.mu.err = true, err
	b.mu.Unlock()
	kick(b.news)
}

// take returns up to most steps as soon as there are some. done says that there are none and none will come; err is why.
func (b *inbox) take(ctx context.Context, most int) (steps []step, done bool, err error) {
	for {
		b.mu.Lock()
		if n := min(len(b.mu.steps), most); n > 0 {
			steps = b.mu.steps[:n:n]
			if b.mu.steps = b.mu.steps[n:]; len(b.mu.steps) == 0 {
				b.mu.steps = nil
			}
			b.mu.taken = true
			b.mu.Unlock()
			kick(b.room)
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

// mark takes a watermark: what is older was put.
func (b *inbox) mark(watermark int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.watermark = max(b.mu.watermark, watermark)
}

// reached is the watermark when all of what precedes it was appended; 0 else.
func (b *inbox) reached() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.mu.steps) > 0 || b.mu.taken {
		return 0
	}
	return b.mu.watermark
}

// appended says that what was taken last is committed: so many pointers, whose credits the stream gets back.
func (b *inbox) appended(pointers int, bytes uint64) {
	b.mu.Lock()
	b.mu.taken = false
	b.mu.pointers += pointers
	b.mu.bytes += bytes
	b.mu.Unlock()
	if pointers > 0 {
		kick(b.owed)
	}
}

// credits waits until there are credits for the stream.
func (b *inbox) credits(ctx context.Context) (pointers int, bytes uint64, err error) {
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
