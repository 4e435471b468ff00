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

	"scribe/cmd/scribe/survey"
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
			OverOwnerQuotaMessages: p.asked * c.GetOverOwnerQuotaMessages(), OverPrefixQuotaMessages: p.asked * c.GetOverPrefixQuotaMessages(),
			OwnerQuotaBytesPerSecond: c.GetOwnerQuotaBytesPerSecond(), QuotaPrefix: c.GetQuotaPrefix(), PrefixQuotaBytesPerSecond: c.GetPrefixQuotaBytesPerSecond(),
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
	show := func(args ...string) survey.TrafficView {
		t.Helper()
		out, err := runCommand(t, append([]string{"top", "-o", "json", "--interval", "100ms", "--server", server}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		var v survey.TrafficView
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		return v
	}
	names := func(v survey.TrafficView) (names []string) {
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

// wellMember is a member with all roles that a cell can't do without.
func wellMember() *scribev1.Member {
	return &scribev1.Member{Id: "a", Version: "v1", Roles: []scribev1.Role{
		scribev1.Role_ROLE_CONTROLPLANE, scribev1.Role_ROLE_METALOG, scribev1.Role_ROLE_BATCHER, scribev1.Role_ROLE_WRITEPROXY,
		scribev1.Role_ROLE_READSTREAM, scribev1.Role_ROLE_READPROXY, scribev1.Role_ROLE_COLLECTOR,
	}}
}

// TestStatusHealth: the status begins with the health and its reasons, as text and as JSON; what was known last is shown while the control plane is
// away, with the exit code that says so.
func TestStatusHealth(t *testing.T) {
	sick := &countingProcess{health: &scribev1.GetHealthResponse{Now: time.Now().UnixMicro(), Problems: []*scribev1.Problem{
		{Severity: scribev1.Severity_SEVERITY_FAILING, Subject: "blob store", Text: "puts have\nfailed"},
	}}}
	st := &scribev1.GetStatusResponse{Roles: []scribev1.Role{scribev1.Role_ROLE_CONTROLPLANE}, Members: []*scribev1.Member{wellMember()}}
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
		Reasons    []survey.HealthReason
		Known      bool `json:"known_last"`
		Categories int
		Members    []struct{ ID string }
	}
	if jerr := json.Unmarshal([]byte(out), &shown); jerr != nil || exitCode(err) != exitUnavailable {
		t.Fatalf("exit code %d, %v, %v:\n%s", exitCode(err), err, jerr, out)
	}
	if shown.Health != survey.Degraded || !shown.Known || shown.Categories != 12 || len(shown.Members) != 1 || shown.Reasons[0].Subject != "control plane" {
		t.Errorf("shown is %+v", shown)
	}
}
