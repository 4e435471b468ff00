package writeproxy

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/format/record"
	"scribe/internal/role/quota"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

const (
	block    = scribev1.QuotaMode_QUOTA_MODE_BLOCK
	throttle = scribev1.QuotaMode_QUOTA_MODE_THROTTLE
	sample   = scribev1.QuotaMode_QUOTA_MODE_SAMPLE

	overloaded = scribev1.Reason_REASON_OVERLOADED
)

// sized returns a frame of exactly n bytes.
func sized(t testing.TB, category string, shard uint32, n int) []byte {
	t.Helper()
	least := len(makeFrame(t, category, shard, false, ""))
	f := makeFrame(t, category, shard, false, strings.Repeat("x", max(n-least-8, 0)))
	for pad := 0; len(f) != n; pad++ {
		if pad > 20 {
			t.Fatalf("no frame of %d bytes", n)
		}
		f = makeFrame(t, category, shard, false, strings.Repeat("x", max(n-least-8, 0)+pad))
	}
	return f
}

// TestBlock: frames beyond a quota are refused with the time when they pass, and nothing else is.
func TestBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		c := newCell(t, config.Defaults[Config](), 1, func(d *Deps) { d.Registerer = registry })
		c.catalog.limit("noisy", 1000, block)
		noisy, quiet := sized(t, "noisy", 0, 600), makeFrame(t, "least", 0, false, "quiet")
		results := c.write(noisy, quiet, noisy, noisy, quiet, noisy)
		if got := reasons(results); !slices.Equal(got, []scribev1.Reason{0, 0, 0, overloaded, 0, overloaded}) {
			t.Fatalf("reasons %v", got)
		}
		if got := c.batchers[0].stored(t); len(got) != 4 {
			t.Errorf("%d frames were sent", len(got))
		}
		// 200 bytes are owed at 1000 a second.
		hint := results[3].GetError().GetRetryAfter().AsDuration()
		if hint.Round(time.Millisecond) != 200*time.Millisecond {
			t.Errorf("hint %v", hint)
		}
		<-time.After(hint - 10*time.Microsecond)
		if got := reasons(c.write(noisy, quiet)); !slices.Equal(got, []scribev1.Reason{overloaded, 0}) {
			t.Errorf("before the hint: %v", got)
		}
		<-time.After(10 * time.Microsecond)
		if got := reasons(c.write(noisy, noisy)); !slices.Equal(got, []scribev1.Reason{0, overloaded}) {
			t.Errorf("after the hint: %v", got)
		}
		// A frame a hundred times the burst passes, and is paid for.
		<-time.After(10 * time.Second)
		results = c.write(sized(t, "noisy", 0, 100_000), noisy)
		if got := reasons(results); !slices.Equal(got, []scribev1.Reason{0, overloaded}) {
			t.Errorf("a large frame: %v", got)
		}
		if hint := results[1].GetError().GetRetryAfter().AsDuration(); hint.Round(time.Second) != 99*time.Second {
			t.Errorf("hint %v after it", hint)
		}
		if got := gathered(t, registry)["scribe_writeproxy_over_quota_bytes_total/refused/category"]; got != 5*600 {
			t.Errorf("%v bytes are counted as refused", got)
		}
	})
}

// TestQuotaIsShared: each write proxy gives its share, of those that there are now.
func TestQuotaIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		proxies := 4
		c := newCell(t, config.Defaults[Config](), 1, func(d *Deps) {
			d.Proxies = func() int {
				mu.Lock()
				defer mu.Unlock()
				return proxies
			}
		})
		c.catalog.limit("noisy", 40_000, block)
		frame := sized(t, "noisy", 0, 500)
		passed := func() (n int) {
			for range 100 {
				for _, r := range c.write(frame, frame) {
					if r.GetError() == nil {
						n++
					}
				}
				<-time.After(10 * time.Millisecond)
			}
			return n
		}
		passed() // the burst
		for _, n := range []int{4, 1, 2, 0} {
			mu.Lock()
			proxies = n
			mu.Unlock()
			want := 80 / max(n, 1)
			if got := passed(); got < want-1 || got > want+2 {
				t.Errorf("%d frames a second passed with %d proxies, want %d", got, n, want)
			}
		}
	})
}

