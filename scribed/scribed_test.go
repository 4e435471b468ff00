package scribed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func TestAckNoneIsAnsweredAtOnceAndForwarded(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		start := time.Now()
		for i := range 50 {
			c.mustWrite(none, fmt.Sprintf("a/%d", i), fmt.Sprintf("b/%d", i))
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("answered after %v", d)
		}
		<-time.After(c.cfg.Linger)
		synctest.Wait()
		var want []string
		for i := range 50 {
			want = append(want, fmt.Sprint(i))
		}
		c.mustHold("a", want...)
		c.mustHold("b", want...)
		if n := c.up.count(); n != 1 {
			t.Errorf("%d requests for frames that linger together", n)
		}
		if c.up.history()[0].ack != none {
			t.Errorf("forwarded with %v", c.up.history()[0].ack)
		}
	})
}

func TestCommittedIsAnsweredByTheUpstream(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		for _, ack := range []scribev1.AckLevel{committed, spooled, scribev1.AckLevel_ACK_LEVEL_UNSPECIFIED} {
			c.mustWrite(ack, "x/0")
		}
		for _, call := range c.up.history() {
			if call.ack != committed {
				t.Errorf("forwarded with %v", call.ack)
			}
		}
		c.up.replies(func(int, *call) reply {
			return reply{each: func(m string) error {
				if m == "b/2" {
					return rpc.Errorf(scribev1.Reason_REASON_SEALED, "injected")
				}
				return nil
			}}
		})
		results, err := c.write(committed, "a/1", "b/1", "a/2", "b/2", "a/3")
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []uint64{1, 1, 2, 0, 3} {
			if results[i].GetLsn() != want || (results[i].GetError() != nil) != (want == 0) {
				t.Errorf("result %d: %v", i, results[i])
			}
		}
		if n := c.snapshot().failed["sealed"].Frames; n != 1 {
			t.Errorf("%d frames count as failed", n)
		}
	})
}

// While the upstream is unavailable everything waits, in order, and callers of none are answered nonetheless.
func TestUpstreamIsAway(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		c.up.replies(failing(6, scribev1.Reason_REASON_NO_BACKEND))
		var group sync.WaitGroup
		group.Go(func() { c.mustWrite(committed, "a/0", "b/0") })
		synctest.Wait()
		for i := 1; i < 20; i++ {
			c.mustWrite(none, fmt.Sprintf("a/%d", i))
		}
		group.Wait()
		<-time.After(time.Minute)
		synctest.Wait()
		var want []string
		for i := range 20 {
			want = append(want, fmt.Sprint(i))
		}
		c.mustHold("a", want...)
		c.mustHold("b", "0")
		for i := 1; i < 6; i++ {
			pause := c.up.history()[i].at.Sub(c.up.history()[i-1].at)
			mean := c.cfg.RetryBase << (i - 1)
			if pause < mean/2 || pause > mean*3/2 {
				t.Errorf("pause %d is %v, the mean is %v", i, pause, mean)
			}
		}
	})
}

// A category that the upstream refuses waits alone.
func TestRefusedCategoryWaitsAlone(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		open := time.Now().Add(10 * time.Second)
		c.up.replies(func(int, *call) reply {
			return reply{each: func(m string) error {
				if strings.HasPrefix(m, "noisy/") && time.Now().Before(open) {
					return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, time.Second, "over quota")
				}
				return nil
			}}
		})
		c.mustWrite(none, "noisy/1", "quiet/1")
		c.mustWrite(none, "noisy/2")
		<-time.After(time.Second)
		for i := 2; i < 10; i++ {
			c.mustWrite(none, fmt.Sprintf("quiet/%d", i))
			<-time.After(10 * time.Millisecond)
			synctest.Wait()
			c.mustHold("quiet", []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"}[:i]...)
		}
		if time.Now().After(open) {
			t.Error("the quiet category waited")
		}
		<-time.After(time.Minute)
		c.mustHold("quiet", "1", "2", "3", "4", "5", "6", "7", "8", "9")
		c.mustHold("noisy", "1", "2")
		var last time.Time
		for _, call := range c.up.history() {
			if !slices.ContainsFunc(call.messages, func(m string) bool { return strings.HasPrefix(m, "noisy/") }) {
				continue
			}
			if d := call.at.Sub(last); d < time.Second/2 {
				t.Errorf("tried again after %v, the hint was 1s", d)
			}
			last = call.at
		}
	})
}

