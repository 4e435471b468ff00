package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/role/affinity"
	"scribe/internal/testkit/testclock"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
	"scribe/storage/blob/layout"
	"scribe/storage/blob/memory"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
)

// tester is what the world needs of a test: *testing.T, or *rapid.T.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// world is a cell in which a test is every process but the keeper. Its clock is everybody's.
type world struct {
	tester
	ctx   context.Context
	clock *testclock.Clock
	made  func() int64 // when a blob that is put now is made
	fs    *vfs.MemFS
	log   *pebblelog.Engine
	blobs blob.Store
	cell  *cell

	epochs map[record.ShardID]uint64
	next   map[record.ShardID]record.LSN
	ids    uint64
	cfg    Config
}

func newWorld(ctx context.Context, t tester, blobs blob.Store) *world {
	t.Helper()
	w := &world{
		tester: t, ctx: ctx, clock: testclock.New(), fs: vfs.NewMem(), blobs: blobs,
		cell: newCell(), epochs: map[record.ShardID]uint64{}, next: map[record.ShardID]record.LSN{}, cfg: DefaultConfig(),
	}
	if blobs == nil {
		w.blobs = memory.New()
	}
	w.made = w.clock.Now
	w.cfg.StoreRequests, w.cfg.LogRequests, w.cfg.DeleteBytes = 1e9, 1e9, 0
	w.cfg.LogRemovals = 0 // but for the tests of removing: the world's writers do not open their logs again
	w.open()
	return w
}

func (w *world) open() {
	w.Helper()
	log, err := pebblelog.Open("log", pebblelog.Options{FS: w.fs, Clock: w.clock.Now, MemTableBytes: 64 << 10, CacheBytes: 1 << 20})
	if err != nil {
		w.Fatalf("open the engine: %v", err)
	}
	w.log = log
}

func (w *world) close() {
	w.Helper()
	if err := errors.Join(w.log.Close(), w.blobs.Close()); err != nil {
		w.Fatalf("close: %v", err)
	}
}

func (w *world) now() time.Time { return time.UnixMicro(w.clock.Now()) }

func (w *world) deps(owner string) Deps {
	return Deps{Log: w.log, Blobs: w.blobs, Control: w.cell, Categories: w.cell, Plans: w.cell.allPlans, Owner: owner, Now: w.now}
}

// cell is the control plane and everybody's copy of the categories.
type cell struct {
	mu   sync.Mutex
	cats map[uint32]*scribev1.Category
	// dropped are deleted categories that were not forgotten.
	dropped map[uint32]*scribev1.Category
	pins    map[uint32]int64
	age     time.Duration
	last    uint32
	members []*scribev1.Member
	plans   map[uint32]*scribev1.CategoryPlan
}

func newCell() *cell {
	c := &cell{cats: map[uint32]*scribev1.Category{}, dropped: map[uint32]*scribev1.Category{}, pins: map[uint32]int64{}, age: time.Hour}
	c.members = []*scribev1.Member{{Id: "keeper", RemovedLogs: true}}
	return c
}

// setMembers sets who is in the cell beside the keeper.
func (c *cell) setMembers(others ...*scribev1.Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members = append(c.members[:1:1], others...)
}

// listed returns who is in the cell beside the keeper.
func (c *cell) listed() []*scribev1.Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.members[1:]
}

// addBatchers makes n batchers members, with the slots from 1 on. It returns these in the order that logical shard 0 of a category has them.
func (c *cell) addBatchers(id uint32, n int) (order []uint16) {
	var batchers []*scribev1.Member
	for slot := 1; slot <= n; slot++ {
		batchers = append(batchers, &scribev1.Member{
			Id: fmt.Sprint("batcher", slot), Slot: uint32(slot), Roles: []scribev1.Role{scribev1.Role_ROLE_BATCHER}, RemovedLogs: true,
		})
		order = append(order, uint16(slot))
	}
	c.setMembers(batchers...)
	score := func(slot uint16) float64 {
		return affinity.ScoreOf(affinity.KeyOf(id, 0), affinity.HashOf(batchers[slot-1].GetId()))
	}
	slices.SortFunc(order, func(a, b uint16) int { return cmp.Compare(score(b), score(a)) })
	return order
}

// plan plans for how many batchers the log of logical shard 0 of a category is open; 0 for none.
func (c *cell) plan(id, logs uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plans = map[uint32]*scribev1.CategoryPlan{}
	if logs > 0 {
		c.plans[id] = &scribev1.CategoryPlan{Shards: []*scribev1.ShardPlan{{Logs: logs}}}
	}
}

