package writeproxy

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"scribe/internal/format/record"
	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// catalog is a set of categories that also creates them.
type catalog struct {
	mu      sync.Mutex
	view    map[string]*scribev1.Category
	all     map[string]*scribev1.Category // what the control plane knows
	created []*scribev1.CreateCategoryRequest
	hold    <-chan struct{}
	err     error
}

func newCatalog() *catalog {
	c := &catalog{view: map[string]*scribev1.Category{}, all: map[string]*scribev1.Category{}}
	for i, d := range []scribev1.Delivery{
		scribev1.Delivery_DELIVERY_AT_LEAST_ONCE, scribev1.Delivery_DELIVERY_BEST_EFFORT, scribev1.Delivery_DELIVERY_EXACTLY_ONCE,
	} {
		name := []string{"least", "best", "once"}[i]
		v := &scribev1.Category{Name: name, Id: uint32(i + 1), Shards: 64, Delivery: d, MaxMessageBytes: 1 << 20}
		c.view[name], c.all[name] = v, v
	}
	return c
}

// limit adds a category with a quota.
func (c *catalog) limit(name string, quota uint64, mode scribev1.QuotaMode) *scribev1.Category {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := &scribev1.Category{
		Name: name, Id: uint32(10 + len(c.all)), Shards: 64, Delivery: scribev1.Delivery_DELIVERY_AT_LEAST_ONCE, MaxMessageBytes: 1 << 20,
		QuotaBytesPerSecond: quota, QuotaMode: mode,
	}
	c.view[name], c.all[name] = v, v
	return v
}

func (c *catalog) Lookup(name string) (*scribev1.Category, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.view[name]
	return v, ok
}

func (c *catalog) Resolve(_ context.Context, name string) (*scribev1.Category, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, ok := c.all[name]; ok {
		return v, nil
	}
	return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "there is no category %q", name)
}

func (c *catalog) CreateCategory(_ context.Context, req *scribev1.CreateCategoryRequest) (*scribev1.CreateCategoryResponse, error) {
	if c.hold != nil {
		<-c.hold
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.created = append(c.created, req)
	if c.err != nil {
		return nil, c.err
	}
	v := &scribev1.Category{Name: req.GetCategory().GetName(), Id: 100, Shards: max(req.GetCategory().GetShards(), 1)}
	c.all[v.GetName()] = v
	return &scribev1.CreateCategoryResponse{Category: v}, nil
}

// fakeBatcher is a server of BatchService that keeps the frames it takes in memory.
type fakeBatcher struct {
	id string

	mu       sync.Mutex
	requests []*scribev1.SubmitRequest // frames are copies
	first    []*byte                   // where the frames of each request began
	deadline []time.Duration
	checked  []bool // whether the caller said so
	// answer decides about a request; nil takes everything.
	answer func(call int, frames [][]byte) (*scribev1.SubmitResponse, error)
	hold   <-chan struct{}
	wait   func() time.Duration // how long it takes before it answers; nil = no time
	load   uint32
	probes int // requests without frames
}

func (b *fakeBatcher) Submit(ctx context.Context, req *scribev1.SubmitRequest) (*scribev1.SubmitResponse, error) {
	if b.hold != nil {
		select {
		case <-b.hold:
		case <-ctx.Done():
			return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "%w", context.Cause(ctx))
		}
	}
	if b.wait != nil {
		<-time.After(b.wait())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(req.GetFrames()) == 0 {
		b.probes++
		if b.answer != nil {
			if resp, err := b.answer(len(b.requests), nil); err != nil {
				return resp, err
			}
		}
		return &scribev1.SubmitResponse{Load: b.load}, nil
	}
	var frames [][]byte
	for f, err := range record.Split(bytes.Clone(req.GetFrames())) {
		if err != nil {
			return nil, rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%w", err)
		}
		frames = append(frames, f.Bytes)
	}
	call := len(b.requests)
	b.requests = append(b.requests, &scribev1.SubmitRequest{Frames: slices.Concat(frames...), Ack: req.GetAck()})
	b.first = append(b.first, &req.GetFrames()[0])
	b.checked = append(b.checked, rpc.Checked(ctx))
	if d, ok := ctx.Deadline(); ok {
		b.deadline = append(b.deadline, time.Until(d))
	}
	if b.answer != nil {
		if resp, err := b.answer(call, frames); resp != nil || err != nil {
			return resp, err
		}
	}
	resp := taken(frames)
	resp.Load = b.load
	return resp, nil
}

// taken acknowledges frames; their LSN tells their size, so that mixed up results show.
func taken(frames [][]byte) *scribev1.SubmitResponse {
	resp := &scribev1.SubmitResponse{}
	for _, f := range frames {
		resp.Results = append(resp.Results, &scribev1.FrameResult{Shard: 1, Lsn: uint64(len(f))})
	}
	return resp
}

// failing returns an answer: the first n calls fail with reason.
func failing(n int, reason scribev1.Reason) func(int, [][]byte) (*scribev1.SubmitResponse, error) {
	return func(call int, _ [][]byte) (*scribev1.SubmitResponse, error) {
		if call < n {
			return nil, rpc.Errorf(reason, "injected")
		}
		return nil, nil
	}
}

func (b *fakeBatcher) calls() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.requests)
}