func TestDropsAreCounted(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		c.up.replies(func(int, *call) reply {
			return reply{each: func(m string) error {
				if strings.HasPrefix(m, "nobody/") {
					return rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "injected")
				}
				return nil
			}}
		})
		c.mustWrite(none, "nobody/1", "a/1", "nobody/2")
		<-time.After(time.Second)
		c.mustHold("a", "1")
		got := c.snapshot()
		if d := got.dropped["unknown_category"]; d.Frames != 2 || d.Messages != 2 || got.forwarded.Frames != 1 || got.accepted.Frames != 3 {
			t.Errorf("counts %+v", got)
		}
	})
}

// A request that is refused as a whole is taken apart: only the entry that is the cause fails.
func TestCulpritIsFound(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxInFlight = 1
	run(t, cfg, func(t *testing.T, c *cell) {
		c.up.replies(func(_ int, x *call) reply {
			if slices.Contains(x.messages, "b/bad") {
				return reply{whole: rpc.Errorf(scribev1.Reason_REASON_INVALID, "injected")}
			}
			return reply{}
		})
		for _, m := range []string{"a/1", "b/bad", "b/2", "c/1"} {
			c.mustWrite(none, m)
		}
		hold := make(chan struct{})
		c.up.holds(hold)
		<-time.After(c.cfg.Linger)
		synctest.Wait()
		c.mustWrite(none, "d/1") // is in front of them when they come back
		time.AfterFunc(c.cfg.Linger, func() { close(hold) })
		<-time.After(time.Second)
		for i, call := range c.up.history() {
			if i > 0 && slices.Contains(call.messages, "b/bad") && len(call.messages) > 1 {
				t.Errorf("request %d has the culprit among others: %v", i, call.messages)
			}
		}
		c.mustHold("a", "1")
		c.mustHold("b", "2")
		c.mustHold("c", "1")
		if n := c.snapshot().dropped["invalid"].Frames; n != 1 {
			t.Errorf("%d frames were dropped", n)
		}
	})
}

func TestSequenceGapDoesNotBlockForever(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		attempts := 0
		c.up.replies(func(int, *call) reply {
			return reply{each: func(m string) error {
				if m == "a/seq7" {
					attempts++
					return rpc.Errorf(scribev1.Reason_REASON_OUT_OF_SEQUENCE, "injected")
				}
				return nil
			}}
		})
		c.mustWrite(none, "a/seq7")
		c.mustWrite(none, "a/x")
		<-time.After(time.Hour)
		c.mustHold("a", "x")
		if attempts != c.cfg.SequenceAttempts || c.snapshot().dropped["out_of_sequence"].Frames != 1 {
			t.Errorf("%d attempts, %+v", attempts, c.snapshot().dropped)
		}
	})
}

// A frame whose outcome is unknown is sent again if a second copy would be noticed, or if nobody else can.
func TestUnknownOutcome(t *testing.T) {
	for _, tc := range []struct {
		text  string
		ack   scribev1.AckLevel
		calls int
	}{
		{"plain", committed, 1}, {"seq", committed, 2}, {"plain", none, 2},
	} {
		run(t, DefaultConfig(), func(t *testing.T, c *cell) {
			c.up.replies(failing(1, scribev1.Reason_REASON_UNKNOWN_OUTCOME))
			results, err := c.write(tc.ack, "a/"+tc.text)
			<-time.After(time.Minute)
			if err != nil || c.up.count() != tc.calls {
				t.Errorf("%+v: %d calls, %v", tc, c.up.count(), err)
			}
			if reason := results[0].GetError().GetReason(); (reason == scribev1.Reason_REASON_UNKNOWN_OUTCOME) != (tc.calls == 1) {
				t.Errorf("%+v: result %v", tc, results[0])
			}
		})
	}
}

