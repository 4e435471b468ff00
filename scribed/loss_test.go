package scribed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/deadletter"
	"scribe/scribed/spool"
)

// damage changes a byte in the middle of each file of the spool that holds the text.
func (c *cell) damage(text string) (changed int) {
	c.t.Helper()
	names, err := c.fs.List("spool")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, name := range names {
		path := c.fs.PathJoin("spool", name)
		info, err := c.fs.Stat(path)
		if err != nil || info.IsDir() || info.Size() == 0 {
			continue
		}
		f, err := c.fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			c.t.Fatal(err)
		}
		b := make([]byte, info.Size())
		if _, err := f.ReadAt(b, 0); err != nil {
			c.t.Fatal(err)
		}
		if at := strings.Index(string(b), text); at >= 0 {
			if _, err := f.WriteAt([]byte{b[at] ^ 1}, int64(at)); err != nil {
				c.t.Fatal(err)
			}
			changed++
		}
		if err := f.Close(); err != nil {
			c.t.Fatal(err)
		}
	}
	return changed
}

// Damage in the spool costs the frames that it hit; they are counted, the others are delivered, and the account balances.
func TestDamage(t *testing.T) {
	for _, running := range []bool{true, false} {
		t.Run(fmt.Sprintf("running=%v", running), func(t *testing.T) {
			cfg := spooling(DefaultConfig())
			run(t, cfg, func(t *testing.T, c *cell) {
				c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
				padding := strings.Repeat("x", 1000)
				for i := range 200 { // a few segments
					c.mustWrite(spooled, fmt.Sprintf("a/%03d%s", i, padding), fmt.Sprintf("b/%03d%s", i, padding))
				}
				<-time.After(5 * time.Second)
				if !running {
					if err := c.Close(t.Context()); err != nil {
						t.Error(err)
					}
				}
				hit := 0
				for _, text := range []string{"017xxx", "018xxx", "100xxx"} {
					hit += c.damage(text)
				}
				if !running {
					c.start(cfg)
				}
				c.up.replies(nil)
				<-time.After(time.Minute)
				c.mustBalance()
				got := c.snapshot()
				if hit != 3 || c.onDisk() != (request.Amount{}) || got.dropped[spool.Damaged].Frames != 3 || got.forwarded.Frames != 397 {
					t.Errorf("%d were hit, counts %+v", hit, got)
				}
			})
		})
	}
}

// A disk that is full, or fails, is one that the writers of none do not notice while the upstream answers; those of spooled wait for it.
func TestDiskFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				return syscall.ENOSPC
			}
			return nil
		}))
		up := &upstream{stored: map[string][]string{}}
		cfg := spooling(DefaultConfig())
		s, err := New(cfg, Deps{Upstream: up, FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		c := &cell{Scribed: s, t: t, up: up}
		c.mustWrite(spooled, "a/0")
		broken.Store(true)
		for i := 1; i < 200; i++ { // more than the segment has left
			if _, err := c.write(spooled, fmt.Sprintf("a/%d%s", i, strings.Repeat("x", 1000))); err != nil && rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED {
				t.Errorf("write %d: %v", i, err)
			}
			c.mustWrite(none, fmt.Sprintf("b/%d", i))
			<-time.After(10 * time.Millisecond)
		}
		up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
		c.mustWrite(none, "b/last")
		<-time.After(10 * time.Second)
		c.mustBalance()
		if _, err := c.write(spooled, "a/refused"+strings.Repeat("x", 100_000)); rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED {
			t.Errorf("neither disk nor upstream: %v", err)
		}
		broken.Store(false)
		up.replies(nil)
		<-time.After(time.Minute)
		if got := len(up.stored["b"]); got != 200 {
			t.Errorf("%d frames of none arrived", got)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if got := c.unaccounted(); got != (request.Amount{}) {
			t.Errorf("counts %+v", got)
		}
	})
}

// TestDiskFailsAfterAttempt: a write that neither the disk took nor the upstream answered may be stored.
func TestDiskFailsAfterAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		ended := make(chan struct{})
		fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if broken.Load() && op.Kind == errorfs.OpFileWriteAt {
				<-ended
				return syscall.ENOSPC
			}
			return nil
		}))
		up := &upstream{stored: map[string][]string{}}
		s, err := New(spooling(DefaultConfig()), Deps{Upstream: up, FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		c := &cell{Scribed: s, t: t, up: up}
		c.mustWrite(spooled, "a/0")
		broken.Store(true)
		up.replies(func(int, *call) reply { return reply{lost: errors.New("no answer came")} })
		answer := make(chan error)
		go func() {
			_, err := c.write(spooled, "a/1")
			answer <- err
		}()
		for up.count() < 2 {
			<-time.After(10 * time.Millisecond)
		}
		synctest.Wait()
		close(ended)
		if err := <-answer; rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_OUTCOME {
			t.Errorf("the write that is stored ended with %v", err)
		}
		broken.Store(false)
		up.replies(nil)
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if got := c.unaccounted(); got != (request.Amount{}) {
			t.Errorf("counts %+v", got)
		}
	})
}