func (c *cell) allPlans() (map[uint32]*scribev1.CategoryPlan, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plans, nil
}

func (c *cell) ListMembers(context.Context, *scribev1.ListMembersRequest) (*scribev1.ListMembersResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &scribev1.ListMembersResponse{Members: slices.Clone(c.members)}, nil
}

func (c *cell) create(retention time.Duration, now int64) uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	c.cats[c.last] = &scribev1.Category{Id: c.last, Name: fmt.Sprint("c", c.last), Retention: durationpb.New(retention), CreatedAt: now}
	return c.last
}

func (c *cell) retain(id uint32, retention time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.cats[id]
	c.cats[id] = &scribev1.Category{Id: id, Name: old.GetName(), Retention: durationpb.New(retention), CreatedAt: old.GetCreatedAt()}
}

func (c *cell) drop(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped[id] = c.cats[id]
	delete(c.cats, id)
}

func (c *cell) pin(id uint32, from int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if from == 0 {
		delete(c.pins, id)
		return
	}
	c.pins[id] = from
}

func (c *cell) live() []uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.cats))
}

func (c *cell) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.dropped)
}

func (c *cell) retention(id uint32) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cats[id].GetRetention().AsDuration()
}

func (c *cell) All() iter.Seq[*scribev1.Category] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Values(slices.Collect(maps.Values(c.cats)))
}

func (c *cell) ByID(id uint32) (*scribev1.Category, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cat, ok := c.cats[id]
	return cat, ok
}

func (c *cell) GetCategory(_ context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cat := range c.cats {
		if cat.GetName() == req.GetName() {
			return &scribev1.GetCategoryResponse{Category: cat}, nil
		}
	}
	return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "no %s", req.GetName())
}

func (c *cell) ListDropped(_ context.Context, req *scribev1.ListDroppedRequest) (*scribev1.ListDroppedResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	res := &scribev1.ListDroppedResponse{}
	for _, id := range slices.Sorted(maps.Keys(c.dropped)) {
		if id > req.GetAfter() {
			res.Categories = append(res.Categories, c.dropped[id])
			res.More = true // one a page
			break
		}
	}
	return res, nil
}

func (c *cell) ForgetDropped(_ context.Context, req *scribev1.ForgetDroppedRequest) (*scribev1.ForgetDroppedResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range req.GetIds() {
		delete(c.dropped, id)
	}
	return &scribev1.ForgetDroppedResponse{}, nil
}

func (c *cell) ListPins(context.Context, *scribev1.ListPinsRequest) (*scribev1.ListPinsResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	res := &scribev1.ListPinsResponse{Age: durationpb.New(c.age)}
	for id, from := range c.pins {
		res.Pins = append(res.Pins, &scribev1.Pin{Category: id, From: from})
	}
	return res, nil
}

// draft is a blob that was put, with the append that is to follow.
type draft struct {
	key    string
	id     pointer.BlobID
	append *metalog.Append
}

// put puts a blob with a payload for each of the categories, as a batcher with a writer slot does, and returns what it would append.
// Categories that were deleted are left out; it returns nil when none is left.
func (w *world) put(writer uint16, class uint32, categories ...uint32) *draft {
	w.Helper()
	w.ids++
	created := w.made()
	id := pointer.MakeBlobID(created, [10]byte{byte(w.ids >> 24), byte(w.ids >> 16), byte(w.ids >> 8), byte(w.ids), 1})
	b := layout.NewBuilder(id, class, "", id.Time())
	payload := fmt.Appendf(nil, "payload %d", w.ids)
	b.AddBlock(pointer.CodecNone, payload, len(payload))
	d := &draft{key: pointer.Key(class, id), id: id, append: &metalog.Append{OldestBlob: id.Time()}}
	for _, category := range categories {
		shard := record.MakeShardID(category, 0, writer)
		if w.epochs[shard] == 0 {
			states, err := w.log.Open(w.ctx, "writer", []record.ShardID{shard})
			if errors.Is(err, metalog.ErrSealed) {
				continue
			}
			if err != nil {
				w.Fatalf("open %v: %v", shard, err)
			}
			w.epochs[shard], w.next[shard] = states[0].Epoch, states[0].NextLSN
		}
		p := b.AddPayload(0, 0, uint32(len(payload)), layout.Entry{
			Shard: shard, Epoch: w.epochs[shard], LSN: w.next[shard], Category: fmt.Sprint("c", category),
			Pointer: pointer.Pointer{Frames: 1, Messages: 1, MinTime: created, MaxTime: created},
		})
		d.append.Shards = append(d.append.Shards, metalog.ShardAppend{
			Shard: shard, Epoch: w.epochs[shard], ExpectLSN: w.next[shard], Records: [][]byte{pointer.Append(nil, &p)},
		})
	}
	if len(d.append.Shards) == 0 {
		return nil
	}
	parts, err := b.Finish()
	if err != nil {
		w.Fatalf("build: %v", err)
	}
	if err := w.blobs.Put(w.ctx, d.key, parts...); err != nil {
		w.Fatalf("put: %v", err)
	}
	return d
}

