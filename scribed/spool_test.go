package scribed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"scribe/internal/format/record"
	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/deadletter"
)

func numbers(from, to int) (all []string) {
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

// mustHoldAll is mustHold without an order: backlog and live traffic are mixed.
func (c *cell) mustHoldAll(category string, want ...string) {
	c.t.Helper()
	c.up.mu.Lock()
	defer c.up.mu.Unlock()
	got := slices.Sorted(slices.Values(c.up.stored[category]))
	slices.Sort(want)
	if !slices.Equal(got, want) {
		c.t.Errorf("%s holds %d: %.300q, want %d: %.300q", category, len(got), got, len(want), want)
	}
}

// What was acknowledged with spooled is delivered after a loss of power, and once if nothing was forwarded before.
func TestSpooledSurvivesPowerLoss(t *testing.T) {
	cfg := spooling(DefaultConfig())
	run(t, cfg, func(t *testing.T, c *cell) {
		c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
		var group sync.WaitGroup
		for i := range 20 {
			group.Go(func() { c.mustWrite(spooled, fmt.Sprintf("a/%d", i), fmt.Sprintf("b/%d", i)) })
		}
		group.Wait()
		c.mustBalance()
		c.crash(0, nil)
		c.up.replies(nil)
		c.start(cfg)
		if r := c.snapshot().recovered; r.Frames != 40 || r.Messages != 40 {
			t.Errorf("recovered %+v", r)
		}
		<-time.After(time.Minute)
		c.mustHoldAll("a", numbers(0, 20)...)
		c.mustHoldAll("b", numbers(0, 20)...)
		c.mustBalance()
		if held := c.onDisk(); held != (request.Amount{}) {
			t.Errorf("%+v are left", held)
		}
	})
}

// Frames of none are on disk when they could not be sent for SpillAfter.
func TestNoneSpills(t *testing.T) {
	cfg := spooling(DefaultConfig())
	run(t, cfg, func(t *testing.T, c *cell) {
		c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
		start := time.Now()
		for i := range 20 {
			c.mustWrite(none, fmt.Sprintf("a/%d", i))
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("answered after %v", d)
		}
		c.mustBalance()
		if got := c.snapshot(); got.memory.Frames != 20 || c.onDisk().Frames != 0 {
			t.Errorf("in memory %+v, on disk %+v", got.memory, c.onDisk())
		}
		<-time.After(cfg.SpillAfter * 3 / 2)
		c.mustBalance()
		if got := c.snapshot(); got.memory.Frames != 0 || c.onDisk().Frames != 20 {
			t.Errorf("in memory %+v, on disk %+v", got.memory, c.onDisk())
		}
		<-time.After(cfg.Spool.SyncInterval * 2)
		c.crash(0, nil)
		c.start(cfg)
		<-time.After(time.Minute)
		c.mustHold("a")
		c.up.replies(nil)
		<-time.After(time.Minute)
		c.mustHoldAll("a", numbers(0, 20)...)
	})
}

// An outage of the upstream is one that writers do not notice, until the spool is full.
func TestOutageIsNotNoticed(t *testing.T) {
	cfg := spooling(DefaultConfig())
	cfg.MemoryBytes = 1 << 20
	run(t, cfg, func(t *testing.T, c *cell) {
		text := string(make([]byte, 1000))
		c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
		taken, failed := 0, 0
		for i := range 6000 { // 6 MB, the spool takes 4
			start := time.Now()
			_, err := c.write([]scribev1.AckLevel{none, spooled}[i%2], fmt.Sprintf("c%d/%d%s", i%4, i, text))
			if d := time.Since(start); d > time.Second/10 {
				t.Fatalf("write %d took %v", i, d)
			}
			if err == nil {
				taken++
			} else if failed++; rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED || rpc.Info(err).GetRetryAfter().AsDuration() <= 0 {
				t.Fatalf("write %d: %v", i, err)
			}
			<-time.After(time.Millisecond)
			if used := c.memoryUsed(); used > cfg.MemoryBytes {
				t.Fatalf("%d bytes of memory are in use", used)
			}
		}
		if taken < 2500 || failed == 0 {
			t.Errorf("%d writes were taken, %d refused", taken, failed)
		}
		c.mustBalance()
		c.up.replies(nil)
		<-time.After(10 * time.Minute)
		c.mustBalance()
		if got := c.snapshot(); got.forwarded.Frames != int64(taken) || c.onDisk().Frames != 0 || got.memory.Frames != 0 {
			t.Errorf("%d were taken, counts %+v", taken, got)
		}
	})
}

func (c *cell) memoryUsed() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.queue.used
}

