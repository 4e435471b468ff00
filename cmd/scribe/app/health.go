package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"scribe/internal/base/metrics"
	"scribe/internal/base/units"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// condition is something that must hold for the process to be well. Whoever asks for the health evaluates it: it has no timer.
type condition struct {
	subject  string
	severity scribev1.Severity
	// check returns what is wrong; nil if it holds. It must not block.
	check func() error
	// since is when it was first seen not to hold; zero while it holds.
	since time.Time
}

// healthBook has the conditions of a process. Modules add theirs while the process starts.
type healthBook struct {
	mu struct {
		sync.Mutex
		conditions []*condition
	}
}

// watchCondition adds a condition.
func (a *App) watchCondition(subject string, severity scribev1.Severity, check func() error) {
	a.health.mu.Lock()
	defer a.health.mu.Unlock()
	a.health.mu.conditions = append(a.health.mu.conditions, &condition{subject: subject, severity: severity, check: check})
}

// listProblems returns what is wrong now, the worst first.
func (a *App) listProblems() []*scribev1.Problem {
	if !a.ready.Load() {
		return []*scribev1.Problem{{
			Severity: scribev1.Severity_SEVERITY_FAILING, Subject: "process", Text: "it is starting or stopping", Since: a.started.UnixMicro(),
		}}
	}
	var problems []*scribev1.Problem
	for _, fault := range a.readinessChecks {
		if err := fault(); err != nil {
			problems = append(problems, &scribev1.Problem{Severity: scribev1.Severity_SEVERITY_FAILING, Subject: "metadata", Text: err.Error(), Since: a.opts.Host.unixMicro()})
		}
	}
	now := a.opts.Host.Now()
	a.health.mu.Lock()
	defer a.health.mu.Unlock()
	for _, c := range a.health.mu.conditions {
		err := c.check()
		if err == nil {
			c.since = time.Time{}
			continue
		}
		if c.since.IsZero() {
			c.since = now
		}
		problems = append(problems, &scribev1.Problem{Severity: c.severity, Subject: c.subject, Text: err.Error(), Since: c.since.UnixMicro()})
	}
	slices.SortStableFunc(problems, func(a, b *scribev1.Problem) int { return int(b.GetSeverity()) - int(a.GetSeverity()) })
	return problems
}

// unreadyAfter is how long a role must be unable to work before the process counts as not ready: short trouble is what retries are for, and
// whoever takes processes out of service should not do so for it.
const unreadyAfter = 10 * time.Second

// tellsDetails reports whether the caller of ctx may read what the process says of itself: addresses, folders, counts of categories.
func (a *App) tellsDetails(ctx context.Context) bool {
	if a.enforcer != nil && !a.enforcer.MayMonitor(ctx) {
		return false
	}
	kind := principal.FromContext(ctx).Kind
	return !a.guard.enforced || kind == principal.Operator || kind == principal.Member
}