// stored are the frames of all requests, in order.
func (b *fakeBatcher) stored(t *testing.T) (out [][]byte) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.requests {
		for f, err := range record.Split(r.GetFrames()) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, f.Bytes)
		}
	}
	return out
}

type cell struct {
	*Proxy
	t        *testing.T
	catalog  *catalog
	batchers []*fakeBatcher
}

func newCell(t *testing.T, cfg Config, batchers int, edit ...func(*Deps)) *cell {
	t.Helper()
	c := &cell{t: t, catalog: newCatalog()}
	var snapshot []Batcher
	for i := range batchers {
		b := &fakeBatcher{id: fmt.Sprintf("b%d", i)}
		c.batchers = append(c.batchers, b)
		snapshot = append(snapshot, Batcher{ID: b.id, Service: b})
	}
	deps := Deps{Categories: c.catalog, Creator: c.catalog, Batchers: func() []Batcher { return snapshot }}
	for _, e := range edit {
		e(&deps)
	}
	var err error
	if c.Proxy, err = New(cfg, deps); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Log(err)
		}
		if used := c.writes.Used() + c.bodies.Used() + c.quotas.Waiting.Used(); used != 0 {
			t.Errorf("%d bytes are still charged", used)
		}
		counts := c.ledger.readCounts()
		if f := counts.inFlight(); f != (request.Amount{}) {
			t.Errorf("%+v are still in flight", f)
		}
	})
	return c
}

func makeFrame(t testing.TB, category string, shard uint32, sequenced bool, messages ...string) []byte {
	t.Helper()
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: category, Shard: shard, Sequenced: sequenced, Producer: 1}); err != nil {
		t.Fatal(err)
	}
	b.MaxMessageSize = 32 << 20
	for _, m := range messages {
		if err := b.AppendPayload([]byte(m)); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (c *cell) write(frames ...[]byte) []*scribev1.FrameResult {
	c.t.Helper()
	resp, err := c.Write(c.t.Context(), &scribev1.WriteRequest{Frames: slices.Concat(frames...)})
	if err != nil || len(resp.GetResults()) != len(frames) {
		// Not fatal: it may be called in any goroutine.
		c.t.Errorf("Write: %d results for %d frames, %v", len(resp.GetResults()), len(frames), err)
		return make([]*scribev1.FrameResult, len(frames))
	}
	for i, r := range resp.GetResults() {
		if r.GetError() == nil && !r.GetSampledOut() && r.GetLsn() != uint64(len(frames[i])) {
			c.t.Errorf("frame %d has the result of another", i)
		}
	}
	return resp.GetResults()
}

func reasons(results []*scribev1.FrameResult) []scribev1.Reason {
	out := make([]scribev1.Reason, len(results))
	for i, r := range results {
		out[i] = r.GetError().GetReason()
	}
	return out
}

// gathered are the values of counters and gauges, by name and labels.
func gathered(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += "/" + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return got
}