// A strict category keeps its order through an outage, a stop and a start.
func TestStrictKeepsOrder(t *testing.T) {
	cfg := spooling(DefaultConfig())
	cfg.Rules = []Rule{{Pattern: "strict*", Strict: true}}
	run(t, cfg, func(t *testing.T, c *cell) {
		n := 0
		write := func(count int, ack scribev1.AckLevel, pause time.Duration) {
			for range count {
				c.mustWrite(ack, fmt.Sprintf("strict/%d", n))
				n++
				<-time.After(pause)
			}
		}
		write(10, none, time.Millisecond)
		c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
		write(10, none, 10*time.Millisecond)
		write(10, spooled, 10*time.Millisecond)
		write(10, none, time.Second)
		write(10, spooled, time.Second)
		write(10, none, 10*time.Millisecond)
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		c.start(cfg)
		write(10, none, 10*time.Millisecond)
		var group sync.WaitGroup
		group.Go(func() { c.mustWrite(committed, fmt.Sprintf("strict/%d", n)) }) // waits for the backlog
		synctest.Wait()
		n++
		c.up.replies(nil)
		group.Wait()
		write(10, none, 0)
		<-time.After(time.Minute)
		c.mustHold("strict", numbers(0, n)...)
		c.mustBalance()
	})
}

// Each rule for a category that is full, in memory only and with a spool.
func TestWhenFull(t *testing.T) {
	text := strings.Repeat("x", 50_000)
	for _, spools := range []bool{false, true} {
		for _, rule := range []WhenFull{Reject, Block, DropOldest, DropNewest} {
			t.Run(fmt.Sprintf("%v/spool=%v", rule, spools), func(t *testing.T) {
				cfg := DefaultConfig()
				cfg.MemoryBytes, cfg.HopMargin = 1<<20, 0
				if spools {
					cfg = spooling(cfg)
				}
				cfg.Rules = []Rule{{Pattern: "a", WhenFull: rule, MaxBytes: 600_000}}
				run(t, cfg, func(t *testing.T, c *cell) { whenFull(t, c, rule, text) })
			})
		}
	}
}

func whenFull(t *testing.T, c *cell, rule WhenFull, text string) {
	c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	accepted, refused := 0, 0
	for i := range 20 {
		start := time.Now()
		_, err := c.writeContext(ctx, none, fmt.Sprintf("a/%02d%s", i, text))
		switch waited := time.Since(start) > 0; {
		case err == nil:
			accepted++
		case rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED || rpc.Info(err).GetRetryAfter().AsDuration() <= 0:
			t.Errorf("refused with %v", err)
		case waited != (rule == Block && refused == 0): // the context is over for the later ones
			t.Errorf("refused after %v", time.Since(start))
			fallthrough
		default:
			refused++
		}
		<-time.After(time.Millisecond)
	}
	c.mustWrite(none, "b/x") // others are not concerned
	var want []string
	switch got := c.snapshot(); rule {
	case Reject, Block:
		if accepted < 10 || accepted > 11 || len(got.dropped) > 0 {
			t.Errorf("%d accepted, %d refused, %+v", accepted, refused, got)
		}
		want = numbers(0, accepted)
	case DropOldest:
		if n := int(got.dropped[fullReason].Frames); accepted != 20 || n < 9 || n > 10 {
			t.Errorf("%d accepted, %d dropped", accepted, n)
		}
		want = numbers(20-10-(10-int(got.dropped[fullReason].Frames)), 20)
	case DropNewest:
		n := int(got.dropped[fullReason].Frames)
		if accepted != 20 || n < 9 || n > 10 {
			t.Errorf("%d accepted, %d dropped", accepted, n)
		}
		want = numbers(0, 20-n)
		if _, err := c.write(spooled, "a/"+text); c.spool != nil && rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED {
			t.Errorf("spooled: %v", err)
		}
	}
	c.mustBalance()
	group := sync.WaitGroup{}
	if rule == Block { // room comes
		group.Go(func() { c.mustWrite(none, "a/99"+text) })
		<-time.After(time.Second)
		want = append(want, "99")
	}
	c.up.replies(nil)
	group.Wait()
	<-time.After(10 * time.Minute)
	c.mustBalance()
	c.up.mu.Lock()
	for i, m := range c.up.stored["a"] {
		c.up.stored["a"][i] = m[:2]
	}
	c.up.mu.Unlock()
	for i := range want {
		want[i] = fmt.Sprintf("%02s", want[i])
	}
	c.mustHoldAll("a", want...)
	c.mustHold("b", "x")
}

