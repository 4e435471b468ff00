package sqlserver

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/export"
)

// Path is the HTTP path for queries.
const Path = "/v1/query"

// Trailers of a complete answer.
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

// firstRowsTimeout is how long an answer waits for its first rows before it begins without them. Before the answer begins, an
// error can still have a status of its own.
const firstRowsTimeout = 2 * time.Second

// ServeHTTP answers a query; see docs/columnar/serving.md.
func (g *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asked, err := parseRequest(w, r, g.now())
	if err != nil {
		g.metrics.queries.WithLabelValues(apiHTTP, errorOf(err).Kind.String()).Inc()
		writeError(w, err)
		return
	}
	q := &runningQuery{api: apiHTTP, client: r.RemoteAddr, req: &asked.Request}
	if err := g.beginQuery(r.Context(), q); err != nil {
		writeError(w, err)
		return
	}
	chunks := q.startPump()
	a := &httpAnswer{q: q, asked: asked, w: w, chunks: chunks}
	err = q.recoverPanic(a.writeAnswer)
	q.cancel(nil)
	for c := range chunks { // a chunk that the pump still holds
		if c.batch != nil {
			c.batch.Release()
		}
	}
	if a.out != nil {
		a.out.detach()
		q.bytes = a.out.bytes
		if a.out.stalled {
			g.metrics.stalled.Inc()
		}
	}
	q.endQuery(err)
	switch {
	case err == nil:
	case a.begun:
		panic(http.ErrAbortHandler) // cuts the connection, or resets the stream of HTTP/2: see the package comment
	default:
		writeError(w, err)
	}
}

// httpAnswer is a response while it is written.
type httpAnswer struct {
	q      *runningQuery
	asked  *httpRequest
	w      http.ResponseWriter
	chunks <-chan answerChunk
	begun  bool // the status was written
	out    *timedWriter
	packed answerEncoder
	rows   export.Writer
	// place is the checkpoint after the rows that were written, told the last one that the client was told, at toldAt.
	place, told string
	toldAt      time.Time
}

// writeAnswer writes the whole answer. An error means that the answer is incomplete.
func (a *httpAnswer) writeAnswer() error {
	first := time.NewTimer(firstRowsTimeout)
	defer first.Stop()
	var c answerChunk
	got := true
	select {
	case c, got = <-a.chunks:
	case <-first.C:
	}
	if err := a.failureOf(c, got); err != nil {
		return err
	}
	if err := a.writeHeader(c.batch); err != nil {
		if c.batch != nil {
			c.batch.Release()
		}
		return err
	}
	for c.err == nil && got {
		if err := a.writeSlice(c.batch, c.checkpoint); err != nil {
			return err
		}
		c, got = a.nextChunk()
	}
	a.place = cmp.Or(c.checkpoint, a.place) // "" unless it was asked for
	if err := a.failureOf(c, got); err != nil {
		a.writeLastError(err)
		return err
	}
	return a.writeTrailers()
}

