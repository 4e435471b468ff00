package readproxy

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readproxy/admission"
)

// gate decides which requests are served: a token bucket against herds, then the input queue, whose length a controller sets.
type gate struct {
	s      *Server
	herd   *admission.Bucket
	queue  *admission.Queue
	steady struct {
		sync.Mutex
		meter      *admission.Meter
		controller *admission.Controller
	}
}

func newGate(s *Server) *gate {
	g := &gate{
		s:     s,
		herd:  admission.NewBucket(s.cfg.RequestsPerSecond, float64(s.cfg.RequestBurst)),
		queue: admission.NewQueue(s.cfg.RequestBytes, s.cfg.Queue.Most, s.cfg.QueueTimeout),
	}
	g.steady.meter = admission.NewMeter(s.deps.CPUTime, s.cfg.NetworkBytesPerSecond)
	g.steady.controller = admission.NewController(s.cfg.Queue)
	return g
}

// sampleEvery is the least time between two looks at how busy the host is. Requests take them: without any there is nothing to
// control.
const sampleEvery = 100 * time.Millisecond

// regulate brings the queue's length up to date. Who finds somebody else at it goes on.
func (g *gate) regulate() {
	if !g.steady.TryLock() {
		return
	}
	defer g.steady.Unlock()
	if u, dt, ok := g.steady.meter.Sample(time.Now(), g.s.sent.Load(), sampleEvery); ok {
		g.queue.Resize(g.steady.controller.Step(u, dt))
	}
}

func (g *gate) utilisation() float64 {
	g.steady.Lock()
	defer g.steady.Unlock()
	return g.steady.controller.Utilisation()
}

// enter lets a request in that needs so many bytes; it leaves with leave.
func (g *gate) enter(ctx context.Context, cost int64) (leave func(), err error) {
	s := g.s
	g.regulate()
	if after, ok := g.herd.Take(time.Now()); !ok {
		s.metrics.denied.WithLabelValues("herd").Inc()
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, after,
			"more than %.0f requests a second: try again then, or another server", s.cfg.RequestsPerSecond)
	}
	begin := time.Now()
	leave, err = g.queue.Enter(ctx, cost)
	switch {
	case errors.Is(err, admission.ErrFull):
		s.metrics.denied.WithLabelValues("queue").Inc()
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, s.hint(), "the read proxy is busy: try again, or another server: %w", err)
	case errors.Is(err, admission.ErrLate):
		s.metrics.denied.WithLabelValues("late").Inc()
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, s.hint(),
			"the requests being served take all of the %d bytes for them: try again, or another server: %w", s.cfg.RequestBytes, err)
	case err != nil:
		return nil, err
	}
	s.metrics.queueSeconds.Observe(time.Since(begin).Seconds())
	return leave, nil
}

// hint is when to come back, spread so that those who are refused together do not come together.
func (s *Server) hint() time.Duration {
	if s.cfg.RetryAfter == 0 {
		return 0
	}
	return s.cfg.RetryAfter/2 + rand.N(s.cfg.RetryAfter)
}
