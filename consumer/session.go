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
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// iterationSession is one iteration: the stream of pointers, the fetches of their payloads, and the queue between them and the loop. All
// its goroutines have ended when stopAndFree returns.
type iterationSession struct {
	c      *Consumer
	ctx    context.Context //nolint:containedctx // the life of the session
	cancel context.CancelCauseFunc
	queue  *itemQueue
	work   sync.WaitGroup
	mu     struct {
		sync.Mutex
		halted bool // no more goroutines are started
	}

	bounded bool          // the ends are known, and exist; used only by the stream's goroutine
	past    bool          // everything before the query's end time was received; used only by the stream's goroutine
	window  int64         // the stream's window, microseconds: later messages may be older than the watermark by this much
	version atomic.Uint64 // categoryShare.version for which the stream was opened
	// choosesLate: which shards are read is decided when the stream is open; used only by the stream's goroutine.
	choosesLate bool
}

// errDone ends a stream after everything requested was received.
var errDone = errors.New("consumer: everything was received")

// errSilent ends a stream that sends nothing; the next one is opened at another instance, if there is one.
var errSilent = fmt.Errorf("consumer: the stream fell silent: %w", discovery.ErrBroken)

func (c *Consumer) newSession(ctx context.Context) *iterationSession {
	s := &iterationSession{c: c, queue: newQueue(c.cfg.prefetchBytes)}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.startGoroutine(s.keepStream)
	return s
}

// startGoroutine starts a goroutine of the session, unless the session has been halted.
func (s *iterationSession) startGoroutine(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.halted {
		s.work.Go(fn)
	}
}

// haltWith ends the session's goroutines and waits for them.
func (s *iterationSession) haltWith(cause error) {
	s.cancel(cause)
	s.mu.Lock()
	s.mu.halted = true
	s.mu.Unlock()
	s.work.Wait()
}

// stopAndFree ends the session and frees its buffers.
func (s *iterationSession) stopAndFree() {
	s.haltWith(context.Canceled)
	for it := s.queue.peekItem(); it != nil; it = s.queue.peekItem() {
		if !it.Keep {
			it.freeBuffer()
		}
		s.queue.popItem()
	}
}

// keepStream keeps a stream open until the session ends, everything requested was received, or an error is permanent.
func (s *iterationSession) keepStream() {
	var (
		failures, broken int
		since            = time.Now() // of the last sign of life
	)
	s.chooseShards(false)
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

// maxBroken bounds the consecutive streams that violate the protocol before they bring anything.
const maxBroken = 5

// endingError returns the error that ends the iteration after a stream has ended, or nil to reopen the stream.
func (s *iterationSession) endingError(err error, since time.Time, broken int) error {
	if err == nil {
		return nil // evicted, or an orderly close by the server
	}
	// The shards are those that the category has: the server has an older copy of it.
	if _, of := s.c.ShardsRead(); of > 0 && rpc.ReasonOf(err) == scribev1.Reason_REASON_UNKNOWN_SHARD {
		err = rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "a server has an older copy of the category: %w", err)
	}
	if errors.Is(err, ErrCheckpoint) || errors.Is(err, ErrRefused) || broken >= maxBroken {
		return err
	}
	cause := s.c.cfg.permanentError(err)
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
	s       *iterationSession
	started bool // its first request was sent
	opened  bool
	lived   bool        // it brought a message, if only a heartbeat
	alive   *time.Timer // ends a silent stream
}