// TestDamageCostsNothing: a frame that is refused for its quota is refused before its body is looked at; one that passes is checked.
func TestDamageCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 1)
		for mode, name := range map[scribev1.QuotaMode]string{block: "blocks", throttle: "waits", sample: "samples"} {
			c.catalog.limit(name, 1000, mode)
			damaged := sized(t, name, 0, 2000)
			damaged[len(damaged)-1] ^= 1
			if got := reasons(c.write(damaged)); got[0] != scribev1.Reason_REASON_CORRUPT {
				t.Errorf("%s: %v", name, got)
			}
		}
		damaged := sized(t, "blocks", 0, 2000)
		damaged[len(damaged)-1] ^= 1
		if got := reasons(c.write(damaged)); got[0] != overloaded {
			t.Errorf("over the quota: %v", got)
		}
		if len(c.batchers[0].requests) != 0 {
			t.Error("damage was sent")
		}
	})
}

// TestThrottle: frames beyond a quota wait, in order; neither other frames of their request nor other requests wait with them.
func TestThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 1)
		c.catalog.limit("noisy", 1000, throttle)
		start := time.Now()
		c.write(sized(t, "noisy", 0, 1500)) // 500 bytes are owed
		var answered []time.Duration
		var mu sync.Mutex
		var group sync.WaitGroup
		for i := range 3 {
			group.Go(func() {
				r := c.write(makeFrame(t, "least", 0, false, fmt.Sprint(i)), sized(t, "noisy", uint32(i), 400), sized(t, "noisy", uint32(i), 600))
				mu.Lock()
				defer mu.Unlock()
				answered = append(answered, time.Since(start).Round(time.Millisecond))
				if got := reasons(r); !slices.Equal(got, []scribev1.Reason{0, 0, 0}) {
					t.Errorf("request %d: %v", i, got)
				}
			})
			synctest.Wait()
		}
		if got := c.batchers[0].stored(t); len(got) != 4 {
			t.Errorf("%d frames were sent at once", len(got))
		}
		if used := c.quotas.Waiting.Used(); used != 3*quota.MinHeld {
			t.Errorf("%d bytes wait", used)
		}
		if r := c.write(makeFrame(t, "once", 0, false, "quiet")); r[0].GetError() != nil || time.Since(start) != 0 {
			t.Errorf("another category's request: %v after %v", r[0], time.Since(start))
		}
		group.Wait()
		if want := []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond, 2500 * time.Millisecond}; !slices.Equal(answered, want) {
			t.Errorf("answered after %v, want %v", answered, want)
		}
		var shards []uint32
		for _, f := range c.batchers[0].stored(t) {
			if h, err := record.Check(f); err == nil && string(h.Category) == "noisy" {
				shards = append(shards, h.Shard)
			}
		}
		if want := []uint32{0, 0, 0, 1, 1, 2, 2}; !slices.Equal(shards, want) {
			t.Errorf("frames of shards %v, want %v", shards, want)
		}
	})
}

// TestThrottleGivesUp: who can't pass in time is refused at once, with the time when it would; so is who does not fit into the memory
// of those who wait, and who waits when the proxy closes.
func TestThrottleGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config.Defaults[Config]()
		cfg.MemoryBytes, cfg.ThrottleShare = 2<<20, 0.1 // 100 KiB, which is 6 requests
		c := newCell(t, cfg, 1)
		c.catalog.limit("noisy", 1000, throttle)
		c.catalog.limit("other", 1000, throttle)
		noisy, other := sized(t, "noisy", 0, 1000), sized(t, "other", 0, 1000)
		c.write(sized(t, "noisy", 0, 11_000), sized(t, "other", 0, 11_000)) // both owe ten seconds
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 11*time.Second) // three quarters of it may be waited
		defer cancel()
		resp, err := c.Write(ctx, &scribev1.WriteRequest{Frames: noisy})
		if err != nil {
			t.Fatal(err)
		}
		info := resp.GetResults()[0].GetError()
		if after := info.GetRetryAfter().AsDuration().Round(time.Millisecond); info.GetReason() != overloaded || after != 10*time.Second || time.Since(start) != 0 {
			t.Errorf("%v after %v", info, time.Since(start))
		}
		results := make(chan *scribev1.FrameResult, 100)
		var group sync.WaitGroup
		enter := func(frame []byte) {
			group.Go(func() { results <- c.write(frame)[0] })
			synctest.Wait()
		}
		for range 8 {
			enter(noisy)
		}
		if n := len(results); n != 5 {
			t.Errorf("%d of 8 did not fit", n)
		}
		for range 8 {
			enter(other)
		}
		// One category has left something for the other.
		waiting := 16 - len(results)
		if waiting <= 3 || waiting > 6 {
			t.Errorf("%d of both categories wait", waiting)
		}
		for range len(results) {
			if r := <-results; r.GetError().GetReason() != overloaded || r.GetError().GetRetryAfter().AsDuration() < 10*time.Second {
				t.Errorf("refused with %v", r)
			}
		}
		if time.Since(start) != 0 {
			t.Errorf("refused after %v", time.Since(start))
		}
		if err := c.Close(t.Context()); err != nil || time.Since(start) != 0 {
			t.Errorf("closed after %v, %v", time.Since(start), err)
		}
		group.Wait()
		for range len(results) {
			if r := <-results; r.GetError().GetReason() != scribev1.Reason_REASON_SHUTTING_DOWN {
				t.Errorf("at the close: %v", r)
			}
		}
	})
}

