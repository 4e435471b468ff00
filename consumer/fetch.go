package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/format/record"
	"scribe/internal/transport/discovery"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// maxTries bounds the fetches of a payload whose bytes arrive damaged, possibly in transit.
const maxTries = 3

// errUnanswered cancels a request that is not answered in time.
var errUnanswered = fmt.Errorf("consumer: the request was not answered in time: %w", discovery.ErrBroken)

// startFetches starts fetches while there are payloads to fetch and memory for them. It is called whenever either may have
// changed.
func (s *iterationSession) startFetches() {
	for {
		group := s.queue.nextFetch(s.c.cfg.concurrency)
		if group == nil {
			return
		}
		s.startGoroutine(func() {
			s.fetchGroup(group)
			s.queue.endFetch()
			s.startFetches()
		})
	}
}

// fetchGroup fetches the payloads of a group: when it returns, each item is ready or the session is over.
func (s *iterationSession) fetchGroup(todo []*streamItem) {
	if s.c.noViews.Load() {
		for _, it := range todo {
			it.plain = true
		}
	}
	s.fetchAll(todo)
	s.fetchAll(slices.DeleteFunc(todo, func(it *streamItem) bool { return !it.refused }))
}

// fetchAll fetches payloads in one form, except those whose view is refused.
func (s *iterationSession) fetchAll(todo []*streamItem) {
	var (
		failures int
		since    = time.Now() // of the last progress
		lastErr  error
	)
	for len(todo) > 0 {
		if failures > 0 {
			if t := s.c.cfg.retryTimeout; t > 0 && time.Since(since) > t {
				failItems(todo, &ServerError{Doing: "fetching payloads", cause: ErrUnavailable, Detail: lastErr})
				return
			}
			if backoff.Sleep(s.ctx, s.c.cfg.pause(failures, lastErr)) != nil {
				return
			}
			s.c.stats.retries.Add(1)
		}
		left, err := s.fetchOnce(todo)
		if s.ctx.Err() != nil {
			return
		}
		if err != nil {
			if cause := s.c.cfg.permanentError(err); cause != nil {
				if s.c.wantsView(todo[0]) {
					for _, it := range todo {
						s.fetchPlain(it, err)
					}
					return
				}
				failItems(todo, &ServerError{Doing: "fetching payloads", cause: cause, Detail: err})
				return
			}
			level := slog.LevelWarn
			if after := retry.Classify(err).After; after > 0 && rpc.ReasonOf(err) == scribev1.Reason_REASON_OVERLOADED {
				// The read proxy has said when to ask again, as beyond a quota: waiting until then is not a failure.
				level, since = slog.LevelDebug, since.Add(after)
			}
			s.c.cfg.logger.Log(s.ctx, level, "fetch failed", "payloads", len(todo), "failures", failures+1, "error", err)
			failures, lastErr = failures+1, err
			continue
		}
		if len(left) < len(todo) {
			failures, since = 0, time.Now()
		} else {
			failures, lastErr = failures+1, left[0].Err
		}
		for _, it := range left {
			it.Err = nil
		}
		todo = left
	}
}

// fetchOnce makes one request and settles the items that it answers. It returns the items to request again, in order; err of an
// item is its own error, if it had one. Items that are to be fetched raw instead are not among them.
func (s *iterationSession) fetchOnce(todo []*streamItem) ([]*streamItem, error) {
	req := &scribev1.FetchRequest{
		Pointers: make([][]byte, len(todo)),
		Encoding: scribev1.PayloadEncoding_PAYLOAD_ENCODING_RAW,
		Category: s.c.category, AcceptsRestricted: true,
	}
	for i, it := range todo {
		req.Pointers[i] = it.raw
	}
	if len(todo[0].ticket) > 0 {
		req.Tickets = make([][]byte, len(todo))
		for i, it := range todo {
			req.Tickets[i] = it.ticket
		}
	}
	// Not of a payload that was delivered in part: the rest of an atomic batch must follow.
	req.AcceptsSamples = s.c.eval == nil && !s.c.deliveredPart(todo)
	raw := todo[0].plain
	if s.c.wantsView(todo[0]) {
		req.Encoding = scribev1.PayloadEncoding_PAYLOAD_ENCODING_ARROW
		req.View = s.c.eval.View
		for _, it := range todo {
			req.Places = append(req.Places, &scribev1.PointerPlace{Shard: uint64(it.pos.shard), Lsn: uint64(it.LSN)})
		}
	}
	// A request that takes too long counts as broken: the next try goes to another read proxy, if there is one.
	ctx, cancel := context.WithTimeoutCause(s.ctx, s.c.cfg.requestTimeout, errUnanswered)
	defer cancel()
	res, err := s.c.payloads.Fetch(ctx, req)
	if err != nil {
		return todo, err
	}
	payloads := res.GetPayloads()
	if len(payloads) == 0 || len(payloads) > len(todo) {
		return todo, fmt.Errorf("the read proxy answered with %d payloads for %d pointers", len(payloads), len(todo))
	}
	var again []*streamItem
	for i, p := range payloads {
		if s.ctx.Err() != nil {
			return todo, context.Cause(s.ctx) // rows of a payload may take long, and the session no longer needs them
		}
		s.c.stats.fetched.Add(uint64(len(p.GetData())))
		if it := todo[i]; !s.settleAnswer(ctx, it, p) && it.plain == raw {
			again = append(again, it)
		}
		payloads[i] = nil // free for collection once it is decompressed
	}
	return append(again, todo[len(payloads):]...), nil
}

