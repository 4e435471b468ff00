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
	queue  *itemQueue
	work   sync.WaitGroup
	mu     struct {
		sync.Mutex
		halted bool // no goroutine is started any more
	}

	bounded bool          // the ends are known, and there are some; of the stream's goroutine alone
	past    bool          // everything before the end that a query asked for was received; of the stream's goroutine alone
	window  int64         // the stream's, in microseconds: later messages may be older than the watermark by so much
	version atomic.Uint64 // what the stream was opened for, see memberShare.version
}

// errDone ends a stream that has brought everything that was wanted.
var errDone = errors.New("consumer: everything was received")

// errSilent ends a stream that says nothing any more; the next one is opened at another instance, if there is one.
var errSilent = fmt.Errorf("consumer: the stream fell silent: %w", discovery.ErrBroken)

func (c *Consumer) newSession(ctx context.Context) *session {
	s := &session{c: c, queue: newQueue(c.cfg.prefetchBytes)}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.startGoroutine(s.keepStream)
	return s
}

// startGoroutine starts a goroutine of the session, unless that is over.
func (s *session) startGoroutine(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.halted {
		s.work.Go(fn)
	}
}

// haltWith ends the session's goroutines and waits for them.
func (s *session) haltWith(cause error) {
	s.cancel(cause)
	s.mu.Lock()
	s.mu.halted = true
	s.mu.Unlock()
	s.work.Wait()
}

// stopAndFree ends the session and gives back what it holds.
func (s *session) stopAndFree() {
	s.haltWith(context.Canceled)
	for it := s.queue.peekItem(); it != nil; it = s.queue.peekItem() {
		if !it.Keep {
			it.freeBuffer()
		}
		s.queue.popItem()
	}
}

