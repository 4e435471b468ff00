package writeproxy

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/format/record"
	"scribe/internal/role/affinity"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func TestOneBatcherGetsTheBytesUncopied(t *testing.T) {
	c := newCell(t, config.Defaults[Config](), 1)
	frames := slices.Concat(makeFrame(t, "least", 0, false, "one"), makeFrame(t, "once", 5, true, "two"), makeFrame(t, "best", 1, false, "three"))
	for _, tc := range []struct{ ack, want scribev1.AckLevel }{
		{scribev1.AckLevel_ACK_LEVEL_UNSPECIFIED, scribev1.AckLevel_ACK_LEVEL_COMMITTED},
		{scribev1.AckLevel_ACK_LEVEL_NONE, scribev1.AckLevel_ACK_LEVEL_NONE},
		{scribev1.AckLevel_ACK_LEVEL_SPOOLED, scribev1.AckLevel_ACK_LEVEL_COMMITTED},
		{scribev1.AckLevel_ACK_LEVEL_COMMITTED, scribev1.AckLevel_ACK_LEVEL_COMMITTED},
	} {
		if _, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: frames, Ack: tc.ack}); err != nil {
			t.Fatal(err)
		}
		b := c.batchers[0]
		if last := b.requests[len(b.requests)-1]; last.GetAck() != tc.want || !bytes.Equal(last.GetFrames(), frames) {
			t.Errorf("%v became %v", tc.ack, last.GetAck())
		}
		if b.first[len(b.first)-1] != &frames[0] {
			t.Error("the frames were copied")
		}
	}
}

func TestFramesAreDividedByBatcher(t *testing.T) {
	c := newCell(t, config.Defaults[Config](), 5)
	var frames [][]byte
	for i := range 200 {
		frames = append(frames, makeFrame(t, "least", uint32(i%64), false, strings.Repeat("x", i)))
	}
	for _, r := range c.write(frames...) {
		if r.GetError() != nil {
			t.Fatal(r)
		}
	}
	home := map[uint32]string{}
	total := 0
	for _, b := range c.batchers {
		last := map[uint32]int{}
		for _, f := range b.stored(t) {
			h, err := record.Check(f)
			if err != nil {
				t.Fatal(err)
			}
			if id, ok := home[h.Shard]; ok && id != b.id {
				t.Errorf("shard %d is at %s and %s", h.Shard, id, b.id)
			}
			home[h.Shard] = b.id
			if len(f) < last[h.Shard] {
				t.Errorf("frames of shard %d are out of order", h.Shard)
			}
			last[h.Shard] = len(f)
			total++
		}
		if b.calls() != 1 {
			t.Errorf("%s got %d requests", b.id, b.calls())
		}
	}
	if total != len(frames) {
		t.Errorf("%d frames arrived", total)
	}
}

// A caller in this process that has checked the frames is believed; any other is not, and the batcher need not look again.
func TestCheckedFramesAreNotSummedAgain(t *testing.T) {
	c := newCell(t, config.Defaults[Config](), 1)
	good, damaged := makeFrame(t, "least", 0, false, "good"), makeFrame(t, "least", 0, false, "damaged")
	damaged[len(damaged)-1] ^= 1
	for _, ctx := range []context.Context{t.Context(), rpc.WithChecked(t.Context())} {
		resp, err := c.Write(ctx, &scribev1.WriteRequest{Frames: slices.Concat(good, damaged)})
		if err != nil {
			t.Fatal(err)
		}
		if refused := resp.GetResults()[1].GetError() != nil; refused == rpc.Checked(ctx) {
			t.Errorf("checked before: %t, refused: %t", rpc.Checked(ctx), refused)
		}
	}
	if got := c.batchers[0].checked; !slices.Equal(got, []bool{true, true}) {
		t.Errorf("the batcher was told %v", got)
	}
}

