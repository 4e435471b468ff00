// Package queryplan binds the queries of requests to the schema of their category, once for all requests with the same query. A
// query travels as text, schema version and time; every role that works on it derives the same plan.
package queryplan

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/zone"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// ErrVersion means that the schema version is unknown: it is newer than the local copy of the category, or never existed.
var ErrVersion = errors.New("queryplan: the version of the schema is not known")

// histories bounds the categories whose parsed schemas are cached.
const histories = 1024

// Plan is a query bound to a schema. It is immutable.
type Plan struct {
	*plan.Plan
	// ID identifies the query: text, version and time.
	ID string
	// Definitions are the definitions of the schema's columns for comparisons with zone maps.
	Definitions *zone.Definitions
}

// Cache keeps the most recently used plans. It is safe for concurrent use.
type Cache struct {
	schemas *schema.Cache
	defs    *lru.Cache[*schema.Schema, *zone.Definitions]
	limit   int
	mu      struct {
		sync.Mutex
		plans *simplelru.LRU[cacheKey, *Plan]
		bytes int
	}
}

type cacheKey struct {
	category uint32
	version  *schema.Schema
	text     string
	now      int64
}

// NewCache returns a cache of plans with at most limit bytes of text. A plan takes some tens of times the memory of its text.
func NewCache(limit int) (*Cache, error) {
	c := &Cache{schemas: schema.NewCache(histories), limit: limit}
	var err error
	if c.mu.plans, err = simplelru.NewLRU[cacheKey, *Plan](math.MaxInt, nil); err != nil { // its bound is on bytes
		return nil, err
	}
	c.defs, err = lru.New[*schema.Schema, *zone.Definitions](histories)
	return c, err
}

// Bind returns the plan of a query on a category. Errors have REASON_INVALID; ErrVersion may disappear with a newer copy of the
// category.
func (c *Cache) Bind(cat *scribev1.Category, q *scribev1.Query) (*Plan, error) {
	s, err := c.versionOf(cat, q.GetSchemaVersion())
	if err != nil {
		return nil, err
	}
	return c.BindSchema(cat, s, q)
}

// BindSchema is Bind over a schema in place of the category's, such as the part of it that a reader may know. The schema is that of the query's version; plans over
// different schemas are different, also of one version.
func (c *Cache) BindSchema(cat *scribev1.Category, s *schema.Schema, q *scribev1.Query) (*Plan, error) {
	if s.Version != q.GetSchemaVersion() {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "%w: %d of category %q, the newest is %d", ErrVersion, q.GetSchemaVersion(), cat.GetName(), s.Version)
	}
	k := cacheKey{cat.GetId(), s, q.GetText(), q.GetNow()}
	if p, ok := c.getPlan(k); ok {
		return p, nil
	}
	if q.GetNow() == 0 {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "the query has no time that now() stands for")
	}
	parsed, err := sql.Parse(q.GetText())
	if err != nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "the query: %w", err)
	}
	bound, err := plan.Bind(parsed, s, plan.Options{Now: time.UnixMicro(q.GetNow()).UTC()})
	if err != nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "the query, over version %d of the schema of category %q: %w", s.Version, cat.GetName(), err)
	}
	if bound.Category != cat.GetName() {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "the query is of category %q, the request of %q", bound.Category, cat.GetName())
	}
	defs, ok := c.defs.Get(s)
	if !ok {
		defs = zone.Define(s)
		c.defs.Add(s, defs)
	}
	p := &Plan{Plan: bound, ID: fmt.Sprintf("%d@%d %s", q.GetSchemaVersion(), q.GetNow(), q.GetText()), Definitions: defs}
	c.keepPlan(k, p)
	return p, nil
}

// Split divides the ID of a plan into its parts.
func Split(id string) (version uint32, now int64, text string) {
	head, text, _ := strings.Cut(id, " ")
	_, _ = fmt.Sscanf(head, "%d@%d", &version, &now) // in the format of Bind
	return version, now, text
}

// weight returns the size of a plan for the cache's bound.
func (k *cacheKey) weight() int { return len(k.text) + 512 }

// getPlan returns a cached plan.
func (c *Cache) getPlan(k cacheKey) (*Plan, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.plans.Get(k)
}

// keepPlan adds a plan, and evicts the least recently used ones to make room.
func (c *Cache) keepPlan(k cacheKey, p *Plan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.plans.Contains(k) {
		return
	}
	c.mu.plans.Add(k, p)
	for c.mu.bytes += k.weight(); c.mu.bytes > c.limit; {
		old, _, ok := c.mu.plans.RemoveOldest()
		if !ok {
			return
		}
		c.mu.bytes -= old.weight()
	}
}

// versionOf returns a schema version of a category.
func (c *Cache) versionOf(cat *scribev1.Category, n uint32) (*schema.Schema, error) {
	h, err := c.schemas.History(cat.GetId(), cat.GetSchema())
	if err != nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "the schema of category %q: %w", cat.GetName(), err)
	}
	s := h.Version(n)
	if s == nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "%w: %d of category %q", ErrVersion, n, cat.GetName())
	}
	return s, nil
}
