package catalog

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/lifecycle"
	"scribe/internal/cell/watch"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// View is a role's copy of the categories. Make it with New, keep it current with Run. Lookups may begin before Run: they find
// what the file of the last good state had.
type View struct {
	*watch.Loop[*scribev1.WatchCategoriesResponse]
	cfg      ViewConfig
	source   CategorySource
	logger   *slog.Logger
	resolves *prometheus.CounterVec

	index   atomic.Pointer[categoryIndex]
	flights singleflight.Group
	limiter *rate.Limiter
	// questions of Resolve that run.
	questions lifecycle.Calls

	mu struct {
		sync.Mutex
		// revision that the watch has reached: while synced, what it does not have at or below it does not exist.
		revision uint64
		synced   bool
		// building is the set that the watch is sending after a reset; it takes the place of index when it is complete.
		building *categoryIndex
		// ahead are categories that Resolve has put into the index and the watch has not confirmed, with when.
		ahead map[string]aheadOfWatch
		// unknown remembers names that the control plane did not know.
		unknown *lru.Cache[string, *unknownName]
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
func New(cfg ViewConfig, deps ViewDeps) (*View, error) {
	if deps.Source == nil {
		return nil, errors.Join(errors.New("catalog: missing source"), cfg.Validate())
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	v := &View{
		cfg: cfg, source: deps.Source, logger: deps.Logger,
		limiter: rate.NewLimiter(rate.Limit(cfg.ResolveRate), cfg.ResolveRate),
	}
	v.index.Store(newIndex())
	v.mu.ahead = make(map[string]aheadOfWatch)
	var err error
	if v.mu.unknown, err = lru.New[string, *unknownName](cfg.UnknownNames); err != nil {
		return nil, err
	}
	if v.resolves, err = newResolveCounter(deps.Registerer); err != nil {
		return nil, err
	}
	v.Loop, err = watch.NewLoop(cfg.Config, watch.WatchedCopy[*scribev1.WatchCategoriesResponse]{
		Package: "catalog", Plural: "categories",
		Watch: func(ctx context.Context, heartbeat *durationpb.Duration, receive func(*scribev1.WatchCategoriesResponse) error) error {
			return v.source.WatchCategories(ctx, &scribev1.WatchCategoriesRequest{Heartbeat: heartbeat}, receive)
		},
		Apply: v.applyMessage, Ended: v.endWatch, Count: v.Len, Decode: v.decodeFile, Encode: v.encodeFile,
	}, deps.Logger, deps.Registerer)
	if err != nil {
		return nil, err
	}
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
func (v *View) All() iter.Seq[*scribev1.Category] { return v.index.Load().eachCategory }

// Len returns how many categories there are.
func (v *View) Len() int { return int(v.index.Load().count.Load()) }

// Revision returns the revision that the view has reached.
func (v *View) Revision() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.revision
}

// Close ends Run, writes the last good state, and waits for both and for questions of Resolve, until ctx ends. Lookups go on
// working. Repeating it is harmless.
func (v *View) Close(ctx context.Context) error {
	v.questions.Drain()
	if err := v.Loop.Close(ctx); err != nil {
		return err
	}
	return v.questions.Wait(ctx)
}

// endWatch drops what an incomplete watch has sent.
func (v *View) endWatch() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.building, v.mu.synced = nil, false
}

// applyMessage takes a message of the watch, and reports whether it completes the set, and whether it changes anything.
func (v *View) applyMessage(msg *scribev1.WatchCategoriesResponse) (complete, changed bool) {
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
		v.putNewer(x, c)
	}
	for _, name := range msg.GetDeleted() {
		// Whatever the index has of that name: if Resolve knows of a newer one, the watch will tell of it too.
		x.removeName(name)
		delete(v.mu.ahead, name)
	}
	if x == v.mu.building {
		if !msg.GetSynced() {
			return false, false
		}
		complete = true
		v.completeSet(msg.GetRevision())
	}
	if msg.GetRevision() != 0 {
		v.mu.revision = msg.GetRevision()
	}
	for name, a := range v.mu.ahead {
		if a.category.GetRevision() <= v.mu.revision {
			delete(v.mu.ahead, name)
		}
	}
	return complete, complete || len(msg.GetUpdated()) > 0 || len(msg.GetDeleted()) > 0
}

// putNewer adds a category that the control plane sent, unless a newer one is here. v.mu is held.
func (v *View) putNewer(x *categoryIndex, c *scribev1.Category) {
	if err := record.ValidateCategory(c.GetName()); err != nil || c.GetId() == 0 {
		v.logger.Error("ignoring category of the control plane: invalid name or id", "category", c.GetName(), "id", c.GetId(), "error", err)
		return
	}
	if old := x.lookup(c.GetName()); old == nil || old.GetRevision() <= c.GetRevision() {
		x.putCategory(c)
	}
}

// completeSet puts the set that the watch has sent in the place of what was known. v.mu is held.
func (v *View) completeSet(revision uint64) {
	x := v.mu.building
	for name, a := range v.mu.ahead {
		// What the set is too old to have. If it is gone by now, the watch says so.
		if a.category.GetRevision() > revision && time.Since(a.since) < maxAheadAge {
			v.putNewer(x, a.category)
		} else {
			delete(v.mu.ahead, name)
		}
	}
	v.index.Store(x)
	v.mu.building, v.mu.synced = nil, true
}