func TestFramesAreRefusedAlone(t *testing.T) {
	c := newCell(t, config.Defaults[Config](), 2)
	c.catalog.all["least"] = &scribev1.Category{Name: "least", Id: 1, Shards: 100, MaxMessageBytes: 1 << 20} // grown since
	damaged := makeFrame(t, "least", 0, false, "damaged")
	damaged[len(damaged)-1] ^= 1
	good := makeFrame(t, "least", 0, false, "good")
	results := c.write(
		good,
		makeFrame(t, "nobody", 0, false, "x"),
		damaged,
		makeFrame(t, "least", 100, false, "x"),
		makeFrame(t, "least", 99, false, "good as well"),
		makeFrame(t, "least", 0, false, "x", strings.Repeat("x", 1<<20+1)),
		makeFrame(t, "least", 0, false, strings.Repeat("x", 1<<20), "x"),
	)
	want := []scribev1.Reason{
		0, scribev1.Reason_REASON_UNKNOWN_CATEGORY, scribev1.Reason_REASON_CORRUPT, scribev1.Reason_REASON_UNKNOWN_SHARD, 0,
		scribev1.Reason_REASON_TOO_LARGE, 0,
	}
	if got := reasons(results); !slices.Equal(got, want) {
		t.Errorf("reasons %v, want %v", got, want)
	}
	for _, tc := range []struct {
		name   string
		frames []byte
		reason scribev1.Reason
	}{
		{"no frame", []byte("something else"), scribev1.Reason_REASON_CORRUPT},
		{"second one cut", append(bytes.Clone(good), good[:70]...), scribev1.Reason_REASON_CORRUPT},
		{"newer version", append([]byte("SCRF\x03"), make([]byte, 100)...), scribev1.Reason_REASON_INVALID},
		{"too large", make([]byte, record.MaxFrameLen+1), scribev1.Reason_REASON_TOO_LARGE},
	} {
		before := c.batchers[0].calls() + c.batchers[1].calls()
		if _, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: tc.frames}); rpc.ReasonOf(err) != tc.reason {
			t.Errorf("%s: %v", tc.name, err)
		}
		if c.batchers[0].calls()+c.batchers[1].calls() != before {
			t.Errorf("%s: something was sent", tc.name)
		}
	}
	if resp, err := c.Write(t.Context(), &scribev1.WriteRequest{}); err != nil || len(resp.GetResults()) != 0 {
		t.Errorf("empty request: %v, %v", resp, err)
	}
}

func TestAutoCreate(t *testing.T) {
	cfg := config.Defaults[Config]()
	cfg.AutoCreate, cfg.Template = true, &scribev1.Category{Name: "ignored", Shards: 3, Owner: "nobody"}
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, cfg, 1)
		hold := make(chan struct{})
		c.catalog.hold = hold
		var group sync.WaitGroup
		for range 10 {
			group.Go(func() { c.write(makeFrame(t, "fresh", 2, false, "x")) })
		}
		synctest.Wait()
		close(hold)
		group.Wait()
		if n := len(c.catalog.created); n != 1 {
			t.Fatalf("created %d times", n)
		}
		req := c.catalog.created[0]
		if v := req.GetCategory(); !req.GetIfNotExists() || v.GetName() != "fresh" || v.GetShards() != 3 || v.GetOwner() != "nobody" {
			t.Errorf("created with %v", req)
		}
		if cfg.Template.GetName() != "ignored" {
			t.Error("the template was changed")
		}
		if n := c.batchers[0].calls(); n != 10 {
			t.Errorf("%d requests arrived", n)
		}
		c.catalog.err = rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "no control plane")
		if got := reasons(c.write(makeFrame(t, "another", 0, false, "x"))); got[0] != scribev1.Reason_REASON_NO_BACKEND {
			t.Errorf("reasons %v", got)
		}
	})
}

// TestOwnCategories: a category of the cell itself is created as the cell says, or not at all, whether others are created on first use or not.
func TestOwnCategories(t *testing.T) {
	for _, auto := range []bool{false, true} {
		cfg := config.Defaults[Config]()
		if cfg.AutoCreate = auto; auto {
			cfg.Template = &scribev1.Category{Shards: 3}
		}
		synctest.Test(t, func(t *testing.T) {
			var (
				own *scribev1.Category
				err = ErrNoOwnCategory
			)
			c := newCell(t, cfg, 1, func(d *Deps) {
				d.Own = func(_ context.Context, name string) (*scribev1.Category, error) {
					if name != record.DeliveryCategory {
						t.Errorf("asked for %s", name)
					}
					return own, err
				}
			})
			frame := makeFrame(t, record.DeliveryCategory, 0, false, "x")
			if got := reasons(c.write(frame)); got[0] != scribev1.Reason_REASON_UNKNOWN_CATEGORY {
				t.Errorf("a cell without it: %v", got)
			}
			err = rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "who knows")
			if got := reasons(c.write(frame)); got[0] != scribev1.Reason_REASON_NO_BACKEND || len(c.catalog.created) != 0 {
				t.Errorf("it is not known: %v, %d created", got, len(c.catalog.created))
			}
			own, err = &scribev1.Category{Schema: "its own"}, nil
			if got := c.write(frame); got[0].GetError() != nil || len(c.catalog.created) != 1 {
				t.Fatalf("it is not created: %v", got)
			}
			if v := c.catalog.created[0].GetCategory(); v.GetName() != record.DeliveryCategory || v.GetSchema() != "its own" || v.GetShards() != 0 {
				t.Errorf("created with %v", v)
			}
		})
	}
}

