package readproxy

import (
	"context"
	"errors"
	"sync"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/role/admission"
	"scribe/internal/role/budget"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// admissionGate decides which requests are served: a token bucket against herds, then the input queue, whose length a controller sets.
type admissionGate struct {
	s         *Server
	bodies    *budget.Budget
	perSecond *admission.TokenBucket
	queue     *admission.Queue
	sending   sentAnswers
	control   struct {
		sync.Mutex
		meter      *admission.LoadMeter
		controller *admission.LengthController
	}
}

func newGate(s *Server) *admissionGate {
	g := &admissionGate{
		s:         s,
		perSecond: admission.NewBucket(s.cfg.RequestsPerSecond, float64(s.cfg.RequestBurst)),
		queue:     admission.NewQueue(s.cfg.RequestBytes, s.cfg.Queue.Most, s.cfg.QueueTimeout),

		bodies: budget.New("requests that the read proxy reads", max(s.cfg.RequestBytes/bodyShare, leastBodies)),
	}
	g.sending.blocks = make(map[*checkedBlock]int)
	g.control.meter = admission.NewMeter(s.deps.CPUTime, s.cfg.NetworkBytesPerSecond)
	g.control.controller = admission.NewController(s.cfg.Queue)
	return g
}

// sampleEvery is the minimum time between two measurements of the host's utilisation. Requests trigger them: without requests
// there is nothing to control.
const sampleEvery = 100 * time.Millisecond

// resizeQueue updates the queue's length. It returns at once if another request is updating it.
func (g *admissionGate) resizeQueue() {
	if !g.control.TryLock() {
		return
	}
	defer g.control.Unlock()
	if u, dt, ok := g.control.meter.Sample(time.Now(), g.s.sent.Load(), sampleEvery); ok {
		g.queue.Resize(g.control.controller.AdjustLength(u, dt))
	}
}

func (g *admissionGate) utilisation() float64 {
	g.control.Lock()
	defer g.control.Unlock()
	return g.control.controller.Utilisation()
}

// Bounds on requests while they are received and decoded: Config.RequestBytes divided by bodyShare, but at least leastBodies.
const (
	bodyShare   = 4
	leastBodies = 1 << 20
	// decodedShare is the memory of a decoded pointer and its state, as a multiple of its encoded length.
	decodedShare = 4
)

// requestMemory returns about what Admit has charged for a request.
func requestMemory(req *scribev1.FetchRequest) (n int64) {
	for _, p := range req.GetPointers() {
		n += int64(len(p))
	}
	return decodedShare * n
}

// Admit is called before n bytes of a request are read. The caller calls release once the request was answered.
func (s *Server) Admit(n int64) (release func(), err error) {
	release, err = s.gate.bodies.Admit(decodedShare * n)
	if err != nil {
		s.metrics.denied.WithLabelValues("body").Inc()
		s.metrics.refused.WithLabelValues(rpc.ReasonLabel(rpc.ReasonOf(err))).Inc()
	}
	return release, err
}

// sentAnswers are the answers that are being sent. Their bytes stay charged until then, since a slow reader keeps them in memory.
// A block in several answers counts once, because answers do not copy it.
type sentAnswers struct {
	mu     sync.Mutex
	blocks map[*checkedBlock]int // the number of answers with the block
	bytes  int64
}

// countAnswer adds an answer's blocks and own bytes (by is 1) or removes them (by is -1). It returns the bytes that the answer
// takes in addition to those of other answers.
func (o *sentAnswers) countAnswer(blocks []*checkedBlock, own int64, by int) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := own
	for _, b := range blocks {
		before := o.blocks[b]
		if o.blocks[b] += by; o.blocks[b] == 0 {
			delete(o.blocks, b)
		}
		if before == 0 || before+by == 0 {
			n += b.chargedBytes()
		}
	}
	o.bytes += int64(by) * n
	return n
}

func (o *sentAnswers) heldBytes() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes
}

// releaseWhenSent ends a request whose answer is built. The memory of the answer stays charged until it has been sent. A caller
// in this process owns the answer from now on, so nothing stays charged.
func (g *admissionGate) releaseWhenSent(ctx context.Context, a *fetchAnswer, leave func(keep int64)) {
	blocks := a.sentBlocks()
	free := func() { g.queue.FreeBytes(g.sending.countAnswer(blocks, a.own, -1)) }
	leave(g.sending.countAnswer(blocks, a.own, 1))
	if !rpc.WhenAnswered(ctx, free) {
		free()
	}
}

// enterRequest admits a request that needs cost bytes. The caller ends it with leave.
func (g *admissionGate) enterRequest(ctx context.Context, cost int64) (leave func(keep int64), err error) {
	s := g.s
	g.resizeQueue()
	if after, ok := g.perSecond.TakeToken(time.Now()); !ok {
		s.metrics.denied.WithLabelValues("herd").Inc()
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, after,
			"the read proxy takes %.0f requests a second: retry after the hint, or try another one", s.cfg.RequestsPerSecond)
	}
	begin := time.Now()
	leave, err = g.queue.Enter(ctx, cost)
	switch {
	case errors.Is(err, admission.ErrFull):
		s.metrics.denied.WithLabelValues("queue").Inc()
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, s.retryHint(), "the read proxy is busy: retry, or try another one: %w", err)
	case errors.Is(err, admission.ErrLate):
		s.metrics.denied.WithLabelValues("late").Inc()
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, s.retryHint(),
			"the requests being served use all %d bytes for them: retry, or try another read proxy: %w", s.cfg.RequestBytes, err)
	case err != nil:
		return nil, err
	}
	s.metrics.admitted.Inc()
	s.metrics.queueSeconds.Observe(time.Since(begin).Seconds())
	return leave, nil
}

// retryHint returns a jittered retry hint, so that requests refused together do not return together.
func (s *Server) retryHint() time.Duration {
	return backoff.Jitter(s.deps.Random, s.cfg.RetryAfter, 0.5)
}
