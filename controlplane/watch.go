package controlplane

import (
	"context"
	"time"

	scribev1 "scribe/proto/scribe/v1"
)

// WatchCategories implements rpc.ControlService. It ends with REASON_SHUTTING_DOWN when the control plane closes.
func (c *ControlPlane) WatchCategories(ctx context.Context, req *scribev1.WatchCategoriesRequest,
	send func(*scribev1.WatchCategoriesResponse) error,
) error {
	heartbeat, done, err := c.enterWatch(watchCategories, req.GetHeartbeat())
	if err != nil {
		return err
	}
	defer done()
	return serveFeed(ctx, c, c.feed, heartbeat, c.message, send)
}

// serveFeed sends what is in a feed and every change, until the watch ends. message converts a step; a step without news is a
// heartbeat.
func serveFeed[M any](ctx context.Context, c *ControlPlane, feed *categoryFeed, heartbeat time.Duration, message func(feedCursor, feedStep) *M,
	send func(*M) error,
) error {
	timer := time.NewTimer(heartbeat)
	defer timer.Stop()
	var at feedCursor
	for {
		started := at.started
		next := feed.readStep(&at, c.cfg.BatchCategories, c.cfg.BatchBytes)
		if next.reset && started {
			c.metrics.resets.Inc()
		}
		if next.hasNews() {
			if err := send(message(at, next)); err != nil {
				return err
			}
			timer.Reset(heartbeat)
		}
		if next.grown == nil {
			select {
			case <-c.calls.Draining():
				return errClosing()
			case <-ctx.Done():
				return ctx.Err()
			default:
				continue
			}
		}
		select {
		case <-next.grown:
		case <-timer.C:
			if err := send(message(at, feedStep{})); err != nil {
				return err
			}
			timer.Reset(heartbeat)
		case <-c.calls.Draining():
			return errClosing()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// hasNews reports whether a step tells a watch anything.
func (s *feedStep) hasNews() bool {
	return s.reset || s.syncs || len(s.updated) > 0 || len(s.deleted) > 0
}

// message converts a step into a message. Every message has its own copies of the categories.
func (c *ControlPlane) message(at feedCursor, s feedStep) *scribev1.WatchCategoriesResponse {
	msg := &scribev1.WatchCategoriesResponse{Reset_: s.reset, Deleted: s.deleted, Synced: s.syncs, Revision: at.revision}
	for _, e := range s.updated {
		if cat, err := c.decodeCounted(e.Key, e.Value, e.Revision); err == nil { // it was readable when it came into the feed
			msg.Updated = append(msg.Updated, cat)
		}
	}
	return msg
}
