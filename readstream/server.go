package readstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/base/lifecycle"
	"scribe/internal/role/admission"
	"scribe/internal/role/queryplan"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readstream/feed"
	"scribe/readstream/merge"
)

// Server is the role. It is safe for concurrent use.
type Server struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	clock   func() time.Time
	metrics *roleMetrics
	budget  *merge.Budget
	hub     *feed.Hub
	plans   *queryplan.Cache
	gate    *admission.Gate // of streams that are being opened
	// cursors counts the followed shards, once for each stream.
	cursors atomic.Int64
	// relieved is when streams last gave back memory.
	relieved atomic.Int64

	calls lifecycle.Calls // the admitted streams

	// evicting ends when Close begins, gone when streams must end without a notice.
	evicting  context.Context
	evict     context.CancelFunc
	balancing sync.WaitGroup
	gone      context.Context
	leave     context.CancelFunc

	mu struct {
		sync.Mutex
		// open are the running streams; rate is the pointers per second that they sent at the last measurement, measured their
		// number then.
		open     map[*consumerStream]struct{}
		rate     float64
		measured int
	}
}

var _ rpc.ReadStreamService = (*Server)(nil)

// New returns a role that serves until Close.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := errors.Join(cfg.Validate(), deps.validate()); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, deps: deps, log: cmp.Or(deps.Logger, slog.New(slog.DiscardHandler)), clock: deps.Clock,
		budget: merge.NewBudget(int64(cfg.TotalBytes)),
	}
	if s.clock == nil {
		s.clock = time.Now
	}
	s.gate = newGate(&s.cfg, time.Now())
	s.evicting, s.evict = context.WithCancel(context.Background())
	s.gone, s.leave = context.WithCancel(context.Background())
	s.mu.open = map[*consumerStream]struct{}{}
	s.hub = feed.NewHub(
		feed.Config{Heartbeat: cfg.TailHeartbeat, LookPause: cfg.LookPause, LookEvery: cfg.LookEvery, FailAfter: cfg.FailAfter},
		feed.Deps{Log: deps.Log, Logger: s.log, Failed: func(call string) { s.metrics.engineErrors.WithLabelValues(call).Inc() }},
	)
	var err error
	if s.plans, err = queryplan.NewCache(planBytes); err != nil {
		return nil, err
	}
	s.metrics, err = newMetrics(deps.Registerer, s)
	if err != nil {
		return nil, err
	}
	s.balancing.Go(func() { s.balanceStreams(s.evicting) })
	return s, nil
}

// Close refuses new streams, evicts every open one with its positions, and waits until they have ended. When ctx ends first,
// streams whose clients do not accept the eviction are abandoned: they end when their send returns, and the error states their
// number. Repeated calls are harmless.
func (s *Server) Close(ctx context.Context) error {
	first := s.calls.Drain()
	s.evict()
	err := s.calls.Wait(ctx)
	s.leave()
	if left := s.calls.Running(); err != nil && left > 0 {
		err = fmt.Errorf("readstream: %d streams did not end: %w", left, err)
	} else {
		err = nil
	}
	s.balancing.Wait()
	if first {
		s.metrics.set.Unregister()
	}
	return err
}

// Stream implements rpc.ReadStreamService.
func (s *Server) Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
	if err := s.admitStream(); err != nil {
		s.metrics.refused.WithLabelValues(rpc.ReasonLabel(rpc.ReasonOf(err))).Inc()
		return err
	}
	defer s.calls.Leave()
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.gone, cancel)()

	st, err := s.openStream(ctx, recv, send)
	if err != nil {
		if s.gone.Err() != nil {
			err = s.closingError()
		}
		s.metrics.refused.WithLabelValues(rpc.ReasonLabel(rpc.ReasonOf(err))).Inc()
		return err
	}
	s.metrics.opened.Inc()
	st.log.Info("stream opened", "shards", st.merge.Shards())
	s.enlistStream(st)
	err = st.runStream(ctx, recv)
	s.delistStream(st)
	if s.gone.Err() != nil && err != nil {
		err = s.closingError()
	}
	s.noteEnded(st, err)
	return err
}

func (s *Server) noteEnded(st *consumerStream, err error) {
	reason := rpc.ReasonOf(err)
	switch {
	case err == nil:
		s.metrics.ended.WithLabelValues("evicted").Inc()
	case reason == scribev1.Reason_REASON_UNSPECIFIED || reason == scribev1.Reason_REASON_UNKNOWN_OUTCOME:
		// The transport broke, or the client went away: not an error of this role.
		s.metrics.ended.WithLabelValues("none").Inc()
	default:
		s.metrics.ended.WithLabelValues(rpc.ReasonLabel(reason)).Inc()
	}
	log := st.log
	if err != nil && !errors.Is(err, context.Canceled) {
		log = log.With("error", err)
	}
	log.Info("stream ended", "pointers", st.sentPointers.Load())
}

func (s *Server) admitStream() error {
	s.mu.Lock() // serializes the check of the limits with the admission
	defer s.mu.Unlock()
	switch {
	case s.calls.Running() >= s.cfg.MaxStreams:
		return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, s.cfg.RetryAfter,
			"%d streams are open, the limit of this server: try again, or another server", s.cfg.MaxStreams)
	case !s.calls.Enter():
		return s.closingError()
	}
	return nil
}

// enlistStream adds a stream to those that are balanced.
func (s *Server) enlistStream(st *consumerStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.since = s.clock()
	s.mu.open[st] = struct{}{}
}

func (s *Server) delistStream(st *consumerStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.open, st)
}

func (s *Server) closingError() error {
	return rpc.RetryErrorf(scribev1.Reason_REASON_SHUTTING_DOWN, s.cfg.RetryAfter, "the read stream server is shutting down: use another one")
}

// receiveStart receives the StreamStart.
func (s *Server) receiveStart(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error)) (*scribev1.StreamStart, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StartTimeout)
	defer cancel()
	defer context.AfterFunc(s.evicting, cancel)() // a stream that has not begun does not delay Close
	req, err := recv(ctx)
	switch {
	case err == nil && req.GetStart() != nil:
		return req.GetStart(), nil
	case err == nil:
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "the first step of a stream must be a StreamStart")
	case errors.Is(err, io.EOF):
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "the stream ended before its StreamStart")
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "no StreamStart came within %v", s.cfg.StartTimeout)
	case s.evicting.Err() != nil:
		return nil, s.closingError()
	}
	return nil, err
}
