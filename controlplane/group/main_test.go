package group

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/config"
	"scribe/internal/format/bucket"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
	"scribe/storage/kv/memkv"
	"scribe/storage/metalog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is what is around coordinators: a store, categories, and the ends of logs.
type world struct {
	store *flakyStore

	mu    sync.Mutex
	cats  map[string]*scribev1.Category
	logs  map[record.ShardID]*metalog.State
	seeks map[record.ShardID]record.LSN // what Seek answers; else the tail
	pins  map[string][]*scribev1.Pin    // by holder
	down  error                         // of the metadata engine
	time  int64                         // of the metadata engine
}

func newWorld() *world {
	w := &world{store: &flakyStore{Store: memkv.New()}, cats: map[string]*scribev1.Category{}, logs: map[record.ShardID]*metalog.State{}, seeks: map[record.ShardID]record.LSN{}, pins: map[string][]*scribev1.Pin{}}
	w.category("web.access", 7, 1)
	return w
}

func (w *world) category(name string, id, shards uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cats[name] = &scribev1.Category{Name: name, Id: id, Shards: shards, Retention: durationpb.New(time.Hour)}
}

// tail sets where a log of logical shard 0 of category 7 ends.
func (w *world) tail(writer uint16, next record.LSN) record.ShardID {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := record.MakeShardID(7, 0, writer)
	if w.logs[id] == nil {
		w.logs[id] = &metalog.State{Shard: id, FirstLSN: 1}
	}
	w.logs[id].NextLSN = next
	return id
}

func (w *world) GetCategory(_ context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.cats[req.GetName()]; c != nil {
		return &scribev1.GetCategoryResponse{Category: c}, nil
	}
	return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "there is no category %q", req.GetName())
}

func (w *world) HoldPins(_ context.Context, req *scribev1.HoldPinsRequest) (*scribev1.HoldPinsResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pins[req.GetHolder()] = req.GetPins()
	return &scribev1.HoldPinsResponse{}, nil
}

func (w *world) Shards(_ context.Context, category uint32) (out []metalog.State, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.logs {
		if s.Shard.Category() == category && !s.Removed {
			out = append(out, *s)
		}
	}
	return out, w.down
}

func (w *world) RemovedShards(_ context.Context, category uint32, since int64) (out []metalog.State, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.logs {
		if s.Shard.Category() == category && s.Removed && s.LastTime >= since {
			out = append(out, *s)
		}
	}
	return out, w.down
}

func (w *world) Tail(_ context.Context, shards []record.ShardID) (out []metalog.State, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range shards {
		st := metalog.State{Shard: id, FirstLSN: 1, NextLSN: 1}
		if s := w.logs[id]; s != nil {
			st = *s
		}
		st.Watermark = w.time
		out = append(out, st)
	}
	return out, w.down
}

// remove takes a log, whose records were trimmed, off the list. Its newest record was of a time.
func (w *world) remove(id record.ShardID, at int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.logs[id]
	s.FirstLSN, s.Origin, s.OriginTime, s.LastTime, s.Removed = s.NextLSN, s.NextLSN, at, at, true
}

func (w *world) Seek(_ context.Context, shards []record.ShardID, _ int64) (out []record.LSN, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range shards {
		lsn, ok := w.seeks[id]
		if !ok {
			lsn = w.logs[id].NextLSN
		}
		out = append(out, lsn)
	}
	return out, w.down
}

// flakyStore fails when it is told to.
type flakyStore struct {
	kv.Store
	mu sync.Mutex
	// fail, when set, is asked before each call, and after says whether the call is carried out all the same.
	fail func(call string) (after bool, err error)
}

