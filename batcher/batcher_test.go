package batcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob/layout"
)

const (
	none      = scribev1.AckLevel_ACK_LEVEL_NONE
	committed = scribev1.AckLevel_ACK_LEVEL_COMMITTED
)

// reasons are those of results, REASON_UNSPECIFIED where there is no error.
func reasons(results []*scribev1.FrameResult) []scribev1.Reason {
	out := make([]scribev1.Reason, len(results))
	for i, r := range results {
		out[i] = r.GetError().GetReason()
	}
	return out
}

func TestCommittedIsReadable(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	first := c.commit(
		makeFrame(t, "alpha", 0, nil, "one", "two"),
		makeFrame(t, "alpha", 1, nil, "three"),
		makeFrame(t, "brief", 0, nil, "four"),
		makeFrame(t, "once", 2, &sequence{producer: 9, first: 1}, "five"),
	)
	want := []record.ShardID{record.MakeShardID(1, 0, 7), record.MakeShardID(1, 1, 7), record.MakeShardID(3, 0, 7), record.MakeShardID(4, 2, 0)}
	for i, r := range first {
		if record.ShardID(r.GetShard()) != want[i] || r.GetLsn() != 1 {
			t.Errorf("frame %d is at %s, want %v/1", i, placeOf(r), want[i])
		}
	}
	again := c.commit(makeFrame(t, "alpha", 0, nil, "six"))
	if again[0].GetLsn() != 2 {
		t.Errorf("the next flush is at %s", placeOf(again[0]))
	}
	if got := c.frames(want[0]); len(got) != 2 {
		t.Errorf("%d frames in %v", len(got), want[0])
	}
	// One blob a retention class: 72 hours twice, 1 hour once.
	if got := c.blobs(); len(got) != 3 {
		t.Errorf("blobs %v", got)
	}
	c.verify()
}

