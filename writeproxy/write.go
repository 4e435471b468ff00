package writeproxy

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Write implements rpc.WriteService. It answers when every frame has reached the level that was asked for or has failed; a frame
// that failed does not fail the others. ACK_LEVEL_NONE is answered when the batchers hold the frames in memory, anything else when
// they are committed. What the request as a whole is refused for is an error: too large, no memory (with a hint), bytes that are
// no frames, a proxy that is closed. The request's bytes are not used after it returns.
func (p *Proxy) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	items, err := p.write(ctx, req.GetFrames(), req.GetAck())
	if err != nil {
		return nil, err
	}
	resp := &scribev1.WriteResponse{Results: make([]*scribev1.FrameResult, len(items))}
	for i := range items {
		resp.Results[i] = items[i].result
	}
	return resp, nil
}

func (p *Proxy) write(ctx context.Context, data []byte, ack scribev1.AckLevel) (items []item, err error) {
	defer func() {
		if err != nil {
			p.metrics.refused.WithLabelValues(reasonLabel(rpc.ReasonOf(err))).Inc()
		}
	}()
	ctx, end, err := p.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	if int64(len(data)) > p.cfg.MaxRequestBytes {
		return nil, rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "the request has %d bytes of frames, the limit is %d: send less at once", len(data), p.cfg.MaxRequestBytes)
	}
	release, err := p.writes.take(int64(len(data)))
	if err != nil {
		return nil, err
	}
	defer release()
	a := admission{p: p}
	if items, err = a.split(ctx, data); err != nil {
		return nil, err
	}
	p.retries.request()
	start := time.Now()
	p.received(items)
	if ack != scribev1.AckLevel_ACK_LEVEL_NONE {
		// Spooled is for a host's disk, which is not here: durable is more than was asked for.
		ack = scribev1.AckLevel_ACK_LEVEL_COMMITTED
	}
	c := &call{p: p, ack: ack, whole: data}
	c.run(ctx, items)
	for i := range items {
		items[i].conclude()
	}
	p.answered(items)
	p.metrics.seconds.WithLabelValues(ackLabel(ack)).Observe(time.Since(start).Seconds())
	return items, nil
}

// call is a request on its way.
type call struct {
	p   *Proxy
	ack scribev1.AckLevel
	// whole is the request's bytes: frames that go to one batcher and are neighbours are sent from there.
	whole []byte
}

// run sends the items that are not done and sets their results.
func (c *call) run(ctx context.Context, items []item) {
	t := c.p.router.table()
	each(group(pending(items), t.preferred), func(part []*item, at int) {
		left := c.preferred(ctx, t, at, part)
		c.fallbacks(ctx, left)
	})
}

// pending are the items without a result.
func pending(items []item) []*item {
	out := make([]*item, 0, len(items))
	for i := range items {
		if !items[i].done {
			out = append(out, &items[i])
		}
	}
	return out
}

// parts are items by the batcher that they go to.
type parts struct {
	at    []int
	items [][]*item
}

// group divides items by batcher, keeping their order in each part.
func group(left []*item, choose func(key uint64) int) parts {
	var (
		out  parts
		part = make(map[int]int)
		last *item
		n    int // part of last
	)
	for _, it := range left {
		if last == nil || last.key != it.key {
			at := choose(it.key)
			known := false
			if n, known = part[at]; !known {
				n = len(out.at)
				part[at] = n
				out.at = append(out.at, at)
				out.items = append(out.items, nil)
			}
		}
		last = it
		out.items[n] = append(out.items[n], it)
	}
	return out
}

// each calls fn for every part, in parallel when there are several.
func each(ps parts, fn func(part []*item, at int)) {
	if len(ps.at) == 1 {
		fn(ps.items[0], ps.at[0])
		return
	}
	var group sync.WaitGroup
	for i := range ps.at {
		group.Go(func() { fn(ps.items[i], ps.at[i]) })
	}
	group.Wait()
}

// preferred sends a part to its batcher, a few times, and returns what should go elsewhere.
func (c *call) preferred(ctx context.Context, t *table, at int, part []*item) []*item {
	for attempt := 1; ; attempt++ {
		var left []*item
		if at < 0 {
			left = fail(part, rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, c.p.cfg.RetryMax, "no batcher is known"))
		} else {
			left = c.submit(ctx, &t.batchers[at], part)
		}
		if len(left) == 0 || !c.p.retries.take() {
			return nil
		}
		if at >= 0 && len(t.batchers) > 1 && c.p.cfg.Fallbacks > 0 && gone(left) {
			return left // waiting for one that is not there costs time, and another is as good
		}
		if attempt >= c.p.cfg.Attempts || c.pause(ctx, attempt, left) != nil {
			if at < 0 {
				return nil
			}
			return left
		}
		part = left
		if next := c.p.router.table(); at < 0 || !next.of(t.batchers) {
			// Batchers came or went meanwhile. The part stays together; another request divides better.
			t, at = next, next.preferred(part[0].key)
		}
	}
}

