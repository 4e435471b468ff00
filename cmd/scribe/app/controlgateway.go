package app

import (
	"context"
	"slices"
	"sync"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// controlGateway serves ControlService in a process that may not have the control plane, and describes its own process.
type controlGateway struct {
	rpc.ControlService
	version   string
	startedAt int64
	// member is the id of this process among the members of its cell.
	member string
	roles  []scribev1.Role
	// lastKnown returns the members and the number of categories that the process knows without the control plane; nil if it knows none.
	lastKnown func() (members []*scribev1.Member, categories int)

	mu struct {
		sync.Mutex
		// silent means that the control plane did not answer; then only awaitControlPlane asks it.
		silent bool
		// stopping means that the process is about to stop; others are the members that go on.
		stopping bool
		others   []*scribev1.Member
	}
	listening sync.WaitGroup
	life      context.Context //nolint:containedctx // of listen, which no call waits for
	end       context.CancelFunc
}

func newControlGateway(control rpc.ControlService, version string, started time.Time, member string, roles []scribev1.Role) *controlGateway {
	g := &controlGateway{ControlService: control, version: version, startedAt: started.UnixMicro(), member: member, roles: roles}
	g.life, g.end = context.WithCancel(context.Background())
	return g
}

// close stops the gateway's goroutine and waits for it. The gateway still answers calls.
func (g *controlGateway) close(context.Context) error {
	g.mu.Lock()
	g.end() // with mu: no goroutine is started afterwards
	g.mu.Unlock()
	g.listening.Wait()
	return nil
}

const (
	// statusTimeout bounds the question to the control plane about the cell. It is much shorter than the timeouts of callers: programs of a
	// host must start and continue while everything that its agent forwards to hangs.
	statusTimeout = 500 * time.Millisecond
	// statusInterval is the pause between questions to a control plane that did not answer in that time. Programs ask their agent every few
	// seconds, during a write: only the first one waits.
	statusInterval = 5 * time.Second
)

// GetStatus describes this process, with the members and categories that the control plane knows. A process that can't reach it in a
// moment still describes itself: clients learn what it offers.
func (g *controlGateway) GetStatus(ctx context.Context, req *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error) {
	cell := g.cellStatus(ctx, req)
	roles, members := g.roles, cell.GetMembers()
	g.mu.Lock()
	stopping := g.mu.stopping
	if stopping {
		roles, members = g.lastRoles(g.mu.others), g.mu.others
	}
	g.mu.Unlock()
	res := &scribev1.GetStatusResponse{
		Version: g.version, StartedAt: g.startedAt, Roles: roles,
		Members: members, MembersAt: cell.GetMembersAt(), Categories: cell.GetCategories(), RetirementsPending: cell.GetRetirementsPending(),
		Leadership: cell.GetLeadership(), Stopping: stopping,
	}
	if cell == nil && g.lastKnown != nil {
		known, categories := g.lastKnown()
		res.KnownMembers, res.KnownCategories = known, uint64(categories) //nolint:gosec // not negative
	}
	return res, nil
}

// announceStop makes GetStatus name only those roles of this process that no other member has: clients go to the others at once, and wait for
// a process that nobody replaces. It returns the other members, as far as the control plane knows them.
func (g *controlGateway) announceStop(ctx context.Context) []*scribev1.Member {
	members := slices.Clone(g.cellStatus(ctx, &scribev1.GetStatusRequest{}).GetMembers())
	others := slices.DeleteFunc(members, func(m *scribev1.Member) bool { return m.GetId() == g.member })
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(others) > 0 {
		g.mu.stopping, g.mu.others = true, others
	}
	return others
}

// lastRoles are the roles that this process offers until it ends, because nobody else does. Writes go to the agent of a cell's process or to
// another write proxy; no other host's agent replaces one that is only that.
func (g *controlGateway) lastRoles(others []*scribev1.Member) []scribev1.Role {
	return slices.DeleteFunc(slices.Clone(g.roles), func(r scribev1.Role) bool {
		if r == scribev1.Role_ROLE_SCRIBED && slices.Contains(g.roles, scribev1.Role_ROLE_WRITEPROXY) {
			r = scribev1.Role_ROLE_WRITEPROXY
		}
		return r != scribev1.Role_ROLE_SCRIBED && hasRole(others, r)
	})
}

// hasRole reports whether any of some members has a role.
func hasRole(members []*scribev1.Member, r scribev1.Role) bool {
	return slices.ContainsFunc(members, func(m *scribev1.Member) bool { return slices.Contains(m.GetRoles(), r) })
}

// cellStatus returns the answer of the control plane; nil without one.
func (g *controlGateway) cellStatus(ctx context.Context, req *scribev1.GetStatusRequest) *scribev1.GetStatusResponse {
	g.mu.Lock()
	silent := g.mu.silent
	g.mu.Unlock()
	if silent {
		return nil
	}
	res, answered := g.askControlPlane(ctx, req)
	if answered || ctx.Err() != nil {
		return res
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.mu.silent && g.life.Err() == nil {
		g.mu.silent = true
		g.listening.Go(g.awaitControlPlane)
	}
	return nil
}

// askControlPlane asks the control plane for the status. answered is also true if it refused.
func (g *controlGateway) askControlPlane(ctx context.Context, req *scribev1.GetStatusRequest) (res *scribev1.GetStatusResponse, answered bool) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	res, err := g.ControlService.GetStatus(ctx, req)
	if err != nil {
		return nil, ctx.Err() == nil
	}
	return res, true
}

// awaitControlPlane asks a control plane that did not answer until it does.
func (g *controlGateway) awaitControlPlane() {
	t := time.NewTicker(statusInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-g.life.Done():
			return
		}
		if _, answered := g.askControlPlane(g.life, &scribev1.GetStatusRequest{}); answered {
			g.mu.Lock()
			g.mu.silent = false
			g.mu.Unlock()
			return
		}
	}
}
