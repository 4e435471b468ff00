package controlplane

import (
	"context"
	"errors"
	"strings"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/base/logthrottle"
	"scribe/storage/kv"
)

// storeFollower keeps a feed equal to the entries of the store with a prefix.
type storeFollower struct {
	prefix string
	feed   *categoryFeed
	// keep reports whether an entry belongs in the feed, by its key without the prefix.
	keep func(name string, value []byte) bool
}

// followStore keeps a feed equal to the store until the control plane stops.
func (c *ControlPlane) followStore(f storeFollower) {
	var trouble logthrottle.Throttle
	pauses := backoff.Backoff{Min: 50 * time.Millisecond, Max: 5 * time.Second, Random: c.deps.Random}
	for failures := 1; ; failures++ {
		err := c.followOnce(c.stopped, f, func() {
			failures = 0
			trouble.Recovered(c.stopped, c.logger, "following the store again", "prefix", f.prefix)
		})
		if c.stopped.Err() != nil || errors.Is(err, kv.ErrClosed) {
			return
		}
		pause := pauses.Pause(failures)
		if errors.Is(err, kv.ErrCompacted) {
			c.logger.Warn("fell behind the store: reading everything again", "prefix", f.prefix, "error", err)
		} else {
			trouble.Failed(c.stopped, c.logger, "following the store failed", "prefix", f.prefix, "error", err, "retry_after", pause)
		}
		if backoff.Sleep(c.stopped, pause) != nil {
			return
		}
	}
}

// followOnce reads all entries into the feed, calls synced, and then applies every change until an error.
func (c *ControlPlane) followOnce(ctx context.Context, f storeFollower, synced func()) error {
	if f.feed == c.feed {
		c.metrics.resyncs.Inc()
	}
	entries := make(map[string]kv.Entry)
	var begin uint64
	for after, first := "", true; ; first = false {
		page, err := c.deps.Store.Range(ctx, kv.KeyRange{Prefix: f.prefix, After: after})
		if err != nil {
			return err
		}
		if first {
			begin = page.Revision
		}
		for _, e := range page.Entries {
			after = e.Key
			name := strings.TrimPrefix(e.Key, f.prefix)
			if f.keep(name, e.Value) {
				entries[name] = e
			}
		}
		if !page.More {
			break
		}
	}
	f.feed.replaceAll(entries, begin)
	synced()
	return c.deps.Store.Watch(ctx, f.prefix, begin, func(b kv.EventBatch) error {
		events := make([]kv.KeyEvent, 0, len(b.Events))
		for _, e := range b.Events {
			e.Key = strings.TrimPrefix(e.Key, f.prefix)
			if e.Deleted || f.keep(e.Key, e.Value) {
				events = append(events, e)
			}
		}
		f.feed.applyEvents(events, b.Revision)
		return nil
	})
}

// isReadable reports whether a value decodes as a category. An unreadable value must not make all others unavailable.
func (c *ControlPlane) isReadable(name string, value []byte) bool {
	if _, err := c.decodeCounted(name, value, 0); err != nil {
		c.logger.Error("ignoring damaged category", "category", name, "error", err)
		return false
	}
	return true
}
