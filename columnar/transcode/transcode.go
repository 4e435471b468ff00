package transcode

import (
	"fmt"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar"
	"scribe/columnar/schema"
	"scribe/columnar/vector"
	"scribe/columnar/zone"
	"scribe/internal/format/record"
)

// Transcoder makes batches of payloads by one plan. It is immutable, and may be used by many goroutines at once.
type Transcoder struct {
	p       *plan
	make    func() frameReader
	workers sync.Pool // of *worker
}

// worker is what one call of Transcode needs. Workers learn what rows look like, which is why they are used again.
type worker struct {
	rows   *rows
	reader frameReader
}

// New compiles a plan. Errors are those of a spec that contradicts itself, or names what is not there.
func New(spec Spec) (*Transcoder, error) {
	p, err := newPlan(&spec)
	if err != nil {
		return nil, err
	}
	t := &Transcoder{p: p}
	if t.make, err = readerOf(p); err != nil {
		return nil, err
	}
	if err := p.compileFilters(); err != nil {
		return nil, err
	}
	return t, nil
}

// readerOf returns what makes the readers of the schema's format.
func readerOf(p *plan) (func() frameReader, error) {
	format := p.schema.Format
	switch {
	case p.schema.Version == 0:
		return func() frameReader { return &perMessage{messageReader: plain{}} }, nil
	case format == schema.Arrow:
		return func() frameReader { return &perMessage{messageReader: noBatch{}} }, nil
	case readers[format] == nil:
		return nil, fmt.Errorf("transcode: messages of the format %q can't be read", format)
	}
	return readers[format](p)
}

// Schema is that of the batches: the columns of the Spec, in their order. Declared columns may have nulls whatever the schema says, since a
// value that does not fit is null.
func (t *Transcoder) Schema() *arrow.Schema { return t.p.output }

// Transcode makes one batch of the rows of a payload, frames one after the other, for which the predicate is true. zones may be nil. The
// batch shares no memory with payload; the caller releases it. The figures are also those of a payload that fails.
//
// Errors are those of record for damaged frames, and columnar.ErrTooLarge for a payload that is over the limits of the Spec.
func (t *Transcoder) Transcode(payload []byte, zones *zone.Builder) (arrow.RecordBatch, Stats, error) {
	w, _ := t.workers.Get().(*worker)
	if w == nil {
		w = &worker{rows: newRows(t.p), reader: t.make()}
	}
	defer t.workers.Put(w)
	w.rows.reset()
	w.rows.all = zones != nil
	c := call{p: t.p, w: w, zones: zones}
	defer c.release()
	err := c.frames(payload)
	stats := w.rows.stats
	stats.Add(c.stats)
	stats.Bytes = int64(len(payload))
	if err != nil {
		return nil, stats, err
	}
	batch, err := c.assemble()
	if err != nil {
		return nil, stats, err
	}
	stats.Kept = batch.NumRows()
	return batch, stats, nil
}

// call is one call of Transcode.
type call struct {
	p     *plan
	w     *worker
	zones *zone.Builder
	stats Stats
	index uint32              // messages so far
	parts []arrow.RecordBatch // of the output, in their order
}

func (c *call) release() {
	for _, part := range c.parts {
		part.Release()
	}
}

// frames makes a part of each run of frames of one encoding.
func (c *call) frames(payload []byte) error {
	for f, err := range record.Split(payload) {
		if err != nil {
			return err
		}
		switch f.Encoding {
		case record.EncodingMessages:
			err = c.w.reader.frame(c.w.rows, f, c.index)
		case record.EncodingArrow:
			if err = c.flush(); err == nil {
				err = c.arrowFrame(f)
			}
		default:
			err = fmt.Errorf("transcode: a frame in the encoding %s", f.Encoding)
		}
		if err != nil {
			return err
		}
		c.index += uint32(f.Count)
	}
	return c.flush()
}

// flush makes a part of the rows that were collected.
func (c *call) flush() error {
	if c.w.rows.n == 0 {
		return c.w.rows.err()
	}
	batch, err := c.w.rows.finish()
	if err != nil {
		return err
	}
	if c.w.rows.all {
		return c.add(batch, c.p.whole)
	}
	return c.add(batch, c.p.rest)
}

