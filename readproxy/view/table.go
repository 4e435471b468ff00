package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"scribe/internal/base/config"
)

// Config bounds a table.
type Config struct {
	// Views bounds the live views of a version of a category's schema.
	Views int `yaml:"most" default:"8" min:"1" max:"64" flag:"max-views" help:"most views that a read proxy makes of payloads for the queries of a category, 1 to 64"`
	// Queries bounds the tracked queries of a version; beyond it, the least recently used one is removed.
	Queries int `yaml:"queries" default:"256" min:"1" max:"10000"`
	// Expiry is the time after its last request at which a query is no longer running.
	Expiry time.Duration `yaml:"expiry" default:"30s" min:"1s" max:"1h"`
	// Rebalance is the minimum time between two divisions of a version's queries.
	Rebalance time.Duration `yaml:"rebalance" default:"2s" min:"1ms" max:"1h"`
}

// Validate reports every violation.
func (c *Config) Validate() error {
	return config.Check("view", c, nil).Err()
}

// Key names a version of a category's schema, and to which rows and columns its readers are limited: views of different limits have different bytes.
type Key struct {
	Category uint32
	Version  uint32
	Limits   [16]byte
}

// View is a shape with a number and its figures, which the view's maker and server count.
type View[T any] struct {
	ID    uint64
	Key   Key
	Name  string // the category's name
	Shape *Shape
	Since time.Time
	// Tool makes the view.
	Tool  T
	Stats Stats
	// live is the number of queries that the view serves. The table's mutex guards it and reason.
	live   int
	reason string
}

// Stats are the figures of a view.
type Stats struct {
	Payloads, Hits, BytesIn, BytesOut, RowsIn, RowsOut atomic.Uint64
	CPU                                                atomic.Int64 // nanoseconds
}

// TrackedQuery is a running query.
type TrackedQuery struct {
	ID   string
	Need *Need
	// used is the time of the last request, asks the number of requests since the last division, rate their smoothed rate, and
	// payloads their total.
	used     time.Time
	asks     uint64
	rate     float64
	payloads uint64
	view     uint64
}

// Table holds the running queries and the views of all categories. It is safe for concurrent use.
type Table[T any] struct {
	cfg  Config
	make func(Key, *Shape) T
	mu   struct {
		sync.Mutex
		versions map[Key]*schemaVersion[T]
		last     uint64 // number of the newest view
	}
}

// schemaVersion is a version of a category's schema that queries are bound to.
type schemaVersion[T any] struct {
	name    string
	queries map[string]*TrackedQuery
	views   []*View[T] // live ones
	former  []*View[T] // former views, the newest first
	shares  rowShares
	divided time.Time // the time of the last division
	// seen are the recently requested payloads. asks counts the requests since the last division, alone those of them that were
	// the first for their payload.
	seen        *simplelru.LRU[uint64, struct{}]
	asks, alone uint64
	aloneShare  float64
}

const (
	// maxVersions bounds the schema versions with queries.
	maxVersions = 1024
	// formerViews bounds the remembered former views of a version.
	formerViews = 8
	// seenPayloads bounds the remembered payloads of a version, which tell whether queries request the same ones.
	seenPayloads = 1024
	// measuredRows is the number of rows after which a share counts as measured.
	measuredRows = 1000
	// worthwhile is the greatest ratio of the costs of a new division and the present one at which the new one is adopted.
	worthwhile = 0.9
)

// NewTable returns an empty table. tool makes the tool of a view; it is called under the table's lock.
func NewTable[T any](cfg Config, tool func(Key, *Shape) T) *Table[T] {
	t := &Table[T]{cfg: cfg, make: tool}
	t.mu.versions = make(map[Key]*schemaVersion[T])
	return t
}

// ChooseView records that a query requests a payload. It returns the view that serves the query, and other views that cover its
// need, which may be cached. payload identifies the payload, for all queries alike.
func (t *Table[T]) ChooseView(k Key, name, id string, need *Need, payload uint64, now time.Time) (v *View[T], others []*View[T]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.mu.versions[k]
	if c == nil {
		t.makeRoom(now)
		c = &schemaVersion[T]{queries: map[string]*TrackedQuery{}, shares: rowShares{}, divided: now}
		c.seen, _ = simplelru.NewLRU[uint64, struct{}](seenPayloads, nil) // the size is positive
		t.mu.versions[k] = c
	}
	c.name = name
	c.asks++
	if !c.seen.Contains(payload) {
		c.alone++
	}
	c.seen.Add(payload, struct{}{})
	q := c.queries[id]
	if q == nil {
		q = &TrackedQuery{ID: id, Need: need, used: now}
		t.addQuery(k, c, q, now)
	}
	q.used = now
	q.asks++
	q.payloads++
	if now.Sub(c.divided) >= t.cfg.Rebalance {
		t.redivide(k, c, now)
	}
	for _, views := range [...][]*View[T]{c.views, c.former} { // not concatenated: every payload comes here
		for _, other := range views {
			switch {
			case other.ID == q.view:
				v = other
			case other.Shape.Covers(need):
				others = append(others, other)
			}
		}
	}
	return v, others
}

