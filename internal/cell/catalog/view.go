package catalog

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/logthrottle"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// View is a role's copy of the categories. Make it with New, keep it current with Run. Lookups may begin before Run: they find
// what the file of the last good state had.
type View struct {
	cfg     Config
	source  Source
	logger  *slog.Logger
	metrics *metrics

	index   atomic.Pointer[index]
	synced  atomic.Bool
	ready   chan struct{}
	readied sync.Once

	// dirty tells the saver that there is something to write.
	dirty chan struct{}

	flights singleflight.Group
	limiter *rate.Limiter

	mu struct {
		sync.Mutex
		// revision that the watch has reached: what it does not have at or below it does not exist.
		revision uint64
		// building is the set that the watch is sending after a reset; it takes the place of index when it is complete.
		building *index
		// ahead are categories that Resolve has put into the index and the watch has not confirmed, with when.
		ahead map[string]aheadOfWatch
		// unknown remembers names that the control plane did not know.
		unknown *lru.Cache[string, *unknownName]

		running, closed bool
		stop            context.CancelFunc
		// stopped is closed when Run has returned.
		stopped chan struct{}
		// resolving counts questions to the control plane; quiet is closed when the last ends after closing.
		resolving int
		quiet     chan struct{}
	}
}

// aheadOfWatch is a category that Resolve learned of before the watch did.
type aheadOfWatch struct {
	category *scribev1.Category
	since    time.Time
}

// Bounds of View.mu.ahead. A category that the watch has not confirmed after maxAheadAge is not carried over a reset any more.
const (
	maxAhead    = 1024
	maxAheadAge = time.Minute
)

// New returns a view with what the file of the last good state has, if there is one that can be read.
func New(cfg Config, deps Deps) (*View, error) {
	if deps.Source == nil {
		return nil, errors.Join(errors.New("catalog: no source"), cfg.Validate())
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	v := &View{
		cfg:     cfg,
		source:  deps.Source,
		logger:  deps.Logger,
		ready:   make(chan struct{}),
		dirty:   make(chan struct{}, 1),
		limiter: rate.NewLimiter(rate.Limit(cfg.ResolveRate), cfg.ResolveRate),
	}
	v.index.Store(newIndex())
	v.mu.ahead = make(map[string]aheadOfWatch)
	v.mu.stopped = make(chan struct{})
	v.mu.quiet = make(chan struct{})
	var err error
	if v.mu.unknown, err = lru.New[string, *unknownName](cfg.UnknownNames); err != nil {
		return nil, err
	}
	if v.metrics, err = newMetrics(deps.Registerer, func() float64 { return float64(v.Len()) }); err != nil {
		return nil, err
	}
	v.load()
	return v, nil
}

// Lookup returns a category by name. It takes no lock and allocates nothing. The category is shared and must not be changed.
func (v *View) Lookup(name string) (*scribev1.Category, bool) {
	c := v.index.Load().lookup(name)
	return c, c != nil
}

// LookupBytes is Lookup for a name inside a buffer, such as that of a frame.
func (v *View) LookupBytes(name []byte) (*scribev1.Category, bool) {
	c := v.index.Load().lookupBytes(name)
	return c, c != nil
}

// ByID returns a category by id, as Lookup does by name.
func (v *View) ByID(id uint32) (*scribev1.Category, bool) {
	c := v.index.Load().lookupID(id)
	return c, c != nil
}

// All yields every category, in no order. Changes that happen meanwhile may be seen or not.
func (v *View) All() iter.Seq[*scribev1.Category] { return v.index.Load().all }

// Len returns how many categories there are.
func (v *View) Len() int { return int(v.index.Load().count.Load()) }

// Ready is closed once the view has had a complete set: the control plane's, or that of the file.
func (v *View) Ready() <-chan struct{} { return v.ready }

// InSync reports whether the control plane keeps the view current. While it does not, the view serves the last good state.
func (v *View) InSync() bool { return v.synced.Load() }

// Revision returns the revision that the view has reached.
func (v *View) Revision() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.revision
}

// errRunning means that Run was called twice.
var errRunning = errors.New("catalog: the view runs already, or has run")