func TestRetries(t *testing.T) {
	const (
		overloaded = scribev1.Reason_REASON_OVERLOADED
		unknown    = scribev1.Reason_REASON_UNKNOWN_OUTCOME
		sealed     = scribev1.Reason_REASON_SEALED
		corrupt    = scribev1.Reason_REASON_CORRUPT
	)
	for _, tc := range []struct {
		name      string
		category  string
		sequenced bool
		fails     int // calls that fail
		reason    scribev1.Reason
		calls     int // made in all
		ok        bool
	}{
		{"at_least_once", "least", false, 2, overloaded, 3, true},
		{"unknown outcome", "least", false, 1, unknown, 2, true},
		{"for good", "least", false, 100, corrupt, 1, false},
		{"sealed, once more", "least", false, 1, sealed, 2, true},
		{"sealed for good", "least", false, 100, sealed, 2, false},
		{"too often", "least", false, 100, overloaded, 3, false},
		{"best_effort", "best", false, 1, overloaded, 1, false},
		{"exactly_once", "once", true, 1, unknown, 2, true},
		{"exactly_once without sequence", "once", false, 1, unknown, 1, false},
		{"exactly_once without sequence, definite", "once", false, 1, overloaded, 2, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCell(t, config.Defaults[Config](), 1)
				c.batchers[0].answer = failing(tc.fails, tc.reason)
				r := c.write(makeFrame(t, tc.category, 0, tc.sequenced, "x"))
				if ok := r[0].GetError() == nil; ok != tc.ok {
					t.Errorf("result %v", r[0])
				}
				if !tc.ok && r[0].GetError().GetReason() != tc.reason {
					t.Errorf("the cause is lost: %v", r[0])
				}
				if n := c.batchers[0].calls(); n != tc.calls {
					t.Errorf("%d calls, want %d", n, tc.calls)
				}
			})
		})
	}
}

// Only the frames that failed are sent again.
func TestPartialFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 1)
		c.batchers[0].answer = func(call int, frames [][]byte) (*scribev1.SubmitResponse, error) {
			resp := taken(frames)
			if call == 0 {
				for _, i := range []int{1, 3} {
					resp.Results[i] = &scribev1.FrameResult{Error: rpc.Info(rpc.Errorf(scribev1.Reason_REASON_FENCED, "injected"))}
				}
				resp.Results[4] = &scribev1.FrameResult{Error: rpc.Info(rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "injected"))}
			}
			return resp, nil
		}
		var frames [][]byte
		for i := range 5 {
			frames = append(frames, makeFrame(t, "least", 0, false, strings.Repeat("x", i)))
		}
		if got := reasons(c.write(frames...)); !slices.Equal(got, []scribev1.Reason{0, 0, 0, 0, scribev1.Reason_REASON_CORRUPT}) {
			t.Errorf("reasons %v", got)
		}
		if again := c.batchers[0].requests[1].GetFrames(); !bytes.Equal(again, slices.Concat(frames[1], frames[3])) {
			t.Errorf("sent again: %q", again)
		}
	})
}

func TestFallbacks(t *testing.T) {
	frame := makeFrame(t, "least", 0, false, "x")
	for _, tc := range []struct {
		name      string
		reason    scribev1.Reason
		preferred int // calls to the preferred batcher
		wait      bool
	}{
		{"one that is gone is not waited for", scribev1.Reason_REASON_NO_BACKEND, 1, false},
		{"one that is full is tried again first", scribev1.Reason_REASON_OVERLOADED, 3, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCell(t, config.Defaults[Config](), 5)
				home := c.batchers[c.fleet.currentTable().homeOf(affinity.KeyOf(1, 0), 0)]
				home.answer = failing(100, tc.reason)
				start := time.Now()
				if r := c.write(frame); r[0].GetError() != nil {
					t.Fatal(r[0])
				}
				if n := home.calls(); n != tc.preferred {
					t.Errorf("%d calls to the preferred batcher", n)
				}
				if waited := time.Since(start) > 0; waited != tc.wait {
					t.Errorf("waited %v", time.Since(start))
				}
				// The overflow of a shard always goes to the same place.
				c.write(frame)
				others := 0
				for _, b := range c.batchers {
					if b != home && b.calls() > 0 {
						others++
					}
				}
				if others != 1 {
					t.Errorf("the overflow is spread over %d batchers", others)
				}
			})
		})
	}
}

func TestAllBatchersFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 3)
		for _, b := range c.batchers {
			b.answer = failing(100, scribev1.Reason_REASON_NO_BACKEND)
		}
		if got := reasons(c.write(makeFrame(t, "least", 0, false, "x"))); got[0] != scribev1.Reason_REASON_NO_BACKEND {
			t.Errorf("reasons %v", got)
		}
		calls := 0
		for _, b := range c.batchers {
			calls += b.calls()
		}
		if calls != 3 { // the preferred one and two fallbacks
			t.Errorf("%d calls", calls)
		}
	})
}

func TestNoBatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var snapshot []Batcher
		c := newCell(t, config.Defaults[Config](), 0, func(d *Deps) {
			d.Batchers = func() []Batcher {
				mu.Lock()
				defer mu.Unlock()
				return snapshot
			}
		})
		r := c.write(makeFrame(t, "least", 0, false, "x"))
		if e := r[0].GetError(); e.GetReason() != scribev1.Reason_REASON_NO_BACKEND || e.GetRetryAfter().AsDuration() <= 0 {
			t.Errorf("result %v", r[0])
		}
		// One that appears while a request waits is used.
		b := &fakeBatcher{id: "late"}
		time.AfterFunc(10*time.Millisecond, func() {
			mu.Lock()
			defer mu.Unlock()
			snapshot = []Batcher{{ID: b.id, Service: b}}
		})
		if r := c.write(makeFrame(t, "least", 0, false, "x")); r[0].GetError() != nil || b.calls() != 1 {
			t.Errorf("result %v after %d calls", r[0], b.calls())
		}
	})
}

// A backend that fails for everyone is not met with a multiple of the load.
func TestRetryBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config.Defaults[Config]()
		cfg.RetryRatio = 0.1
		c := newCell(t, cfg, 1)
		c.batchers[0].answer = failing(1<<30, scribev1.Reason_REASON_OVERLOADED)
		const requests = 500
		for range requests {
			c.write(makeFrame(t, "least", 0, false, "x"))
		}
		if n := c.batchers[0].calls(); n < requests || n > requests+requests/10+maxSavedRetries+1 {
			t.Errorf("%d calls for %d requests", n, requests)
		}
	})
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 1)
		b := c.batchers[0]
		frame := makeFrame(t, "least", 0, false, "x")
		for _, patience := range []time.Duration{0, 100 * time.Millisecond, 10 * time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			if patience == 0 {
				ctx, cancel = context.WithCancel(t.Context())
			}
			if _, err := c.Write(ctx, &scribev1.WriteRequest{Frames: frame}); err != nil {
				t.Fatal(err)
			}
			cancel()
		}
		if want := []time.Duration{30 * time.Second, 90 * time.Millisecond, 9750 * time.Millisecond}; !slices.Equal(b.deadline, want) {
			t.Errorf("deadlines %v, want %v", b.deadline, want)
		}
		// The answer that a batcher would not give in time comes before the caller gives up.
		b.hold = make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		resp, err := c.Write(ctx, &scribev1.WriteRequest{Frames: frame})
		if err != nil || resp.GetResults()[0].GetError().GetReason() != scribev1.Reason_REASON_UNKNOWN_OUTCOME || ctx.Err() != nil {
			t.Errorf("answer %v, %v, %v", resp, err, ctx.Err())
		}
		// A pause that would outlast the request is not begun.
		b.hold = nil
		b.answer = func(int, [][]byte) (*scribev1.SubmitResponse, error) {
			return nil, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, time.Hour, "injected")
		}
		start := time.Now()
		ctx, cancel = context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer cancel()
		if resp, err := c.Write(ctx, &scribev1.WriteRequest{Frames: frame}); err != nil || resp.GetResults()[0].GetError().GetReason() != scribev1.Reason_REASON_OVERLOADED {
			t.Errorf("answer %v, %v", resp, err)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("answered after %v", d)
		}
	})
}

