package sqlserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/consumer/jsonline"
	"scribe/internal/cell/access"
	"scribe/internal/transport/rpc"
)

// TailPattern is the HTTP path for tails: the messages of a category, as they come.
const TailPattern = "/v1/tail/{category}"

const (
	// tailPrefetch bounds what a tail without a condition reads ahead of its client. A larger payload is held alone.
	tailPrefetch = 8 << 20
	// tailBuffer is how many bytes of lines are collected before they are written, when there are more at once.
	tailBuffer = 64 << 10
	// largeCheckpoint is the length from which a checkpoint is written once in largeInterval: that of thousands of shards would be most of
	// what a tail writes.
	largeCheckpoint = 4 << 10
	largeInterval   = time.Second
)

// messageSource is a category while it is read. *consumer.Consumer is one; tests supply their own.
type messageSource interface {
	Records(ctx context.Context) iter.Seq2[consumer.Record, error]
	Checkpoint() string
	Close() error
}

// openTail begins to read a category. pause is called as consumer.WithOnPause says.
func (g *Server) openTail(req *tailRequest, pause func()) (messageSource, error) {
	opts := []consumer.Option{
		consumer.WithStart(req.start), consumer.WithOnPause(pause), consumer.WithPrefetchBytes(tailPrefetch), consumer.WithDamage(consumer.DamageSkip),
		consumer.WithHeartbeat(max(min(g.cfg.Heartbeat, consumer.DefaultHeartbeat), 50*time.Millisecond)),
		consumer.WithName("tail over HTTP"), consumer.WithLogger(g.log), consumer.WithRetryTimeout(unavailableTimeout), consumer.WithRandom(g.deps.Random),
	}
	client, err := g.clientOptions(req.limits)
	if err != nil {
		return nil, err
	}
	opts = append(opts, client...)
	if req.untilEnd {
		opts = append(opts, consumer.WithUntilEnd())
	}
	if req.where != "" { // who resumes may give another predicate
		opts = append(opts, columns.Where(req.where), columns.WithAllShards(), columns.WithMaxMemory(g.cfg.QueryMemory))
	}
	if len(req.keys) > 0 {
		opts = append(opts, columns.Keys(req.keys...))
	}
	return consumer.New(g.deps.Server, req.category, opts...)
}

// ServeTail answers a tail; see docs/consuming.md. One goroutine reads and writes, so a slow client slows the reading.
func (g *Server) ServeTail(w http.ResponseWriter, r *http.Request) {
	t := &runningTail{g: g, w: w, client: r.RemoteAddr}
	t.caller, _ = rpc.CallerOf(r.Context(), r.RemoteAddr)
	err := t.parseRequest(r)
	if err == nil {
		err = t.recoverPanic(func() error { return t.runTail(r.Context()) })
	}
	result := resultOK
	if err != nil {
		result = errorOf(err).Kind.String()
	}
	g.metrics.tails.WithLabelValues(result).Inc()
	if t.out != nil {
		defer t.out.detach()
		g.metrics.tailMessages.Add(float64(t.messages))
		g.metrics.bytes.WithLabelValues(apiTail).Add(float64(t.out.bytes))
		if t.out.stalled {
			g.metrics.stalled.Inc()
		}
		g.log.LogAttrs(r.Context(), slog.LevelInfo, "tail", slog.String("client", t.client), slog.String("category", t.req.category),
			slog.String("result", result), slog.Duration("took", g.now().Sub(t.began)), slog.Int64("messages", t.messages))
	}
	switch {
	case err == nil:
	case t.begun:
		t.writeLastError(err)
		panic(http.ErrAbortHandler) // cuts the connection, or resets the stream of HTTP/2: see the package comment
	default:
		writeError(w, err)
	}
}

// runningTail is a tail while it is answered, by one goroutine.
type runningTail struct {
	g      *Server
	w      http.ResponseWriter
	client string
	caller string // who is bound; "" = nobody: a member of the cell
	req    *tailRequest
	began  time.Time
	ctx    context.Context //nolint:containedctx // the tail's life
	cancel context.CancelCauseFunc
	source messageSource
	out    *timedWriter // nil until the tail is admitted
	begun  bool         // the status was written

	buf      []byte
	open     bool   // the object of the last message has no end yet: the checkpoint may follow
	told     string // the checkpoint that was written last, and when
	toldAt   time.Time
	messages int64
	flushed  time.Time
	// failed is the error of a write in a pause, which ended the iteration.
	failed error
}