// TestThrottleCancelled: who goes away while waiting leaves nothing behind, and those behind it come earlier.
func TestThrottleCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 1)
		c.catalog.limit("noisy", 1000, throttle)
		c.write(sized(t, "noisy", 0, 2000))
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() {
			resp, err := c.Write(ctx, &scribev1.WriteRequest{Frames: sized(t, "noisy", 0, 20_000)})
			if err != nil || resp.GetResults()[0].GetError().GetReason() != overloaded {
				t.Errorf("%v, %v", resp, err)
			}
		})
		synctest.Wait()
		group.Go(func() { c.write(sized(t, "noisy", 0, 500)) })
		synctest.Wait()
		cancel()
		group.Wait()
		if waited := time.Since(start).Round(time.Millisecond); waited != time.Second {
			t.Errorf("the one behind waited %v", waited)
		}
	})
}

// TestSample: of what is beyond a quota one frame in N is kept and says so; the caller's bytes stay what they are.
func TestSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 2)
		c.catalog.limit("noisy", 100_000, sample)
		frame := sized(t, "noisy", 0, 1000)
		marked := bytes.Clone(frame)
		if err := record.SetSampleRate(marked, 5); err != nil {
			t.Fatal(err)
		}
		quiet := makeFrame(t, "least", 0, false, "quiet")
		data := slices.Concat(frame, quiet, marked, frame, frame)
		before := bytes.Clone(data)
		kept, out, quiets := 0, 0, 0
		for range 2000 { // 4 MB/s for 2 s: 40 times the quota
			resp, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: data})
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range resp.GetResults() {
				switch {
				case r.GetError() != nil:
					t.Fatal(r)
				case r.GetSampledOut():
					out++
					if r.GetShard() != 0 || r.GetLsn() != 0 {
						t.Errorf("a frame that was left out has a place: %v", r)
					}
				case i == 1:
					quiets++
				default:
					kept++
				}
			}
			<-time.After(time.Millisecond)
		}
		if !bytes.Equal(data, before) {
			t.Error("the request's bytes were changed")
		}
		if quiets != 2000 || kept+out != 8000 {
			t.Errorf("%d frames kept, %d left out, %d of another category", kept, out, quiets)
		}
		seen, estimate := 0, 0.0
		for _, b := range c.batchers {
			for _, f := range b.stored(t) {
				h, err := record.Check(f)
				if err != nil {
					t.Fatal(err)
				}
				if string(h.Category) == "noisy" {
					seen++
					rate := max(h.SampleRate, 1)
					if rate%5 == 0 { // likely the one that was sampled before
						rate /= 5
					}
					estimate += float64(rate)
				}
			}
		}
		if seen != kept || kept < 150 || kept > 1500 {
			t.Errorf("%d frames arrived, %d were kept", seen, kept)
		}
		if estimate < 0.7*8000 || estimate > 1.3*8000 {
			t.Errorf("the rates tell of %.0f frames, 8000 were sent", estimate)
		}
		counts := c.ledger.readCounts()
		if got := counts.sampledOut.Frames; got != int64(out) {
			t.Errorf("%d frames are counted as left out, want %d", got, out)
		}
	})
}

// TestSampleRatesMultiply: a frame that was sampled before stands for all that it stood for.
func TestSampleRatesMultiply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 1)
		c.catalog.limit("noisy", 1000, sample)
		frame := sized(t, "noisy", 0, 1000)
		if err := record.SetSampleRate(frame, 1_000_000); err != nil {
			t.Fatal(err)
		}
		multiplied := false
		for range 200 {
			c.write(frame)
		}
		for _, f := range c.batchers[0].stored(t) {
			h, err := record.Check(f)
			if err != nil || h.SampleRate%1_000_000 != 0 {
				t.Fatalf("rate %d, %v", h.SampleRate, err)
			}
			multiplied = multiplied || h.SampleRate > 1_000_000
		}
		if !multiplied {
			t.Error("no frame was marked")
		}
	})
}