// settleAnswer makes an item ready from its answer. It is false when the item should be requested again: then the item's Err says
// why.
func (s *iterationSession) settleAnswer(ctx context.Context, it *streamItem, p *scribev1.Payload) bool {
	if info := p.GetError(); info != nil {
		err := rpc.FromInfo(info)
		switch info.GetReason() {
		case scribev1.Reason_REASON_TRIMMED:
			it.gap = s.c.lostPayload(it, GapTrimmed, nil)
		case scribev1.Reason_REASON_MISSING, scribev1.Reason_REASON_STALE_BLOB:
			if !s.explainMissing(ctx, it, err) {
				return false
			}
		case scribev1.Reason_REASON_CORRUPT:
			it.Err = damageError(&it.Payload, "object", -1, err)
		default:
			it.Err = err
			cause := s.c.cfg.permanentError(err)
			if cause == nil {
				return false
			}
			if s.c.wantsView(it) {
				s.fetchPlain(it, err)
				return false
			}
			it.Err = &ServerError{Doing: fmt.Sprintf("fetching the payload of shard %v, LSN %d", it.Source, it.SourceLSN), cause: cause, Detail: err}
		}
		s.queue.chargeItem(it, 0)
		it.markReady()
		return true
	}
	if part := p.GetRestricted(); part != nil {
		it.Messages = part.GetMessages() // the pointer says nothing of what may be seen
		if it.Err = s.c.checkMadeAnew(part); it.Err != nil {
			s.queue.chargeItem(it, 0)
			it.markReady()
			return true
		}
	}
	if s.c.wantsView(it) {
		return s.settleView(it, p)
	}
	if it.sampleRate = p.GetSampleRate(); p.GetSampledOut() && s.c.eval == nil {
		it.leftOut = true
		s.queue.chargeItem(it, 0)
		it.markReady()
		return true
	}
	frames, buf, transit, err := decodePayload(s.c.decoder, p, &it.ptr, &it.Payload)
	if err != nil && transit {
		if it.tries++; it.tries < maxTries {
			it.Err = err
			return false
		}
	}
	if it.Frames, it.buf, it.Err = frames, buf, err; err == nil && s.c.eval != nil {
		if it.Err = s.c.eval.FromFrames(&it.Payload, s.c.skipOf(it)); it.Frames == nil {
			it.freeBuffer()
		}
	}
	s.queue.chargeItem(it, it.memoryCost())
	it.markReady()
	return true
}

// checkMadeAnew returns an error for messages that were made anew by another version of the schema than the rows of an evaluation are of: a column may have another column's name.
func (c *Consumer) checkMadeAnew(part *scribev1.PayloadRestriction) error {
	version := part.GetSchemaVersion()
	if version == 0 || c.eval == nil || c.eval.Query == nil || version == c.eval.Query.GetSchemaVersion() {
		return nil
	}
	return &ServerError{
		Doing: "fetching payloads", cause: ErrUnavailable,
		Detail: fmt.Errorf("what you may see of category %q is of version %d of its schema now, and this was begun with version %d: begin again", c.category, version, c.eval.Query.GetSchemaVersion()),
	}
}

// settleView is settleAnswer for views. If the answer is not a view, or the server can't make one, the stored payload is fetched.
func (s *iterationSession) settleView(it *streamItem, p *scribev1.Payload) bool {
	err := checkCRC(p, &it.Payload)
	if err != nil {
		if it.tries++; it.tries < maxTries {
			it.Err = err
			return false
		}
	} else if p.GetView() == nil {
		s.c.noViews.Store(true)
		err = errors.New("consumer: the answer is not a view")
	} else if err = s.c.eval.FromView(&it.Payload, p, s.c.skipOf(it), s.c.decoder); err == nil {
		s.queue.chargeItem(it, it.memoryCost())
		it.markReady()
		return true
	}
	s.fetchPlain(it, err)
	return false
}