// makeRoom keeps the number of versions within its limit: it removes the least recently used one.
func (t *Table[T]) makeRoom(now time.Time) {
	if len(t.mu.versions) < maxVersions {
		return
	}
	var oldest Key
	least := now
	for k, c := range t.mu.versions {
		newest := time.Time{}
		for _, q := range c.queries {
			if q.used.After(newest) {
				newest = q.used
			}
		}
		if !newest.After(least) {
			oldest, least = k, newest
		}
	}
	delete(t.mu.versions, oldest)
}

// addQuery gives a new query a view.
func (t *Table[T]) addQuery(k Key, c *schemaVersion[T], q *TrackedQuery, now time.Time) {
	if len(c.queries) >= t.cfg.Queries {
		all := slices.Collect(maps.Values(c.queries))
		t.removeQuery(c, slices.MinFunc(all, func(a, b *TrackedQuery) int { return a.used.Compare(b.used) }))
	}
	c.queries[q.ID] = q
	own := ShapeOf(q.Need)
	kept := c.shares.keptShare(own)
	best, least := (*View[T])(nil), own.costToMake(kept)+own.costToTake(kept)
	for _, v := range c.views {
		if v.Shape.key == own.key {
			best = v
			break
		}
		if cost := v.Shape.costToTake(c.shares.keptShare(v.Shape)); v.Shape.Covers(q.Need) && cost < least {
			best, least = v, cost
		}
	}
	if best == nil {
		if len(c.views) >= t.cfg.Views {
			t.redivide(k, c, now)
			if q.view != 0 {
				return
			}
		}
		best = t.viewFor(k, c, own, now)
		best.reason = "a query came"
	}
	best.live++
	q.view = best.ID
}

// removeQuery removes a query. The next division removes its view if no other query uses it.
func (t *Table[T]) removeQuery(c *schemaVersion[T], q *TrackedQuery) {
	delete(c.queries, q.ID)
	for _, v := range c.views {
		if v.ID == q.view {
			v.live--
		}
	}
}

// removeExpired removes a version's queries that run no longer, and reports whether there were any.
func (t *Table[T]) removeExpired(c *schemaVersion[T], now time.Time) (some bool) {
	for _, q := range c.queries {
		if now.Sub(q.used) > t.cfg.Expiry {
			t.removeQuery(c, q)
			some = true
		}
	}
	return some
}

// ForgetQuery removes a query and the view that serves it. Other queries of that view get views without anything of the removed
// one.
func (t *Table[T]) ForgetQuery(k Key, id string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.mu.versions[k]
	if c == nil || c.queries[id] == nil {
		return
	}
	q := c.queries[id]
	t.removeQuery(c, q)
	c.views = slices.DeleteFunc(c.views, func(v *View[T]) bool { return v.ID == q.view })
	t.redivide(k, c, now)
}

// viewFor returns the view of a shape: a live or former one, else a new one.
func (t *Table[T]) viewFor(k Key, c *schemaVersion[T], s *Shape, now time.Time) *View[T] {
	fits := func(v *View[T]) bool { return v.Shape.key == s.key }
	if i := slices.IndexFunc(c.views, fits); i >= 0 {
		return c.views[i]
	}
	var v *View[T]
	if i := slices.IndexFunc(c.former, fits); i >= 0 {
		v = c.former[i]
		c.former = slices.Delete(c.former, i, i+1)
	} else {
		t.mu.last++
		v = &View[T]{ID: t.mu.last, Key: k, Name: c.name, Shape: s, Since: now, Tool: t.make(k, s)}
	}
	c.views = append(c.views, v)
	return v
}

// takeMeasurements updates the shares with the figures of the views.
func (c *schemaVersion[T]) takeMeasurements() {
	for _, v := range slices.Concat(c.former, c.views) {
		if in := v.Stats.RowsIn.Load(); in >= measuredRows {
			c.shares[v.Shape.rowsKey()] = float64(v.Stats.RowsOut.Load()) / float64(in)
		}
	}
	if len(c.shares) > 4096 { // mostly of expired queries
		clear(c.shares)
	}
	if c.asks > 0 {
		c.aloneShare = float64(c.alone) / float64(c.asks)
		c.asks, c.alone = 0, 0
	}
	for _, q := range c.queries {
		q.rate = (q.rate + float64(q.asks)) / 2
		q.asks = 0
	}
}

