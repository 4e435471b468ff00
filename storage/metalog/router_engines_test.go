package metalog_test

import (
	"context"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	"scribe/internal/testkit/testclock"
	"scribe/internal/testkit/testsize"
	"scribe/storage/metalog"
	"scribe/storage/metalog/linear"
	"scribe/storage/metalog/moving"
	"scribe/storage/metalog/pebblelog"
	"scribe/storage/metalog/pebblelog/schema"
	"scribe/storage/metalog/router"
)

// TestRouter runs the suite over one log of four engines, between which logs move beneath their callers: before one call in four a log that it names
// goes to another engine, and before one in eight the place where logs of its category are created. Two routers take turns, so each is one that has
// not heard of some moves.
//
// Histories are a test of their own, below. Times that never decrease over all logs are what one engine promises.
func TestRouter(t *testing.T) {
	t.Run("transcripts", func(t *testing.T) { runTranscripts(t, routedLogs) })
	for _, group := range [][]testCase{
		openCases, appendCases, fenceCases, readCases, seekCases, trimCases, retireCases, annotateCases, subscribeCases, watermarkCases, watchCases, limitCases,
		endCases, durableCases,
	} {
		for _, c := range group {
			if c.name != "times never decrease" {
				t.Run(c.name, func(t *testing.T) { c.runCase(t, routedLogs) })
			}
		}
	}
}

// TestRouterAlone runs the suite over a router of one engine.
func TestRouterAlone(t *testing.T) {
	runCalls(t, func(tb testing.TB) *logInstance {
		tb.Helper()
		return newRoutedEngines(tb, 1).instance(tb)
	})
}

func routedLogs(tb testing.TB) *logInstance {
	tb.Helper()
	r := newRoutedEngines(tb, len(routedNames))
	r.apart = true
	return r.instance(tb)
}

// TestRouterHistories records histories over engines whose clocks are up to six seconds apart, while clients move logs to and fro, and the place where
// logs are created moves on.
func TestRouterHistories(t *testing.T) {
	seed, decided := number(t, seedVariable, rand.Uint64()), 0
	for range number(t, roundsVariable, testsize.Test[uint64](5, 5, 2)) {
		ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
		r := newRoutedEngines(t, len(routedNames), 0, 3*time.Second, -3*time.Second, time.Second)
		h := linear.Run(ctx, linear.Config{
			Seed: seed, Moves: true, Hurry: time.Millisecond, Disturbances: 3, Disturb: func(*rand.Rand) { r.disturbHome(ctx) },
		}, &historyLog{r})
		cancel()
		if err := r.closeAll(); err != nil {
			t.Errorf("Close: %v", err)
		}
		err := h.Check()
		if err != nil && !errors.Is(err, linear.ErrUndecided) {
			t.Fatalf("%s=%d: %v", seedVariable, seed, err)
		}
		if err == nil {
			decided++
		}
		t.Logf("%s=%d: %d operations, %d of them of unknown outcome", seedVariable, seed, h.Len(), h.Unknown())
		seed++
	}
	if decided == 0 {
		t.Error("no history was decided: the machine is too slow for so many calls at once")
	}
}

// disturbHome moves the place where logs of the histories' category are created.
func (r *routedEngines) disturbHome(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moveHome(ctx, 77)
}

// historyLog is the routers as histories use them.
type historyLog struct{ r *routedEngines }

var _ linear.Mover = (*historyLog)(nil)

func (h *historyLog) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	return h.r.anyRouter().Open(ctx, owner, shards)
}

func (h *historyLog) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	return h.r.anyRouter().Append(ctx, a)
}

func (h *historyLog) Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]metalog.Entry, error) {
	return h.r.anyRouter().Read(ctx, shard, from, maxRecords, maxBytes)
}

func (h *historyLog) Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	return h.r.anyRouter().Tail(ctx, shards)
}

func (h *historyLog) Subscribe(ctx context.Context, from []metalog.Position, heartbeat time.Duration, fn func([]metalog.Update) error) error {
	return h.r.anyRouter().Subscribe(ctx, from, heartbeat, fn)
}

func (h *historyLog) Trim(ctx context.Context, shard record.ShardID, before record.LSN) error {
	return h.r.anyRouter().Trim(ctx, shard, before)
}

