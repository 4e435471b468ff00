package columns

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow/util"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"scribe/columnar"
	"scribe/columnar/finish"
	"scribe/columnar/vector"
	"scribe/consumer"
	"scribe/consumer/internal/payload"
	"scribe/internal/format/loss"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// payloadEvaluation evaluates payloads for a query or a filter.
type payloadEvaluation struct {
	payload.Evaluation
	finisher *finish.Finisher
	memory   int64 // the limit, for errors
	stats    payloadCounts
}

// newEvaluation returns the evaluation of a query, which produces rows.
func newEvaluation(f *finish.Finisher, memory int64) *payloadEvaluation {
	e := &payloadEvaluation{finisher: f, memory: memory}
	e.FromView, e.FromFrames = e.fromView, e.fromFrames
	return e
}

// payloadCounts counts the results of evaluations. Several fetches add to it.
type payloadCounts struct {
	sync.Mutex
	finish.Stats
	views, reused, exact, raw, received uint64
}

// codecS2 is the codec of views that are one block of package s2 (Payload.codec).
const codecS2 = 3

// payloadResult is a query's result for one payload. Its receiver releases the rows.
type payloadResult struct {
	rows *finish.Rows
	lost []*loss.Report // reports among the messages
}

func (r *payloadResult) attach(p *payload.Payload) {
	p.Result, p.ResultBytes = r, util.TotalRecordSize(r.rows.Batch)+int64(4*cap(r.rows.Index))
}

// metaOf returns the stream's metadata of a payload.
func metaOf(p *payload.Payload, skip uint32) finish.Meta {
	return finish.Meta{Shard: p.Shard, LSN: p.LSN, Persisted: p.Time, Skip: skip}
}

// damage returns the error for damaged payload data.
func damage(p *payload.Payload, what string, offset int64, cause error) error {
	return &consumer.DamageError{Category: p.Category, Shard: p.Source, LSN: uint64(p.SourceLSN), What: what, Offset: offset, Cause: cause}
}

// maxClaimed bounds the counts that a server may add with one view, which is more than a payload has of anything: sums then do not
// overflow, whatever it says.
const maxClaimed = 1 << 40

// errNoView means that a server's answer is not the requested view.
var errNoView = errors.New("consumer: the answer is not a view")

// fromView makes rows from an answer that is a view.
func (e *payloadEvaluation) fromView(p *payload.Payload, answer *scribev1.Payload, skip uint32, d *zstd.Decoder) error {
	body, err := inflate(answer, d)
	if err != nil {
		return err
	}
	batch, err := columnar.DecodeIPC(body)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoView, err)
	}
	defer batch.Release()
	v := answer.GetView()
	claimed := func(n uint64) int64 { return int64(min(n, maxClaimed)) }
	st := finish.Stats{Rows: claimed(v.GetRows()), Rejected: claimed(v.GetRejected()), BadRows: claimed(v.GetBad()), Errors: claimed(v.GetErrors())}
	var lost []*loss.Report
	for _, l := range v.GetLosses() {
		if l.GetIndex() < skip {
			continue // reported before
		}
		reports, _, err := findReports(l.GetFrame(), 0)
		if err != nil {
			return fmt.Errorf("%w: a report of a loss: %w", errNoView, err)
		}
		lost = append(lost, reports...)
	}
	rows, err := e.finisher.View(batch, v.GetExact(), metaOf(p, skip), &st)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoView, err)
	}
	(&payloadResult{rows: rows, lost: lost}).attach(p)
	e.stats.Lock()
	defer e.stats.Unlock()
	e.stats.Add(st)
	e.stats.received += min(v.GetKept(), maxClaimed)
	e.stats.views++
	if v.GetReused() {
		e.stats.reused++
	}
	if v.GetExact() {
		e.stats.exact++
	}
	return nil
}

// inflate returns the bytes of a view. A batch made from them may keep them.
func inflate(p *scribev1.Payload, d *zstd.Decoder) ([]byte, error) {
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
		body, err = d.DecodeAll(data, make([]byte, 0, n))
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

// fromFrames makes the rows of a payload and drops its frames: the rows share no memory with them.
func (e *payloadEvaluation) fromFrames(p *payload.Payload, skip uint32) error {
	rows, lost, err := e.evaluate(p, skip)
	if err == nil {
		(&payloadResult{rows: rows, lost: lost}).attach(p)
		p.Frames = nil
	}
	return err
}

// match selects the messages that pass a filter.
func (e *payloadEvaluation) match(p *payload.Payload, skip uint32) error {
	rows, _, err := e.evaluate(p, skip)
	if err != nil {
		return err
	}
	rows.Batch.Release()
	p.Filtered, p.Matches = true, slices.Compact(slices.Clone(rows.Index)) // a message may have several rows
	p.ResultBytes = int64(4 * cap(p.Matches))
	return nil
}

// evaluate makes the rows of a stored payload whose frames were checked.
func (e *payloadEvaluation) evaluate(p *payload.Payload, skip uint32) (*finish.Rows, []*loss.Report, error) {
	m := metaOf(p, skip)
	lost, drop, err := findReports(p.Frames, skip)
	if err != nil {
		return nil, nil, damage(p, "frames", -1, err)
	}
	m.Drop = drop
	var st finish.Stats
	rows, err := e.finisher.Payload(p.Frames, m, &st)
	switch {
	case errors.Is(err, record.ErrCorrupt), errors.Is(err, record.ErrTruncated):
		return nil, nil, damage(p, "frames", -1, err)
	case err != nil:
		return nil, nil, e.memoryLimit(fmt.Errorf("shard %v, LSN %d: %w", p.Source, p.SourceLSN, err))
	}
	e.stats.Lock()
	defer e.stats.Unlock()
	e.stats.Add(st)
	e.stats.received += uint64(len(rows.Index))
	e.stats.raw++
	return rows, lost, nil
}

// memoryLimit returns an evaluation's error as callers see it: a [LimitError] if it exceeded the memory limit.
func (e *payloadEvaluation) memoryLimit(err error) error {
	limit := &LimitError{What: "memory", Limit: fmt.Sprint(e.memory), Cause: err}
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

// findReports returns the loss reports in frames, except those in the first skip messages, and the indexes of all report
// messages.
func findReports(frames []byte, skip uint32) (lost []*loss.Report, index []uint32, err error) {
	messages := uint32(0)
	for f, err := range record.Split(frames) {
		if err != nil {
			return nil, nil, err
		}
		report, err := payload.ParseReport(&f)
		if err != nil {
			return nil, nil, err
		}
		if report != nil {
			if index = append(index, messages); messages >= skip {
				lost = append(lost, report)
			}
		}
		messages += uint32(f.Count) //nolint:gosec // of a frame
	}
	return lost, index, nil
}
