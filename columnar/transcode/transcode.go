package transcode

import (
	"fmt"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar"
	"scribe/columnar/schema"
	"scribe/columnar/transcode/arrowrows"
	"scribe/columnar/transcode/avrorows"
	"scribe/columnar/transcode/csvrows"
	"scribe/columnar/transcode/jsonrows"
	"scribe/columnar/transcode/protorows"
	"scribe/columnar/transcode/rows"
	"scribe/columnar/vector"
	"scribe/columnar/zone"
	"scribe/internal/format/record"
)

// ColumnIndex is a hidden column: the message's index in the payload, as uint32. Batches of a read proxy have it in place of the
// three columns that only a reader with the pointer knows. All rows of a message have the same index.
const ColumnIndex = rows.ColumnIndex

// Default limits.
const (
	DefaultRowBytes = rows.DefaultRowBytes
	DefaultBytes    = rows.DefaultBytes
)

type (
	// Spec describes the batch to make.
	Spec = rows.Spec
	// Limits bound the cost of a payload.
	Limits = rows.Limits
	// Stats counts the rows of a payload by outcome.
	Stats = rows.Stats
)

// Transcoder turns payloads into batches by one plan. It is immutable and safe for concurrent use.
type Transcoder struct {
	p       *rows.Plan
	make    func() rows.FrameReader
	workers sync.Pool // of *worker
}

// rowWorker is the state of one call of Transcode. Workers are reused because they learn the shape of rows.
type rowWorker struct {
	rows   *rows.Writer
	reader rows.FrameReader
}

// New compiles a plan. It returns an error if the spec is inconsistent or names an unknown column.
func New(spec Spec) (*Transcoder, error) {
	p, err := rows.NewPlan(&spec, jsonrows.DefaultOf)
	if err != nil {
		return nil, err
	}
	t := &Transcoder{p: p}
	if t.make, err = readerOf(p); err != nil {
		return nil, err
	}
	if err := p.CompileFilters(); err != nil {
		return nil, err
	}
	return t, nil
}

// readerOf returns the constructor of readers for the schema's format.
func readerOf(p *rows.Plan) (func() rows.FrameReader, error) {
	if p.Schema.Version == 0 {
		return func() rows.FrameReader { return &rows.PerMessage{MessageReader: plainReader{}} }, nil
	}
	switch p.Schema.Format {
	case schema.JSON, schema.NDJSON:
		return jsonrows.NewReader(p, p.Schema.Format == schema.NDJSON), nil
	case schema.CSV:
		return csvrows.NewReader(p)
	case schema.Avro:
		return avrorows.NewReader(p)
	case schema.Protobuf:
		return protorows.NewReader(p)
	case schema.Arrow:
		return func() rows.FrameReader { return &rows.PerMessage{MessageReader: noBatch{}} }, nil
	default:
		return nil, fmt.Errorf("transcode: messages of the format %q can't be read", p.Schema.Format)
	}
}

// Schema returns the schema of the batches: the columns of the Spec, in order. Declared columns may contain nulls whatever the
// category's schema says, since a value that does not fit is null.
func (t *Transcoder) Schema() *arrow.Schema { return t.p.OutputSchema }

// Transcode makes one batch of the payload's rows for which the predicate is true. payload is a sequence of frames. zones may be
// nil. The batch shares no memory with payload; the caller releases it. Stats are also valid for a payload that fails.
//
// Errors are those of record for damaged frames, and columnar.ErrTooLarge for a payload over the limits of the Spec.
func (t *Transcoder) Transcode(payload []byte, zones *zone.Builder) (arrow.RecordBatch, Stats, error) {
	w, _ := t.workers.Get().(*rowWorker)
	if w == nil {
		w = &rowWorker{rows: rows.NewWriter(t.p), reader: t.make()}
	}
	defer t.workers.Put(w)
	w.rows.Reset()
	w.rows.KeepAll = zones != nil
	c := transcodeCall{p: t.p, w: w, zones: zones}
	defer c.releaseParts()
	err := c.readFrames(payload)
	stats := w.rows.Stats
	stats.Add(c.stats)
	stats.Bytes = int64(len(payload))
	if err != nil {
		return nil, stats, err
	}
	batch, err := c.assembleBatch()
	if err != nil {
		return nil, stats, err
	}
	stats.Kept = batch.NumRows()
	return batch, stats, nil
}

// transcodeCall is the state of one call of Transcode.
type transcodeCall struct {
	p     *rows.Plan
	w     *rowWorker
	zones *zone.Builder
	stats Stats
	index uint32              // messages read so far
	parts []arrow.RecordBatch // of the output, in order
}

func (c *transcodeCall) releaseParts() {
	for _, part := range c.parts {
		part.Release()
	}
}

