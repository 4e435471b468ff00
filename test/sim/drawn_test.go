package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"scribe/cmd/scribe/app"
)

// TestDrawnPlans: the plans of some hundred seeds have everything that seeds are said to draw, as often as they are said to.
func TestDrawnPlans(t *testing.T) {
	const seeds = 600
	drawn := map[string]int{}
	for seed := range uint64(seeds) {
		p := drawPlan(seed, 10*time.Minute, "")
		note := func(ok bool, format string, args ...any) {
			if ok {
				drawn[fmt.Sprintf(format, args...)]++
			}
		}
		for _, role := range app.AllRoles {
			if n := len(p.with(role)); n < 2 && (len(p.nodes()) > 0 || role != app.ControlPlane && role != app.Metalog) {
				t.Fatalf("seed %d has %d processes with the role %s", seed, n, role)
			}
		}
		note(p.Far, "far")
		note(p.Clocks, "clocks")
		note(p.Tight, "tight")
		note(p.Busy, "busy")
		note(p.Quiet == swept, "rest")
		note(len(p.nodes()) > 0, "nodes")
		note(true, "%d processes", len(p.Processes))
		seen := map[string]bool{}
		for _, f := range p.Faults {
			seen["fault "+f.Kind] = true
		}
		for _, w := range p.Writers {
			seen[fmt.Sprintf("writer %s", w.Kind)] = true
			seen[fmt.Sprintf("writer %s, level %s", p.delivery(w.Category), w.Level)] = true
		}
		for _, r := range p.Readers {
			seen[fmt.Sprintf("window %v", r.Window)] = true
		}
		for _, c := range p.Categories {
			seen["order "+c.Order] = true
			seen["retention"] = seen["retention"] || c.Retention > 0
			seen["columns"] = seen["columns"] || c.Columns
			seen["keys"] = seen["keys"] || c.Keys != nil
			seen["quotas"] = seen["quotas"] || c.Quotas != nil
		}
		seen["groups"], seen["queries"], seen["key readers"] = len(p.Groups) > 0, len(p.Queries) > 0, len(p.KeyReaders) > 0
		for what, ok := range seen {
			note(ok, "%s", what)
		}
	}
	share := func(what string, least, most float64) {
		if part := float64(drawn[what]) / seeds; part < least || part > most {
			t.Errorf("%s: in %.2f of the seeds, want %.2f to %.2f", what, part, least, most)
		}
	}
	share("far", 0.4, 0.6)
	share("clocks", 0.4, 0.6)
	share("tight", 0.25, 0.42)
	share("busy", 0.1, 0.24)
	share("rest", 0.18, 0.32)
	share("nodes", 0.1, 0.24)
	share("keys", 0.4, 0.6)
	for _, kind := range slices.Concat(faultKinds, replicaKinds, []string{faultClock, faultLostDisk, faultLostControl, faultSchema, faultGrow, faultSplit}) {
		share("fault "+kind, 0.01, 1)
	}
	for _, what := range []string{
		"3 processes", "5 processes", "10 processes", "retention", "columns", "quotas", "groups", "queries", "key readers", "order none", "order bound", "order sequenced",
		"window -1ns", "window 0s", "window 10ms", "window 1s", "window 10s",
		"writer single", "writer batch", "writer stream", "writer atomic", "writer async", "writer restarting", "writer publish",
		"writer best_effort, level none", "writer best_effort, level spooled", "writer best_effort, level committed",
		"writer at_least_once, level none", "writer at_least_once, level spooled", "writer at_least_once, level committed",
		"writer exactly_once, level spooled", "writer exactly_once, level committed",
	} {
		share(what, 0.01, 1)
	}
	if t.Failed() {
		t.Log(drawn)
	}
}

// delivery returns the guarantee of a category.
func (p *plan) delivery(category string) string {
	i := slices.IndexFunc(p.Categories, func(c categoryPlan) bool { return c.Name == category })
	return p.Categories[i].Delivery
}