// redivide divides the queries of a version again, and adopts the division if it is worthwhile.
func (t *Table[T]) redivide(k Key, c *schemaVersion[T], now time.Time) {
	t.removeExpired(c, now)
	c.takeMeasurements()
	c.divided = now
	singles := c.singleGroups()
	groups := divideQueries(singles, t.cfg.Views, c.shares, c.aloneShare)
	present, whole := c.presentGroups()
	if cheaper := totalCost(groups, c.shares, c.aloneShare); whole && len(c.views) <= t.cfg.Views && cheaper > worthwhile*totalCost(present, c.shares, c.aloneShare) {
		groups = present
	}
	t.adoptGroups(k, c, groups, now)
}

// adoptGroups makes the groups the version's views. The views that it had and does not keep become former ones.
func (t *Table[T]) adoptGroups(k Key, c *schemaVersion[T], groups []*queryGroup, now time.Time) {
	before := c.views
	c.views, c.former = nil, slices.Concat(before, c.former)
	for _, v := range before {
		v.live = 0
	}
	for _, g := range groups {
		v := t.viewFor(k, c, g.shape, now)
		v.live = len(g.members)
		if v.live > 1 || !slices.Contains(before, v) {
			v.reason = fmt.Sprintf("%d queries share it", v.live)
		}
		for _, q := range g.members {
			q.view = v.ID
		}
	}
	c.former = c.former[:min(len(c.former), formerViews)]
}

// singleGroups returns the needs of the running queries, each with its queries, the busiest first.
func (c *schemaVersion[T]) singleGroups() []*queryGroup {
	by := map[string]*queryGroup{}
	var all []*queryGroup
	for _, q := range c.queries {
		g := by[q.Need.key]
		if g == nil {
			g = &queryGroup{shape: ShapeOf(q.Need)}
			by[q.Need.key] = g
			all = append(all, g)
		}
		g.addMember(q)
	}
	slices.SortFunc(all, func(a, b *queryGroup) int {
		return cmp.Or(cmp.Compare(b.sum, a.sum), strings.Compare(a.shape.key, b.shape.key))
	})
	return all
}

// leastRate is the least weight of a query, for those that have not asked since the last division.
const leastRate = 0.1

func (g *queryGroup) addMember(q *TrackedQuery) {
	rate := max(q.rate, leastRate)
	g.members = append(g.members, q)
	g.sum, g.most = g.sum+rate, max(g.most, rate)
}

// presentGroups returns the present groups. whole means that every query has a view.
func (c *schemaVersion[T]) presentGroups() (groups []*queryGroup, whole bool) {
	by := map[uint64]*queryGroup{}
	for _, v := range c.views {
		by[v.ID] = &queryGroup{shape: v.Shape}
	}
	whole = true
	for _, q := range c.queries {
		if g := by[q.view]; g != nil {
			g.addMember(q)
		} else {
			whole = false
		}
	}
	for _, v := range c.views {
		if g := by[v.ID]; len(g.members) > 0 {
			groups = append(groups, g)
		}
	}
	return groups, whole
}

// Prune removes expired queries, and versions without queries.
func (t *Table[T]) Prune(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, c := range t.mu.versions {
		gone := t.removeExpired(c, now)
		switch {
		case len(c.queries) == 0:
			delete(t.mu.versions, k)
		case gone:
			t.redivide(k, c, now)
		}
	}
}

// Inputs returns the columns in the predicates of a version's running queries, sorted.
func (t *Table[T]) Inputs(k Key) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.mu.versions[k]
	if c == nil {
		return nil
	}
	var names []string
	for _, q := range c.queries {
		names = append(names, ShapeOf(q.Need).Inputs()...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Counts returns how many live views and running queries there are.
func (t *Table[T]) Counts() (views, queries int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.mu.versions {
		views, queries = views+len(c.views), queries+len(c.queries)
	}
	return views, queries
}

// ShownView is a view for display.
type ShownView[T any] struct {
	*View[T]
	Queries int
	Reason  string
}

// RunningQuery is a running query for display.
type RunningQuery struct {
	Name     string
	ID       string
	View     uint64
	Payloads uint64
	Used     time.Time
}

// State returns the live views and the running queries, by category.
func (t *Table[T]) State() (views []ShownView[T], queries []RunningQuery) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.mu.versions {
		for _, v := range c.views {
			views = append(views, ShownView[T]{v, v.live, v.reason})
		}
		for _, q := range c.queries {
			queries = append(queries, RunningQuery{c.name, q.ID, q.view, q.payloads, q.used})
		}
	}
	slices.SortFunc(views, func(a, b ShownView[T]) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(b.Stats.Hits.Load()+b.Stats.Payloads.Load(), a.Stats.Hits.Load()+a.Stats.Payloads.Load()),
			cmp.Compare(a.ID, b.ID))
	})
	slices.SortFunc(queries, func(a, b RunningQuery) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(b.Payloads, a.Payloads), strings.Compare(a.ID, b.ID))
	})
	return views, queries
}
