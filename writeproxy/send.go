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

// deliverItems sends items and sets their results. Items of one key go to one batcher at a time, in their order, and only those that are
// left are sent again: so none overtakes another of its key.
func (c *writeCall) deliverItems(ctx context.Context, items []*frameItem) {
	if len(items) == 0 {
		return
	}
	t := c.p.fleet.currentTable()
	c.assignMicroShards(t, items)
	sendParts(divideByBatcher(items, func(it *frameItem) int { return t.homeOf(it.key, it.micro) }), func(p batcherPart) {
		home, left := c.sendHome(ctx, t, p)
		c.sendFallbacks(ctx, home, left)
	})
}

// assignMicroShards chooses the micro-shards. All items of a key in a request have the same one.
func (c *writeCall) assignMicroShards(t *routeTable, items []*frameItem) {
	if t.usable <= 1 {
		return
	}
	m := microShards{traffic: c.p.traffic, table: t, now: c.p.now(), scale: float64(max(c.p.quotas.proxies(), 1))}
	for begin := 0; begin < len(items); {
		first, end, size := items[begin], begin, int64(0)
		for ; end < len(items) && items[end].key == first.key; end++ {
			size += int64(len(items[end].bytes))
		}
		if !first.category.OneLog() { // batchers that share a log fence each other
			micro := m.chooseMicro(items[:begin], first.key, size)
			for _, it := range items[begin:end] {
				it.micro = micro
			}
		}
		begin = end
	}
}

// microShards chooses micro-shards for the keys of a request.
type microShards struct {
	traffic *shardTraffic
	table   *routeTable
	now     time.Duration
	scale   float64        // by which the cell sees more of a shard than this proxy
	chosen  map[uint64]int // of keys with several
}

// chooseMicro returns the micro-shard of neighbours of a key, after the earlier items of the request.
func (m *microShards) chooseMicro(earlier []*frameItem, key uint64, size int64) int {
	weigh := func(micro int) float64 { return m.table.weights[m.table.homeOf(key, micro)] }
	micro, split := m.traffic.microShard(m.now, key, size, m.table.usable, m.scale, weigh)
	if before, ok := m.chosen[key]; ok {
		return before
	}
	if !split {
		return micro
	}
	// The shard may not have been split when the request's first items of the key were looked at.
	if at := slices.IndexFunc(earlier, func(it *frameItem) bool { return it.key == key }); at >= 0 {
		micro = earlier[at].micro
	}
	if m.chosen == nil {
		m.chosen = make(map[uint64]int)
	}
	m.chosen[key] = micro
	return micro
}

// batcherPart is the items that go to one batcher, in order.
type batcherPart struct {
	at    int // in the table; below 0 when there is no batcher
	items []*frameItem
}

// divideByBatcher divides items by the batcher that choose returns for the first of neighbours of a key.
func divideByBatcher(items []*frameItem, choose func(it *frameItem) int) (parts []batcherPart) {
	n := 0 // the part of the item before
	for i, it := range items {
		if i == 0 || items[i-1].key != it.key {
			at := choose(it)
			if n = slices.IndexFunc(parts, func(p batcherPart) bool { return p.at == at }); n < 0 {
				n = len(parts)
				parts = append(parts, batcherPart{at: at})
			}
		}
		parts[n].items = append(parts[n].items, it)
	}
	return parts
}

// sendParts calls send for every part, in parallel when there are several.
func sendParts(parts []batcherPart, send func(batcherPart)) {
	if len(parts) == 1 {
		send(parts[0])
		return
	}
	var group sync.WaitGroup
	for _, p := range parts {
		group.Go(func() { send(p) })
	}
	group.Wait()
}

// sendHome sends a part to its batcher, a few times, and returns what should go elsewhere, with the id of the batcher.
func (c *writeCall) sendHome(ctx context.Context, t *routeTable, p batcherPart) (home string, left []*frameItem) {
	for attempt := 1; ; attempt++ {
		silent := false
		if p.at < 0 {
			left = failItems(p.items, rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, c.p.cfg.RetryMax, "no batcher is known"))
		} else {
			home = t.batchers[p.at].ID
			left, silent = c.submitPart(ctx, t, p)
		}
		if len(left) == 0 || !c.p.retries.TakeRetry() {
			return home, nil
		}
		if p.at >= 0 && len(t.batchers) > 1 && c.p.cfg.Fallbacks > 0 && (silent || allUnavailable(left)) {
			return home, left // waiting for one that is not there costs time, and another is as good
		}
		if attempt >= c.p.cfg.Attempts || c.pauseBefore(ctx, attempt, left) != nil {
			if p.at < 0 {
				left = nil
			}
			return home, left
		}
		if p.items = c.renewCategories(ctx, left); len(p.items) == 0 {
			return home, nil
		}
		if next := c.p.fleet.currentTable(); p.at < 0 || next != t {
			// Batchers came, went or changed meanwhile. The part stays together, where it was if that is there: another request
			// divides better.
			t, p.at = next, next.stayAt(home, p.items[0])
		}
	}
}

