package quota

import (
	"context"
	"time"
)

// WaitContext returns a context for waiting for a quota, which ends after three quarters of the remaining time: the rest is for what the
// request is about.
func WaitContext(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)*3/4)
}