// wantsView reports whether an item is fetched as a view.
func (c *Consumer) wantsView(it *streamItem) bool {
	return c.eval != nil && c.eval.View != nil && !it.plain
}

// skipOf returns how many messages at the beginning of an item's payload were delivered before.
func (c *Consumer) skipOf(it *streamItem) uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return it.deliveredCount()
}

// deliveredPart reports whether a part of some item's payload was delivered before.
func (c *Consumer) deliveredPart(items []*streamItem) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(items, func(it *streamItem) bool { return it.deliveredCount() > 0 })
}

// deliveredCount returns how many messages at the beginning of the item's payload were delivered before. The consumer's mutex is
// held.
func (it *streamItem) deliveredCount() uint32 {
	if it.pos.lsn == it.LSN {
		return it.pos.skip
	}
	return 0
}

// fetchPlain marks an item to be fetched raw.
func (s *iterationSession) fetchPlain(it *streamItem, err error) {
	if s.c.eval.Counts.ViewsRefused.Add(1) == 1 && !s.c.noViews.Load() { // of one, others follow
		s.c.cfg.logger.Warn("no view of a payload: making its rows locally", "shard", it.pos.shard.String(), "lsn", uint64(it.LSN), "error", err)
	}
	it.plain, it.refused, it.Err, it.tries = true, true, nil, 0
}

// memoryCost returns the memory of a fetched payload and of its evaluation result.
func (it *streamItem) memoryCost() int64 {
	n := it.ResultBytes
	if it.buf != nil {
		return n + int64(cap(it.buf.B))
	}
	return n + int64(cap(it.Frames))
}

// markReady hands the item over to the iteration.
func (it *streamItem) markReady() {
	it.raw, it.ticket = nil, nil
	close(it.ready)
}

// failItems settles items with an error of the whole request.
func failItems(items []*streamItem, err error) {
	for _, it := range items {
		it.Err = err
		it.markReady()
	}
}

// explainMissing handles a payload whose object does not exist, although its pointer was sent: either retention was faster than
// the fetch, or the object is lost. Logs are trimmed before objects are deleted, so the log's first LSN tells which. It sets the
// item's gap or Err. It is false when the answer is not known yet; it.Err then says why.
func (s *iterationSession) explainMissing(ctx context.Context, it *streamItem, why error) bool {
	first, err := s.firstReadable(ctx, it)
	switch {
	case err != nil:
		if cause := s.c.cfg.permanentError(err); cause != nil {
			it.Err = &ServerError{Doing: fmt.Sprintf("asking for the readable range of shard %v", it.pos.shard), cause: cause, Detail: err}
			return true
		}
		it.Err = fmt.Errorf("ask whether shard %v was trimmed beyond LSN %d: %w", it.pos.shard, it.LSN, err)
		return false
	case it.LSN < first:
		it.gap, it.Err = s.c.lostPayload(it, GapTrimmed, nil), nil
		return true
	}
	damage := damageError(&it.Payload, "object", -1, why)
	damage.Missing = true
	it.Err = damage
	// A store with inconsistent answers may return the object at the next try.
	it.tries++
	return it.tries >= maxTries
}

// firstReadable returns a lower bound of the readable LSNs of an item's shard: records below it were trimmed.
func (s *iterationSession) firstReadable(ctx context.Context, it *streamItem) (record.LSN, error) {
	c := s.c
	c.mu.Lock()
	first := it.pos.trimmed
	c.mu.Unlock()
	if it.LSN < first {
		return first, nil // known from an earlier request
	}
	res, err := c.streams.Bounds(ctx, &scribev1.BoundsRequest{Category: c.category, Shards: []uint64{uint64(it.pos.shard)}})
	if err != nil {
		return 0, err
	}
	if n := len(res.GetShards()); n != 1 {
		return 0, fmt.Errorf("%w: the bounds of %d shards instead of one", ErrProtocol, n)
	}
	b := res.GetShards()[0]
	first = record.LSN(b.GetFirstLsn())
	if b.GetSealed() && b.GetNextLsn() <= uint64(it.LSN) {
		first = it.LSN + 1 // the shard was erased with its category
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	it.pos.trimmed = max(it.pos.trimmed, first)
	return it.pos.trimmed, nil
}