func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config.Defaults[Config]()
		cfg.MemoryBytes = 2 << 20
		c := newCell(t, cfg, 1)
		// Bodies are admitted by their announced length.
		release, err := c.Admit(700 << 10)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Admit(400 << 10); rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED || rpc.Info(err).GetRetryAfter().AsDuration() <= 0 {
			t.Errorf("admitted: %v", err)
		}
		if _, err := c.Admit(2 << 20); rpc.ReasonOf(err) != scribev1.Reason_REASON_TOO_LARGE {
			t.Errorf("admitted: %v", err)
		}
		release()
		release() // once is enough, twice does no harm
		if release, err := c.Admit(1 << 20); err != nil {
			t.Error(err)
		} else {
			release()
		}
		// So are requests in Write.
		hold := make(chan struct{})
		c.batchers[0].hold = hold
		frame := makeFrame(t, "least", 0, false, strings.Repeat("x", 700<<10))
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.write(frame)
		}()
		synctest.Wait()
		if _, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: frame}); rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED {
			t.Errorf("taken: %v", err)
		}
		close(hold)
		<-done
		c.write(frame)
	})
}

// Copies for several batchers are charged, too.
func TestCopiesAreCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config.Defaults[Config]()
		cfg.MemoryBytes = 2 << 20
		c := newCell(t, cfg, 2)
		hold := make(chan struct{})
		c.batchers[0].hold, c.batchers[1].hold = hold, hold
		time.AfterFunc(10*time.Second, func() { close(hold) })
		var frames [][]byte
		for i := range 64 {
			frames = append(frames, makeFrame(t, "least", uint32(i), false, strings.Repeat("x", 9<<10)))
		}
		got := reasons(c.write(frames...))
		if !slices.Contains(got, scribev1.Reason_REASON_OVERLOADED) || !slices.Contains(got, 0) {
			t.Errorf("600 KiB and their copies were held in 1 MiB: %v", got)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 1)
		hold := make(chan struct{})
		c.batchers[0].hold = hold
		frame := makeFrame(t, "least", 0, false, "x")
		results := make(chan []*scribev1.FrameResult, 1)
		go func() { results <- c.write(frame) }()
		synctest.Wait()
		closed := make(chan error, 2)
		go func() { closed <- c.Close(t.Context()) }()
		go func() { closed <- c.Close(t.Context()) }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Errorf("closed with a request running: %v", err)
		default:
		}
		if _, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: frame}); rpc.ReasonOf(err) != scribev1.Reason_REASON_SHUTTING_DOWN {
			t.Errorf("Write: %v", err)
		}
		if _, err := c.Admit(1); rpc.ReasonOf(err) != scribev1.Reason_REASON_SHUTTING_DOWN {
			t.Errorf("Admit: %v", err)
		}
		close(hold)
		if err := errors.Join(<-closed, <-closed); err != nil {
			t.Error(err)
		}
		if r := <-results; r[0].GetError() != nil {
			t.Error(r[0])
		}

		c = newCell(t, config.Defaults[Config](), 1)
		c.batchers[0].hold = make(chan struct{})
		go func() { results <- c.write(frame) }()
		synctest.Wait()
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 requests") {
			t.Errorf("Close out of time: %v", err)
		}
		if r := <-results; r[0].GetError().GetReason() != scribev1.Reason_REASON_UNKNOWN_OUTCOME {
			t.Errorf("result %v", r[0])
		}
		if ctx.Err() == nil || time.Since(start) != time.Second {
			t.Errorf("closed after %v", time.Since(start))
		}
	})
}

