package scribed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/buffers"
	"scribe/internal/base/entropy"
	"scribe/internal/base/lifecycle"
	"scribe/internal/format/delivery"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/deadletter"
	"scribe/scribed/spool"
)

// Deps are the dependencies of scribed. They outlive it.
type Deps struct {
	// Upstream is the write proxy that accepted frames are forwarded to.
	Upstream rpc.WriteService
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
	// Registerer receives the metrics; nil = none. Close unregisters them.
	Registerer prometheus.Registerer
	// Clock defaults to time.Now. Timers always use package time.
	Clock func() time.Time
	// Random draws jitter and the name of the loss reports' run; nil means the machine's randomness.
	Random *entropy.Source
	// FS is the file system of the spool and the dead letters; nil = the real one.
	FS vfs.FS
	// Host and Agent are the machine's name and the process's id, for reports; empty if they are unknown.
	Host, Agent string
	// InCell says that the agent is in a process of the cell, to which other agents forward: see delivery.Cell.
	InCell bool
}

// Scribed is an rpc.WriteService. It is safe for concurrent use.
type Scribed struct {
	cfg     Config
	deps    Deps
	now     func() time.Time
	metrics *agentMetrics
	buffers buffers.Pool // for entries and for requests to the upstream

	spool     *spool.Spool       // nil without one
	dead      *deadletter.Folder // nil without one
	throttled *throttledLog

	// ctx is canceled when Close runs out of time.
	ctx       context.Context //nolint:containedctx // entries outlive the requests that brought them
	cancel    context.CancelCauseFunc
	accepting lifecycle.Calls // Write calls that have not yet accepted all of their frames
	// tasks are the goroutine of sendLoop and one for each request to the upstream; keepers are those that spill, expire and
	// report.
	tasks, keepers sync.WaitGroup
	stopKeeping    chan struct{}
	reporting      chan struct{} // capacity 1: a semaphore for sending reports
	// kept and keptDelivery are the files of what readers, and the cell, were not told of.
	kept, keptDelivery reportKeeper
	changed        lifecycle.WakeChannel // the loop must examine the queue
	crowded        lifecycle.WakeChannel // the memory must be spilled
	drained        chan struct{}         // closed when scribed is closing and the memory is empty, or when Close gives up

	mu struct {
		sync.Mutex
		queue  sendQueue
		bodies int64 // bytes admitted by Admit
		idle   bool  // drained is closed
		// loggedUnavailable says that the log reports the upstream as unavailable, and not yet as available again.
		loggedUnavailable bool
		quietTill         time.Time // nothing could be spilled: the spiller is not woken before
		oldest            time.Time // since when the oldest frame waits, as of the last upkeep; zero = no frames
		draining          int       // running calls of Drain
	}
}

var _ rpc.WriteService = (*Scribed)(nil)

// New opens the spool and the dead letters, and starts the agent. It fails on an invalid configuration, and when a folder cannot
// be opened or recovered.
func New(cfg Config, deps Deps) (*Scribed, error) {
	err := cfg.Validate()
	if deps.Upstream == nil {
		err = errors.Join(err, errors.New("scribed: Deps.Upstream is needed"))
	}
	if err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = time.Now
	}
	s := &Scribed{
		cfg:         cfg,
		deps:        deps,
		now:         deps.Clock,
		throttled:   newNotes(deps.Logger, deps.Clock),
		stopKeeping: make(chan struct{}),
		reporting:   make(chan struct{}, 1),
		changed:     lifecycle.NewWakeChannel(),
		crowded:     lifecycle.NewWakeChannel(),
		drained:     make(chan struct{}),
	}
	s.mu.queue = newQueue(cfg, &s.buffers, deps.Random)
	if s.mu.queue.losses != nil {
		s.mu.queue.losses.NameReporter(deps.Host, deps.Agent)
	}
	if cfg.CountDelivery && cfg.ReportLosses > 0 {
		hop := delivery.Agent
		if deps.InCell {
			hop = delivery.Cell
		}
		s.mu.queue.delivery = delivery.NewLedger(hop, deps.Host, deps.Agent, deps.Random.Named("delivery"))
	}
	s.metrics = newMetrics(s)
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	if err := s.openStorage(); err != nil {
		s.cancel(nil)
		return nil, err
	}
	s.tasks.Go(s.sendLoop)
	if s.spool != nil {
		s.keepers.Go(s.spillLoop)
	}
	if s.spool != nil || len(cfg.Rules) > 0 {
		s.keepers.Go(s.upkeepLoop)
	}
	if cfg.ReportLosses > 0 {
		s.keepers.Go(s.reportLoop)
	}
	return s, nil
}