// fallbacks sends what its own batcher did not take to others, one after another.
func (c *call) fallbacks(ctx context.Context, left []*item) {
	for attempt := range c.p.cfg.FallbackAttempts {
		if len(left) == 0 || ctx.Err() != nil {
			return
		}
		if attempt > 0 && (!c.p.retries.take() || c.pause(ctx, attempt, left) != nil) {
			return
		}
		t := c.p.router.table()
		var (
			mu   sync.Mutex
			rest []*item
		)
		ps := group(left, func(key uint64) int { return t.fallback(key, c.p.cfg.Fallbacks, attempt) })
		each(ps, func(part []*item, at int) {
			if at < 0 {
				return // there is no other: what the preferred one said stands
			}
			c.p.metrics.fallbacks.Inc()
			again := c.submit(ctx, &t.batchers[at], part)
			mu.Lock()
			rest = append(rest, again...)
			mu.Unlock()
		})
		left = rest
	}
}

// gone reports whether the batcher did not take any of the items because it is not there.
func gone(left []*item) bool {
	for _, it := range left {
		switch it.result.GetError().GetReason() {
		case scribev1.Reason_REASON_NO_BACKEND, scribev1.Reason_REASON_SHUTTING_DOWN:
		default:
			return false
		}
	}
	return true
}

// pause waits before another attempt: as long as the batchers ask for, within bounds, and jittered. It fails when the request's
// time is over first.
func (c *call) pause(ctx context.Context, attempt int, left []*item) error {
	mean := min(c.p.cfg.RetryBase<<min(attempt-1, 20), c.p.cfg.RetryMax)
	for _, it := range left {
		mean = max(mean, min(it.result.GetError().GetRetryAfter().AsDuration(), c.p.cfg.RetryMax))
	}
	d := mean/2 + rand.N(mean)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return context.DeadlineExceeded // the answer that is there is better than none
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// submit sends a part to a batcher, sets results, and returns the items that may be sent again.
func (c *call) submit(ctx context.Context, b *Batcher, part []*item) []*item {
	frames, release, err := c.join(part)
	if err != nil {
		return fail(part, err)
	}
	defer release()
	c.p.metrics.submits.Inc()
	resp, err := b.Service.Submit(ctx, &scribev1.SubmitRequest{Frames: frames, Ack: c.ack})
	if err == nil && len(resp.GetResults()) != len(part) {
		err = rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "batcher %s answered for %d of %d frames", b.ID, len(resp.GetResults()), len(part))
	}
	if err != nil {
		return fail(part, err)
	}
	var left []*item
	for i, it := range part {
		if it.settle(resp.GetResults()[i]) {
			left = append(left, it)
		}
	}
	return left
}

// fail sets the same error for all items and returns those that may be sent again.
func fail(part []*item, err error) (left []*item) {
	info := rpc.Info(err)
	for _, it := range part {
		if it.settle(&scribev1.FrameResult{Error: info}) {
			left = append(left, it)
		}
	}
	return left
}

// settle takes a result and reports whether the item may be sent again.
func (it *item) settle(r *scribev1.FrameResult) (again bool) {
	it.result = r
	it.unsure = it.unsure || r.GetError().GetReason() == scribev1.Reason_REASON_UNKNOWN_OUTCOME
	it.done = r.GetError() == nil || !it.retryable(r.GetError())
	return !it.done
}

// conclude keeps a definite failure from being told of a frame that an earlier attempt may have stored.
func (it *item) conclude() {
	info := it.result.GetError()
	if info == nil || !it.unsure || info.GetReason() == scribev1.Reason_REASON_UNKNOWN_OUTCOME {
		return
	}
	it.result = &scribev1.FrameResult{Error: &scribev1.ErrorInfo{
		Reason: scribev1.Reason_REASON_UNKNOWN_OUTCOME, RetryAfter: info.GetRetryAfter(), Conflicts: info.GetConflicts(),
		Message: "an earlier attempt may have stored it; the last one: " + info.GetMessage(),
	}}
}

// retryable reports whether a frame may be sent again after an error. A frame whose outcome is unknown may be stored already:
// at_least_once allows it twice; exactly_once recognises it by its sequences, if it has any; best_effort is never sent again.
func (it *item) retryable(info *scribev1.ErrorInfo) bool {
	switch it.delivery {
	case scribev1.Delivery_DELIVERY_BEST_EFFORT:
		return false
	case scribev1.Delivery_DELIVERY_EXACTLY_ONCE:
		if info.GetReason() == scribev1.Reason_REASON_UNKNOWN_OUTCOME && !it.sequenced {
			return false
		}
	default:
	}
	return rpc.Retryable(rpc.FromInfo(info))
}

// join returns the bytes of a part: a range of the request when its frames are neighbours there, else a copy, which is charged.
func (c *call) join(part []*item) (frames []byte, release func(), err error) {
	size, adjacent := 0, true
	for _, it := range part {
		adjacent = adjacent && it.start == part[0].start+size
		size += len(it.bytes)
	}
	if first := part[0].start; adjacent {
		return c.whole[first : first+size], func() {}, nil
	}
	uncharge, err := c.p.writes.take(int64(size))
	if err != nil {
		return nil, nil, err
	}
	buf := c.p.copies.Get(size)
	at := 0
	for _, it := range part {
		at += copy(buf.B[at:], it.bytes)
	}
	return buf.B, func() {
		c.p.copies.Put(buf)
		uncharge()
	}, nil
}

// errNoResult is a bug: an item was left without a result.
var errNoResult = errors.New("writeproxy: a frame was not sent")
