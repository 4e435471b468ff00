package writeproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/format/record"
	"scribe/internal/role/request"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// deliver sends items and sets their results. Items of one key go to one place at a time, in their order, and only those that are
// left are sent again: so none overtakes another of its key.
func (c *call) deliver(ctx context.Context, items []*item) {
	if len(items) == 0 {
		return
	}
	t := c.p.fleet.table()
	c.divide(t, items)
	each(group(items, func(it *item) int { return t.home(it.key, it.micro) }), func(part []*item, at int) {
		home, left := c.preferred(ctx, t, at, part)
		c.fallbacks(ctx, home, left)
	})
}

// divide chooses the micro-shards. All items of a key in a request have the same one.
func (c *call) divide(t *table, items []*item) {
	if t.usable <= 1 {
		return
	}
	now, scale := c.p.now(), float64(max(c.p.quotas.proxies(), 1))
	var (
		chosen map[uint64]int // of keys with several
		key    uint64
	)
	share := func(micro int) float64 { return t.weights[t.home(key, micro)] }
	for i := 0; i < len(items); {
		first, begin, size := items[i], i, 0
		for ; i < len(items) && items[i].key == first.key; i++ {
			size += len(items[i].bytes)
		}
		if first.category.OneLog() {
			continue // batchers that share a log fence each other
		}
		key = first.key
		micro, split := c.p.traffic.micro(now, key, int64(size), t.usable, scale, share)
		if before, ok := chosen[key]; ok {
			micro = before
		} else if split {
			if chosen == nil {
				chosen = make(map[uint64]int)
			}
			// It may have been one when the request's first frames of the key were looked at.
			if at := slices.IndexFunc(items[:begin], func(it *item) bool { return it.key == key }); at >= 0 {
				micro = items[at].micro
			}
			chosen[key] = micro
		}
		for _, it := range items[begin:i] {
			it.micro = micro
		}
	}
}

// parts are items by the batcher that they go to.
type parts struct {
	at    []int
	items [][]*item
}

// group divides items by batcher, keeping their order in each part.
func group(left []*item, choose func(it *item) int) parts {
	var (
		out  parts
		part = make(map[int]int)
		last *item
		n    int // part of last
	)
	for _, it := range left {
		if last == nil || last.key != it.key {
			at := choose(it)
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

// preferred sends a part to its batcher, a few times, and returns what should go elsewhere, with the id of the batcher.
func (c *call) preferred(ctx context.Context, t *table, at int, part []*item) (home string, left []*item) {
	for attempt := 1; ; attempt++ {
		silent := false
		if at < 0 {
			left = fail(part, rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, c.p.cfg.RetryMax, "no batcher is known"))
		} else {
			home = t.batchers[at].ID
			left, silent = c.submit(ctx, t, at, part)
		}
		if len(left) == 0 || !c.p.retries.TakeRetry() {
			return home, nil
		}
		if at >= 0 && len(t.batchers) > 1 && c.p.cfg.Fallbacks > 0 && (silent || gone(left)) {
			return home, left // waiting for one that is not there costs time, and another is as good
		}
		if attempt >= c.p.cfg.Attempts || c.pause(ctx, attempt, left) != nil {
			if at < 0 {
				return home, nil
			}
			return home, left
		}
		if part = c.renew(ctx, left); len(part) == 0 {
			return home, nil
		}
		if next := c.p.fleet.table(); at < 0 || next != t {
			// Batchers came, went or changed meanwhile. The part stays together, where it was if that is there: another request
			// divides better.
			t, at = next, next.still(home, part[0])
		}
	}
}

// still returns the place of the batcher that an item was sent to, or of the one that it belongs to if that is not there any more.
func (t *table) still(home string, it *item) int {
	at := slices.IndexFunc(t.batchers, func(b Batcher) bool { return b.ID == home })
	if at >= 0 && t.weights[at] > 0 {
		return at
	}
	return t.home(it.key, it.micro)
}

// fallbacks sends what its own batcher did not take to others, one after another.
func (c *call) fallbacks(ctx context.Context, home string, left []*item) {
	for attempt := range c.p.cfg.FallbackAttempts {
		if len(left) == 0 || ctx.Err() != nil {
			return
		}
		if attempt > 0 && (!c.p.retries.TakeRetry() || c.pause(ctx, attempt, left) != nil) {
			return
		}
		left = c.renew(ctx, left)
		t := c.p.fleet.table()
		var (
			mu   sync.Mutex
			rest []*item
		)
		ps := group(left, func(it *item) int { return t.fallback(it.key, home, c.p.cfg.Fallbacks, attempt) })
		each(ps, func(part []*item, at int) {
			if at < 0 {
				return // there is no other: what the preferred one said stands
			}
			c.p.metrics.fallbacks.Inc()
			again, _ := c.submit(ctx, t, at, part)
			mu.Lock()
			rest = append(rest, again...)
			mu.Unlock()
		})
		left = rest
	}
}

// renew asks for the categories again whose logs the batcher found sealed: one that was deleted and created again under its name has
// other logs. It returns the items that may be sent, in order.
func (c *call) renew(ctx context.Context, left []*item) []*item {
	var (
		out []*item
		old *scribev1.Category
		now *scribev1.Category
		err error
	)
	for i, it := range left {
		sealed := it.result.GetError().GetReason() == scribev1.Reason_REASON_SEALED
		// What follows of the same category goes where the sealed ones go, so that it does not overtake them on another way.
		if !sealed && (old == nil || it.category != old) {
			if out != nil {
				out = append(out, it)
			}
			continue
		}
		if out == nil {
			out = append(make([]*item, 0, len(left)), left[:i]...)
		}
		if sealed {
			it.renewed = true
			c.p.metrics.renewed.Inc()
		}
		if it.category != old {
			old = it.category
			now, err = c.p.deps.Categories.Resolve(ctx, old.GetName())
		}
		switch {
		case err == nil:
			if fault := request.CheckShard(now, it.shard); fault != nil {
				it.refuse(fault)
				continue
			}
			it.setCategory(now)
		case rpc.ReasonOf(err) == scribev1.Reason_REASON_UNKNOWN_CATEGORY:
			it.refuse(fmt.Errorf("category %s: %w", old.GetName(), err))
			continue
		default: // nobody knows better: the batcher may
		}
		out = append(out, it)
	}
	if out == nil {
		return left
	}
	return out
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
	mean := backoff.Backoff{Min: c.p.cfg.RetryBase, Max: c.p.cfg.RetryMax}.Mean(attempt)
	for _, it := range left {
		mean = max(mean, retry.Hint(it.result.GetError(), c.p.cfg.RetryMax))
	}
	d := backoff.Jitter(mean, 0.5)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return context.DeadlineExceeded // the answer that is there is better than none
	}
	return backoff.Sleep(ctx, d)
}

// submit sends a part to a batcher, sets results, and returns the items that may be sent again. silent says that it did not answer
// in the time of an attempt.
func (c *call) submit(ctx context.Context, t *table, at int, part []*item) (left []*item, silent bool) {
	frames, release, err := c.join(part)
	if err != nil {
		return fail(part, err), false
	}
	defer release()
	ctx, cancel := c.attempt(ctx, t, part)
	defer cancel()
	b, m := &t.batchers[at], t.members[at]
	c.p.metrics.submits.Inc()
	start := m.begin()
	// Every frame that is sent has passed good.
	resp, err := b.Service.Submit(rpc.WithChecked(ctx), &scribev1.SubmitRequest{Frames: frames, Ack: c.ack})
	how, load := ended(ctx, resp, err)
	m.end(start, how, load, err == nil && c.ack == scribev1.AckLevel_ACK_LEVEL_COMMITTED)
	if err == nil && len(resp.GetResults()) != len(part) {
		err = rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "batcher %s answered for %d of %d frames", b.ID, len(resp.GetResults()), len(part))
	}
	if err != nil {
		return fail(part, err), how == endSilent
	}
	for i, it := range part {
		if it.settle(resp.GetResults()[i]) {
			left = append(left, it)
		}
	}
	return left, false
}

