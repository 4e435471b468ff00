package readstream

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/record"
	"scribe/internal/testkit/testsize"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// These tests run whole servers over an engine of a few lines in virtual time, in which shards are skewed, idle, stalled, and appear.

// reader is a consumer: it goes on with the positions of its eviction, and checks over all its lives what it is given.
type reader struct {
	t      *testing.T
	name   string
	window time.Duration // below 0 = unbounded
	// pace is how long it takes for each pointer, blocks that it does so without reading on; 0 = no time.
	pace   time.Duration
	blocks bool
	log    *engine
	server *Server

	lives  int
	resume []*scribev1.ShardPosition
	at     map[uint64]uint64
	got    []*scribev1.StreamEntry
	when   []int64 // each of them came
	newest int64
	// longest is how long a pointer took from its append to here, of a shard that answered; of history it says nothing.
	longest time.Duration
	since   int64
	// silence is the longest time between two messages of a stream.
	silence time.Duration
}

// run reads until want pointers have come or ctx ends.
func (r *reader) run(ctx context.Context, want func() int) {
	r.at, r.since = map[uint64]uint64{}, micros()
	for len(r.got) < want() && ctx.Err() == nil {
		r.lives++
		r.live(ctx, want)
	}
	if n := want(); len(r.got) != n {
		r.t.Errorf("%s: %d pointers of %d came in %d lives", r.name, len(r.got), n, r.lives)
	}
}

func (r *reader) live(ctx context.Context, want func() int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	const credits = 20
	paid := make(chan uint32, 10_000)
	start := &scribev1.StreamStart{
		Category: testCategory, StartAt: scribev1.StartAt_START_AT_EARLIEST, Resume: r.resume,
		Credits: &scribev1.StreamCredits{Pointers: credits, Bytes: 1 << 30}, Heartbeat: durationpb.New(time.Second),
	}
	if r.window >= 0 {
		start.Window = durationpb.New(r.window)
	}
	begun := false
	last := time.Now()
	err := r.server.Stream(ctx, func(ctx context.Context) (*scribev1.StreamRequest, error) {
		if !begun {
			begun = true
			return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: start}}, nil
		}
		select {
		case n := <-paid:
			if r.pace > 0 && !r.blocks && !pause(ctx, time.Duration(n)*r.pace) {
				return nil, ctx.Err()
			}
			return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Credits{Credits: &scribev1.StreamCredits{Pointers: n, Bytes: 1 << 20}}}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, func(m *scribev1.StreamResponse) error {
		r.silence = max(r.silence, time.Since(last))
		entries := m.GetEntries().GetEntries()
		for _, e := range entries {
			r.take(e)
		}
		if m.GetGap() != nil || m.GetShardEnded() != nil {
			r.t.Errorf("%s: %v", r.name, m)
		}
		if e := m.GetEvicted(); e != nil {
			r.resume = e.GetResume()
		}
		if n := len(entries); n > 0 {
			if r.blocks {
				pause(ctx, time.Duration(n)*r.pace)
			}
			paid <- uint32(n)
		}
		if len(r.got) >= want() {
			cancel()
		}
		last = time.Now()
		return ctx.Err()
	})
	if err != nil && ctx.Err() == nil {
		r.t.Errorf("%s: %v", r.name, err)
	}
}

func (r *reader) take(e *scribev1.StreamEntry) {
	if r.at[e.GetShard()]++; e.GetLsn() != r.at[e.GetShard()] {
		r.t.Fatalf("%s: LSN %d of shard %v, want %d", r.name, e.GetLsn(), record.ShardID(e.GetShard()), r.at[e.GetShard()])
	}
	if r.window >= 0 && e.GetTime() < r.newest-r.window.Microseconds() {
		r.t.Errorf("%s: a pointer of %d after one of %d", r.name, e.GetTime(), r.newest)
	}
	if n := len(r.got); r.window == 0 && n > 0 && inTotalOrder(r.got[n-1], e) >= 0 {
		r.t.Errorf("%s: %v after %v", r.name, e, r.got[n-1])
	}
	r.newest = max(r.newest, e.GetTime())
	r.got, r.when = append(r.got, e), append(r.when, micros())
	if e.GetTime() > r.since && r.log.answered(record.ShardID(e.GetShard()), e.GetTime()) {
		r.longest = max(r.longest, time.Duration(micros()-e.GetTime())*time.Microsecond)
	}
}