// MoveLog moves a log to another engine, or finishes the move that an earlier call has begun.
func (h *historyLog) MoveLog(ctx context.Context, shard record.ShardID) (metalog.Handover, error) {
	r := h.r
	r.mu.Lock()
	defer r.mu.Unlock()
	var newest metalog.State
	from := -1
	for i, e := range r.engines {
		states, err := e.Log.Tail(ctx, []record.ShardID{shard})
		if err != nil {
			return metalog.Handover{}, err
		}
		// The engine that adopted a log has it in the epoch in which the other one handed it over.
		if st := states[0]; st.Epoch > newest.Epoch || st.Epoch == newest.Epoch && newest.MovedTo != "" && st.MovedTo == "" {
			newest, from = st, i
		}
	}
	if from < 0 {
		return metalog.Handover{}, metalog.ErrInvalid
	}
	to := (from + 1 + r.random.IntN(len(r.engines)-1)) % len(r.engines)
	if newest.MovedTo != "" {
		to = slices.Index(routedNames, newest.MovedTo)
	}
	done, err := moving.MoveLog(ctx, moving.Move{
		Shard: shard, From: r.engines[from].Name, To: r.engines[to].Name, Source: r.engines[from].Log, Destination: r.engines[to].Log,
	}, moving.Options{})
	return done.Handover, err
}

var routedNames = []string{"main", "second", "third", "fourth"}

// routedEngines are engines in memory, and the routers over them.
type routedEngines struct {
	clock   *testclock.Clock
	ahead   []time.Duration
	folders []*vfs.MemFS
	engines []router.Engine
	routers []*router.Log
	random  *rand.Rand

	// opening is held for writing while logs move. With apart set, calls that write hold it as well: the suite does not expect that a call has to be
	// repeated since a log was between two engines. Histories do.
	opening sync.RWMutex
	apart   bool
	mu      sync.Mutex
	// homes are the indexes of the engines that create the logs of a category, with the version of its last mark.
	homes  map[uint32]categoryMark
	epochs map[record.ShardID]*movedEpochs
	turn   uint64
	moves  int // how many there were
}

type categoryMark struct {
	engine  int
	version uint64
}

// newRoutedEngines opens n engines, each with its clock ahead by what is given for it.
func newRoutedEngines(tb testing.TB, n int, ahead ...time.Duration) *routedEngines {
	tb.Helper()
	seed := number(tb, seedVariable, rand.Uint64())
	tb.Logf("%s=%d decides what moves", seedVariable, seed)
	r := &routedEngines{
		ahead: append(ahead, make([]time.Duration, n-len(ahead))...), clock: testclock.New(), homes: map[uint32]categoryMark{}, epochs: map[record.ShardID]*movedEpochs{},
		random: rand.New(rand.NewPCG(seed, 0)),
	}
	for range n {
		r.folders = append(r.folders, vfs.NewCrashableMem())
	}
	r.openAll(tb)
	return r
}

// cloneFolders returns the folders as a crash would leave them, at a moment at which no log moves: a step of a move is durable before the next one.
func (r *routedEngines) cloneFolders() (crashed []*vfs.MemFS) {
	r.opening.Lock()
	defer r.opening.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, fs := range r.folders {
		crashed = append(crashed, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.random.IntN(3) * 50, RNG: r.random}))
	}
	return crashed
}

// openAgain opens the folders, and knows what r knew. Calls of r that still run are refused.
func (r *routedEngines) openAgain(tb testing.TB) *routedEngines {
	tb.Helper()
	r.opening.Lock()
	defer r.opening.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	next := &routedEngines{
		clock: r.clock, ahead: r.ahead, folders: r.folders, random: r.random, apart: r.apart, homes: maps.Clone(r.homes), epochs: map[record.ShardID]*movedEpochs{},
	}
	for shard, e := range r.epochs {
		next.epochs[shard] = &movedEpochs{maps.Clone(e.now), maps.Clone(e.given)}
	}
	r.random = rand.New(rand.NewPCG(r.random.Uint64(), 0))
	next.openAll(tb)
	return next
}