func TestCallerGivesUp(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		// Not sent yet: it is taken back, and the caller may rely on that.
		c.up.replies(failing(1, scribev1.Reason_REASON_NO_BACKEND))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := c.writeContext(ctx, committed, "a/1", "b/1"); rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND {
			t.Errorf("not sent: %v", err)
		}
		<-time.After(time.Minute)
		if c.up.count() != 1 {
			t.Errorf("%d calls", c.up.count())
		}
		// On its way: nobody knows, and it is not sent again.
		hold := make(chan struct{})
		c.up.holds(hold)
		c.up.replies(failing(2, scribev1.Reason_REASON_OVERLOADED))
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.writeContext(ctx, committed, "a/2"); rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_OUTCOME || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("on its way: %v", err)
		}
		close(hold)
		<-time.After(time.Minute)
		if c.up.count() != 1 { // the request on its way had nothing else, so it was ended
			t.Errorf("%d calls", c.up.count())
		}
		c.mustHold("a")
		if n := c.snapshot().failed[abandonedReason].Frames; n != 2 {
			t.Errorf("%d frames count as abandoned", n)
		}
	})
}

// TestCallerGivesUpOnAPart: a caller that gives up while a part of its frames is refused again and again learns which are stored and
// which certainly are not.
func TestCallerGivesUpOnAPart(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		c.up.replies(func(int, *call) reply {
			return reply{each: func(m string) error {
				if m == "over/2" {
					return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, time.Second, "over its quota")
				}
				return nil
			}}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+time.Millisecond)
		defer cancel()
		begun := time.Now()
		results, err := c.writeContext(ctx, committed, "over/1", "over/2", "over/3", "under/4")
		if err != nil {
			t.Fatal(err)
		}
		if d, want := time.Since(begun), 10*time.Second+time.Millisecond-DefaultConfig().HopMargin; d != want {
			t.Errorf("answered after %v, want %v: the answer has to arrive before the deadline", d, want)
		}
		for i, stored := range []bool{true, false, false, true} {
			if info := results[i].GetError(); (info == nil) != stored || !stored && info.GetReason() != scribev1.Reason_REASON_OVERLOADED {
				t.Errorf("frame %d: %v", i+1, info)
			}
		}
		c.up.replies(nil)
		<-time.After(time.Minute)
		c.mustHold("over", "1")
		c.mustHold("under", "4")

		// A refused frame alone is no reason to hold back others. An upstream that is unavailable is.
		c.up.replies(func(int, *call) reply {
			return reply{each: func(string) error {
				return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, time.Second, "over its quota")
			}}
		})
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second+time.Millisecond)
		defer cancel()
		results, err = c.writeContext(ctx, committed, "over/5")
		if err != nil || results[0].GetError().GetReason() != scribev1.Reason_REASON_OVERLOADED {
			t.Errorf("refused alone: %v, %v", results, err)
		}
		c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second+time.Millisecond)
		defer cancel()
		if _, err := c.writeContext(ctx, committed, "over/6"); rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND || !strings.Contains(err.Error(), "the last attempt: injected") {
			t.Errorf("unavailable: %v", err)
		}
	})
}

