package consumer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar"
	"scribe/internal/record"
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
		c.iterate(ctx, refuse, func(it *item) bool { return c.records(it, yield) })
	}
}

// Batches yields the messages of the category as Arrow record batches: those that producers wrote with their own columns, and
// row messages of a payload together with the columns of columnar.Schema. It is otherwise as [Consumer.Records]. A batch is
// released at the next step of the iteration: Retain it to keep it.
func (c *Consumer) Batches(ctx context.Context) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		refuse := func(err error) bool { return yield(nil, err) }
		c.iterate(ctx, refuse, func(it *item) bool { return c.batches(it, yield) })
	}
}

// iterate walks the queue of a new session. deliver yields what is in a payload, refuse an error; they are false when the caller
// has left the loop.
func (c *Consumer) iterate(ctx context.Context, refuse func(error) bool, deliver func(*item) bool) {
	s, err := c.begin(ctx)
	if err != nil {
		refuse(err)
		return
	}
	defer c.end(s)
	for {
		if c.cfg.onPause != nil && s.queue.idle() {
			c.cfg.onPause()
		}
		it, err := s.queue.wait(s.ctx)
		if err != nil {
			refuse(over(err))
			return
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
		case itemWatermark:
			c.mu.Lock()
			c.mu.watermark = max(c.mu.watermark, it.time)
			c.mu.Unlock()
		case itemOpened:
			if c.cfg.onPause != nil {
				c.cfg.onPause()
			}
		case itemEnd:
			if it.err != nil {
				refuse(it.err)
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
	case it.err != nil:
		return c.damaged(it, it.err, refuse)
	}
	skip := uint32(0)
	c.mu.Lock()
	if it.pos.lsn == it.lsn {
		skip = it.pos.skip
	}
	left := it.ptr.Messages - min(skip, it.ptr.Messages)
	c.left.Store(int64(left))
	c.current = it
	c.mu.Unlock()
	if skip > it.ptr.Messages {
		c.cfg.logger.Warn("the position is behind the end of its payload", "shard", it.pos.shard.String(), "lsn", uint64(it.lsn), "skip", skip)
	}
	goOn := deliver(it)
	delivered := uint64(int64(left) - c.left.Load())
	c.mu.Lock()
	c.advance()
	c.current = nil
	c.mu.Unlock()
	c.stats.records.Add(delivered)
	c.stats.payloads.Add(1)
	if goOn && it.err != nil { // found while it was delivered
		goOn = c.damaged(it, it.err, refuse)
	}
	// Who has left the loop may still look at what was yielded last.
	if goOn && !it.keep {
		it.buf.free()
	}
	it.frames, it.buf = nil, nil
	return goOn
}

// damaged deals with a payload that can't be delivered, or not further, as the policy says.
func (c *Consumer) damaged(it *item, err error, refuse func(error) bool) bool {
	damage := new(DamageError)
	if c.cfg.damage != DamageSkip || !errors.As(err, &damage) {
		refuse(err)
		return false
	}
	reason := GapDamaged
	if damage.Missing {
		reason = GapMissing
	}
	return c.gap(it, c.lostPayload(it, reason, damage), refuse)
}

// lostPayload is the gap that a payload leaves, or the rest of it.
func (c *Consumer) lostPayload(it *item, reason GapReason, cause error) *GapError {
	return &GapError{
		Category: c.category, Shard: it.pos.shard, From: uint64(it.lsn), To: uint64(it.lsn) + 1, Reason: reason, Cause: cause,
	}
}

// gap moves the position behind a gap and tells of it.
func (c *Consumer) gap(it *item, g *GapError, refuse func(error) bool) bool {
	c.mu.Lock()
	if it.pos.lsn == record.LSN(g.From) {
		g.Delivered = it.pos.skip
	}
	it.pos.lsn, it.pos.skip = record.LSN(g.To), 0
	c.mu.Unlock()
	c.stats.gaps.Add(1)
	if c.cfg.onGap != nil {
		c.cfg.onGap(g)
	}
	return refuse(g)
}

// records yields the messages of a payload that were not delivered before. It is false when the caller has left the loop; what is
// wrong with the payload is left in it.err.
func (c *Consumer) records(it *item, yield func(Record, error) bool) bool {
	var (
		d      record.Decoder
		r      record.Record
		total  = int(it.ptr.Messages)
		left   = int(c.left.Load())
		index  = 0 // of the next message in the payload
		offset = 0 // of the next frame
		bytes  = uint64(0)
		// out is what is yielded, with all that does not change within a payload; at is its Time.
		out = Record{
			Time: time.UnixMicro(0), Persisted: time.UnixMicro(it.time),
			LogicalShard: uint32(it.pos.shard.Logical()), Shard: it.pos.shard, LSN: uint64(it.lsn),
		}
		at = int64(0)
	)
	defer func() { c.stats.bytes.Add(bytes) }()
	for n := 0; left > 0; n++ {
		h, err := record.ParseHeader(it.frames[offset:])
		if err != nil {
			return c.broken(it, n, offset, err)
		}
		if index+h.Count <= total-left { // all of it was delivered before
			index, offset = index+h.Count, offset+h.Len
			continue
		}
		if h.Encoding == record.EncodingArrow {
			it.err = fmt.Errorf("%w: shard %v, LSN %d, message %d", ErrColumnar, it.pos.shard, it.lsn, index)
			return true
		}
		if _, err := d.Reset(it.frames[offset:]); err != nil {
			return c.broken(it, n, offset, err)
		}
		offset += h.Len
		for d.Next(&r) {
			if index++; index <= total-left {
				continue
			}
			left--
			c.left.Store(int64(left))
			bytes += uint64(len(r.Payload))
			if r.Time != at { // most messages have their frame's
				at, out.Time = r.Time, time.UnixMicro(r.Time)
			}
			out.Payload, out.Key, out.Attributes, out.Index = r.Payload, r.Key, r.Attributes, index-1
			if !yield(out, nil) {
				return false
			}
		}
		if err := d.Err(); err != nil {
			return c.broken(it, n, offset-h.Len, err)
		}
	}
	return true
}

// broken leaves a damaged frame in it.err.
func (c *Consumer) broken(it *item, frame, offset int, err error) bool {
	it.err = it.place(c.category).damage(fmt.Sprintf("frame %d", frame), int64(offset), err)
	return true
}

// batches yields the batches of a payload. Row frames that stand together make one batch.
func (c *Consumer) batches(it *item, yield func(arrow.RecordBatch, error) bool) bool {
	var (
		total = int(it.ptr.Messages)
		index = 0 // of the first message of the next batch
		begin = 0 // of its first frame
		n     = 0 // frames before it
	)
	for begin < len(it.frames) {
		end, rows, frames, arrowFrame, err := run(it.frames[begin:])
		if err != nil {
			return c.broken(it, n, begin, err)
		}
		left := int(c.left.Load())
		if index+rows > total-left {
			batch, err := c.batch(it, it.frames[begin:begin+end], index, arrowFrame)
			if err != nil {
				return c.broken(it, n, begin, err)
			}
			if int(batch.NumRows()) != rows {
				batch.Release()
				return c.broken(it, n, begin, fmt.Errorf("a batch of %d rows in a frame of %d", batch.NumRows(), rows))
			}
			if done := total - left - index; done > 0 {
				whole := batch
				batch = whole.NewSlice(int64(done), whole.NumRows())
				whole.Release()
			}
			c.left.Store(int64(total - index - rows))
			goOn := yield(batch, nil)
			batch.Release()
			if !goOn {
				return false
			}
		}
		index, begin, n = index+rows, begin+end, n+frames
	}
	return true
}

// run measures the frames at the start of b that make one batch: one Arrow frame, or row frames up to the next Arrow frame.
func run(b []byte) (end, rows, frames int, arrowFrame bool, err error) {
	for f, err := range record.Split(b) {
		switch {
		case err != nil:
			return 0, 0, 0, false, err
		case f.Encoding == record.EncodingArrow && frames > 0:
			return end, rows, frames, false, nil
		}
		end, rows, frames = end+f.Len, rows+f.Count, frames+1
		if f.Encoding == record.EncodingArrow {
			return end, rows, frames, true, nil
		}
	}
	return end, rows, frames, false, nil
}

// batch decodes the frames of one batch.
func (c *Consumer) batch(it *item, frames []byte, index int, arrowFrame bool) (arrow.RecordBatch, error) {
	if !arrowFrame {
		return columnar.FromFrames(frames, columnar.Meta{Shard: it.pos.shard, LSN: it.lsn, Persisted: it.time, Index: index})
	}
	h, err := record.Check(frames)
	if err != nil {
		return nil, err
	}
	it.keep = true // the batch points into the payload, and the caller may retain it
	return columnar.DecodeIPC(frames[h.BodyOffset():h.Len])
}
