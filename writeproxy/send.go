package writeproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/base/balance"
	"scribe/internal/format/record"
	"scribe/internal/role/request"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// deliverItems sends items and sets their results. Items of one key go to one batcher at a time, in order, and only failed items
// are sent again. So no item overtakes another of its key.
func (c *writeCall) deliverItems(ctx context.Context, items []*frameItem) {
	if len(items) == 0 {
		return
	}
	items, leave := c.admitItems(items)
	defer leave()
	if len(items) == 0 {
		return
	}
	t := c.p.fleet.currentTable()
	c.assignMicroShards(t, items)
	if len(t.batchers) > 1 {
		defer c.p.flights.begin(items)()
	}
	sendParts(divideByBatcher(items, func(it *frameItem) int { return t.homeOf(it.key, it.micro) }), func(p batcherPart) {
		home, left := c.sendHome(ctx, t, p)
		c.sendFallbacks(ctx, home, left)
	})
}

// assignMicroShards counts the items as traffic of their shards and sets their micro-shards. All items of a key in a request get the
// same one.
func (c *writeCall) assignMicroShards(t *routeTable, items []*frameItem) {
	m := microShards{traffic: c.p.traffic, table: t, now: c.p.now(), scale: float64(max(c.p.quotas.CountSharers(), 1))}
	for begin := 0; begin < len(items); {
		first, end := items[begin], begin
		run := shardRun{key: first.key, category: first.category.GetId(), shard: first.shard, oneLog: first.category.OneLog(), least: 1, most: 1}
		for ; end < len(items) && items[end].key == first.key; end++ {
			run.bytes += int64(len(items[end].bytes))
			run.messages += int64(items[end].messages)
		}
		if !run.oneLog && t.usable > 1 { // batchers that share a log fence each other
			run.least, run.most = plannedMicro(c.p.deps.Plan(run.category), run.shard), t.usable
		}
		micro := m.chooseMicro(items[:begin], run)
		if !run.oneLog {
			if known, ok := c.p.flights.microOf(items[begin:end]); ok {
				micro = known
				delete(m.chosen, run.key) // later items of the key go there, too
			}
		}
		for _, it := range items[begin:end] {
			it.micro = micro
		}
		begin = end
	}
}

// microShards chooses micro-shards for the keys of a request.
type microShards struct {
	traffic *shardTraffic
	table   *routeTable
	now     time.Duration
	scale   float64        // ratio of the cell's traffic to this proxy's
	chosen  map[uint64]int // micro-shards of keys that have several
}

// chooseMicro returns the micro-shard for adjacent items of a key, a run. earlier are the preceding items of the request.
func (m *microShards) chooseMicro(earlier []*frameItem, run shardRun) int {
	weigh := func(micro int) float64 { return m.table.weights[m.table.homeOf(run.key, micro)] }
	micro, split := m.traffic.microShard(m.now, run, m.scale, weigh)
	if before, ok := m.chosen[run.key]; ok {
		return before
	}
	if !split {
		return micro
	}
	// The shard may not have been split yet when the first items of the key got their micro-shard.
	if at := slices.IndexFunc(earlier, func(it *frameItem) bool { return it.key == run.key }); at >= 0 {
		micro = earlier[at].micro
	}
	if m.chosen == nil {
		m.chosen = make(map[uint64]int)
	}
	m.chosen[run.key] = micro
	return micro
}

// batcherPart is the items for one batcher, in order.
type batcherPart struct {
	at    int // index in the table; below 0 if there is no batcher
	items []*frameItem
}

// divideByBatcher divides items by batcher. It calls choose once for each run of adjacent items with the same key.
func divideByBatcher(items []*frameItem, choose func(it *frameItem) int) (parts []batcherPart) {
	n := 0 // the part of the previous item
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

// sendParts calls send for every part, in parallel if there are several.
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

// sendHome sends a part to its own batcher, with retries. It returns the items to send to fallbacks, and the id of the batcher.
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
			return home, left // waiting for an unavailable batcher costs time, and another one is as good
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
			// The fleet has changed. The part stays together, at the same batcher if possible; the next request is divided by the
			// new table.
			t, p.at = next, next.stayAt(home, p.items[0])
		}
	}
}

