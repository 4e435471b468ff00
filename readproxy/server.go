package readproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"scribe/internal/base/lifecycle"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/role/budget"
	"scribe/internal/role/quota"
	"scribe/internal/role/restrict"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readproxy/memcached"
)

// Server is a read proxy. It is safe for concurrent use.
type Server struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	metrics *roleMetrics
	gate    *admissionGate
	cache   *blockCache
	shared  *memcached.Client // nil without the tier
	fills   *memcachedFiller
	views   *viewServer
	zones   *zoneWriter
	reads   *storeReader
	tails   *tailReads
	pushes  *budget.Budget // pushes that are being read
	quotas  *quota.Registry
	// tables are what readers have who are limited to some rows and columns.
	tables *restrict.Cache
	// peekers are decoders that read the beginnings of blocks.
	peekers sync.Pool

	// fetches are the running fetches, regions the other regions that have peers.
	fetches struct {
		sync.Mutex
		running map[blockKey]*blockFetch
	}
	regions struct {
		sync.Mutex
		named map[string]*peerRegion
	}

	fetchBytes *semaphore.Weighted
	peerSlots  *semaphore.Weighted
	sent       atomic.Uint64 // bytes of payloads

	// running is canceled to end fetches.
	running context.Context
	stop    context.CancelFunc

	calls lifecycle.Calls // requests and fetches
}

var (
	_ rpc.ReadProxyService = (*Server)(nil)
	_ rpc.PushService      = (*Server)(nil)
)