// Calls that wait for capacity are bounded, and end with the agent.
func TestBlockedCallsAreBounded(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MemoryBytes, cfg.MaxBlocked = 1<<20, 3
	cfg.Rules = []Rule{{Pattern: "*", WhenFull: Block}}
	run(t, cfg, func(t *testing.T, c *cell) {
		c.up.holds(make(chan struct{}))
		text := strings.Repeat("x", 50_000)
		var group sync.WaitGroup
		var mu sync.Mutex
		reasons := map[scribev1.Reason]int{}
		for range 25 {
			group.Go(func() {
				_, err := c.write(none, "a/"+text)
				mu.Lock()
				defer mu.Unlock()
				reasons[rpc.ReasonOf(err)]++
			})
		}
		<-time.After(time.Second)
		mu.Lock()
		if n := reasons[scribev1.Reason_REASON_OVERLOADED]; n < 5 || n > 8 {
			t.Errorf("%v", reasons)
		}
		mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Close(ctx); err == nil {
			t.Error("everything was forwarded")
		}
		group.Wait()
		if n := reasons[scribev1.Reason_REASON_SHUTTING_DOWN]; n != 3 {
			t.Errorf("%v", reasons)
		}
	})
}

// One noisy category does not take the whole spool.
func TestSpoolIsShared(t *testing.T) {
	cfg := spooling(DefaultConfig())
	cfg.MemoryBytes = 1 << 20
	run(t, cfg, func(t *testing.T, c *cell) {
		c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
		fill := func(category string) (n int) {
			for refused := 0; refused < 5; {
				if _, err := c.write(none, category+"/"+strings.Repeat("x", 2_000)); err != nil {
					refused++
				} else {
					n++
				}
				<-time.After(2 * time.Millisecond)
			}
			return n
		}
		first, second, third := fill("noisy"), fill("late"), fill("later")
		if first < 1000 || first > 1600 || second < 150 || third < 20 {
			t.Errorf("three categories got %d, %d and %d frames of 2 kB in 4 MiB", first, second, third)
		}
		c.up.replies(nil)
		<-time.After(10 * time.Minute)
		c.mustBalance()
		if got := c.snapshot(); got.forwarded.Frames != int64(first+second+third) {
			t.Errorf("counts %+v", got)
		}
	})
}

func TestMaxAge(t *testing.T) {
	cfg := spooling(DefaultConfig())
	cfg.Rules = []Rule{{Pattern: "a", MaxAge: time.Minute}}
	run(t, cfg, func(t *testing.T, c *cell) {
		c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
		c.mustWrite(none, "a/old", "b/old")
		c.mustWrite(spooled, "a/old2")
		<-time.After(50 * time.Second)
		c.mustWrite(none, "a/new")
		<-time.After(20 * time.Second)
		c.mustBalance()
		if n := c.snapshot().dropped[expiredReason].Frames; n != 2 {
			t.Errorf("%d frames have expired", n)
		}
		c.up.replies(nil)
		<-time.After(30 * time.Second)
		c.mustHold("a", "new")
		c.mustHold("b", "old")
	})
}

// Close keeps what it can't forward; Drain says what is left.
func TestCloseAndDrain(t *testing.T) {
	cfg := spooling(DefaultConfig())
	run(t, cfg, func(t *testing.T, c *cell) {
		c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
		c.mustWrite(none, "a/1", "b/1")
		c.mustWrite(spooled, "a/2")
		<-time.After(time.Second)
		c.mustWrite(none, "a/3")
		start := time.Now()
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("Close took %v although the upstream is away", d)
		}
		c.start(cfg)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		left := c.Drain(ctx)
		if len(left) != 2 || left[0].Category != "a" || left[0].Frames != 3 || left[0].Messages != 3 || left[1].Frames != 1 || left[1].Bytes == 0 {
			t.Errorf("left: %+v", left)
		}
		c.up.replies(nil)
		if left := c.Drain(t.Context()); left != nil {
			t.Errorf("left: %+v", left)
		}
		c.mustHoldAll("a", "1", "2", "3")
		c.mustHold("b", "1")
	})
}

