package readproxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	lru "github.com/hashicorp/golang-lru/v2"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/transcode"
	"scribe/columnar/vector"
	"scribe/internal/role/queryplan"
	"scribe/internal/role/restrict"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readproxy/view"
)

// viewServer makes views of payloads for queries.
type viewServer struct {
	s     *Server
	plans *queryplan.Cache
	// needs caches the needs of plans.
	needs *lru.Cache[*queryplan.Plan, *view.Need]
	table *view.Table[*viewTranscoder]
	// growing has the IDs of plans whose predicate takes too much memory. The server makes nothing for them, and no view includes
	// them.
	growing *lru.Cache[string, struct{}]
	// slots bounds the payloads that are transcoded at a time.
	slots  chan struct{}
	pruned atomic.Int64 // the time of the last Prune, Unix nanoseconds
	mu     struct {
		sync.Mutex
		building map[blockKey]*viewBuild
	}
}

const (
	// planBytes bounds the texts of cached plans, keptPlans the number of cached needs.
	planBytes = 1 << 20
	keptPlans = 512
	// keptGrowing bounds the remembered plans that take too much memory: their IDs contain the text.
	keptGrowing = 64
)

func newViews(s *Server) (*viewServer, error) {
	v := &viewServer{s: s, slots: make(chan struct{}, runtime.GOMAXPROCS(0))}
	v.mu.building = make(map[blockKey]*viewBuild)
	var err error
	if v.plans, err = queryplan.NewCache(planBytes); err != nil {
		return nil, err
	}
	if v.needs, err = lru.New[*queryplan.Plan, *view.Need](keptPlans); err != nil {
		return nil, err
	}
	if v.growing, err = lru.New[string, struct{}](keptGrowing); err != nil {
		return nil, err
	}
	v.table = view.NewTable(s.cfg.Views, func(_ view.Key, shape *view.Shape) *viewTranscoder { return &viewTranscoder{shape: shape} })
	return v, nil
}

// viewRequest describes the view that a request asks for.
type viewRequest struct {
	plan  *queryplan.Plan
	need  *view.Need
	key   view.Key
	codec uint32
	// limited is what the reader has in place of the category; nil = all of it.
	limited *restrict.Table
}

// Codecs of views: the values of Payload.codec.
const (
	codecPlain = 1
	codecZstd  = 2
	codecS2    = 3
)

// parseRequest checks the view of a request. cat is this server's copy of the category; the client may know a newer schema.
func (v *viewServer) parseRequest(ctx context.Context, cat *scribev1.Category, req *scribev1.FetchRequest, limits *readerLimits) (*viewRequest, error) {
	q := req.GetView().GetQuery()
	a := &viewRequest{codec: max(req.GetView().GetCodec(), codecPlain)}
	var errs []error
	if a.codec > codecS2 {
		errs = append(errs, fmt.Errorf("invalid compression %d of a view: want 1 (none), 2 (zstd) or 3 (s2)", a.codec))
	}
	if n := len(req.GetPlaces()); n != 0 && n != len(req.GetPointers()) {
		errs = append(errs, fmt.Errorf("%d positions for %d pointers: want one for each, or none", n, len(req.GetPointers())))
	}
	if n := len(q.GetText()); n > sql.MaxText {
		errs = append(errs, fmt.Errorf("query too long: %d bytes, the limit is %d", n, sql.MaxText))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "fetch a view: %w", err)
	}
	var err error
	bind := func() (err error) {
		if limits == nil {
			a.plan, err = v.plans.Bind(cat, q)
			return err
		}
		if a.limited, cat, err = v.s.tableOf(ctx, cat, limits.restriction); err != nil {
			return err
		}
		a.plan, err = v.plans.BindSchema(cat, a.limited.Schema(), q)
		return err
	}
	err = bind()
	if errors.Is(err, queryplan.ErrVersion) {
		if cat, err = v.s.deps.Categories.Resolve(ctx, req.GetCategory()); err != nil {
			return nil, err
		}
		err = bind()
	}
	if err != nil {
		return nil, err
	}
	if limits == nil && v.growing.Contains(a.plan.ID) {
		return nil, errGrows()
	}
	a.key = view.Key{Category: cat.GetId(), Version: q.GetSchemaVersion()}
	if limits != nil {
		a.key.Limits = limits.restriction.Digest()
	}
	a.need = v.needOf(a.plan, limits == nil)
	return a, nil
}

