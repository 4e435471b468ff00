package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/base/lifecycle"
	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Config configures a Hub.
type Config struct {
	// Heartbeat is how often the engine reports the watermarks of idle shards.
	Heartbeat time.Duration
	// LookPause is the minimum time between two looks at one category.
	LookPause time.Duration
	// LookEvery is the maximum time without a look, which finds the shards that a silently broken watch does not report. 0 = only
	// looks that members ask for.
	LookEvery time.Duration
	// FailAfter is how long a call of the engine may fail before members are told.
	FailAfter time.Duration
}

// silentBeats is the number of heartbeats, and leastSilence the minimum time, after which a silent subscription is opened again.
const (
	silentBeats  = 10
	leastSilence = 5 * time.Second
)

// silence returns how long a subscription may be silent.
func (c *Config) silence() time.Duration { return max(silentBeats*c.Heartbeat, leastSilence) }

// Deps are the dependencies of a Hub.
type Deps struct {
	// Log is the metadata engine.
	Log metalog.Log
	// Logger receives failures.
	Logger *slog.Logger
	// Failed, if not nil, is called with the name of each failed call of the engine.
	Failed func(call string)
}

// Stats are the hub's current numbers, except Looks, which counts since the hub was created.
type Stats struct {
	Categories    int
	Subscriptions int64
	Looks         int64
}

// Hub holds the feeds of the followed categories. It is safe for concurrent use. It needs no Close: it holds no resources once
// all members have left.
type Hub struct {
	cfg  Config
	deps Deps
	// Running subscriptions, and looks made.
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

// Stats returns the hub's statistics.
func (h *Hub) Stats() Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Stats{Categories: len(h.mu.feeds), Subscriptions: h.subscriptions.Load(), Looks: h.looks.Load()}
}

// Member is a listener's membership in a feed. One goroutine calls its methods.
type Member struct {
	f        *categoryFeed
	listener Listener

	// Guarded by the feed's mutex.
	shards  []record.ShardID
	offered int   // how much of table.list was reported; it is adjusted when shards are dropped from that
	horizon int64 // the horizon reported with it
	held    bool
	batch   []metalog.Update // scratch space of applyUpdates
}

// Join makes a listener a member of a category's feed. Until it follows shards, it is only told which shards exist.
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

// Hold withholds floors from the member until its next Follow. Call it before fetching the states for Follow.
func (m *Member) Hold() {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.held = true
}

// Follow makes the member follow further shards, each at most once; states are the shards' states, as the member knows them.
// Before it returns, the member is told the tails as other members know them, which may be older or newer than states; everything
// new after these tails follows.
func (m *Member) Follow(states []metalog.State) {
	m.f.mu.Lock()
	fresh := m.f.mu.table.followShards(m, states)
	m.f.mu.Unlock()
	if fresh {
		m.f.regroup.WakeUp()
	}
}

// Look requests a look at the category that begins after this call. All members are told its results.
func (m *Member) Look() {
	m.f.mu.Lock()
	m.f.mu.wanted = true
	m.f.mu.Unlock()
	m.f.look.WakeUp()
}

// Leave ends the membership. When it returns, the listener is no longer called. The last member's Leave waits until the feed has
// ended.
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
		f.regroup.WakeUp()
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

	regroup lifecycle.WakeChannel
	look    lifecycle.WakeChannel
	// groups are the subscriptions; only the goroutine that creates them uses it.
	groups []*tailGroup

	mu struct {
		sync.Mutex
		table  *tailTable
		wanted bool // a look was requested
	}
}

func newFeed(h *Hub, category uint32) *categoryFeed {
	f := &categoryFeed{
		hub: h, category: category, log: h.deps.Logger.With(slog.Uint64("category_id", uint64(category))),
		regroup: lifecycle.NewWakeChannel(), look: lifecycle.NewWakeChannel(),
	}
	f.mu.table = newTailTable()
	f.ctx, f.stop = context.WithCancel(context.Background())
	f.running.Go(f.keepSubscriptions)
	f.running.Go(f.watchShards)
	f.running.Go(f.lookForShards)
	return f
}

// Pauses between attempts of a failed call.
const (
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = 2 * time.Second
)

// retryCall runs call until it succeeds, ctx ends or the engine is closed, with growing pauses between attempts. call invokes
// alive when the engine has sent something. An attempt that was alive, and ran for a while, resets the count of failures.
func (f *categoryFeed) retryCall(ctx context.Context, name string, call func(alive func()) error) {
	pause := firstBackoff
	var since time.Time // since when every attempt failed, or when members were last told
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

// Errors of calls that should not have ended.
var (
	errEnded  = errors.New("feed: the engine ended the call")
	errSilent = errors.New("feed: the engine has told nothing for too long")
)

// watchShards watches for new shards.
func (f *categoryFeed) watchShards() {
	f.retryCall(f.ctx, "watch", func(alive func()) error {
		err := f.hub.deps.Log.WatchShards(f.ctx, f.category, func(shards []record.ShardID) error {
			alive()
			f.mu.Lock()
			defer f.mu.Unlock()
			f.mu.table.noteAppeared(shards)
			return nil
		})
		return cmp.Or(err, errEnded)
	})
}

// restPerLook is how long the feed rests after a look, in multiples of the look's duration.
const restPerLook = 10

// lookTimeout bounds a look: one that hangs blocks every member that waits for it.
const lookTimeout = 5 * time.Second

// rest returns how long a feed rests after a look of duration took, when it rested for last after the previous one. It never
// exceeds a heartbeat: a look that took long because the engine was briefly unavailable must not delay the next one.
func (c *Config) rest(last, took time.Duration, gained bool) time.Duration {
	most := max(c.LookPause, c.Heartbeat)
	if gained {
		return min(max(c.LookPause, restPerLook*took), most)
	}
	return min(max(2*last, restPerLook*took), most)
}

// lookForShards makes the requested looks and the periodic ones.
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
	if wanted {
		f.mu.table.beginLook()
	}
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
