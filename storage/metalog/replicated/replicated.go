package replicated

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/base/entropy"
	"scribe/internal/base/lifecycle"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// Replica is one of the replicas of an engine.
type Replica struct {
	// URL is the name by which the others call it when it leads.
	URL string
	// Log is the replica, which the caller closes after the Log made of it.
	Log metalog.Log
}

// DefaultPatience is the default of Options.Patience: several times what it takes to elect a leader.
const DefaultPatience = 10 * time.Second

// Options are the settings of a Log.
type Options struct {
	// Patience bounds how long a write looks for the leader, and how long a subscription looks for a replica that serves it; 0 means
	// DefaultPatience.
	Patience time.Duration
	// Random draws the jitter of pauses.
	Random *entropy.Source
	// Connect returns a client of a replica that was not listed and leads: one that was added since. The caller closes it after the Log. nil
	// means that writes do not reach such a leader.
	Connect func(url string) metalog.Log
}

// Log is a metalog.Log over replicas.
type Log struct {
	// known are the replicas. A call uses those that it found.
	known    atomic.Pointer[replicaList]
	patience time.Duration
	pauses   backoff.Backoff
	life     context.Context //nolint:containedctx // ends with the Log
	end      context.CancelFunc
	calls    lifecycle.Calls
	connect  func(url string) metalog.Log

	mu struct {
		sync.Mutex
		leader string // plain URL of the replica that took the last write; empty when unknown
		// added are leaders that were not listed, by their plain URLs.
		added map[string]metalog.Log
	}
}

// replicaList are the replicas of a Log at some time. It does not change, but for which of them are away.
type replicaList struct {
	replicas []Replica
	urls     rpc.AddressList // plain
	present  *rpc.AddressSet // which replicas are away
}

// maxAdded bounds the leaders that were not listed.
const maxAdded = 16

var _ metalog.Log = (*Log)(nil)

// New returns a Log over replicas, of which the first is preferred for reads.
func New(replicas []Replica, o Options) (*Log, error) {
	l := &Log{patience: cmp.Or(o.Patience, DefaultPatience), connect: o.Connect}
	l.pauses = backoff.Backoff{Min: 50 * time.Millisecond, Max: time.Second, Random: o.Random}
	if err := l.SetReplicas(replicas); err != nil {
		return nil, err
	}
	l.life, l.end = context.WithCancel(context.Background())
	l.mu.added = map[string]metalog.Log{}
	return l, nil
}

// SetReplicas replaces the list of replicas: some were added, or removed. Those that were removed must stay open until the Log is closed,
// since calls may use them.
func (l *Log) SetReplicas(replicas []Replica) error {
	if len(replicas) == 0 {
		return errors.New("replicated metalog: no replicas")
	}
	list := &replicaList{replicas: replicas}
	for _, r := range replicas {
		if list.indexOf(r.URL) >= 0 {
			return fmt.Errorf("replicated metalog: the replica %q is listed twice", r.URL)
		}
		list.urls = append(list.urls, plainURL(r.URL))
	}
	list.present = rpc.PreferFirst(list.urls)
	l.known.Store(list)
	return nil
}

// plainURL is a URL as replicas are compared by it.
func plainURL(url string) string { return strings.ToLower(strings.TrimRight(url, "/")) }

// indexOf returns the index of the replica that a URL names, -1 for none.
func (l *replicaList) indexOf(url string) int { return slices.Index(l.urls, plainURL(url)) }

// Close implements metalog.Log. It leaves the replicas open. It must not be called from within a callback.
func (l *Log) Close() error {
	l.calls.Drain()
	l.end()
	return l.calls.Wait(context.Background())
}

// order returns the replicas in the order in which a read asks them.
func (l *replicaList) order() []int {
	var order []int
	for _, url := range l.present.Order() {
		order = append(order, l.indexOf(url))
	}
	return order
}

// enterCall admits a call whose context is not over.
func (l *Log) enterCall(ctx context.Context) error {
	if !l.calls.Enter() {
		return metalog.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		l.calls.Leave()
		return err
	}
	return nil
}

// readAny makes a call that changes nothing at one replica after another, until one answers, or has an error that is about the request.
func readAny[T any](ctx context.Context, l *Log, read func(metalog.Log) (T, error)) (res T, err error) {
	if err := l.enterCall(ctx); err != nil {
		return res, err
	}
	defer l.calls.Leave()
	var failed error
	list := l.known.Load()
	for _, i := range list.order() {
		res, err := read(list.replicas[i].Log)
		if err == nil {
			list.present.ReportOutcome(list.urls[i], nil)
			return res, nil
		}
		if ctx.Err() != nil || !helpsElsewhere(err) {
			return res, err
		}
		list.noteFailure(i, err)
		failed = cmp.Or(failed, err)
	}
	return res, failed
}

// helpsElsewhere reports whether another replica may serve a read that failed. Damage is one replica's own.
func helpsElsewhere(err error) bool {
	sentinel := metalog.FindSentinel(err)
	return sentinel == nil || errors.Is(sentinel, metalog.ErrClosed) || errors.Is(sentinel, metalog.ErrNotLeader) || errors.Is(sentinel, metalog.ErrCorrupt)
}

// noteFailure remembers a replica as away, unless it answered.
func (l *replicaList) noteFailure(i int, err error) {
	if sentinel := metalog.FindSentinel(err); sentinel == nil || errors.Is(sentinel, metalog.ErrClosed) {
		l.present.ReportOutcome(l.urls[i], err)
	}
}

