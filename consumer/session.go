package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/consumer/internal/payload"
	"scribe/internal/base/backoff"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/transport/discovery"
	scribev1 "scribe/proto/scribe/v1"
)

// session is one iteration: the stream that brings pointers, the fetches that turn them into payloads, and the queue between them
// and the one who iterates. All its goroutines end before stop returns.
type session struct {
	c      *Consumer
	ctx    context.Context //nolint:containedctx // the life of the session
	cancel context.CancelCauseFunc
	queue  *queue
	work   sync.WaitGroup
	mu     struct {
		sync.Mutex
		halted bool // no goroutine is started any more
	}

	bounded bool          // the ends are known, and there are some; of the stream's goroutine alone
	past    bool          // everything before the end that a query asked for was received; of the stream's goroutine alone
	window  int64         // the stream's, in microseconds: later messages may be older than the watermark by so much
	version atomic.Uint64 // what the stream was opened for, see share.version
}

// errDone ends a stream that has brought everything that was wanted.
var errDone = errors.New("consumer: everything was received")

// errSilent ends a stream that says nothing any more; the next one is opened at another instance, if there is one.
var errSilent = fmt.Errorf("consumer: the stream fell silent: %w", discovery.ErrBroken)

func (c *Consumer) newSession(ctx context.Context) *session {
	s := &session{c: c, queue: newQueue(c.cfg.prefetchBytes)}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.run(s.stream)
	return s
}

// run starts a goroutine of the session, unless that is over.
func (s *session) run(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.halted {
		s.work.Go(fn)
	}
}

// halt ends the session's goroutines and waits for them.
func (s *session) halt(cause error) {
	s.cancel(cause)
	s.mu.Lock()
	s.mu.halted = true
	s.mu.Unlock()
	s.work.Wait()
}

// stop ends the session and gives back what it holds.
func (s *session) stop() {
	s.halt(context.Canceled)
	for it := s.queue.peek(); it != nil; it = s.queue.peek() {
		if !it.Keep {
			it.freeBuffer()
		}
		s.queue.pop()
	}
}

// stream keeps a stream open until the session ends, everything wanted was received, or going on is useless.
func (s *session) stream() {
	var (
		failures, broken int
		since            = time.Now() // of the last sign of life
	)
	for s.ctx.Err() == nil && s.ready() {
		lived, err := s.connect()
		switch {
		case s.ctx.Err() != nil:
			return
		case errors.Is(err, errReassigned):
			continue
		case errors.Is(err, errDone):
			s.queue.push(&item{kind: itemEnd})
			return
		}
		if lived {
			failures, broken, since = 0, 0, time.Now()
		}
		failures++
		if errors.Is(err, ErrProtocol) {
			broken++
		}
		if end := s.hopeless(err, since, broken); end != nil {
			s.queue.push(&item{kind: itemEnd, Payload: payload.Payload{Err: end}})
			return
		}
		pause := s.c.cfg.pause(failures, err)
		s.c.stats.reconnects.Add(1)
		s.c.cfg.logger.Warn("read stream ended, opening it again", "pause", pause, "error", err)
		if backoff.Sleep(s.ctx, pause) != nil {
			return
		}
	}
}

// maxBroken is how many streams in a row may contradict themselves before they bring anything.
const maxBroken = 5

// hopeless turns the end of a stream into the end of the iteration, or returns nil when it is worth opening again.
func (s *session) hopeless(err error, since time.Time, broken int) error {
	if err == nil {
		return nil // evicted, or a server that closes in good order
	}
	if errors.Is(err, ErrCheckpoint) || errors.Is(err, ErrRefused) || broken >= maxBroken {
		return err
	}
	cause := permanent(err)
	if t := s.c.cfg.retryTimeout; cause == nil && t > 0 && time.Since(since) > t {
		cause = ErrUnavailable
	}
	if cause != nil {
		return &ServerError{Doing: fmt.Sprintf("reading category %q", s.c.category), named: true, cause: cause, Detail: err}
	}
	return nil
}

// connection is one stream of a session.
type connection struct {
	s      *session
	opened bool
	lived  bool        // it brought something, if only a sign of life
	alive  *time.Timer // ends it when it is silent
}

// connect opens one stream and reads it to its end. lived says that it brought something beside its description.
func (s *session) connect() (lived bool, err error) {
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	defer s.follow(cancel)()
	silence := max(10*s.c.cfg.heartbeat, 10*time.Second)
	conn := &connection{s: s, alive: time.AfterFunc(silence, func() { cancel(errSilent) })}
	defer conn.alive.Stop()
	first := true
	recv := func(rctx context.Context) (*scribev1.StreamRequest, error) {
		if first {
			first = false
			return s.start(), nil
		}
		return s.nextCredits(rctx)
	}
	send := func(m *scribev1.StreamResponse) error {
		conn.alive.Reset(silence)
		err := conn.take(m)
		switch {
		case errors.Is(err, ErrProtocol):
			cancel(fmt.Errorf("%w: %w", err, discovery.ErrBroken))
		case errors.Is(err, errReassigned):
			cancel(errReassigned)
		}
		return err
	}
	err = s.c.streams.Stream(ctx, recv, send)
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) || errors.Is(cause, errReassigned) {
		err = cause
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return conn.lived, err
}