// failureOf returns why the rows ended early, nil if there are more or if the answer is complete.
func (a *httpAnswer) failureOf(c answerChunk, got bool) error {
	err := c.err
	if !got {
		err = a.q.endReason() // the pump closes the channel without an error when the query is ended
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// nextChunk waits for rows; a chunk without rows is a heartbeat.
func (a *httpAnswer) nextChunk() (answerChunk, bool) {
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
		return answerChunk{checkpoint: a.q.source.PausedAt()}, true
	}
}

// writeHeader writes the status, and creates the writers.
func (a *httpAnswer) writeHeader(first arrow.RecordBatch) error {
	a.out = newTimedWriter(a.q.ctx, a.w, a.q.g.cfg.StallTimeout)
	a.packed = newEncoder(a.asked.encoding, a.out)
	var err error
	if a.rows, err = export.New(a.asked.format, a.packed, a.q.source.Schema()); err != nil {
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
	return a.flushWriters() // the client learns that the query is valid, and CSV's column names
}

// writeSlice writes a slice, or a heartbeat if there is none, and the checkpoint after it if it is due.
func (a *httpAnswer) writeSlice(batch arrow.RecordBatch, checkpoint string) error {
	a.place = cmp.Or(checkpoint, a.place)
	due := a.place != a.told && a.q.g.isCheckpointDue(a.place, a.toldAt)
	if batch != nil {
		defer batch.Release()
		if err := a.rows.Write(batch); err != nil {
			return a.writeFailed(err)
		}
	}
	switch {
	case due:
		return a.tellPlace()
	case batch == nil:
		return a.writeHeartbeat()
	}
	return a.flushWriters()
}

// placeLine is a line of JSON lines that is no row: its name is not one that a column has by itself.
type placeLine struct {
	Checkpoint string `json:"_checkpoint"`
}

// tellPlace writes the checkpoint after the rows that were written.
func (a *httpAnswer) tellPlace() error {
	line, _ := json.Marshal(placeLine{a.place}) // a text: can't fail
	if err := a.runSteps(a.rows.Flush, func() error { return a.writeLine(append(line, '\n')) }); err != nil {
		return err
	}
	a.told, a.toldAt = a.place, a.q.g.now()
	return a.flushWriters()
}

// writeHeartbeat writes a heartbeat in formats that have one: an empty Arrow batch, an empty line. CSV has none.
func (a *httpAnswer) writeHeartbeat() error {
	switch a.asked.format {
	case export.Arrow:
		empty := array.NewRecordBuilder(memory.DefaultAllocator, a.q.source.Schema())
		defer empty.Release()
		return a.writeSlice(empty.NewRecordBatch(), "")
	case export.JSONLines:
		if err := a.writeLine([]byte("\n")); err != nil {
			return err
		}
	default:
	}
	return a.flushWriters()
}

// writeLine writes a line that is not a row. The rows before it were flushed.
func (a *httpAnswer) writeLine(text []byte) error {
	if _, err := a.packed.Write(text); err != nil {
		return a.writeFailed(err)
	}
	return nil
}

func (a *httpAnswer) flushWriters() error {
	return a.runSteps(a.rows.Flush, a.packed.Flush, a.out.flushClient)
}

// runSteps runs steps of the writers, from the rows to the client, up to the first that fails.
func (a *httpAnswer) runSteps(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return a.writeFailed(err)
		}
	}
	return nil
}

// writeFailed returns the error for a failed write: the client has gone, or accepts no data.
func (a *httpAnswer) writeFailed(err error) error {
	if a.out.noteStall(err) {
		return errorf(KindCancelled, "the client took nothing for %v", a.q.g.cfg.StallTimeout)
	}
	return errorf(KindCancelled, "write the answer: %v", err)
}

// writeLastError writes the error as the last line of JSON lines. A failure to write it is ignored.
func (a *httpAnswer) writeLastError(err error) {
	if a.asked.format != export.JSONLines {
		return
	}
	if a.writeLine(newErrorBody(err).encode("")) == nil {
		_ = a.flushWriters()
	}
}

// writeTrailers writes the end of the answer and the trailers.
func (a *httpAnswer) writeTrailers() error {
	if a.place != a.told {
		if err := a.tellPlace(); err != nil {
			return err
		}
	}
	if err := a.runSteps(a.rows.Close, a.packed.Close, a.out.flushClient); err != nil {
		return err
	}
	a.out.clearDeadline()
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
	e := errorOf(err)
	text := errorText{Code: e.Kind.String(), Message: e.Message, Line: e.Line, Column: e.Column, Caret: e.Caret, Hint: e.Hint}
	if e.Line > 0 {
		text.Position = &e.Position
	}
	return errorBody{Error: text}
}

// encode returns the body with a final newline, with as few escapes as JSON allows: queries contain quotes and comparisons.
func (b errorBody) encode(indent string) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	_ = enc.Encode(b) // texts and numbers into memory: can't fail
	return out.Bytes()
}

// writeError answers with an error before anything else was written.
func writeError(w http.ResponseWriter, err error) {
	e := errorOf(err)
	status := cmp.Or(e.status, kinds[e.Kind].status)
	h := w.Header()
	h.Del("Content-Encoding")
	h.Del("Trailer")
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		after := cmp.Or(e.RetryAfter, time.Second)
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	}
	w.WriteHeader(status)
	_, _ = w.Write(newErrorBody(err).encode("  ")) // fails only if the client went away
}