// writeLeader makes a call at the leader.
func writeLeader[T any](ctx context.Context, l *Log, write func(metalog.Log) (T, error)) (res T, err error) {
	if err := l.enterCall(ctx); err != nil {
		return res, err
	}
	defer l.calls.Leave()
	s := l.searchLeader()
	for {
		res, err = write(s.list.replicas[s.at].Log)
		if !s.mayFollow(ctx, err) {
			return res, err
		}
		if added := l.addedLeader(s.list, err); added != nil {
			if res, err = write(added); !isRefused(err) {
				return res, err
			}
		}
		if serr := s.moveOn(ctx, err); serr != nil {
			return res, serr
		}
	}
}

// mayFollow records the outcome of a write at the replica that was asked, and reports whether another attempt may follow: if it was definitely
// not carried out, for a reason that another replica does not have.
func (s *leaderSearch) mayFollow(ctx context.Context, err error) bool {
	list, url := s.list, s.list.urls[s.at]
	sentinel := metalog.FindSentinel(err)
	if err == nil || sentinel != nil && !errors.Is(sentinel, metalog.ErrNotLeader) && !errors.Is(sentinel, metalog.ErrClosed) {
		list.present.ReportOutcome(url, nil)
		s.log.setLeader(url)
		return false
	}
	s.log.forgetLeader(url)
	if ctx.Err() == nil {
		list.noteFailure(s.at, err)
	}
	return isRefused(err)
}

// isRefused reports whether a write was definitely not carried out, for a reason that another replica does not have.
func isRefused(err error) bool {
	d := retry.Classify(err)
	return errors.Is(err, metalog.ErrNotLeader) || errors.Is(err, metalog.ErrClosed) || err != nil && d.Class == retry.Unavailable && !d.Unknown
}

// addedLeader returns the leader that a refusal names if it is not one of the listed replicas; nil otherwise.
func (l *Log) addedLeader(list *replicaList, refusal error) metalog.Log {
	e := new(metalog.NotLeaderError)
	if l.connect == nil || !errors.As(refusal, &e) || e.Leader == "" || list.indexOf(e.Leader) >= 0 {
		return nil
	}
	url := plainURL(e.Leader)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.added[url] == nil && len(l.mu.added) < maxAdded {
		l.mu.added[url] = l.connect(e.Leader)
	}
	return l.mu.added[url]
}

func (l *Log) setLeader(url string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.leader = url
}

// forgetLeader forgets the leader if it was that replica.
func (l *Log) forgetLeader(url string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.leader == url {
		l.mu.leader = ""
	}
}

// leaderSearch is the search of one write for the leader.
type leaderSearch struct {
	log   *Log
	list  *replicaList
	at    int // the replica to ask
	began time.Time
	// asked counts the attempts since the last pause, pauses the pauses.
	asked, pauses int
	tried         []bool // since the last pause
}

// searchLeader begins with the known leader, or the first replica that is not away.
func (l *Log) searchLeader() *leaderSearch {
	list := l.known.Load()
	l.mu.Lock()
	at := slices.Index(list.urls, l.mu.leader)
	l.mu.Unlock()
	if at < 0 {
		at = list.order()[0]
	}
	return &leaderSearch{log: l, list: list, at: at, began: time.Now(), tried: make([]bool, len(list.replicas))}
}

// moveOn chooses the next replica after a refusal: the one that it names, otherwise one that was not asked. When every replica was
// asked, or they send each other in a circle, it pauses first. It fails when the time is over.
func (s *leaderSearch) moveOn(ctx context.Context, refusal error) error {
	s.tried[s.at] = true
	s.asked++
	from, named := s.at, -1
	if e := new(metalog.NotLeaderError); errors.As(refusal, &e) {
		named = s.list.indexOf(e.Leader)
	}
	switch next := s.untried(); {
	case named >= 0 && named != from && !s.tried[named]:
		s.at = named
	case next >= 0:
		s.at = next
	default:
		if err := s.pause(ctx, refusal); err != nil {
			return err
		}
		if s.at = named; named < 0 || named == from {
			s.at = s.list.order()[0]
		}
	}
	return nil
}

// untried returns a replica that was not asked since the last pause, -1 for none.
func (s *leaderSearch) untried() int {
	for _, i := range s.list.order() {
		if !s.tried[i] {
			return i
		}
	}
	return -1
}

// pause waits before another round.
func (s *leaderSearch) pause(ctx context.Context, refusal error) error {
	s.pauses++
	d := s.log.pauses.Pause(s.pauses)
	if waited := time.Since(s.began); waited+d > s.log.patience {
		return s.giveUp(refusal, fmt.Errorf("after %v", waited))
	}
	clear(s.tried)
	return s.log.sleep(ctx, d, func(cause error) error { return s.giveUp(refusal, cause) })
}

// giveUp returns the error of a write that no replica took. It is definite, since every attempt was refused.
func (s *leaderSearch) giveUp(refusal, why error) error {
	if errors.Is(why, metalog.ErrClosed) {
		return why
	}
	return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, time.Second, "metalog: none of %d replicas leads (asked %d times, given up: %w): the last one said: %w",
		len(s.list.replicas), s.asked, why, refusal)
}

// sleep waits for d, and returns what ended makes of the end of ctx or of the Log, if that comes first.
func (l *Log) sleep(ctx context.Context, d time.Duration, ended func(cause error) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.life, func() { cancel(metalog.ErrClosed) })()
	if err := backoff.Sleep(ctx, d); err != nil {
		return ended(err)
	}
	return nil
}
