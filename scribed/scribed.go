package scribed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/buffers"
	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
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
}

// Scribed is an rpc.WriteService. It is safe for concurrent use.
type Scribed struct {
	cfg     Config
	deps    Deps
	now     func() time.Time
	metrics *metrics
	buffers buffers.Pool // of entries and of requests to the upstream

	// ctx ends when Close loses its patience.
	ctx    context.Context //nolint:containedctx // entries outlive the requests that brought them
	cancel context.CancelCauseFunc
	// tasks are the loop's goroutine and one for each request to the upstream.
	tasks   sync.WaitGroup
	changed chan struct{} // buffered: the loop must look at the queue
	drained chan struct{} // closed when scribed is closed and nothing is left or Close has given up
	ended   chan struct{} // closed when Close has released everything

	mu struct {
		sync.Mutex
		queue  queue
		counts counts
		bodies int64 // bytes admitted by Admit
		closed bool
		idle   bool // drained is closed
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
		cfg:     cfg,
		deps:    deps,
		now:     deps.Clock,
		changed: make(chan struct{}, 1),
		drained: make(chan struct{}),
		ended:   make(chan struct{}),
	}
	s.mu.queue.cfg = cfg
	s.mu.queue.lanes = make(map[string]*lane)
	s.mu.counts.failed, s.mu.counts.dropped = make(map[string]amount), make(map[string]amount)
	s.metrics = newMetrics(s)
	if err := s.metrics.register(deps.Registerer); err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.tasks.Go(s.loop)
	return s, nil
}

// Admit charges a request's announced length before its body is read; it refuses with REASON_OVERLOADED and a hint, or with
// REASON_TOO_LARGE. release is to be called once the request is answered. Bodies have a budget of their own, as large as that of
// the frames: a body is read and then copied.
func (s *Scribed) Admit(n int64) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.mu.closed:
		return nil, errShutDown()
	case n > s.cfg.MemoryBytes:
		return nil, rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "the request has %d bytes, more than the agent's memory of %d: send less at once", n, s.cfg.MemoryBytes)
	case s.mu.bodies+n > s.cfg.MemoryBytes:
		s.mu.counts.refused++
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

var errClosed = errors.New("scribed: closed before everything was forwarded")

// Close refuses new requests and forwards what it holds. When ctx ends first, what is left is given up: whoever waits for it is
// told, it is counted as dropped, and the error says how much it was. Calling it again waits for the first call.
func (s *Scribed) Close(ctx context.Context) error {
	s.mu.Lock()
	again := s.mu.closed
	s.mu.closed = true
	s.mu.queue.closing = true
	s.settle()
	s.mu.Unlock()
	if again {
		select {
		case <-s.ended:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	var err error
	select {
	case <-s.drained:
	case <-ctx.Done():
		s.cancel(errClosed)
		err = s.giveUp()
	}
	s.cancel(nil)
	s.tasks.Wait()
	s.metrics.unregister(s.deps.Registerer)
	close(s.ended)
	return err
}

// settle tells the loop that something changed, and looks whether a closed scribed is empty. The caller holds mu.
func (s *Scribed) settle() {
	select {
	case s.changed <- struct{}{}:
	default: // it will look anyway
	}
	if s.mu.closed && !s.mu.idle && s.mu.queue.used == 0 && s.mu.queue.running == 0 {
		s.mu.idle = true
		close(s.drained)
	}
}

// loop sends what the queue says when it says so.
func (s *Scribed) loop() {
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		s.mu.Lock()
		now := s.now()
		var batches []*batch
		for b := s.mu.queue.next(now); b != nil; b = s.mu.queue.next(now) {
			batches = append(batches, b)
		}
		wake := s.mu.queue.wake(now)
		s.mu.Unlock()
		for _, b := range batches {
			s.tasks.Go(func() { s.send(b) })
		}
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

// giveUp ends what is left when Close is out of time.
func (s *Scribed) giveUp() error {
	// First the requests on their way: their frames come back to the queue or have an outcome.
	s.tasks.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	q := &s.mu.queue
	var lost amount
	for _, l := range slices.Collect(maps.Values(q.lanes)) {
		for _, e := range slices.Clone(l.entries) {
			for i := range e.frames {
				lost.plus(e.frames[i].amount())
			}
			q.withdraw(e)
			s.fail(e, &scribev1.ErrorInfo{Reason: lossReason(e), Message: errClosed.Error()})
			s.free(e)
		}
	}
	s.mu.idle = true
	if lost.frames == 0 {
		return nil
	}
	return fmt.Errorf("scribed: %d frames with %d messages and %d bytes could not be forwarded before the end", lost.frames, lost.messages, lost.bytes)
}

// lossReason is what the caller of an entry is told that is given up.
func lossReason(e *entry) scribev1.Reason {
	if e.unsure {
		return scribev1.Reason_REASON_UNKNOWN_OUTCOME
	}
	return scribev1.Reason_REASON_SHUTTING_DOWN
}
