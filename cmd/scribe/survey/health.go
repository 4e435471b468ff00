// Package survey asks the processes of a cell how they are and what goes through them, and judges what they say: for the commands status and
// top, and for the console. Whoever asks must be an operator or a member; the processes check it.
package survey

import (
	"cmp"
	"context"
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
	Healthy  = "healthy"
	Degraded = "degraded" // it works, but not as well as it should, or not for long
	Failing  = "failing"  // something that a cell is for does not work
	Unknown  = "unknown"  // who asks may not know how its processes are
)

// HealthSummary is what operators should know of a cell first.
type HealthSummary struct {
	Health  string         `json:"health"`
	Reasons []HealthReason `json:"reasons"`
	// Open are the processes that serve other hosts without authentication, as --insecure allows.
	Open []string `json:"open,omitempty"`
}

// HealthReason is one thing that is wrong.
type HealthReason struct {
	Severity string `json:"severity"` // degraded or failing
	// Subject is a process or a part of the cell.
	Subject string `json:"subject"`
	Text    string `json:"text"`
}

func (v *HealthSummary) addReason(severity, subject, format string, args ...any) {
	v.Reasons = append(v.Reasons, HealthReason{severity, subject, fmt.Sprintf(format, args...)})
	if v.Health != Failing {
		v.Health = severity
	}
}

// MemberHealth is what a member said of itself, or why it did not.
type MemberHealth struct {
	Member *scribev1.Member
	Health *scribev1.GetHealthResponse // nil if it did not answer, or can't say
	Err    error                       // why it did not answer
	Hidden bool                        // it answers operators alone
	// Ahead is how far its clock is ahead of the one here.
	Ahead time.Duration
}

const (
	// healthTimeout bounds the answer of one member, and membersAtOnce the members that are asked concurrently.
	healthTimeout = 3 * time.Second
	membersAtOnce = 32
)

