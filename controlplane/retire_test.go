package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// fakeLogs is a metadata engine, as far as a control plane knows one.
type fakeLogs struct {
	mu      sync.Mutex
	retired map[uint32]int
	calls   int
	times   []time.Time
	// fail, when set, says why a category can't be retired.
	fail func(id uint32) error
}

func newLogs() *fakeLogs { return &fakeLogs{retired: map[uint32]int{}} }

var errAway = errors.New("the engine is away")

func (l *fakeLogs) Retire(_ context.Context, id uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	l.times = append(l.times, time.Now())
	if l.fail != nil {
		if err := l.fail(id); err != nil {
			return err
		}
	}
	l.retired[id]++
	return nil
}

// away makes the engine unavailable, or available again.
func (l *fakeLogs) away(yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = nil
	if yes {
		l.fail = func(uint32) error { return errAway }
	}
}

func (l *fakeLogs) has(ids ...uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !slices.ContainsFunc(ids, func(id uint32) bool { return l.retired[id] == 0 })
}

func (l *fakeLogs) attempts() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

func withLogs(l *fakeLogs) func(*Config, *Deps) {
	return func(_ *Config, d *Deps) { d.Retirer = l }
}

func remove(t *testing.T, c *ControlPlane, name string) {
	t.Helper()
	if _, err := c.DeleteCategory(t.Context(), &scribev1.DeleteCategoryRequest{Name: name}); err != nil {
		t.Fatal(err)
	}
}

// createA creates the category "a", or says why not.
func createA(t *testing.T, c *ControlPlane) (*scribev1.Category, error) {
	t.Helper()
	resp, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "a"}, IfNotExists: true})
	return resp.GetCategory(), err
}

// retiring returns the names of the entries that are pending in a store.
func retiring(t *testing.T, store kv.Store) (names []string) {
	t.Helper()
	page, err := store.Range(t.Context(), kv.KeyRange{Prefix: retiringPrefix})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page.Entries {
		cat, err := decodeDeleted(e.Key, e.Value)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, cat.GetName())
	}
	return names
}

func metric(t *testing.T, r *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == name })
	if at < 0 {
		t.Fatalf("there is no metric %s", name)
	}
	m := families[at].GetMetric()[0]
	return m.GetGauge().GetValue() + m.GetCounter().GetValue()
}

// TestRetire: what is deleted is retired at once, and what is not deleted is not.
func TestRetire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, logs, registry := newStore(t), newLogs(), prometheus.NewRegistry()
		c := start(t, store, func(_ *Config, d *Deps) { d.Retirer, d.Registerer = logs, registry })
		a, b := create(t, c, "a"), create(t, c, "b")
		synctest.Wait()
		begin := time.Now()
		remove(t, c, "a")
		synctest.Wait()
		if !logs.has(a.GetId()) || logs.has(b.GetId()) || !time.Now().Equal(begin) || len(retiring(t, store)) > 0 {
			t.Errorf("retired %v after %v, %v is pending", logs.retired, time.Since(begin), retiring(t, store))
		}
		if again := create(t, c, "a"); again.GetId() == a.GetId() {
			t.Errorf("created again as %v", again)
		}
		for name, want := range map[string]float64{"retirements_pending": 0, "retirements_total": 1, "retirement_failures_total": 0} {
			if got := metric(t, registry, "scribe_controlplane_"+name); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		// The second of the name is another entry.
		remove(t, c, "a")
		synctest.Wait()
		if !logs.has(1, 3) || len(logs.retired) != 2 {
			t.Errorf("retired %v", logs.retired)
		}
	})
}

// TestRetireAgain: an unavailable engine is asked again, soon and then less and less often, until it succeeds.
func TestRetireAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, logs, registry := newStore(t), newLogs(), prometheus.NewRegistry()
		c := start(t, store, func(_ *Config, d *Deps) { d.Retirer, d.Registerer = logs, registry })
		logs.away(true)
		create(t, c, "a")
		remove(t, c, "a")
		advance(10 * time.Minute)
		if n := logs.attempts(); n < 25 || n > 80 {
			t.Errorf("%d attempts in 10 minutes", n)
		}
		if first := logs.times[1].Sub(logs.times[0]); first > minRetirePause {
			t.Errorf("the second attempt came %v after the first", first)
		}
		for i := range logs.times[1:] {
			if gap := logs.times[i+1].Sub(logs.times[i]); gap > maxRetirePause || (i > 12 && gap < maxRetirePause/2) {
				t.Errorf("attempt %d came %v after the one before", i+2, gap)
			}
		}
		if p, f := metric(t, registry, "scribe_controlplane_retirements_pending"), metric(t, registry, "scribe_controlplane_retirement_failures_total"); p != 1 || f != float64(logs.attempts()) {
			t.Errorf("pending %v, failures %v", p, f)
		}
		logs.away(false)
		advance(maxRetirePause)
		if !logs.has(1) || metric(t, registry, "scribe_controlplane_retirements_pending") != 0 {
			t.Errorf("retired %v after the engine came back", logs.retired)
		}
		n := logs.attempts()
		advance(time.Hour)
		if logs.attempts() != n {
			t.Errorf("%d attempts after everything was retired", logs.attempts()-n)
		}
	})
}