// TestSampleNeverBreaksSequences: an exactly_once category that says sample blocks.
func TestSampleNeverBreaksSequences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 1)
		c.catalog.limit("noisy", 1000, sample).Delivery = scribev1.Delivery_DELIVERY_EXACTLY_ONCE
		frame := sized(t, "noisy", 0, 800)
		if got := reasons(c.write(frame, frame, frame)); !slices.Equal(got, []scribev1.Reason{0, 0, overloaded}) {
			t.Errorf("reasons %v", got)
		}
	})
}

func TestPublishSampledOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 1)
		c.catalog.limit("noisy", 100, sample)
		text := &scribev1.PublishMessage{Content: &scribev1.PublishMessage_Text{Text: strings.Repeat("x", 1000)}}
		out := 0
		for range 100 {
			resp, err := c.Publish(t.Context(), &scribev1.PublishRequest{Category: "noisy", Messages: []*scribev1.PublishMessage{text}})
			if err != nil || resp.GetSampledOut() == (resp.GetCount() == 1) {
				t.Fatalf("%v, %v", resp, err)
			}
			if resp.GetSampledOut() {
				out++
			}
		}
		if out < 50 {
			t.Errorf("%d of 100 were left out", out)
		}
	})
}

// TestManyQuotas: a request with frames of many categories, mixed, treats each by its own quota, and idle ones are forgotten.
func TestManyQuotas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell(t, config.Defaults[Config](), 3)
		const categories = 50
		for i := range categories {
			c.catalog.limit(fmt.Sprintf("c%d", i), 1000, []scribev1.QuotaMode{block, throttle}[i%2])
		}
		var frames [][]byte
		for round := range 3 {
			for i := range categories {
				frames = append(frames, sized(t, fmt.Sprintf("c%d", (i*7+round)%categories), 0, 500+100*round))
			}
		}
		refused := map[string]int{}
		for i, r := range c.write(frames...) {
			if r.GetError() != nil {
				h, err := record.Check(frames[i])
				if err != nil {
					t.Fatal(err)
				}
				refused[h.CategoryName()]++
			}
		}
		if len(refused) != categories/2 {
			t.Errorf("%d categories were refused something: %v", len(refused), refused)
		}
		for name, n := range refused {
			if n != 1 {
				t.Errorf("%d frames of %s were refused", n, name)
			}
		}
		if n, _ := c.quotas.CountQuotas(); n != categories {
			t.Errorf("%d quotas are remembered", n)
		}
		<-time.After(time.Hour)
		for i := range 2000 {
			c.catalog.limit("x", 1000, block).Id = uint32(1000 + i)
			c.write(sized(t, "x", 0, 100))
			<-time.After(time.Second)
		}
		if n, _ := c.quotas.CountQuotas(); n > 300 {
			t.Errorf("%d quotas are remembered of which one is in use", n)
		}
	})
}

// TestNoisyNeighbour: whatever one category does beyond its quota, another's requests are answered as if it were not there.
func TestNoisyNeighbour(t *testing.T) {
	for _, mode := range []scribev1.QuotaMode{block, throttle, sample} {
		synctest.Test(t, func(t *testing.T) {
			cfg := config.Defaults[Config]()
			cfg.MemoryBytes = 64 << 20
			c := newCell(t, cfg, 2)
			c.catalog.limit("noisy", 1<<20, mode)
			stop := make(chan struct{})
			var group sync.WaitGroup
			frame := slices.Concat(slices.Repeat([][]byte{sized(t, "noisy", 0, 64<<10)}, 16)...)
			for range 100 { // each 1 MiB a tenth of a second
				group.Go(func() {
					for {
						ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
						_, err := c.Write(ctx, &scribev1.WriteRequest{Frames: frame})
						cancel()
						if err != nil && rpc.ReasonOf(err) != overloaded {
							t.Error(err)
						}
						select {
						case <-stop:
							return
						case <-time.After(100 * time.Millisecond):
						}
					}
				})
			}
			for range 50 {
				<-time.After(37 * time.Millisecond)
				start := time.Now()
				if r := c.write(makeFrame(t, "least", 1, false, "quiet")); r[0].GetError() != nil || time.Since(start) != 0 {
					t.Errorf("%v: %v after %v", mode, r[0], time.Since(start))
				}
			}
			close(stop)
			group.Wait()
		})
	}
}
