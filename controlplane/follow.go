package controlplane

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"scribe/storage/kv"
)

// Pauses between attempts to follow the store: at most so long, doubling, and a random part of it.
const (
	minPause = 50 * time.Millisecond
	maxPause = 5 * time.Second
)

// followStore keeps the feed equal to the store until the control plane stops.
func (c *ControlPlane) followStore() {
	pause := minPause
	for {
		err := c.follow(c.stopped)
		if c.stopped.Err() != nil || errors.Is(err, kv.ErrClosed) {
			return
		}
		if errors.Is(err, kv.ErrCompacted) {
			c.logger.Warn("the control plane fell behind its store, it reads all categories again", "error", err)
			pause = minPause
		} else {
			c.logger.Error("the control plane cannot follow its store, it tries again", "error", err, "pause", pause)
		}
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-timer.C:
		case <-c.stopped.Done():
			timer.Stop()
			return
		}
		pause = min(2*pause, maxPause)
	}
}

// follow reads all categories into the feed, and then every change. It returns when that fails.
func (c *ControlPlane) follow(ctx context.Context) error {
	c.metrics.resyncs.Inc()
	entries := make(map[string]kv.Entry)
	var begin uint64
	for after, first := "", true; ; first = false {
		page, err := c.deps.Store.Range(ctx, kv.Range{Prefix: categoryPrefix, After: after})
		if err != nil {
			return err
		}
		if first {
			begin = page.Revision
		}
		for _, e := range page.Entries {
			after = e.Key
			name := strings.TrimPrefix(e.Key, categoryPrefix)
			if c.readable(name, e.Value) {
				entries[name] = e
			}
		}
		if !page.More {
			break
		}
	}
	c.feed.replace(entries, begin)
	return c.deps.Store.Watch(ctx, categoryPrefix, begin, func(b kv.Batch) error {
		events := make([]kv.Event, 0, len(b.Events))
		for _, e := range b.Events {
			e.Key = strings.TrimPrefix(e.Key, categoryPrefix)
			if e.Deleted || c.readable(e.Key, e.Value) {
				events = append(events, e)
			}
		}
		c.feed.apply(events, b.Revision)
		return nil
	})
}

// readable reports whether a value is that of a category. One that is not must not take all the others with it.
func (c *ControlPlane) readable(name string, value []byte) bool {
	if _, err := c.decode(name, value, 0); err != nil {
		c.logger.Error("a category cannot be read and is left out", "category", name, "error", err)
		return false
	}
	return true
}
