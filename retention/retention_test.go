package retention

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"scribe/internal/format/record"
	"scribe/storage/blob/memory"
	"scribe/storage/metalog"
)

func TestValidateReportsEveryViolation(t *testing.T) {
	_, err := New(Config{Grace: -1, DeleteBytes: -1}, Deps{Owner: strings.Repeat("x", 256)})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{
		"Grace", "Interval", "BoundaryStep", "SweepInterval", "LeaseTTL", "StoreRequests", "LogRequests", "DeleteBytes", "Workers", "MaxDoomed",
		"Deps.Log", "Deps.Blobs", "Deps.Control", "Deps.Categories", "Deps.Owner",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not mentioned in: %v", part, err)
		}
	}
	c := DefaultConfig()
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

// fakeLease is a metadata engine that has no more than the lease shard; it refuses appends while it is away.
type fakeLease struct {
	Log
	mu struct {
		sync.Mutex
		state metalog.State
		last  []byte
		away  bool
	}
}

func (f *fakeLease) leave(away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.away = away
}

func (f *fakeLease) records() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return int(f.mu.state.NextLSN - 1)
}

func (f *fakeLease) damage() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.last = []byte("{")
}

var errAway = errors.New("away")

func (f *fakeLease) Tail(context.Context, []record.ShardID) ([]metalog.State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.away {
		return nil, errAway
	}
	return []metalog.State{f.mu.state}, nil
}

func (f *fakeLease) Open(context.Context, string, []record.ShardID) ([]metalog.State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.state.Epoch++
	return []metalog.State{f.mu.state}, nil
}

func (f *fakeLease) Append(_ context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.mu.away:
		return nil, errAway
	case a.Shards[0].Epoch != f.mu.state.Epoch:
		return nil, &metalog.RefusedError{Refusals: []metalog.Refusal{{Err: metalog.ErrFenced}}}
	}
	f.mu.last = a.Shards[0].Records[0]
	f.mu.state.NextLSN++
	return []metalog.Appended{{FirstLSN: f.mu.state.NextLSN - 1}}, nil
}

func (f *fakeLease) Trim(context.Context, record.ShardID, record.LSN) error { return nil }

func (f *fakeLease) Read(context.Context, record.ShardID, record.LSN, int, int) ([]metalog.Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return []metalog.Entry{{Data: f.mu.last}}, nil
}

// TestTerm: a second collector waits for the length of a lease, the first one is fenced, gives up before that when it can't renew, and
// who ends in an orderly way is not waited for.
func TestTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &fakeLease{}
		log.mu.state = metalog.State{FirstLSN: 1, NextLSN: 1}
		cell := newCell()
		collector := func(owner string) *Keeper {
			t.Helper()
			c, err := prepare(DefaultConfig(), Deps{Log: log, Blobs: memory.New(), Control: cell, Categories: cell, Owner: owner})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		lead := func(c *Keeper) (*leaseTerm, time.Duration) {
			t.Helper()
			began := time.Now()
			tm := c.awaitLease(t.Context())
			if tm == nil {
				t.Fatal("nobody leads")
			}
			return tm, time.Since(began)
		}
		one, waited := lead(collector("one"))
		if waited != 0 {
			t.Errorf("the first one waited for %v", waited)
		}
		lost := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { lost <- one.renewLease(ctx) }()
		<-time.After(time.Minute)
		if n := log.records(); n < 11 || n > 14 {
			t.Errorf("%d records in a minute", n)
		}
		cancel() // as if it were paused
		if err := <-lost; err != nil {
			t.Error(err)
		}
		two, waited := lead(collector("two"))
		if waited < 15*time.Second || waited > 20*time.Second {
			t.Errorf("the second one waited for %v", waited)
		}
		if err := one.saveState(t.Context()); !errors.Is(err, errLost) {
			t.Errorf("the first one saved its state: %v", err)
		}
		if two.cellName() != one.cellName() {
			t.Error("the state was not taken over")
		}
		go func() { lost <- two.renewLease(t.Context()) }()
		<-time.After(time.Minute)
		log.leave(true)
		began := time.Now()
		if err := <-lost; !errors.Is(err, errLost) || time.Since(began) > 15*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		log.leave(false)
		if err := two.releaseLease(t.Context()); err != nil {
			t.Error(err)
		}
		three, waited := lead(collector("three"))
		if waited != 0 {
			t.Errorf("the third one waited for %v", waited)
		}
		// Damage costs the state, not the role.
		log.damage()
		<-time.After(time.Second)
		four, _ := lead(collector("four"))
		if four.cellName() == three.cellName() {
			t.Error("a damaged state was read")
		}
		// Until ctx ends, nobody else.
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if tm := collector("five").awaitLease(ctx); tm != nil {
			t.Errorf("%v", tm)
		}
	})
}

