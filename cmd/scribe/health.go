package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// What the health of a cell may be, from the best to the worst.
const (
	healthy  = "healthy"
	degraded = "degraded" // it works, but not as well as it should, or not for long
	failing  = "failing"  // something that a cell is for does not work
	unknown  = "unknown"  // who asks may not know how its processes are
)

// healthSummary is what operators should know of a cell first.
type healthSummary struct {
	Health  string         `json:"health"`
	Reasons []healthReason `json:"reasons"`
	// Open are the processes that serve other hosts without authentication, as --insecure allows.
	Open []string `json:"open,omitempty"`
}

// healthReason is one thing that is wrong.
type healthReason struct {
	Severity string `json:"severity"` // degraded or failing
	// Subject is a process or a part of the cell.
	Subject string `json:"subject"`
	Text    string `json:"text"`
}

func (v *healthSummary) addReason(severity, subject, format string, args ...any) {
	v.Reasons = append(v.Reasons, healthReason{severity, subject, fmt.Sprintf(format, args...)})
	if v.Health != failing {
		v.Health = severity
	}
}

// memberHealth is what a member said of itself, or why it did not.
type memberHealth struct {
	member *scribev1.Member
	health *scribev1.GetHealthResponse // nil if it did not answer, or can't say
	err    error                       // why it did not answer
	hidden bool                        // it answers operators alone
	// ahead is how far its clock is ahead of the one here.
	ahead time.Duration
}

const (
	// healthTimeout bounds the answer of one member, and membersAtOnce the members that are asked concurrently.
	healthTimeout = 3 * time.Second
	membersAtOnce = 32
)

// askHealth asks every member how it is. Those without an address, and those of a version that can't say, are not asked or count as well.
func askHealth(ctx context.Context, members []*scribev1.Member) []memberHealth {
	answers := make([]memberHealth, len(members))
	var group errgroup.Group
	group.SetLimit(membersAtOnce)
	for i, m := range members {
		answers[i].member = m
		if m.GetUrl() == "" {
			continue
		}
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, healthTimeout)
			defer cancel()
			sent := time.Now()
			res, err := rpc.NewProcessClient(rpc.Default(), m.GetUrl()).GetHealth(ctx, &scribev1.GetHealthRequest{})
			switch {
			case err == nil:
				between := sent.Add(time.Since(sent) / 2)
				answers[i].health, answers[i].ahead = res, time.UnixMicro(res.GetNow()).Sub(between)
			case connect.CodeOf(err) == connect.CodePermissionDenied, connect.CodeOf(err) == connect.CodeUnauthenticated:
				answers[i].hidden = true
			case connect.CodeOf(err) != connect.CodeUnimplemented:
				answers[i].err = err
			}
			return nil
		})
	}
	_ = group.Wait() // it has no errors
	return answers
}

// neededRole is a role that a cell can't do without: how bad that is, and what is not done.
type neededRole struct {
	role     scribev1.Role
	severity string
	text     string
}

// neededRoles are the roles that a cell can't do without, and what is not done without them.
var neededRoles = []neededRole{
	{scribev1.Role_ROLE_WRITEPROXY, failing, "nothing can be written"},
	{scribev1.Role_ROLE_BATCHER, failing, "nothing can be written"},
	{scribev1.Role_ROLE_METALOG, failing, "nothing can be written or read"},
	{scribev1.Role_ROLE_READSTREAM, failing, "nothing can be read"},
	{scribev1.Role_ROLE_READPROXY, failing, "nothing can be read"},
	{scribev1.Role_ROLE_COLLECTOR, degraded, "messages are not deleted when they expire"},
}

// clockTolerance is how far the clock of a member may be from the others'.
const clockTolerance = time.Second

// judgeHealth returns the health of a cell. away says that no control plane was reached: then the members are those known last.
func judgeHealth(server string, st *scribev1.GetStatusResponse, away bool, answers []memberHealth) healthSummary {
	v := healthSummary{Health: healthy, Reasons: []healthReason{}}
	if away {
		v.addReason(degraded, "control plane", "%s can't reach it: the members below are those known last, categories can't be changed, and no process can join", server)
	}
	if !away || len(st.GetKnownMembers()) > 0 {
		judgeRoles(&v, answers)
	}
	for i := range answers {
		judgeMember(&v, &answers[i], answers)
		if answers[i].health.GetOpen() {
			v.Open = append(v.Open, answers[i].member.GetId())
		}
	}
	judgeVersions(&v, answers)
	judgeClocks(&v, answers)
	if n := st.GetRetirementsPending(); n > 0 && !hasMember(answers, scribev1.Role_ROLE_METALOG) {
		v.addReason(degraded, "categories", "%d deleted categories wait for the metadata logs: their names can't be used again", n)
	}
	slices.SortStableFunc(v.Reasons, func(a, b healthReason) int { return cmp.Compare(b.Severity, a.Severity) }) // failing first
	if hidden := slices.ContainsFunc(answers, func(a memberHealth) bool { return a.hidden }); hidden && v.Health == healthy {
		v.Health = unknown
		v.Reasons = append(v.Reasons, healthReason{unknown, "processes", "how they are is for operators: a token or a certificate that may operate the cell is needed"})
	}
	return v
}