// stayAt returns the index of the batcher home, or of the item's own batcher if home is gone or unavailable.
func (t *routeTable) stayAt(home string, it *frameItem) int {
	at := slices.IndexFunc(t.batchers, func(b Batcher) bool { return b.ID == home })
	if at >= 0 && t.weights[at] > 0 {
		return at
	}
	return t.homeOf(it.key, it.micro)
}

// sendFallbacks sends items that their own batcher refused to fallbacks, one after another.
func (c *writeCall) sendFallbacks(ctx context.Context, home string, left []*frameItem) {
	left = dropFollowing(left)
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
				return // there is no other batcher: the result of the home stays
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

// dropFollowing leaves out the items of keys with an item that follows another: no other batcher than that one's may take it.
func dropFollowing(left []*frameItem) []*frameItem {
	follows := func(it *frameItem) bool { return it.follows }
	if !slices.ContainsFunc(left, follows) {
		return left
	}
	return slices.DeleteFunc(left, func(it *frameItem) bool {
		return slices.ContainsFunc(left, func(other *frameItem) bool { return other.follows && other.key == it.key })
	})
}

// renewCategories resolves categories again whose logs the batcher found sealed: a category that was deleted and created again
// under the same name has other logs. It returns the items that may be sent, in order. Later items of the same category get the
// renewed category too, so that they do not overtake the items of sealed logs.
func (c *writeCall) renewCategories(ctx context.Context, left []*frameItem) []*frameItem {
	if !slices.ContainsFunc(left, (*frameItem).isSealed) {
		return left
	}
	var (
		out []*frameItem
		old *scribev1.Category // the category that was resolved last
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
		default: // the control plane does not answer: let the batcher decide
		}
		out = append(out, it)
	}
	return out
}

func (it *frameItem) isSealed() bool {
	return it.result.GetError().GetReason() == scribev1.Reason_REASON_SEALED
}

// allUnavailable reports whether all items failed because the batcher is unavailable.
func allUnavailable(left []*frameItem) bool {
	return !slices.ContainsFunc(left, func(it *frameItem) bool {
		return retry.ClassOf(it.result.GetError().GetReason()) != retry.Unavailable
	})
}

// pauseBefore waits before another attempt, for the longest of the backoff and the retry hints (bounded by RetryMax), jittered.
// It fails if the request's deadline comes first.
func (c *writeCall) pauseBefore(ctx context.Context, attempt int, left []*frameItem) error {
	mean := backoff.Backoff{Min: c.p.cfg.RetryBase, Max: c.p.cfg.RetryMax}.Mean(attempt)
	for _, it := range left {
		mean = max(mean, retry.Hint(it.result.GetError(), c.p.cfg.RetryMax))
	}
	d := backoff.Jitter(c.p.deps.Random, mean, 0.5)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return context.DeadlineExceeded // the present errors are better than a timeout
	}
	return backoff.Sleep(ctx, d)
}

// submitPart sends a part to its batcher, sets the results, and returns the items that may be sent again. silent reports that the
// batcher did not answer within the attempt's timeout.
func (c *writeCall) submitPart(ctx context.Context, t *routeTable, p batcherPart) (left []*frameItem, silent bool) {
	frames, release, err := c.joinFrames(p.items)
	if err != nil {
		return failItems(p.items, err), false
	}
	defer release()
	ctx, cancel := c.attemptContext(ctx, t, p.items)
	defer cancel()
	b, m := &t.batchers[p.at], t.members[p.at]
	follows := followsOf(p.items)
	if len(follows) > 0 && !m.ordered.Load() {
		return failItems(p.items, rpc.Errorf(scribev1.Reason_REASON_OUT_OF_ORDER,
			"batcher %s is not known to keep the order of several requests: send one at a time", b.ID)), false
	}
	c.p.metrics.submits.Inc()
	start := m.beginRequest()
	// Every frame that is sent has been checked.
	resp, err := b.Service.Submit(rpc.WithChecked(ctx), &scribev1.SubmitRequest{Frames: frames, Ack: c.ack, Follows: follows, Lingered: c.lingered})
	how, load := endingOf(ctx, resp, err)
	verdict := verdictOf(how, resp, err)
	m.endRequest(start, how, load, verdict, verdict == callWorked && c.ack == scribev1.AckLevel_ACK_LEVEL_COMMITTED)
	if err == nil && len(resp.GetResults()) != len(p.items) {
		err = rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "batcher %s answered for %d of %d frames", b.ID, len(resp.GetResults()), len(p.items))
	}
	if err != nil {
		return failItems(p.items, err), how == endSilent
	}
	m.ordered.Store(resp.GetOrdered())
	if resp.GetOrdered() {
		c.ordered.Store(true)
	} else {
		c.unordered.Store(true)
	}
	for i, it := range p.items {
		if it.setResult(resp.GetResults()[i]) {
			left = append(left, it)
		}
	}
	return left, false
}

