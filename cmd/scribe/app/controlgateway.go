package app

import (
	"context"
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
	roles     []scribev1.Role

	mu struct {
		sync.Mutex
		// silent means that the control plane did not answer; then only awaitControlPlane asks it.
		silent bool
	}
	listening sync.WaitGroup
	life      context.Context //nolint:containedctx // of listen, which no call waits for
	end       context.CancelFunc
}

func newControlGateway(control rpc.ControlService, version string, started time.Time, roles []scribev1.Role) *controlGateway {
	g := &controlGateway{ControlService: control, version: version, startedAt: started.UnixMicro(), roles: roles}
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
	return &scribev1.GetStatusResponse{
		Version: g.version, StartedAt: g.startedAt, Roles: g.roles,
		Members: cell.GetMembers(), Categories: cell.GetCategories(), RetirementsPending: cell.GetRetirementsPending(),
		Leadership: cell.GetLeadership(),
	}, nil
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
