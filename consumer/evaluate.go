package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow/util"
	"github.com/klauspost/compress/s2"

	"scribe/columnar"
	"scribe/columnar/finish"
	"scribe/columnar/vector"
	"scribe/internal/format/loss"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// evaluation is what a query or a filter makes of payloads. It is done by the goroutines that fetch them, several at a time.
type evaluation struct {
	finisher *finish.Finisher
	// wire is how the query travels: to the stream, which leaves out pointers that can't match, and to read proxies, for views.
	wire *scribev1.Query
	// codec is the compression of views that is asked for.
	codec uint32
	// local says that payloads are fetched raw: rows are made of them here. So it is for messages, whose bytes are wanted.
	local bool
	// unknown says that a server has shown that it knows of no views: none is asked for any more.
	unknown atomic.Bool
	// messages says that the messages themselves are wanted, not rows.
	messages bool
	stats    evaluated
}

// evaluated counts what became of payloads.
type evaluated struct {
	pointers, skippedPointers, skippedMessages, skippedBytes atomic.Uint64
	views, reused, exact, raw, refused                       atomic.Uint64
	rows, rowsKept, kept, rejected, badRows, badValues, errs atomic.Uint64
}

// codecS2 is the compression of views by package s2: a block (Payload.codec).
const codecS2 = 3

// result is what an evaluation made of a payload.
type result struct {
	rows *finish.Rows
	// lost are the reports of losses that were among the messages.
	lost []*GapError
	// match are the messages that a filter lets through, in increasing order; the rows were given up.
	match []uint32
}

// meta is what the stream said of a payload.
func (c *Consumer) meta(it *item) finish.Meta {
	m := finish.Meta{Shard: it.pos.shard, LSN: it.lsn, Persisted: it.time}
	c.mu.Lock()
	defer c.mu.Unlock()
	if it.pos.lsn == it.lsn {
		m.Skip = it.pos.skip
	}
	return m
}

// viewed reports whether an item is to be fetched as a view.
func (c *Consumer) viewed(it *item) bool { return c.eval != nil && !c.eval.local && !it.plain }

// ask completes a request for payloads that are all viewed, or none.
func (e *evaluation) ask(req *scribev1.FetchRequest, items []*item) {
	req.Encoding = scribev1.PayloadEncoding_PAYLOAD_ENCODING_ARROW
	req.View = &scribev1.View{Query: e.wire, Codec: e.codec}
	for _, it := range items {
		req.Places = append(req.Places, &scribev1.PointerPlace{Shard: uint64(it.pos.shard), Lsn: uint64(it.lsn)})
	}
}

// errNoView means that a server answered with something else than the view that it was asked for.
var errNoView = errors.New("consumer: the answer is no view")

// view makes the rows of an answer that is a view. transit says that fetching it again may help.
func (s *session) view(it *item, p *scribev1.Payload, at place) (transit bool, err error) {
	e := s.c.eval
	data := p.GetData()
	if computed := record.CRC(data); computed != p.GetCrc() {
		return true, at.damage("payload checksum", -1, fmt.Errorf("announced %#08x, computed %#08x", p.GetCrc(), computed))
	}
	if p.GetView() == nil {
		e.unknown.Store(true)
		return false, errNoView
	}
	body, err := s.inflate(p)
	if err != nil {
		return false, err
	}
	batch, err := columnar.DecodeIPC(body)
	if err != nil {
		return false, fmt.Errorf("%w: %w", errNoView, err)
	}
	defer batch.Release()
	v := p.GetView()
	st := finish.Stats{
		Rows: int64(v.GetRows()), Rejected: int64(v.GetRejected()), BadRows: int64(v.GetBad()), Errors: int64(v.GetErrors()), //nolint:gosec // rows of a payload
	}
	m := s.c.meta(it)
	lost, err := s.c.viewLosses(it, v, m.Skip)
	if err != nil {
		return false, fmt.Errorf("%w: a report of a loss: %w", errNoView, err)
	}
	rows, err := e.finisher.View(batch, v.GetExact(), m, &st)
	if err != nil {
		return false, fmt.Errorf("%w: %w", errNoView, err)
	}
	it.result = &result{rows: rows, lost: lost}
	e.stats.add(&st)
	e.stats.kept.Add(v.GetKept())
	e.stats.views.Add(1)
	if v.GetReused() {
		e.stats.reused.Add(1)
	}
	if v.GetExact() {
		e.stats.exact.Add(1)
	}
	return false, nil
}

// viewLosses are the losses that are reported in a payload, behind its first messages.
func (c *Consumer) viewLosses(it *item, v *scribev1.PayloadView, skip uint32) (lost []*GapError, err error) {
	for _, l := range v.GetLosses() {
		if l.GetIndex() < skip {
			continue // it was told before
		}
		for f, err := range record.Split(l.GetFrame()) {
			if err != nil {
				return nil, err
			}
			rec, _, err := asReport(&f)
			if err != nil {
				return nil, err
			}
			if g, ok := c.lossOf(it, &rec); ok {
				lost = append(lost, g)
			}
		}
	}
	return lost, nil
}