// recoverPanic turns a panic into an error: a bug in one tail must not end the others.
func (t *runningTail) recoverPanic(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			t.g.log.Error("a tail panicked", "panic", v, "stack", string(debug.Stack()))
			err = errorf(KindInternal, "the tail met a bug; the server's log has the stack")
		}
	}()
	return fn()
}

// runTail answers until the tail ends; nil means that it is complete.
func (t *runningTail) runTail(ctx context.Context) error {
	g := t.g
	t.began, t.flushed = g.now(), g.now()
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	defer t.cancel(nil)
	if err := g.admitTail(t); err != nil {
		return err
	}
	defer g.releaseTail(t)
	if rights := g.deps.Rights; rights != nil {
		watched, limits, unwatch, err := rights.BeginRead(t.ctx, access.Read, t.req.category)
		if err != nil {
			return denialError(err)
		}
		defer unwatch()
		t.ctx, t.req.limits = watched, limits
	}
	var err error
	if t.source, err = g.tail(t.req, t.flushOnPause); err != nil {
		return errorf(KindInvalid, "%s", clientText(err))
	}
	defer func() {
		if err := t.source.Close(); err != nil {
			g.log.Warn("close a tail", "error", err)
		}
	}()
	t.out = newTimedWriter(t.ctx, t.w, g.cfg.StallTimeout)
	if err := t.writeMessages(); err != nil {
		return t.endReason(err)
	}
	if err := t.flushLines(true); err != nil {
		return err
	}
	if t.req.events {
		if err := t.writeText([]byte("event: end\ndata: {}\n\n")); err != nil {
			return err
		}
	}
	t.out.clearDeadline()
	return nil
}

// writeMessages writes messages to the limit, or to the end.
func (t *runningTail) writeMessages() error {
	for rec, err := range t.source.Records(t.ctx) {
		switch {
		case errors.Is(err, consumer.ErrGap):
			t.addGap(err)
		case err != nil:
			return err
		default:
			if err := t.addMessage(&rec); err != nil {
				return err
			}
			t.messages++
		}
		if t.req.limit > 0 && t.messages == t.req.limit {
			return nil
		}
		if len(t.buf) >= tailBuffer {
			if err := t.flushLines(false); err != nil {
				return err
			}
		}
	}
	return t.failed
}

// addMessage appends a message. The end of its object waits for what comes after it.
func (t *runningTail) addMessage(rec *consumer.Record) (err error) {
	t.endMessage("")
	if t.req.events {
		t.buf = append(t.buf, "data: "...)
	}
	if t.buf, err = jsonline.AppendRecord(t.buf, rec); err != nil {
		return fmt.Errorf("message %v/%d/%d: %w", rec.Shard, rec.LSN, rec.Index, err)
	}
	t.buf = bytes.TrimSuffix(t.buf, []byte("}\n"))
	t.open = true
	return nil
}

// endMessage ends the object of the last message, with the checkpoint after it if there is one.
func (t *runningTail) endMessage(checkpoint string) {
	if !t.open {
		return
	}
	t.open = false
	if checkpoint != "" {
		t.buf = append(append(append(t.buf, `,"checkpoint":"`...), checkpoint...), '"')
	}
	t.buf = append(t.buf, "}\n"...)
	if t.req.events {
		if checkpoint != "" {
			t.buf = append(append(append(t.buf, "id: "...), checkpoint...), '\n')
		}
		t.buf = append(t.buf, '\n')
	}
}

// checkpointLine is an object that says how far the tail is, without a message.
type checkpointLine struct {
	Checkpoint string `json:"checkpoint"`
}

// gapLine is an object in place of messages that will not come.
type gapLine struct {
	Gap gapText `json:"gap"`
}

type gapText struct {
	Reason   string `json:"reason"`
	Messages uint64 `json:"messages,omitempty"`
	Pointers uint64 `json:"pointers,omitempty"`
	Text     string `json:"text"`
}

func (t *runningTail) addGap(err error) {
	gap := gapText{Text: clientText(err)}
	if e, ok := errors.AsType[*consumer.GapError](err); ok {
		gap.Reason, gap.Messages, gap.Pointers = string(e.Reason), e.Messages, e.Pointers()
	}
	t.endMessage("")
	t.addObject("gap", gapLine{gap})
}

// addObject appends an object that is not a message: a line, or an event.
func (t *runningTail) addObject(event string, object any) {
	line, _ := json.Marshal(object) // texts and numbers: can't fail
	if t.req.events {
		t.buf = fmt.Appendf(t.buf, "event: %s\ndata: %s\n\n", event, line)
		return
	}
	t.buf = append(append(t.buf, line...), '\n')
}

