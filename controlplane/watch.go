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
	var (
		plansAt feedCursor
		told    *scribev1.TenantQuotas
	)
	message := func(at feedCursor, step feedStep) *scribev1.WatchCategoriesResponse {
		msg := c.message(at, step)
		if step.syncs { // with the set, so that the receiver is not without quotas in between
			msg.TenantQuotas, _ = c.tenants.read()
			told = msg.GetTenantQuotas()
		}
		return msg
	}
	return serveFeed(ctx, c, c.feed, heartbeat, message, send, func(at feedCursor, step feedStep) (grown [2]<-chan struct{}, sent bool, err error) {
		if grown[0], sent, err = c.sendPlans(at, step, &plansAt, send); err != nil || !at.synced {
			return grown, sent, err
		}
		var set *scribev1.TenantQuotas
		if set, grown[1] = c.tenants.read(); set == told {
			return grown, sent, nil
		}
		told = set
		return grown, true, send(&scribev1.WatchCategoriesResponse{Revision: at.revision, TenantQuotas: set})
	})
}

// serveFeed sends what is in a feed and every change, until the watch ends. message converts a step; a step without news is a
// heartbeat. sendMore, if not nil, sends what depends on the feed after each step, says whether it sent anything, and returns the channels
// that announce more of it.
func serveFeed[M any](ctx context.Context, c *ControlPlane, feed *categoryFeed, heartbeat time.Duration, message func(feedCursor, feedStep) *M,
	send func(*M) error, sendMore func(feedCursor, feedStep) (grown [2]<-chan struct{}, sent bool, err error),
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
		var moreGrown [2]<-chan struct{} // nil ones announce nothing
		if sendMore != nil {
			grown, sent, err := sendMore(at, next)
			if err != nil {
				return err
			}
			if sent {
				timer.Reset(heartbeat)
			}
			moreGrown = grown
		}
		select {
		case <-next.grown:
		case <-moreGrown[0]:
		case <-moreGrown[1]:
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

// sendPlans sends the plans that a watch of the categories has not been sent, once it has the complete set of categories. It returns the
// channel that announces more, nil before that.
func (c *ControlPlane) sendPlans(categories feedCursor, step feedStep, at *feedCursor, send func(*scribev1.WatchCategoriesResponse) error) (grown <-chan struct{}, sent bool, err error) {
	if !categories.synced {
		return nil, false, nil
	}
	if step.syncs {
		*at = feedCursor{} // the receiver forgot the plans with the categories
	}
	for grown == nil {
		started := at.started
		s := c.plans.readStep(at, c.cfg.BatchCategories, c.cfg.BatchBytes)
		msg := &scribev1.WatchCategoriesResponse{Revision: categories.revision, PlansReset: s.reset && started}
		for _, e := range s.updated {
			if plan, err := decodePlan(e.Key, e.Value); err == nil { // it was readable when it came into the feed
				msg.Plans = append(msg.Plans, plan)
			}
		}
		for _, key := range s.deleted {
			msg.Unplanned = append(msg.Unplanned, categoryOfKey(planPrefix, key))
		}
		if msg.GetPlansReset() || len(msg.GetPlans()) > 0 || len(msg.GetUnplanned()) > 0 {
			if err := send(msg); err != nil {
				return nil, sent, err
			}
			sent = true
		}
		grown = s.grown
	}
	return grown, sent, nil
}