// start is the first step of a stream.
func (s *session) start() *scribev1.StreamRequest {
	c := s.c
	pointers, bytes := s.queue.initial()
	start := &scribev1.StreamStart{
		Category:      c.category,
		LogicalShards: c.cfg.logicalShards,
		StartAt:       c.cfg.start.kind,
		Credits:       &scribev1.StreamCredits{Pointers: uint32(pointers), Bytes: uint64(bytes)},
		Heartbeat:     durationpb.New(c.cfg.heartbeat),
		Consumer:      c.cfg.name,
	}
	if c.eval != nil {
		start.Filter = c.eval.Query
	}
	if c.cfg.window != nil {
		start.Window = durationpb.New(*c.cfg.window)
	}
	if c.cfg.start.kind == scribev1.StartAt_START_AT_TIME {
		start.StartTime = c.cfg.start.time.UnixMicro()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if sh := c.shareLocked(); sh != nil {
		sh.start(start)
		s.version.Store(sh.version)
	} else if c.mu.positions.opened {
		start.Resume = c.mu.positions.resume(c.wants)
		// A shard without a position came after all those that have one: it was not read at all.
		start.StartAt, start.StartTime = scribev1.StartAt_START_AT_EARLIEST, 0
	}
	return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: start}}
}

// nextCredits waits until there are credits to give back.
func (s *session) nextCredits(ctx context.Context) (*scribev1.StreamRequest, error) {
	for {
		select {
		case <-s.queue.credits:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if pointers, bytes, ok := s.queue.take(); ok {
			return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Credits{
				Credits: &scribev1.StreamCredits{Pointers: uint32(pointers), Bytes: uint64(bytes)},
			}}, nil
		}
	}
}

// take takes one message of the stream.
func (conn *connection) take(m *scribev1.StreamResponse) error {
	s := conn.s
	if err := s.ctx.Err(); err != nil {
		return err
	}
	if m.GetOpened() == nil && !conn.opened {
		return fmt.Errorf("%w: its first message is %T", ErrProtocol, m.GetStep())
	}
	var err error
	switch step := m.GetStep().(type) {
	case *scribev1.StreamResponse_Opened:
		err = conn.opening(step.Opened)
	case *scribev1.StreamResponse_Entries:
		err = s.entries(step.Entries)
	case *scribev1.StreamResponse_Gap:
		err = s.gap(step.Gap)
	case *scribev1.StreamResponse_ShardAdded:
		err = s.added(step.ShardAdded)
	case *scribev1.StreamResponse_ShardEnded:
		err = s.ended(record.ShardID(step.ShardEnded.GetShard()))
	case *scribev1.StreamResponse_Heartbeat:
		s.queue.pending(step.Heartbeat.GetPending())
		s.watermark(step.Heartbeat.GetWatermark())
	case *scribev1.StreamResponse_Evicted:
		// The server ends the stream by itself. Our own positions are exact; its own are for readers that keep none.
		s.c.cfg.logger.Info("read stream evicted", "reason", step.Evicted.GetReason().String(), "message", step.Evicted.GetMessage())
	default: // a newer server's: it goes without credits, so it brings no messages
	}
	if err != nil {
		return err
	}
	conn.lived = conn.lived || m.GetOpened() == nil && m.GetEvicted() == nil
	if s.past {
		return errDone
	}
	if s.bounded {
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		if s.finished() {
			return errDone
		}
	}
	return nil
}

// open takes the description of the stream.
func (conn *connection) open(o *scribev1.StreamOpened) error {
	s, c := conn.s, conn.s.c
	if conn.opened {
		return fmt.Errorf("%w: it is opened twice", ErrProtocol)
	}
	conn.opened = true
	s.window = max(o.GetWindow().AsDuration().Microseconds(), 0)
	c.mu.Lock()
	defer c.mu.Unlock()
	pos := c.mu.positions
	id := o.GetCategory().GetId()
	if shards := o.GetShards(); id == 0 && len(shards) > 0 {
		id = record.ShardID(shards[0].GetShard()).Category()
	}
	if err := pos.category(id); err != nil {
		return err
	}
	there := make(map[record.ShardID]bool, len(o.GetShards()))
	behind := uint64(0)
	for _, sh := range o.GetShards() {
		q, err := pos.join(sh)
		if err != nil {
			return err
		}
		there[q.shard] = true
		behind += max(sh.GetNextLsn(), uint64(q.received)) - uint64(q.received)
		if c.cfg.untilEnd && !s.bounded {
			pos.bound(q, record.LSN(sh.GetNextLsn()))
		}
	}
	if s.bounded {
		// A shard that is gone brings nothing any more.
		for id, q := range pos.shards {
			if !there[id] {
				pos.bound(q, 0)
			}
		}
	}
	pos.opened = true
	s.bounded = c.cfg.untilEnd
	s.queue.pending(behind)
	s.queue.push(&item{kind: itemOpened})
	return nil
}