// TestRetireMany: categories that can't be retired do not block others, and an unavailable engine is not asked for all.
func TestRetireMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 2000
		store, logs := newStore(t), newLogs()
		broken := func(id uint32) bool { return id <= 2*retirePage }
		logs.away(true)
		// Deleted while nobody retires: the names are in the order of the ids, so the first pages are of broken ones alone.
		first := start(t, store, nil)
		var ids []uint32
		for i := range n {
			name := fmt.Sprintf("c%05d", i)
			if id := create(t, first, name).GetId(); !broken(id) {
				ids = append(ids, id)
			}
			remove(t, first, name)
		}
		stop(t, first)
		c := start(t, store, withLogs(logs))
		synctest.Wait()
		if got := logs.attempts(); got != retirePage {
			t.Errorf("%d attempts at an engine that is away", got)
		}
		logs.mu.Lock()
		logs.fail = func(id uint32) error {
			if broken(id) {
				return errAway
			}
			return nil
		}
		logs.mu.Unlock()
		advance(2 * maxRetirePause)
		if !logs.has(ids...) || c.retireSchedule.countPending() != 2*retirePage || len(retiring(t, store)) != 2*retirePage {
			t.Errorf("%d retired, %d pending", len(logs.retired), c.retireSchedule.countPending())
		}
		// What is deleted now does not wait for them.
		begin, last := time.Now(), create(t, c, "z")
		remove(t, c, "z")
		synctest.Wait()
		if !logs.has(last.GetId()) || !time.Now().Equal(begin) {
			t.Error("a deleted category waits for others")
		}
		logs.away(false)
		advance(2 * maxRetirePause)
		if c.retireSchedule.countPending() != 0 || len(retiring(t, store)) > 0 {
			t.Errorf("%d pending", c.retireSchedule.countPending())
		}
	})
}

// TestRetireBurst: what is beyond the queue is found in the store.
func TestRetireBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, logs := newStore(t), newLogs()
		c := start(t, store, withLogs(logs))
		hold := make(chan struct{})
		logs.mu.Lock()
		logs.fail = func(uint32) error { <-hold; return nil }
		logs.mu.Unlock()
		const n = maxAsked + 500
		for i := range n {
			name := fmt.Sprintf("c%05d", i)
			create(t, c, name)
			remove(t, c, name)
		}
		close(hold)
		synctest.Wait()
		if len(logs.retired) != n || c.retireSchedule.countPending() != 0 {
			t.Errorf("%d of %d retired, %d pending", len(logs.retired), n, c.retireSchedule.countPending())
		}
	})
}

// TestCreateWhileRetiring: a name can't be used again before the logs of the one that was deleted have ended.
func TestCreateWhileRetiring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, logs := newStore(t), newLogs()
		c := start(t, store, withLogs(logs))
		logs.away(true)
		create(t, c, "a")
		remove(t, c, "a")
		begin := time.Now()
		_, err := createA(t, c)
		wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND, `create category "a"`, "id 1", "metalog")
		if waited := time.Since(begin); waited != c.cfg.CreatePatience || retryAfter(err) <= 0 {
			t.Errorf("refused after %v, to be tried again in %v", waited, retryAfter(err))
		}
		create(t, c, "b") // others are not concerned

		// The caller's patience may be shorter.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.CreateCategory(ctx, &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "a"}})
		wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND)

		// Who comes when the engine is back does not wait for the next pass, and many may wait.
		advance(5 * time.Minute)
		logs.away(false)
		begin = time.Now()
		var group sync.WaitGroup
		for range 20 {
			group.Go(func() {
				cat, err := createA(t, c)
				if err != nil || !logs.has(1) || cat.GetId() == 1 {
					t.Errorf("created %v, %v; retired: %v", cat, err, logs.has(1))
				}
			})
		}
		group.Wait()
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("waited %v", waited)
		}
	})
}

// TestCloseWhileCreating: a create that waits does not hold up the end.
func TestCloseWhileCreating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := newLogs()
		c := start(t, newStore(t), withLogs(logs))
		logs.away(true)
		create(t, c, "a")
		remove(t, c, "a")
		failed := make(chan error)
		go func() {
			_, err := createA(t, c)
			failed <- err
		}()
		synctest.Wait()
		begin := time.Now()
		go stop(t, c)
		wantReason(t, <-failed, scribev1.Reason_REASON_SHUTTING_DOWN)
		synctest.Wait()
		if !time.Now().Equal(begin) {
			t.Errorf("it took %v", time.Since(begin))
		}
	})
}