// serveReadyz says whether the process can work, and to those who may know it why not. Others learn which part is meant.
func (a *App) serveReadyz(w http.ResponseWriter, r *http.Request) {
	details := a.tellsDetails(r.Context())
	if !a.ready.Load() {
		http.Error(w, "not ready: the process is starting or stopping", http.StatusServiceUnavailable)
		return
	}
	for _, fault := range a.readinessChecks {
		if err := fault(); err != nil {
			text := err.Error()
			if !details {
				text = "not ready"
			}
			http.Error(w, text, http.StatusServiceUnavailable)
			return
		}
	}
	red := false
	var lines []string
	for _, p := range a.listProblems() {
		red = red || p.GetSeverity() == scribev1.Severity_SEVERITY_FAILING && a.opts.Host.unixMicro()-p.GetSince() >= unreadyAfter.Microseconds()
		line := fmt.Sprintf("%s: %s", scribev1.EnumName(p.GetSeverity()), p.GetSubject())
		if details {
			line += ": " + p.GetText()
		}
		lines = append(lines, line)
	}
	if red {
		http.Error(w, strings.Join(lines, "\n"), http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, strings.Join(append([]string{"ok"}, lines...), "\n")) // the prober may have closed the connection
}

// watchHealth adds the conditions of what the process has. It is the last module but those that let others in.
func (a *App) watchHealth(context.Context) error {
	const degraded, failing = scribev1.Severity_SEVERITY_DEGRADED, scribev1.Severity_SEVERITY_FAILING
	if view := a.parts.catalog; view != nil {
		a.watchCondition("control plane", degraded, func() error {
			if view.InSync() {
				return nil
			}
			return fmt.Errorf("%s does not answer: the process works with the %d categories that it knew last", a.controlURL(), view.Len())
		})
	}
	if p := a.parts.writeProxy; p != nil {
		a.watchCondition("batchers", failing, p.Err)
	}
	if s := a.parts.observedBlobs; s != nil {
		if a.cfg.Has(Batcher) {
			a.watchCondition("blob store", failing, s.puts.failure)
		}
		if a.cfg.Has(ReadProxy) {
			a.watchCondition("blob store", failing, s.reads.failure)
		}
	}
	if agent := a.parts.agent; agent != nil && !a.cfg.Has(WriteProxy) {
		severity := degraded
		if a.cfg.spoolDir() == "" {
			severity = failing
		}
		a.watchCondition("upstream", severity, func() error {
			if err := agent.Err(); err != nil {
				return fmt.Errorf("%s: %w", a.cfg.Upstream, err)
			}
			return nil
		})
	}
	folders := map[string]bool{}
	for _, folder := range a.cfg.Needs().Folders {
		if folders[folder.Value] {
			continue
		}
		folders[folder.Value] = true
		a.watchSpace(folder.Value)
	}
	return a.countProblems()
}

// countProblems shows in metrics what /readyz says in words, so that one alert covers every condition, also those to come.
func (a *App) countProblems() error {
	set := metrics.NewSet("scribe_process_")
	var problems metrics.Value
	values := set.Snapshot(func(send metrics.Send) {
		counts := map[scribev1.Severity]float64{}
		for _, p := range a.listProblems() {
			counts[p.GetSeverity()]++
		}
		for _, severity := range []scribev1.Severity{scribev1.Severity_SEVERITY_FAILING, scribev1.Severity_SEVERITY_DEGRADED} {
			send(problems, counts[severity], scribev1.EnumName(severity))
		}
	})
	problems = values.Gauge("problems", "What is wrong with the process now, as /readyz says, by severity: failing, where a role can't do its work, or degraded.", "severity")
	var told metrics.Value
	loads := set.Snapshot(func(send metrics.Send) {
		for _, l := range a.parts.loads {
			send(told, float64(l.told.Load()), scribev1.RoleNames([]scribev1.Role{l.role})[0])
		}
	})
	told = loads.Gauge("load", "How busy each role told the cell last that it is, 0 to 1000: those who call it choose by that.", "role")
	build := set.GaugeVec("build", "1, with the version of the program.", "version")
	build.WithLabelValues(a.opts.Version).Set(1)
	if err := set.Register(a.registry); err != nil {
		return err
	}
	a.onStop("process metrics", func(context.Context) error { set.Unregister(); return nil })
	return nil
}

// Free space below which a disk is nearly full, or too full to work.
const (
	nearlyFull, tooFull = 1 << 30, 64 << 20
	nearlyFullShare     = 0.05
)

// watchSpace adds the conditions of the free space of a folder. A file system that does not tell has enough.
func (a *App) watchSpace(dir string) {
	spaceBelow := func(limit uint64, share float64) func() error {
		return func() error {
			usage, err := a.opts.Host.FS.GetDiskUsage(dir)
			if err != nil || usage.TotalBytes == 0 || usage.AvailBytes >= limit && float64(usage.AvailBytes) >= share*float64(usage.TotalBytes) {
				return nil //nolint:nilerr // a disk that can't be asked is not full
			}
			return fmt.Errorf("%s has %s of %s free", dir, units.About(usage.AvailBytes), units.About(usage.TotalBytes))
		}
	}
	full := spaceBelow(tooFull, 0)
	a.watchCondition("disk", scribev1.Severity_SEVERITY_FAILING, full)
	a.watchCondition("disk", scribev1.Severity_SEVERITY_DEGRADED, func() error {
		if full() != nil {
			return nil //nolint:nilerr // it is said already
		}
		return spaceBelow(nearlyFull, nearlyFullShare)()
	})
}

// lastKnown returns what the process knows of its cell without the control plane.
func (a *App) lastKnown() (members []*scribev1.Member, categories int) {
	if !a.ready.Load() {
		return nil, 0
	}
	if a.parts.members != nil {
		members = a.parts.members.Members(scribev1.Role_ROLE_UNSPECIFIED)
	}
	if a.parts.catalog != nil {
		categories = a.parts.catalog.Len()
	}
	return members, categories
}

// watchLease adds the condition of the process's membership.
func (a *App) watchLease(lease leaseOfProcess) {
	a.watchCondition("lease", scribev1.Severity_SEVERITY_DEGRADED, func() error {
		last, ttl := lease.LastRenewal()
		switch late := time.Since(last); {
		case last.IsZero():
			return errors.New("the process is not a member of the cell yet: nobody sends it work")
		case late > ttl:
			return fmt.Errorf("the membership ended %v ago, as it could not be renewed: nobody sends the process new work", (late - ttl).Round(time.Second))
		case late > 2*ttl/3:
			return fmt.Errorf("the membership was renewed %v ago and lasts %v", late.Round(100*time.Millisecond), ttl)
		}
		return nil
	})
}

// leaseOfProcess is the part of a lease that tells how it is.
type leaseOfProcess interface {
	LastRenewal() (last time.Time, ttl time.Duration)
}

// processService describes the process to operators.
type processService struct{ a *App }

var _ rpc.ProcessService = processService{}

// GetHealth implements rpc.ProcessService.
func (s processService) GetHealth(context.Context, *scribev1.GetHealthRequest) (*scribev1.GetHealthResponse, error) {
	res := &scribev1.GetHealthResponse{
		Id: s.a.id, Roles: s.a.protoRoles(), Version: s.a.opts.Version, Now: s.a.opts.Host.unixMicro(), Problems: s.a.listProblems(),
		Open: s.a.cfg.isOpen(),
	}
	if s.a.ready.Load() && s.a.parts.replica != nil {
		res.Replica, res.Etcd = s.a.parts.replica()
	}
	return res, nil
}
