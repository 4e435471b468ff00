package consumer

import (
	"context"
	"fmt"
	"iter"
	"math"
	"time"

	"scribe/consumer/internal/payload"
	"scribe/internal/format/loss"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Records yields the messages of the category, in merged order, until the caller breaks the loop, ctx ends, or with
// [WithUntilEnd] the end is reached. Only the last of these ends it without an error.
//
// An error ends the iteration, except a *[GapError], after which it continues if the caller does. After any end, another
// iteration continues after the last message that was yielded. The memory of a Record is valid until the next step; that of the
// last one stays valid after the caller breaks the loop.
func (c *Consumer) Records(ctx context.Context) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		refuse := func(err error) bool { return yield(Record{}, err) }
		c.runIteration(ctx, refuse, func(it *streamItem) bool {
			return c.takeItem(it, refuse, func() bool { return c.deliverRecords(it, yield, c.group.mayGoOn(ctx, it), refuse) })
		})
	}
}

// runIteration walks the queue of a new session. take handles an item, refuse yields an error; they return false when the
// iteration is over.
func (c *Consumer) runIteration(ctx context.Context, refuse func(error) bool, take func(*streamItem) bool) {
	if err := c.group.enterIteration(); err != nil {
		refuse(err)
		return
	}
	if err := c.bindExtension(ctx); err != nil {
		refuse(iterationError(err))
		return
	}
	s, err := c.beginIteration(ctx)
	if err != nil {
		refuse(err)
		return
	}
	defer func() {
		if s != nil {
			c.endIteration(s)
		}
	}()
	defer c.group.restTurn()
	if err := c.group.workTurn(s.ctx); err != nil {
		refuse(iterationError(err))
		return
	}
	var renewed *streamItem // for which the session before this one was ended
	for {
		if c.cfg.onPause != nil && s.queue.wouldWait() {
			c.cfg.onPause()
		}
		c.group.restTurn()
		it, err := s.queue.waitItem(s.ctx)
		if err == nil {
			err = c.group.workTurn(s.ctx)
		}
		if err != nil {
			refuse(iterationError(err))
			return
		}
		if it.hasOldTicket() && (renewed == nil || !it.isSameAs(renewed)) {
			renewed = it
			if s, err = c.renewIteration(ctx, s); err != nil {
				refuse(iterationError(err))
				return
			}
			continue
		}
		claimed := s.claimItem(it)
		if claimed && !take(it) {
			return
		}
		s.queue.popItem()
		if !claimed || it.kind == itemPayload { // it freed memory
			s.startFetches()
		}
	}
}

// renewIteration ends a session in which pointers lay until their tickets were too old, and begins one at the same place, whose stream brings new
// ones. It returns no session if another iteration has begun meanwhile, or the consumer was closed.
func (c *Consumer) renewIteration(ctx context.Context, s *iterationSession) (*iterationSession, error) {
	c.cfg.logger.Info("pointers were not fetched in time, opening the stream again")
	c.group.restTurn()
	c.endIteration(s)
	s, err := c.beginIteration(ctx)
	if err != nil {
		return nil, err
	}
	return s, c.group.workTurn(s.ctx)
}

// hasOldTicket reports whether a payload was refused because its pointer had lain for too long.
func (it *streamItem) hasOldTicket() bool {
	return it.kind == itemPayload && rpc.ReasonOf(it.Err) == scribev1.Reason_REASON_TICKET_EXPIRED
}

// isSameAs reports whether two items are of the same payload.
func (it *streamItem) isSameAs(other *streamItem) bool {
	return it.Source == other.Source && it.SourceLSN == other.SourceLSN
}

// takeItem handles an item. deliver yields the messages of its payload. It is false when the iteration is over.
func (c *Consumer) takeItem(it *streamItem, refuse func(error) bool, deliver func() bool) bool {
	switch it.kind {
	case itemPayload:
		return c.deliverPayload(it, refuse, deliver)
	case itemGap:
		return c.tellGapAt(it, it.gap, refuse)
	case itemPassed:
		c.passItem(it)
	case itemSkipped:
		c.mu.Lock()
		for p, to := range it.runs {
			p.lsn, p.skip = to, 0
		}
		c.mu.Unlock()
	case itemWatermark:
		c.mu.Lock()
		c.mu.watermark, c.mu.reached = max(c.mu.watermark, it.Time), max(c.mu.reached, it.reached)
		c.mu.Unlock()
	case itemOpened:
		if c.cfg.onPause != nil {
			c.cfg.onPause()
		}
	case itemEnd:
		if it.Err != nil {
			refuse(it.Err)
		}
		return false
	}
	return true
}

// deliverPayload delivers one payload, or its error; it is false when the iteration is over.
func (c *Consumer) deliverPayload(it *streamItem, refuse func(error) bool, deliver func() bool) bool {
	switch {
	case it.gap != nil:
		return c.tellGapAt(it, it.gap, refuse)
	case it.Err != nil:
		return c.handleDamage(it, it.Err, refuse)
	}
	c.mu.Lock()
	skip := it.deliveredCount()
	left := it.ptr.Messages - min(skip, it.ptr.Messages)
	if it.leftOut {
		c.stats.sampledOut.Add(uint64(left))
		left = 0
	}
	it.Left.Store(int64(left))
	c.current = it
	c.mu.Unlock()
	if skip > it.ptr.Messages {
		c.cfg.logger.Warn("position beyond the end of its payload", "shard", it.pos.shard.String(), "lsn", uint64(it.LSN), "skip", skip)
	}
	goOn := deliver() || it.gone
	delivered := uint64(int64(left) - it.Left.Load())
	c.mu.Lock()
	c.advancePosition()
	c.current = nil
	c.mu.Unlock()
	c.stats.records.Add(delivered)
	c.stats.payloads.Add(1)
	if goOn && it.Err != nil { // found during delivery
		goOn = c.handleDamage(it, it.Err, refuse)
	}
	// After leaving the loop, the caller may still use the last yielded messages.
	if !goOn || it.Keep {
		it.buf = nil
	}
	it.freeBuffer()
	return goOn
}