func (r *routedEngines) openAll(tb testing.TB) {
	tb.Helper()
	r.engines, r.routers = nil, nil
	for i, fs := range r.folders {
		ahead := r.ahead[i].Microseconds()
		e, err := pebblelog.Open("log", pebblelog.Options{FS: fs, Clock: func() int64 { return r.clock.Now() + ahead }, MemTableBytes: 1 << 20})
		if err != nil {
			tb.Fatal(err)
		}
		r.engines = append(r.engines, router.Engine{Name: routedNames[i], Log: e})
	}
	for range 2 {
		l, err := router.New(r.engines, router.Options{Root: routedNames[0]})
		if err != nil {
			tb.Fatal(err)
		}
		r.routers = append(r.routers, l)
	}
}

func (r *routedEngines) closeAll() error {
	var errs []error
	for _, l := range r.routers {
		errs = append(errs, l.Close())
	}
	for _, e := range r.engines {
		errs = append(errs, e.Log.Close())
	}
	return errors.Join(errs...)
}

func (r *routedEngines) instance(tb testing.TB) *logInstance {
	tb.Helper()
	again := func(tb testing.TB, between func()) metalog.Log {
		tb.Helper()
		if err := r.closeAll(); err != nil {
			tb.Errorf("Close: %v", err)
		}
		between()
		r = r.openAgain(tb)
		return &movingLog{Log: r.routers[0], of: r}
	}
	return &logInstance{
		log: &movingLog{Log: r.routers[0], of: r}, clock: r.clock, lags: len(r.engines) > 1,
		restart: func(tb testing.TB) metalog.Log { tb.Helper(); return again(tb, func() {}) },
		crash: func(tb testing.TB) metalog.Log {
			tb.Helper()
			crashed := r.cloneFolders()
			return again(tb, func() { r.folders = crashed })
		},
		damage: func(tb testing.TB, shard record.ShardID, lsn record.LSN) metalog.Log {
			tb.Helper()
			has := -1
			for i, e := range r.engines {
				stays, err := e.Log.Stays(tb.Context(), shard)
				if err != nil {
					tb.Fatal(err)
				}
				if slices.ContainsFunc(stays, func(s metalog.Stay) bool { return s.FirstLSN <= lsn && lsn < s.NextLSN }) {
					has = i
				}
			}
			return again(tb, func() { flipByte(tb, r.folders[has], schema.AppendRecordKey(nil, shard, lsn)) })
		},
	}
}

// movingLog is a router beneath which logs move. A move raises a log's epoch, which callers of the suite must not see: they were not fenced by another
// writer. So epochs are translated: what the caller was given stands for what the log has since.
type movingLog struct {
	metalog.Log // the first router
	of          *routedEngines
}

// movedEpochs are a log's epochs that moves have raised, both ways.
type movedEpochs struct{ now, given map[uint64]uint64 }

// anyRouter returns the routers by turns.
func (r *routedEngines) anyRouter() metalog.Log {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn++
	return r.routers[r.turn%2]
}

// moveSome moves one of the shards to another engine, or the place where logs of its category are created, or nothing.
func (r *routedEngines) moveSome(ctx context.Context, shards ...record.ShardID) {
	if len(r.engines) == 1 || len(shards) == 0 || ctx.Err() != nil {
		return
	}
	ctx = context.WithoutCancel(ctx) // a move is no part of the call
	r.opening.Lock()
	defer r.opening.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	shard := shards[r.random.IntN(len(shards))]
	switch r.random.IntN(8) {
	case 0, 1:
		if from, ok := r.engineOf(ctx, shard); ok {
			r.moveOn(ctx, shard, from)
		}
	case 2:
		r.moveHome(ctx, shard.Category())
	}
}

// engineOf returns the index of the engine that has a log.
func (r *routedEngines) engineOf(ctx context.Context, shard record.ShardID) (int, bool) {
	for i, e := range r.engines {
		states, err := e.Log.Tail(ctx, []record.ShardID{shard})
		if err == nil && states[0].Epoch != 0 && states[0].MovedTo == "" {
			return i, true
		}
	}
	return 0, false
}

// moveOn moves a log to a later engine. It never comes back: a log that does is trimmed engine by engine, which the suite would notice.
func (r *routedEngines) moveOn(ctx context.Context, shard record.ShardID, from int) {
	if later := len(r.engines) - 1 - from; later > 0 {
		r.moveLog(ctx, shard, from, from+1+r.random.IntN(later))
	}
}