// TestNoRetirer: without an engine categories can be created, used and deleted, and what is to be retired stays for a control plane
// that has one.
func TestNoRetirer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, registry := newStore(t), prometheus.NewRegistry()
		c := start(t, store, func(_ *Config, d *Deps) { d.Registerer = registry })
		create(t, c, "a")
		remove(t, c, "a")
		begin := time.Now()
		_, err := createA(t, c)
		wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND)
		if !time.Now().Equal(begin) {
			t.Errorf("refused after %v", time.Since(begin))
		}
		if n := metric(t, registry, "scribe_controlplane_retirements_pending"); n != 1 {
			t.Errorf("%v pending", n)
		}
		if st, err := c.GetStatus(t.Context(), nil); err != nil || st.GetRetirementsPending() != 1 {
			t.Errorf("the status says %v, %v", st, err)
		}
		stop(t, c)
		registry = prometheus.NewRegistry()
		c = start(t, store, func(_ *Config, d *Deps) { d.Registerer = registry })
		synctest.Wait()
		if n := metric(t, registry, "scribe_controlplane_retirements_pending"); n != 1 {
			t.Errorf("%v pending after a restart", n)
		}
		stop(t, c)
		logs := newLogs()
		c = start(t, store, withLogs(logs))
		create(t, c, "a")
		if !logs.has(1) {
			t.Error("not retired by the one that could")
		}
	})
}

// TestRetireTakenOver: a control plane retires what another one on its store has deleted and left behind.
func TestRetireTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, dead, logs := newStore(t), newLogs(), newLogs()
		dead.away(true)
		first, second := start(t, store, withLogs(dead)), start(t, store, withLogs(logs))
		create(t, first, "a")
		remove(t, first, "a")
		advance(retireInterval)
		if !logs.has(1) || second.retireSchedule.countPending() != 0 {
			t.Errorf("retired %v", logs.retired)
		}
		advance(retireInterval)
		if n := first.retireSchedule.countPending(); n != 0 {
			t.Errorf("the first one takes %d for pending", n)
		}
	})
}

// TestRetireUnknownOutcomes: a deletion is followed by retirement although its answer was lost, and an entry that could not be
// removed leads to nothing worse than another attempt.
func TestRetireUnknownOutcomes(t *testing.T) {
	for _, applied := range []bool{false, true} {
		t.Run(fmt.Sprintf("applied=%v", applied), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				logs := newLogs()
				store := &faultyStore{Store: newStore(t), prefix: categoryPrefix, applied: applied}
				c := start(t, store, withLogs(logs))
				create(t, c, "a")
				store.failing.Store(true)
				_, err := c.DeleteCategory(t.Context(), &scribev1.DeleteCategoryRequest{Name: "a"})
				wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_OUTCOME)
				synctest.Wait()
				if logs.has(1) != applied {
					t.Errorf("retired %v", logs.retired)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				logs := newLogs()
				store := &faultyStore{Store: newStore(t), prefix: retiringPrefix, applied: applied}
				c := start(t, store, withLogs(logs))
				create(t, c, "a")
				logs.away(true)
				remove(t, c, "a")
				store.failing.Store(true)
				logs.away(false)
				advance(time.Minute)
				store.failing.Store(false)
				advance(maxRetirePause)
				if !logs.has(1) || len(retiring(t, store)) > 0 || c.retireSchedule.countPending() != 0 {
					t.Errorf("retired %v, pending %v and %d", logs.retired, retiring(t, store), c.retireSchedule.countPending())
				}
				create(t, c, "a")
			})
		})
	}
}

// TestRetireOverCrash: at no moment does a crash lose that a deleted category is to be retired, and no name comes back before it is.
func TestRetireOverCrash(t *testing.T) {
	fs := vfs.NewCrashableMem()
	store := openPebble(t, fs)
	logs := newLogs()
	logs.away(true)
	c := run(t, store, withLogs(logs))
	create(t, c, "a")
	create(t, c, "b")
	remove(t, c, "a")
	clone := fs.CrashClone(vfs.CrashCloneCfg{})
	stop(t, c)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}

	store = openPebble(t, clone)
	if names := retiring(t, store); !slices.Equal(names, []string{"a"}) {
		t.Fatalf("pending after the crash: %v", names)
	}
	// The one that comes back crashes between the engine's answer and the removal of the entry.
	cut := &faultyStore{Store: store, prefix: retiringPrefix}
	cut.failing.Store(true)
	logs.away(false)
	c = run(t, cut, func(cfg *Config, d *Deps) { cfg.CreatePatience, d.Retirer = 0, logs })
	_, err := createA(t, c)
	wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND)
	stop(t, c)
	if names := retiring(t, store); !slices.Equal(names, []string{"a"}) {
		t.Fatalf("pending: %v", names)
	}
	c = run(t, store, withLogs(logs))
	again := create(t, c, "a")
	if !logs.has(1) || logs.has(2) || again.GetId() < 3 {
		t.Errorf("retired %v, created as %v", logs.retired, again)
	}
	stop(t, c)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}