// Frames that the upstream refuses for good are put aside with the reason.
func TestDeadLetters(t *testing.T) {
	for _, backlog := range []bool{false, true} {
		cfg := spooling(DefaultConfig())
		cfg.DeadLetter = &deadletter.Config{Dir: "dead", MaxBytes: 1 << 20, MaxFiles: 10}
		run(t, cfg, func(t *testing.T, c *cell) {
			refusing := func(_ int, x *call) reply {
				if slices.Contains(x.messages, "whole/bad") {
					return reply{whole: rpc.Errorf(scribev1.Reason_REASON_INVALID, "bad request")}
				}
				return reply{each: func(m string) error {
					if strings.HasPrefix(m, "nobody/") {
						return rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "unknown category")
					}
					return nil
				}}
			}
			if backlog {
				c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
			} else {
				c.up.replies(refusing)
			}
			c.mustWrite(none, "a/1", "nobody/1", "whole/1", "whole/bad", "whole/2", "whole/3")
			<-time.After(time.Minute)
			c.up.replies(refusing)
			<-time.After(time.Minute)
			c.mustBalance()
			c.mustHold("a", "1")
			c.mustHold("whole", "1", "2", "3")
			got := map[string]string{}
			names, err := c.fs.List("dead")
			for _, name := range names {
				in, oerr := c.fs.Open("dead/" + name)
				if oerr != nil {
					t.Fatal(oerr)
				}
				b, rerr := io.ReadAll(in)
				letters, lerr := deadletter.Decode(b, nil)
				err = errors.Join(err, rerr, lerr, in.Close())
				for _, l := range letters {
					got[l.Category+"/"+message(l.Frame)] = l.Reason + ": " + l.Message
				}
			}
			want := map[string]string{"nobody/1": "unknown_category: unknown category", "whole/bad": "invalid: bad request"}
			if err != nil || !maps.Equal(got, want) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

// A sync that fails is not acknowledged: the frames are written again, or their caller waits for the upstream.
func TestSyncFails(t *testing.T) {
	for _, forever := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var failures atomic.Int64
			mem := vfs.NewCrashableMem()
			fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) && failures.Load() > 0 {
					failures.Add(-1)
					return errors.New("injected")
				}
				return nil
			}))
			c := &cell{t: t, up: &upstream{stored: map[string][]string{}}, fs: mem}
			cfg := spooling(DefaultConfig())
			var err error
			if c.Scribed, err = New(cfg, Deps{Upstream: c.up, FS: fs}); err != nil {
				t.Fatal(err)
			}
			hold := make(chan struct{})
			c.up.holds(hold)
			failures.Store(1)
			if forever {
				failures.Store(1 << 30)
			}
			done := make(chan struct{})
			go func() {
				c.mustWrite(spooled, "a/1")
				close(done)
			}()
			<-time.After(5 * time.Second)
			synctest.Wait()
			select {
			case <-done:
				if forever {
					t.Error("acknowledged without a sync or a commit")
				}
				clone := mem.CrashClone(vfs.CrashCloneCfg{})
				close(hold)
				if err := c.Close(t.Context()); err != nil {
					t.Error(err)
				}
				up := &upstream{stored: map[string][]string{}}
				next := &cell{t: t, up: up, fs: clone}
				next.start(cfg)
				<-time.After(time.Minute)
				next.mustHold("a", "1")
				_ = next.Close(t.Context())
			default:
				if !forever {
					t.Error("not acknowledged")
				}
				close(hold) // the upstream takes it, which is as good
				<-done
				failures.Store(0)
				_ = c.Close(t.Context()) // the spool may be unusable
			}
			c.mustHold("a", "1")
		})
	}
}

// The backlog goes beside live traffic at the configured rate, live first.
func TestBackfillRate(t *testing.T) {
	cfg := spooling(DefaultConfig())
	cfg.BackfillBytesPerSecond = 20_000
	run(t, cfg, func(t *testing.T, c *cell) {
		c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
		for i := range 100 {
			c.mustWrite(spooled, fmt.Sprintf("a/%03d%s", i, strings.Repeat("x", 10_000)))
		}
		<-time.After(10 * time.Second)
		c.up.replies(nil)
		<-time.After(10 * time.Second)
		for i := range 20 {
			start := time.Now()
			c.mustWrite(committed, fmt.Sprintf("live/%d", i))
			if d := time.Since(start); d > 0 {
				t.Errorf("live traffic took %v", d)
			}
			<-time.After(time.Second)
		}
		left := c.onDisk().Bytes
		if sent := 1_007_100 - left; sent < 300_000 || sent > 800_000 {
			t.Errorf("%d bytes in 30 seconds", sent)
		}
		<-time.After(time.Minute)
		if c.onDisk().Bytes != 0 {
			t.Error("the backlog is not sent")
		}
	})
}

