package readproxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/role/admission"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Peer serves blocks of another region from the caches of that region's read proxies.
type Peer interface {
	// Fetch is the method of rpc.ReadProxyService.
	Fetch(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error)
}

// Bounds on one request to a peer: an answer is cut at 32 MiB.
const (
	peerPointers = 100
	peerBytes    = 16 << 20
)

// After trip failures in a row a peer is not asked for a while. Meanwhile the region's store is read if it can be reached from
// here; otherwise requests fail at once with an error that says that the region is unavailable and when to retry. One request
// tries from time to time.
const (
	peerTrip         = 3
	peerFirstPause   = time.Second
	peerLongestPause = 10 * time.Second
)

// peerRegion is the health of one region's read proxies.
type peerRegion struct {
	breaker *admission.Breaker
	// failure is the last error.
	failure atomic.Pointer[error]
}

func (s *Server) regionNamed(name string) *peerRegion {
	s.regions.Lock()
	defer s.regions.Unlock()
	r := s.regions.named[name]
	if r == nil {
		r = &peerRegion{breaker: admission.NewBreaker(peerTrip, peerFirstPause, peerLongestPause)}
		s.regions.named[name] = r
	}
	return r
}

// countPausedRegions returns the number of regions that are not asked at present.
func (s *Server) countPausedRegions() (n int) {
	s.regions.Lock()
	defer s.regions.Unlock()
	for _, r := range s.regions.named {
		if r.breaker.Tripped() {
			n++
		}
	}
	return n
}

// pausedError returns the error of requests to the region while it is not asked.
func (s *Server) pausedError(r *peerRegion) error {
	reason, last := scribev1.Reason_REASON_NO_BACKEND, errors.New("failed")
	if p := r.failure.Load(); p != nil {
		if last = *p; isPassing(last) {
			reason = rpc.ReasonOf(last)
		}
	}
	pause := r.breaker.PauseLeft(time.Now())
	// Not wrapped: an error must have only one reason.
	return rpc.RetryErrorf(reason, pause+s.retryHint(), "the read proxies failed, next try in %v: %v", pause, last)
}

// isPassing reports whether the reason of a peer's error is a temporary state of the peer.
func isPassing(err error) bool {
	switch rpc.ReasonOf(err) {
	case scribev1.Reason_REASON_OVERLOADED, scribev1.Reason_REASON_SHUTTING_DOWN, scribev1.Reason_REASON_NO_BACKEND:
		return true
	default:
		return false
	}
}

// localName returns the name of a region's store here: the server's own region is the local one.
func (s *Server) localName(region string) string {
	if region == s.cfg.Region {
		return ""
	}
	return region
}

// peerOf returns the read proxy of a region to ask for blocks; nil if there is none.
func (s *Server) peerOf(region string) Peer {
	if region = s.localName(region); region == "" || s.deps.Peers == nil {
		return nil
	}
	return s.deps.Peers(region)
}

// fromPeers ends the fetches whose blocks a peer of another region delivers. It returns those to be read from a store: the blocks
// of this region, and those that a peer did not deliver although the region's store can be reached from here. A fetch that a peer
// asked for goes to the store only, so two regions that name each other never ask in a circle.
func (s *Server) fromPeers(fs []*blockFetch) []*blockFetch {
	var (
		rest   []*blockFetch
		groups = map[string][]*blockFetch{}
	)
	for _, f := range fs {
		if f.peer || f.p.Codec.IsEncrypted() || s.peerOf(f.p.Region) == nil { // peers would send what is stored
			rest = append(rest, f)
		} else {
			groups[f.p.Region] = append(groups[f.p.Region], f)
		}
	}
	if len(groups) == 0 {
		return rest
	}
	var (
		all sync.WaitGroup
		mu  sync.Mutex
	)
	for name, group := range groups {
		for _, part := range splitRequests(group) {
			all.Go(func() {
				left := s.fromPeer(name, part)
				mu.Lock()
				defer mu.Unlock()
				rest = append(rest, left...)
			})
		}
	}
	all.Wait()
	return rest
}

// splitRequests divides fetches into requests. All pointers of a request are of one category, for the peer's metrics and rules.
func splitRequests(fs []*blockFetch) [][]*blockFetch {
	var out [][]*blockFetch
	bytes := int64(0)
	for i, f := range fs {
		n := int64(f.p.BlockLen)
		if i == 0 || bytes+n > peerBytes || len(out[len(out)-1]) >= peerPointers || f.category != fs[i-1].category {
			out, bytes = append(out, nil), 0
		}
		out[len(out)-1] = append(out[len(out)-1], f)
		bytes += n
	}
	return out
}

