package writeproxy

import (
	"cmp"
	"context"
	"slices"
	"time"

	"scribe/internal/role/quota"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// limitedGroup has the frames of a request that belong to one category with a quota, in order.
type limitedGroup struct {
	category *scribev1.Category
	frames   []*frameItem
	bytes    int64
	// waiter is set when they wait.
	waiter *quota.Waiter
}

// limit is the quota of the group's category.
func (g *limitedGroup) limit() quota.Limit {
	return quota.Limit{Category: g.category.GetId(), Bytes: g.category.GetQuotaBytesPerSecond()}
}

// sizeOf returns the bytes of a frame of the group.
func (g *limitedGroup) sizeOf(i int) int64 { return int64(len(g.frames[i].bytes)) }

// groupLimited returns the frames that have a quota, by category. All frames of a category are in one group, since they must not
// overtake each other.
func groupLimited(items []frameItem) (groups []*limitedGroup) {
	var limited []*frameItem
	for i := range items {
		if it := &items[i]; !it.done && it.category.GetQuotaBytesPerSecond() > 0 {
			limited = append(limited, it)
		}
	}
	slices.SortStableFunc(limited, func(a, b *frameItem) int { return cmp.Compare(a.category.GetId(), b.category.GetId()) })
	for len(limited) > 0 {
		g := &limitedGroup{category: limited[0].category}
		n := 0
		for ; n < len(limited) && limited[n].category.GetId() == g.category.GetId(); n++ {
			g.bytes += int64(len(limited[n].bytes))
		}
		g.frames, limited = limited[:n:n], limited[n:]
		groups = append(groups, g)
	}
	return groups
}

// applyQuotas applies the quotas, and then checks the bodies of the remaining frames. So a frame over a quota costs only the
// check of its header, except large frames, whose checksums are verified while they arrive. It returns the frames to send now, in
// order, and the groups that wait.
func (c *writeCall) applyQuotas(ctx context.Context, items []frameItem) (now []*frameItem, waiting []*limitedGroup) {
	for _, g := range groupLimited(items) {
		if c.limitGroup(ctx, g); g.waiter != nil {
			waiting = append(waiting, g)
		}
	}
	now = make([]*frameItem, 0, len(items))
	for i := range items {
		if it := &items[i]; it.checkOnce() && !it.waits {
			now = append(now, it)
		}
	}
	return now, waiting
}

// checkOnce checks the body of a frame, if it was not checked before, and refuses an invalid frame. It reports whether the frame
// is still to be sent.
func (it *frameItem) checkOnce() bool {
	if it.done || it.checked {
		return !it.done
	}
	it.checked = true
	if err := it.checkBody(); err != nil {
		it.refuseWith(err)
	}
	return !it.done
}

// limitGroup applies a category's quota to its frames.
func (c *writeCall) limitGroup(ctx context.Context, g *limitedGroup) {
	switch quota.ModeOf(g.category, g.category.GetQuotaMode()) {
	case scribev1.QuotaMode_QUOTA_MODE_THROTTLE:
		c.throttleGroup(ctx, g)
	case scribev1.QuotaMode_QUOTA_MODE_SAMPLE:
		_, _ = c.p.quotas.SampleParts(g.limit(), len(g.frames), g.sizeOf, func(i int, rate uint32) {
			it := g.frames[i]
			it.leftOut = rate == 0
			if rate > 1 {
				it.sampleRate = quota.ScaleRate(it.sampleRate, rate)
				it.resampled = true
			}
		})
		out, sum := &scribev1.FrameResult{SampledOut: true}, 0 // nobody changes results
		for _, it := range g.frames {
			if it.leftOut {
				it.done, it.result = true, out
				sum += len(it.bytes)
			}
		}
		c.countOverQuota("left_out", sum)
	case scribev1.QuotaMode_QUOTA_MODE_UNSPECIFIED, scribev1.QuotaMode_QUOTA_MODE_BLOCK:
		if n, after := c.p.quotas.PassLeading(g.limit(), len(g.frames), g.sizeOf); n < len(g.frames) {
			c.refuseItems(g.frames[n:], overQuota(g.category, after))
		}
	}
}

// refuseItems fails frames that are over a quota.
func (c *writeCall) refuseItems(frames []*frameItem, err error) {
	result, sum := &scribev1.FrameResult{Error: rpc.Info(err)}, 0
	for _, it := range frames {
		it.done, it.result, it.overQuota = true, result, true
		sum += len(it.bytes)
	}
	c.countOverQuota("refused", sum)
}

func (c *writeCall) countOverQuota(outcome string, n int) {
	c.p.metrics.overQuota.WithLabelValues(outcome).Add(float64(n))
}

// throttleGroup passes the frames of a group, queues them, or refuses them. They pass together, which keeps their order. Their
// bodies are checked first, so that damaged frames do not wait.
func (c *writeCall) throttleGroup(ctx context.Context, g *limitedGroup) {
	left := g.frames[:0]
	for _, it := range g.frames {
		if it.checkOnce() {
			left = append(left, it)
		} else {
			g.bytes -= int64(len(it.bytes))
		}
	}
	g.frames = left
	if len(g.frames) == 0 {
		return
	}
	held := g.bytes
	if !c.held {
		held = int64(len(c.whole)) // the bytes of other categories stay, too, until the request is answered
	}
	ctx, cancel := quota.WaitContext(ctx)
	defer cancel()
	waiter, after, ok := c.p.quotas.EnterLine(ctx, g.limit(), g.bytes, held)
	if !ok {
		c.refuseItems(g.frames, overQuota(g.category, after))
	}
	if waiter == nil {
		return
	}
	g.waiter = waiter
	c.held = true
	for _, it := range g.frames {
		it.waits = true
	}
}

// awaitQuota waits for the group's turn, and sends its frames.
func (c *writeCall) awaitQuota(ctx context.Context, g *limitedGroup) {
	start := time.Now()
	waiting, cancel := quota.WaitContext(ctx)
	passed, after := c.p.quotas.AwaitTurn(waiting, g.limit(), g.waiter, c.p.calls.Draining())
	cancel()
	c.p.metrics.waits.Observe(time.Since(start).Seconds())
	switch {
	case passed:
	case after > 0:
		c.refuseItems(g.frames, overQuota(g.category, after))
		return
	default:
		c.refuseItems(g.frames, errShutDown())
		return
	}
	c.countOverQuota("delayed", int(g.bytes))
	c.deliverItems(ctx, g.frames)
}

// overQuota returns the error for frames over a quota, with a retry hint.
func overQuota(c *scribev1.Category, after time.Duration) error {
	return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, after,
		"category %s is over its quota of %d bytes a second: try again in %v", c.GetName(), c.GetQuotaBytesPerSecond(), after.Round(time.Millisecond))
}