// keepStream keeps a stream open until the session ends, everything wanted was received, or going on is useless.
func (s *session) keepStream() {
	var (
		failures, broken int
		since            = time.Now() // of the last sign of life
	)
	for s.ctx.Err() == nil && s.awaitBuckets() {
		lived, err := s.runStream()
		switch {
		case s.ctx.Err() != nil:
			return
		case errors.Is(err, errReassigned):
			continue
		case errors.Is(err, errDone):
			s.queue.pushItem(&streamItem{kind: itemEnd})
			return
		}
		if lived {
			failures, broken, since = 0, 0, time.Now()
		}
		failures++
		if errors.Is(err, ErrProtocol) {
			broken++
		}
		if end := s.endingError(err, since, broken); end != nil {
			s.queue.pushItem(&streamItem{kind: itemEnd, Payload: payload.Payload{Err: end}})
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

// endingError turns the end of a stream into the end of the iteration, or returns nil when it is worth opening again.
func (s *session) endingError(err error, since time.Time, broken int) error {
	if err == nil {
		return nil // evicted, or a server that closes in good order
	}
	if errors.Is(err, ErrCheckpoint) || errors.Is(err, ErrRefused) || broken >= maxBroken {
		return err
	}
	cause := permanentError(err)
	if t := s.c.cfg.retryTimeout; cause == nil && t > 0 && time.Since(since) > t {
		cause = ErrUnavailable
	}
	if cause != nil {
		return &ServerError{Doing: fmt.Sprintf("reading category %q", s.c.category), named: true, cause: cause, Detail: err}
	}
	return nil
}

// streamConnection is one stream of a session.
type streamConnection struct {
	s      *session
	opened bool
	lived  bool        // it brought something, if only a sign of life
	alive  *time.Timer // ends it when it is silent
}

// runStream opens one stream and reads it to its end. lived says that it brought something beside its description.
func (s *session) runStream() (lived bool, err error) {
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	defer s.followBuckets(cancel)()
	silence := max(10*s.c.cfg.heartbeat, 10*time.Second)
	conn := &streamConnection{s: s, alive: time.AfterFunc(silence, func() { cancel(errSilent) })}
	defer conn.alive.Stop()
	first := true
	recv := func(rctx context.Context) (*scribev1.StreamRequest, error) {
		if first {
			first = false
			return s.startRequest(), nil
		}
		return s.nextCredits(rctx)
	}
	send := func(m *scribev1.StreamResponse) error {
		conn.alive.Reset(silence)
		err := conn.takeMessage(m)
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

// startRequest is the first step of a stream.
func (s *session) startRequest() *scribev1.StreamRequest {
	c := s.c
	pointers, bytes := s.queue.initialCredits()
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
		sh.fillStart(start)
		s.version.Store(sh.version)
	} else if c.mu.positions.opened {
		start.Resume = c.mu.positions.resumePositions(c.wantsLogical)
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
		if pointers, bytes, ok := s.queue.takeCredits(); ok {
			return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Credits{
				Credits: &scribev1.StreamCredits{Pointers: uint32(pointers), Bytes: uint64(bytes)},
			}}, nil
		}
	}
}

// takeMessage takes one message of the stream.
func (conn *streamConnection) takeMessage(m *scribev1.StreamResponse) error {
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
		err = conn.handleOpened(step.Opened)
	case *scribev1.StreamResponse_Entries:
		err = s.queueEntries(step.Entries)
	case *scribev1.StreamResponse_Gap:
		err = s.queueGap(step.Gap)
	case *scribev1.StreamResponse_ShardAdded:
		err = s.addShard(step.ShardAdded)
	case *scribev1.StreamResponse_ShardEnded:
		err = s.endShard(record.ShardID(step.ShardEnded.GetShard()))
	case *scribev1.StreamResponse_Heartbeat:
		s.queue.notePending(step.Heartbeat.GetPending())
		s.queueWatermark(step.Heartbeat.GetWatermark())
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
		if s.isFinished() {
			return errDone
		}
	}
	return nil
}

// joinShards takes the description of the stream.
func (conn *streamConnection) joinShards(o *scribev1.StreamOpened) error {
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
	if err := pos.checkCategory(id); err != nil {
		return err
	}
	there := make(map[record.ShardID]bool, len(o.GetShards()))
	behind := uint64(0)
	for _, sh := range o.GetShards() {
		q, err := pos.joinShard(sh)
		if err != nil {
			return err
		}
		there[q.shard] = true
		behind += max(sh.GetNextLsn(), uint64(q.received)) - uint64(q.received)
		if c.cfg.untilEnd && !s.bounded {
			pos.setEnd(q, record.LSN(sh.GetNextLsn()))
		}
	}
	if s.bounded {
		// A shard that is gone brings nothing any more.
		for id, q := range pos.shards {
			if !there[id] {
				pos.setEnd(q, 0)
			}
		}
	}
	pos.opened = true
	s.bounded = c.cfg.untilEnd
	s.queue.notePending(behind)
	s.queue.pushItem(&streamItem{kind: itemOpened})
	return nil
}

// endShard takes the end of a shard: whatever its end was thought to be, nothing more comes.
func (s *session) endShard(shard record.ShardID) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	sh, err := s.shareOfStream()
	if err != nil {
		return err
	}
	if sh != nil {
		sh.endShard(shard)
	} else if q, ok := s.c.mu.positions.shards[shard]; ok {
		s.c.mu.positions.setEnd(q, min(q.end, q.received))
	}
	return nil
}

// queueEntries queues pointers and sees to it that they are fetched.
func (s *session) queueEntries(e *scribev1.StreamEntries) error {
	var err error
	skips := e.GetSkipped()
	for i, entry := range e.GetEntries() {
		for ; err == nil && len(skips) > 0 && int(skips[0].GetAfter()) <= i; skips = skips[1:] {
			err = s.queueSkip(skips[0])
		}
		if err == nil {
			err = s.queueEntry(entry)
		}
		if err != nil {
			break
		}
	}
	for ; err == nil && len(skips) > 0; skips = skips[1:] {
		err = s.queueSkip(skips[0])
	}
	s.startFetches() // whatever became of the rest
	if err == nil {
		s.queue.notePending(e.GetPending())
		s.queueWatermark(e.GetWatermark())
	}
	return err
}

func (s *session) queueEntry(e *scribev1.StreamEntry) error {
	if s.queue.isFull() { // before its place counts as received
		return fmt.Errorf("%w: it overruns its credits", ErrProtocol)
	}
	shard, lsn := record.ShardID(e.GetShard()), record.LSN(e.GetLsn())
	it := &streamItem{kind: itemPayload, Payload: payload.Payload{LSN: lsn, Time: e.GetTime()}, raw: e.GetPointer(), ready: make(chan struct{})}
	ptr, perr := pointer.Decode(it.raw)
	if len(ptr.Sequences) > 0 { // up to pointer.MaxLen bytes that no reader has a use for
		ptr.Sequences = nil
		it.raw = pointer.Append(nil, &ptr)
	}
	s.c.mu.Lock()
	if q := s.c.mu.positions.shards[shard]; q != nil && s.c.pastUntil(q, e.GetTime()) {
		s.c.mu.Unlock()
		s.queue.refundCredits(int64(ptr.Length))
		return nil
	}
	q, deliver, err := s.placeOf(shard, lsn)
	s.c.mu.Unlock()
	if err != nil {
		return err
	}
	if !deliver {
		s.queue.refundCredits(int64(ptr.Length))
		return nil
	}
	if s.c.eval != nil {
		s.c.eval.Counts.Pointers.Add(1)
	}
	it.setSource(s.c.category, q, e)
	if !s.c.wantsSource(it.Source) {
		s.queue.pushItem(&streamItem{kind: itemPassed, pos: q, Payload: payload.Payload{LSN: lsn}, ptr: pointer.Pointer{Length: ptr.Length}})
		return nil
	}
	if it.pos, it.ptr, it.Messages = q, ptr, ptr.Messages; perr != nil {
		it.ptr, it.Messages = pointer.Pointer{}, 0
		it.Err = it.place(s.c.category).damageError("pointer", -1, perr)
		it.markReady()
	}
	s.queue.pushItem(it)
	return nil
}

// queueGap queues a hole.
func (s *session) queueGap(g *scribev1.StreamGap) error {
	if done, err := s.queueSharedGap(g); done || err != nil {
		return err
	}
	s.c.mu.Lock()
	q, from, to, deliver, err := s.c.mu.positions.receiveGap(g, s.bounded)
	s.c.mu.Unlock()
	if err != nil || !deliver {
		return err
	}
	s.queue.pushItem(&streamItem{kind: itemGap, pos: q, Payload: payload.Payload{LSN: from}, gap: &GapError{
		Category: s.c.category, Shard: q.shard, From: uint64(from), To: uint64(to), Reason: gapReason(g.GetReason()),
	}})
	return nil
}

// unwatched is how long after its end a bounded query of a category that nothing was ever written to waits for something.
const unwatched = 2 * time.Second

// queueWatermark queues how far the stream has come.
func (s *session) queueWatermark(at int64) {
	if until := s.c.cfg.until; !until.IsZero() {
		// A category without shards has no watermark.
		s.past = at >= until.UnixMicro()+s.window || at == 0 && s.c.cfg.now().After(until.Add(unwatched))
	}
	if at > 0 {
		s.queue.pushItem(&streamItem{kind: itemWatermark, Payload: payload.Payload{Time: at}, version: s.version.Load()})
	}
}
