package survey

import (
	"context"
	"slices"
	"sync"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// CellHealth is a cell as one of its processes and all its members describe it.
type CellHealth struct {
	Status  *scribev1.GetStatusResponse
	Members []*scribev1.Member // those known last, if the control plane is away
	Summary HealthSummary
	// Away says that no control plane was reached.
	Away bool
	// Nodes are the cell's nodes, as the process that was asked first lists them; none in a cell of other processes. NodesErr is why they can't be listed.
	Nodes    []*scribev1.Node
	NodesErr error

	answers []MemberHealth
}

// ExamineCell asks all members of a cell how they are. server, one of its processes, has told its status.
func ExamineCell(ctx context.Context, t *rpc.Transport, server string, st *scribev1.GetStatusResponse) *CellHealth {
	c := newCell(st)
	var asking sync.WaitGroup
	if !c.Away {
		asking.Go(func() { c.Nodes, c.NodesErr = listNodes(ctx, t, server) })
	}
	c.answers = AskHealth(ctx, t, c.Members)
	asking.Wait()
	c.Summary = JudgeHealth(server, st, c.Away, c.answers)
	return c
}

// DescribeCell is ExamineCell for those who may not know how processes are: nobody is asked.
func DescribeCell(server string, st *scribev1.GetStatusResponse) *CellHealth {
	c := newCell(st)
	answers := make([]MemberHealth, len(c.Members))
	for i, m := range c.Members {
		answers[i] = MemberHealth{Member: m, Hidden: true}
	}
	c.Summary = JudgeHealth(server, st, c.Away, answers)
	return c
}

func newCell(st *scribev1.GetStatusResponse) *CellHealth {
	c := &CellHealth{Status: st}
	c.Members, c.Away = membersOf(st)
	return c
}

// membersOf returns the members of a cell whose process has told its status: those known last if it reaches no control plane.
func membersOf(st *scribev1.GetStatusResponse) (members []*scribev1.Member, away bool) {
	members = st.GetMembers()
	if len(members) == 0 && (st.GetLeadership() != nil || !slices.Contains(st.GetRoles(), scribev1.Role_ROLE_CONTROLPLANE)) {
		// A control plane that answers, and that leads if there are several, knows at least itself.
		return st.GetKnownMembers(), true
	}
	return members, false
}

type memberJSON struct {
	ID    string   `json:"id"`
	Roles []string `json:"roles"`
	URL   string   `json:"url"`
	Slot  uint32   `json:"slot"`
	Load  float64  `json:"load"`
	// Loads are those of the roles that callers choose among by load; empty for a member that does not tell them apart.
	Loads    map[string]float64 `json:"loads,omitempty"`
	JoinedAt time.Time          `json:"joined_at"`
	Version  string             `json:"version"`
}

// loadsOf returns the loads of a member's roles, 0 to 1, by the names that users give to roles.
func loadsOf(m *scribev1.Member) map[string]float64 {
	loads := make(map[string]float64, len(m.GetLoads()))
	for _, l := range m.GetLoads() {
		loads[scribev1.RoleNames([]scribev1.Role{l.GetRole()})[0]] = float64(l.GetLoad()) / 1000
	}
	return loads
}

// JSON is the cell as "scribe status -o json" prints it.
func (c *CellHealth) JSON() any {
	st := c.Status
	categories := st.GetCategories()
	if c.Away {
		categories = st.GetKnownCategories()
	}
	members := make([]memberJSON, len(c.Members))
	for i, m := range c.Members {
		busiest, _ := m.BusiestLoad()
		members[i] = memberJSON{
			ID: m.GetId(), Roles: scribev1.RoleNames(m.GetRoles()), URL: m.GetUrl(), Slot: m.GetSlot(), Load: float64(busiest) / 1000, Loads: loadsOf(m),
			JoinedAt: time.UnixMicro(m.GetJoinedAt()).UTC(), Version: m.GetVersion(),
		}
	}
	nodesError := ""
	if c.NodesErr != nil {
		nodesError = c.NodesErr.Error()
	}
	return struct {
		HealthSummary

		// Known says that categories and members are those known last, since the control plane is away.
		Known      bool         `json:"known_last,omitempty"`
		Version    string       `json:"version"`
		StartedAt  time.Time    `json:"started_at"`
		Roles      []string     `json:"roles"`
		Categories uint64       `json:"categories"`
		Retiring   uint64       `json:"retirements_pending"`
		Members    []memberJSON `json:"members"`
		Leader     *leaderJSON  `json:"leader,omitempty"`
		// Nodes are those of a cell that has some, Replicas those of the metadata logs where several processes share them, Etcd what connects these.
		Nodes      []Node        `json:"nodes,omitempty"`
		NodesError string        `json:"nodes_error,omitempty"`
		Replicas   []CellReplica `json:"replicas,omitempty"`
		Etcd       []EtcdMember  `json:"etcd,omitempty"`
	}{
		c.Summary, c.Away, st.GetVersion(), time.UnixMicro(st.GetStartedAt()).UTC(), scribev1.RoleNames(st.GetRoles()), categories, st.GetRetirementsPending(), members,
		newLeaderJSON(st.GetLeadership()), DescribeNodes(c.Nodes), nodesError, c.Replicas(), c.Etcd(),
	}
}

// leaderJSON is the control plane that leads, of several that share a store. Its name and URL are empty while none is known.
type leaderJSON struct {
	Name string `json:"name"`
	URL  string `json:"url"`
	Term uint64 `json:"term"`
}

func newLeaderJSON(l *scribev1.ControlLeadership) *leaderJSON {
	if l == nil {
		return nil
	}
	return &leaderJSON{Name: l.GetLeader(), URL: l.GetLeaderUrl(), Term: l.GetTerm()}
}