// stayAt returns the batcher that an item was sent to, or the one that it belongs to if that is not there any more.
func (t *routeTable) stayAt(home string, it *frameItem) int {
	at := slices.IndexFunc(t.batchers, func(b Batcher) bool { return b.ID == home })
	if at >= 0 && t.weights[at] > 0 {
		return at
	}
	return t.homeOf(it.key, it.micro)
}

// sendFallbacks sends what its own batcher did not take to others, one after another.
func (c *writeCall) sendFallbacks(ctx context.Context, home string, left []*frameItem) {
	for attempt := range c.p.cfg.FallbackAttempts {
		if len(left) == 0 || ctx.Err() != nil {
			return
		}
		if attempt > 0 && (!c.p.retries.TakeRetry() || c.pauseBefore(ctx, attempt, left) != nil) {
			return
		}
		left = c.renewCategories(ctx, left)
		t := c.p.fleet.currentTable()
		var (
			mu   sync.Mutex
			rest []*frameItem
		)
		parts := divideByBatcher(left, func(it *frameItem) int { return t.fallbackOf(it.key, home, c.p.cfg.Fallbacks, attempt) })
		sendParts(parts, func(p batcherPart) {
			if p.at < 0 {
				return // there is no other: what the home said stands
			}
			c.p.metrics.fallbacks.Inc()
			again, _ := c.submitPart(ctx, t, p)
			mu.Lock()
			defer mu.Unlock()
			rest = append(rest, again...)
		})
		left = rest
	}
}

// renewCategories asks for the categories again whose logs the batcher found sealed: one that was deleted and created again under its
// name has other logs. It returns the items that may be sent, in order. What follows of the same category goes where the sealed ones go,
// so that it does not overtake them on another way.
func (c *writeCall) renewCategories(ctx context.Context, left []*frameItem) []*frameItem {
	if !slices.ContainsFunc(left, (*frameItem).isSealed) {
		return left
	}
	var (
		out []*frameItem
		old *scribev1.Category // the last one that was asked for
		now *scribev1.Category
		err error
	)
	for _, it := range left {
		sealed := it.isSealed()
		if !sealed && (old == nil || it.category != old) {
			out = append(out, it)
			continue
		}
		if sealed {
			it.renewed = true
			c.p.metrics.renewed.Inc()
		}
		if it.category != old {
			old = it.category
			now, err = c.p.deps.Categories.Resolve(ctx, old.GetName())
		}
		refusal := err
		if err == nil {
			refusal = request.CheckShard(now, it.shard)
		}
		switch {
		case refusal == nil:
			it.setCategory(now)
		case err == nil:
			it.refuseWith(refusal)
			continue
		case rpc.ReasonOf(err) == scribev1.Reason_REASON_UNKNOWN_CATEGORY:
			it.refuseWith(fmt.Errorf("category %s: %w", old.GetName(), err))
			continue
		default: // nobody knows better: the batcher may
		}
		out = append(out, it)
	}
	return out
}

func (it *frameItem) isSealed() bool {
	return it.result.GetError().GetReason() == scribev1.Reason_REASON_SEALED
}

// allUnavailable reports whether the batcher did not take any of the items because it is not there.
func allUnavailable(left []*frameItem) bool {
	return !slices.ContainsFunc(left, func(it *frameItem) bool {
		return retry.ClassOf(it.result.GetError().GetReason()) != retry.Unavailable
	})
}