// flushOnPause is called while nothing more can be read at once: it hands over what was collected, or shows that the tail lives.
func (t *runningTail) flushOnPause() {
	if t.failed != nil || t.ctx.Err() != nil {
		return
	}
	switch {
	case len(t.buf) > 0:
	case t.begun && t.g.now().Sub(t.flushed) < t.g.cfg.Heartbeat:
		return
	case !t.begun && t.source.Checkpoint() == "":
		return // no stream was opened: what is wrong may still have a status of its own
	}
	if t.failed = t.flushLines(false); t.failed != nil {
		t.cancel(t.failed)
	}
}

// isCheckpointDue tells whether a checkpoint may be written, another one having been at toldAt.
func (g *Server) isCheckpointDue(checkpoint string, toldAt time.Time) bool {
	return len(checkpoint) <= largeCheckpoint || g.now().Sub(toldAt) >= largeInterval
}

// flushLines writes what was collected, with the checkpoint after it if it is due: the last one is. Without messages it is a heartbeat.
func (t *runningTail) flushLines(last bool) error {
	checkpoint := t.source.Checkpoint()
	due := last || t.g.isCheckpointDue(checkpoint, t.toldAt)
	switch {
	case len(t.buf) > 0 && !due:
		t.endMessage("")
		checkpoint = t.told
	case t.open:
		t.endMessage(checkpoint)
	case t.req.events && checkpoint != t.told:
		t.buf = fmt.Appendf(t.buf, "id: %s\n\n", checkpoint) // without data: no event, but the place to resume from
	case t.req.events:
		t.buf = append(t.buf, ":\n\n"...)
	default:
		t.addObject("", checkpointLine{checkpoint})
	}
	t.flushed = t.g.now()
	if t.told = checkpoint; due {
		t.toldAt = t.flushed
	}
	err := t.writeText(t.buf)
	t.buf = emptyBuffer(t.buf)
	return err
}

// emptyBuffer returns a buffer to use again, or nil: one large message must not keep its memory for the life of a tail.
func emptyBuffer(buf []byte) []byte {
	if cap(buf) > 4*tailBuffer {
		return nil
	}
	return buf[:0]
}

// writeText writes to the client, and before that the status if it was not written.
func (t *runningTail) writeText(text []byte) error {
	if !t.begun {
		h := t.w.Header()
		h.Set("Content-Type", "application/x-ndjson")
		if t.req.events {
			h.Set("Content-Type", "text/event-stream")
		}
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Vary", "Accept")
		t.begun = true
		t.w.WriteHeader(http.StatusOK)
	}
	_, err := t.out.Write(text)
	if err == nil {
		err = t.out.flushClient()
	}
	switch {
	case t.out.noteStall(err):
		return errorf(KindCancelled, "the client took nothing for %v", t.g.cfg.StallTimeout)
	case err != nil:
		return errorf(KindCancelled, "write the answer: %v", err)
	}
	return nil
}

// endReason returns an error as the client sees it; if the tail was ended, the reason for that.
func (t *runningTail) endReason(err error) error {
	if cause := context.Cause(t.ctx); cause != nil {
		switch {
		case isDenial(cause):
			return denialError(cause)
		case hasChanged(cause):
			return changedError()
		case errors.Is(cause, errClosing):
			return &Error{Kind: KindUnavailable, Message: errClosing.Error(), RetryAfter: time.Second}
		case t.failed != nil:
			return t.failed
		}
		return errorf(KindCancelled, "the tail was cancelled")
	}
	switch {
	case errors.Is(err, consumer.ErrUnknownCategory):
		return t.g.unknownCategory(t.ctx, t.req.category)
	case errors.Is(err, columns.ErrKeys), errors.Is(err, consumer.ErrCheckpoint):
		return errorf(KindInvalid, "%s", clientText(err))
	}
	if err := clientError(err); errors.As(err, new(*Error)) {
		return err
	}
	t.g.log.Warn("tail failed", "category", t.req.category, "error", err)
	return &Error{Kind: KindInternal, Message: clientText(err)}
}

// writeLastError writes the error as the last object of an answer that had begun. A failure to write it is ignored.
func (t *runningTail) writeLastError(err error) {
	if errorOf(err).Kind == KindCancelled {
		return // nobody reads
	}
	t.endMessage("")
	t.addObject("failure", newErrorBody(err))
	_ = t.writeText(t.buf)
}