// followsOf returns the indices of the items that follow frames which are not before them in the part.
func followsOf(items []*frameItem) (follows []uint32) {
	if !slices.ContainsFunc(items, func(it *frameItem) bool { return it.follows }) {
		return nil
	}
	var list request.FollowList
	for i, it := range items {
		if !it.sequenced {
			continue
		}
		s := record.Stream{Category: it.category.GetName(), Shard: it.shard, Producer: it.producer}
		if !list.Continues(s, it.epoch, it.first, it.next) && it.follows {
			follows = append(follows, uint32(i)) //nolint:gosec // bounded by the request's bytes
		}
	}
	return follows
}

// attemptContext bounds the time of one attempt, if its items may be sent to another batcher afterwards.
func (c *writeCall) attemptContext(ctx context.Context, t *routeTable, items []*frameItem) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok || t.usable < 2 || slices.ContainsFunc(items, func(it *frameItem) bool { return !it.isRepeatable() }) {
		return context.WithCancel(ctx)
	}
	left := time.Until(deadline)
	return context.WithTimeout(ctx, min(left, max(left/2, c.p.cfg.MinAttempt)))
}

// endingOf returns what the end of a request tells about the batcher, and the batcher's load if it is known.
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
		return endAnswered, balance.MaxLoad
	default:
		return endAnswered, noLoad
	}
}

// verdictOf returns whether a batcher did with an answered request what it was to do.
func verdictOf(how callEnding, resp *scribev1.SubmitResponse, err error) callVerdict {
	if how != endAnswered {
		return callUnjudged // the breaker judges
	}
	if err != nil {
		return verdictOfRefusal(rpc.ReasonOf(err))
	}
	verdict := callUnjudged
	for _, r := range resp.GetResults() {
		if r.GetError() == nil {
			return callWorked
		}
		if verdictOfRefusal(r.GetError().GetReason()) == callFailed {
			verdict = callFailed
		}
	}
	return verdict
}

// verdictOfRefusal returns whether a refusal is the batcher's failure. What is wrong with a frame or its category is not, and the load in the
// answer of one that is full says more.
func verdictOfRefusal(r scribev1.Reason) callVerdict {
	switch retry.ClassOf(r) {
	case retry.Unexplained, retry.Unavailable, retry.UnknownOutcome:
		return callFailed
	default:
		return callUnjudged
	}
}

// failItems sets the same error for all items, and returns the items that may be sent again.
func failItems(items []*frameItem, err error) (left []*frameItem) {
	info := rpc.Info(err)
	for _, it := range items {
		if it.setResult(&scribev1.FrameResult{Error: info}) {
			left = append(left, it)
		}
	}
	return left
}

// setResult sets the result, and reports whether the item may be sent again.
func (it *frameItem) setResult(r *scribev1.FrameResult) (again bool) {
	it.result = r
	it.unsure = it.unsure || r.GetError().GetReason() == scribev1.Reason_REASON_UNKNOWN_OUTCOME
	it.done = r.GetError() == nil || !it.isRetryable(r.GetError())
	return !it.done
}

// isRepeatable reports whether a frame with an unknown outcome may be sent again. at_least_once permits duplicates. exactly_once
// recognises duplicates by their sequences, if the frame has any. best_effort frames are never sent again.
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
	case reason == scribev1.Reason_REASON_OUT_OF_ORDER:
		return false // the sender has what goes before
	default:
		return retry.ClassOf(info.GetReason()).Retryable()
	}
}

// joinFrames returns the bytes of a part: a range of the request if its frames are adjacent there and unchanged, otherwise a
// copy, which is charged. Sample rates are written into the copy, since the caller owns the request's bytes.
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