// moveLog moves a log. It may fail where a log can't move: at the end of its category, or of the case.
func (r *routedEngines) moveLog(ctx context.Context, shard record.ShardID, from, to int) {
	_, err := moving.MoveLog(ctx, moving.Move{
		Shard: shard, From: r.engines[from].Name, To: r.engines[to].Name, Source: r.engines[from].Log, Destination: r.engines[to].Log,
	}, moving.Options{})
	if err != nil {
		return
	}
	states, err := r.engines[to].Log.Tail(ctx, []record.ShardID{shard})
	if err != nil {
		return
	}
	e := r.epochs[shard]
	if e == nil {
		e = &movedEpochs{map[uint64]uint64{}, map[uint64]uint64{}}
		r.epochs[shard] = e
	}
	now := states[0].Epoch
	given, ok := e.given[now-1]
	if !ok {
		given = now - 1
	}
	e.now[given], e.given[now] = now, given
	r.moves++
}

// moveHome makes the next engine the one that creates the logs of a category, and leaves those that exist where they are.
func (r *routedEngines) moveHome(ctx context.Context, category uint32) {
	h := r.homes[category]
	next := h.engine + 1
	if next == len(r.engines) {
		return
	}
	h.version++
	relocation := router.Relocation{Category: category, From: r.engines[h.engine], To: r.engines[next], Version: h.version}
	if _, err := relocation.MoveHome(ctx); err == nil {
		h.engine = next
		r.homes[category] = h
	}
}

// currentEpoch returns what a caller's epoch stands for.
func (r *routedEngines) currentEpoch(shard record.ShardID, epoch uint64) uint64 {
	e := r.epochs[shard]
	if e == nil {
		return epoch
	}
	if now, ok := e.now[epoch]; ok {
		return now
	}
	if _, ok := e.given[epoch]; ok {
		return math.MaxUint64 // of a move: no caller was given it
	}
	return epoch
}

// translateStates puts the epochs into states that callers were given.
func (r *routedEngines) translateStates(states []metalog.State) []metalog.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range states {
		if e := r.epochs[states[i].Shard]; e != nil {
			if given, ok := e.given[states[i].Epoch]; ok {
				states[i].Epoch = given
			}
		}
	}
	return states
}

func (m *movingLog) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	if metalog.ValidateOpen(owner, shards) == nil {
		m.of.moveSome(ctx, shards...)
	}
	m.of.opening.RLock() // a move in between would raise an epoch that nobody was given
	defer m.of.opening.RUnlock()
	states, err := m.of.anyRouter().Open(ctx, owner, shards)
	return m.of.translateStates(states), m.of.translateError(err)
}

// translateError puts the epochs that callers were given into a refusal.
func (r *routedEngines) translateError(err error) error {
	if e := new(metalog.RefusedError); errors.As(err, &e) {
		for i := range e.Refusals {
			e.Refusals[i].State = r.translateStates([]metalog.State{e.Refusals[i].State})[0]
		}
	}
	return err
}

// Append repeats an append that a move has fenced, as a batcher does after opening the log again, and brings logs of one append together, where a
// batcher would make two.
func (m *movingLog) Append(ctx context.Context, a *metalog.Append) (done []metalog.Appended, err error) {
	var ids []record.ShardID
	for i := range a.Shards {
		ids = append(ids, a.Shards[i].Shard)
	}
	m.of.moveSome(ctx, ids...)
	for {
		b := *a
		b.Shards = slices.Clone(a.Shards)
		m.of.mu.Lock()
		for i := range b.Shards {
			b.Shards[i].Epoch = m.of.currentEpoch(b.Shards[i].Shard, b.Shards[i].Epoch)
		}
		before := m.of.moves
		m.of.mu.Unlock()
		release := m.of.keepApart()
		done, err = m.of.anyRouter().Append(ctx, &b)
		release()
		m.of.mu.Lock()
		now := m.of.moves
		m.of.mu.Unlock()
		spread := errors.As(err, new(*metalog.SpreadError)) || errors.As(err, new(*metalog.RefusedError)) && m.of.areSpread(ctx, ids)
		switch {
		case now != before && (spread || errors.Is(err, metalog.ErrFenced)): // a move may be what refused it
		case spread: // what refuses in one engine does not say what would in the others
			if !m.of.bringTogether(ctx, ids) {
				if err := m.refusedAlone(ctx, &b, before); err != nil {
					return nil, err
				} // else another call has brought them together
			}
		default:
			return done, m.of.translateError(err)
		}
	}
}