// inBubble runs a server over an engine in virtual time, and ends it.
func inBubble(t *testing.T, seed uint64, change func(*Config), run func(t *testing.T, e *engine, s *Server)) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(seed)
		cfg := DefaultConfig()
		if change != nil {
			change(&cfg)
		}
		s, err := New(cfg, Deps{Log: e, Categories: newCategories()})
		if err != nil {
			t.Fatal(err)
		}
		run(t, e, s)
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if used := s.budget.Used(); used != 0 || s.cursors.Load() != 0 {
			t.Errorf("%d bytes and %d shards are held in the end", used, s.cursors.Load())
		}
	})
}

// scene is what writers and shards do.
type scene struct {
	shards, appear, appends, stalls int
	length                          time.Duration
	idle                            float64 // part of the shards that get nothing
}

const longestStall = 3 * time.Second

// play runs a scene, and returns when it is over and no shard is stalled any more.
func (sc scene) play(ctx context.Context, e *engine, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 2))
	var ids []record.ShardID
	for range max(sc.shards, 1) {
		ids = append(ids, e.create())
	}
	busy := func() record.ShardID { // few shards get most
		n := max(int(float64(len(ids))*(1-sc.idle)), 1)
		u := random.Float64()
		return ids[len(ids)-1-int(u*u*float64(n-1))]
	}
	steps := sc.appends + sc.appear + sc.stalls
	for range steps {
		pause(ctx, time.Duration(random.Int64N(2*int64(sc.length)/int64(steps))))
		switch n := random.IntN(steps); {
		case n < sc.appear:
			ids = append(ids, e.create())
			e.append(ids[len(ids)-1])
		case n < sc.appear+sc.stalls:
			e.stall(busy(), time.Duration(random.Int64N(int64(longestStall))))
		default:
			some := []record.ShardID{busy()}
			for range random.IntN(3) { // one transaction, one time
				if id := busy(); !slices.Contains(some, id) {
					some = append(some, id)
				}
			}
			e.append(some...)
		}
	}
	pause(ctx, longestStall)
}

var windows = map[string]time.Duration{"strict": 0, "1 s": time.Second, "1 min": time.Minute, "unbounded": -1}

// No window is broken and none deadlocks, whatever shards do, also where streams are sent away every second.
func TestWindowsInVirtualTime(t *testing.T) {
	seeds := uint64(3)
	if testing.Short() {
		seeds = 1
	}
	for name, sc := range map[string]scene{
		"one shard":       {shards: 1, appends: 500, length: 20 * time.Second},
		"skewed and idle": {shards: 50, appends: 2000, length: 20 * time.Second, idle: 0.8},
		"appearing":       {appear: 60, appends: 1000, length: 20 * time.Second},
		"stalled":         {shards: 20, appends: 2000, stalls: 10, length: 40 * time.Second},
		"everything":      {shards: 200, appear: 100, appends: 3000, stalls: 15, length: 100 * time.Second, idle: 0.5},
	} {
		for seed := range seeds {
			t.Run(fmt.Sprintf("%s/seed=%d", name, seed), func(t *testing.T) {
				little := func(c *Config) {
					c.StreamBytes, c.TotalBytes = metalog.MaxRecord, 4*metalog.MaxRecord
					if seed > 0 {
						c.MaxStreamAge = time.Second
					}
				}
				inBubble(t, seed, little, func(t *testing.T, e *engine, s *Server) { watched(t, e, s, sc, seed) })
			})
		}
	}
}

func watched(t *testing.T, e *engine, s *Server, sc scene, seed uint64) {
	ctx, cancel := context.WithTimeout(t.Context(), sc.length+5*time.Minute)
	defer cancel()
	over := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		sc.play(ctx, e, seed)
		close(over)
	})
	want := func() int {
		select {
		case <-over:
			return e.total()
		default:
			return 1 << 30
		}
	}
	pause(ctx, sc.length/10) // there is some history
	var readers []*reader
	for name, window := range windows {
		readers = append(readers, &reader{t: t, name: name, window: window, log: e, server: s})
	}
	readers = append(readers,
		&reader{t: t, name: "strict too", window: 0, log: e, server: s},
		&reader{t: t, name: "slow", window: time.Second, pace: 5 * time.Millisecond, log: e, server: s},
		&reader{t: t, name: "blocking", window: time.Second, pace: 5 * time.Millisecond, blocks: true, log: e, server: s},
	)
	for _, r := range readers {
		running.Go(func() { r.run(ctx, want) })
	}
	<-over
	e.append(e.mu.ids[0]) // the last one, which shows readers that it is over
	running.Wait()
	for _, r := range readers {
		t.Logf("%s: %d pointers, %d lives, the longest took %v, silent for %v", r.name, len(r.got), r.lives, r.longest, r.silence)
		// What is stalled keeps back what the window says, and nothing else. Stalls may follow each other. Of a shard that is stalled
		// when a stream begins nothing is known, so all windows wait for it.
		most := time.Second
		if sc.stalls > 0 && r.window >= 0 && (r.window < longestStall || r.lives > 1) {
			most += 2 * longestStall
		}
		if r.pace == 0 && r.longest > most {
			t.Errorf("%s: a pointer took %v", r.name, r.longest)
		}
		if r.silence > 2*time.Second && !r.blocks {
			t.Errorf("%s: the stream was silent for %v", r.name, r.silence)
		}
	}
}

