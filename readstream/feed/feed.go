package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Config of a Hub.
type Config struct {
	// Heartbeat is how often the engine tells the watermarks of idle shards.
	Heartbeat time.Duration
	// LookPause is the least time between two looks at one category.
	LookPause time.Duration
	// LookEvery is the longest time without a look: that finds the shards which a watch that has silently died does not tell of. 0 = only
	// looks that members ask for.
	LookEvery time.Duration
	// FailAfter is for how long a call of the engine may fail before members are told.
	FailAfter time.Duration
}

// silentBeats and leastSilence are how many heartbeats, and how long at least, a subscription may miss before it is opened again.
const (
	silentBeats  = 10
	leastSilence = 5 * time.Second
)

// silence is how long a subscription may tell nothing.
func (c *Config) silence() time.Duration { return max(silentBeats*c.Heartbeat, leastSilence) }

// Deps are what a Hub works with.
type Deps struct {
	// Log is the metadata engine.
	Log metalog.Log
	// Logger is where trouble is told.
	Logger *slog.Logger
	// Failed, if not nil, is called with the name of each call of the engine that failed.
	Failed func(call string)
}

// Stats are the hub's numbers of the moment, and Looks since it was made.
type Stats struct {
	Categories    int
	Subscriptions int64
	Looks         int64
}

// Hub has the feeds of the categories that are followed. It is safe for concurrent use. It needs no closing: it holds nothing once all
// members have left.
type Hub struct {
	cfg  Config
	deps Deps
	// subscriptions that run, looks that were made.
	subscriptions atomic.Int64
	looks         atomic.Int64

	mu struct {
		sync.Mutex
		feeds map[uint32]*categoryFeed
	}
}

// NewHub returns a hub without feeds.
func NewHub(cfg Config, deps Deps) *Hub {
	h := &Hub{cfg: cfg, deps: deps}
	h.mu.feeds = map[uint32]*categoryFeed{}
	return h
}

// Stats returns what the hub is doing.
func (h *Hub) Stats() Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Stats{Categories: len(h.mu.feeds), Subscriptions: h.subscriptions.Load(), Looks: h.looks.Load()}
}

// Member is a listener's part in a feed. Its methods are called by one goroutine.
type Member struct {
	f        *categoryFeed
	listener Listener

	// Guarded by the feed's mutex.
	shards  []record.ShardID
	offered int   // how much of table.list was told
	horizon int64 // what was told with it
	held    bool
	batch   []metalog.Update // used by table.update
}

// Join makes a listener a member of a category's feed. It is told nothing but of shards until it follows some.
func (h *Hub) Join(category uint32, l Listener) *Member {
	h.mu.Lock()
	f := h.mu.feeds[category]
	if f == nil {
		f = newFeed(h, category)
		h.mu.feeds[category] = f
	}
	f.members++
	h.mu.Unlock()
	m := &Member{f: f, listener: l}
	f.mu.Lock()
	f.mu.table.joinMember(m)
	f.mu.Unlock()
	return m
}

// Hold keeps floors from the member until its next Follow. It is called before the states are fetched that are given to that.
func (m *Member) Hold() {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.held = true
}

// Follow makes the member follow shards, each at most once, beside those that it follows already; the member knows their states.
// Before it returns the member was told up to where they were told to others, which may be before or after these states; what is new from
// there on follows.
func (m *Member) Follow(states []metalog.State) {
	m.f.mu.Lock()
	fresh := m.f.mu.table.followShards(m, states)
	m.f.mu.Unlock()
	if fresh {
		kick(m.f.regroup)
	}
}

// Look asks for a look at the category that begins after this call. What it brings is told to all members.
func (m *Member) Look() {
	m.f.mu.Lock()
	m.f.mu.wanted = true
	m.f.mu.Unlock()
	kick(m.f.look)
}

// Leave ends the membership. The listener is not called any more when it returns. The last member's waits until the feed has ended.
func (m *Member) Leave() {
	f := m.f
	f.mu.Lock()
	lost := f.mu.table.leaveMember(m)
	f.mu.Unlock()
	f.hub.mu.Lock()
	f.members--
	last := f.members == 0
	if last {
		delete(f.hub.mu.feeds, f.category)
	}
	f.hub.mu.Unlock()
	switch {
	case last:
		f.stop()
		f.running.Wait()
	case lost:
		kick(f.regroup)
	}
}

// categoryFeed follows one category.
type categoryFeed struct {
	hub      *Hub
	category uint32
	log      *slog.Logger
	ctx      context.Context //nolint:containedctx // the life of the feed
	stop     context.CancelFunc
	running  sync.WaitGroup
	members  int // guarded by hub.mu

	// regroup and look have room for one.
	regroup chan struct{}
	look    chan struct{}
	// groups are the subscriptions, of the goroutine that makes them alone.
	groups []*tailGroup

	mu struct {
		sync.Mutex
		table  *tailTable
		wanted bool // a look
	}
}