// A clean stop without room on the disk says what is lost, and keeps what the spool has.
func TestCloseSaysWhatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		mem := vfs.NewMem()
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileSync && op.Kind != errorfs.OpFileSyncData {
				return syscall.ENOSPC
			}
			return nil
		}))
		up := &upstream{stored: map[string][]string{}}
		up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
		cfg := spooling(DefaultConfig())
		s, err := New(cfg, Deps{Upstream: up, FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		c := &cell{Scribed: s, t: t, up: up, fs: mem}
		c.mustWrite(spooled, "a/kept")
		broken.Store(true)
		c.mustWrite(none, "a/lost", "b/lost")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = c.Close(ctx)
		if loss := new(LossError); !errors.As(err, &loss) || loss.Frames != 2 || loss.Cause == nil {
			t.Errorf("Close: %v", err)
		}
		if got := c.snapshot(); got.dropped["shutting_down"].Frames != 2 || c.onDisk().Frames != 1 || c.unaccounted() != (request.Amount{}) {
			t.Errorf("counts %+v", got)
		}
		up.replies(nil)
		c.start(cfg)
		if left := c.Drain(t.Context()); left != nil {
			t.Errorf("left: %+v", left)
		}
		c.mustHold("a", "kept")
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestSpoolMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	synctest.Test(t, func(t *testing.T) {
		cfg := spooling(DefaultConfig())
		cfg.DeadLetter = &deadletter.Config{Dir: "dead", MaxBytes: 1 << 20, MaxFiles: 10}
		fs := vfs.NewMem()
		for run := range 2 {
			up := &upstream{stored: map[string][]string{}}
			up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
			s, err := New(cfg, Deps{Upstream: up, FS: fs, Registerer: registry})
			if err != nil {
				t.Fatal(err)
			}
			c := &cell{Scribed: s, t: t, up: up}
			if run == 0 {
				c.mustWrite(spooled, "a/1", "b/1")
				c.mustWrite(none, "c/1")
			}
			<-time.After(10 * time.Second)
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
				"scribe_scribed_accepted_frames_total":  []float64{3, 0}[run],
				"scribe_scribed_recovered_frames_total": []float64{0, 3}[run],
				"scribe_scribed_buffered_frames/memory": 0,
				"scribe_scribed_buffered_frames/spool":  3,
				"scribe_scribed_buffered_categories":    3,
				"scribe_scribed_upstream_away":          1,
				"scribe_scribed_dead_letters_total":     0,
				"scribe_scribed_spool_limit_bytes":      4 << 20,
			} {
				if got[name] != want {
					t.Errorf("run %d: %s is %v, want %v", run, name, got[name], want)
				}
			}
			if got["scribe_scribed_oldest_seconds"] < 5 || got["scribe_scribed_spool_held_bytes"] <= 0 {
				t.Errorf("run %d: %v", run, got)
			}
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	if families, err := registry.Gather(); err != nil || len(families) != 0 {
		t.Errorf("%d metrics are left, %v", len(families), err)
	}
}

func TestRules(t *testing.T) {
	cfg := spooling(DefaultConfig())
	cfg.Rules = []Rule{{Pattern: "web.*", Strict: true}, {Pattern: "web.access", MaxBytes: 1}, {Pattern: "*", WhenFull: Block}}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	for category, want := range map[string]*Rule{"web.access": &cfg.Rules[0], "audit": &cfg.Rules[2]} {
		if got := cfg.ruleOf(category); got != want {
			t.Errorf("%s has %+v", category, got)
		}
	}
	for _, w := range []WhenFull{Reject, Block, DropOldest, DropNewest} {
		var back WhenFull
		text, err := w.MarshalText()
		if err == nil {
			err = back.UnmarshalText(text)
		}
		if err != nil || back != w {
			t.Errorf("%v: %v, %v", w, back, err)
		}
	}
	if err := new(WhenFull).UnmarshalText([]byte("whatever")); err == nil {
		t.Error("whatever is taken for a rule")
	}
	cfg.Rules = []Rule{{Pattern: "[", WhenFull: 9, MaxBytes: -1, MaxAge: 1}}
	cfg.Spool.SegmentBytes, cfg.SpillAfter, cfg.SpillAbove, cfg.MaxBlocked, cfg.BackfillBytesPerSecond = 1, 0, 2, -1, -1
	cfg.DeadLetter = &deadletter.Config{}
	err := cfg.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{
		"Rules[0].Pattern", "WhenFull", "MaxBytes", "MaxAge", "SegmentBytes", "SpillAfter", "SpillAbove", "MaxBlocked", "BackfillBytesPerSecond", "DeadLetter.Dir",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not mentioned in: %v", part, err)
		}
	}
}
