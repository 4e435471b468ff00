package consumer

import (
	"context"
	"fmt"
	"iter"
	"time"

	"scribe/consumer/internal/payload"
	"scribe/internal/format/record"
)

// Records yields the messages of the category, in the merged order, until the caller breaks the loop, ctx ends, or with
// [WithUntilEnd] the end is reached. Only the last ends without an error.
//
// An error ends the iteration, but for a *[GapError], after which it goes on if the caller does. After any end, another iteration
// continues after the last message that was yielded. The memory of a Record is valid until the next
// step; that of the last one stays valid when the caller breaks the loop.
func (c *Consumer) Records(ctx context.Context) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		refuse := func(err error) bool { return yield(Record{}, err) }
		c.iterate(ctx, refuse, func(it *item) bool { return c.records(it, yield, refuse) })
	}
}

// iterate walks the queue of a new session. deliver yields what is in a payload, refuse an error; they are false when the caller
// has left the loop.
func (c *Consumer) iterate(ctx context.Context, refuse func(error) bool, deliver func(*item) bool) {
	if err := c.bind(ctx); err != nil {
		refuse(over(err))
		return
	}
	s, err := c.begin(ctx)
	if err != nil {
		refuse(err)
		return
	}
	defer c.end(s)
	defer c.group.rest()
	if err := c.group.work(s.ctx); err != nil {
		refuse(over(err))
		return
	}
	for {
		if c.cfg.onPause != nil && s.queue.idle() {
			c.cfg.onPause()
		}
		c.group.rest()
		it, err := s.queue.wait(s.ctx)
		if err == nil {
			err = c.group.work(s.ctx)
		}
		if err != nil {
			refuse(over(err))
			return
		}
		if !s.takes(it) {
			s.queue.pop()
			s.pump()
			continue
		}
		switch it.kind {
		case itemPayload:
			if !c.payload(it, refuse, deliver) {
				return
			}
		case itemGap:
			if !c.gap(it, it.gap, refuse) {
				return
			}
		case itemPassed:
			c.pass(it)
		case itemSkipped:
			c.skip(it)
		case itemWatermark:
			c.mu.Lock()
			c.mu.watermark = max(c.mu.watermark, it.Time)
			c.mu.Unlock()
		case itemOpened:
			if c.cfg.onPause != nil {
				c.cfg.onPause()
			}
		case itemEnd:
			if it.Err != nil {
				refuse(it.Err)
			}
			return
		}
		s.queue.pop()
		if it.kind == itemPayload { // it made room
			s.pump()
		}
	}
}

// payload delivers one payload, or what is wrong with it; it is false when the iteration is over.
func (c *Consumer) payload(it *item, refuse func(error) bool, deliver func(*item) bool) bool {
	switch {
	case it.gap != nil:
		return c.gap(it, it.gap, refuse)
	case it.Err != nil:
		return c.damaged(it, it.Err, refuse)
	}
	c.mu.Lock()
	skip := it.delivered()
	left := it.ptr.Messages - min(skip, it.ptr.Messages)
	it.Left.Store(int64(left))
	c.current = it
	c.mu.Unlock()
	if skip > it.ptr.Messages {
		c.cfg.logger.Warn("the position is behind the end of its payload", "shard", it.pos.shard.String(), "lsn", uint64(it.LSN), "skip", skip)
	}
	goOn := deliver(it)
	delivered := uint64(int64(left) - it.Left.Load())
	c.mu.Lock()
	c.advance()
	c.current = nil
	c.mu.Unlock()
	c.stats.records.Add(delivered)
	c.stats.payloads.Add(1)
	if goOn && it.Err != nil { // found while it was delivered
		goOn = c.damaged(it, it.Err, refuse)
	}
	// Who has left the loop may still look at what was yielded last.
	if !goOn || it.Keep {
		it.buf = nil
	}
	it.freeBuffer()
	return goOn
}

// delivery yields the messages of one payload.
type delivery struct {
	c      *Consumer
	it     *item
	yield  func(Record, error) bool
	refuse func(error) bool
	match  *matches

	index, left   int // of messages: the next one, and how many are not delivered
	frame, offset int // of the next frame: its number, and where it begins
	decoder       record.Decoder
	bytes         uint64 // yielded
	// out is what is yielded, with all that does not change within a payload; at is its Time.
	out Record
	at  int64
}

// records yields the messages of a payload that were not delivered before. It is false when the caller has left the loop; what is
// wrong with the payload is left in it.Err.
func (c *Consumer) records(it *item, yield func(Record, error) bool, refuse func(error) bool) bool {
	d := delivery{c: c, it: it, yield: yield, refuse: refuse, match: it.matches(), left: int(it.Left.Load()), out: it.record()}
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

// skipFrame passes over a frame that was delivered before, or of which a filter lets nothing through.
func (d *delivery) skipFrame(h *record.Header) bool {
	total, end := int(d.it.Messages), d.index+h.Count
	if end > total-d.left { // else all of it was delivered before
		if payload.MayBeReport(h) || !d.match.none(d.index, h.Count) {
			return false
		}
		d.left = total - end
		d.it.Left.Store(int64(d.left))
	}
	d.index, d.offset = end, d.offset+h.Len
	return true
}

// deliverFrame yields the messages of a frame. It is false when the caller has left the loop.
func (d *delivery) deliverFrame(h *record.Header) bool {
	if _, err := d.decoder.Reset(d.it.Frames[d.offset:]); err != nil {
		d.markBroken(err)
		return true
	}
	var (
		r         record.Record
		out       = &d.out
		delivered = int(d.it.Messages) - d.left // before
		mayReport = payload.MayBeReport(h)
	)
	out.SampleRate, out.Atomic, out.BatchLeft = max(h.SampleRate, 1), h.Atomic(), 0
	for d.decoder.Next(&r) {
		if d.index++; d.index <= delivered {
			continue
		}
		d.left--
		d.it.Left.Store(int64(d.left))
		if mayReport {
			if told, goOn := d.c.report(d.it, &r, d.refuse); told {
				d.offset += h.Len
				return goOn
			}
		}
		if !d.match.lets(d.index - 1) {
			continue
		}
		d.bytes += uint64(len(r.Payload))
		if r.Time != d.at { // most messages have their frame's
			d.at, out.Time = r.Time, time.UnixMicro(r.Time)
		}
		out.Payload, out.Key, out.Attributes, out.Index, out.Offset = r.Payload, r.Key, r.Attributes, d.index-1, d.it.number(d.index-1)
		if out.Atomic {
			out.BatchLeft = h.Count - r.Index - 1
		}
		if !d.yield(*out, nil) {
			return false
		}
	}
	if err := d.decoder.Err(); err != nil {
		d.markBroken(err)
	}
	d.offset += h.Len
	return true
}

// markBroken leaves what is wrong with a frame in the payload's Err.
func (d *delivery) markBroken(err error) {
	d.it.Err = d.it.place(d.c.category).damage(fmt.Sprintf("frame %d", d.frame), int64(d.offset), err)
}