// commit appends what a draft is about. The error is the engine's.
func (w *world) commit(d *draft) error {
	_, err := w.log.Append(w.ctx, d.append)
	if err == nil {
		for _, s := range d.append.Shards {
			w.next[s.Shard] = s.ExpectLSN + 1
		}
	}
	return err
}

// write puts and commits.
func (w *world) write(writer uint16, class uint32, categories ...uint32) *draft {
	w.Helper()
	d := w.put(writer, class, categories...)
	if d == nil {
		return nil
	}
	if err := w.commit(d); err != nil {
		w.Fatalf("append: %v", err)
	}
	return d
}

// keys returns the keys of all blobs.
func (w *world) keys() map[string]int64 {
	w.Helper()
	out := map[string]int64{}
	for info, err := range w.blobs.List(w.ctx, pointer.KeyRoot) {
		if err != nil {
			w.Fatalf("list: %v", err)
		}
		out[info.Key] = info.Size
	}
	return out
}

// referred returns the keys that the pointers of all logs refer to.
func (w *world) referred() map[string]bool {
	w.Helper()
	out := map[string]bool{}
	for id := uint32(1); id <= w.cell.last; id++ {
		states, err := w.log.Shards(w.ctx, id)
		if err != nil {
			w.Fatalf("shards: %v", err)
		}
		for _, st := range states {
			for lsn := st.FirstLSN; lsn < st.NextLSN; {
				entries, err := w.log.Read(w.ctx, st.Shard, lsn, 0, 0)
				if trimmed, ok := errors.AsType[*metalog.TrimmedError](err); ok {
					lsn = trimmed.First // by a keeper that works meanwhile
					continue
				}
				if err != nil {
					w.Fatalf("read: %v", err)
				}
				for _, e := range entries {
					lsn = e.LSN + 1
					data, err := pointerIn(st.Shard, e.Data)
					if err == nil && data == nil {
						continue
					}
					p, derr := pointer.Decode(data)
					if err := errors.Join(err, derr); err != nil {
						w.Fatalf("pointer: %v", err)
					}
					out[p.Key()] = true
				}
			}
		}
	}
	return out
}

// resolves checks that every pointer has its blob.
func (w *world) resolves() {
	w.Helper()
	there := w.keys()
	for key := range w.referred() {
		if _, ok := there[key]; !ok {
			w.Fatalf("a pointer refers to %s, which is gone", key)
		}
	}
}

// clean checks that there are no blobs but those that pointers refer to.
func (w *world) clean() {
	w.Helper()
	referred := w.referred()
	for key := range w.keys() {
		if !referred[key] {
			w.Fatalf("nothing refers to %s, and it is there still", key)
		}
	}
}

// leader is a keeper that leads, whose rounds a test runs.
type leader struct {
	w     *world
	c     *Keeper
	t     *leaseTerm
	logs  *logTrimmer
	blobs *blobSweeper
}

// lead has a keeper take the lease, whoever has it. It returns an error of the stores, for tests in which they fail.
func (w *world) lead(deps Deps) (*leader, error) {
	c, err := prepare(w.cfg, deps)
	if err != nil {
		return nil, err
	}
	t, err := c.takeLease(w.ctx)
	if err != nil {
		return nil, err
	}
	boundary, err := deps.Log.AdvanceBoundary(w.ctx, 0)
	if err == nil {
		err = t.checkStoreClaims(w.ctx, boundary)
	}
	if err != nil {
		return nil, err
	}
	return &leader{w: w, c: c, t: t, logs: newLogTrimmer(t), blobs: newBlobSweeper(t, boundary)}, nil
}