// New returns a server, to be closed with Close. It starts no goroutine. The error reports every violation.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := errors.Join(cfg.Validate(), deps.validate()); err != nil {
		return nil, err
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Tenants == nil {
		deps.Tenants = func() *quota.Tenants { return nil }
	}
	s := &Server{
		cfg: cfg, deps: deps, log: cmp.Or(deps.Logger, slog.New(slog.DiscardHandler)),
		fetchBytes: semaphore.NewWeighted(cfg.FetchBytes),
		peerSlots:  semaphore.NewWeighted(int64(cfg.Fetches)),
	}
	s.tables = restrict.NewCache(s.log)
	s.peekers.New = newPeeker
	s.running, s.stop = context.WithCancel(context.Background())
	s.fetches.running = make(map[blockKey]*blockFetch)
	s.regions.named = make(map[string]*peerRegion)
	begin := time.Now()
	// What waits for quotas has half of the memory for requests: the rest is for those that don't.
	s.quotas = quota.NewRegistry(func() time.Duration { return time.Since(begin) }, deps.Sharers, max(cfg.RequestBytes/bodyShare, leastBodies)/2)
	s.gate, s.reads, s.fills = newGate(s), newReads(s), newFills(s)
	var err error
	if s.cache, err = newCache(cfg.CacheBytes); err != nil {
		return nil, fmt.Errorf("readproxy: make the cache: %w", err)
	}
	if cfg.Memcached != nil {
		if s.shared, err = memcached.New(*cfg.Memcached); err != nil {
			return nil, fmt.Errorf("readproxy: %w", err)
		}
	}
	s.pushes = budget.New("blocks that batchers push", max(cfg.RequestBytes/bodyShare, leastBodies))
	if s.tails, err = newTailReads(cfg.PushInterest, deps.Random); err != nil {
		return nil, fmt.Errorf("readproxy: %w", err)
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

// Close refuses new requests and waits for the running ones. If ctx ends first, it cancels fetches; requests that need them fail
// with REASON_SHUTTING_DOWN, and the error has their number. Then it releases the cache.
func (s *Server) Close(ctx context.Context) error {
	return s.calls.Close(ctx, func() error {
		err := s.calls.Wait(ctx)
		if err != nil {
			err = fmt.Errorf("readproxy: %d requests and fetches were cut off: %w", s.calls.Running(), err)
		}
		s.stop()
		s.reads.stopWaiting()
		s.fills.stopWriting()
		s.zones.stopWriting()
		if s.shared != nil {
			s.shared.Close()
		}
		s.cache.clear()
		s.metrics.set.Unregister()
		return err
	})
}

// Load returns how busy the read proxy is, 0 (idle) to 1000 (refusing): the used part of its queue, whose length follows the use of the
// processors and the network, or of its memory if that is more.
func (s *Server) Load() uint32 {
	q := s.gate.queue.ReadState()
	inside := float64(q.Inside) / float64(max(q.Length, 1))
	held := float64(q.Bytes) / float64(max(s.cfg.RequestBytes, 1))
	return uint32(1000 * min(max(inside, held, s.gate.bodies.UsedPart()), 1))
}

// Quotas returns the quotas for reading, for who reports what they want.
func (s *Server) Quotas() *quota.Registry { return s.quotas }

func (s *Server) shutdownError() error {
	return rpc.RetryErrorf(scribev1.Reason_REASON_SHUTTING_DOWN, s.retryHint(), "the read proxy is shutting down: try another one")
}

// Fetch implements rpc.ReadProxyService.
func (s *Server) Fetch(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	s.metrics.requests.Inc()
	res, err := s.serveFetch(ctx, req)
	if err != nil {
		s.metrics.refused.WithLabelValues(rpc.ReasonLabel(rpc.ReasonOf(err))).Inc()
		return nil, err
	}
	for _, p := range res.GetPayloads() {
		if e := p.GetError(); e != nil {
			s.metrics.errors.WithLabelValues(rpc.ReasonLabel(e.GetReason())).Inc()
			continue
		}
		s.metrics.payloads.Inc()
		s.metrics.payloadBytes.Add(float64(len(p.GetData())))
		s.sent.Add(uint64(len(p.GetData())))
	}
	return res, nil
}

func (s *Server) serveFetch(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	if !s.calls.Enter() {
		return nil, s.shutdownError()
	}
	defer s.calls.Leave()
	s.metrics.inFlight.Inc()
	defer s.metrics.inFlight.Dec()
	encoding, cat, err := s.checkRequest(ctx, req)
	if err != nil {
		return nil, err
	}
	limited, cat, err := s.limitsOf(ctx, encoding, cat, req)
	if err != nil {
		return nil, err
	}
	var wanted *viewRequest
	if encoding == scribev1.PayloadEncoding_PAYLOAD_ENCODING_ARROW && req.GetView() != nil {
		if wanted, err = s.views.parseRequest(ctx, cat, req, limited); err != nil {
			return nil, err
		}
	}
	table := limited.tableFor(wanted)
	a := newAnswer(s, encoding, cat, req, wanted, table)
	a.held = requestMemory(req)
	a.noteTailRead(req.GetSole())
	if err := s.limitAnswer(ctx, cat, a, req.GetAcceptsSamples()); err != nil {
		return nil, err
	}
	leave, err := s.gate.enterRequest(ctx, a.cost)
	if err != nil {
		return nil, err
	}
	defer leave(0)
	if wanted != nil {
		err = a.makeViews(ctx)
	} else {
		err = s.loadBlocks(ctx, a)
	}
	if err != nil {
		return nil, err
	}
	res := a.buildResponse(ctx)
	a.countTraffic(cat, res)
	s.gate.releaseWhenSent(ctx, a, leave)
	return res, nil
}

// checkRequest validates a request and its category, and reports every violation. The category is nil if it is unknown and need
// not be known.
func (s *Server) checkRequest(ctx context.Context, req *scribev1.FetchRequest) (scribev1.PayloadEncoding, *scribev1.Category, error) {
	var errs []error
	if err := record.ValidateCategory(req.GetCategory()); err != nil {
		errs = append(errs, err)
	}
	if n := len(req.GetPointers()); n < 1 || n > maxPointers {
		errs = append(errs, fmt.Errorf("invalid number of pointers %d: want 1 to %d", n, maxPointers))
	}
	encoding := req.GetEncoding()
	switch encoding {
	case scribev1.PayloadEncoding_PAYLOAD_ENCODING_UNSPECIFIED:
		encoding = scribev1.PayloadEncoding_PAYLOAD_ENCODING_RAW
	case scribev1.PayloadEncoding_PAYLOAD_ENCODING_RAW, scribev1.PayloadEncoding_PAYLOAD_ENCODING_ARROW,
		scribev1.PayloadEncoding_PAYLOAD_ENCODING_JSON, blockEncoding:
	default:
		errs = append(errs, fmt.Errorf("invalid encoding %d: want RAW, ARROW, JSON or BLOCK", encoding))
	}
	if err := errors.Join(errs...); err != nil {
		return 0, nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "fetch payloads: %w", err)
	}
	cat, ok := s.deps.Categories.Lookup(req.GetCategory())
	switch {
	case ok:
	case req.GetPeer() || s.allForeign(req.GetPointers()):
		// Another region's category need not be known here.
	default:
		var err error
		if cat, err = s.deps.Categories.Resolve(ctx, req.GetCategory()); err != nil {
			return 0, nil, err
		}
	}
	return encoding, cat, nil
}

// allForeign reports whether all pointers are to blobs of other regions.
func (s *Server) allForeign(pointers [][]byte) bool {
	return !slices.ContainsFunc(pointers, func(encoded []byte) bool {
		p, err := pointer.Decode(encoded)
		return err != nil || s.localName(p.Region) == ""
	})
}
