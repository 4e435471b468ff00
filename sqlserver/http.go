package sqlserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/export"
)

// Path is where queries are answered over HTTP.
const Path = "/v1/query"

// Trailers of an answer that is whole.
const (
	trailerRows     = "Scribe-Rows"
	trailerRead     = "Scribe-Rows-Read"
	trailerFetched  = "Scribe-Bytes-Fetched"
	trailerPruned   = "Scribe-Pointers-Pruned"
	trailerRejected = "Scribe-Rows-Rejected"
	trailerErrors   = "Scribe-Errors"
	trailerGaps     = "Scribe-Gaps"
	trailerSeconds  = "Scribe-Seconds"
)

// patience is how long an answer waits for its first rows before it begins without them: as long as it has not begun, an error has a
// status of its own.
const patience = 2 * time.Second

// ServeHTTP answers a query; see docs/columnar/serving.md.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asked, err := parseRequest(w, r, g.now())
	if err != nil {
		g.metrics.queries.WithLabelValues(apiHTTP, kindOf(err).String()).Inc()
		writeError(w, err)
		return
	}
	q := &query{api: apiHTTP, client: r.RemoteAddr, req: &asked.Request}
	if err := g.begin(r.Context(), q); err != nil {
		writeError(w, err)
		return
	}
	chunks := q.pump()
	a := &answer{q: q, asked: asked, w: w, chunks: chunks}
	err = q.rescued(a.run)
	q.cancel(nil)
	for c := range chunks { // what the pump still has in its hand
		if c.batch != nil {
			c.batch.Release()
		}
	}
	if a.out != nil {
		q.bytes = a.out.bytes
		if a.out.stalled {
			g.metrics.stalled.Inc()
		}
	}
	q.end(err)
	switch {
	case err == nil:
	case a.begun:
		panic(http.ErrAbortHandler) // cuts the connection, or resets the stream of HTTP/2: see the package comment
	default:
		writeError(w, err)
	}
}

// answer is a response that is being written.
type answer struct {
	q      *query
	asked  *asked
	w      http.ResponseWriter
	chunks <-chan chunk
	begun  bool // the status has been written
	out    *patient
	packed packer // nil without compression
	rows   export.Writer
}

// run writes the whole answer. Its error says why it is not whole.
func (a *answer) run() error {
	first := time.NewTimer(patience)
	defer first.Stop()
	var c chunk
	got := true
	select {
	case c, got = <-a.chunks:
	case <-first.C:
	}
	if err := a.failed(c, got); err != nil {
		return err
	}
	if err := a.begin(c.batch); err != nil {
		if c.batch != nil {
			c.batch.Release()
		}
		return err
	}
	for c.err == nil && got {
		if err := a.write(c.batch); err != nil {
			return err
		}
		c, got = a.next()
	}
	if err := a.failed(c, got); err != nil {
		a.lastWords(err)
		return err
	}
	return a.finish()
}