// recordDelivery yields the messages of one payload.
type recordDelivery struct {
	c      *Consumer
	it     *streamItem
	yield  func(Record, error) bool
	refuse func(error) bool
	// matches are the messages that pass the filter, if there is one: those not walked past yet, in order.
	matches []uint32
	// mayGoOn is called between two messages; nil without a group.
	mayGoOn func() bool

	index, left   int // messages: index of the next one, and number of undelivered ones
	frame, offset int // number and offset of the next frame
	decoder       record.Decoder
	bytes         uint64 // yielded
	// out is the record to yield, with the fields that are constant within a payload; at is its Time.
	out Record
	at  int64
}

// deliverRecords yields the messages of a payload that were not delivered before. It is false when the caller has left the loop.
// It reports damage of the payload in it.Err.
func (c *Consumer) deliverRecords(it *streamItem, yield func(Record, error) bool, mayGoOn func() bool, refuse func(error) bool) bool {
	d := recordDelivery{
		c: c, it: it, yield: yield, refuse: refuse, mayGoOn: mayGoOn,
		matches: it.Matches, left: int(it.Left.Load()), out: it.newRecord(),
	}
	defer func() { c.stats.bytes.Add(d.bytes) }()
	for ; d.left > 0 && it.Err == nil; d.frame++ {
		h, err := record.ParseHeader(it.Frames[d.offset:])
		switch {
		case err != nil:
			d.markBroken(err)
		case d.skipFrame(&h):
		case h.Encoding == record.EncodingArrow:
			it.Err = fmt.Errorf("%w: shard %v, LSN %d, message %d", ErrColumnar, it.pos.shard, it.LSN, d.index)
		case !d.deliverFrame(&h):
			return false
		}
	}
	return true
}

// skipFrame skips a frame that was delivered before, or that a filter excludes entirely.
func (d *recordDelivery) skipFrame(h *record.Header) bool {
	total, end := int(d.it.Messages), d.index+h.Count
	if end > total-d.left { // otherwise all of it was delivered before
		if payload.MayBeReport(h) || !d.matchesNone(d.index, h.Count) {
			return false
		}
		d.left = total - end
		d.it.Left.Store(int64(d.left))
	}
	d.index, d.offset = end, d.offset+h.Len
	return true
}

// matchesNone reports whether a filter excludes all of the n messages from index on.
func (d *recordDelivery) matchesNone(index, n int) bool {
	if !d.it.Filtered {
		return false
	}
	for len(d.matches) > 0 && int(d.matches[0]) < index {
		d.matches = d.matches[1:]
	}
	return len(d.matches) == 0 || int(d.matches[0]) >= index+n
}

// deliverFrame yields the messages of a frame. It is false when the caller has left the loop.
func (d *recordDelivery) deliverFrame(h *record.Header) bool {
	if _, err := d.decoder.Reset(d.it.Frames[d.offset:]); err != nil {
		d.markBroken(err)
		return true
	}
	// Local variables, since this runs for each message.
	var (
		r         record.Record
		out       = d.out
		at        = d.at
		it, yield = d.it, d.yield
		index     = d.index
		left      = d.left
		delivered = int(it.Messages) - left // before
		mayReport = payload.MayBeReport(h)
	)
	out.SampleRate, out.Atomic, out.BatchLeft = sampleRate(h.SampleRate, it.sampleRate), h.Atomic(), 0
	for d.decoder.Next(&r) {
		if index++; index <= delivered {
			continue
		}
		left--
		it.Left.Store(int64(left))
		if mayReport {
			// The report counts as one message: the next position is the one after it.
			if report, ok := loss.Parse(r.Payload, r.Attributes); ok {
				if !d.c.tellLoss(it, new(report), d.refuse) { // a copy: most messages are not reports
					return false
				}
				continue
			}
		}
		if it.Filtered && d.matchesNone(index-1, 1) {
			continue
		}
		d.bytes += uint64(len(r.Payload))
		if r.Time != at { // most messages have the time of their frame
			at, out.Time = r.Time, time.UnixMicro(r.Time)
		}
		out.Payload, out.Key, out.Attributes, out.Index, out.Offset = r.Payload, r.Key, r.Attributes, index-1, it.offsetOf(index-1)
		if out.Atomic {
			out.BatchLeft = h.Count - r.Index - 1
		}
		if !yield(out, nil) || d.mayGoOn != nil && !d.mayGoOn() {
			return false
		}
	}
	if err := d.decoder.Err(); err != nil {
		d.markBroken(err)
	}
	d.out, d.at, d.index, d.left, d.offset = out, at, index, left, d.offset+h.Len
	return true
}

// markBroken records a damaged frame in the payload's Err.
func (d *recordDelivery) markBroken(err error) {
	d.it.Err = damageError(&d.it.Payload, fmt.Sprintf("frame %d", d.frame), int64(d.offset), err)
}

// sampleRate is how many messages one stands for whose frame and whose payload were sampled. 0 and 1 both stand for itself alone.
func sampleRate(frame, payload uint32) uint32 {
	return uint32(min(uint64(max(frame, 1))*uint64(max(payload, 1)), math.MaxUint32))
}