func TestMemoryIsShared(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MemoryBytes = 1 << 20
	run(t, cfg, func(t *testing.T, c *cell) {
		hold := make(chan struct{})
		c.up.holds(hold)
		fill := func(category string) (n int) {
			for {
				_, err := c.write(none, category+"/"+strings.Repeat("x", 10_000))
				if err == nil {
					n++
					continue
				}
				if info := rpc.Info(err); info.GetReason() != scribev1.Reason_REASON_OVERLOADED || info.GetRetryAfter().AsDuration() <= 0 {
					t.Errorf("refused with %v", err)
				}
				return n
			}
		}
		first, second, third := fill("noisy"), fill("late"), fill("later")
		if first < 70 || first > 85 || second < 10 || third < 1 {
			t.Errorf("three categories got %d, %d and %d frames of 10 kB in 1 MiB", first, second, third)
		}
		// A request is not refused for one category of it.
		results, err := c.write(none, "noisy/"+strings.Repeat("x", 10_000), "small/x")
		if err != nil || results[0].GetError().GetReason() != scribev1.Reason_REASON_OVERLOADED || results[1].GetError() != nil {
			t.Errorf("%v, %v", results, err)
		}
		if _, err := c.write(none, "huge/"+strings.Repeat("x", 900_000)); rpc.ReasonOf(err) != scribev1.Reason_REASON_TOO_LARGE {
			t.Errorf("more than a category can hold: %v", err)
		}
		close(hold)
		<-time.After(time.Minute)
		if got := c.snapshot(); got.forwarded.Frames != int64(first+second+third+1) || got.refused != 5 {
			t.Errorf("counts %+v", got)
		}
		c.mustWrite(none, "noisy/x")
	})
}

func TestAdmit(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MemoryBytes = 1 << 20
	run(t, cfg, func(t *testing.T, c *cell) {
		release, err := c.Admit(600 << 10)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Admit(600 << 10); rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED {
			t.Errorf("admitted: %v", err)
		}
		if _, err := c.Admit(2 << 20); rpc.ReasonOf(err) != scribev1.Reason_REASON_TOO_LARGE {
			t.Errorf("admitted: %v", err)
		}
		large, err := c.Admit(250 << 10)
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		if _, err := c.Admit(100 << 10); rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED {
			t.Errorf("a large request takes what is for small ones: %v", err)
		}
		small, err := c.Admit(64 << 10)
		if err != nil {
			t.Errorf("a small request was refused: %v", err)
		}
		for _, end := range []func(){release, release, large, small} {
			end()
		}
		if end, err := c.Admit(1 << 20); err != nil {
			t.Errorf("alone, a request was refused: %v", err)
		} else {
			end()
		}
	})
}

// A caller in this process that has checked the frames is believed; any other is not, and the upstream need not look again.
func TestCheckedFramesAreNotSummedAgain(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		good, damaged := makeFrame(t, "a", "x", false), makeFrame(t, "a", "y", false)
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
		for _, call := range c.up.history() {
			if !call.checked {
				t.Error("the upstream was told to check again")
			}
		}
	})
}

func TestFramesAreRefusedAlone(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		good, damaged := makeFrame(t, "a", "x", false), makeFrame(t, "a", "y", false)
		damaged[len(damaged)-1] ^= 1
		resp, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: slices.Concat(good, damaged, good)})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []scribev1.Reason{0, scribev1.Reason_REASON_CORRUPT, 0} {
			if got := resp.GetResults()[i].GetError().GetReason(); got != want {
				t.Errorf("frame %d: %v", i, got)
			}
		}
		c.mustHold("a", "x", "x")
		for _, frames := range [][]byte{[]byte("something else"), append(bytes.Clone(good), good[:70]...)} {
			if _, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: frames}); rpc.ReasonOf(err) != scribev1.Reason_REASON_CORRUPT {
				t.Errorf("%q: %v", frames, err)
			}
		}
		if _, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: make([]byte, record.MaxFrameLen+1)}); rpc.ReasonOf(err) != scribev1.Reason_REASON_TOO_LARGE {
			t.Errorf("too large: %v", err)
		}
		if resp, err := c.Write(t.Context(), &scribev1.WriteRequest{}); err != nil || len(resp.GetResults()) != 0 {
			t.Errorf("empty request: %v, %v", resp, err)
		}
		if resp, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: damaged}); err != nil || resp.GetResults()[0].GetError() == nil {
			t.Errorf("nothing left of a request: %v, %v", resp, err)
		}
	})
}

