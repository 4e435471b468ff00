package consumer

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar"
	"scribe/internal/format/loss"
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

// Batches yields the messages of the category as Arrow record batches: those that producers wrote with their own columns, and
// row messages of a payload together with the columns of columnar.Schema. It is otherwise as [Consumer.Records]. A batch is
// released at the next step of the iteration: Retain it to keep it.
func (c *Consumer) Batches(ctx context.Context) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		refuse := func(err error) bool { return yield(nil, err) }
		if c.cfg.filter != "" {
			refuse(ErrFiltered)
			return
		}
		c.iterate(ctx, refuse, func(it *item) bool { return c.batches(it, yield, refuse) })
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

// records yields the messages of a payload that were not delivered before. It is false when the caller has left the loop; what is
// wrong with the payload is left in it.err.
func (c *Consumer) records(it *item, yield func(Record, error) bool, refuse func(error) bool) bool {
	var (
		d      record.Decoder
		r      record.Record
		total  = int(it.ptr.Messages)
		left   = int(c.left.Load())
		index  = 0 // of the next message in the payload
		offset = 0 // of the next frame
		bytes  = uint64(0)
		match  = it.filtered()
		// out is what is yielded, with all that does not change within a payload; at is its Time.
		out = it.record()
		at  = int64(0)
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
		if match.none(index, h.Count) && !alone(&h) { // a filter lets nothing of it through
			index, offset, left = index+h.Count, offset+h.Len, total-index-h.Count
			c.left.Store(int64(left))
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
		lone := alone(&h)
		out.SampleRate, out.Atomic, out.BatchLeft = max(h.SampleRate, 1), h.Atomic(), 0
		for d.Next(&r) {
			if index++; index <= total-left {
				continue
			}
			left--
			c.left.Store(int64(left))
			if lone {
				if told, goOn := c.report(it, &r, refuse); told {
					if !goOn {
						return false
					}
					continue
				}
			}
			if !match.lets(index - 1) {
				continue
			}
			bytes += uint64(len(r.Payload))
			if r.Time != at { // most messages have their frame's
				at, out.Time = r.Time, time.UnixMicro(r.Time)
			}
			out.Payload, out.Key, out.Attributes, out.Index, out.Offset = r.Payload, r.Key, r.Attributes, index-1, it.number(index-1)
			if out.Atomic {
				out.BatchLeft = h.Count - r.Index - 1
			}
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

// alone reports whether a frame may be the report of a loss: it has one message.
func alone(h *record.Header) bool { return h.Count == 1 && h.Encoding == record.EncodingMessages }

// batches yields the batches of a payload. Row frames that stand together make one batch.
func (c *Consumer) batches(it *item, yield func(arrow.RecordBatch, error) bool, refuse func(error) bool) bool {
	var (
		total = int(it.ptr.Messages)
		index = 0 // of the first message of the next batch
		begin = 0 // of its first frame
		n     = 0 // frames before it
	)
	for begin < len(it.frames) {
		r, err := nextRun(it.frames[begin:])
		if err != nil {
			return c.broken(it, n, begin, err)
		}
		left := int(c.left.Load())
		switch {
		case index+r.rows <= total-left: // it was delivered before
		case r.report != nil:
			c.left.Store(int64(total - index - 1))
			if _, goOn := c.report(it, r.report, refuse); !goOn {
				return false
			}
		default:
			batch, err := c.batch(it, it.frames[begin:begin+r.end], index, r.arrow)
			if err != nil {
				return c.broken(it, n, begin, err)
			}
			if int(batch.NumRows()) != r.rows {
				batch.Release()
				return c.broken(it, n, begin, fmt.Errorf("a batch of %d rows in a frame of %d", batch.NumRows(), r.rows))
			}
			if done := total - left - index; done > 0 {
				whole := batch
				batch = whole.NewSlice(int64(done), whole.NumRows())
				whole.Release()
			}
			c.left.Store(int64(total - index - r.rows))
			goOn := yield(batch, nil)
			batch.Release()
			if !goOn {
				return false
			}
		}
		index, begin, n = index+r.rows, begin+r.end, n+r.frames
	}
	return true
}

// run is frames that make one batch: one Arrow frame, or row frames up to the next Arrow frame or report; or one report.
type run struct {
	end, rows, frames int // bytes, messages and frames
	arrow             bool
	report            *record.Record
}

// nextRun measures the run at the start of b.
func nextRun(b []byte) (run, error) {
	var r run
	for f, err := range record.Split(b) {
		if err != nil {
			return run{}, err
		}
		rec, report, err := asReport(&f)
		if err != nil {
			return run{}, err
		}
		special := report || f.Encoding == record.EncodingArrow
		if special && r.frames > 0 {
			break
		}
		r.end, r.rows, r.frames = r.end+f.Len, r.rows+f.Count, r.frames+1
		if report {
			r.report = new(rec)
		}
		if special {
			r.arrow = !report
			break
		}
	}
	return r, nil
}

// asReport returns the message of a frame that is the report of a loss; false when it is something else.
func asReport(f *record.Frame) (rec record.Record, report bool, err error) {
	if !alone(&f.Header) {
		return rec, false, nil
	}
	var d record.Decoder
	if _, err := d.Reset(f.Bytes); err != nil {
		return rec, false, err
	}
	if !d.Next(&rec) {
		return rec, false, d.Err()
	}
	_, report = loss.Parse(rec.Payload, rec.Attributes)
	return rec, report, nil
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
