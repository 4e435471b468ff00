package quota

import (
	"context"
	"time"

	scribev1 "scribe/proto/scribe/v1"
)

// ModeOf returns what happens beyond a quota of a category with a mode. In exactly_once categories, sampling becomes blocking, since
// what is left out would be a gap in the sequences of producers, and a lost message for readers.
func ModeOf(c *scribev1.Category, mode scribev1.QuotaMode) scribev1.QuotaMode {
	if mode == scribev1.QuotaMode_QUOTA_MODE_SAMPLE && c.GetDelivery() == scribev1.Delivery_DELIVERY_EXACTLY_ONCE {
		return scribev1.QuotaMode_QUOTA_MODE_BLOCK
	}
	return mode
}

// WaitContext returns a context for waiting for a quota, which ends after three quarters of the remaining time: the rest is for what the
// request is about.
func WaitContext(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)*3/4)
}
