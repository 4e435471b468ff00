package router

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

	"scribe/internal/base/backoff"
	"scribe/internal/base/entropy"
	"scribe/internal/base/lifecycle"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// MaxEngines bounds the engines of a cell.
const MaxEngines = 16

// Engine is one engine, which the caller closes after the Log made of it.
type Engine struct {
	Name string
	Log  metalog.Log
}

// Options are the options of a Log.
type Options struct {
	// Root is the engine in which every category begins.
	Root string
	// Logger receives failures of subscriptions; nil means none.
	Logger *slog.Logger
	// Random draws the jitter of pauses; nil means the machine's randomness.
	Random *entropy.Source
}

// Log is one metalog.Log of several engines.
type Log struct {
	root   string
	logger *slog.Logger
	pauses backoff.Backoff
	calls  lifecycle.Calls
	life   context.Context //nolint:containedctx // ends with the Log
	end    context.CancelFunc

	engines atomic.Pointer[engineSet]

	mu struct {
		sync.Mutex
		// at are logs that are not in the root, or have come back to it, as they were told last; a log that is not here is looked for in the root first.
		at map[record.ShardID]logPlace
		// homes are the engines that create the logs of categories that have left the root, as they were told last.
		homes map[uint32]string
		// changed is closed and replaced when a home or the list of engines changes.
		changed chan struct{}
	}
}

// logPlace is the engine in which a log was last. moved says that it was in another one before, so that its records may be in several.
type logPlace struct {
	engine string
	moved  bool
}

// engineSet is a list of engines. It does not change.
type engineSet struct {
	order  []Engine
	byName map[string]metalog.Log
}

var (
	_ metalog.Log    = (*Log)(nil)
	_ metalog.Looker = (*Log)(nil)
	_ metalog.Placer = (*Log)(nil)
)

// maxPlaces bounds what is remembered of single logs, about 70 bytes each. A log that is forgotten is found again by way of the root.
const maxPlaces = 1 << 20

// New returns a Log of engines, the root among them.
func New(engines []Engine, o Options) (*Log, error) {
	l := &Log{root: o.Root, logger: cmp.Or(o.Logger, slog.New(slog.DiscardHandler))}
	l.pauses = backoff.Backoff{Min: 50 * time.Millisecond, Max: 2 * time.Second, Random: o.Random}
	l.mu.at, l.mu.homes, l.mu.changed = map[record.ShardID]logPlace{}, map[uint32]string{}, make(chan struct{})
	l.life, l.end = context.WithCancel(context.Background())
	if err := l.SetEngines(engines); err != nil {
		l.end()
		return nil, err
	}
	return l, nil
}

// SetEngines replaces the list of engines. Calls and subscriptions that run go on with those that they use. An engine may leave the list only
// when no log and no mark leads to it.
func (l *Log) SetEngines(engines []Engine) error {
	set := &engineSet{order: slices.Clone(engines), byName: make(map[string]metalog.Log, len(engines))}
	if len(engines) > MaxEngines {
		return fmt.Errorf("metalog router: %d engines, the limit is %d", len(engines), MaxEngines)
	}
	for _, e := range engines {
		if set.byName[e.Name] != nil {
			return fmt.Errorf("metalog router: the engine %q is listed twice", e.Name)
		}
		set.byName[e.Name] = e.Log
	}
	if set.byName[l.root] == nil {
		return fmt.Errorf("metalog router: the engine %q, in which categories begin, is not listed", l.root)
	}
	l.engines.Store(set)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.announceChange()
	return nil
}

// announceChange wakes those who wait for another home or list. The mutex is held.
func (l *Log) announceChange() {
	close(l.mu.changed)
	l.mu.changed = make(chan struct{})
}

// awaitChange returns a channel that is closed when a home or the list of engines changes.
func (l *Log) awaitChange() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.changed
}

// Close implements metalog.Log. The engines stay open.
func (l *Log) Close() error {
	l.calls.Drain()
	l.end()
	return l.calls.Wait(context.Background())
}

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

// retryAfter is the hint of errors that pass with the next news of the engines, or of a move.
const retryAfter = 100 * time.Millisecond

// engine returns an engine by its name.
func (l *Log) engine(name string) (metalog.Log, error) {
	if e := l.engines.Load().byName[name]; e != nil {
		return e, nil
	}
	return nil, rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, time.Second,
		"metalog: this process does not know the metadata engine %q: it was added a moment ago, or the control plane has not told this process for long", name)
}

// EngineNamed returns an engine by its name. It fails with an error that passes if this process does not know it.
func (l *Log) EngineNamed(name string) (Engine, error) {
	log, err := l.engine(name)
	return Engine{Name: name, Log: log}, err
}

// betweenError is the answer of calls that need a log's writer while it has none.
func betweenError(shard record.ShardID, from, to string) error {
	return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, retryAfter,
		"metalog: shard %v is on its way from the metadata engine %q to %q, and takes no records meanwhile: try again", shard, from, to)
}

// unsettledError is the answer where engines have sent a call on too often.
func unsettledError(what string) error {
	return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, retryAfter, "metalog: %s: the engines send it on and on: logs are moving, or they contradict each other: try again", what)
}

// placeOf returns the engine in which a log was last, as far as it is known.
func (l *Log) placeOf(shard record.ShardID) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.place(shard)
}

// place is placeOf with the mutex held.
func (l *Log) place(shard record.ShardID) string {
	if p, ok := l.mu.at[shard]; ok {
		return p.engine
	}
	return l.root
}

// isAlone reports whether there is one engine only.
func (l *Log) isAlone() bool { return len(l.engines.Load().order) == 1 }

// isSpread reports whether records of a log may be in several engines, as far as it is known.
func (l *Log) isSpread(shard record.ShardID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.at[shard].moved
}

// notePlace remembers where a log is: in the engine that returned the state.
func (l *Log) notePlace(st *metalog.State, engine string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	shard, moved := st.Shard, st.MovedFrom != ""
	if engine == l.root && !moved {
		delete(l.mu.at, shard)
		return
	}
	if _, ok := l.mu.at[shard]; !ok && len(l.mu.at) >= maxPlaces {
		for s := range l.mu.at { // any
			delete(l.mu.at, s)
			break
		}
	}
	l.mu.at[shard] = logPlace{engine, moved}
}

// noteHome remembers which engine creates the logs of a category.
func (l *Log) noteHome(category uint32, engine string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cmp.Or(l.mu.homes[category], l.root) == engine {
		return
	}
	if engine == l.root {
		delete(l.mu.homes, category)
	} else {
		l.mu.homes[category] = engine
	}
	l.announceChange()
}

// EngineOf implements metalog.Placer.
func (l *Log) EngineOf(shard record.ShardID) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p, ok := l.mu.at[shard]; ok {
		return p.engine
	}
	return cmp.Or(l.mu.homes[shard.Category()], l.root)
}

// sleep waits, but not longer than the caller or the Log.
func (l *Log) sleep(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.life, func() { cancel(metalog.ErrClosed) })()
	return backoff.Sleep(ctx, d)
}

// engineNamed returns the engine that an error names for a single log.
func engineNamed(err error) (engine string, ok bool) {
	e := new(metalog.ElsewhereError)
	if errors.As(err, &e) {
		return e.Engine, true
	}
	return "", false
}
