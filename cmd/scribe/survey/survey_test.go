package survey

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// TestTopSamples: a process that restarted counts from its beginning, one that appeared does not count yet, and one that does not answer is said.
func TestTopSamples(t *testing.T) {
	now := time.Now()
	process := func(started int64, bytes uint64) *scribev1.GetTrafficResponse {
		return &scribev1.GetTrafficResponse{StartedAt: started, Categories: []*scribev1.CategoryTraffic{{Category: "c", WrittenBytes: bytes}}}
	}
	before := &TrafficSample{At: now, Processes: map[string]*scribev1.GetTrafficResponse{"same": process(1, 1000), "restarted": process(1, 5000)}}
	after := &TrafficSample{
		At:        now.Add(10 * time.Second),
		Processes: map[string]*scribev1.GetTrafficResponse{"same": process(1, 1100), "restarted": process(2, 30), "new": process(3, 1<<40)},
		Failed:    []error{context.DeadlineExceeded},
	}
	f := RowChoice{Sort: "bytes", By: "category"}
	if v := f.CompareSamples(before, after); len(v.Categories) != 1 || v.Categories[0].WrittenBytes != 13 || len(v.Failed) != 1 {
		t.Errorf("%+v", v)
	}
}

// healthyCell is a cell of which everything is in order: two processes with all roles.
func healthyCell() (*scribev1.GetStatusResponse, []MemberHealth) {
	roles := []scribev1.Role{
		scribev1.Role_ROLE_CONTROLPLANE, scribev1.Role_ROLE_METALOG, scribev1.Role_ROLE_BATCHER, scribev1.Role_ROLE_WRITEPROXY,
		scribev1.Role_ROLE_READSTREAM, scribev1.Role_ROLE_READPROXY, scribev1.Role_ROLE_COLLECTOR,
	}
	var answers []MemberHealth
	st := &scribev1.GetStatusResponse{}
	for _, id := range []string{"a", "b", "c"} {
		m := &scribev1.Member{Id: id, Roles: roles, Url: "http://" + id, Version: "v1"}
		st.Members = append(st.Members, m)
		answers = append(answers, MemberHealth{Member: m, Health: &scribev1.GetHealthResponse{}, Ahead: time.Minute})
	}
	return st, answers
}

// TestHealthOfCells: each thing that can be wrong is named with its severity, and a cell in order is healthy.
func TestHealthOfCells(t *testing.T) {
	if st, answers := healthyCell(); true {
		if v := JudgeHealth("s", st, false, answers); v.Health != Healthy || len(v.Reasons) > 0 {
			t.Errorf("a healthy cell: %+v", v)
		}
	}
	if st, answers := healthyCell(); true {
		answers[0].Health.Open, answers[2].Health.Open = true, true
		if v := JudgeHealth("s", st, false, answers); v.Health != Healthy || !strings.Contains(v.Text(), "insecure    a, c: everybody") {
			t.Errorf("a cell open to everybody: %s", v.Text())
		}
	}
	without := func(answers []MemberHealth, role scribev1.Role) {
		for i := range answers {
			answers[i].Member.Roles = slices.DeleteFunc(slices.Clone(answers[i].Member.GetRoles()), func(r scribev1.Role) bool { return r == role })
		}
	}
	for _, c := range []struct {
		name  string
		spoil func(answers []MemberHealth)
		want  string // health, then the first reason
	}{
		{"no batcher", func(a []MemberHealth) { without(a, scribev1.Role_ROLE_BATCHER) }, "failing batcher: no live process has this role: nothing can be written"},
		{"no read proxy", func(a []MemberHealth) { without(a, scribev1.Role_ROLE_READPROXY) }, "failing readproxy: no live process has this role: nothing can be read"},
		{"no retention", func(a []MemberHealth) { without(a, scribev1.Role_ROLE_COLLECTOR) }, "degraded retention: no live process"},
		{"one is silent", func(a []MemberHealth) { a[1].Health, a[1].Err = nil, context.DeadlineExceeded }, "degraded b: does not answer at http://b"},
		{"all are silent", func(a []MemberHealth) {
			for i := range a {
				a[i].Health, a[i].Err = nil, context.DeadlineExceeded
			}
		}, "failing a: does not answer at http://a"},
		{"a store fails", func(a []MemberHealth) {
			a[0].Health.Problems = []*scribev1.Problem{
				{Severity: scribev1.Severity_SEVERITY_DEGRADED, Subject: "disk", Text: "nearly full"},
				{Severity: scribev1.Severity_SEVERITY_FAILING, Subject: "blob store", Text: "puts have failed"},
			}
		}, "failing a: blob store: puts have failed"},
		{"versions", func(a []MemberHealth) { a[2].Member.Version = "v2" }, "degraded versions: processes have different ones: v1 (a, b); v2 (c)"},
		{"clock ahead", func(a []MemberHealth) { a[0].Ahead += 4 * time.Second }, "degraded a: its clock is 4s ahead of the others'"},
		{"a reader asks", func(a []MemberHealth) { a[1].Health, a[1].Hidden = nil, true }, "unknown processes: how they are is for those who look after the cell"},
		{"clock behind", func(a []MemberHealth) { a[0].Ahead -= 1500 * time.Millisecond }, "degraded a: its clock is 1.5s behind the others'"},
	} {
		st, answers := healthyCell()
		c.spoil(answers)
		v := JudgeHealth("s", st, false, answers)
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
	if v := JudgeHealth("http://s", st, true, answers); v.Health != Degraded || !strings.Contains(v.Text(), "degraded  control plane: http://s can't reach it") {
		t.Errorf("without a control plane: %s", v.Text())
	}
}

// TestTrafficWithoutControlPlane: the members known last are asked while the control plane is away.
func TestTrafficWithoutControlPlane(t *testing.T) {
	transport := rpc.NewTransport(nil)
	defer transport.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // no member answers: which are asked is what counts
	st := &scribev1.GetStatusResponse{
		Roles:        []scribev1.Role{scribev1.Role_ROLE_WRITEPROXY},
		KnownMembers: []*scribev1.Member{{Id: "w", Url: "http://127.0.0.1:1", Roles: []scribev1.Role{scribev1.Role_ROLE_WRITEPROXY}}},
	}
	if s, err := SampleCell(ctx, transport, st); err != nil || len(s.Failed) != 1 || !strings.HasPrefix(s.Failed[0].Error(), "w at ") {
		t.Errorf("a known member: %+v, %v", s, err)
	}
	st.KnownMembers = nil
	if _, err := SampleCell(ctx, transport, st); !errors.Is(err, errNobodyKnown) {
		t.Errorf("without known members: %v", err)
	}
}
