package readproxy

import (
	"context"
	"fmt"
	"sync"
	"time"

	"scribe/internal/pointer"
	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readproxy/admission"
)

// Peer serves blocks of another region out of that region's caches: its read proxies.
type Peer interface {
	// Fetch is that of rpc.ReadProxyService.
	Fetch(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error)
}

// What one request to a peer asks for at most: an answer is cut at 32 MiB.
const (
	peerPointers = 100
	peerBytes    = 16 << 20
)

// A peer that fails trip times in a row, where there is a store to go to instead, is left alone for a while.
const (
	peerTrip         = 3
	peerFirstPause   = time.Second
	peerLongestPause = 30 * time.Second
)

// peers are the other regions.
type peers struct {
	mu struct {
		sync.Mutex
		breakers map[string]*admission.Breaker // by region; as many as have peers
	}
}

func (p *peers) breaker(region string) *admission.Breaker {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.mu.breakers[region]
	if b == nil {
		b = admission.NewBreaker(peerTrip, peerFirstPause, peerLongestPause)
		p.mu.breakers[region] = b
	}
	return b
}

// local is the name under which a region's store is known: the server's own region is the local one.
func (s *Server) local(region string) string {
	if region == s.cfg.Region {
		return ""
	}
	return region
}

// peerOf returns the read proxy to ask for a region's blocks; nil = none.
func (s *Server) peerOf(region string) Peer {
	if region = s.local(region); region == "" || s.deps.Peers == nil {
		return nil
	}
	return s.deps.Peers(region)
}

// fromPeers lands flights whose blocks are another region's, through that region's read proxies, and returns those that are to be
// read from a store: the blocks of this region, and those that a peer did not deliver where the region's store can be reached from
// here. A flight that a peer asked for goes to the store alone, so two regions that name each other never ask in a circle.
func (s *Server) fromPeers(fs []*flight) []*flight {
	var (
		rest   []*flight
		groups = map[string][]*flight{}
	)
	for _, f := range fs {
		if f.peer || s.peerOf(f.p.Region) == nil {
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
	for region, group := range groups {
		for _, part := range portions(group) {
			all.Go(func() {
				left := s.fromPeer(region, part)
				mu.Lock()
				defer mu.Unlock()
				rest = append(rest, left...)
			})
		}
	}
	all.Wait()
	return rest
}

// portions cuts flights into requests. The answers to one request are of one category, for the peer's metrics and rules.
func portions(fs []*flight) [][]*flight {
	var out [][]*flight
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

// fromPeer asks one region's peer, and returns the flights that a store is to be asked for.
func (s *Server) fromPeer(region string, fs []*flight) (rest []*flight) {
	ctx, cancel := context.WithTimeout(s.running, s.cfg.PeerTimeout)
	defer cancel()
	if err := s.peerSlots.Acquire(ctx, 1); err != nil {
		return s.withoutPeer(fs, err)
	}
	defer s.peerSlots.Release(1)
	breaker := s.peers.breaker(region)
	// Where there is nobody else to ask, it is asked all the same.
	if !breaker.Allow(time.Now()) && s.hasStore(region) {
		return s.withoutPeer(fs, nil)
	}
	peer := s.peerOf(region)
	for len(fs) > 0 {
		n, left, err := s.askPeer(ctx, peer, fs)
		rest = append(rest, left...)
		fs = fs[n:]
		if err != nil {
			breaker.Done(time.Now(), s.running.Err() != nil)
			return append(rest, s.withoutPeer(fs, err)...)
		}
	}
	breaker.Done(time.Now(), true)
	return rest
}

// askPeer makes one request. It settles the first n flights: left are those of them for a store.
func (s *Server) askPeer(ctx context.Context, peer Peer, fs []*flight) (n int, left []*flight, err error) {
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
		return 0, nil, fmt.Errorf("readproxy: the peer answered with %d payloads for %d pointers", len(payloads), len(fs))
	}
	for i, p := range payloads {
		f := fs[i]
		switch err := s.fromAnswer(f, p); {
		case err == nil:
		case rpc.ReasonOf(err) == scribev1.Reason_REASON_MISSING:
			s.land(f, nil, err) // its own region has to know
		default:
			left = append(left, s.withoutPeer(fs[i:i+1], err)...)
		}
	}
	return len(payloads), left, nil
}

// fromAnswer lands a flight with what a peer answered, if that is its block.
func (s *Server) fromAnswer(f *flight, p *scribev1.Payload) error {
	if info := p.GetError(); info != nil {
		return rpc.FromInfo(info)
	}
	stored := p.GetData()
	s.metrics.peerBytes.Add(float64(len(stored)))
	if err := sound(&f.p, stored); err != nil {
		s.metrics.damaged.WithLabelValues(tierRegion).Inc()
		return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, s.hint(), "%s came damaged from another region, try again: %w", where(&f.p), err)
	}
	s.metrics.hits.WithLabelValues(tierRegion).Inc()
	s.metrics.saved.WithLabelValues(tierRegion).Add(float64(len(stored)))
	s.fills.fetched(&f.rule, &f.p, stored)
	s.arrive(f, stored, tierRegion)
	return nil
}

// withoutPeer decides about flights that their region's peer did not deliver: they are for the region's store where there is one,
// else they land with the error.
func (s *Server) withoutPeer(fs []*flight, err error) (rest []*flight) {
	for _, f := range fs {
		s.metrics.misses.WithLabelValues(tierRegion).Inc()
		if s.hasStore(f.p.Region) && s.running.Err() == nil {
			s.metrics.fallbacks.Inc()
			rest = append(rest, f)
			continue
		}
		why := err
		switch reason := rpc.ReasonOf(err); {
		case s.running.Err() != nil:
			why = s.refusal()
		case reason == scribev1.Reason_REASON_UNSPECIFIED || reason == scribev1.Reason_REASON_UNKNOWN_OUTCOME:
			why = rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, s.hint(), "%s: the read proxies of its region failed, try again: %w", where(&f.p), err)
		}
		s.land(f, nil, why)
	}
	return rest
}

func (s *Server) hasStore(region string) bool {
	_, err := s.deps.Blobs(s.local(region))
	return err == nil
}