// keepApart keeps moves from a call, if they are to be apart.
func (r *routedEngines) keepApart() (release func()) {
	if !r.apart {
		return func() {}
	}
	r.opening.RLock()
	return r.opening.RUnlock
}

// areSpread reports whether logs are, or would be created, in several engines.
func (r *routedEngines) areSpread(ctx context.Context, shards []record.ShardID) bool {
	r.opening.RLock()
	defer r.opening.RUnlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	engines := map[int]bool{}
	for _, s := range shards {
		at, ok := r.engineOf(ctx, s)
		if !ok {
			at = r.homes[s.Category()].engine
		}
		engines[at] = true
	}
	return len(engines) > 1
}

// refusedAlone returns the refusal of an append whose logs can't come together, since a category was retired or a log does not exist, as one engine
// would give it; nil if none is refused, or logs have moved since the append.
func (m *movingLog) refusedAlone(ctx context.Context, a *metalog.Append, before int) error {
	m.of.opening.RLock()
	defer m.of.opening.RUnlock()
	if m.of.moves != before { // the epochs may be those of before: try again
		return nil
	}
	all := new(metalog.RefusedError)
	for i := range a.Shards {
		states, err := m.Log.Tail(ctx, []record.ShardID{a.Shards[i].Shard})
		if err != nil {
			return err
		}
		var why error
		switch st, s := states[0], &a.Shards[i]; {
		case st.Sealed:
			why = metalog.ErrSealed
		case st.Epoch != s.Epoch:
			why = metalog.ErrFenced
		case s.ExpectLSN != 0 && s.ExpectLSN != st.NextLSN:
			why = metalog.ErrConflict
		}
		if why != nil {
			all.Refusals = append(all.Refusals, metalog.Refusal{Err: why, State: states[0]})
		}
	}
	if len(all.Refusals) == 0 {
		return nil
	}
	return m.of.translateError(all)
}

// bringTogether moves logs to the last of the engines that have some of them, and tells the routers nothing. It reports whether any has moved.
func (r *routedEngines) bringTogether(ctx context.Context, shards []record.ShardID) bool {
	ctx = context.WithoutCancel(ctx)
	r.opening.Lock()
	defer r.opening.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	last, before := 0, r.moves
	for _, s := range shards {
		if at, ok := r.engineOf(ctx, s); ok {
			last = max(last, at)
		}
	}
	for _, s := range shards {
		if at, ok := r.engineOf(ctx, s); ok && at < last {
			r.moveLog(ctx, s, at, last)
		}
	}
	return r.moves > before
}

func (m *movingLog) Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	m.of.moveSome(ctx, shards...)
	states, err := m.of.anyRouter().Tail(ctx, shards)
	return m.of.translateStates(states), err
}

func (m *movingLog) Seal(ctx context.Context, shard record.ShardID) (metalog.State, error) {
	m.of.moveSome(ctx, shard)
	defer m.of.keepApart()()
	st, err := m.of.anyRouter().Seal(ctx, shard)
	return m.of.translateStates([]metalog.State{st})[0], err
}

func (m *movingLog) Shards(ctx context.Context, category uint32) ([]metalog.State, error) {
	states, err := m.of.anyRouter().Shards(ctx, category)
	return m.of.translateStates(states), err
}

func (m *movingLog) Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]metalog.Entry, error) {
	m.of.moveSome(ctx, shard)
	return m.of.anyRouter().Read(ctx, shard, from, maxRecords, maxBytes)
}

func (m *movingLog) Sequences(ctx context.Context, shard record.ShardID, producers []uint64) ([]metalog.ProducerState, error) {
	m.of.moveSome(ctx, shard)
	return m.of.anyRouter().Sequences(ctx, shard, producers)
}

func (m *movingLog) Subscribe(ctx context.Context, from []metalog.Position, heartbeat time.Duration, fn func([]metalog.Update) error) error {
	return m.of.anyRouter().Subscribe(ctx, from, heartbeat, fn)
}

func (m *movingLog) Close() error { return m.of.closeAll() }