func (s *flakyStore) set(fail func(call string) (bool, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

func (s *flakyStore) ask(call string) (bool, error) {
	s.mu.Lock()
	fail := s.fail
	s.mu.Unlock()
	if fail == nil {
		return false, nil
	}
	return fail(call)
}

func (s *flakyStore) Get(ctx context.Context, key string) (kv.Entry, error) {
	if _, err := s.ask("get"); err != nil {
		return kv.Entry{}, err
	}
	return s.Store.Get(ctx, key)
}

func (s *flakyStore) Range(ctx context.Context, r kv.KeyRange) (kv.RangePage, error) {
	if _, err := s.ask("range"); err != nil {
		return kv.RangePage{}, err
	}
	return s.Store.Range(ctx, r)
}

func (s *flakyStore) Commit(ctx context.Context, ops ...kv.Op) (uint64, error) {
	after, err := s.ask("commit")
	if err != nil && !after {
		return 0, err
	}
	revision, cerr := s.Store.Commit(ctx, ops...)
	if err != nil {
		return 0, err
	}
	return revision, cerr
}

var errDown = errors.New("the store is down")

// coordinator starts one in the world.
func (w *world) coordinator(t testing.TB, holder string) *Coordinator {
	t.Helper()
	return w.coordinatorOn(t, holder, w.store)
}

// coordinatorOn is coordinator with a way of its own to the store.
func (w *world) coordinatorOn(t testing.TB, holder string, store kv.Store) *Coordinator {
	t.Helper()
	cfg := config.Defaults[Config]()
	cfg.Shared = true
	c, err := NewCoordinator(cfg, Deps{Store: store, Control: w, Log: w, Holder: holder})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// member is one who joined.
type member struct {
	c          *Coordinator
	group      string
	name       string
	epoch      uint64
	generation uint64
	set        bucket.Set
	scheme     bucket.Scheme
	a          *scribev1.GroupAssignment
}

func joinRequest(name string) *scribev1.JoinGroupRequest {
	return &scribev1.JoinGroupRequest{Group: "readers", Category: "web.access", Member: name, Buckets: 16, StartAt: scribev1.StartAt_START_AT_EARLIEST}
}

func (c *Coordinator) mustJoin(t testing.TB, req *scribev1.JoinGroupRequest) *member {
	t.Helper()
	res, err := c.JoinGroup(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	m := &member{c: c, group: req.GetGroup(), name: req.GetMember(), epoch: res.GetEpoch(), scheme: bucket.Scheme{Sharing: bucket.Sharing(res.GetSharing()), Buckets: res.GetBuckets()}}
	m.take(res.GetAssignment())
	return m
}

func (m *member) take(a *scribev1.GroupAssignment) {
	m.a, m.generation, m.set = a, a.GetGeneration(), bucket.NewSet(m.scheme.Buckets)
	for _, g := range a.GetGrants() {
		m.set.AddAll(g.GetBuckets())
	}
}

func (m *member) beat(ctx context.Context, released bucket.Set) error {
	res, err := m.c.HeartbeatGroup(ctx, &scribev1.HeartbeatGroupRequest{Group: m.group, Member: m.name, Epoch: m.epoch, Generation: m.generation, Released: released})
	if err == nil {
		m.take(res.GetAssignment())
	}
	return err
}

func (m *member) mustBeat(t testing.TB, released bucket.Set) {
	t.Helper()
	if err := m.beat(t.Context(), released); err != nil {
		t.Fatal(err)
	}
}

func (m *member) commit(ctx context.Context, shard record.ShardID, to record.LSN, ahead ...*scribev1.GroupBucketPosition) error {
	_, err := m.c.CommitGroup(ctx, &scribev1.CommitGroupRequest{
		Group: m.group, Member: m.name, Epoch: m.epoch, Generation: m.generation, Buckets: m.set,
		Positions: []*scribev1.GroupShardPosition{{Shard: uint64(shard), Low: uint64(to), Ahead: ahead}},
	})
	return err
}

func (m *member) positions(t testing.TB) map[record.ShardID]bucket.Position {
	t.Helper()
	res, err := m.c.GroupPositions(t.Context(), &scribev1.GroupPositionsRequest{Group: m.group, Member: m.name, Epoch: m.epoch, Generation: m.generation, Buckets: m.set})
	if err != nil {
		t.Fatal(err)
	}
	out := map[record.ShardID]bucket.Position{}
	for _, p := range res.GetPositions() {
		pos := bucket.Position{Low: record.LSN(p.GetLow())}
		for _, a := range p.GetAhead() {
			pos.Ahead = append(pos.Ahead, bucket.Ahead{Bucket: a.GetBucket(), Place: bucket.Place{LSN: record.LSN(a.GetLsn()), Skip: a.GetSkip()}})
		}
		out[record.ShardID(p.GetShard())] = pos
	}
	return out
}

func wantReason(t testing.TB, err error, want scribev1.Reason) {
	t.Helper()
	if got := rpc.ReasonOf(err); err == nil || got != want {
		t.Errorf("error %v with reason %v, want %v", err, got, want)
	}
}

func (w *world) keys(t testing.TB, prefix string) (keys []string) {
	t.Helper()
	page, err := w.store.Store.Range(t.Context(), kv.KeyRange{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page.Entries {
		keys = append(keys, e.Key)
	}
	return keys
}

func sorted(set bucket.Set) string { return fmt.Sprint(slices.Sorted(set.Each())) }