func TestTenThousandShardsInVirtualTime(t *testing.T) {
	sc := scene{shards: testsize.Test(10_000, 10_000, 2000), appear: 20, appends: 2000, length: 10 * time.Second, idle: 0.5}
	inBubble(t, 1, nil, func(t *testing.T, e *engine, s *Server) { watched(t, e, s, sc, 1) })
}

// following reads in the background until it has all of total pointers, which fn returns, or a minute has passed.
func following(t *testing.T, e *engine, s *Server, window time.Duration, fn func() (total int)) *reader {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := &reader{t: t, name: window.String(), window: window, log: e, server: s}
	var total atomic.Int64
	total.Store(math.MaxInt32)
	var running sync.WaitGroup
	running.Go(func() { r.run(ctx, func() int { return int(total.Load()) }) })
	pause(ctx, time.Second)
	total.Store(int64(fn()))
	running.Wait()
	return r
}

// A subscription that has died without a word is found out, and so is a watch.
func TestSilentEngine(t *testing.T) {
	for name, window := range windows {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, nil, func(t *testing.T, e *engine, s *Server) {
				a, b := e.create(), e.create()
				e.append(a, b)
				r := following(t, e, s, window, func() int {
					e.set(func() {
						for s := range e.mu.subs {
							s.dead = true
						}
						e.mu.blind = true
					})
					e.append(a)
					e.append(e.create())
					return 4
				})
				if most := s.cfg.LookEvery + time.Second; r.longest > most || r.lives > 1 {
					t.Errorf("it took %v and %d lives", r.longest, r.lives)
				}
			})
		})
	}
}

// An engine that does not answer ends streams, and does not keep new ones waiting for ever.
func TestDeafEngine(t *testing.T) {
	inBubble(t, 1, nil, func(t *testing.T, e *engine, s *Server) {
		e.append(e.create())
		for _, window := range []time.Duration{0, -1} {
			e.set(func() { e.mu.deaf = false })
			begin := time.Now()
			err := serve(s, func(ctx context.Context) (*scribev1.StreamRequest, error) {
				if time.Since(begin) == 0 {
					start := &scribev1.StreamStart{Category: testCategory, Credits: &scribev1.StreamCredits{Pointers: 10, Bytes: 10}}
					if window >= 0 {
						start.Window = durationpb.New(window)
					}
					return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: start}}, nil
				}
				pause(ctx, time.Second)
				e.set(func() { e.mu.deaf = true })
				e.create() // whose tail is not told
				<-ctx.Done()
				return nil, ctx.Err()
			})
			wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND)
			if took := time.Since(begin); took > 2*s.cfg.FailAfter {
				t.Errorf("the stream lived for %v", took)
			}
		}
		begin := time.Now()
		err := serve(s, func(context.Context) (*scribev1.StreamRequest, error) {
			return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: &scribev1.StreamStart{Category: testCategory}}}, nil
		})
		wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND)
		if took := time.Since(begin); took != s.cfg.FailAfter {
			t.Errorf("opening took %v", took)
		}
	})
}