// errGrows refuses a view for a predicate that is known to take too much memory.
func errGrows() error {
	return rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "the query's predicate takes too much memory to be evaluated by the read proxy: fetch the payloads RAW")
}

// findGrowingQuery checks whether the item's query alone takes too much memory, after a view that may serve several queries did.
// Such a query is removed, so that it no longer affects the others.
func (a *fetchAnswer) findGrowingQuery(it *answerItem, frames []byte) {
	v := a.s.views
	if !it.view.Shape.Exact(a.asked.need) {
		alone := viewTranscoder{shape: view.ShapeOf(a.asked.need)}
		t, err := alone.transcoderFor(a.asked.plan.Schema, nil)
		if err != nil {
			return
		}
		batch, _, err := t.Transcode(frames, nil)
		if err == nil {
			batch.Release()
		}
		if !errors.Is(err, vector.ErrTooLarge) {
			return
		}
	}
	v.growing.Add(a.asked.plan.ID, struct{}{})
	v.table.ForgetQuery(a.asked.key, a.asked.plan.ID, time.Now())
	a.s.log.Warn("predicate of a query takes too much memory: no views are made for it", "category", a.category)
	a.s.log.Debug("query whose predicate takes too much memory", "category", a.category, "text", a.asked.plan.Text)
}

// needOf returns what a plan needs of a payload. Columns that only readers know are computed there from _index. Of readers that are limited to some rows and columns no
// predicate is applied here, since what it does to other rows could be told from outside; their plans are over schemas of their own.
func (v *viewServer) needOf(p *queryplan.Plan, pushes bool) *view.Need {
	if n, ok := v.needs.Get(p); ok {
		return n
	}
	columns := []string{transcode.ColumnIndex}
	for _, c := range p.Columns {
		if !atReader(c.Name) {
			columns = append(columns, c.Name)
		}
	}
	n := view.NewNeed(columns, nil, false)
	if pushes {
		n = view.NewNeed(columns, p.Pushdown(), p.EarlyStop)
	}
	v.needs.Add(p, n)
	return n
}

func atReader(name string) bool {
	return name == schema.ColumnPersisted || name == schema.ColumnShard || name == schema.ColumnOffset
}

// chooseView chooses the view that serves an item, and records the request in the table. If a suitable view is in memory, the
// item gets it.
func (a *fetchAnswer) chooseView(it *answerItem) {
	v := a.s.views
	p := &it.pointer
	now := time.Now()
	id := append(make([]byte, 0, 64), p.Blob[:]...)
	for _, n := range []uint64{p.BlockOffset, uint64(p.Offset), uint64(p.Length)} {
		id = binary.LittleEndian.AppendUint64(id, n)
	}
	var others []*view.View[*viewTranscoder]
	it.view, others = v.table.ChooseView(a.asked.key, a.category, a.asked.plan.ID, a.asked.need, xxhash.Sum64(id), now)
	v.pruneQueries(now)
	if !a.cachedView(it, it.view) &&
		!slices.ContainsFunc(others, func(o *view.View[*viewTranscoder]) bool { return a.cachedView(it, o) }) {
		a.s.metrics.viewMisses.Inc()
	}
}

// cachedView reports whether a view of an item is in memory, and if so sets it.
func (a *fetchAnswer) cachedView(it *answerItem, v *view.View[*viewTranscoder]) bool {
	b, again := a.keptView(it, v)
	if b == nil {
		return false
	}
	it.view, it.made, it.reused = v, b, true
	if again && a.rule.Shared == KeepReused {
		a.shareView(it, b)
	}
	a.s.metrics.viewHits.Inc()
	v.Stats.Hits.Add(1)
	return true
}

