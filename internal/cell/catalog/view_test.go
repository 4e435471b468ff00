package catalog

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"scribe/internal/cell/watch"
	scribev1 "scribe/proto/scribe/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func names(v *View) string {
	var out []string
	for c := range v.All() {
		out = append(out, c.GetName())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		p.put("a", 1, false)
		v := newView(t, p, nil)
		wantID(t, v, "a", 0)
		select {
		case <-v.Ready():
			t.Error("ready before Run")
		default:
		}
		closeView := runView(t, v)
		<-v.Ready()
		wantID(t, v, "a", 1)
		if !v.InSync() || v.Len() != 1 || v.Revision() != 1 || v.String() != "catalog of 1 categories at revision 1" {
			t.Errorf("in sync %v, %v", v.InSync(), v)
		}
		p.put("b", 2, true)
		p.put("a", 1, true)
		synctest.Wait()
		wantID(t, v, "b", 2)
		if c, _ := v.Lookup("a"); c.GetRevision() != 3 {
			t.Errorf("a is %v, want revision 3", c)
		}
		p.remove("a", true)
		synctest.Wait()
		wantID(t, v, "a", 0)
		if _, ok := v.ByID(1); ok {
			t.Error("id 1 is there after the deletion")
		}
		// Created again between two messages: the name has another id at once.
		p.put("b", 3, true)
		synctest.Wait()
		wantID(t, v, "b", 3)
		if _, ok := v.ByID(2); ok || v.Len() != 1 {
			t.Error("id 2 is there after another took its name")
		}
		// An older state does not replace a newer one, and what is no category is left out.
		p.tell(&scribev1.WatchCategoriesResponse{Updated: []*scribev1.Category{{Name: "b", Id: 9, Revision: 1}, {Name: "/"}, {Name: "x"}, nil}, Revision: 9})
		synctest.Wait()
		wantID(t, v, "b", 3)
		wantID(t, v, "x", 0)
		closeView()
		closeView = func() {
			if err := v.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		closeView()
		wantID(t, v, "b", 3)
		if v.InSync() {
			t.Error("in sync after Close")
		}
		if err := v.Run(t.Context()); !errors.Is(err, watch.ErrRunning) {
			t.Errorf("Run again: %v", err)
		}
	})
}

// TestReset: a set that arrives in parts is taken up as a whole, and what was known serves until then.
func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		p.put("old", 1, false)
		p.put("kept", 2, false)
		v := newView(t, p, nil)
		defer runView(t, v)()
		category := func(name string, id uint32) []*scribev1.Category {
			return []*scribev1.Category{{Name: name, Id: id, Revision: 10 + uint64(id)}}
		}
		p.tell(&scribev1.WatchCategoriesResponse{Reset_: true, Updated: category("lost", 7)})
		p.tell(&scribev1.WatchCategoriesResponse{Reset_: true, Updated: category("kept", 2)})
		p.tell(&scribev1.WatchCategoriesResponse{Updated: category("gone", 4)})
		p.tell(&scribev1.WatchCategoriesResponse{Updated: category("new", 3), Deleted: []string{"gone"}})
		synctest.Wait()
		if got := names(v); got != "kept old" {
			t.Fatalf("before the set is complete there are %q", got)
		}
		p.tell(&scribev1.WatchCategoriesResponse{Synced: true, Revision: 20})
		synctest.Wait()
		if got := names(v); got != "kept new" || v.Revision() != 20 {
			t.Fatalf("after it there are %q at revision %d", got, v.Revision())
		}
	})
}

// TestOutage: the last state serves while the control plane is unavailable, attempts to come back get rarer, and the view catches up.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		p.put("a", 1, false)
		v := newView(t, p, nil)
		defer runView(t, v)()
		p.set(func(p *plane) { p.mu.down = true })
		synctest.Wait()
		if v.InSync() {
			t.Error("in sync without a control plane")
		}
		p.remove("a", false)
		p.put("b", 2, false)
		advance(time.Minute)
		wantID(t, v, "a", 1)
		if n := p.begun(); n < 12+5 || n > 40 { // 5 s at most, half of it at least
			t.Errorf("%d attempts in a minute", n)
		}
		p.set(func(p *plane) { p.mu.down = false })
		advance(5 * time.Second)
		wantID(t, v, "a", 0)
		wantID(t, v, "b", 2)
		if !v.InSync() {
			t.Error("not in sync after the outage")
		}
	})
}

// TestSilence: a watch that says nothing at all is given up; heartbeats keep one that has nothing to say.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		v := newView(t, p, nil)
		defer runView(t, v)()
		advance(time.Minute)
		if n := p.begun(); n != 1 {
			t.Fatalf("%d watches begun while heartbeats came", n)
		}
		p.set(func(p *plane) { p.mu.down = true })
		p.set(func(p *plane) { p.mu.down, p.mu.silent = false, true })
		advance(time.Second)
		begun := p.begun()
		advance(16 * time.Second)
		if n := p.begun(); n != begun+1 {
			t.Errorf("%d watches begun in 16 s of silence", n-begun)
		}
		p.set(func(p *plane) { p.mu.silent = false })
		p.put("a", 1, false)
		advance(16 * time.Second)
		wantID(t, v, "a", 1)
	})
}

func TestCloseWithoutRun(t *testing.T) {
	v := newView(t, newPlane(), nil)
	if err := v.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := v.Run(t.Context()); err != nil {
		t.Errorf("Run after Close: %v", err)
	}
	if _, err := v.Resolve(t.Context(), "a"); err == nil {
		t.Error("Resolve after Close asks")
	}
}

func TestConfig(t *testing.T) {
	if err := DefaultViewConfig().Validate(); err != nil {
		t.Error(err)
	}
	err := ViewConfig{Config: watch.Config{MaxBackoff: -1}}.Validate()
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) || len(joined.Unwrap()) != 9 {
		t.Errorf("%v does not report every field", err)
	}
	if _, err := New(DefaultViewConfig(), ViewDeps{}); err == nil {
		t.Error("New takes no source")
	}
	registry := prometheus.NewRegistry()
	if _, err := New(DefaultViewConfig(), ViewDeps{Source: newPlane(), Registerer: registry}); err != nil {
		t.Error(err)
	}
	if families, err := registry.Gather(); err != nil || len(families) != 6 {
		t.Errorf("%d families of metrics, %v", len(families), err)
	}
	if _, err := New(DefaultViewConfig(), ViewDeps{Source: newPlane(), Registerer: registry}); err == nil {
		t.Error("two views share one registry")
	}
}

// TestRunEndsWithContext: Run needs no Close to end.
func TestRunEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		v := newView(t, newPlane(), nil)
		done := make(chan error, 1)
		go func() { done <- v.Run(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
