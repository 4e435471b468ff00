package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

const (
	// membersTimeout bounds a question to etcd about its members.
	membersTimeout = 3 * time.Second
	// changeTimeout bounds a change of the members. Etcd refuses one while it has not seen the others for 5 s.
	changeTimeout = 12 * time.Second
	// changeInterval is the pause until a refused change is tried again.
	changeInterval = 500 * time.Millisecond
)

// DescribeNode implements rpc.NodeService.
func (n *node) DescribeNode(ctx context.Context, _ *scribev1.DescribeNodeRequest) (*scribev1.DescribeNodeResponse, error) {
	n.mu.Lock()
	d := &scribev1.NodeDescription{
		Name: n.place.name, Address: n.place.address, Version: n.version, State: n.mu.file.state(), Cluster: nodeMessages(n.cluster), Waiting: n.mu.waiting,
		Adopts: n.adopts(), Lost: n.mu.lost,
	}
	n.mu.Unlock()
	d.Etcd = n.etcdStatus(ctx)
	if replica := n.replica.Load(); replica != nil {
		d.Metalog = (*replica)()
	}
	if leads := n.leadsControl.Load(); leads != nil {
		d.LeadsControl = (*leads)()
	}
	return &scribev1.DescribeNodeResponse{Node: d}, nil
}

// etcdStatus asks the node's own member, which needs nobody else for the answer.
func (n *node) etcdStatus(ctx context.Context) *scribev1.EtcdStatus {
	status := &scribev1.EtcdStatus{Member: n.member.Load()}
	client := n.etcd.Load()
	if client == nil {
		if status.GetMember() == 0 {
			return nil
		}
		return status
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout/2)
	defer cancel()
	if res, err := client.Status(ctx, n.etcdEndpoints(nil)[0]); err == nil {
		status.Leader, status.Term, status.Bytes = res.Leader, res.RaftTerm, res.DbSize
	}
	return status
}

// ListNodes implements rpc.NodeService.
func (n *node) ListNodes(ctx context.Context, _ *scribev1.ListNodesRequest) (*scribev1.ListNodesResponse, error) {
	members, err := n.listMembers(ctx)
	if err != nil {
		return nil, err
	}
	nodes := make([]*scribev1.Node, len(members))
	var asking sync.WaitGroup
	for i, m := range members {
		place := n.placeOf(m)
		nodes[i] = &scribev1.Node{Place: place.message(), Member: m.ID, Started: isStarted(m)}
		asking.Go(func() {
			self, err := n.describe(ctx, place)
			if nodes[i].Self = self; err != nil {
				nodes[i].Error = err.Error()
			}
		})
	}
	asking.Wait()
	slices.SortFunc(nodes, func(a, b *scribev1.Node) int {
		return cmp.Or(cmp.Compare(a.GetPlace().GetName(), b.GetPlace().GetName()), cmp.Compare(a.GetMember(), b.GetMember()))
	})
	return &scribev1.ListNodesResponse{Nodes: nodes}, nil
}

// describe asks a node, which may be this one.
func (n *node) describe(ctx context.Context, p nodePlace) (*scribev1.NodeDescription, error) {
	if p.address == n.place.address {
		return describeNode(ctx, n)
	}
	return describeNode(ctx, n.connect(p))
}

// isStarted reports whether a member ever ran: it publishes its addresses then. The members that a cell begins with have names before.
func isStarted(m *etcdserverpb.Member) bool { return len(m.GetClientURLs()) > 0 }

// placeOf returns the node of a member. One that never started has no name in etcd; --cluster may have it.
func (n *node) placeOf(m *etcdserverpb.Member) nodePlace {
	p := nodePlace{name: m.GetName()}
	for _, peer := range m.GetPeerURLs() {
		if u, err := url.Parse(peer); err == nil {
			p.address = shiftPort(u.Host, -etcdPeerPort)
			break
		}
	}
	for _, known := range n.cluster {
		if p.name == "" && known.address == p.address {
			p.name = known.name
		}
	}
	return p
}

// listMembers asks etcd for its members. It needs a majority.
func (n *node) listMembers(ctx context.Context) ([]*etcdserverpb.Member, error) {
	client := n.etcd.Load()
	if client == nil {
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, time.Second, "node %s is not ready: its cell has no majority yet", n.place.name)
	}
	ctx, cancel := context.WithTimeout(ctx, membersTimeout)
	defer cancel()
	res, err := client.MemberList(ctx)
	if err != nil {
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, time.Second, "the cell has no majority of its nodes, as node %s sees it: %w", n.place.name, err)
	}
	return res.Members, nil
}