// Run follows the control plane until ctx ends or Close is called, and returns nil then. It may be called once.
func (v *View) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v.mu.Lock()
	switch {
	case v.mu.running:
		v.mu.Unlock()
		return errRunning
	case v.mu.closed:
		v.mu.Unlock()
		return nil
	}
	v.mu.running, v.mu.stop = true, cancel
	v.mu.Unlock()
	defer close(v.mu.stopped)

	var saver sync.WaitGroup
	saver.Go(func() { v.save(ctx) })
	defer saver.Wait()

	pause := v.cfg.MinBackoff
	var trouble logthrottle.Throttle
	for {
		v.metrics.watches.Inc()
		synced, err := v.watch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if synced {
			pause = v.cfg.MinBackoff
			trouble.Recovered(ctx, v.logger, "watch of categories began again")
		}
		trouble.Failed(ctx, v.logger, "the watch of categories ended, the last good state serves until it is begun again", "error", err, "pause", pause)
		timer := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		pause = min(2*pause, v.cfg.MaxBackoff)
	}
}

// Close ends Run, writes the last good state, and waits for both and for questions of Resolve, until ctx ends. Lookups go on
// working. Repeating it is harmless.
func (v *View) Close(ctx context.Context) error {
	v.mu.Lock()
	if !v.mu.closed {
		v.mu.closed = true
		if v.mu.resolving == 0 {
			close(v.mu.quiet)
		}
	}
	running := v.mu.running
	if running {
		v.mu.stop()
	}
	v.mu.Unlock()
	if running {
		select {
		case <-v.mu.stopped:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case <-v.mu.quiet:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// errSilent is why a watch is given up that the control plane has nothing to say on, not even a heartbeat.
var errSilent = errors.New("catalog: the control plane is silent")

// watch runs one watch. It reports whether a complete set arrived.
func (v *View) watch(ctx context.Context) (synced bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := 3 * v.cfg.Heartbeat
	silence := time.AfterFunc(patience, func() { cancel(errSilent) })
	defer silence.Stop()
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.mu.building = nil
		v.synced.Store(false)
		v.metrics.connected.Set(0)
	}()
	req := &scribev1.WatchCategoriesRequest{Heartbeat: durationpb.New(v.cfg.Heartbeat)}
	err = v.source.WatchCategories(ctx, req, func(msg *scribev1.WatchCategoriesResponse) error {
		silence.Stop()
		defer silence.Reset(patience)
		if err := ctx.Err(); err != nil {
			return err
		}
		if v.apply(msg) {
			synced = true
		}
		return nil
	})
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
		err = cause
	}
	return synced, err
}

// apply takes a message of the watch, and reports whether it completes the set.
func (v *View) apply(msg *scribev1.WatchCategoriesResponse) (synced bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if msg.GetReset_() {
		v.mu.building = newIndex()
	}
	x := v.mu.building
	if x == nil {
		x = v.index.Load()
	}
	for _, c := range msg.GetUpdated() {
		v.put(x, c)
	}
	for _, name := range msg.GetDeleted() {
		// Whatever the index has of that name: if Resolve knows of a newer one, the watch will tell of it too.
		x.remove(name)
		delete(v.mu.ahead, name)
	}
	if x == v.mu.building {
		if !msg.GetSynced() {
			return false
		}
		synced = true
		v.complete(msg.GetRevision())
	}
	if msg.GetRevision() != 0 {
		v.mu.revision = msg.GetRevision()
	}
	for name, a := range v.mu.ahead {
		if a.category.GetRevision() <= v.mu.revision {
			delete(v.mu.ahead, name)
		}
	}
	if synced || len(msg.GetUpdated()) > 0 || len(msg.GetDeleted()) > 0 {
		select {
		case v.dirty <- struct{}{}:
		default:
		}
	}
	return synced
}

// put adds a category that the control plane sent, unless a newer one is here. v.mu is held.
func (v *View) put(x *index, c *scribev1.Category) {
	if err := record.ValidateCategory(c.GetName()); err != nil || c.GetId() == 0 {
		v.logger.Error("the control plane sent something that is no category", "category", c.GetName(), "id", c.GetId(), "error", err)
		return
	}
	if old := x.lookup(c.GetName()); old == nil || old.GetRevision() <= c.GetRevision() {
		x.put(c)
	}
}

// complete puts the set that the watch has sent in the place of what was known. v.mu is held.
func (v *View) complete(revision uint64) {
	x := v.mu.building
	for name, a := range v.mu.ahead {
		// What the set is too old to have. If it is gone by now, the watch says so.
		if a.category.GetRevision() > revision && time.Since(a.since) < maxAheadAge {
			v.put(x, a.category)
		} else {
			delete(v.mu.ahead, name)
		}
	}
	v.index.Store(x)
	v.mu.building = nil
	v.synced.Store(true)
	v.metrics.connected.Set(1)
	v.readied.Do(func() { close(v.ready) })
}
