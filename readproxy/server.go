package readproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readproxy/memcached"
)

// Server is the role. It is safe for concurrent use.
type Server struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	metrics *metrics
	gate    *gate
	cache   *cache
	flights flights
	shared  *memcached.Client // nil without the tier
	fills   fills
	views   *views
	zones   *zones
	peers   peers
	reads   *reads

	fetchBytes *semaphore.Weighted
	peerSlots  *semaphore.Weighted
	sent       atomic.Uint64 // bytes of payloads

	// running ends when fetches must.
	running context.Context
	stop    context.CancelFunc

	mu struct {
		sync.Mutex
		closing bool
		busy    int // requests and fetches
		// idle is closed when the last one has ended after closing began.
		idle chan struct{}
	}
}

var _ rpc.ReadProxyService = (*Server)(nil)

// New returns a role that serves until Close. It starts nothing.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := errors.Join(cfg.Validate(), deps.validate()); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, deps: deps, log: deps.Logger,
		fetchBytes: semaphore.NewWeighted(cfg.FetchBytes),
		peerSlots:  semaphore.NewWeighted(int64(cfg.Fetches)),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.running, s.stop = context.WithCancel(context.Background())
	s.mu.idle = make(chan struct{})
	s.flights.mu.under = make(map[blockKey]*flight)
	s.peers.mu.regions = make(map[string]*region)
	s.fills.s = s
	s.gate, s.reads = newGate(s), newReads(s)
	var err error
	if s.cache, err = newCache(cfg.CacheBytes); err != nil {
		return nil, fmt.Errorf("readproxy: make the cache: %w", err)
	}
	if cfg.Memcached != nil {
		if s.shared, err = memcached.New(*cfg.Memcached); err != nil {
			return nil, fmt.Errorf("readproxy: %w", err)
		}
	}
	if s.views, err = newViews(s); err != nil {
		return nil, fmt.Errorf("readproxy: %w", err)
	}
	if s.zones, err = newZones(s); err != nil {
		return nil, fmt.Errorf("readproxy: %w", err)
	}
	if s.metrics, err = newMetrics(deps.Registerer, s); err != nil {
		return nil, err
	}
	return s, nil
}

// Close refuses new requests and waits for those that are being served. When ctx ends first, fetches are cancelled, so requests that
// need them answer REASON_SHUTTING_DOWN, and the error says how many were cut off. Then the cache is released. Repeating it is
// harmless.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	first := !s.mu.closing
	if s.mu.closing = true; first && s.mu.busy == 0 {
		close(s.mu.idle)
	}
	s.mu.Unlock()
	var err error
	select {
	case <-s.mu.idle:
	case <-ctx.Done():
		s.mu.Lock()
		busy := s.mu.busy
		s.mu.Unlock()
		if busy > 0 {
			err = fmt.Errorf("readproxy: %d requests and fetches were cut off: %w", busy, context.Cause(ctx))
		}
	}
	s.stop()
	s.reads.stop()
	s.fills.close()
	s.zones.close()
	if s.shared != nil {
		s.shared.Close()
	}
	if first {
		s.cache.clear()
		s.metrics.close()
	}
	return err
}

// enter counts a request or a fetch in, unless the server is closing.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closing {
		return false
	}
	s.mu.busy++
	return true
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.busy--; s.mu.busy == 0 && s.mu.closing {
		close(s.mu.idle)
	}
}

func (s *Server) refusal() error {
	return rpc.RetryErrorf(scribev1.Reason_REASON_SHUTTING_DOWN, s.hint(), "the read proxy is shutting down: use another one")
}

// Fetch implements rpc.ReadProxyService.
func (s *Server) Fetch(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	s.metrics.requests.Inc()
	res, err := s.serve(ctx, req)
	if err != nil {
		s.metrics.refused.WithLabelValues(label(rpc.ReasonOf(err))).Inc()
		return nil, err
	}
	for _, p := range res.GetPayloads() {
		if e := p.GetError(); e != nil {
			s.metrics.errors.WithLabelValues(label(e.GetReason())).Inc()
			continue
		}
		s.metrics.payloads.Inc()
		s.metrics.payloadBytes.Add(float64(len(p.GetData())))
		s.sent.Add(uint64(len(p.GetData())))
	}
	return res, nil
}

func (s *Server) serve(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	if !s.enter() {
		return nil, s.refusal()
	}
	defer s.leave()
	s.metrics.inFlight.Inc()
	defer s.metrics.inFlight.Dec()
	encoding, cat, err := s.check(ctx, req)
	if err != nil {
		return nil, err
	}
	var wanted *asked
	if encoding == scribev1.PayloadEncoding_PAYLOAD_ENCODING_ARROW && req.GetView() != nil {
		if wanted, err = s.views.ask(ctx, cat, req); err != nil {
			return nil, err
		}
	}
	a := newAnswer(s, encoding, cat, req, wanted)
	leave, err := s.gate.enter(ctx, a.cost)
	if err != nil {
		return nil, err
	}
	defer leave(0)
	if wanted != nil {
		err = a.makeViews(ctx)
	} else {
		err = a.load(ctx)
	}
	if err != nil {
		return nil, err
	}
	res := a.make()
	s.gate.depart(ctx, a, leave)
	return res, nil
}

// check validates a request and its category, and reports every fault. The category is nil when it is not known and need not be.
func (s *Server) check(ctx context.Context, req *scribev1.FetchRequest) (scribev1.PayloadEncoding, *scribev1.Category, error) {
	var errs []error
	if err := record.ValidateCategory(req.GetCategory()); err != nil {
		errs = append(errs, err)
	}
	if n := len(req.GetPointers()); n < 1 || n > maxPointers {
		errs = append(errs, fmt.Errorf("%d pointers, there must be 1 to %d", n, maxPointers))
	}
	encoding := req.GetEncoding()
	switch encoding {
	case scribev1.PayloadEncoding_PAYLOAD_ENCODING_UNSPECIFIED:
		encoding = scribev1.PayloadEncoding_PAYLOAD_ENCODING_RAW
	case scribev1.PayloadEncoding_PAYLOAD_ENCODING_RAW, scribev1.PayloadEncoding_PAYLOAD_ENCODING_ARROW,
		scribev1.PayloadEncoding_PAYLOAD_ENCODING_JSON, blockEncoding:
	default:
		errs = append(errs, fmt.Errorf("encoding %d is unknown", encoding))
	}
	if err := errors.Join(errs...); err != nil {
		return 0, nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "fetch of payloads: %w", err)
	}
	cat, ok := s.deps.Categories.Lookup(req.GetCategory())
	switch {
	case ok:
	case req.GetPeer() || s.foreign(req.GetPointers()):
		// Another region's category need not be known here.
	default:
		var err error
		if cat, err = s.deps.Categories.Resolve(ctx, req.GetCategory()); err != nil {
			return 0, nil, err
		}
	}
	return encoding, cat, nil
}

// foreign reports whether all pointers are to blobs of other regions.
func (s *Server) foreign(pointers [][]byte) bool {
	return !slices.ContainsFunc(pointers, func(encoded []byte) bool {
		p, err := pointer.Decode(encoded)
		return err != nil || s.local(p.Region) == ""
	})
}