// attempt bounds the time of one attempt, if what is not answered in it may be sent to another batcher.
func (c *call) attempt(ctx context.Context, t *table, part []*item) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok || t.usable < 2 || slices.ContainsFunc(part, func(it *item) bool { return !it.repeatable() }) {
		return context.WithCancel(ctx)
	}
	left := time.Until(deadline)
	return context.WithTimeout(ctx, min(left, max(left/2, c.p.cfg.MinAttempt)))
}

// ended says what the end of a request tells of the batcher.
func ended(ctx context.Context, resp *scribev1.SubmitResponse, err error) (how ending, load int64) {
	if err == nil {
		return endAnswered, int64(resp.GetLoad())
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return endSilent, noLoad
	case ctx.Err() != nil:
		return endUnknown, noLoad
	}
	switch rpc.ReasonOf(err) {
	case scribev1.Reason_REASON_NO_BACKEND, scribev1.Reason_REASON_UNKNOWN_OUTCOME:
		return endGone, noLoad
	case scribev1.Reason_REASON_SHUTTING_DOWN:
		return endLeaving, noLoad
	case scribev1.Reason_REASON_OVERLOADED:
		return endAnswered, fullLoad
	default:
		return endAnswered, noLoad
	}
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

// repeatable reports whether a frame may be sent again whose outcome is unknown, and may be stored: at_least_once allows it twice;
// exactly_once recognises it by its sequences, if it has any. best_effort is never sent again.
func (it *item) repeatable() bool {
	switch it.category.GetDelivery() {
	case scribev1.Delivery_DELIVERY_BEST_EFFORT:
		return false
	case scribev1.Delivery_DELIVERY_EXACTLY_ONCE:
		return it.sequenced
	default:
		return true
	}
}

// retryable reports whether a frame may be sent again after an error.
func (it *item) retryable(info *scribev1.ErrorInfo) bool {
	switch reason := info.GetReason(); {
	case it.category.GetDelivery() == scribev1.Delivery_DELIVERY_BEST_EFFORT:
		return false
	case reason == scribev1.Reason_REASON_UNKNOWN_OUTCOME:
		return it.repeatable()
	case reason == scribev1.Reason_REASON_SEALED:
		return !it.renewed
	default:
		return retry.ClassOf(info.GetReason()).Retryable()
	}
}

// join returns the bytes of a part: a range of the request when its frames are neighbours there and go as they are, else a copy,
// which is charged. Sample rates are written into the copy: the request's bytes are the caller's.
func (c *call) join(part []*item) (frames []byte, release func(), err error) {
	size, asTheyAre := 0, true
	for _, it := range part {
		asTheyAre = asTheyAre && it.start == part[0].start+size && !it.resampled
		size += len(it.bytes)
	}
	if first := part[0].start; asTheyAre {
		return c.whole[first : first+size], func() {}, nil
	}
	if err := c.p.writes.Charge(int64(size)); err != nil {
		return nil, nil, err
	}
	buf := c.p.copies.Get(size)
	release = func() {
		c.p.copies.Put(buf)
		c.p.writes.Release(int64(size))
	}
	at := 0
	for _, it := range part {
		n := copy(buf.B[at:], it.bytes)
		if it.resampled {
			if err := record.SetSampleRate(buf.B[at:at+n], it.sampleRate); err != nil {
				release()
				return nil, nil, rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%w", err)
			}
		}
		at += n
	}
	return buf.B, release, nil
}