// AddNode implements rpc.NodeService.
func (n *node) AddNode(ctx context.Context, req *scribev1.AddNodeRequest) (*scribev1.AddNodeResponse, error) {
	p := nodePlace{req.GetNode().GetName(), req.GetNode().GetAddress()}
	if err := p.validate(); err != nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "add node: %w", err)
	}
	n.changing.Lock()
	defer n.changing.Unlock()
	members, err := n.listMembers(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		switch known := n.placeOf(m); {
		case known == p && !isStarted(m):
			return &scribev1.AddNodeResponse{Nodes: n.listAfter(members, nodePlace{}, nodePlace{})}, nil // a repetition
		case known.collides(p):
			return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "add node %s: the cell has node %s", p, known)
		}
	}
	if err := n.checkGrowth(ctx, members, p); err != nil {
		return nil, err
	}
	if err := n.addMember(ctx, p); err != nil {
		return nil, fmt.Errorf("add node %s: %w", p, err)
	}
	return &scribev1.AddNodeResponse{Nodes: n.listAfter(members, p, nodePlace{})}, nil
}

// addMember makes room for a member that begins later.
func (n *node) addMember(ctx context.Context, p nodePlace) error {
	return n.changeMembers(ctx, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberAdd(ctx, []string{schemeOf(n.secure) + p.etcdPeer()})
		if errors.Is(err, rpctypes.ErrPeerURLExist) {
			return nil // an earlier try did it
		}
		return err
	})
}

// ReplaceNode implements rpc.NodeService.
func (n *node) ReplaceNode(ctx context.Context, req *scribev1.ReplaceNodeRequest) (*scribev1.ReplaceNodeResponse, error) {
	n.changing.Lock()
	defer n.changing.Unlock()
	members, old, found, err := n.findOther(ctx, "replace", req.GetName())
	if err != nil {
		return nil, err
	}
	next := nodePlace{req.GetName(), cmp.Or(req.GetAddress(), found.address)}
	if err := next.validate(); err != nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "replace node: %w", err)
	}
	if !isStarted(old) && next == found {
		return &scribev1.ReplaceNodeResponse{Nodes: n.listAfter(members, nodePlace{}, nodePlace{})}, nil // a repetition
	}
	if self, err := n.describe(ctx, found); err == nil && self.GetName() == found.name && self.GetState() != scribev1.NodeState_NODE_STATE_EMPTY {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "node %s runs, and has its data: stop it first, if it is to be replaced", found)
	}
	if err := n.removeMember(ctx, members, old, "replace node "+found.name); err != nil {
		return nil, err
	}
	if err := n.addMember(ctx, next); err != nil {
		return nil, fmt.Errorf("node %s is removed, but its successor is not added yet: scribe node add %s: %w", found.name, next, err)
	}
	return &scribev1.ReplaceNodeResponse{Nodes: n.listAfter(members, next, found)}, nil
}

// RemoveNode implements rpc.NodeService.
func (n *node) RemoveNode(ctx context.Context, req *scribev1.RemoveNodeRequest) (*scribev1.RemoveNodeResponse, error) {
	n.changing.Lock()
	defer n.changing.Unlock()
	members, old, found, err := n.findOther(ctx, "remove", req.GetName())
	if err != nil {
		return nil, err
	}
	if err := n.removeMember(ctx, members, old, "remove node "+found.name); err != nil {
		return nil, err
	}
	return &scribev1.RemoveNodeResponse{Nodes: n.listAfter(members, nodePlace{}, found)}, nil
}

// DetachCell implements rpc.NodeService.
func (n *node) DetachCell(ctx context.Context, req *scribev1.DetachCellRequest) (*scribev1.DetachCellResponse, error) {
	n.changing.Lock()
	defer n.changing.Unlock()
	members, err := n.listMembers(ctx)
	if err == nil {
		_, _, err = n.findMember(members, req.GetNode())
	}
	if err != nil {
		return nil, err
	}
	engine := n.engine.Load()
	if engine == nil {
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, time.Second, "node %s does not keep metadata logs yet", n.place.name)
	}
	err = engine.DetachTo(ctx, req.GetNode())
	if errors.Is(err, metalog.ErrNotLeader) {
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, time.Second, "node %s does not lead the metadata logs: %w", n.place.name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("detach the cell to node %s: %w", req.GetNode(), err)
	}
	return &scribev1.DetachCellResponse{}, nil
}