// arrowFrame makes a part of a frame that is a batch.
func (c *call) arrowFrame(f record.Frame) error {
	if _, err := record.Check(f.Bytes); err != nil {
		return err
	}
	batch, err := c.arrowRows(f)
	if err != nil {
		return err
	}
	return c.add(batch, c.p.whole)
}

// arrowRows makes the inputs of a frame that is a batch. A frame that claims to be one and is not has rows that can't be read: it must not take
// the payload's other frames with it.
func (c *call) arrowRows(f record.Frame) (arrow.RecordBatch, error) {
	rec, err := columnar.DecodeIPC(f.Body())
	if err != nil {
		return c.badRows(f, err.Error())
	}
	defer rec.Release()
	if rec.NumRows() != int64(f.Count) {
		return c.badRows(f, fmt.Sprintf("the frame has a batch of %d rows and claims %d", rec.NumRows(), f.Count))
	}
	return readArrow(c.p, rec, &f.Header, c.index, &c.stats)
}

// badRows makes the inputs of a frame none of whose rows can be read.
func (c *call) badRows(f record.Frame, why string) (arrow.RecordBatch, error) {
	w, m := c.w.rows, record.Record{Time: f.BaseTime}
	for i := range f.Count {
		w.setMessage(&m, c.index+uint32(i))
		w.begin()
		w.badRow(-1, why)
		w.end()
		if err := w.err(); err != nil {
			return nil, err
		}
	}
	return w.finish()
}

// add takes a batch of inputs over: what a filter (nil: all) keeps of it becomes a part.
func (c *call) add(batch arrow.RecordBatch, filter *vector.Filter) error {
	defer batch.Release()
	if c.zones != nil {
		c.zones.AddRows(int(batch.NumRows()))
		for _, i := range c.p.zones {
			c.zones.AddArray(c.p.inputs[i].name, batch.Column(i))
		}
	}
	kept := batch
	if filter != nil {
		var st vector.Stats
		selection, err := filter.Select(batch, &st)
		if err != nil {
			return fmt.Errorf("transcode: the predicate: %w", err)
		}
		c.stats.Errors += st.Errors
		kept = selection.Take(batch)
		defer kept.Release()
	}
	columns := make([]arrow.Array, len(c.p.from))
	for i, from := range c.p.from {
		columns[i] = kept.Column(from)
	}
	c.parts = append(c.parts, array.NewRecordBatch(c.p.output, columns, kept.NumRows()))
	return nil
}

// assemble makes one batch of the parts.
func (c *call) assemble() (arrow.RecordBatch, error) {
	switch len(c.parts) {
	case 0:
		return c.nothing(), nil
	case 1:
		c.parts[0].Retain()
		return c.parts[0], nil
	}
	rows := int64(0)
	for _, part := range c.parts {
		rows += part.NumRows()
	}
	if rows > int64(c.p.limits.Rows) {
		return nil, tooLarge("a payload of more than %d rows", c.p.limits.Rows)
	}
	columns := make([]arrow.Array, 0, len(c.p.from))
	defer func() {
		for _, a := range columns {
			a.Release()
		}
	}()
	for i := range c.p.from {
		pieces := make([]arrow.Array, len(c.parts))
		for j, part := range c.parts {
			pieces[j] = part.Column(i)
		}
		whole, err := array.Concatenate(pieces, memory.DefaultAllocator)
		if err != nil {
			return nil, tooLarge("column %q of one payload: %v", c.p.output.Field(i).Name, err)
		}
		columns = append(columns, whole)
	}
	return array.NewRecordBatch(c.p.output, columns, rows), nil
}

// nothing is the batch without rows.
func (c *call) nothing() arrow.RecordBatch {
	columns := make([]arrow.Array, len(c.p.from))
	for i, from := range c.p.from {
		columns[i] = newColumn(&c.p.inputs[from].typ, true).finish(c.p.output.Field(i).Type)
	}
	batch := array.NewRecordBatch(c.p.output, columns, 0)
	for _, a := range columns {
		a.Release()
	}
	return batch
}

// plain makes a row of every message, without a look into it: for categories without a schema.
type plain struct{}

func (plain) message(w *rows, _ []byte) {
	w.begin()
	w.end()
}

// noBatch makes an error row of every message: for categories whose messages are Arrow batches.
type noBatch struct{}

func (noBatch) message(w *rows, _ []byte) {
	w.begin()
	w.badRow(0, "a message, where the category has Arrow batches")
	w.end()
}
