package writeproxy

import (
	"context"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// limited are the frames of a request of one category that has a quota, in order.
type limited struct {
	category *scribev1.Category
	frames   []*item
	bytes    int64
	// waiter is set when they wait.
	waiter *waiter
}

func (g *limited) add(it *item) {
	g.frames = append(g.frames, it)
	g.bytes += int64(len(it.bytes))
}

// limits are the groups of a request: all frames of a category are in one, since they must not overtake each other.
type limits struct {
	groups []*limited
	byID   map[uint32]*limited // once there are many
}

// manyGroups is from how many groups on a search in their list is slower than a map.
const manyGroups = 8

func (l *limits) add(it *item) {
	id := it.category.GetId()
	g := l.byID[id]
	for i := len(l.groups) - 1; i >= 0 && g == nil && l.byID == nil; i-- {
		if l.groups[i].category.GetId() == id {
			g = l.groups[i]
		}
	}
	if g == nil {
		g = &limited{category: it.category}
		l.groups = append(l.groups, g)
		if l.byID != nil {
			l.byID[id] = g
		} else if len(l.groups) > manyGroups {
			l.byID = make(map[uint32]*limited, 2*manyGroups)
			for _, g := range l.groups {
				l.byID[g.category.GetId()] = g
			}
		}
	}
	g.add(it)
}

// plan applies the quotas, and looks at the bodies of the frames that are left: what is over a quota costs no more than a look at its
// header, but for large frames, which are summed while they arrive. It returns the frames that are to be sent now, in order, and those
// that wait.
func (c *call) plan(ctx context.Context, items []item) (now []*item, waiting []*limited) {
	var quotas limits
	for i := range items {
		if it := &items[i]; !it.done && it.category.GetQuotaBytesPerSecond() > 0 {
			quotas.add(it)
		}
	}
	for _, g := range quotas.groups {
		if c.limit(ctx, g); g.waiter != nil {
			waiting = append(waiting, g)
		}
	}
	now = make([]*item, 0, len(items))
	for i := range items {
		if it := &items[i]; it.good() && !it.waits {
			now = append(now, it)
		}
	}
	return now, waiting
}

// good looks at the body of a frame that is not refused yet, and refuses it if that is damaged.
func (it *item) good() bool {
	if it.done || it.checked {
		return !it.done
	}
	it.checked = true
	if err := it.check(); err != nil {
		it.refuse(err)
	}
	return !it.done
}

// quotaMode is what happens beyond a category's quota. A frame that is left out would be a gap in its producer's sequence.
func quotaMode(c *scribev1.Category) scribev1.QuotaMode {
	mode := c.GetQuotaMode()
	if mode == scribev1.QuotaMode_QUOTA_MODE_SAMPLE && c.GetDelivery() == scribev1.Delivery_DELIVERY_EXACTLY_ONCE {
		return scribev1.QuotaMode_QUOTA_MODE_BLOCK
	}
	return mode
}

// limit applies a category's quota to its frames.
func (c *call) limit(ctx context.Context, g *limited) {
	switch quotaMode(g.category) {
	case scribev1.QuotaMode_QUOTA_MODE_THROTTLE:
		c.throttle(ctx, g)
	case scribev1.QuotaMode_QUOTA_MODE_SAMPLE:
		c.p.quotas.sample(g.category, g.frames)
		out, sum := &scribev1.FrameResult{SampledOut: true}, 0 // nobody changes results
		for _, it := range g.frames {
			if it.leftOut {
				it.done, it.result = true, out
				sum += len(it.bytes)
			}
		}
		c.over("left_out", sum)
	case scribev1.QuotaMode_QUOTA_MODE_UNSPECIFIED, scribev1.QuotaMode_QUOTA_MODE_BLOCK:
		if n, after := c.p.quotas.block(g.category, g.frames); n < len(g.frames) {
			c.refuse(g.frames[n:], overQuota(g.category, after))
		}
	}
}

// refuse ends frames that are over a quota.
func (c *call) refuse(frames []*item, err error) {
	result, sum := &scribev1.FrameResult{Error: rpc.Info(err)}, 0
	for _, it := range frames {
		it.done, it.result = true, result
		sum += len(it.bytes)
	}
	c.over("refused", sum)
}

func (c *call) over(outcome string, n int) {
	c.p.metrics.overQuota.WithLabelValues(outcome).Add(float64(n))
}

// throttle lets frames pass, has them wait in line, or refuses them. They pass together: so they keep their order, and are sent as
// any others are. Their bodies are looked at first, so that none that is damaged waits.
func (c *call) throttle(ctx context.Context, g *limited) {
	whole := limited{category: g.category}
	for _, it := range g.frames {
		if it.good() {
			whole.add(it)
		}
	}
	*g = whole
	if len(g.frames) == 0 {
		return
	}
	held := g.bytes
	if !c.held {
		held = int64(len(c.whole)) // the bytes of other categories stay, too, until the request is answered
	}
	ctx, cancel := waitTime(ctx)
	defer cancel()
	var err error
	if g.waiter, err = c.p.quotas.enter(ctx, g.category, g.bytes, held); err != nil {
		c.refuse(g.frames, err)
	}
	if g.waiter == nil {
		return
	}
	c.held = true
	for _, it := range g.frames {
		it.waits = true
	}
}

// await has frames wait for their turn, and sends them.
func (c *call) await(ctx context.Context, g *limited) {
	start := time.Now()
	waiting, cancel := waitTime(ctx)
	err := c.p.quotas.await(waiting, g.category, g.waiter, c.p.calls.Draining())
	cancel()
	c.p.metrics.waits.Observe(time.Since(start).Seconds())
	if err != nil {
		c.refuse(g.frames, err)
		return
	}
	c.over("delayed", int(g.bytes))
	c.deliverItems(ctx, g.frames)
}

// waitTime is the part of a request's time that may be spent waiting for a quota: the rest is for sending what has waited.
func waitTime(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)*3/4)
}