func TestPublish(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		text := &scribev1.PublishMessage{Content: &scribev1.PublishMessage_Text{Text: "hello"}}
		resp, err := c.Publish(t.Context(), &scribev1.PublishRequest{Category: "a", Messages: []*scribev1.PublishMessage{text}})
		if err != nil || resp.GetCount() != 1 || resp.GetLsn() != 1 {
			t.Errorf("%v, %v", resp, err)
		}
		c.mustHold("a", "hello")
		c.up.replies(func(int, *call) reply {
			return reply{each: func(string) error { return rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_SHARD, "injected") }}
		})
		if _, err := c.Publish(t.Context(), &scribev1.PublishRequest{Category: "a", Messages: []*scribev1.PublishMessage{text}}); rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_SHARD {
			t.Errorf("refused with %v", err)
		}
		if _, err := c.Publish(t.Context(), &scribev1.PublishRequest{Category: "a"}); rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID {
			t.Errorf("refused with %v", err)
		}
	})
}

func TestCloseForwardsWhatIsLeft(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Linger = time.Hour
	run(t, cfg, func(t *testing.T, c *cell) {
		c.mustWrite(none, "a/1", "b/1")
		start := time.Now()
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("lingered for %v", d)
		}
		c.mustHold("a", "1")
		c.mustHold("b", "1")
		if _, err := c.write(none, "a/2"); rpc.ReasonOf(err) != scribev1.Reason_REASON_SHUTTING_DOWN {
			t.Errorf("Write: %v", err)
		}
		if _, err := c.Admit(1); rpc.ReasonOf(err) != scribev1.Reason_REASON_SHUTTING_DOWN {
			t.Errorf("Admit: %v", err)
		}
	})
}

func TestCloseOutOfTimeTellsWhatIsLeft(t *testing.T) {
	for _, away := range []bool{true, false} {
		run(t, DefaultConfig(), func(t *testing.T, c *cell) {
			want := scribev1.Reason_REASON_SHUTTING_DOWN
			if away {
				c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
			} else {
				c.up.holds(make(chan struct{}))
				want = scribev1.Reason_REASON_UNKNOWN_OUTCOME
			}
			result := make(chan *scribev1.FrameResult, 1)
			go func() {
				results, err := c.write(committed, "a/seq1")
				if err != nil {
					t.Error(err)
				}
				result <- results[0]
			}()
			synctest.Wait()
			c.mustWrite(none, "a/2", "b/1")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := c.Close(ctx)
			if err == nil || !strings.Contains(err.Error(), "3 frames with 3 messages") {
				t.Errorf("Close: %v", err)
			}
			if r := <-result; r.GetError().GetReason() != want {
				t.Errorf("the caller is told %v", r)
			}
			got := c.snapshot()
			sum := int64(0)
			for _, a := range got.dropped {
				sum += a.Frames
			}
			if sum != 2 {
				t.Errorf("dropped %+v", got.dropped)
			}
		})
	}
}

