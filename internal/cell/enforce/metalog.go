package enforce

import (
	"context"

	"scribe/internal/cell/access"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// metalogService lets those who look at logs look only.
type metalogService struct {
	rpc.MetalogService
	e *Enforcer
}

// AdvanceBoundary implements rpc.MetalogService. With the time 0 it says where the boundary is. Raised too far it would have all appends fail, so whoever has
// proved to be no member may not, also in an open cell.
func (s metalogService) AdvanceBoundary(ctx context.Context, req *scribev1.AdvanceBoundaryRequest) (*scribev1.AdvanceBoundaryResponse, error) {
	p := principal.FromContext(ctx)
	if req.GetTime() != 0 && p.Kind != principal.Member && (p.Kind != principal.Anonymous || s.e.Closed()) {
		return nil, s.e.deny(ctx, p, access.NotMember, "raise the boundary of deletions")
	}
	return s.MetalogService.AdvanceBoundary(ctx, req)
}