func hasMember(answers []memberHealth, role scribev1.Role) bool {
	return slices.ContainsFunc(answers, func(a memberHealth) bool { return slices.Contains(a.member.GetRoles(), role) })
}

func judgeRoles(v *healthSummary, answers []memberHealth) {
	for _, need := range neededRoles {
		if !hasMember(answers, need.role) {
			name := strings.Join(scribev1.RoleNames([]scribev1.Role{need.role}), "")
			v.addReason(need.severity, name, "no live process has this role: %s", need.text)
		}
	}
}

// judgeMember adds what a member says is wrong with it. One that does not answer matters more if no other has one of its roles.
func judgeMember(v *healthSummary, a *memberHealth, answers []memberHealth) {
	id := a.member.GetId()
	if a.err != nil {
		severity := degraded
		for _, role := range a.member.GetRoles() {
			needed := slices.ContainsFunc(neededRoles, func(n neededRole) bool { return n.role == role && n.severity == failing })
			if needed && !slices.ContainsFunc(answers, func(o memberHealth) bool { return o.err == nil && slices.Contains(o.member.GetRoles(), role) }) {
				severity = failing
			}
		}
		v.addReason(severity, id, "does not answer at %s: %s", a.member.GetUrl(), plainText(a.err))
		return
	}
	for _, p := range a.health.GetProblems() {
		severity := degraded
		if p.GetSeverity() == scribev1.Severity_SEVERITY_FAILING {
			severity = failing
		}
		v.addReason(severity, id, "%s: %s", p.GetSubject(), p.GetText())
	}
}

func judgeVersions(v *healthSummary, answers []memberHealth) {
	by := map[string][]string{}
	for i := range answers {
		m := answers[i].member
		by[m.GetVersion()] = append(by[m.GetVersion()], m.GetId())
	}
	if len(by) < 2 {
		return
	}
	var texts []string
	for version, ids := range by {
		text := fmt.Sprintf("%s (%s)", cmp.Or(version, "unknown"), strings.Join(ids, ", "))
		if len(ids) > 3 {
			text = fmt.Sprintf("%s (%d processes)", cmp.Or(version, "unknown"), len(ids))
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)
	v.addReason(degraded, "versions", "processes have different ones: %s", strings.Join(texts, "; "))
}

// judgeClocks compares the clocks of members with each other, not with the one here, which may be wrong itself.
func judgeClocks(v *healthSummary, answers []memberHealth) {
	var told []*memberHealth
	for i := range answers {
		if answers[i].health != nil {
			told = append(told, &answers[i])
		}
	}
	if len(told) < 2 {
		return
	}
	slices.SortFunc(told, func(a, b *memberHealth) int { return cmp.Compare(a.ahead, b.ahead) })
	median := told[(len(told)-1)/2].ahead
	for _, a := range told {
		switch apart := (a.ahead - median).Round(100 * time.Millisecond); {
		case apart > clockTolerance:
			v.addReason(degraded, a.member.GetId(), "its clock is %v ahead of the others'", apart)
		case apart < -clockTolerance:
			v.addReason(degraded, a.member.GetId(), "its clock is %v behind the others'", -apart)
		}
	}
}

// cellHealth is a cell as one of its processes and all its members describe it.
type cellHealth struct {
	status  *scribev1.GetStatusResponse
	members []*scribev1.Member // those known last, if the control plane is away
	summary healthSummary
	// away is set if no control plane was reached.
	away error
}

// examineCell asks a process for the state of its cell, and all members how they are.
func examineCell(ctx context.Context, server string) (*cellHealth, error) {
	st, err := callCell(ctx, server, "status", controlClient(server).GetStatus, &scribev1.GetStatusRequest{})
	if err != nil {
		return nil, err
	}
	h := &cellHealth{status: st, members: st.GetMembers()}
	if len(h.members) == 0 && (st.GetLeadership() != nil || !slices.Contains(st.GetRoles(), scribev1.Role_ROLE_CONTROLPLANE)) {
		// A control plane that answers, and that leads if there are several, knows at least itself.
		h.away = &codedError{code: exitUnavailable, err: fmt.Errorf("%s can't reach its control plane: members and categories are those known last", server)}
		h.members = st.GetKnownMembers()
	}
	h.summary = judgeHealth(server, st, h.away != nil, askHealth(ctx, h.members))
	return h, nil
}

// healthText is the health for people: a line, and one for each reason.
func (v *healthSummary) healthText() string {
	var b strings.Builder
	fmt.Fprintf(&b, "health      %s\n", v.Health)
	for _, r := range v.Reasons {
		fmt.Fprintf(&b, "  %-8s  %s: %s\n", r.Severity, r.Subject, strings.Join(strings.Fields(r.Text), " "))
	}
	if len(v.Open) > 0 {
		fmt.Fprintf(&b, "insecure    %s: everybody who reaches them may read, write and delete everything\n", strings.Join(v.Open, ", "))
	}
	return b.String()
}

var errUnhealthy = errors.New("the cell is not healthy")
