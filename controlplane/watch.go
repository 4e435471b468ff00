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
	timer := time.NewTimer(heartbeat)
	defer timer.Stop()
	var at, plansAt feedCursor
	for {
		started := at.started
		next := c.feed.readStep(&at, c.cfg.BatchCategories, c.cfg.BatchBytes)
		if next.reset && started {
			c.metrics.resets.Inc()
		}
		if msg := c.message(at, next); msg != nil {
			if err := send(msg); err != nil {
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
		plansGrown, sent, err := c.sendPlans(at, next, &plansAt, send)
		if err != nil {
			return err
		}
		if sent {
			timer.Reset(heartbeat)
		}
		select {
		case <-next.grown:
		case <-plansGrown:
		case <-timer.C:
			if err := send(&scribev1.WatchCategoriesResponse{Revision: at.revision}); err != nil {
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

// message converts a step into a message, or nil if the step has no news. Every message has its own copies of the categories.
func (c *ControlPlane) message(at feedCursor, s feedStep) *scribev1.WatchCategoriesResponse {
	if !s.reset && !s.syncs && len(s.updated) == 0 && len(s.deleted) == 0 {
		return nil
	}
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
