package main

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// countingProcess is a process that has counted more each time it is asked.
type countingProcess struct {
	rpc.ProcessService
	mu    sync.Mutex
	asked uint64
	// perAsk is what is added between two questions.
	perAsk []*scribev1.CategoryTraffic
	health *scribev1.GetHealthResponse
	prefix string
}

func (p *countingProcess) GetTraffic(_ context.Context, req *scribev1.GetTrafficRequest) (*scribev1.GetTrafficResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	p.prefix = req.GetPrefix()
	res := &scribev1.GetTrafficResponse{StartedAt: 1, Rest: &scribev1.CategoryTraffic{WrittenBytes: 50 * p.asked}}
	for _, c := range p.perAsk {
		res.Categories = append(res.Categories, &scribev1.CategoryTraffic{
			Category: c.GetCategory(), Owner: c.GetOwner(), WrittenBytes: p.asked * c.GetWrittenBytes(), WrittenMessages: p.asked * c.GetWrittenMessages(),
			FailedMessages: p.asked * c.GetFailedMessages(), OverQuotaMessages: p.asked * c.GetOverQuotaMessages(), ReadBytes: p.asked * c.GetReadBytes(),
			QuotaBytesPerSecond: c.GetQuotaBytesPerSecond(), Readers: c.GetReaders(), Lag: c.GetLag(),
		})
	}
	return res, nil
}

func (p *countingProcess) GetHealth(context.Context, *scribev1.GetHealthRequest) (*scribev1.GetHealthResponse, error) {
	if p.health == nil {
		return &scribev1.GetHealthResponse{Now: time.Now().UnixMicro()}, nil
	}
	return p.health, nil
}