func (w *world) mustLead(owner string) *leader {
	w.Helper()
	l, err := w.lead(w.deps(owner))
	if err != nil {
		w.Fatalf("lead: %v", err)
	}
	return l
}

// pass runs rounds until nothing is due, and saves the state.
func (l *leader) pass() error {
	if _, err := l.logs.runRound(l.w.ctx); err != nil {
		return err
	}
	for {
		more, err := l.blobs.runRound(l.w.ctx)
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}
	return l.t.saveState(l.w.ctx)
}

// run passes the time, in steps, with a pass after each.
func (l *leader) run(d, step time.Duration) {
	l.w.Helper()
	for ; d > 0; d -= step {
		l.w.clock.Advance(step)
		if err := l.pass(); err != nil {
			l.w.Fatalf("pass: %v", err)
		}
	}
}

// close ends what it has under way. There may be none.
func (l *leader) close() {
	if l != nil {
		l.blobs.stopListing()
	}
}

// failAt makes the calls of a keeper's stores that change something fail from the n-th on, before or after they were carried out.
type failAt struct {
	left  atomic.Int64
	after bool
}

var errKilled = errors.New("killed")

// step reports whether the call is carried out, and whether it is answered.
func (f *failAt) step() (carriedOut, answered bool) {
	n := f.left.Add(-1)
	return n >= 0 || n == -1 && f.after, n >= 0
}

func do[T any](f *failAt, call func() (T, error)) (T, error) {
	carriedOut, answered := f.step()
	var v T
	var err error
	if carriedOut {
		v, err = call()
	}
	if !answered {
		var zero T
		return zero, errKilled
	}
	return v, err
}

func only(f *failAt, call func() error) error {
	_, err := do(f, func() (struct{}, error) { return struct{}{}, call() })
	return err
}

// killedLog, killedStore and killedControl are the seams of a keeper that is killed at a step.
type killedLog struct {
	Log
	f *failAt
}

func (k killedLog) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	return do(k.f, func() ([]metalog.State, error) { return k.Log.Open(ctx, owner, shards) })
}

func (k killedLog) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	return do(k.f, func() ([]metalog.Appended, error) { return k.Log.Append(ctx, a) })
}

func (k killedLog) Trim(ctx context.Context, shard record.ShardID, before record.LSN) error {
	return only(k.f, func() error { return k.Log.Trim(ctx, shard, before) })
}

func (k killedLog) Retire(ctx context.Context, id uint32) error {
	return only(k.f, func() error { return k.Log.Retire(ctx, id) })
}

func (k killedLog) Remove(ctx context.Context, shards []metalog.Unused) (int, error) {
	return do(k.f, func() (int, error) { return k.Log.Remove(ctx, shards) })
}

func (k killedLog) Erase(ctx context.Context, id uint32) error {
	return only(k.f, func() error { return k.Log.Erase(ctx, id) })
}

func (k killedLog) AdvanceBoundary(ctx context.Context, t int64) (int64, error) {
	if t == 0 { // only reads it
		return k.Log.AdvanceBoundary(ctx, 0)
	}
	return do(k.f, func() (int64, error) { return k.Log.AdvanceBoundary(ctx, t) })
}

type killedStore struct {
	blob.Store
	f *failAt
}

func (k killedStore) Put(ctx context.Context, key string, parts ...[]byte) error {
	return only(k.f, func() error { return k.Store.Put(ctx, key, parts...) })
}

func (k killedStore) Delete(ctx context.Context, key string) error {
	return only(k.f, func() error { return k.Store.Delete(ctx, key) })
}

type killedControl struct {
	Control
	f *failAt
}

func (k killedControl) ForgetDropped(ctx context.Context, req *scribev1.ForgetDroppedRequest) (*scribev1.ForgetDroppedResponse, error) {
	return do(k.f, func() (*scribev1.ForgetDroppedResponse, error) { return k.Control.ForgetDropped(ctx, req) })
}

// kill wraps deps so that everything fails from the n-th step on.
func kill(d Deps, n int, after bool) (Deps, *failAt) {
	f := &failAt{after: after}
	f.left.Store(int64(n))
	d.Log, d.Blobs, d.Control = killedLog{d.Log, f}, killedStore{d.Blobs, f}, killedControl{d.Control, f}
	return d, f
}

// testWorld is a world for a plain test.
func testWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t.Context(), t, nil)
	t.Cleanup(w.close)
	return w
}
