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

// limitedGroup has the frames of a request that belong to one category that is under quotas, in order.
type limitedGroup struct {
	category *scribev1.Category
	// limits are the quotas that the frames have to pass, one after another; passed is how many of them they have passed.
	limits []quota.Limit
	passed int
	// under are where limits are.
	under [quota.MaxLimits]quota.Limit
	// frames are those that no quota has refused or left out.
	frames []*frameItem
	// held is the memory retained while they wait; 0 before they wait for the first time.
	held int64
	// waiter is set while they wait for limits[passed].
	waiter *quota.Waiter
	// notAdmitted are the bytes of those that passed the quotas, and are refused nevertheless.
	notAdmitted int64
}

// sizeOf returns the bytes of a frame of the group.
func (g *limitedGroup) sizeOf(i int) int64 { return int64(len(g.frames[i].bytes)) }

// groupLimited returns the frames that are under quotas, by category. All frames of a category are in one group, since they must not
// overtake each other.
func groupLimited(items []frameItem, tenants *quota.Tenants) (groups []*limitedGroup) {
	var (
		limited  []*frameItem
		category *scribev1.Category // of the frame before
		under    [quota.MaxLimits]quota.Limit
		covered  bool // by any quota
	)
	for i := range items {
		it := &items[i]
		if it.done {
			continue
		}
		if it.category != category {
			category = it.category
			covered = len(quota.AppendWriteLimits(under[:0], category, tenants)) > 0
		}
		if covered {
			limited = append(limited, it)
		}
	}
	slices.SortStableFunc(limited, func(a, b *frameItem) int { return cmp.Compare(a.category.GetId(), b.category.GetId()) })
	for len(limited) > 0 {
		g := &limitedGroup{category: limited[0].category}
		n := 0
		for n < len(limited) && limited[n].category.GetId() == g.category.GetId() {
			n++
		}
		g.frames, limited = limited[:n:n], limited[n:]
		if g.limits = quota.AppendWriteLimits(g.under[:0], g.category, tenants); len(g.limits) > 0 {
			groups = append(groups, g)
		}
		for _, it := range g.frames {
			it.group = g
		}
	}
	return groups
}

