package discovery

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"scribe/internal/base/backoff"
	"scribe/internal/base/rendezvous"
	"scribe/internal/format/pointer"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

const (
	// fallbacks is the number of instances among which a key's fallback is chosen.
	fallbacks = 3
	// saltOfFallbacks makes the choice among the fallbacks independent of their order.
	saltOfFallbacks = 0x5ca1ab1e
	// homePatience bounds the retry hint of a busy home for which a call waits. Going elsewhere costs a fetch from the store.
	homePatience = 50 * time.Millisecond
	// maxAnswerBytes is the size at which an answer is cut (proto/scribe/v1/readproxy.proto).
	maxAnswerBytes = 32 << 20
	// splitAtOnce bounds the concurrent parts of a request.
	splitAtOnce = 8
)

// orderByAffinity orders instances for a key: first its home, which has the highest rendezvous weight; then its fallbacks, the
// next ones by weight, starting with one that a salted hash chooses; then the others. It returns the number of fallbacks.
func orderByAffinity(key uint64, urls []string) (n int) {
	slices.SortFunc(urls, func(a, b string) int { return cmp.Compare(weightOf(key, b), weightOf(key, a)) })
	if n = min(fallbacks, len(urls)-1); n > 1 {
		rotateURLs(urls[1:1+n], int(weightOf(key^saltOfFallbacks, "")%uint64(n)))
	}
	return n
}

// FetchStats counts the calls and requests for payloads.
type FetchStats struct {
	// Calls is the number of calls, Parts the number of requests into which they were divided by the homes of their blobs.
	Calls, Parts uint64
	// Repeats counts the repeated requests. Waits of them went to the same instance, after the time in its retry hint, the others
	// to another instance.
	Repeats, Waits uint64
	// Exhausted counts the requests that were not repeated because the retry budget was empty.
	Exhausted uint64
}

// FetchStats returns the counters of ReadProxy's calls.
func (c *Cell) FetchStats() FetchStats {
	n := &c.fetches
	return FetchStats{n.calls.Load(), n.parts.Load(), n.repeats.Load(), n.waits.Load(), n.exhausted.Load()}
}

const (
	// retryShare is what a request adds to the retry budget.
	retryShare = 0.2
	// maxRetries bounds the saved retries: enough for the restart of an instance at light load.
	maxRetries = 50
)

// mayRetry takes a retry from the budget, and counts it. same means at the same instance.
func (c *Cell) mayRetry(same bool) bool {
	if !c.retries.TakeRetry() {
		c.fetches.exhausted.Add(1)
		return false
	}
	c.fetches.repeats.Add(1)
	if same {
		c.fetches.waits.Add(1)
	}
	return true
}

type readProxyService struct{ c *Cell }

// fetchPart is the part of a request for one home.
type fetchPart struct {
	home  string
	key   *uint64
	at    []int // indexes of the request's pointers
	req   *scribev1.FetchRequest
	res   *scribev1.FetchResponse
	err   error
	taken int // the number of res's payloads that were joined
}

// Fetch implements rpc.ReadProxyService.
func (s readProxyService) Fetch(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	s.c.fetches.calls.Add(1)
	parts, err := s.splitByHome(ctx, req)
	if err != nil {
		return nil, err
	}
	if len(parts) == 1 {
		return s.fetchPart(ctx, parts[0].key, req)
	}
	var all errgroup.Group
	all.SetLimit(splitAtOnce)
	for _, p := range parts {
		all.Go(func() error {
			p.res, p.err = s.fetchPart(ctx, p.key, p.req)
			return nil
		})
	}
	_ = all.Wait() // each part has its own error
	return joinAnswers(ctx, parts, len(req.GetPointers()))
}

// splitByHome divides a request by the homes of its pointers' blobs. An invalid pointer stays with the one before it: the
// instance that serves it reports the error.
func (s readProxyService) splitByHome(ctx context.Context, req *scribev1.FetchRequest) ([]*fetchPart, error) {
	first := &fetchPart{key: blobKey(req.GetPointers())}
	if len(req.GetPointers()) < 2 || first.key == nil {
		return []*fetchPart{first}, nil
	}
	ch, err := s.c.chooseInstances(ctx, first.key, scribev1.Role_ROLE_READPROXY)
	if err != nil {
		return nil, err
	}
	if len(ch.urls) == 1 {
		return []*fetchPart{first}, nil
	}
	first.home = homeURL(*first.key, ch.urls)
	var (
		parts = []*fetchPart{first}
		last  = first
		lastK = *first.key
	)
	for i := range req.GetPointers() {
		if key := blobKey(req.GetPointers()[i : i+1]); key != nil && *key != lastK {
			lastK = *key
			url := homeURL(*key, ch.urls)
			at := slices.IndexFunc(parts, func(p *fetchPart) bool { return p.home == url })
			if at < 0 {
				at = len(parts)
				parts = append(parts, &fetchPart{home: url, key: key})
			}
			last = parts[at]
		}
		last.at = append(last.at, i)
	}
	if len(parts) == 1 {
		return parts, nil
	}
	for _, p := range parts {
		p.req = proto.CloneOf(req)
		p.req.Pointers = selectItems(req.GetPointers(), p.at)
		if len(req.GetPlaces()) == len(req.GetPointers()) {
			p.req.Places = selectItems(req.GetPlaces(), p.at)
		}
		if len(req.GetTickets()) == len(req.GetPointers()) {
			p.req.Tickets = selectItems(req.GetTickets(), p.at)
		}
	}
	return parts, nil
}

