// Package queryplan binds queries that arrive with a request to the schema of their category: once for all requests that name the same.
// A query travels as text, version of the schema and time; every role that works for it comes to the same plan by itself.
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

// ErrVersion means that the version of the schema is not known: it is newer than the copy of the category at hand, or was never there.
var ErrVersion = errors.New("queryplan: the version of the schema is not known")

// histories is how many categories' schemas are kept read.
const histories = 1024

// Plan is a query bound to a schema. It is immutable.
type Plan struct {
	*plan.Plan
	// ID names the query as it was asked: text, version and time.
	ID string
	// Definitions are those of the schema's columns, as zone maps compare them.
	Definitions *zone.Definitions
}

// Cache keeps the plans that were used last. It is safe for concurrent use.
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

// NewCache returns a cache of plans whose texts have at most so many bytes; a plan takes some tens of times its text.
func NewCache(limit int) (*Cache, error) {
	c := &Cache{schemas: schema.NewCache(histories), limit: limit}
	var err error
	if c.mu.plans, err = simplelru.NewLRU[cacheKey, *Plan](math.MaxInt, nil); err != nil { // its bound is on bytes
		return nil, err
	}
	c.defs, err = lru.New[*schema.Schema, *zone.Definitions](histories)
	return c, err
}

// Bind returns the plan of a query of a category. Errors have REASON_INVALID; one that is ErrVersion may be gone with a newer copy of the
// category.
func (c *Cache) Bind(cat *scribev1.Category, q *scribev1.Query) (*Plan, error) {
	s, err := c.versionOf(cat, q.GetSchemaVersion())
	if err != nil {
		return nil, err
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

// Split takes the ID of a plan apart.
func Split(id string) (version uint32, now int64, text string) {
	head, text, _ := strings.Cut(id, " ")
	_, _ = fmt.Sscanf(head, "%d@%d", &version, &now) // as Bind wrote it
	return version, now, text
}

// weight is what a plan counts in a cache's bound of bytes.
func (k *cacheKey) weight() int { return len(k.text) + 512 }

// getPlan returns a plan that was bound before.
func (c *Cache) getPlan(k cacheKey) (*Plan, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.plans.Get(k)
}

// keepPlan keeps a plan. Those that were used longest ago make room.
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

// versionOf returns a version of a category's schema.
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