// serveProcess serves a process, and returns its URL.
func serveProcess(t *testing.T, s rpc.Services) string {
	t.Helper()
	mux := http.NewServeMux()
	s.Register(mux)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// listedMembers is a control plane with some members.
type listedMembers struct {
	rpc.ControlService
	status *scribev1.GetStatusResponse
}

func (l *listedMembers) ListMembers(context.Context, *scribev1.ListMembersRequest) (*scribev1.ListMembersResponse, error) {
	return &scribev1.ListMembersResponse{Members: l.status.GetMembers()}, nil
}

func (l *listedMembers) GetStatus(context.Context, *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error) {
	return l.status, nil
}

// TestTop: what processes count is shown as rates, summed over them, in the order asked for.
func TestTop(t *testing.T) {
	writer := &countingProcess{perAsk: []*scribev1.CategoryTraffic{
		{Category: "web.access", Owner: "web", WrittenBytes: 1000, WrittenMessages: 10, QuotaBytesPerSecond: 1 << 40},
		{Category: "noisy", Owner: "shop", WrittenBytes: 100, FailedMessages: 70, OverQuotaMessages: 60, QuotaBytesPerSecond: 1},
	}}
	reader := &countingProcess{perAsk: []*scribev1.CategoryTraffic{{Category: "web.access", Owner: "web", ReadBytes: 500, Readers: 2, Lag: 2_500_000}}}
	cell := &listedMembers{status: &scribev1.GetStatusResponse{Members: []*scribev1.Member{
		{Id: "w", Roles: []scribev1.Role{scribev1.Role_ROLE_WRITEPROXY}, Url: serveProcess(t, rpc.Services{Process: writer})},
		{Id: "r", Roles: []scribev1.Role{scribev1.Role_ROLE_READPROXY, scribev1.Role_ROLE_READSTREAM}, Url: serveProcess(t, rpc.Services{Process: reader})},
		{Id: "b", Roles: []scribev1.Role{scribev1.Role_ROLE_BATCHER}, Url: "http://127.0.0.1:1"}, // is not asked
	}}}
	server := serveProcess(t, rpc.Services{Control: cell})
	show := func(args ...string) topView {
		t.Helper()
		out, err := runCommand(t, append([]string{"top", "-o", "json", "--interval", "100ms", "--server", server}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		var v topView
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		return v
	}
	names := func(v topView) (names []string) {
		for _, r := range v.Categories {
			names = append(names, r.Category+r.Owner)
		}
		return names
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > want/1e6 {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	v := show()
	if got := names(v); !slices.Equal(got, []string{"web.accessweb", "noisyshop"}) || v.Seconds < 0.1 {
		t.Fatalf("shown are %q over %v s", got, v.Seconds)
	}
	access, noisy := v.Categories[0], v.Categories[1]
	near("bytes in", access.WrittenBytes, 1000/v.Seconds)
	near("messages in", access.WrittenMessages, 10/v.Seconds)
	near("bytes out", access.ReadBytes, 500/v.Seconds)
	near("errors", noisy.Errors, 70/v.Seconds)
	near("over quota", noisy.OverQuota, 60/v.Seconds)
	near("use of the quota", noisy.QuotaUsed, 100/v.Seconds)
	near("the rest", v.Rest.WrittenBytes, 100/v.Seconds) // of two processes
	near("in all", v.Total.WrittenBytes, 1200/v.Seconds)
	if access.Readers != 2 || access.Lag != 2.5 || v.Total.Lag != 2.5 {
		t.Errorf("%d readers, lag %v; in all %v", access.Readers, access.Lag, v.Total.Lag)
	}
	if got := names(show("--sort", "errors")); !slices.Equal(got, []string{"noisyshop", "web.accessweb"}) {
		t.Errorf("by errors: %q", got)
	}
	if got := names(show("--by", "owner", "--sort", "name")); !slices.Equal(got, []string{"shop", "web"}) {
		t.Errorf("by owner: %q", got)
	}
	if got := names(show("--owner", "shop")); !slices.Equal(got, []string{"noisyshop"}) {
		t.Errorf("of one owner: %q", got)
	}
	if v := show("-n", "1"); len(v.Categories) != 1 || v.Rest.Errors == 0 {
		t.Errorf("one line: %q, and the rest %+v", names(v), v.Rest)
	}
	if show("--filter", "web."); writer.prefix != "web." {
		t.Errorf("asked for %q", writer.prefix)
	}
	out, err := runCommand(t, "top", "--interval", "100ms", "--server", server)
	if err != nil || !strings.Contains(out, "CATEGORY") || !strings.Contains(out, "web.access (web)") || !strings.Contains(out, "2.5s") || !strings.Contains(out, "(total)") {
		t.Errorf("%v:\n%s", err, out)
	}
	if _, err := runCommand(t, "top", "--sort", "whatever", "--server", server); exitCode(err) != exitUsage {
		t.Errorf("a wrong order: exit code %d, %v", exitCode(err), err)
	}
}

// TestTopSamples: a process that restarted counts from its beginning, one that appeared does not count yet, and one that does not answer is said.
func TestTopSamples(t *testing.T) {
	now := time.Now()
	process := func(started int64, bytes uint64) *scribev1.GetTrafficResponse {
		return &scribev1.GetTrafficResponse{StartedAt: started, Categories: []*scribev1.CategoryTraffic{{Category: "c", WrittenBytes: bytes}}}
	}
	before := &trafficSample{at: now, processes: map[string]*scribev1.GetTrafficResponse{"same": process(1, 1000), "restarted": process(1, 5000)}}
	after := &trafficSample{
		at:        now.Add(10 * time.Second),
		processes: map[string]*scribev1.GetTrafficResponse{"same": process(1, 1100), "restarted": process(2, 30), "new": process(3, 1<<40)},
		failed:    []error{usageError(context.DeadlineExceeded)},
	}
	f := topFlags{sort: "bytes", by: "category"}
	if v := f.compareSamples(before, after); len(v.Categories) != 1 || v.Categories[0].WrittenBytes != 13 || len(v.Failed) != 1 {
		t.Errorf("%+v", v)
	}
}

// healthyCell is a cell of which everything is in order: two processes with all roles.
func healthyCell() (*scribev1.GetStatusResponse, []memberHealth) {
	roles := []scribev1.Role{
		scribev1.Role_ROLE_CONTROLPLANE, scribev1.Role_ROLE_METALOG, scribev1.Role_ROLE_BATCHER, scribev1.Role_ROLE_WRITEPROXY,
		scribev1.Role_ROLE_READSTREAM, scribev1.Role_ROLE_READPROXY, scribev1.Role_ROLE_COLLECTOR,
	}
	var answers []memberHealth
	st := &scribev1.GetStatusResponse{}
	for _, id := range []string{"a", "b", "c"} {
		m := &scribev1.Member{Id: id, Roles: roles, Url: "http://" + id, Version: "v1"}
		st.Members = append(st.Members, m)
		answers = append(answers, memberHealth{member: m, health: &scribev1.GetHealthResponse{}, ahead: time.Minute})
	}
	return st, answers
}

// TestHealthOfCells: each thing that can be wrong is named with its severity, and a cell in order is healthy.
func TestHealthOfCells(t *testing.T) {
	if st, answers := healthyCell(); true {
		if v := judgeHealth("s", st, false, answers); v.Health != healthy || len(v.Reasons) > 0 {
			t.Errorf("a healthy cell: %+v", v)
		}
	}
	if st, answers := healthyCell(); true {
		answers[0].health.Open, answers[2].health.Open = true, true
		if v := judgeHealth("s", st, false, answers); v.Health != healthy || !strings.Contains(v.healthText(), "insecure    a, c: everybody") {
			t.Errorf("a cell open to everybody: %s", v.healthText())
		}
	}
	without := func(answers []memberHealth, role scribev1.Role) {
		for i := range answers {
			answers[i].member.Roles = slices.DeleteFunc(slices.Clone(answers[i].member.GetRoles()), func(r scribev1.Role) bool { return r == role })
		}
	}
	for _, c := range []struct {
		name  string
		spoil func(answers []memberHealth)
		want  string // health, then the first reason
	}{
		{"no batcher", func(a []memberHealth) { without(a, scribev1.Role_ROLE_BATCHER) }, "failing batcher: no live process has this role: nothing can be written"},
		{"no read proxy", func(a []memberHealth) { without(a, scribev1.Role_ROLE_READPROXY) }, "failing readproxy: no live process has this role: nothing can be read"},
		{"no retention", func(a []memberHealth) { without(a, scribev1.Role_ROLE_COLLECTOR) }, "degraded retention: no live process"},
		{"one is silent", func(a []memberHealth) { a[1].health, a[1].err = nil, context.DeadlineExceeded }, "degraded b: does not answer at http://b"},
		{"all are silent", func(a []memberHealth) {
			for i := range a {
				a[i].health, a[i].err = nil, context.DeadlineExceeded
			}
		}, "failing a: does not answer at http://a"},
		{"a store fails", func(a []memberHealth) {
			a[0].health.Problems = []*scribev1.Problem{
				{Severity: scribev1.Severity_SEVERITY_DEGRADED, Subject: "disk", Text: "nearly full"},
				{Severity: scribev1.Severity_SEVERITY_FAILING, Subject: "blob store", Text: "puts have failed"},
			}
		}, "failing a: blob store: puts have failed"},
		{"versions", func(a []memberHealth) { a[2].member.Version = "v2" }, "degraded versions: processes have different ones: v1 (a, b); v2 (c)"},
		{"clock ahead", func(a []memberHealth) { a[0].ahead += 4 * time.Second }, "degraded a: its clock is 4s ahead of the others'"},
		{"a reader asks", func(a []memberHealth) { a[1].health, a[1].hidden = nil, true }, "unknown processes: how they are is for operators"},
		{"clock behind", func(a []memberHealth) { a[0].ahead -= 1500 * time.Millisecond }, "degraded a: its clock is 1.5s behind the others'"},
	} {
		st, answers := healthyCell()
		c.spoil(answers)
		v := judgeHealth("s", st, false, answers)
		if len(v.Reasons) == 0 {
			t.Errorf("%s: nothing is said", c.name)
			continue
		}
		if got := v.Health + " " + v.Reasons[0].Subject + ": " + v.Reasons[0].Text; !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	st, answers := healthyCell()
	st.Members, st.KnownMembers = nil, st.GetMembers()
	if v := judgeHealth("http://s", st, true, answers); v.Health != degraded || !strings.Contains(v.healthText(), "degraded  control plane: http://s can't reach it") {
		t.Errorf("without a control plane: %s", v.healthText())
	}
}

// TestStatusHealth: the status begins with the health and its reasons, as text and as JSON; what was known last is shown while the control plane is
// away, with the exit code that says so.
func TestStatusHealth(t *testing.T) {
	sick := &countingProcess{health: &scribev1.GetHealthResponse{Now: time.Now().UnixMicro(), Problems: []*scribev1.Problem{
		{Severity: scribev1.Severity_SEVERITY_FAILING, Subject: "blob store", Text: "puts have\nfailed"},
	}}}
	st, _ := healthyCell()
	st.Roles, st.Members = []scribev1.Role{scribev1.Role_ROLE_CONTROLPLANE}, st.GetMembers()[:1]
	st.Members[0].Url = serveProcess(t, rpc.Services{Process: sick})
	cell := &listedMembers{status: st}
	server := serveProcess(t, rpc.Services{Control: cell})
	out, err := runCommand(t, "status", "--server", server)
	if err != nil || !strings.HasPrefix(out, "health      failing\n  failing   a: blob store: puts have failed\nserver      "+server) {
		t.Errorf("%v:\n%s", err, out)
	}
	if _, err := runCommand(t, "status", "--check", "--server", server); exitCode(err) != exitError {
		t.Errorf("--check: exit code %d, %v", exitCode(err), err)
	}
	sick.health.Problems = nil
	if out, err := runCommand(t, "status", "--check", "--server", server); err != nil || !strings.HasPrefix(out, "health      healthy\nserver ") {
		t.Errorf("%v:\n%s", err, out)
	}

	cell.status = &scribev1.GetStatusResponse{Roles: []scribev1.Role{scribev1.Role_ROLE_WRITEPROXY}, KnownMembers: st.GetMembers(), KnownCategories: 12}
	out, err = runCommand(t, "status", "-o", "json", "--server", server)
	var shown struct {
		Health     string
		Reasons    []healthReason
		Known      bool `json:"known_last"`
		Categories int
		Members    []struct{ ID string }
	}
	if jerr := json.Unmarshal([]byte(out), &shown); jerr != nil || exitCode(err) != exitUnavailable {
		t.Fatalf("exit code %d, %v, %v:\n%s", exitCode(err), err, jerr, out)
	}
	if shown.Health != degraded || !shown.Known || shown.Categories != 12 || len(shown.Members) != 1 || shown.Reasons[0].Subject != "control plane" {
		t.Errorf("shown is %+v", shown)
	}
}