// An outage is two lines in the log, whatever is tried meanwhile.
func TestOutageIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		up := &upstream{stored: map[string][]string{}}
		s, err := New(DefaultConfig(), Deps{Upstream: up, Logger: slog.New(slog.NewTextHandler(&out, nil))})
		if err != nil {
			t.Fatal(err)
		}
		c := &cell{Scribed: s, t: t, up: up}
		up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
		for range 100 {
			c.mustWrite(none, "a/x")
			<-time.After(time.Second)
		}
		up.replies(nil)
		<-time.After(time.Minute)
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if text := out.String(); strings.Count(text, "\n") != 2 || strings.Count(text, "upstream unavailable") != 1 || strings.Count(text, "upstream available again") != 1 {
			t.Errorf("the log says\n%s", text)
		}
	})
}

// An upstream that fails gets one request at a time.
func TestRetriesAreFew(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
		for i := range 100 {
			for j := range 10 {
				c.mustWrite(none, fmt.Sprintf("c%d/%d", j, i))
			}
			<-time.After(100 * time.Millisecond)
		}
		if n := c.up.count(); n > 20 {
			t.Errorf("%d requests in 10 seconds", n)
		}
		// One that refuses each category by itself gets a request at a time with such, and a fifth more.
		from := c.up.count()
		c.up.replies(func(int, *call) reply {
			return reply{each: func(string) error { return rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "quota") }}
		})
		<-time.After(time.Minute)
		if n := c.up.count() - from; n > 10*60 {
			t.Errorf("%d requests in a minute", n)
		}
		c.up.replies(nil)
	})
}

// A request whose caller waits goes on as it came: nothing is copied.
func TestWaitingCallersBytesAreNotCopied(t *testing.T) {
	run(t, DefaultConfig(), func(t *testing.T, c *cell) {
		frames := slices.Concat(makeFrame(t, "a", "1", false), makeFrame(t, "b", "1", false), makeFrame(t, "a", "2", false))
		same := false
		c.up.replies(func(_ int, x *call) reply {
			same = &x.frames[0] == &frames[0]
			return reply{each: func(m string) error {
				if m == "b/1" {
					return rpc.Errorf(scribev1.Reason_REASON_SEALED, "injected")
				}
				return nil
			}}
		})
		resp, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: frames})
		if err != nil || !same {
			t.Errorf("copied: %v, %v", !same, err)
		}
		for i, r := range resp.GetResults() {
			if (r.GetError() != nil) != (i == 1) {
				t.Errorf("result %d: %v", i, r)
			}
		}
	})
}

// A producer that has lost a frame it was told is taken hears of it with its next one, instead of losing all that follow.
func TestGapIsTold(t *testing.T) {
	cfg := spooling(DefaultConfig())
	run(t, cfg, func(t *testing.T, c *cell) {
		c.up.once = map[string]bool{"a": true}
		write := func(epoch uint32, sequence uint64, ack scribev1.AckLevel) error {
			env := record.Envelope{Category: "a", Sequenced: true, Producer: uint64(epoch), Epoch: epoch, FirstSequence: sequence}
			resp, err := c.Write(t.Context(), &scribev1.WriteRequest{Frames: buildFrame(t, env, fmt.Sprint(sequence)), Ack: ack})
			return errors.Join(err, rpc.FromInfo(resp.GetResults()[0].GetError()))
		}
		if err := errors.Join(write(1, 0, none), write(1, 2, none), write(1, 3, spooled)); err != nil { // 1 is missing
			t.Fatal(err)
		}
		<-time.After(2 * time.Minute)
		if n := c.snapshot().dropped["out_of_sequence"].Frames; n != 2 {
			t.Errorf("%d frames were dropped", n)
		}
		if err := write(1, 4, none); err != nil { // it is tried again after a while
			t.Error(err)
		}
		<-time.After(50 * time.Second)
		resp, err := c.Write(t.Context(), &scribev1.WriteRequest{Ack: none, Frames: slices.Concat(
			buildFrame(t, record.Envelope{Category: "a", Sequenced: true, Producer: 1, Epoch: 1, FirstSequence: 5}, "5"),
			buildFrame(t, record.Envelope{Category: "a", Sequenced: true, Producer: 2, Epoch: 2}, "new"))})
		if err != nil || resp.GetResults()[0].GetError().GetReason() != scribev1.Reason_REASON_OUT_OF_SEQUENCE || resp.GetResults()[1].GetError() != nil {
			t.Errorf("%v, %v", resp, err)
		}
		<-time.After(time.Minute)
		c.mustHold("a", "0", "new")
	})
}