func TestPublish(t *testing.T) {
	c := newCell(t, config.Defaults[Config](), 1)
	text := &scribev1.PublishMessage{Content: &scribev1.PublishMessage_Text{Text: "hello"}}
	resp, err := c.Publish(t.Context(), &scribev1.PublishRequest{Category: "least", Shard: 7, Messages: []*scribev1.PublishMessage{text, text}})
	if err != nil || resp.GetCount() != 2 || resp.GetShard() != 1 || resp.GetLsn() == 0 {
		t.Fatalf("%v, %v", resp, err)
	}
	var d record.Decoder
	h, err := d.Reset(c.batchers[0].stored(t)[0])
	if err != nil || h.Shard != 7 || h.Count != 2 || h.BaseTime == 0 {
		t.Errorf("frame %+v, %v", h, err)
	}
	large := &scribev1.PublishMessage{Content: &scribev1.PublishMessage_Payload{Payload: make([]byte, 1<<20+1)}}
	for _, tc := range []struct {
		name   string
		req    *scribev1.PublishRequest
		reason scribev1.Reason
	}{
		{"category", &scribev1.PublishRequest{Category: "nobody", Messages: []*scribev1.PublishMessage{text}}, scribev1.Reason_REASON_UNKNOWN_CATEGORY},
		{"name", &scribev1.PublishRequest{Category: "", Messages: []*scribev1.PublishMessage{text}}, scribev1.Reason_REASON_INVALID},
		{"shard", &scribev1.PublishRequest{Category: "least", Shard: 64, Messages: []*scribev1.PublishMessage{text}}, scribev1.Reason_REASON_UNKNOWN_SHARD},
		{"size", &scribev1.PublishRequest{Category: "least", Messages: []*scribev1.PublishMessage{text, large}}, scribev1.Reason_REASON_TOO_LARGE},
		{"none", &scribev1.PublishRequest{Category: "least"}, scribev1.Reason_REASON_INVALID},
	} {
		if _, err := c.Publish(t.Context(), tc.req); rpc.ReasonOf(err) != tc.reason {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 1, func(d *Deps) { d.Registerer = registry })
		c.write(makeFrame(t, "least", 0, false, "one", "two"), makeFrame(t, "nobody", 0, false, "three"))
		_, _ = c.Write(t.Context(), &scribev1.WriteRequest{Frames: []byte("no frame")})
		hold := make(chan struct{})
		c.batchers[0].hold = hold
		go c.write(makeFrame(t, "least", 0, false, "four"))
		synctest.Wait()
		got := gathered(t, registry)
		for name, want := range map[string]float64{
			"scribe_writeproxy_received_messages_total":                4,
			"scribe_writeproxy_acknowledged_messages_total":            2,
			"scribe_writeproxy_failed_messages_total/unknown_category": 1,
			"scribe_writeproxy_in_flight_messages":                     1,
			"scribe_writeproxy_refused_requests_total/corrupt":         1,
			"scribe_writeproxy_batchers":                               1,
		} {
			if got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
		close(hold)
	})
	if families, err := registry.Gather(); err != nil || len(families) != 0 {
		t.Errorf("%d metrics are left, %v", len(families), err)
	}
}

// TestMetricsOfUnknownReasons: whatever reasons a batcher gives, they add one value of the label.
func TestMetricsOfUnknownReasons(t *testing.T) {
	registry := prometheus.NewRegistry()
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 1, func(d *Deps) { d.Registerer = registry })
		c.batchers[0].answer = func(_ int, frames [][]byte) (*scribev1.SubmitResponse, error) {
			res := &scribev1.SubmitResponse{}
			for i := range frames {
				res.Results = append(res.Results, &scribev1.FrameResult{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason(900 + i)}})
			}
			return res, nil
		}
		c.write(makeFrame(t, "least", 0, false, "one"), makeFrame(t, "least", 0, false, "two"), makeFrame(t, "least", 0, false, "three"))
		if n := gathered(t, registry)["scribe_writeproxy_failed_messages_total/unknown"]; n != 3 {
			t.Errorf("%v messages failed for unknown reasons", n)
		}
	})
}

func TestConfigReportsEveryFault(t *testing.T) {
	cfg := config.Defaults[Config]()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	cfg.MemoryBytes, cfg.Attempts, cfg.RetryRatio, cfg.AutoCreate = 1, 0, -1, true
	cfg.StallAfter, cfg.MicroShardBytes, cfg.ThrottleShare = 0, 0, 1
	_, err := New(cfg, Deps{})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{"MemoryBytes", "Attempts", "RetryRatio", "StallAfter", "MicroShardBytes", "ThrottleShare", "Deps.Categories", "Deps.Batchers", "Deps.Creator"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not mentioned in: %v", part, err)
		}
	}
}

// TestUnknownOutcomeStays: a definite failure of a later attempt says nothing of one that may have stored the frame.
func TestUnknownOutcomeStays(t *testing.T) {
	for _, category := range []string{"least", "once"} {
		synctest.Test(t, func(t *testing.T) {
			c := newCell(t, config.Defaults[Config](), 1)
			c.batchers[0].answer = func(call int, _ [][]byte) (*scribev1.SubmitResponse, error) {
				if call == 0 {
					return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "the answer was lost")
				}
				return nil, rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "refused")
			}
			r := c.write(makeFrame(t, category, 0, true, "x"))
			if got := reasons(r)[0]; got != scribev1.Reason_REASON_UNKNOWN_OUTCOME || c.batchers[0].calls() < 2 {
				t.Errorf("%s: %v after %d calls", category, got, c.batchers[0].calls())
			}
		})
	}
}