// readFrames makes a part of each run of frames with the same encoding.
func (c *transcodeCall) readFrames(payload []byte) error {
	for f, err := range record.Split(payload) {
		if err != nil {
			return err
		}
		c.w.rows.SetRate(f.SampleRate)
		switch f.Encoding {
		case record.EncodingMessages:
			err = c.w.reader.ReadFrame(c.w.rows, f, c.index)
		case record.EncodingArrow:
			if err = c.flushRows(); err == nil {
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
	return c.flushRows()
}

// flushRows makes a part of the collected rows.
func (c *transcodeCall) flushRows() error {
	if c.w.rows.Len == 0 {
		return c.w.rows.Err()
	}
	batch, err := c.w.rows.TakeBatch()
	if err != nil {
		return err
	}
	if c.w.rows.KeepAll {
		return c.addPart(batch, c.p.WholeFilter)
	}
	return c.addPart(batch, c.p.ResidualFilter)
}

// arrowFrame makes a part of a frame that is a batch.
func (c *transcodeCall) arrowFrame(f record.Frame) error {
	if _, err := record.Check(f.Bytes); err != nil {
		return err
	}
	batch, err := c.arrowRows(f)
	if err != nil {
		return err
	}
	return c.addPart(batch, c.p.WholeFilter)
}

// arrowRows makes the inputs of a frame that is a batch. If the frame is not a valid batch, its rows are unreadable rows: it must
// not fail the payload's other frames.
func (c *transcodeCall) arrowRows(f record.Frame) (arrow.RecordBatch, error) {
	rec, err := columnar.DecodeIPC(f.Body())
	if err != nil {
		return c.badRows(f, err.Error())
	}
	defer rec.Release()
	if rec.NumRows() != int64(f.Count) {
		return c.badRows(f, fmt.Sprintf("the frame has a batch of %d rows and claims %d", rec.NumRows(), f.Count))
	}
	return arrowrows.ReadBatch(c.p, rec, &f.Header, c.index, &c.stats)
}

// badRows makes the inputs of a frame in which no row can be read.
func (c *transcodeCall) badRows(f record.Frame, why string) (arrow.RecordBatch, error) {
	w, m := c.w.rows, record.Record{Time: f.BaseTime}
	for i := range f.Count {
		w.SetMessage(&m, c.index+uint32(i))
		w.BeginRow()
		w.FailRow(-1, why)
		w.EndRow()
		if err := w.Err(); err != nil {
			return nil, err
		}
	}
	return w.TakeBatch()
}

// addPart takes ownership of a batch of inputs and adds the rows that the filter keeps as a part. A nil filter keeps all rows.
func (c *transcodeCall) addPart(batch arrow.RecordBatch, filter *vector.Filter) error {
	defer batch.Release()
	if c.zones != nil {
		c.zones.AddRows(int(batch.NumRows()))
		for _, i := range c.p.ZoneInputs {
			c.zones.AddArray(c.p.Inputs[i].Name, batch.Column(i))
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
	c.parts = append(c.parts, c.selectOutput(kept))
	return nil
}

// selectOutput returns the output columns of a batch of inputs.
func (c *transcodeCall) selectOutput(batch arrow.RecordBatch) arrow.RecordBatch {
	columns := make([]arrow.Array, len(c.p.OutputInputs))
	for i, from := range c.p.OutputInputs {
		columns[i] = batch.Column(from)
	}
	return array.NewRecordBatch(c.p.OutputSchema, columns, batch.NumRows())
}

// assembleBatch combines the parts into one batch.
func (c *transcodeCall) assembleBatch() (arrow.RecordBatch, error) {
	switch len(c.parts) {
	case 0:
		empty, err := c.w.rows.TakeBatch()
		if err != nil {
			return nil, err
		}
		defer empty.Release()
		return c.selectOutput(empty), nil
	case 1:
		c.parts[0].Retain()
		return c.parts[0], nil
	}
	count := int64(0)
	for _, part := range c.parts {
		count += part.NumRows()
	}
	if count > int64(c.p.Limits.Rows) {
		return nil, rows.TooLarge("a payload of more than %d rows", c.p.Limits.Rows)
	}
	return vector.MakeBatch(c.p.OutputSchema, count, func(i int) (arrow.Array, error) {
		pieces := make([]arrow.Array, len(c.parts))
		for j, part := range c.parts {
			pieces[j] = part.Column(i)
		}
		whole, err := array.Concatenate(pieces, memory.DefaultAllocator)
		if err != nil {
			return nil, rows.TooLarge("column %q of one payload: %v", c.p.OutputSchema.Field(i).Name, err)
		}
		return whole, nil
	})
}

// plainReader makes one row per message without reading its content, for categories without a schema.
type plainReader struct{}

func (plainReader) ReadMessage(w *rows.Writer, _ []byte) {
	w.BeginRow()
	w.EndRow()
}

// noBatch makes one error row per message, for categories whose messages are Arrow batches.
type noBatch struct{}

func (noBatch) ReadMessage(w *rows.Writer, _ []byte) {
	w.BeginRow()
	w.FailRow(0, "a message, where the category has Arrow batches")
	w.EndRow()
}
