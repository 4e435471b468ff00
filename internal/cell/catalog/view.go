package catalog

import (
	"cmp"
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

// View is a role's copy of the categories. Make it with New, keep it current with Run. Lookups may begin before Run: they use the
// file of the last good state.
type View struct {
	*watch.Loop[*scribev1.WatchCategoriesResponse]
	cfg      ViewConfig
	source   CategorySource
	logger   *slog.Logger
	resolves *prometheus.CounterVec

	index   atomic.Pointer[categoryIndex]
	plans   atomic.Pointer[planSet]     // replaced with mu held
	tenants atomic.Pointer[toldTenants] // nil while they are not known
	// savedTenants are those that the file has. The loop's saver uses it.
	savedTenants *toldTenants
	flights      singleflight.Group
	limiter      *rate.Limiter
	// questions are the running requests of Resolve.
	questions lifecycle.Calls

	mu struct {
		sync.Mutex
		// revision is the revision that the watch has reached. While synced, a category at or below it that is not in the view
		// does not exist.
		revision uint64
		synced   bool
		// building is the set that the watch is sending after a reset; it replaces index when it is complete.
		building *categoryIndex
		// ahead are categories that Resolve has put into the index and the watch has not confirmed yet.
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

// New returns a view with the categories of the file of the last good state, if it exists and is readable.
func New(cfg ViewConfig, deps ViewDeps) (*View, error) {
	if deps.Source == nil {
		return nil, errors.Join(errors.New("catalog: missing source"), cfg.Validate())
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	v := &View{
		cfg: cfg, source: deps.Source, logger: cmp.Or(deps.Logger, slog.New(slog.DiscardHandler)),
		limiter: rate.NewLimiter(rate.Limit(cfg.ResolveRate), cfg.ResolveRate),
	}
	v.index.Store(newIndex())
	v.plans.Store(newPlanSet(nil))
	v.mu.ahead = make(map[string]aheadOfWatch)
	var err error
	if v.mu.unknown, err = lru.New[string, *unknownName](cfg.UnknownNames); err != nil {
		return nil, err
	}
	if v.resolves, err = newResolveCounter(deps.Registerer); err != nil {
		return nil, err
	}
	v.loadTenants()
	v.Loop, err = watch.NewLoop(cfg.Config, watch.WatchedCopy[*scribev1.WatchCategoriesResponse]{
		Package: "catalog", Plural: "categories",
		Watch: func(ctx context.Context, heartbeat *durationpb.Duration, receive func(*scribev1.WatchCategoriesResponse) error) error {
			return v.source.WatchCategories(ctx, &scribev1.WatchCategoriesRequest{Heartbeat: heartbeat}, receive)
		},
		Apply: v.applyMessage, Ended: v.endWatch, Count: v.Len, Decode: v.decodeFile, Encode: v.encodeFile,
	}, v.logger, deps.Registerer)
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

// ByID returns a category by id. Otherwise it is like Lookup.
func (v *View) ByID(id uint32) (*scribev1.Category, bool) {
	c := v.index.Load().lookupID(id)
	return c, c != nil
}

// All yields every category, in no particular order. Concurrent changes may or may not be seen.
func (v *View) All() iter.Seq[*scribev1.Category] { return v.index.Load().eachCategory }

// Len returns the number of categories.
func (v *View) Len() int { return int(v.index.Load().count.Load()) }

// Revision returns the revision of the view.
func (v *View) Revision() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.revision
}

// Close ends Run, writes the last good state, and waits for both and for requests of Resolve, until ctx ends. Lookups continue to
// work. Repeating it is harmless.
func (v *View) Close(ctx context.Context) error {
	v.questions.Drain()
	if err := v.Loop.Close(ctx); err != nil {
		return err
	}
	return v.questions.Wait(ctx)
}

// endWatch drops the incomplete set of a watch that has ended.
func (v *View) endWatch() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.building, v.mu.synced = nil, false
}

// applyMessage applies a message of the watch, and reports whether the set is complete with it, and whether the message changes
// anything.
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
	v.applyPlans(msg)
	tenants := v.applyTenants(msg)
	for _, name := range msg.GetDeleted() {
		// Remove it in any revision: if Resolve knows of a newer one, the watch will deliver that too.
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
	return complete, complete || tenants || len(msg.GetUpdated()) > 0 || len(msg.GetDeleted()) > 0
}

// putNewer adds a category from the control plane, unless the index has a newer revision. v.mu is held.
func (v *View) putNewer(x *categoryIndex, c *scribev1.Category) {
	if err := record.ValidateCategory(c.GetName()); err != nil || c.GetId() == 0 {
		v.logger.Error("ignoring category of the control plane: invalid name or id", "category", c.GetName(), "id", c.GetId(), "error", err)
		return
	}
	if old := x.lookup(c.GetName()); old == nil || old.GetRevision() <= c.GetRevision() {
		x.putCategory(c)
	}
}

// completeSet replaces the index by the set that the watch has sent. v.mu is held.
func (v *View) completeSet(revision uint64) {
	x := v.mu.building
	for name, a := range v.mu.ahead {
		// The set is too old to have it. If it is deleted by now, the watch will say so.
		if a.category.GetRevision() > revision && time.Since(a.since) < maxAheadAge {
			v.putNewer(x, a.category)
		} else {
			delete(v.mu.ahead, name)
		}
	}
	v.index.Store(x)
	v.mu.building, v.mu.synced = nil, true
}