func newFeed(h *Hub, category uint32) *categoryFeed {
	f := &categoryFeed{
		hub: h, category: category, log: h.deps.Logger.With(slog.Uint64("category_id", uint64(category))),
		regroup: make(chan struct{}, 1), look: make(chan struct{}, 1),
	}
	f.mu.table = newTable()
	f.ctx, f.stop = context.WithCancel(context.Background())
	f.running.Go(f.keepSubscriptions)
	f.running.Go(f.watchShards)
	f.running.Go(f.lookForShards)
	return f
}

func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // whoever takes it sees everything
	}
}

// Waits between attempts of a call that failed.
const (
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = 2 * time.Second
)

// retryCall runs call until it succeeds or ctx ends, with growing waits between. Call says with alive that the engine has told something. One
// that was told something, and ran for a while, was well before it failed: what counts begins anew. A closed engine ends it, too.
func (f *categoryFeed) retryCall(ctx context.Context, name string, call func(alive func()) error) {
	pause := firstBackoff
	var since time.Time // since when nothing was well, or when members were told
	for {
		began, alive := time.Now(), false
		err := call(func() { alive = true })
		now := time.Now()
		switch {
		case ctx.Err() != nil || err == nil:
			return
		case errors.Is(err, metalog.ErrClosed):
			f.failMembers(err)
			return
		}
		if f.hub.deps.Failed != nil {
			f.hub.deps.Failed(name)
		}
		if alive && now.Sub(began) > lastBackoff {
			since, pause = time.Time{}, firstBackoff
		}
		if since.IsZero() {
			f.log.Warn("the metadata engine failed", "call", name, "error", err)
			if since = began; alive {
				since = now
			}
		}
		if now.Sub(since) >= f.hub.cfg.FailAfter {
			since = now
			f.failMembers(fmt.Errorf("%s: %w", name, err))
		}
		if backoff.Sleep(ctx, pause) != nil {
			return
		}
		pause = min(2*pause, lastBackoff)
	}
}

func (f *categoryFeed) failMembers(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.table.failMembers(err)
}

// Faults of calls that should go on.
var (
	errEnded  = errors.New("feed: the engine ended the call")
	errSilent = errors.New("feed: the engine has told nothing for too long")
)

// watchShards hears of shards that appear.
func (f *categoryFeed) watchShards() {
	f.retryCall(f.ctx, "watch", func(alive func()) error {
		err := f.hub.deps.Log.WatchShards(f.ctx, f.category, func(shards []record.ShardID) error {
			alive()
			f.mu.Lock()
			defer f.mu.Unlock()
			f.mu.table.noteAppeared(shards)
			return nil
		})
		if err == nil {
			err = errEnded
		}
		return err
	})
}

// restPerLook is how many times as long as a look took the feed rests after it.
const restPerLook = 10

// lookTimeout bounds a look. One that hangs keeps back everybody who waits for it.
const lookTimeout = 5 * time.Second

// rest is how long a feed rests after a look that took so long, when it rested for last after the one before. It is never longer than a
// heartbeat: a look that took long since the engine was away for a moment must not keep back those who wait for the next one.
func (c *Config) rest(last, took time.Duration, gained bool) time.Duration {
	most := max(c.LookPause, c.Heartbeat)
	if gained {
		return min(max(c.LookPause, restPerLook*took), most)
	}
	return min(max(2*last, restPerLook*took), most)
}

// lookForShards makes the looks that members ask for, and one now and then.
func (f *categoryFeed) lookForShards() {
	pause := f.hub.cfg.LookPause
	var every <-chan time.Time
	if d := f.hub.cfg.LookEvery; d > 0 {
		ticker := time.NewTicker(d)
		defer ticker.Stop()
		every = ticker.C
	}
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-f.look:
		case <-every:
			f.mu.Lock()
			f.mu.wanted = true
			f.mu.Unlock()
		}
		f.retryCall(f.ctx, "shards", func(func()) error {
			began := time.Now()
			gained, err := f.lookOnce()
			pause = f.hub.cfg.rest(pause, time.Since(began), gained || err != nil)
			return err
		})
		if backoff.Sleep(f.ctx, pause) != nil {
			return
		}
	}
}

func (f *categoryFeed) lookOnce() (gained bool, err error) {
	f.mu.Lock()
	wanted, seen := f.mu.wanted, f.mu.table.seen
	f.mu.wanted = false
	f.mu.Unlock()
	if !wanted {
		return true, nil
	}
	f.hub.looks.Add(1)
	ctx, cancel := context.WithTimeout(f.ctx, min(f.hub.cfg.FailAfter, lookTimeout))
	defer cancel()
	states, err := f.hub.deps.Log.Shards(ctx, f.category)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.mu.wanted = true
		return false, err
	}
	return f.mu.table.noteLooked(states, seen), nil
}
