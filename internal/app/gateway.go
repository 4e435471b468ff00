package app

import (
	"context"

	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// gateway answers for the control plane in a process that may not be it, and describes its own process.
type gateway struct {
	rpc.ControlService
	version   string
	startedAt int64
	roles     []scribev1.Role
}

// GetStatus describes this process, with the members and categories that the control plane knows. A process that can't reach it
// still describes itself: clients learn what it offers.
func (g *gateway) GetStatus(ctx context.Context, req *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error) {
	res, err := g.ControlService.GetStatus(ctx, req)
	if err != nil {
		res = &scribev1.GetStatusResponse{}
	}
	return &scribev1.GetStatusResponse{Version: g.version, StartedAt: g.startedAt, Roles: g.roles, Members: res.GetMembers(), Categories: res.GetCategories()}, nil
}