// runStream opens one stream and reads it to its end. lived reports that it brought something beside StreamOpened.
func (s *iterationSession) runStream() (lived bool, err error) {
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	defer s.letReopen(cancel)()
	silence := max(10*s.c.cfg.heartbeat, 10*time.Second)
	conn := &streamConnection{s: s, alive: time.AfterFunc(silence, func() { cancel(errSilent) })}
	defer conn.alive.Stop()
	recv := func(rctx context.Context) (*scribev1.StreamRequest, error) {
		if !conn.started {
			conn.started = true
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

// startRequest returns the first request of a stream.
func (s *iterationSession) startRequest() *scribev1.StreamRequest {
	c := s.c
	pointers, bytes := s.queue.initialCredits()
	reads := c.reads.Load()
	start := &scribev1.StreamStart{
		Category:      c.category,
		LogicalShards: reads.list,
		StartAt:       c.cfg.start.kind,
		StartTime:     c.cfg.start.time,
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
	c.mu.Lock()
	defer c.mu.Unlock()
	start.KnownUntil = max(c.mu.known, c.mu.reached)
	c.mu.share.fillStart(start, reads.wantsLog)
	s.version.Store(c.mu.share.version)
	return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: start}}
}

// nextCredits waits until there are credits to return, and returns them.
func (s *iterationSession) nextCredits(ctx context.Context) (*scribev1.StreamRequest, error) {
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

// takeMessage handles one message of the stream.
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
		s.queueWatermark(step.Heartbeat.GetWatermark(), step.Heartbeat.GetKnownUntil())
	case *scribev1.StreamResponse_Evicted:
		// The server then ends the stream. Our own positions are exact; those it sends are for clients that keep none.
		s.c.cfg.logger.Info("read stream evicted", "reason", step.Evicted.GetReason().String(), "message", step.Evicted.GetMessage())
	default: // from a newer server: without credits, so it has no messages
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

// handleOpened handles StreamOpened.
func (conn *streamConnection) handleOpened(o *scribev1.StreamOpened) error {
	gaps, err := conn.joinShards(o)
	for _, g := range gaps {
		if err == nil {
			err = conn.s.queueGap(g)
		}
	}
	if s := conn.s; err == nil && s.choosesLate {
		s.choosesLate = false
		s.chooseShards(true)
	}
	return err
}

// joinShards adds the shards of a stream. It returns the gaps before some of them.
func (conn *streamConnection) joinShards(o *scribev1.StreamOpened) (gaps []*scribev1.StreamGap, err error) {
	s := conn.s
	if conn.opened {
		return nil, fmt.Errorf("%w: it is opened twice", ErrProtocol)
	}
	conn.opened = true
	s.window = max(o.GetWindow().AsDuration().Microseconds(), 0)
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	sh, err := s.shareOfStream()
	if err != nil {
		return nil, err
	}
	id := o.GetCategory().GetId()
	if shards := o.GetShards(); id == 0 && len(shards) > 0 {
		id = record.ShardID(shards[0].GetShard()).Category()
	}
	if err := sh.adoptCategoryID(id); err != nil {
		return nil, err
	}
	there := make(map[record.ShardID]bool, len(o.GetShards()))
	behind := uint64(0)
	for _, v := range o.GetShards() {
		gap, err := sh.joinShard(v, s.bounded)
		if err != nil {
			return nil, err
		}
		if gap != nil {
			gaps = append(gaps, gap)
		}
		id := record.ShardID(v.GetShard())
		there[id] = true
		at := uint64(sh.shards[id].cursor)
		behind += max(v.GetNextLsn(), at) - at
	}
	if sh.bounded && sh.alone {
		// A shard that no longer exists brings nothing more, nor does one that a checkpoint knows and the stream does not.
		for id := range sh.shards {
			if !there[id] {
				sh.endShard(id)
			}
		}
	}
	sh.opened, s.bounded = true, sh.bounded
	s.c.noteKnown(o.GetKnownUntil())
	s.queue.notePending(behind)
	s.queue.pushItem(&streamItem{kind: itemOpened})
	return gaps, nil
}

// addShard handles a shard that joined the stream.
func (s *iterationSession) addShard(v *scribev1.StreamShard) error {
	s.c.mu.Lock()
	sh, err := s.shareOfStream()
	var gap *scribev1.StreamGap
	if err == nil {
		gap, err = sh.joinShard(v, s.bounded)
	}
	s.c.mu.Unlock()
	if err != nil || gap == nil {
		return err
	}
	return s.queueGap(gap)
}

// endShard handles the end of a shard.
func (s *iterationSession) endShard(shard record.ShardID) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	sh, err := s.shareOfStream()
	if err == nil {
		sh.endShard(shard)
	}
	return err
}

// isFinished reports whether a bounded iteration has received everything up to its ends. The mutex is held.
func (s *iterationSession) isFinished() bool {
	sh := s.c.mu.share
	return sh.undone == 0 && sh.version == s.version.Load() && s.c.group.hasSettled()
}

// queueEntries queues entries and starts their fetches.
func (s *iterationSession) queueEntries(e *scribev1.StreamEntries) error {
	var err error
	entries, skips := e.GetEntries(), e.GetSkipped()
	for i := 0; i <= len(entries) && err == nil; i++ {
		for ; err == nil && len(skips) > 0 && (i == len(entries) || int(skips[0].GetAfter()) <= i); skips = skips[1:] {
			err = s.queueSkip(skips[0])
		}
		if err == nil && i < len(entries) {
			err = s.queueEntry(entries[i])
		}
	}
	s.startFetches() // also for the entries before an error
	if err == nil {
		s.queue.notePending(e.GetPending())
		s.queueWatermark(e.GetWatermark(), e.GetKnownUntil())
	}
	return err
}

func (s *iterationSession) queueEntry(e *scribev1.StreamEntry) error {
	if s.queue.isFull() { // checked before its position counts as received
		return fmt.Errorf("%w: it overruns its credits", ErrProtocol)
	}
	shard, lsn := record.ShardID(e.GetShard()), record.LSN(e.GetLsn())
	it := &streamItem{kind: itemPayload, Payload: payload.Payload{LSN: lsn, Time: e.GetTime()}, raw: e.GetPointer(), ticket: e.GetTicket(), ready: make(chan struct{})}
	ptr, perr := pointer.Decode(it.raw)
	if len(ptr.Sequences) > 0 { // up to pointer.MaxLen bytes that readers do not need
		ptr.Sequences = nil
		it.raw = pointer.Append(nil, &ptr)
	}
	q, deliver, err := s.receiveEntry(shard, lsn, e.GetTime())
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
	if !s.c.reads.Load().wantsSource(it.Source) {
		s.queue.pushItem(&streamItem{kind: itemPassed, pos: q, Payload: payload.Payload{LSN: lsn}, ptr: pointer.Pointer{Length: ptr.Length}})
		return nil
	}
	if it.pos, it.ptr, it.Messages = q, ptr, ptr.Messages; perr != nil {
		it.ptr, it.Messages = pointer.Pointer{}, 0
		it.Err = damageError(&it.Payload, "pointer", -1, perr)
		it.markReady()
	}
	s.queue.pushItem(it)
	return nil
}

// receiveEntry receives an entry, see categoryShare.receiveEntry. An entry after the requested end time is not delivered.
func (s *iterationSession) receiveEntry(shard record.ShardID, lsn record.LSN, at int64) (p *shardPosition, deliver bool, err error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	sh, err := s.shareOfStream()
	if err != nil || s.c.pastUntil(shard, at) {
		return nil, false, err
	}
	return sh.receiveEntry(shard, lsn)
}

// queueGap queues a gap.
func (s *iterationSession) queueGap(g *scribev1.StreamGap) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	sh, err := s.shareOfStream()
	if err != nil {
		return err
	}
	shard := record.ShardID(g.GetShard())
	unread := g.GetBeforeOrigin() && !sh.hasReceived(shard)
	r, err := sh.passOver(passedGap, shard, record.LSN(g.GetFrom()), record.LSN(g.GetTo()))
	if err != nil || len(r.places) == 0 {
		return err
	}
	if unread { // nothing is missing
		if at := sh.shards[shard]; at.cursor != at.removed {
			at.origin = at.cursor
		}
		s.queueRuns(r.places)
		return nil
	}
	p := r.places[0]
	s.queue.pushItem(&streamItem{kind: itemGap, pos: p, lost: r.places, Payload: payload.Payload{LSN: r.from}, gap: &GapError{
		Category: s.c.category, Shard: p.shard, From: uint64(r.from), To: uint64(p.received), Reason: gapReason(g.GetReason()),
	}})
	return nil
}

// queueSkip queues a run of pointers whose payloads can't match the filter.
func (s *iterationSession) queueSkip(k *scribev1.StreamSkip) error {
	c, shard := s.c, record.ShardID(k.GetShard())
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.eval == nil {
		return fmt.Errorf("%w: it leaves out pointers, and was not asked to", ErrProtocol)
	}
	sh, err := s.shareOfStream()
	if err != nil || c.pastUntil(shard, k.GetTime()) {
		return err
	}
	r, err := sh.passOver(passedSkip, shard, record.LSN(k.GetFrom()), record.LSN(k.GetTo()))
	if err != nil || len(r.places) == 0 {
		return err
	}
	n := &c.eval.Counts
	n.Pointers.Add(r.pointers)
	n.SkippedPointers.Add(r.pointers)
	n.SkippedMessages.Add(k.GetMessages())
	n.SkippedBytes.Add(k.GetBytes())
	s.queueRuns(r.places)
	return nil
}

// queueRuns queues that positions move to where they have received everything, without a word to the application. The mutex is held.
func (s *iterationSession) queueRuns(places []*shardPosition) {
	runs := make(map[*shardPosition]record.LSN, len(places))
	for _, p := range places {
		runs[p] = p.received
	}
	s.queue.pushItem(&streamItem{kind: itemSkipped, runs: runs})
}

// pastUntil reports whether a time is at or after the requested end, without a group: reading of the shard then ends. The mutex
// is held.
func (c *Consumer) pastUntil(shard record.ShardID, time int64) bool {
	s, until := c.mu.share, c.cfg.until
	if until.IsZero() || time < until.UnixMicro() || !s.alone || s.shards[shard] == nil {
		return false
	}
	s.endShard(shard) // a bounded iteration waits for nothing more of it
	return true
}

// unwatched is how long a bounded query of a category without shards waits after its end time.
const unwatched = 2 * time.Second

// noteKnown takes note of until when the stream's logs are known. What a group member knows beyond the group's positions the group does not, if the
// member ends. The mutex is held.
func (c *Consumer) noteKnown(until int64) {
	if c.mu.share.alone {
		c.mu.known = max(c.mu.known, until)
	}
}

// reachedBy returns the time that a watermark lets the consumer reach in all logs, if those of the stream are known until a time; 0 = it is an older
// server, which does not say.
func reachedBy(at, known int64) int64 {
	if known == 0 {
		return at
	}
	return min(at, known)
}

// queueWatermark queues the stream's watermark, which came with the time until which its logs are known.
func (s *iterationSession) queueWatermark(at, known int64) {
	s.c.mu.Lock()
	s.c.noteKnown(known)
	if sh := s.c.mu.share; at == 0 && sh.alone && len(sh.shards) == 0 { // of no logs everything was received
		s.c.mu.reached = max(s.c.mu.reached, known)
	}
	s.c.mu.Unlock()
	if until := s.c.cfg.until; !until.IsZero() {
		// A category without shards has no watermark.
		s.past = at >= until.UnixMicro()+s.window || at == 0 && s.c.cfg.now().After(until.Add(unwatched))
	}
	if at > 0 {
		s.queue.pushItem(&streamItem{kind: itemWatermark, Payload: payload.Payload{Time: at}, version: s.version.Load(), reached: reachedBy(at, known)})
	}
}
