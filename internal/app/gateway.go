package app

import (
	"context"
	"sync/atomic"
	"time"

	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// gateway answers for the control plane in a process that may not be it, and describes its own process.
type gateway struct {
	rpc.ControlService
	version   string
	startedAt int64
	roles     []scribev1.Role
	// silent is the time, in nanoseconds since 1970, until which a control plane that did not answer is not asked.
	silent atomic.Int64
}

const (
	// statusPatience is how long a process waits for the control plane to say what it knows of the cell: much less than those who ask
	// the process wait. A host's programs start, and go on, while everything behind its agent hangs.
	statusPatience = 500 * time.Millisecond
	// statusSilence is how long one that did not answer in that time is left alone, so that only some wait for it.
	statusSilence = 5 * time.Second
)

// GetStatus describes this process, with the members and categories that the control plane knows. A process that can't reach it in a
// moment still describes itself: clients learn what it offers.
func (g *gateway) GetStatus(ctx context.Context, req *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error) {
	cell := g.cellStatus(ctx, req)
	return &scribev1.GetStatusResponse{Version: g.version, StartedAt: g.startedAt, Roles: g.roles, Members: cell.GetMembers(), Categories: cell.GetCategories()}, nil
}

// cellStatus is what the control plane says; nil when it does not.
func (g *gateway) cellStatus(ctx context.Context, req *scribev1.GetStatusRequest) *scribev1.GetStatusResponse {
	if time.Now().UnixNano() < g.silent.Load() {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	res, err := g.ControlService.GetStatus(asking, req)
	if err != nil {
		if asking.Err() != nil && ctx.Err() == nil {
			g.silent.Store(time.Now().Add(statusSilence).UnixNano())
		}
		return nil
	}
	return res
}
