package columns

import (
	"context"
	"fmt"
	"iter"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar"
	"scribe/consumer/internal/payload"
	"scribe/internal/format/loss"
	"scribe/internal/format/record"
)

// Reader is a [consumer.Consumer] or a [consumer.Group].
type Reader interface {
	Payloads(ctx context.Context, refuse func(error) bool, deliver payload.Deliver)
}

// Batches yields the messages of a consumer or a group member as Arrow record batches: batches that producers wrote with their
// own columns, and the row messages of a payload with the columns of columnar.Schema. It is otherwise like the reader's Records.
// A batch is released at the next step of the iteration: Retain it to keep it.
func Batches(ctx context.Context, r Reader) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		r.Payloads(ctx, func(err error) bool { return yield(nil, err) }, func(p *payload.Payload, tell func(*loss.Report) bool, mayGoOn func() bool) bool {
			return deliverBatches(p, tell, func(b arrow.RecordBatch) bool { return yield(b, nil) && (mayGoOn == nil || mayGoOn()) })
		})
	}
}

// deliverBatches yields the batches of a payload. Consecutive row frames make one batch.
func deliverBatches(p *payload.Payload, tell func(*loss.Report) bool, yield func(arrow.RecordBatch) bool) bool {
	var (
		total = int(p.Messages)
		index = 0 // of the first message of the next batch
		begin = 0 // of its first frame
		n     = 0 // number of its first frame
	)
	broken := func(err error) bool {
		p.Err = damage(p, fmt.Sprintf("frame %d", n), int64(begin), err)
		return true
	}
	for begin < len(p.Frames) {
		r, err := nextRun(p.Frames[begin:])
		if err != nil {
			return broken(err)
		}
		left := int(p.Left.Load())
		switch {
		case index+r.rows <= total-left: // delivered before
		case r.report != nil:
			p.Left.Store(int64(total - index - 1))
			if !tell(r.report) {
				return false
			}
		default:
			batch, err := decodeBatch(p, p.Frames[begin:begin+r.end], index, r.arrow)
			if err == nil && int(batch.NumRows()) != r.rows {
				batch.Release()
				err = fmt.Errorf("a batch of %d rows in a frame of %d", batch.NumRows(), r.rows)
			}
			if err != nil {
				return broken(err)
			}
			if done := total - left - index; done > 0 {
				whole := batch
				batch = whole.NewSlice(int64(done), whole.NumRows())
				whole.Release()
			}
			p.Left.Store(int64(total - index - r.rows))
			goOn := yield(batch)
			batch.Release()
			if !goOn {
				return false
			}
		}
		index, begin, n = index+r.rows, begin+r.end, n+r.frames
	}
	return true
}

// frameRun is a sequence of frames that makes one batch: one Arrow frame, or row frames up to the next Arrow frame or report; or one
// report.
type frameRun struct {
	end, rows, frames int // bytes, messages and frames
	arrow             bool
	report            *loss.Report
}

// nextRun measures the run at the start of b.
func nextRun(b []byte) (frameRun, error) {
	var r frameRun
	for f, err := range record.Split(b) {
		if err != nil {
			return frameRun{}, err
		}
		report, err := payload.ParseReport(&f)
		if err != nil {
			return frameRun{}, err
		}
		special := report != nil || f.Encoding == record.EncodingArrow
		if special && r.frames > 0 {
			break
		}
		r.end, r.rows, r.frames = r.end+f.Len, r.rows+f.Count, r.frames+1
		if special {
			r.report, r.arrow = report, report == nil
			break
		}
	}
	return r, nil
}

// decodeBatch decodes the frames of one batch. index is that of its first message in the payload.
func decodeBatch(p *payload.Payload, frames []byte, index int, arrowFrame bool) (arrow.RecordBatch, error) {
	if !arrowFrame {
		return columnar.FromFrames(frames, columnar.Meta{Shard: p.Shard, LSN: p.LSN, Persisted: p.Time, Index: index})
	}
	h, err := record.Check(frames)
	if err != nil {
		return nil, err
	}
	p.Keep = true // the batch points into the payload, and the caller may retain it
	return columnar.DecodeIPC(frames[h.BodyOffset():h.Len])
}