// silentLease is an engine that does not answer appends.
type silentLease struct{ fakeLease }

func (*silentLease) Append(ctx context.Context, _ *metalog.Append) ([]metalog.Appended, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestReleaseWithoutAnswer: a keeper that can't release its lease ends soon all the same, since the process has more to do.
func TestReleaseWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cell, log := newCell(), &mutedLease{}
		c, err := New(DefaultConfig(), Deps{Log: log, Blobs: memory.New(), Control: cell, Categories: cell, Owner: "one"})
		if err != nil {
			t.Fatal(err)
		}
		for !c.Leads() {
			<-time.After(time.Second)
		}
		synctest.Wait()
		log.muted.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		began := time.Now()
		if err := c.Close(ctx); err != nil || time.Since(began) > 3*time.Second {
			t.Errorf("closed after %v: %v", time.Since(began), err)
		}
	})
}

// mutedLease is an engine that stops to answer appends.
type mutedLease struct {
	fakeLease
	muted atomic.Bool
}

func (m *mutedLease) AdvanceBoundary(context.Context, int64) (int64, error) { return 0, errAway }

func (m *mutedLease) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	if !m.muted.Load() {
		return m.fakeLease.Append(ctx, a)
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestRenewalBesideAnotherWrite: a lease is given up in time while another write of the state waits for the engine.
func TestRenewalBesideAnotherWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cell := newCell()
		c, err := prepare(DefaultConfig(), Deps{Log: &silentLease{}, Blobs: memory.New(), Control: cell, Categories: cell, Owner: "one"})
		if err != nil {
			t.Fatal(err)
		}
		tm := &leaseTerm{c: c, epoch: 1, saving: semaphore.NewWeighted(1)}
		tm.mu.state = &keeperState{Owner: "one"}
		ctx, cancel := context.WithCancel(t.Context())
		other := make(chan error, 1)
		go func() { other <- tm.saveState(ctx) }()
		synctest.Wait()
		began := time.Now()
		if err := tm.renewLease(t.Context()); !errors.Is(err, errLost) || time.Since(began) >= c.cfg.LeaseTTL {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		cancel()
		if err := <-other; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestHalted: a keeper that has no claim says so, and goes on by itself when there is none in its way any more.
func TestHalted(t *testing.T) {
	w := testWorld(t)
	if err := w.blobs.Put(w.ctx, storeClaim{"another", 5}.key(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	r := prometheus.NewRegistry()
	d := w.deps("one")
	d.Registerer = r
	c, err := New(w.cfg, d)
	if err != nil {
		t.Fatal(err)
	}
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for c.Halted() == nil {
		<-ticker.C
	}
	if got := gauges(t, r)["scribe_retention_halted"]; got != 1 {
		t.Errorf("scribe_retention_halted is %v", got)
	}
	if !c.Leads() {
		t.Error("it does not lead")
	}
	if err := c.Close(w.ctx); err != nil {
		t.Error(err)
	}
	if err := c.Close(w.ctx); err != nil {
		t.Error(err)
	}
	if left := gauges(t, r); len(left) != 0 {
		t.Errorf("metrics are left: %v", left)
	}
}

// gauges are the values of gauges by name.
func gauges(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		out[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	return out
}
