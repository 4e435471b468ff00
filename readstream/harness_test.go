package readstream

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come.
const patience = time.Minute

const testCategory, testCategoryID = "web.access", 7

// categories is a view of categories that tests change.
type categories struct {
	mu struct {
		sync.Mutex
		known map[string]*scribev1.Category
		// truth is what the control plane says of names that the view is behind in; nil for those that do not exist.
		truth map[string]*scribev1.Category
	}
}

func newCategories() *categories {
	c := &categories{}
	c.mu.known = map[string]*scribev1.Category{testCategory: {Name: testCategory, Id: testCategoryID, Shards: 100}}
	return c
}

func (c *categories) Lookup(name string) (*scribev1.Category, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cat, ok := c.mu.known[name]
	return cat, ok
}

func (c *categories) Resolve(_ context.Context, name string) (*scribev1.Category, error) {
	cat, ok := c.Lookup(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	if newer, behind := c.mu.truth[name]; behind {
		cat, ok = newer, newer != nil
	}
	if ok {
		return cat, nil
	}
	return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "no category %q", name)
}

// behind makes the view be behind the control plane.
func (c *categories) behind(name string, truth *scribev1.Category) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.truth = map[string]*scribev1.Category{name: truth}
}

// set makes the test's category another one, or none.
func (c *categories) set(cat *scribev1.Category) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cat == nil {
		delete(c.mu.known, testCategory)
		return
	}
	c.mu.known[testCategory] = cat
}

// faulty is an engine whose calls fail when a test says so.
type faulty struct {
	metalog.Log
	mu struct {
		sync.Mutex
		read func(shard record.ShardID, from record.LSN, n int) error
		all  error
		// stalled shards are not read before their channel is closed.
		stalled map[record.ShardID]chan struct{}
		// deafNotes: questions for annotations are not answered. oneNote: each answer has one at most.
		deafNotes, oneNote bool
		// listed is called after each listing of shards, before its answer is given; watches then tell of nothing.
		listed func()
	}
}

func (f *faulty) fault() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.all
}

// stall keeps reads of a shard from being answered until the returned function is called.
func (f *faulty) stall(shard record.ShardID) (release func()) {
	c := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.stalled = map[record.ShardID]chan struct{}{shard: c}
	return sync.OnceFunc(func() { close(c) })
}

func (f *faulty) failAll(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.all = err
}

func (f *faulty) failReads(fn func(record.ShardID, record.LSN, int) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.read = fn
}

func (f *faulty) Read(ctx context.Context, shard record.ShardID, from record.LSN, records, bytes int) ([]metalog.Entry, error) {
	f.mu.Lock()
	stalled := f.mu.stalled[shard]
	f.mu.Unlock()
	if stalled != nil {
		select {
		case <-stalled:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	entries, err := f.Log.Read(ctx, shard, from, records, bytes)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.all != nil {
		return nil, f.mu.all
	}
	if f.mu.read != nil && err == nil {
		if err := f.mu.read(shard, from, len(entries)); err != nil {
			return nil, err
		}
	}
	return entries, err
}

func (f *faulty) Annotations(
	ctx context.Context, shard record.ShardID, from, to record.LSN, kind metalog.AnnotationKind, maxBytes int,
) ([]metalog.Annotation, record.LSN, error) {
	f.mu.Lock()
	deaf, one := f.mu.deafNotes, f.mu.oneNote
	f.mu.Unlock()
	if deaf {
		<-ctx.Done()
		return nil, 0, ctx.Err()
	}
	if one {
		maxBytes = 1
	}
	return f.Log.Annotations(ctx, shard, from, to, kind, maxBytes)
}

func (f *faulty) Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	if err := f.fault(); err != nil {
		return nil, err
	}
	return f.Log.Tail(ctx, shards)
}

func (f *faulty) Shards(ctx context.Context, category uint32) ([]metalog.State, error) {
	if err := f.fault(); err != nil {
		return nil, err
	}
	states, err := f.Log.Shards(ctx, category)
	f.mu.Lock()
	listed := f.mu.listed
	f.mu.Unlock()
	if listed != nil {
		listed()
	}
	return states, err
}

func (f *faulty) WatchShards(ctx context.Context, category uint32, fn func([]record.ShardID) error) error {
	f.mu.Lock()
	blind := f.mu.listed != nil
	f.mu.Unlock()
	if blind {
		<-ctx.Done()
		return ctx.Err()
	}
	return f.Log.WatchShards(ctx, category, fn)
}

// harness is an engine, a server over it, and a writer.
type harness struct {
	t          testing.TB
	engine     metalog.Log
	log        *faulty
	categories *categories
	registry   *prometheus.Registry
	cfg        Config
	server     *Server
	peers      atomic.Pointer[[]uint32] // loads of other servers
	opened     map[record.ShardID]metalog.State
	next       map[record.ShardID]record.LSN
}

func newHarness(t testing.TB, change ...func(*Config)) *harness {
	t.Helper()
	return newHarnessOn(t, vfs.NewMem(), change...)
}

// newHarnessOn begins on the folder that a file system may have.
func newHarnessOn(t testing.TB, fs vfs.FS, change ...func(*Config)) *harness {
	t.Helper()
	engine, err := pebblelog.Open("log", pebblelog.Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{
		t: t, engine: engine, log: &faulty{Log: engine}, categories: newCategories(), registry: prometheus.NewRegistry(),
		cfg: DefaultConfig(), opened: map[record.ShardID]metalog.State{}, next: map[record.ShardID]record.LSN{},
	}
	h.cfg.ReadGrace, h.cfg.ReadTimeout = patience, patience // streams wait for their reads, however busy the machine is
	for _, c := range change {
		c(&h.cfg)
	}
	h.restart()
	t.Cleanup(func() {
		h.close()
		if err := engine.Close(); err != nil && !errors.Is(err, metalog.ErrClosed) {
			t.Error(err)
		}
	})
	return h
}

// bubble runs a test in virtual time, in which what is to be quick is, however busy the machine is.
func bubble(t *testing.T, test func(t *testing.T, h *harness), change ...func(*Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newHarness(t, change...)) })
}