// AskHealth asks every member how it is. Those without an address, and those of a version that can't say, are not asked or count as well.
func AskHealth(ctx context.Context, t *rpc.Transport, members []*scribev1.Member) []MemberHealth {
	answers := make([]MemberHealth, len(members))
	var group errgroup.Group
	group.SetLimit(membersAtOnce)
	for i, m := range members {
		answers[i].Member = m
		if m.GetUrl() == "" {
			continue
		}
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, healthTimeout)
			defer cancel()
			sent := time.Now()
			res, err := rpc.NewProcessClient(t, m.GetUrl()).GetHealth(ctx, &scribev1.GetHealthRequest{})
			switch {
			case err == nil:
				between := sent.Add(time.Since(sent) / 2)
				answers[i].Health, answers[i].Ahead = res, time.UnixMicro(res.GetNow()).Sub(between)
			case connect.CodeOf(err) == connect.CodePermissionDenied, connect.CodeOf(err) == connect.CodeUnauthenticated:
				answers[i].Hidden = true
			case connect.CodeOf(err) != connect.CodeUnimplemented:
				answers[i].Err = err
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
	{scribev1.Role_ROLE_WRITEPROXY, Failing, "nothing can be written"},
	{scribev1.Role_ROLE_BATCHER, Failing, "nothing can be written"},
	{scribev1.Role_ROLE_METALOG, Failing, "nothing can be written or read"},
	{scribev1.Role_ROLE_READSTREAM, Failing, "nothing can be read"},
	{scribev1.Role_ROLE_READPROXY, Failing, "nothing can be read"},
	{scribev1.Role_ROLE_COLLECTOR, Degraded, "messages are not deleted when they expire"},
}

// clockTolerance is how far the clock of a member may be from the others'.
const clockTolerance = time.Second

// JudgeHealth returns the health of a cell. away says that no control plane was reached: then the members are those known last.
func JudgeHealth(server string, st *scribev1.GetStatusResponse, away bool, answers []MemberHealth) HealthSummary {
	v := HealthSummary{Health: Healthy, Reasons: []HealthReason{}}
	if away {
		v.addReason(Degraded, "control plane", "%s can't reach it: the members below are those known last, categories can't be changed, and no process can join", server)
	}
	if !away || len(st.GetKnownMembers()) > 0 {
		judgeRoles(&v, answers)
	}
	for i := range answers {
		judgeMember(&v, &answers[i], answers)
		if answers[i].Health.GetOpen() {
			v.Open = append(v.Open, answers[i].Member.GetId())
		}
	}
	judgeVersions(&v, answers)
	judgeClocks(&v, answers)
	if n := st.GetRetirementsPending(); n > 0 && !hasMember(answers, scribev1.Role_ROLE_METALOG) {
		v.addReason(Degraded, "categories", "%d deleted categories wait for the metadata logs: their names can't be used again", n)
	}
	slices.SortStableFunc(v.Reasons, func(a, b HealthReason) int { return cmp.Compare(b.Severity, a.Severity) }) // failing first
	if hidden := slices.ContainsFunc(answers, func(a MemberHealth) bool { return a.Hidden }); hidden && v.Health == Healthy {
		v.Health = Unknown
		v.Reasons = append(v.Reasons, HealthReason{Unknown, "processes", "how they are is for those who look after the cell: a token that may monitor:*, or an operator's certificate, is needed"})
	}
	return v
}

func hasMember(answers []MemberHealth, role scribev1.Role) bool {
	return slices.ContainsFunc(answers, func(a MemberHealth) bool { return slices.Contains(a.Member.GetRoles(), role) })
}

func judgeRoles(v *HealthSummary, answers []MemberHealth) {
	for _, need := range neededRoles {
		if !hasMember(answers, need.role) {
			name := strings.Join(scribev1.RoleNames([]scribev1.Role{need.role}), "")
			v.addReason(need.severity, name, "no live process has this role: %s", need.text)
		}
	}
}

// judgeMember adds what a member says is wrong with it. One that does not answer matters more if no other has one of its roles.
func judgeMember(v *HealthSummary, a *MemberHealth, answers []MemberHealth) {
	id := a.Member.GetId()
	if a.Err != nil {
		severity := Degraded
		for _, role := range a.Member.GetRoles() {
			needed := slices.ContainsFunc(neededRoles, func(n neededRole) bool { return n.role == role && n.severity == Failing })
			if needed && !slices.ContainsFunc(answers, func(o MemberHealth) bool { return o.Err == nil && slices.Contains(o.Member.GetRoles(), role) }) {
				severity = Failing
			}
		}
		v.addReason(severity, id, "does not answer at %s: %s", a.Member.GetUrl(), rpc.Message(a.Err))
		return
	}
	for _, p := range a.Health.GetProblems() {
		severity := Degraded
		if p.GetSeverity() == scribev1.Severity_SEVERITY_FAILING {
			severity = Failing
		}
		v.addReason(severity, id, "%s: %s", p.GetSubject(), p.GetText())
	}
}

func judgeVersions(v *HealthSummary, answers []MemberHealth) {
	by := map[string][]string{}
	for i := range answers {
		m := answers[i].Member
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
	v.addReason(Degraded, "versions", "processes have different ones: %s", strings.Join(texts, "; "))
}

// judgeClocks compares the clocks of members with each other, not with the one here, which may be wrong itself.
func judgeClocks(v *HealthSummary, answers []MemberHealth) {
	var told []*MemberHealth
	for i := range answers {
		if answers[i].Health != nil {
			told = append(told, &answers[i])
		}
	}
	if len(told) < 2 {
		return
	}
	slices.SortFunc(told, func(a, b *MemberHealth) int { return cmp.Compare(a.Ahead, b.Ahead) })
	median := told[(len(told)-1)/2].Ahead
	for _, a := range told {
		switch apart := (a.Ahead - median).Round(100 * time.Millisecond); {
		case apart > clockTolerance:
			v.addReason(Degraded, a.Member.GetId(), "its clock is %v ahead of the others'", apart)
		case apart < -clockTolerance:
			v.addReason(Degraded, a.Member.GetId(), "its clock is %v behind the others'", -apart)
		}
	}
}

// Text is the health for people: a line, and one for each reason.
func (v *HealthSummary) Text() string {
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