// blobs are the keys in the store.
func (c *cell) blobs() (keys []string) {
	for info, err := range c.store.List(c.t.Context(), pointer.KeyRoot) {
		if err != nil {
			c.t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

func TestAckNoneIsFlushedByAge(t *testing.T) {
	bubble(t, testConfig(), func(t *testing.T, c *cell) {
		f := makeFrame(t, "alpha", 0, nil, "x")
		r := c.submit(none, f)
		if r[0].GetError() != nil || r[0].GetShard() != 0 || r[0].GetLsn() != 0 {
			t.Errorf("result %v", r[0])
		}
		// The request's bytes are the caller's again.
		want := bytes.Clone(f)
		clear(f)
		shard := record.MakeShardID(1, 0, 7)
		<-time.After(999 * time.Millisecond)
		synctest.Wait()
		if got := c.frames(shard); len(got) != 0 {
			t.Errorf("%d frames before their time", len(got))
		}
		<-time.After(time.Millisecond)
		synctest.Wait()
		if got := c.frames(shard); len(got) != 1 || !bytes.Equal(got[0], want) {
			t.Errorf("frames %q, want %q", got, want)
		}
	})
}

func TestFlushFloorGathersWriters(t *testing.T) {
	cfg := testConfig()
	cfg.FlushFloor = 250 * time.Millisecond
	bubble(t, cfg, func(t *testing.T, c *cell) {
		c.commit(makeFrame(t, "alpha", 0, nil, "first"))
		start := time.Now()
		done := make(chan time.Duration, 3)
		for i := range 3 {
			go func() {
				c.commit(makeFrame(t, "alpha", uint32(i), nil, "more"))
				done <- time.Since(start)
			}()
		}
		for range 3 {
			if d := <-done; d != 250*time.Millisecond {
				t.Errorf("committed after %v", d)
			}
		}
		if got := c.blobs(); len(got) != 2 {
			t.Errorf("%d blobs for two flushes", len(got))
		}
	})
}

// TestFlushFloorIsForSmallFlushes: what is worth a blob does not wait.
func TestFlushFloorIsForSmallFlushes(t *testing.T) {
	cfg := testConfig()
	cfg.FlushFloor, cfg.FloorBytes = 250*time.Millisecond, 1000
	bubble(t, cfg, func(t *testing.T, c *cell) {
		c.commit(makeFrame(t, "alpha", 0, nil, "first"))
		start := time.Now()
		c.commit(makeFrame(t, "alpha", 0, nil, strings.Repeat("x", 1000)))
		if d := time.Since(start); d != 0 {
			t.Errorf("committed after %v", d)
		}
		c.commit(makeFrame(t, "alpha", 0, nil, "small"))
		if d := time.Since(start); d != cfg.FlushFloor {
			t.Errorf("a small one was committed after %v", d)
		}
	})
}

func TestFramesAreRefusedAlone(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	good := makeFrame(t, "alpha", 0, nil, "good")
	damaged := makeFrame(t, "alpha", 0, nil, "damaged")
	damaged[len(damaged)-1] ^= 1
	results := c.submit(committed,
		good, makeFrame(t, "nobody", 0, nil, "x"), damaged, makeFrame(t, "alpha", 4, nil, "x"), makeFrame(t, "alpha", 3, nil, "good"))
	want := []scribev1.Reason{
		0, scribev1.Reason_REASON_UNKNOWN_CATEGORY, scribev1.Reason_REASON_CORRUPT, scribev1.Reason_REASON_UNKNOWN_SHARD, 0,
	}
	if got := reasons(results); !slices.Equal(got, want) {
		t.Errorf("reasons %v, want %v", got, want)
	}
	c.mustHold(results[0], good)
	c.verify()

	// Where a header is damaged nobody knows what follows.
	for _, tc := range []struct {
		name   string
		frames []byte
		reason scribev1.Reason
	}{
		{"no frame", []byte("something else"), scribev1.Reason_REASON_CORRUPT},
		{"cut", good[:len(good)-1], scribev1.Reason_REASON_CORRUPT},
		{"newer version", append([]byte("SCRF\x03"), make([]byte, 100)...), scribev1.Reason_REASON_INVALID},
		{"second one cut", append(bytes.Clone(good), good[:70]...), scribev1.Reason_REASON_CORRUPT},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := c.Submit(t.Context(), &scribev1.SubmitRequest{Frames: tc.frames})
			if rpc.ReasonOf(err) != tc.reason {
				t.Errorf("got %v, want %v", err, tc.reason)
			}
		})
	}
	if got := c.frames(record.MakeShardID(1, 0, 7)); len(got) != 1 {
		t.Errorf("%d frames were stored", len(got))
	}
	if resp, err := c.Submit(t.Context(), &scribev1.SubmitRequest{}); err != nil || len(resp.GetResults()) != 0 {
		t.Errorf("empty request: %v, %v", resp, err)
	}
	c.verify()
}

func TestCategoryGrows(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	old := testCatalog()["alpha"]
	old.Shards = 1
	c.catalog["alpha"].Shards = 8
	c.categories.Catalog = stale{catalog: c.catalog, view: old}
	c.commit(makeFrame(t, "alpha", 7, nil, "x"))
}

// stale is a catalog whose view is behind.
type stale struct {
	catalog
	view *scribev1.Category
}

func (s stale) Lookup(string) (*scribev1.Category, bool) { return s.view, true }

func TestLargeAndIncompressible(t *testing.T) {
	cfg := testConfig()
	cfg.PayloadBytes, cfg.BlockBytes = 64<<10, 16<<10
	c := newCell(t, cfg, nil, nil)
	noise := make([]byte, 300<<10)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(noise)
	var frames [][]byte
	for i := range 40 {
		size := 1 << (i % 18)
		frames = append(frames, makeFrame(t, "alpha", uint32(i%4), nil, string(noise[i:i+size]), strings.Repeat("x", size)))
	}
	frames = append(frames, makeFrame(t, "alpha", 0, nil, string(noise)), makeFrame(t, "alpha", 0, nil, strings.Repeat("y", 1<<20)))
	c.commit(frames...)
	c.verify()
	codecs := map[pointer.Codec]int{}
	for _, key := range c.blobs() {
		footer, err := layout.ReadFooter(t.Context(), c.store.Store, key)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range footer.Entries {
			codecs[e.Pointer.Codec]++
			if e.Pointer.Frames > 1 && int(e.Pointer.Length) > cfg.PayloadBytes {
				t.Errorf("payload of %d frames with %d bytes", e.Pointer.Frames, e.Pointer.Length)
			}
		}
	}
	if codecs[pointer.CodecNone] == 0 || codecs[pointer.CodecZstd] == 0 {
		t.Errorf("codecs %v", codecs)
	}
}

func TestTrickleSharesBlocks(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	const categories = 2000
	frames := make([][]byte, categories)
	for i := range frames {
		name := fmt.Sprintf("trickle-%d", i)
		c.catalog[name] = &scribev1.Category{Name: name, Id: uint32(100 + i), Shards: 1}
		frames[i] = makeFrame(t, name, 0, nil, fmt.Sprintf("GET /index/%d HTTP/1.1", i))
	}
	c.commit(frames...)
	keys := c.blobs()
	if len(keys) != 1 {
		t.Fatalf("blobs %v", keys)
	}
	footer, err := layout.ReadFooter(t.Context(), c.store.Store, keys[0])
	if err != nil {
		t.Fatal(err)
	}
	if len(footer.Entries) != categories || len(footer.Blocks) > 4 {
		t.Errorf("%d payloads in %d blocks", len(footer.Entries), len(footer.Blocks))
	}
	for i := range footer.Entries {
		if n := pointer.Len(&footer.Entries[i].Pointer); n > 80 {
			t.Fatalf("a pointer of %d bytes", n)
		}
	}
	if n := c.log.opens.count(); n != 1 {
		t.Errorf("%d calls opened the logs", n)
	}
	c.verify()
}

func TestOverloadIsRefusedWithHint(t *testing.T) {
	cfg := testConfig()
	cfg.MemoryBytes = 1 << 20
	c := newCell(t, cfg, nil, nil)
	hold, seen := make(chan struct{}), make(chan struct{})
	c.store.puts.plan(step{hold: hold, seen: seen})
	// Noise, so that compressing it frees little.
	noise := make([]byte, 200<<10)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(noise)
	frame := makeFrame(t, "alpha", 0, nil, string(noise))
	waited := make(chan *scribev1.SubmitResponse, 1)
	go func() {
		resp, err := c.Submit(context.Background(), &scribev1.SubmitRequest{Frames: frame})
		if err != nil {
			t.Error(err)
		}
		waited <- resp
	}()
	<-seen
	refused := 0
	for range 10 {
		resp, err := c.Submit(t.Context(), &scribev1.SubmitRequest{Frames: frame, Ack: none})
		if err == nil {
			if resp.GetLoad() == 0 {
				t.Error("no load is reported")
			}
			continue
		}
		refused++
		if info := rpc.Info(err); info.GetReason() != scribev1.Reason_REASON_OVERLOADED || info.GetRetryAfter().AsDuration() <= 0 {
			t.Errorf("refused with %v", err)
		}
	}
	if refused == 0 || refused == 10 {
		t.Errorf("%d of 10 requests were refused", refused)
	}
	close(hold)
	if resp := <-waited; resp.GetResults()[0].GetError() != nil {
		t.Error(resp)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	c.verify()
	if got := len(c.frames(record.MakeShardID(1, 0, 7))); got != 11-refused {
		t.Errorf("%d frames are stored, %d were accepted", got, 11-refused)
	}
	if _, err := c.Submit(t.Context(), &scribev1.SubmitRequest{Frames: frame}); rpc.ReasonOf(err) != scribev1.Reason_REASON_SHUTTING_DOWN {
		t.Errorf("Submit after Close: %v", err)
	}
}

func TestRequestsThatNeverFit(t *testing.T) {
	cfg := testConfig()
	cfg.MemoryBytes = 1 << 20
	c := newCell(t, cfg, nil, nil)
	for _, size := range []int{600 << 10, maxRequest + 1} {
		_, err := c.Submit(t.Context(), &scribev1.SubmitRequest{Frames: make([]byte, size)})
		if rpc.ReasonOf(err) != scribev1.Reason_REASON_TOO_LARGE {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	// Bookkeeping counts: small frames take more than their bytes.
	var many []byte
	for range 4000 {
		many = append(many, makeFrame(t, "alpha", 0, nil, "")...)
	}
	if _, err := c.Submit(t.Context(), &scribev1.SubmitRequest{Frames: many}); rpc.ReasonOf(err) != scribev1.Reason_REASON_TOO_LARGE {
		t.Errorf("4000 tiny frames: %v", err)
	}
	c.verify()
}

func TestCloseWritesWhatNobodyWaitsFor(t *testing.T) {
	cfg := testConfig()
	cfg.MaxAge, cfg.FlushFloor = time.Hour, time.Hour
	c := newCell(t, cfg, nil, nil)
	f := makeFrame(t, "alpha", 0, nil, "x")
	c.submit(none, f)
	c.submit(none, f)
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := c.frames(record.MakeShardID(1, 0, 7)); len(got) != 2 {
		t.Errorf("%d frames are stored", len(got))
	}
	c.verify()
	if err := c.Close(t.Context()); err != nil {
		t.Errorf("closing again: %v", err)
	}
}

func TestCloseOutOfTimeTellsWhatIsLost(t *testing.T) {
	for _, stage := range []string{"put", "append"} {
		t.Run(stage, func(t *testing.T) {
			c := newCell(t, testConfig(), nil, nil)
			seen := make(chan struct{})
			hung := step{hold: make(chan struct{}), seen: seen}
			calls, want := &c.store.puts, scribev1.Reason_REASON_SHUTTING_DOWN
			if stage == "append" {
				calls, want = &c.log.appends, scribev1.Reason_REASON_UNKNOWN_OUTCOME
			}
			calls.plan(hung)
			calls.always(step{hold: hung.hold}) // Close starts a flush of the second frame
			result := make(chan *scribev1.SubmitResponse, 1)
			go func() {
				resp, err := c.Submit(context.Background(), &scribev1.SubmitRequest{Frames: makeFrame(t, "alpha", 0, nil, "x")})
				if err != nil {
					t.Error(err)
				}
				result <- resp
			}()
			<-seen
			c.submit(none, makeFrame(t, "alpha", 1, nil, "y"))
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			err := c.Close(ctx)
			if err == nil || !strings.Contains(err.Error(), "2 frames with 2 messages") {
				t.Errorf("Close: %v", err)
			}
			if got := reasons((<-result).GetResults()); got[0] != want {
				t.Errorf("the writer is told %v", got)
			}
			c.verify()
		})
	}
}

func TestWriterGivesUp(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	hold, seen := make(chan struct{}), make(chan struct{})
	c.store.puts.plan(step{hold: hold, seen: seen})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-seen
		cancel()
	}()
	_, err := c.Submit(ctx, &scribev1.SubmitRequest{Frames: makeFrame(t, "alpha", 0, nil, "x")})
	if rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_OUTCOME || !errors.Is(err, context.Canceled) {
		t.Errorf("Submit: %v", err)
	}
	close(hold)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if got := c.frames(record.MakeShardID(1, 0, 7)); len(got) != 1 {
		t.Errorf("%d frames are stored", len(got))
	}
	c.verify()
}

func TestNoSlot(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	c.slot.Store(0)
	results := c.submit(committed, makeFrame(t, "alpha", 0, nil, "x"), makeFrame(t, "once", 0, nil, "y"))
	if got := reasons(results); got[0] != scribev1.Reason_REASON_NO_BACKEND || got[1] != 0 {
		t.Errorf("reasons %v", got)
	}
	c.verify()
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	c := newCellWith(t, testConfig(), nil, nil, func(d *Deps) { d.Registerer = registry })
	c.commit(makeFrame(t, "alpha", 0, nil, "one", "two"))
	once := makeFrame(t, "once", 0, &sequence{producer: 1, first: 5}, "three")
	c.commit(once)
	c.commit(once)
	c.submit(committed, makeFrame(t, "once", 0, &sequence{producer: 1, first: 50}, "gap"))
	hold, seen := make(chan struct{}), make(chan struct{})
	c.store.puts.plan(step{hold: hold, seen: seen})
	go func() {
		_, _ = c.Submit(t.Context(), &scribev1.SubmitRequest{Frames: makeFrame(t, "alpha", 0, nil, "late")})
	}()
	<-seen
	got := gathered(t, registry)
	for name, want := range map[string]float64{
		"scribe_batcher_accepted_messages_total":               6,
		"scribe_batcher_committed_messages_total":              3,
		"scribe_batcher_duplicate_messages_total":              1,
		"scribe_batcher_failed_messages_total/out_of_sequence": 1,
		"scribe_batcher_buffered_messages":                     1,
		"scribe_batcher_buffered_frames":                       1,
		"scribe_batcher_flushes_in_flight":                     1,
		"scribe_batcher_flushes_total/commit":                  5,
		"scribe_batcher_orphan_blobs_total":                    0,
		"scribe_batcher_append_failures_total/sequence":        0,
		"scribe_batcher_memory_limit_bytes":                    float64(testConfig().MemoryBytes),
		"scribe_batcher_accepted_bytes_total/minus_the_rest":   0,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	close(hold)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if left := gathered(t, registry); len(left) > 1 {
		t.Errorf("metrics are left after Close: %v", left)
	}
}

// gathered are all metrics by name and label, and what is left of the accepted bytes when all outcomes are taken away.
func gathered(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	rest := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += "/" + l.GetValue()
			}
			v := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			out[name] = v
			switch {
			case f.GetName() == "scribe_batcher_accepted_bytes_total":
				rest += v
			case slices.Contains([]string{
				"scribe_batcher_committed_bytes_total", "scribe_batcher_duplicate_bytes_total",
				"scribe_batcher_failed_bytes_total", "scribe_batcher_buffered_bytes",
			}, f.GetName()):
				rest -= v
			}
		}
	}
	out["scribe_batcher_accepted_bytes_total/minus_the_rest"] = rest
	return out
}

func TestConfigReportsEveryFault(t *testing.T) {
	cfg := DefaultConfig()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	cfg.MemoryBytes, cfg.GroupCommit, cfg.RetryMax, cfg.Region = 0, 5, 0, "no spaces allowed"
	_, err := New(cfg, Deps{})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{"MemoryBytes", "GroupCommit", "RetryMax", "Region", "Deps.Blobs", "Deps.Log", "Deps.Categories", "Deps.Slot"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not mentioned in: %v", part, err)
		}
	}
}