// openStorage opens the folders, takes over the spool's backlog, and registers the metrics.
func (s *Scribed) openStorage() (err error) {
	if s.cfg.DeadLetter != nil {
		if s.dead, err = deadletter.Open(*s.cfg.DeadLetter, s.deps.FS); err != nil {
			return err
		}
	}
	if s.cfg.Spool != nil {
		if s.spool, err = spool.Open(*s.cfg.Spool, spool.Deps{FS: s.deps.FS, Logger: s.deps.Logger, Registerer: s.deps.Registerer, Clock: s.deps.Clock}); err != nil {
			return err
		}
		s.mu.queue.spool = s.spool
		s.recoverBacklog()
		s.restoreReports()
	}
	if err := s.metrics.set.Register(s.deps.Registerer); err != nil {
		if s.spool != nil {
			err = errors.Join(err, s.spool.Close())
		}
		return err
	}
	return nil
}

// smallBody is the size up to which a request is small: a few messages that somebody waits for.
const smallBody = 64 << 10

// Admit charges a request's announced length before its body is read. It refuses with REASON_OVERLOADED and a retry hint, or with
// REASON_TOO_LARGE. The caller calls release when the request is answered. Bodies have a budget of their own, as large as that of
// the frames, because a body is read and then copied. An eighth of it is for small ones, which are not refused for large ones' sake.
func (s *Scribed) Admit(n int64) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.accepting.Closed():
		return nil, errShutDown()
	case n > s.cfg.MemoryBytes:
		return nil, rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "the request has %d bytes, more than the agent's memory of %d: send less at once", n, s.cfg.MemoryBytes)
	case s.mu.bodies+n > s.cfg.MemoryBytes, n > smallBody && s.mu.bodies > 0 && s.mu.bodies+n > s.cfg.MemoryBytes*7/8:
		s.mu.queue.counts.refused++
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, s.cfg.RetryBase, "the agent reads requests of %d bytes, at most %d: try again later", s.mu.bodies, s.cfg.MemoryBytes)
	}
	s.mu.bodies += n
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mu.bodies -= n
	}), nil
}

func errShutDown() error {
	return rpc.Errorf(scribev1.Reason_REASON_SHUTTING_DOWN, "the agent is shutting down")
}

// notifyChange wakes all who wait for a change, and closes drained when a closing scribed is empty. The caller holds mu.
func (s *Scribed) notifyChange() {
	q := &s.mu.queue
	s.changed.WakeUp()
	if s.spool != nil && (q.closing || float64(q.used) > s.cfg.SpillAbove*float64(s.cfg.MemoryBytes)) && !s.now().Before(s.mu.quietTill) {
		s.crowded.WakeUp()
	}
	q.wakeBlocked()
	if q.closing && !s.mu.idle && q.used == 0 && q.running == 0 {
		s.mu.idle = true
		close(s.drained)
	}
}

// sendLoop starts requests when the queue has them due.
func (s *Scribed) sendLoop() {
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		wake, now := s.startRequests()
		if !wake.IsZero() {
			t.Reset(wake.Sub(now))
		}
		select {
		case <-s.changed:
		case <-t.C:
		case <-s.drained:
			return
		case <-s.ctx.Done():
			return
		}
	}
}