// ended takes the end of a shard: whatever its end was thought to be, nothing more comes.
func (s *session) ended(shard record.ShardID) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	sh, err := s.shareOfStream()
	if err != nil {
		return err
	}
	if sh != nil {
		sh.ended(shard)
	} else if q, ok := s.c.mu.positions.shards[shard]; ok {
		s.c.mu.positions.bound(q, min(q.end, q.received))
	}
	return nil
}

// entries queues pointers and sees to it that they are fetched.
func (s *session) entries(e *scribev1.StreamEntries) error {
	var err error
	skips := e.GetSkipped()
	for i, entry := range e.GetEntries() {
		for ; err == nil && len(skips) > 0 && int(skips[0].GetAfter()) <= i; skips = skips[1:] {
			err = s.skipped(skips[0])
		}
		if err == nil {
			err = s.entry(entry)
		}
		if err != nil {
			break
		}
	}
	for ; err == nil && len(skips) > 0; skips = skips[1:] {
		err = s.skipped(skips[0])
	}
	s.pump() // whatever became of the rest
	if err == nil {
		s.queue.pending(e.GetPending())
		s.watermark(e.GetWatermark())
	}
	return err
}

func (s *session) entry(e *scribev1.StreamEntry) error {
	if s.queue.full() { // before its place counts as received
		return fmt.Errorf("%w: it overruns its credits", ErrProtocol)
	}
	shard, lsn := record.ShardID(e.GetShard()), record.LSN(e.GetLsn())
	it := &item{kind: itemPayload, Payload: payload.Payload{LSN: lsn, Time: e.GetTime()}, raw: e.GetPointer(), ready: make(chan struct{})}
	ptr, perr := pointer.Decode(it.raw)
	if len(ptr.Sequences) > 0 { // up to pointer.MaxLen bytes that no reader has a use for
		ptr.Sequences = nil
		it.raw = pointer.Append(nil, &ptr)
	}
	s.c.mu.Lock()
	if q := s.c.mu.positions.shards[shard]; q != nil && s.c.over(q, e.GetTime()) {
		s.c.mu.Unlock()
		s.queue.refund(int64(ptr.Length))
		return nil
	}
	q, deliver, err := s.placeOf(shard, lsn)
	s.c.mu.Unlock()
	if err != nil {
		return err
	}
	if !deliver {
		s.queue.refund(int64(ptr.Length))
		return nil
	}
	if s.c.eval != nil {
		s.c.eval.Counts.Pointers.Add(1)
	}
	it.from(s.c.category, q, e)
	if !s.c.reads(it.Source) {
		s.queue.push(&item{kind: itemPassed, pos: q, Payload: payload.Payload{LSN: lsn}, ptr: pointer.Pointer{Length: ptr.Length}})
		return nil
	}
	if it.pos, it.ptr, it.Messages = q, ptr, ptr.Messages; perr != nil {
		it.ptr, it.Messages = pointer.Pointer{}, 0
		it.Err = it.place(s.c.category).damage("pointer", -1, perr)
		it.done()
	}
	s.queue.push(it)
	return nil
}

// gap queues a hole.
func (s *session) gap(g *scribev1.StreamGap) error {
	if done, err := s.sharedGap(g); done || err != nil {
		return err
	}
	s.c.mu.Lock()
	q, from, to, deliver, err := s.c.mu.positions.gap(g, s.bounded)
	s.c.mu.Unlock()
	if err != nil || !deliver {
		return err
	}
	s.queue.push(&item{kind: itemGap, pos: q, Payload: payload.Payload{LSN: from}, gap: &GapError{
		Category: s.c.category, Shard: q.shard, From: uint64(from), To: uint64(to), Reason: gapReason(g.GetReason()),
	}})
	return nil
}

// unwatched is how long after its end a bounded query of a category that nothing was ever written to waits for something.
const unwatched = 2 * time.Second

// watermark queues how far the stream has come.
func (s *session) watermark(at int64) {
	if until := s.c.cfg.until; !until.IsZero() {
		// A category without shards has no watermark.
		s.past = at >= until.UnixMicro()+s.window || at == 0 && s.c.cfg.now().After(until.Add(unwatched))
	}
	if at > 0 {
		s.queue.push(&item{kind: itemWatermark, Payload: payload.Payload{Time: at}, version: s.version.Load()})
	}
}