func (h *harness) close() {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := h.server.Close(ctx); err != nil {
		h.t.Error(err)
	}
}

// restart makes a new server over the same engine.
func (h *harness) restart() {
	h.t.Helper()
	if h.server != nil {
		h.close()
	}
	var err error
	h.server, err = New(h.cfg, Deps{Log: h.log, Categories: h.categories, Registerer: h.registry, Peers: func() []uint32 {
		if p := h.peers.Load(); p != nil {
			return *p
		}
		return nil
	}})
	if err != nil {
		h.t.Fatal(err)
	}
}

func shardID(logical, slot int) record.ShardID {
	return record.MakeShardID(testCategoryID, uint16(logical), uint16(slot))
}

// encoded is a pointer to a payload of length bytes.
func encoded(length uint32) []byte {
	p := pointer.Pointer{
		Blob: pointer.NewBlobID(), Class: 72, Codec: pointer.CodecZstd, BlockOffset: 128, BlockLen: length/2 + 1, BlockRawLen: length,
		Length: length, Frames: 1, Messages: 1, MinTime: 1, MaxTime: 1,
	}
	return pointer.Append(nil, &p)
}

// create makes shards exist.
func (h *harness) create(shards ...record.ShardID) {
	h.t.Helper()
	for part := range slices.Chunk(shards, metalog.MaxShards) {
		states, err := h.engine.Open(h.t.Context(), "test", part)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, st := range states {
			h.opened[st.Shard] = st
			h.next[st.Shard] = st.NextLSN
		}
	}
}

// write appends a record to each of the shards in one transaction, and creates those that do not exist.
func (h *harness) write(length uint32, shards ...record.ShardID) {
	h.t.Helper()
	h.writeRecord(encoded(length), shards...)
}

func (h *harness) writeRecord(data []byte, shards ...record.ShardID) {
	h.t.Helper()
	var a metalog.Append
	for _, shard := range shards {
		if _, ok := h.opened[shard]; !ok {
			h.create(shard)
		}
		a.Shards = append(a.Shards, metalog.ShardAppend{Shard: shard, Epoch: h.opened[shard].Epoch, Records: [][]byte{data}})
	}
	if _, err := h.engine.Append(h.t.Context(), &a); err != nil {
		h.t.Fatal(err)
	}
	for _, shard := range shards {
		h.next[shard]++
	}
}

// client is the other end of a stream.
type client struct {
	t   testing.TB
	in  chan *scribev1.StreamRequest
	out chan *scribev1.StreamResponse
	// done is closed when the stream has ended with err.
	done chan struct{}
	err  error
	stop context.CancelFunc
	// at is the next LSN of each shard, checked with every message.
	at    map[uint64]uint64
	ended map[uint64]bool
	// sparse, when set, is the first LSN from one on that the stream is to bring: it is of some buckets.
	sparse func(record.ShardID, record.LSN) (record.LSN, bool)
	// skipped is what the stream's filter left out.
	skipped []*scribev1.StreamSkip
	// got are the entries so far.
	got []*scribev1.StreamEntry
	// beats are the heartbeats since anything else came.
	beats int
}