func selectItems[T any](list []T, indexes []int) []T {
	selected := make([]T, len(indexes))
	for i, at := range indexes {
		selected[i] = list[at]
	}
	return selected
}

func homeURL(key uint64, urls []string) string {
	return slices.MaxFunc(urls, func(a, b string) int { return cmp.Compare(weightOf(key, a), weightOf(key, b)) })
}

// joinAnswers joins the answers of the parts in the order of the request, until one is cut. If some parts failed and others did
// not, the failures become errors of the payloads, unless the request itself was at fault.
func joinAnswers(ctx context.Context, parts []*fetchPart, n int) (*scribev1.FetchResponse, error) {
	failed := 0
	for _, p := range parts {
		if p.err == nil {
			continue
		}
		if failed++; ctx.Err() != nil || !refusedOrLost(p.err) || failed == len(parts) {
			return nil, p.err
		}
	}
	owner := make([]*fetchPart, n)
	for _, p := range parts {
		for _, at := range p.at {
			owner[at] = p
		}
	}
	res := &scribev1.FetchResponse{}
	total := 0
	for i, p := range owner {
		payload := &scribev1.Payload{}
		switch {
		case p.err != nil:
			payload.Error = rpc.Info(p.err)
		case p.taken < len(p.res.GetPayloads()):
			payload = p.res.GetPayloads()[p.taken]
			p.taken++
		default:
			return res, nil // the part's answer was cut here
		}
		if total += len(payload.GetData()); i > 0 && total > maxAnswerBytes {
			break
		}
		res.Payloads = append(res.Payloads, payload)
	}
	return res, nil
}

// fetchPart sends a request to its key's home, and to the fallbacks if the home does not serve it.
func (s readProxyService) fetchPart(ctx context.Context, key *uint64, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	ch, err := s.c.chooseInstances(ctx, key, scribev1.Role_ROLE_READPROXY)
	if err != nil {
		return nil, err
	}
	s.c.retries.Earn()
	s.c.fetches.parts.Add(1)
	if len(ch.urls) == 1 && !req.GetSole() {
		// A copy: the request is the caller's.
		req = &scribev1.FetchRequest{
			Pointers: req.GetPointers(), Encoding: req.GetEncoding(), Category: req.GetCategory(), Peer: req.GetPeer(), Sole: true,
			View: req.GetView(), Places: req.GetPlaces(), Tickets: req.GetTickets(), AcceptsSamples: req.GetAcceptsSamples(), AcceptsRestricted: req.GetAcceptsRestricted(),
		}
	}
	var failed []error
	patient := len(ch.urls) > 1
	for i := 0; i < min(len(ch.urls), maxTries); {
		in := roleInstance{ch.role, ch.urls[i]}
		res, err := clientOf(s.c, in, rpc.NewReadProxyClient).Fetch(ctx, req)
		if err == nil {
			s.c.reportOutcome(in, nil)
			return res, nil
		}
		failed = append(failed, err)
		if errors.Is(context.Cause(ctx), ErrBroken) {
			s.c.reportOutcome(in, err)
		}
		if ctx.Err() != nil || !refusedOrLost(err) {
			break
		}
		after, soon := busyBriefly(err)
		again := patient && soon && i == 0
		if !again {
			s.c.reportOutcome(in, err)
			i++
		}
		if (again || i < min(len(ch.urls), maxTries)) && !s.c.mayRetry(again) {
			break
		}
		if again {
			patient = false
			if backoff.Sleep(ctx, after) != nil {
				break
			}
		}
	}
	return nil, joinErrors(failed)
}

// busyBriefly reports whether an instance is overloaded and its retry hint is short.
func busyBriefly(err error) (after time.Duration, ok bool) {
	d := retry.Classify(err)
	return d.After, d.Class == retry.Overloaded && d.After > 0 && d.After <= homePatience
}

// blobKey returns a key of the first pointer's blob. It is nil if that pointer is invalid: the instance that serves the request
// reports the error.
func blobKey(pointers [][]byte) *uint64 {
	if len(pointers) == 0 {
		return nil
	}
	p, err := pointer.Decode(pointers[0])
	if err != nil {
		return nil
	}
	key := blobHash(p.Blob)
	return &key
}

func blobHash(blob pointer.BlobID) uint64 { return xxhash.Sum64(blob[:]) }

// HomeOf returns the index of a blob's home among the read proxies, given by their base URLs, at least one.
func HomeOf(blob pointer.BlobID, urls []string) int {
	return slices.Index(urls, homeURL(blobHash(blob), urls))
}

// refusedOrLost reports whether a request that changes nothing may be repeated elsewhere. After a broken connection it does not
// matter whether it was carried out. An expired deadline is the caller's, so it is not an instance's fault.
func refusedOrLost(err error) bool {
	return isRefused(err) || connect.CodeOf(err) == connect.CodeUnavailable
}

// weightOf returns an instance's weight for a key.
func weightOf(key uint64, url string) uint64 {
	return rendezvous.WeightOf(key, xxhash.Sum64String(url))
}
