package app

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"scribe/controlplane"
	"scribe/internal/base/config"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func startRoles(t *testing.T, change func(*Config)) *App {
	t.Helper()
	a, err := start(t, Direct, change)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestRetireElsewhere: a control plane without a metalog takes the one that joins the cell, or the one that it is told of; until there is
// one it works, but for the names of deleted categories.
func TestRetireElsewhere(t *testing.T) {
	for _, told := range []bool{false, true} {
		data := t.TempDir()
		control := startRoles(t, func(c *Config) { c.Data, c.Roles = data, []Role{ControlPlane} })
		create := func(a *App, patience time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err := a.parts.control.CreateCategory(ctx, &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "a"}})
			return err
		}
		if err := create(control, time.Minute); err != nil {
			t.Fatal(err)
		}
		if _, err := control.parts.control.DeleteCategory(t.Context(), &scribev1.DeleteCategoryRequest{Name: "a"}); err != nil {
			t.Fatal(err)
		}
		// Time enough for a busy machine to come to the question of what became of the logs; then it waits until the time is over.
		if err := create(control, time.Second); rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND {
			t.Errorf("without a metalog: %v", err)
		}
		home := control
		if told { // the process that has the metalog is a member of another cell
			home = startRoles(t, func(c *Config) { c.Roles = []Role{ControlPlane} })
		}
		metalog := startRoles(t, func(c *Config) { c.Roles, c.Control = []Role{Metalog}, home.URL() })
		if told {
			stopNow(t, control)
			control = startRoles(t, func(c *Config) { c.Data, c.Roles, c.Metalog = data, []Role{ControlPlane}, metalog.URL() })
		}
		if err := create(control, time.Minute); err != nil {
			t.Errorf("told %v: with a metalog: %v", told, err)
		}
		stopNow(t, metalog)
		stopNow(t, control)
		if told {
			stopNow(t, home)
		}
	}
}

// TestTwoMetalogs: none of two is taken.
func TestTwoMetalogs(t *testing.T) {
	control := startRoles(t, func(c *Config) { c.Roles = []Role{ControlPlane} })
	r := &lateMetalog{ready: make(chan struct{}), transport: control.transport}
	r.searchMembers(control.parts.control)
	var metalogs []*App
	for n := range 3 {
		if err := r.Retire(t.Context(), 1); (err == nil) != (n == 1) {
			t.Errorf("%d metalogs: %v", n, err)
		}
		if n < 2 {
			metalogs = append(metalogs, startRoles(t, func(c *Config) { c.Roles, c.Control = []Role{Metalog}, control.URL() }))
		}
	}
	for _, a := range metalogs {
		stopNow(t, a)
	}
	stopNow(t, control)
}

// TestFailedStartWhileRetiring: a control plane whose metalog never starts does not hold up the end.
func TestFailedStartWhileRetiring(t *testing.T) {
	data := t.TempDir()
	control := startRoles(t, func(c *Config) { c.Data, c.Roles = data, []Role{ControlPlane} })
	if _, err := control.parts.control.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := control.parts.control.DeleteCategory(t.Context(), &scribev1.DeleteCategoryRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	stopNow(t, control)
	if err := os.WriteFile(filepath.Join(data, "metalog"), nil, 0o600); err != nil { // where its folder would be
		t.Fatal(err)
	}
	begin := time.Now()
	if _, err := start(t, Direct, func(c *Config) { c.Data = data }); err == nil {
		t.Fatal("it started")
	}
	if took := time.Since(begin); took >= config.Defaults[controlplane.Config]().RetireTimeout { // which it would take, were an attempt waited for
		t.Errorf("it took %v", took)
	}
}