// applyQuotas applies the quotas, and then checks the bodies of the remaining frames. So a frame over a quota costs only the
// check of its header, except large frames, whose checksums are verified while they arrive. It returns the frames to send now, in
// order, and the groups that wait.
func (c *writeCall) applyQuotas(ctx context.Context, items []frameItem) (now []*frameItem, waiting []*limitedGroup) {
	for _, g := range groupLimited(items, c.p.deps.Tenants()) {
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

// limitGroup applies to a group the quotas that it has not passed, until it has to wait for one. g.frames are those that are left of it.
func (c *writeCall) limitGroup(ctx context.Context, g *limitedGroup) {
	for ; g.passed < len(g.limits) && len(g.frames) > 0; g.passed++ {
		switch l := &g.limits[g.passed]; l.Mode {
		case scribev1.QuotaMode_QUOTA_MODE_THROTTLE:
			if c.throttleGroup(ctx, g, l); g.waiter != nil {
				return
			}
		case scribev1.QuotaMode_QUOTA_MODE_SAMPLE:
			c.sampleGroup(g, l)
		case scribev1.QuotaMode_QUOTA_MODE_UNSPECIFIED, scribev1.QuotaMode_QUOTA_MODE_BLOCK:
			if n, after := c.p.quotas.PassLeading(*l, len(g.frames), g.sizeOf); n < len(g.frames) {
				c.refuseFrom(g, n, l, after)
			}
		}
	}
}

// sampleGroup leaves frames out, and writes into the others how many they stand for.
func (c *writeCall) sampleGroup(g *limitedGroup, l *quota.Limit) {
	_, _ = c.p.quotas.SampleParts(*l, len(g.frames), g.sizeOf, func(i int, rate uint32) {
		it := g.frames[i]
		it.leftOut = rate == 0
		if rate > 1 {
			it.sampleRate = quota.ScaleRate(it.sampleRate, rate)
			it.resampled = true
		}
	})
	out, kept, sum := &scribev1.FrameResult{SampledOut: true}, g.frames[:0], int64(0) // nobody changes results
	for _, it := range g.frames {
		if it.leftOut {
			it.done, it.result = true, out
			sum += int64(len(it.bytes))
		} else {
			kept = append(kept, it)
		}
	}
	g.frames = kept
	c.countOverQuota("left_out", l, sum)
	c.p.quotas.Refund(g.limits[:g.passed], sum, false)
}

// refuseFrom fails the frames of a group from one on, which a quota does not let pass. The quotas before it get back what they were charged.
func (c *writeCall) refuseFrom(g *limitedGroup, n int, l *quota.Limit, after time.Duration) {
	c.refuseItems(g, n, l, l.RefusalError("category "+g.category.GetName()+" is", after))
}

// refuseItems fails the frames of a group from one on with an error.
func (c *writeCall) refuseItems(g *limitedGroup, n int, l *quota.Limit, err error) {
	result, sum := &scribev1.FrameResult{Error: rpc.Info(err)}, int64(0)
	for _, it := range g.frames[n:] {
		it.done, it.result, it.overQuota = true, result, l.Kind
		sum += int64(len(it.bytes))
	}
	g.frames = g.frames[:n]
	c.countOverQuota("refused", l, sum)
	c.p.quotas.Refund(g.limits[:g.passed], sum, n == 0)
}

func (c *writeCall) countOverQuota(outcome string, l *quota.Limit, n int64) {
	if n > 0 {
		c.p.metrics.overQuota.WithLabelValues(outcome, string(l.Kind)).Add(float64(n))
	}
}

// throttleGroup passes the frames of a group, queues them, or refuses them. They pass together, which keeps their order. Their
// bodies are checked first, so that damaged frames do not wait.
func (c *writeCall) throttleGroup(ctx context.Context, g *limitedGroup, l *quota.Limit) {
	bytes, left := int64(0), g.frames[:0]
	damaged := int64(0)
	for _, it := range g.frames {
		if it.checkOnce() {
			left = append(left, it)
			bytes += int64(len(it.bytes))
		} else {
			damaged += int64(len(it.bytes))
		}
	}
	g.frames = left
	c.p.quotas.Refund(g.limits[:g.passed], damaged, len(left) == 0)
	if len(left) == 0 {
		return
	}
	held := g.held
	if held == 0 {
		if held = bytes; !c.held {
			held = int64(len(c.whole)) // the bytes of other categories stay, too, until the request is answered
		}
	}
	ctx, cancel := quota.WaitContext(ctx)
	defer cancel()
	waiter, after, ok := c.p.quotas.EnterLine(ctx, *l, bytes, held)
	if !ok {
		c.refuseFrom(g, 0, l, after)
	}
	if waiter == nil {
		return
	}
	if g.waiter = waiter; g.held == 0 { // else this runs beside other groups, and c.held is set
		g.held, c.held = held, true
	}
	for _, it := range g.frames {
		it.waits = true
	}
}

// awaitQuotas waits for the group's turn at each quota that throttles it, and sends its frames.
func (c *writeCall) awaitQuotas(ctx context.Context, g *limitedGroup) {
	for g.waiter != nil {
		l, start := &g.limits[g.passed], time.Now()
		waiting, cancel := quota.WaitContext(ctx)
		passed, after := c.p.quotas.AwaitTurn(waiting, *l, g.waiter, c.p.calls.Draining())
		cancel()
		c.p.metrics.waits.Observe(time.Since(start).Seconds())
		switch {
		case passed:
		case after > 0:
			c.refuseFrom(g, 0, l, after)
			return
		default:
			c.refuseItems(g, 0, l, errShutDown())
			return
		}
		for i := range g.frames {
			c.countOverQuota("delayed", l, g.sizeOf(i))
		}
		g.waiter = nil
		g.passed++
		c.limitGroup(ctx, g)
	}
	c.deliverItems(ctx, g.frames)
}
