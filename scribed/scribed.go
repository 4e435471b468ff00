package scribed

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/buffers"
	"scribe/internal/base/lifecycle"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/deadletter"
	"scribe/scribed/spool"
)

// Deps are what scribed works with. They outlive it.
type Deps struct {
	// Upstream takes what scribed has accepted: a write proxy.
	Upstream rpc.WriteService
	// Logger defaults to none.
	Logger *slog.Logger
	// Registerer gets the metrics; nil keeps none. Close unregisters them.
	Registerer prometheus.Registerer
	// Clock defaults to time.Now. Timers always run by package time.
	Clock func() time.Time
	// FS is the file system of the spool and the dead letters; nil = the real one.
	FS vfs.FS
}

// Scribed is an rpc.WriteService. It is safe for concurrent use.
type Scribed struct {
	cfg     Config
	deps    Deps
	now     func() time.Time
	metrics *agentMetrics
	buffers buffers.Pool // of entries and of requests to the upstream

	spool     *spool.Spool       // nil without one
	dead      *deadletter.Folder // nil without one
	throttled *throttledLog

	// ctx ends when Close gives up.
	ctx       context.Context //nolint:containedctx // entries outlive the requests that brought them
	cancel    context.CancelCauseFunc
	accepting lifecycle.Calls // of Write that have not got all of their frames in
	// tasks are the loop's goroutine and one for each request to the upstream; keepers spill and expire.
	tasks, keepers sync.WaitGroup
	stopKeeping    chan struct{}
	reporting      chan struct{} // of capacity 1: taken by who sends reports
	changed        chan struct{} // buffered: the loop must look at the queue
	crowded        chan struct{} // buffered: the memory is to be emptied into the spool
	drained        chan struct{} // closed when scribed is closed and nothing is left in memory, or Close has given up

	mu struct {
		sync.Mutex
		queue  sendQueue
		bodies int64 // bytes admitted by Admit
		idle   bool  // drained is closed
		// loggedUnavailable: the log says that the upstream is unavailable, and not yet that it is available again.
		loggedUnavailable bool
		quietTill         time.Time // there was nothing to spill: the spiller is not woken before
		oldest            time.Time // of all frames, some time ago; zero = none
		draining          int       // calls of Drain that run
	}
}

var _ rpc.WriteService = (*Scribed)(nil)

// New returns a running scribed.
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
		changed:     make(chan struct{}, 1),
		crowded:     make(chan struct{}, 1),
		drained:     make(chan struct{}),
	}
	s.mu.queue = newQueue(cfg, &s.buffers)
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

// openStorage opens the folders, takes over what the spool holds, and registers the metrics.
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
	}
	if err := s.metrics.set.Register(s.deps.Registerer); err != nil {
		if s.spool != nil {
			err = errors.Join(err, s.spool.Close())
		}
		return err
	}
	return nil
}

// Admit charges a request's announced length before its body is read; it refuses with REASON_OVERLOADED and a hint, or with
// REASON_TOO_LARGE. release is to be called once the request is answered. Bodies have a budget of their own, as large as that of
// the frames: a body is read and then copied.
func (s *Scribed) Admit(n int64) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.accepting.Closed():
		return nil, errShutDown()
	case n > s.cfg.MemoryBytes:
		return nil, rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "the request has %d bytes, more than the agent's memory of %d: send less at once", n, s.cfg.MemoryBytes)
	case s.mu.bodies+n > s.cfg.MemoryBytes:
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

// notifyChange tells everybody that something changed, and looks whether a closed scribed is empty. The caller holds mu.
func (s *Scribed) notifyChange() {
	q := &s.mu.queue
	wake(s.changed)
	if s.spool != nil && (q.closing || float64(q.used) > s.cfg.SpillAbove*float64(s.cfg.MemoryBytes)) && !s.now().Before(s.mu.quietTill) {
		wake(s.crowded)
	}
	q.wakeBlocked()
	if q.closing && !s.mu.idle && q.used == 0 && q.running == 0 {
		s.mu.idle = true
		close(s.drained)
	}
}

// wake leaves a word for somebody who looks anyway when one is there.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sendLoop sends what the queue says when it says so.
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

// startRequests starts the requests that are due, and returns when to look again.
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

// retryAfter is when a request that was refused should be tried again: when the next request to the upstream has been answered,
// more or less. The caller holds mu.
func (s *Scribed) retryAfter() time.Duration {
	return max(s.mu.queue.notBefore.Sub(s.now()), 2*s.cfg.RetryBase)
}

// abandonCall ends the wait of a caller that gave up. What was never sent is taken back, so the error is a definite one if
// that is all. It is nil when everything has an outcome. It returns when the caller's bytes are not used any more.
func (s *Scribed) abandonCall(ctx context.Context, sub *pendingCall) error {
	s.mu.Lock()
	if sub.pending == 0 { // it was answered at the same moment
		s.mu.Unlock()
		return nil
	}
	q := &s.mu.queue
	var (
		inUse  []chan struct{}
		total  = len(sub.results)
		left   = sub.pending
		unsure = left < total
	)
	for _, e := range sub.entries {
		if len(e.frames) == 0 {
			continue
		}
		unsure = unsure || e.unsure
		if b := e.batch; b != nil {
			e.abandoned, unsure = true, true
			if e.mem == nil {
				inUse = append(inUse, b.unused)
				if b.wholeCall() == sub {
					b.cancel() // it is all that the request has
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
	if unsure {
		return rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "the upstream has not answered for %d of %d frames: %w", left, total, context.Cause(ctx))
	}
	return rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "the upstream did not take the frames in time, they are not stored: %w", context.Cause(ctx))
}