// pauseBefore waits before another attempt: as long as the batchers ask for, within bounds, and jittered. It fails when the request's
// time is over first.
func (c *writeCall) pauseBefore(ctx context.Context, attempt int, left []*frameItem) error {
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

// submitPart sends a part to its batcher, sets results, and returns the items that may be sent again. silent says that it did not answer
// in the time of an attempt.
func (c *writeCall) submitPart(ctx context.Context, t *routeTable, p batcherPart) (left []*frameItem, silent bool) {
	frames, release, err := c.joinFrames(p.items)
	if err != nil {
		return failItems(p.items, err), false
	}
	defer release()
	ctx, cancel := c.attemptContext(ctx, t, p.items)
	defer cancel()
	b, m := &t.batchers[p.at], t.members[p.at]
	c.p.metrics.submits.Inc()
	start := m.beginRequest()
	// Every frame that is sent has been checked.
	resp, err := b.Service.Submit(rpc.WithChecked(ctx), &scribev1.SubmitRequest{Frames: frames, Ack: c.ack})
	how, load := endingOf(ctx, resp, err)
	m.endRequest(start, how, load, err == nil && c.ack == scribev1.AckLevel_ACK_LEVEL_COMMITTED)
	if err == nil && len(resp.GetResults()) != len(p.items) {
		err = rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "batcher %s answered for %d of %d frames", b.ID, len(resp.GetResults()), len(p.items))
	}
	if err != nil {
		return failItems(p.items, err), how == endSilent
	}
	for i, it := range p.items {
		if it.setResult(resp.GetResults()[i]) {
			left = append(left, it)
		}
	}
	return left, false
}

// attemptContext bounds the time of one attempt, if what is not answered in it may be sent to another batcher.
func (c *writeCall) attemptContext(ctx context.Context, t *routeTable, items []*frameItem) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok || t.usable < 2 || slices.ContainsFunc(items, func(it *frameItem) bool { return !it.isRepeatable() }) {
		return context.WithCancel(ctx)
	}
	left := time.Until(deadline)
	return context.WithTimeout(ctx, min(left, max(left/2, c.p.cfg.MinAttempt)))
}

// endingOf says what the end of a request tells of the batcher.
func endingOf(ctx context.Context, resp *scribev1.SubmitResponse, err error) (how callEnding, load int64) {
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

// failItems sets the same error for all items and returns those that may be sent again.
func failItems(items []*frameItem, err error) (left []*frameItem) {
	info := rpc.Info(err)
	for _, it := range items {
		if it.setResult(&scribev1.FrameResult{Error: info}) {
			left = append(left, it)
		}
	}
	return left
}

// setResult takes a result and reports whether the item may be sent again.
func (it *frameItem) setResult(r *scribev1.FrameResult) (again bool) {
	it.result = r
	it.unsure = it.unsure || r.GetError().GetReason() == scribev1.Reason_REASON_UNKNOWN_OUTCOME
	it.done = r.GetError() == nil || !it.isRetryable(r.GetError())
	return !it.done
}

// isRepeatable reports whether a frame may be sent again whose outcome is unknown, and may be stored: at_least_once allows it twice;
// exactly_once recognises it by its sequences, if it has any. best_effort is never sent again.
func (it *frameItem) isRepeatable() bool {
	switch it.category.GetDelivery() {
	case scribev1.Delivery_DELIVERY_BEST_EFFORT:
		return false
	case scribev1.Delivery_DELIVERY_EXACTLY_ONCE:
		return it.sequenced
	default:
		return true
	}
}

// isRetryable reports whether a frame may be sent again after an error.
func (it *frameItem) isRetryable(info *scribev1.ErrorInfo) bool {
	switch reason := info.GetReason(); {
	case it.category.GetDelivery() == scribev1.Delivery_DELIVERY_BEST_EFFORT:
		return false
	case reason == scribev1.Reason_REASON_UNKNOWN_OUTCOME:
		return it.isRepeatable()
	case reason == scribev1.Reason_REASON_SEALED:
		return !it.renewed
	default:
		return retry.ClassOf(info.GetReason()).Retryable()
	}
}

// joinFrames returns the bytes of a part: a range of the request when its frames are neighbours there and go as they are, else a copy,
// which is charged. Sample rates are written into the copy: the request's bytes are the caller's.
func (c *writeCall) joinFrames(items []*frameItem) (frames []byte, release func(), err error) {
	size, asTheyAre := 0, true
	for _, it := range items {
		asTheyAre = asTheyAre && it.start == items[0].start+size && !it.resampled
		size += len(it.bytes)
	}
	if first := items[0].start; asTheyAre {
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
	for _, it := range items {
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