// removeMember removes a member from a cell that has a majority without it.
func (n *node) removeMember(ctx context.Context, members []*etcdserverpb.Member, m *etcdserverpb.Member, what string) error {
	if err := n.checkRest(ctx, members, m, what); err != nil {
		return err
	}
	err := n.changeMembers(ctx, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberRemove(ctx, m.ID)
		if errors.Is(err, rpctypes.ErrMemberNotFound) {
			return nil // an earlier try did it
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// findOther returns the members, and the one of a node that is to be replaced or removed. That can't be this node.
func (n *node) findOther(ctx context.Context, verb, name string) (members []*etcdserverpb.Member, other *etcdserverpb.Member, p nodePlace, err error) {
	if members, err = n.listMembers(ctx); err == nil {
		other, p, err = n.findMember(members, name)
	}
	switch {
	case err != nil:
	case len(members) == 1:
		err = rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s node %s: it is the last one", verb, name)
	case p.address == n.place.address:
		err = rpc.Errorf(scribev1.Reason_REASON_INVALID, "node %s can't %s itself: ask another node, with --server", name, verb)
	}
	return members, other, p, err
}

// findMember returns the member of a node.
func (n *node) findMember(members []*etcdserverpb.Member, name string) (*etcdserverpb.Member, nodePlace, error) {
	var names []string
	for _, m := range members {
		p := n.placeOf(m)
		if p.name == name {
			return m, p, nil
		}
		names = append(names, cmp.Or(p.name, p.address))
	}
	return nil, nodePlace{}, rpc.Errorf(scribev1.Reason_REASON_MISSING, "the cell has no node %q: its nodes are %v", name, names)
}

// checkRest fails unless the cell has a majority without a member: of the others, more than half must be up.
func (n *node) checkRest(ctx context.Context, members []*etcdserverpb.Member, without *etcdserverpb.Member, what string) error {
	rest := slices.DeleteFunc(slices.Clone(members), func(m *etcdserverpb.Member) bool { return m.ID == without.ID })
	away := n.listAway(ctx, rest)
	if up := len(rest) - len(away); up <= len(rest)/2 {
		return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, 5*time.Second, "%s: of the %d other nodes only %d would be up, and a cell needs more than half: start %v first",
			what, len(rest), up, away)
	}
	return nil
}

// checkGrowth fails unless the cell has a majority with another node, before that starts: it asks the cell for its place.
func (n *node) checkGrowth(ctx context.Context, members []*etcdserverpb.Member, added nodePlace) error {
	away := n.listAway(ctx, members)
	switch up := len(members) - len(away); {
	case len(members) == 1:
		return rpc.Errorf(scribev1.Reason_REASON_INVALID, "add node %s: a cell of one node can't grow: it would stand still until the second has started, which needs it", added)
	case up <= (len(members)+1)/2:
		return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, 5*time.Second, "add node %s: of %d nodes only %d would be up until it has started, and a cell needs more than half: start %v first",
			added, len(members)+1, up, away)
	}
	return nil
}

// listAway asks nodes, and returns the names of those that are away or see no leader of etcd.
func (n *node) listAway(ctx context.Context, members []*etcdserverpb.Member) []string {
	var mu sync.Mutex
	var away []string
	var asking sync.WaitGroup
	for _, m := range members {
		asking.Go(func() {
			p := n.placeOf(m)
			if self, err := n.describe(ctx, p); err != nil || self.GetEtcd().GetLeader() == 0 {
				mu.Lock()
				defer mu.Unlock()
				away = append(away, cmp.Or(p.name, p.address))
			}
		})
	}
	asking.Wait()
	slices.Sort(away)
	return away
}

// changeMembers makes a change. Etcd refuses changes while it has lost sight of a member for a moment: then it is tried again for a while.
func (n *node) changeMembers(ctx context.Context, change func(context.Context, *clientv3.Client) error) error {
	client := n.etcd.Load()
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	pause := time.NewTicker(changeInterval)
	defer pause.Stop()
	for {
		err := change(ctx, client)
		if err == nil {
			return nil
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, time.Second, "etcd does not change its members now, so that it keeps its majority: %w", err)
		}
	}
}

// listAfter returns the nodes after a change that added one or removed another, by name. A node that was added has no name in etcd yet.
func (n *node) listAfter(before []*etcdserverpb.Member, added, removed nodePlace) []*scribev1.NodeAddress {
	var places []nodePlace
	for _, m := range before {
		if p := n.placeOf(m); p != removed {
			places = append(places, p)
		}
	}
	if added != (nodePlace{}) {
		places = append(places, added)
	}
	slices.SortFunc(places, compareNodes)
	return nodeMessages(places)
}
