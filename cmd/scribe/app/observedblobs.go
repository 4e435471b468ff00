package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"scribe/internal/base/logthrottle"
	"scribe/storage/blob"
)

// observedBlobs is a blob store of which is known whether it fails. Its log says when a failure begins, and when it is over.
type observedBlobs struct {
	blob.Store
	puts, reads storeCondition
}

func observeBlobs(store blob.Store, log *slog.Logger) *observedBlobs {
	o := &observedBlobs{Store: store}
	o.puts.log, o.puts.calls = log, "puts"
	o.reads.log, o.reads.calls = log, "reads"
	return o
}

// Put implements blob.Store.
func (o *observedBlobs) Put(ctx context.Context, key string, parts ...[]byte) error {
	err := o.Store.Put(ctx, key, parts...)
	o.puts.noteOutcome(ctx, err)
	return err
}

// ReadAt implements blob.Store.
func (o *observedBlobs) ReadAt(ctx context.Context, key string, dst []byte, off int64) error {
	err := o.Store.ReadAt(ctx, key, dst, off)
	o.reads.noteOutcome(ctx, err)
	return err
}

// storeCondition holds the recent outcomes of one kind of call.
type storeCondition struct {
	log   *slog.Logger
	calls string
	mu    struct {
		sync.Mutex
		throttle logthrottle.Throttle
		err      error // of the last call; nil if the store did what it should
		since    time.Time
		last     time.Time
	}
}

// forgetFailure is how long a failure counts when nobody asks the store again.
const forgetFailure = time.Minute

// noteOutcome notes how a call ended. Answers about a blob are no failures of the store, nor are calls that their caller gave up.
func (c *storeCondition) noteOutcome(ctx context.Context, err error) {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, blob.ErrClosed):
		return
	case errors.Is(err, blob.ErrNotFound), errors.Is(err, blob.ErrExists), errors.Is(err, blob.ErrRange), errors.Is(err, blob.ErrInvalidKey):
		err = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		if c.mu.err != nil {
			c.mu.err = nil
			c.mu.throttle.Recovered(ctx, c.log, "the blob store works again", "calls", c.calls)
		}
		return
	}
	now := time.Now()
	if c.mu.err == nil {
		c.mu.since = now
	}
	c.mu.err, c.mu.last = err, now
	c.mu.throttle.Failed(ctx, c.log, "the blob store fails", "calls", c.calls, "error", err)
}

// failure returns why the store fails; nil if it does not, as far as the last call tells.
func (c *storeCondition) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.err == nil || time.Since(c.mu.last) > forgetFailure {
		return nil
	}
	return fmt.Errorf("%s have failed for %v: %w", c.calls, time.Since(c.mu.since).Round(time.Second), c.mu.err)
}