// Random callers against a random upstream: each category's order is kept, nothing that was accepted is lost, and what was refused
// is not there.
func TestHistories(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			cfg := DefaultConfig()
			cfg.BatchBytes, cfg.MaxInFlight, cfg.MemoryBytes = 1+rng.IntN(2000), 1+rng.IntN(4), 1<<20
			run(t, cfg, func(t *testing.T, c *cell) {
				rate := rng.Float64() / 2
				c.up.replies(func(int, *call) reply {
					if rng.Float64() < rate {
						return reply{whole: rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "injected")}
					}
					return reply{}
				})
				accepted := make([][]string, 4)
				var callers sync.WaitGroup
				for i := range accepted {
					rng := rand.New(rand.NewPCG(seed, uint64(i+1)))
					callers.Go(func() {
						for n := range 100 {
							<-time.After(time.Duration(rng.IntN(10)) * time.Millisecond)
							ack := []scribev1.AckLevel{none, none, none, committed}[rng.IntN(4)]
							text := fmt.Sprintf("%d%s", n, strings.Repeat("x", rng.IntN(200)))
							c.mustWrite(ack, fmt.Sprintf("c%d/%s", i, text))
							accepted[i] = append(accepted[i], text)
						}
					})
				}
				callers.Wait()
				if err := c.Close(t.Context()); err != nil {
					t.Error(err)
				}
				for i, want := range accepted {
					c.mustHold(fmt.Sprintf("c%d", i), want...)
				}
			})
		})
	}
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	synctest.Test(t, func(t *testing.T) {
		c := &cell{t: t, up: &upstream{stored: map[string][]string{}}}
		var err error
		if c.Scribed, err = New(DefaultConfig(), Deps{Upstream: c.up, Registerer: registry}); err != nil {
			t.Fatal(err)
		}
		c.mustWrite(committed, "a/1")
		synctest.Wait() // the writer is told before the queue is given up
		hold := make(chan struct{})
		c.up.holds(hold)
		c.mustWrite(none, "b/1")
		got := map[string]float64{}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					name += "/" + l.GetValue()
				}
				got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
		for name, want := range map[string]float64{
			"scribe_scribed_accepted_messages_total":  2,
			"scribe_scribed_forwarded_messages_total": 1,
			"scribe_scribed_buffered_messages/memory": 1,
			"scribe_scribed_buffered_categories":      1,
			"scribe_scribed_upstream_requests_total":  1,
		} {
			if got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
		close(hold)
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if families, err := registry.Gather(); err != nil || len(families) != 0 {
		t.Errorf("%d metrics are left, %v", len(families), err)
	}
}

func TestConfigReportsEveryFault(t *testing.T) {
	cfg := DefaultConfig()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	cfg.MemoryBytes, cfg.Share, cfg.MaxInFlight, cfg.RetryMax = 1, 0, 0, 0
	_, err := New(cfg, Deps{})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{"MemoryBytes", "Share", "MaxInFlight", "RetryMax", "Deps.Upstream"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not mentioned in: %v", part, err)
		}
	}
}

// TestUnknownOutcomeStays: a definite failure of a later attempt says nothing of one that may have stored the frame.
func TestUnknownOutcomeStays(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		c.up.replies(func(n int, _ *call) reply {
			if n == 0 {
				return reply{whole: rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "the answer was lost")}
			}
			return reply{each: func(string) error { return rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "deleted") }}
		})
		results, err := c.write(committed, "a/seq1")
		if err != nil || results[0].GetError().GetReason() != scribev1.Reason_REASON_UNKNOWN_OUTCOME || c.up.count() != 2 {
			t.Errorf("%v, %v after %d calls", results, err, c.up.count())
		}
	})
}

// Two frames of one sequence come in one request, and the upstream refuses the first for good: what it misses before the second can
// only come from whoever waits for both, so both are answered at once.
func TestRefusedFrameEndsItsSequence(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		c.up.replies(func(int, *call) reply {
			return reply{each: func(m string) error {
				if m == "a/seq1" {
					return rpc.Errorf(scribev1.Reason_REASON_INVALID, "injected")
				}
				return rpc.Errorf(scribev1.Reason_REASON_OUT_OF_SEQUENCE, "injected")
			}}
		})
		results, err := c.write(committed, "a/seq1", "a/seq2")
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []scribev1.Reason{scribev1.Reason_REASON_INVALID, scribev1.Reason_REASON_OUT_OF_SEQUENCE} {
			if got := results[i].GetError().GetReason(); got != want {
				t.Errorf("frame %d: %v, want %v", i, got, want)
			}
		}
		if n := c.up.count(); n != 1 {
			t.Errorf("%d requests, want 1", n)
		}
	})
}