// failed is why there are no more rows, nil if there are or if the answer has come to its end.
func (a *answer) failed(c chunk, got bool) error {
	err := c.err
	if !got {
		err = a.q.ended() // the pump leaves without a word when the query is ended
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// next waits for rows; a chunk without any is a heartbeat.
func (a *answer) next() (chunk, bool) {
	var beat <-chan time.Time
	if a.q.req.Follow {
		t := time.NewTimer(a.q.g.cfg.Heartbeat)
		defer t.Stop()
		beat = t.C
	}
	select {
	case c, got := <-a.chunks:
		return c, got
	case <-beat:
		return chunk{}, true
	}
}

// begin writes the status, and makes the writers.
func (a *answer) begin(first arrow.RecordBatch) error {
	a.out = newPatient(a.w, a.q.g.cfg.StallTimeout)
	var to io.Writer = a.out
	if a.asked.encoding != "" {
		a.packed = newPacker(a.asked.encoding, a.out)
		to = a.packed
	}
	var err error
	if a.rows, err = export.New(a.asked.format, to, a.q.source.Schema()); err != nil {
		return errorf(KindInvalid, "%v", err)
	}
	h := a.w.Header()
	h.Set("Content-Type", a.asked.format.ContentType())
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Vary", "Accept, Accept-Encoding")
	if a.asked.encoding != "" {
		h.Set("Content-Encoding", a.asked.encoding)
	}
	for _, name := range []string{
		trailerRows, trailerRead, trailerFetched, trailerPruned, trailerRejected, trailerErrors, trailerGaps, trailerSeconds,
	} {
		h.Add("Trailer", name)
	}
	a.begun = true
	a.w.WriteHeader(http.StatusOK)
	if first != nil {
		return nil
	}
	return a.flush() // the client learns that the query is good, and of CSV the names
}

// write writes a slice, or without one a heartbeat.
func (a *answer) write(batch arrow.RecordBatch) error {
	if batch == nil {
		return a.beat()
	}
	defer batch.Release()
	if err := a.rows.Write(batch); err != nil {
		return a.broken(err)
	}
	return a.flush()
}

// beat says that the query lives, where a format can say nothing: an empty batch, an empty line. CSV can't.
func (a *answer) beat() error {
	switch a.asked.format {
	case export.Arrow:
		empty := array.NewRecordBatch(a.q.source.Schema(), emptyColumns(a.q.source.Schema()), 0)
		defer empty.Release()
		if err := a.rows.Write(empty); err != nil {
			return a.broken(err)
		}
	case export.JSONLines:
		if err := a.line([]byte("\n")); err != nil {
			return err
		}
	default:
	}
	return a.flush()
}

// line writes what is not a row. The rows before it were flushed.
func (a *answer) line(text []byte) error {
	var to io.Writer = a.out
	if a.packed != nil {
		to = a.packed
	}
	if _, err := to.Write(text); err != nil {
		return a.broken(err)
	}
	return nil
}

func (a *answer) flush() error {
	err := a.rows.Flush()
	if err == nil && a.packed != nil {
		err = a.packed.Flush()
	}
	if err == nil {
		err = a.out.flush()
	}
	if err != nil {
		return a.broken(err)
	}
	return nil
}

// broken is an error of writing: the client has gone, or reads nothing.
func (a *answer) broken(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		a.out.stalled = true
		return errorf(KindCancelled, "the client took nothing for %v", a.q.g.cfg.StallTimeout)
	}
	return errorf(KindCancelled, "write the answer: %v", err)
}

// lastWords tells JSON lines why they end. Nothing can be done when that fails.
func (a *answer) lastWords(err error) {
	if a.asked.format != export.JSONLines {
		return
	}
	if a.line(newErrorBody(err).encode("")) == nil {
		_ = a.flush()
	}
}

// finish writes the end, and the trailers.
func (a *answer) finish() error {
	err := a.rows.Close()
	if err == nil && a.packed != nil {
		err = a.packed.Close()
	}
	if err == nil {
		err = a.out.flush()
	}
	if err != nil {
		return a.broken(err)
	}
	a.out.done()
	s := a.q.source.Stats()
	h := a.w.Header()
	for name, v := range map[string]uint64{
		trailerRows: uint64(a.q.rows), trailerRead: s.RowsRead, trailerFetched: s.FetchedBytes, trailerPruned: s.Skipped, //nolint:gosec // a count
		trailerRejected: s.RowsRejected, trailerErrors: s.Errors, trailerGaps: s.Gaps,
	} {
		h.Set(name, strconv.FormatUint(v, 10))
	}
	h.Set(trailerSeconds, strconv.FormatFloat(a.q.g.now().Sub(a.q.began).Seconds(), 'f', 3, 64))
	return nil
}

func emptyColumns(s *arrow.Schema) []arrow.Array {
	columns := make([]arrow.Array, s.NumFields())
	for i, f := range s.Fields() {
		columns[i] = array.MakeArrayOfNull(memory.DefaultAllocator, f.Type, 0)
	}
	return columns
}

// errorBody is an error as JSON.
type errorBody struct {
	Error errorText `json:"error"`
}

type errorText struct {
	Code     string `json:"code"`
	Message  string `json:"message"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Position *int   `json:"position,omitempty"`
	Caret    string `json:"caret,omitempty"`
	Hint     string `json:"hint,omitempty"`
}

func newErrorBody(err error) errorBody {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		e = &Error{Message: err.Error()}
	}
	text := errorText{Code: e.Kind.String(), Message: e.Message, Line: e.Line, Column: e.Column, Caret: e.Caret, Hint: e.Hint}
	if e.Line > 0 {
		text.Position = &e.Position
	}
	return errorBody{Error: text}
}

// encode returns the body with a newline behind it, and with as few escapes as JSON allows: queries have quotes and comparisons.
func (b errorBody) encode(indent string) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	_ = enc.Encode(b) // into memory, of texts and numbers
	return out.Bytes()
}

func kindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return KindInternal
}

// statusOf is the status that goes with a kind.
func statusOf(k Kind) int {
	switch k {
	case KindInvalid:
		return http.StatusBadRequest
	case KindUnknown:
		return http.StatusNotFound
	case KindTooLarge:
		return http.StatusRequestEntityTooLarge
	case KindLimit:
		return http.StatusUnprocessableEntity
	case KindBusy:
		return http.StatusTooManyRequests
	case KindUnavailable, KindCancelled: // nobody reads what a client is told that went away
		return http.StatusServiceUnavailable
	case KindTimeout:
		return http.StatusGatewayTimeout
	default:
		return http.StatusInternalServerError
	}
}

// writeError answers with an error before anything else was written. One that has a status of its own is a *refusal.
func writeError(w http.ResponseWriter, err error) {
	status := statusOf(kindOf(err))
	if r, ok := errors.AsType[*refusal](err); ok {
		status = r.status
	}
	h := w.Header()
	h.Del("Content-Encoding")
	h.Del("Trailer")
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		after := time.Second
		if e, ok := errors.AsType[*Error](err); ok && e.RetryAfter > 0 {
			after = e.RetryAfter
		}
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	}
	w.WriteHeader(status)
	_, _ = w.Write(newErrorBody(err).encode("  ")) // the client went away
}