// fromPeer asks one region's peer, and returns the fetches that are to be read from a store.
func (s *Server) fromPeer(name string, fs []*blockFetch) (rest []*blockFetch) {
	ctx, cancel := context.WithTimeout(s.running, s.cfg.PeerTimeout)
	defer cancel()
	if err := s.peerSlots.Acquire(ctx, 1); err != nil {
		return s.withoutPeer(fs, err)
	}
	defer s.peerSlots.Release(1)
	r := s.regionNamed(name)
	if !r.breaker.Allow(time.Now()) {
		return s.withoutPeer(fs, s.pausedError(r))
	}
	peer := s.peerOf(name)
	for len(fs) > 0 {
		n, left, err := s.askPeer(ctx, peer, fs)
		rest = append(rest, left...)
		fs = fs[n:]
		if err != nil {
			failed := s.running.Err() == nil // otherwise this server is shutting down; the peer did not fail
			if failed {
				s.log.Warn("read proxies of another region failed", "region", name, "error", err)
				r.failure.Store(&err)
			}
			r.breaker.ReportResult(time.Now(), !failed)
			return append(rest, s.withoutPeer(fs, err)...)
		}
	}
	r.breaker.ReportResult(time.Now(), true)
	return rest
}

// askPeer sends one request. It handles the first n fetches; left are those of them to be read from a store.
func (s *Server) askPeer(ctx context.Context, peer Peer, fs []*blockFetch) (n int, left []*blockFetch, err error) {
	req := &scribev1.FetchRequest{
		Pointers: make([][]byte, len(fs)), Encoding: scribev1.PayloadEncoding_PAYLOAD_ENCODING_BLOCK, Category: fs[0].category, Peer: true,
	}
	for i, f := range fs {
		req.Pointers[i] = pointer.Append(nil, &f.p)
	}
	s.metrics.peerRequests.Inc()
	res, err := peer.Fetch(ctx, req)
	if err != nil {
		return 0, nil, err
	}
	payloads := res.GetPayloads()
	if len(payloads) == 0 || len(payloads) > len(fs) {
		return 0, nil, fmt.Errorf("readproxy: the peer answered %d pointers with %d payloads", len(fs), len(payloads))
	}
	for i, p := range payloads {
		f := fs[i]
		switch err := s.fromAnswer(f, p); {
		case err == nil:
		case rpc.ReasonOf(err) == scribev1.Reason_REASON_MISSING, rpc.ReasonOf(err) == scribev1.Reason_REASON_TRIMMED:
			s.endFetch(f, nil, err) // its own region decides that
		default:
			left = append(left, s.withoutPeer(fs[i:i+1], err)...)
		}
	}
	return len(payloads), left, nil
}

// fromAnswer ends a fetch with a peer's payload, if that is its block.
func (s *Server) fromAnswer(f *blockFetch, p *scribev1.Payload) error {
	if info := p.GetError(); info != nil {
		return rpc.FromInfo(info)
	}
	stored := p.GetData()
	s.metrics.peerBytes.Add(float64(len(stored)))
	if err := checkStored(&f.p, stored); err != nil {
		s.metrics.damaged.WithLabelValues(tierRegion).Inc()
		return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, s.retryHint(), "%s does not match its checksum as another region sent it, retry: %w", describePayload(&f.p), err)
	}
	s.metrics.hits.WithLabelValues(tierRegion).Inc()
	s.metrics.saved.WithLabelValues(tierRegion).Add(float64(len(stored)))
	s.fills.blockFetched(&f.rule, &f.p, stored)
	s.endWithBlock(f, stored, tierRegion)
	return nil
}

// withoutPeer handles fetches that their region's peer did not deliver. It returns those that the region's store can serve, and
// ends the others with the error.
func (s *Server) withoutPeer(fs []*blockFetch, err error) (rest []*blockFetch) {
	for _, f := range fs {
		s.metrics.misses.WithLabelValues(tierRegion).Inc()
		if _, noStore := s.deps.Blobs(s.localName(f.p.Region)); noStore == nil && s.running.Err() == nil {
			s.metrics.fallbacks.Inc()
			rest = append(rest, f)
			continue
		}
		s.endFetch(f, nil, s.unreachableError(f, err))
	}
	return rest
}

// unreachableError returns the error of a fetch that only its region's peer can serve, which failed with err.
func (s *Server) unreachableError(f *blockFetch, err error) error {
	reason := rpc.ReasonOf(err)
	switch {
	case s.running.Err() != nil:
		return s.shutdownError()
	case isPassing(err):
	case reason == scribev1.Reason_REASON_UNSPECIFIED, reason == scribev1.Reason_REASON_UNKNOWN_OUTCOME:
		reason = scribev1.Reason_REASON_NO_BACKEND
	default:
		return err // about the payload
	}
	after := rpc.Info(err).GetRetryAfter().AsDuration()
	if after <= 0 {
		after = s.retryHint()
	}
	// Not wrapped: an error must have only one reason, and this one may differ from the cause's.
	return rpc.RetryErrorf(reason, after, "%s: the read proxies of region %q do not serve it, and its store cannot be reached from here, retry: %v",
		describePayload(&f.p), f.p.Region, err)
}