// keptView returns the view of an item in memory; nil if there is none, or if it is damaged. again means that it is requested for
// the second time.
func (a *fetchAnswer) keptView(it *answerItem, v *view.View[*viewTranscoder]) (b *checkedBlock, again bool) {
	key := viewKeyOf(&it.pointer, v.ID, a.asked.codec)
	b, again = a.s.cache.getBlock(key)
	if b != nil && !b.isIntact(&key, 0, uint64(len(b.data))) {
		a.s.cache.dropDamaged(key, b)
		a.s.metrics.damaged.WithLabelValues(tierMemory).Inc()
		a.s.log.Error("view damaged in memory: making it again", "category", a.category, "view", v.ID)
		return nil, false
	}
	return b, again
}

// pruneEvery is the least time between two searches for expired queries.
const pruneEvery = 5 * time.Second

func (v *viewServer) pruneQueries(now time.Time) {
	last := v.pruned.Load()
	if now.UnixNano()-last >= int64(pruneEvery) && v.pruned.CompareAndSwap(last, now.UnixNano()) {
		v.table.Prune(now)
	}
}

// viewTranscoder transcodes payloads into a view.
type viewTranscoder struct {
	shape *view.Shape
	mu    sync.Mutex
	plain *transcode.Transcoder
	// zoned also reports the values of some columns.
	zoned *transcode.Transcoder
	zones []string
}

// transcoderFor returns the transcoder of the view under a schema. It reports the values of the columns in zones.
func (m *viewTranscoder) transcoderFor(s *schema.Schema, zones []string) (*transcode.Transcoder, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(zones) == 0 && m.plain != nil {
		return m.plain, nil
	}
	if len(zones) > 0 && m.zoned != nil && slices.Equal(m.zones, zones) {
		return m.zoned, nil
	}
	t, err := transcode.New(transcode.Spec{
		Schema: s, Columns: m.shape.Columns, Where: m.shape.Where(), EarlyStop: m.shape.EarlyStop, Zones: zones,
		Limits: transcode.Limits{Bytes: maxTranscoded},
	})
	switch {
	case err != nil:
		return nil, err
	case len(zones) > 0:
		m.zoned, m.zones = t, zones
	default:
		m.plain = t
	}
	return t, nil
}

// Views implements rpc.ViewService.
func (s *Server) Views(_ context.Context, req *scribev1.ViewsRequest) (*scribev1.ViewsResponse, error) {
	const mostViews, mostQueries = 1000, 10_000
	s.views.table.Prune(time.Now())
	shown, running := s.views.table.State()
	res := &scribev1.ViewsResponse{
		ZonesWritten: s.zones.written.Load(), ZonesDropped: s.zones.dropped.Load(), ZonesFailed: s.zones.failed.Load(),
	}
	for _, v := range shown {
		if only := req.GetCategory(); only != "" && v.Name != only || len(res.GetViews()) >= mostViews {
			continue
		}
		st := &v.Stats
		predicate := ""
		if w := v.Shape.Where(); w != nil {
			predicate = shorten(expr.Text(w))
		}
		res.Views = append(res.Views, &scribev1.ViewStatus{
			Category: v.Name, View: v.ID, SchemaVersion: v.Key.Version, Columns: v.Shape.Columns, Predicate: predicate, Queries: uint32(v.Queries), //nolint:gosec // bounded
			Payloads: st.Payloads.Load(), Hits: st.Hits.Load(), BytesIn: st.BytesIn.Load(), BytesOut: st.BytesOut.Load(),
			RowsIn: st.RowsIn.Load(), RowsOut: st.RowsOut.Load(), Cpu: uint64(st.CPU.Load() / 1000), Since: v.Since.UnixMicro(), Reason: v.Reason, //nolint:gosec // time spent
		})
	}
	for _, q := range running {
		if only := req.GetCategory(); only != "" && q.Name != only || len(res.GetQueries()) >= mostQueries {
			continue
		}
		version, now, text := queryplan.Split(q.ID)
		res.Queries = append(res.Queries, &scribev1.QueryStatus{
			Category: q.Name, Query: &scribev1.Query{Text: shorten(text), SchemaVersion: version, Now: now}, View: q.View,
			Payloads: q.Payloads, Used: q.Used.UnixMicro(),
		})
	}
	return res, nil
}

// shorten truncates a text for display.
func shorten(s string) string {
	const most = 2000
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

var _ rpc.ViewService = (*Server)(nil)