// mostBeats is how many heartbeats come one after another at most while a test waits for something: they would keep it waiting for ever.
const mostBeats = int(patience / minHeartbeat)

type option func(*scribev1.StreamStart)

func startAt(at scribev1.StartAt) option {
	return func(s *scribev1.StreamStart) { s.StartAt = at }
}

func withCredits(pointers uint32, bytes uint64) option {
	return func(s *scribev1.StreamStart) {
		s.Credits = &scribev1.StreamCredits{Pointers: pointers, Bytes: bytes}
	}
}

func withWindow(d time.Duration) option {
	return func(s *scribev1.StreamStart) { s.Window = durationpb.New(d) }
}

func resumeAt(positions []*scribev1.ShardPosition) option {
	return func(s *scribev1.StreamStart) { s.Resume = positions }
}

var (
	earliest = startAt(scribev1.StartAt_START_AT_EARLIEST)
	latest   = startAt(scribev1.StartAt_START_AT_LATEST)
	plenty   = withCredits(1_000_000, 1<<40)
)

// dial starts a stream without waiting for anything.
func (h *harness) dial(opts ...option) *client { return dial(h.t, h.server, opts...) }

func dial(t testing.TB, service rpc.ReadStreamService, opts ...option) *client {
	t.Helper()
	start := &scribev1.StreamStart{Category: testCategory, Heartbeat: durationpb.New(minHeartbeat)}
	for _, o := range opts {
		o(start)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &client{
		t: t, in: make(chan *scribev1.StreamRequest, 16), out: make(chan *scribev1.StreamResponse), done: make(chan struct{}), stop: cancel,
		at: map[uint64]uint64{}, ended: map[uint64]bool{},
	}
	c.in <- &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: start}}
	go func() {
		defer close(c.done)
		c.err = service.Stream(ctx, func(ctx context.Context) (*scribev1.StreamRequest, error) {
			select {
			case r, ok := <-c.in:
				if !ok {
					return nil, io.EOF
				}
				return r, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}, func(r *scribev1.StreamResponse) error {
			select {
			case c.out <- r:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	t.Cleanup(c.close)
	return c
}

// open starts a stream and waits for StreamOpened.
func (h *harness) open(opts ...option) (*client, *scribev1.StreamOpened) {
	h.t.Helper()
	c := h.dial(opts...)
	return c, c.opened()
}

func (c *client) opened() *scribev1.StreamOpened {
	c.t.Helper()
	o := c.next().GetOpened()
	if o == nil {
		c.t.Fatal("the first message is not StreamOpened")
	}
	if !slices.IsSortedFunc(o.GetShards(), func(a, b *scribev1.StreamShard) int { return cmp.Compare(a.GetShard(), b.GetShard()) }) {
		c.t.Fatal("the shards of StreamOpened are not in order")
	}
	for _, s := range o.GetShards() {
		c.at[s.GetShard()] = s.GetLsn()
	}
	return o
}

// close ends the stream from the client's side.
func (c *client) close() {
	c.stop()
	for {
		select {
		case <-c.out:
		case <-c.done:
			return
		}
	}
}

// end waits for the end of the stream and returns its error.
func (c *client) end() error {
	c.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case <-c.out:
		case <-c.done:
			return c.err
		case <-timeout:
			c.t.Fatal("the stream does not end")
		}
	}
}

func (c *client) credit(pointers uint32, bytes uint64) {
	c.in <- &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Credits{Credits: &scribev1.StreamCredits{Pointers: pointers, Bytes: bytes}}}
}

// next returns the next message, and checks that it continues what came before.
func (c *client) next() *scribev1.StreamResponse {
	c.t.Helper()
	select {
	case r := <-c.out:
		c.check(r)
		if c.beats++; r.GetHeartbeat() == nil {
			c.beats = 0
		} else if c.beats > mostBeats {
			c.t.Fatalf("nothing but heartbeats, the last one %v, after %d entries and %d runs left out", r.GetHeartbeat(), len(c.got), len(c.skipped))
		}
		return r
	case <-c.done:
		c.t.Fatalf("the stream ended: %v", c.err)
	case <-time.After(patience):
		c.t.Fatal("no message")
	}
	return nil
}

func (c *client) check(r *scribev1.StreamResponse) {
	c.t.Helper()
	at := func(shard, lsn uint64) {
		c.t.Helper()
		if c.sparse != nil { // the member's own pointers come, all of them
			if next, ok := c.sparse(record.ShardID(shard), record.LSN(c.at[shard])); ok && uint64(next) < lsn {
				c.t.Fatalf("shard %v goes on at LSN %d, LSN %d is left out", record.ShardID(shard), lsn, next)
			}
			c.at[shard] = max(c.at[shard], lsn)
		}
		if want, ok := c.at[shard]; !ok || lsn != want || c.ended[shard] {
			c.t.Fatalf("shard %v goes on at LSN %d, want %d (known %v, ended %v)", record.ShardID(shard), lsn, want, ok, c.ended[shard])
		}
	}
	switch step := r.GetStep().(type) {
	case *scribev1.StreamResponse_Entries:
		skipped := step.Entries.GetSkipped()
		if len(step.Entries.GetEntries())+len(skipped) == 0 {
			c.t.Fatal("a message without entries")
		}
		pass := func(before int) {
			for ; len(skipped) > 0 && int(skipped[0].GetAfter()) == before; skipped = skipped[1:] {
				at(skipped[0].GetShard(), skipped[0].GetFrom())
				c.at[skipped[0].GetShard()] = skipped[0].GetTo()
				c.skipped = append(c.skipped, skipped[0])
			}
		}
		defer func() {
			if pass(len(step.Entries.GetEntries())); len(skipped) > 0 {
				c.t.Fatalf("%v is out of order", skipped[0])
			}
		}()
		for i, e := range step.Entries.GetEntries() {
			pass(i)
			at(e.GetShard(), e.GetLsn())
			if _, err := pointer.Decode(e.GetPointer()); err != nil {
				c.t.Fatal(err)
			}
			c.at[e.GetShard()]++
			c.got = append(c.got, e)
		}
	case *scribev1.StreamResponse_Gap:
		at(step.Gap.GetShard(), step.Gap.GetFrom())
		c.at[step.Gap.GetShard()] = step.Gap.GetTo()
	case *scribev1.StreamResponse_ShardAdded:
		if _, ok := c.at[step.ShardAdded.GetShard()]; ok {
			c.t.Fatalf("a shard was added twice: %v", step.ShardAdded)
		}
		c.at[step.ShardAdded.GetShard()] = step.ShardAdded.GetLsn()
	case *scribev1.StreamResponse_ShardEnded:
		at(step.ShardEnded.GetShard(), step.ShardEnded.GetLsn())
		c.ended[step.ShardEnded.GetShard()] = true
	}
}

// until reads messages until one is accepted, and returns it.
func (c *client) until(accept func(*scribev1.StreamResponse) bool) *scribev1.StreamResponse {
	c.t.Helper()
	for {
		if r := c.next(); accept(r) {
			return r
		}
	}
}

// entries reads until n entries have come since the stream began.
func (c *client) entries(n int) {
	c.t.Helper()
	for len(c.got) < n {
		c.next()
	}
	if len(c.got) != n {
		c.t.Fatalf("%d entries, want %d", len(c.got), n)
	}
}

// heartbeat reads until the next heartbeat.
func (c *client) heartbeat() *scribev1.StreamHeartbeat {
	c.t.Helper()
	return c.until(func(r *scribev1.StreamResponse) bool { return r.GetHeartbeat() != nil }).GetHeartbeat()
}

// evicted reads until the eviction and returns the positions.
func (c *client) evicted() []*scribev1.ShardPosition {
	c.t.Helper()
	r := c.until(func(r *scribev1.StreamResponse) bool { return r.GetEvicted() != nil }).GetEvicted()
	for _, p := range r.GetResume() {
		if c.at[p.GetShard()] != p.GetLsn() {
			c.t.Fatalf("resume at %v, the stream was at %d", p, c.at[p.GetShard()])
		}
	}
	if len(r.GetResume()) != len(c.at) || r.GetReason() != scribev1.Reason_REASON_SHUTTING_DOWN {
		c.t.Fatalf("evicted with %v for %d shards: %v", r.GetReason(), len(c.at), r.GetResume())
	}
	return r.GetResume()
}

// inTotalOrder compares entries by (time, shard, LSN).
func inTotalOrder(a, b *scribev1.StreamEntry) int {
	return cmp.Or(cmp.Compare(a.GetTime(), b.GetTime()), cmp.Compare(a.GetShard(), b.GetShard()), cmp.Compare(a.GetLsn(), b.GetLsn()))
}

func wantReason(t testing.TB, err error, want scribev1.Reason) {
	t.Helper()
	if got := rpc.ReasonOf(err); got != want {
		t.Fatalf("reason %v of %v, want %v", got, err, want)
	}
}

// metric returns the value of a metric of the server, summed over its labels.
func (h *harness) metric(name string) float64 {
	h.t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() == "scribe_readstream_"+name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}