// inflate returns the bytes of a view, which the batch made of them may keep.
func (s *session) inflate(p *scribev1.Payload) ([]byte, error) {
	data, n := p.GetData(), p.GetRawLength()
	if n > columnar.MaxIPC {
		return nil, fmt.Errorf("%w: it has %d bytes, the limit is %d", errNoView, n, columnar.MaxIPC)
	}
	var (
		body []byte
		err  error
	)
	switch codec := p.GetCodec(); codec {
	case uint32(pointer.CodecNone):
		body = data
	case uint32(pointer.CodecZstd):
		body, err = s.c.decoder.DecodeAll(data, make([]byte, 0, n))
	case codecS2:
		if announced, lerr := s2.DecodedLen(data); lerr != nil || uint64(announced) != n { //nolint:gosec // not negative without an error
			return nil, fmt.Errorf("%w: it announces %d bytes, its block %d", errNoView, n, announced)
		}
		body, err = s2.Decode(make([]byte, n), data)
	default:
		return nil, fmt.Errorf("%w: codec %d is unknown to this build", errNoView, codec)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoView, err)
	}
	if uint64(len(body)) != n {
		return nil, fmt.Errorf("%w: it has %d bytes and announces %d", errNoView, len(body), n)
	}
	return body, nil
}

// evaluate makes the rows of a raw payload, whose frames were checked. What only a query needs of it is given up.
func (s *session) evaluate(it *item, at place) error {
	e := s.c.eval
	m := s.c.meta(it)
	lost, drop, err := s.c.reports(it, m.Skip)
	if err != nil {
		return at.damage("frames", -1, err)
	}
	m.Drop = drop
	var st finish.Stats
	rows, err := e.finisher.Payload(it.frames, m, &st)
	switch {
	case errors.Is(err, record.ErrCorrupt), errors.Is(err, record.ErrTruncated):
		return at.damage("frames", -1, err)
	case err != nil:
		return s.c.memoryLimit(fmt.Errorf("shard %v, LSN %d: %w", at.shard, at.lsn, err))
	}
	it.result = &result{rows: rows, lost: lost}
	if e.messages {
		it.result.match = matching(rows)
		it.result.release()
	} else {
		it.buf.free() // the rows share no memory with it
		it.frames, it.buf = nil, nil
	}
	e.stats.add(&st)
	e.stats.kept.Add(uint64(len(rows.Index)))
	e.stats.raw.Add(1)
	return nil
}

// memoryLimit is an error of an evaluation as callers know it: a [LimitError], if it took too much memory.
func (c *Consumer) memoryLimit(err error) error {
	limit := &LimitError{What: "memory", Limit: fmt.Sprint(c.cfg.query.memory), Cause: err}
	switch {
	case errors.Is(err, vector.ErrTooLarge):
		limit.Hint = "let the expressions make less of a row"
	case errors.Is(err, columnar.ErrTooLarge):
		limit.Hint = "name fewer columns, or allow more"
	default:
		return fmt.Errorf("consumer: %w", err)
	}
	return limit
}

// reports are the reports of losses in a payload behind its first messages, and which of its messages are reports.
func (c *Consumer) reports(it *item, skip uint32) (lost []*GapError, index []uint32, err error) {
	messages := uint32(0)
	for f, err := range record.Split(it.frames) {
		if err != nil {
			return nil, nil, err
		}
		rec, report, err := asReport(&f)
		if err != nil {
			return nil, nil, err
		}
		if report {
			index = append(index, messages)
			if g, ok := c.lossOf(it, &rec); ok && messages >= skip {
				lost = append(lost, g)
			}
		}
		messages += uint32(f.Count) //nolint:gosec // of a frame
	}
	return lost, index, nil
}

// lossOf is the gap that a report tells of.
func (c *Consumer) lossOf(it *item, r *record.Record) (*GapError, bool) {
	rep, ok := loss.Parse(r.Payload, r.Attributes)
	if !ok {
		return nil, false
	}
	return &GapError{
		Category: c.category, Shard: it.pos.shard, From: uint64(it.lsn), To: uint64(it.lsn), Reason: GapDropped,
		Messages: rep.Messages, Bytes: rep.Bytes, Counted: true, Report: new(rep), // a copy: most messages are no report
	}, true
}

// memory is what a result takes.
func (r *result) memory() int64 {
	if r == nil {
		return 0
	}
	n := int64(4 * cap(r.match))
	if r.rows.Batch != nil {
		n += util.TotalRecordSize(r.rows.Batch) + int64(4*cap(r.rows.Index))
	}
	return n
}

func (r *result) release() {
	if r != nil && r.rows.Batch != nil {
		r.rows.Batch.Release()
		r.rows.Batch = nil
	}
}

func (e *evaluated) add(st *finish.Stats) {
	add := func(to *atomic.Uint64, n int64) { to.Add(uint64(max(n, 0))) } //nolint:gosec // not negative
	add(&e.rows, st.Rows)
	add(&e.rowsKept, st.Kept)
	add(&e.rejected, st.Rejected)
	add(&e.badRows, st.BadRows)
	add(&e.badValues, st.BadValues)
	add(&e.errs, st.Errors)
}

// describe asks for a category, as long as the options allow.
func (c *Consumer) describe(ctx context.Context) (*scribev1.Category, error) {
	doing := fmt.Sprintf("describing category %q", c.category)
	if c.control == nil {
		return nil, fmt.Errorf("consumer: %s: WithServices without WithControl has nobody to ask", doing)
	}
	since := time.Now()
	for failures := 1; ; failures++ {
		rctx, cancel := context.WithTimeoutCause(ctx, c.cfg.requestTimeout, errUnanswered)
		res, err := c.control.GetCategory(rctx, &scribev1.GetCategoryRequest{Name: c.category})
		cancel()
		if err == nil {
			return res.GetCategory(), nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		cause := permanent(err)
		if t := c.cfg.retryTimeout; cause == nil && t > 0 && time.Since(since) > t {
			cause = ErrUnavailable
		}
		if cause != nil {
			return nil, &ServerError{Doing: doing, cause: cause, Detail: err}
		}
		pause := c.cfg.pause(failures, hint(err))
		c.cfg.logger.Warn("category can't be described, asking again", "pause", pause, "error", err)
		if !sleep(ctx, pause) {
			return nil, context.Cause(ctx)
		}
	}
}