// startRequests starts the requests that are due, and returns when to check again.
func (s *Scribed) startRequests() (wake, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := &s.mu.queue
	now = s.now()
	for b := q.nextLive(now); b != nil; b = q.nextLive(now) {
		var ctx context.Context
		ctx, b.cancel = context.WithTimeout(s.ctx, s.cfg.Timeout)
		b.unused = make(chan struct{})
		s.tasks.Go(func() { s.sendLive(ctx, b) })
	}
	if s.spool != nil {
		for f := q.nextFill(now); f != nil; f = q.nextFill(now) {
			s.tasks.Go(func() { s.sendBacklog(s.ctx, f) })
		}
	}
	return q.nextWake(now), now
}

// retryAfter is the retry hint for a refused request: roughly when the next request to the upstream has been answered. The caller
// holds mu.
func (s *Scribed) retryAfter() time.Duration {
	return max(s.mu.queue.notBefore.Sub(s.now()), 2*s.cfg.RetryBase)
}

// abandonCall ends the wait of a caller whose context ended, and returns the results of its frames: each is stored, not stored or of
// unknown outcome. It returns an error if the upstream was unavailable for all of them, or might have stored any of them. Entries that
// were not being sent are removed. It returns only when the caller's bytes are no longer used.
func (s *Scribed) abandonCall(ctx context.Context, sub *pendingCall) ([]*scribev1.FrameResult, error) {
	s.mu.Lock()
	if sub.pending == 0 { // it was answered meanwhile
		s.mu.Unlock()
		return sub.results, nil
	}
	q := &s.mu.queue
	var (
		inUse  []chan struct{}
		left   = sub.pending
		total  = len(sub.results)
		unsure int // frames
		// away is why the upstream was unavailable.
		away string
		// refused: the upstream is available, and refused a frame. That is no reason for the caller to hold back others.
		refused bool
		// An answer may still be on its way, and is then written to sub.results.
		results = slices.Clone(sub.results)
		late    = rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "the upstream has not answered for %d of %d frames: %w", left, total, context.Cause(ctx))
		unsent  = rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "the upstream did not take the frames in time, they are not stored: %w", context.Cause(ctx))
	)
	for _, e := range sub.entries {
		if len(e.frames) == 0 || e.sub == nil { // it has its outcome
			continue
		}
		for i := range e.frames {
			f := &e.frames[i]
			result := &scribev1.FrameResult{Error: rpc.Info(unsent)}
			switch {
			case e.batch != nil || f.unsure:
				unsure++
				result.Error = rpc.Info(late)
			case f.refusal != nil:
				result.Error = f.refusal
				away = f.refusal.GetMessage()
				refused = refused || retry.ClassOf(f.refusal.GetReason()) != retry.Unavailable
			}
			results[f.index] = result
		}
		if b := e.batch; b != nil {
			e.abandoned = true
			if e.mem == nil {
				inUse = append(inUse, b.unused)
				if b.wholeCall() == sub {
					b.cancel() // the request has nothing else
				}
			}
			continue
		}
		s.abandonEntry(e)
		q.removeEntry(e)
		q.releaseBuffer(e.mem)
	}
	s.notifyChange()
	s.mu.Unlock()
	for _, c := range inUse {
		<-c
	}
	switch {
	case left < total, refused:
		return results, nil
	case unsure == 0 && away != "":
		return nil, rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "the upstream did not take the frames in time, they are not stored: %w; the last attempt: %s", context.Cause(ctx), away)
	case unsure == 0:
		return nil, unsent
	case unsure == total:
		return nil, late
	}
	return results, nil
}

// Err returns why nothing can be forwarded, as far as the last request to the upstream tells; nil while requests succeed.
func (s *Scribed) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.queue.isUnavailable() {
		return nil
	}
	return fmt.Errorf("it has taken nothing for %v", s.now().Sub(s.mu.queue.unavailableSince).Round(time.Second))
}
