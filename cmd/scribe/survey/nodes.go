package survey

import (
	"context"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"scribe/internal/base/units"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Node is a node for people and scripts.
type Node struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	// State is "new" before the node's first start, "away" if it does not answer, "starting" while it waits for others, else "up".
	State        string      `json:"state"`
	Started      bool        `json:"started"`
	Member       string      `json:"etcd_member"`
	EtcdLeads    bool        `json:"etcd_leads"`
	EtcdTerm     uint64      `json:"etcd_term"`
	EtcdSize     units.Bytes `json:"etcd_bytes"`
	Metalog      *Replica    `json:"metalog,omitempty"`
	ControlLeads bool        `json:"control_leads"`
	Version      string      `json:"version"`
	Waiting      string      `json:"waiting,omitempty"`
	Error        string      `json:"error,omitempty"`
}

// Replica is a replica of the metadata logs.
type Replica struct {
	Leads   bool   `json:"leads"`
	Leader  string `json:"leader"`
	Term    uint64 `json:"term"`
	Applied uint64 `json:"applied"`
	// Lag is in entries of the journal.
	Lag   uint64 `json:"lag"`
	Error string `json:"error,omitempty"`
}

// CellReplica is a replica, and the process that has it.
type CellReplica struct {
	Process string `json:"process"`
	URL     string `json:"url"`
	Replica
}

// EtcdMember is a member of the etcd that connects replicas.
type EtcdMember struct {
	URL    string      `json:"url"`
	Member string      `json:"member,omitempty"`
	Leads  bool        `json:"leads"`
	Term   uint64      `json:"term"`
	Size   units.Bytes `json:"bytes"`
	// Error is why it does not answer.
	Error string `json:"error,omitempty"`
}

// DescribeNodes describes nodes for people and scripts.
func DescribeNodes(nodes []*scribev1.Node) []Node {
	all := make([]Node, len(nodes))
	for i, n := range nodes {
		all[i] = DescribeNode(n)
	}
	return all
}

// DescribeNode describes a node for people and scripts.
func DescribeNode(n *scribev1.Node) Node {
	self, etcd := n.GetSelf(), n.GetSelf().GetEtcd()
	out := Node{
		Name: n.GetPlace().GetName(), Address: n.GetPlace().GetAddress(), State: stateOfNode(n), Started: n.GetStarted(),
		Member: strconv.FormatUint(n.GetMember(), 16), EtcdLeads: etcd.GetLeader() != 0 && etcd.GetLeader() == n.GetMember(), EtcdTerm: etcd.GetTerm(),
		EtcdSize: units.Bytes(etcd.GetBytes()), ControlLeads: self.GetLeadsControl(), Version: self.GetVersion(), Waiting: self.GetWaiting(), Error: n.GetError(),
	}
	if m := self.GetMetalog(); m != nil {
		out.Metalog = new(describeReplica(m))
	}
	return out
}

func describeReplica(m *scribev1.ReplicaStatus) Replica {
	return Replica{
		Leads: m.GetLeads(), Leader: m.GetLeader(), Term: m.GetTerm(), Applied: m.GetApplied(), Lag: max(m.GetNewest(), m.GetApplied()) - m.GetApplied(), Error: m.GetError(),
	}
}

func stateOfNode(n *scribev1.Node) string {
	switch self := n.GetSelf(); {
	case self == nil && !n.GetStarted():
		return "new"
	case self == nil:
		return "away"
	case self.GetWaiting() != "":
		return "starting"
	}
	return "up"
}

// nodesTimeout bounds the answer of a node that asks the others.
const nodesTimeout = 10 * time.Second

// listNodes asks a process for the nodes of its cell. It has none where the process does not know the call, or does not tell this caller.
func listNodes(ctx context.Context, t *rpc.Transport, server string) ([]*scribev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, nodesTimeout)
	defer cancel()
	res, err := rpc.NewNodeClient(t, server).ListNodes(ctx, &scribev1.ListNodesRequest{})
	if code := connect.CodeOf(err); code == connect.CodeUnimplemented || code == connect.CodePermissionDenied || code == connect.CodeUnauthenticated {
		return nil, nil
	}
	return res.GetNodes(), err
}

// Replicas are the replicas of the metadata logs, where processes share them and have said how theirs is.
func (c *CellHealth) Replicas() []CellReplica {
	var all []CellReplica
	for _, a := range c.answers {
		if r := a.Health.GetReplica(); r != nil {
			all = append(all, CellReplica{a.Member.GetId(), a.Member.GetUrl(), describeReplica(r)})
		}
	}
	return all
}

// Etcd are the members of the etcd that connects these replicas, as the one that leads in the newest term knows them.
func (c *CellHealth) Etcd() []EtcdMember {
	var told *scribev1.GetHealthResponse
	for _, a := range c.answers {
		if len(a.Health.GetEtcd()) > 0 && a.Health.GetReplica().GetTerm() >= told.GetReplica().GetTerm() {
			told = a.Health
		}
	}
	var all []EtcdMember
	for _, m := range told.GetEtcd() {
		member := EtcdMember{URL: m.GetUrl(), Error: m.GetError()}
		if s := m.GetStatus(); s != nil {
			member.Member, member.Leads = strconv.FormatUint(s.GetMember(), 16), s.GetLeader() != 0 && s.GetLeader() == s.GetMember()
			member.Term, member.Size = s.GetTerm(), units.Bytes(s.GetBytes())
		}
		all = append(all, member)
	}
	return all
}