// Shards that appear and can't be asked for their tails, and however many that are stalled, hold up what the window says, and nothing else.
func TestOthersGoOn(t *testing.T) {
	inBubble(t, 1, nil, func(t *testing.T, e *engine, s *Server) {
		var stalled []record.ShardID
		for range 3 * s.cfg.Reads {
			stalled = append(stalled, e.create())
		}
		well := e.create()
		e.append(append(stalled, well)...)
		for _, id := range stalled {
			e.stall(id, 20*time.Second)
		}
		r := following(t, e, s, -1, func() int {
			e.set(func() { e.mu.deaf = true })
			e.append(e.create())
			pause(t.Context(), 2*time.Second)
			for range 100 {
				e.append(well)
				pause(t.Context(), 50*time.Millisecond)
			}
			e.set(func() { e.mu.deaf = false })
			return e.total()
		})
		if r.silence > 2*time.Second || r.lives > 1 {
			t.Errorf("silent for %v, %d lives", r.silence, r.lives)
		}
		at := func(id record.ShardID) (longest time.Duration) {
			for i, e := range r.got {
				if record.ShardID(e.GetShard()) == id && e.GetLsn() > 1 {
					longest = max(longest, time.Duration(r.when[i]-e.GetTime())*time.Microsecond)
				}
			}
			return longest
		}
		if longest := at(well); longest > time.Second {
			t.Errorf("a shard that is well was held up for %v", longest)
		}
	})
}

// Streams whose clients take nothing keep no more than a share of the memory: one that reads still reads in large steps.
func TestSlowStreamsGiveBack(t *testing.T) {
	few := func(c *Config) { c.StreamBytes, c.TotalBytes = metalog.MaxRecord, 8*metalog.MaxRecord }
	read := func(slow int) (reads int) {
		inBubble(t, 1, few, func(t *testing.T, e *engine, s *Server) {
			ctx, cancel := context.WithCancel(t.Context())
			ids := []record.ShardID{e.create(), e.create(), e.create()}
			for range 2000 {
				e.append(ids...)
			}
			var running sync.WaitGroup
			for range slow {
				running.Go(func() {
					begun := false
					_ = s.Stream(ctx, func(ctx context.Context) (*scribev1.StreamRequest, error) {
						if begun {
							<-ctx.Done()
							return nil, ctx.Err()
						}
						begun = true
						start := &scribev1.StreamStart{
							Category: testCategory, StartAt: scribev1.StartAt_START_AT_EARLIEST, Credits: &scribev1.StreamCredits{Pointers: 1, Bytes: 1},
						}
						return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: start}}, nil
					}, func(*scribev1.StreamResponse) error { return ctx.Err() })
				})
			}
			pause(ctx, time.Second)
			if n := s.countWaiting(waitsCredits); int(n) != slow {
				t.Errorf("%v streams wait for credits, want %d", n, slow)
			}
			pending, lag := s.measureLag()
			if int(pending) != slow*(6000-1) || slow > 0 && lag < time.Second {
				t.Errorf("%d pointers are pending, the lag is %v", pending, lag)
			}
			if slow > 0 && !s.budget.Pressed() {
				t.Error("the memory is not taken: the test does not test")
			}
			e.set(func() { e.mu.reads = 0 })
			r := &reader{t: t, name: "fast", window: time.Second, log: e, server: s}
			r.run(ctx, e.total)
			if used := s.budget.Used(); used > int64(s.cfg.TotalBytes)+metalog.MaxRecord {
				t.Errorf("%d bytes are held", used)
			}
			e.set(func() { reads = e.mu.reads })
			cancel()
			running.Wait()
		})
		return reads
	}
	alone, beside := read(0), read(30)
	if alone == 0 || beside > 8*alone {
		t.Errorf("%d reads beside slow streams, %d without them", beside, alone)
	}
	t.Logf("%d reads beside 30 slow streams, %d without them", beside, alone)
}

// Where shards appear, streams are sent away before they follow more than a server may.
func TestTotalShardsWhileTheyAppear(t *testing.T) {
	tight := func(c *Config) { c.MaxShards, c.TotalShards = 10, 12 }
	inBubble(t, 1, tight, func(t *testing.T, e *engine, s *Server) {
		for range 5 {
			e.append(e.create())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var evicted atomic.Int64
		var running sync.WaitGroup
		for range 2 {
			running.Go(func() {
				begun := false
				err := s.Stream(ctx, func(ctx context.Context) (*scribev1.StreamRequest, error) {
					if begun {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					begun = true
					return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: &scribev1.StreamStart{Category: testCategory}}}, nil
				}, func(m *scribev1.StreamResponse) error {
					if m.GetEvicted().GetReason() == scribev1.Reason_REASON_OVERLOADED {
						evicted.Add(1)
					}
					return nil
				})
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			})
		}
		pause(ctx, time.Second)
		for range 3 {
			e.append(e.create())
			pause(ctx, time.Second)
		}
		if n := evicted.Load(); n != 1 || s.cursors.Load() != 8 {
			t.Errorf("%d streams were sent away, %d shards are followed", n, s.cursors.Load())
		}
		cancel()
		running.Wait()
	})
}
