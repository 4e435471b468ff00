package enforce

import (
	"cmp"
	"context"

	"scribe/internal/cell/access"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// groupService serves the consumer groups of categories that the caller has the permission for.
type groupService struct {
	rpc.GroupService
	e *Enforcer
}

// unknownGroup is the answer for a group that does not exist, and for one of a category that the caller has no right to.
func (s groupService) unknownGroup(group string) error {
	return rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_GROUP, "group %q does not exist, or is of a category that you may not use groups of", shortenName(group))
}

// findGroup returns a group; nil if it does not exist.
func (s groupService) findGroup(ctx context.Context, name string) (*scribev1.Group, error) {
	// The first name that begins with the group's is its own.
	res, err := s.GroupService.ListGroups(ctx, &scribev1.ListGroupsRequest{Prefix: name, Limit: 1})
	if err != nil || len(res.GetGroups()) == 0 || name == "" || res.GetGroups()[0].GetName() != name {
		return nil, err
	}
	return res.GetGroups()[0], nil
}

// allowGroup returns an error unless the caller has the permission for the category of a group. It returns the group also then, nil if it does not exist.
func (s groupService) allowGroup(ctx context.Context, name string) (*scribev1.Group, error) {
	group, err := s.findGroup(ctx, name)
	if err == nil && (group == nil || !s.mayUse(ctx, group)) {
		err = s.unknownGroup(name)
	}
	return group, err
}

// mayUse reports whether the caller of ctx may use a group.
func (s groupService) mayUse(ctx context.Context, g *scribev1.Group) bool {
	return s.e.decide(ctx, principal.FromContext(ctx), access.Group, g.GetCategory()).cause == access.Allowed
}

// JoinGroup implements rpc.GroupService. A group of that name may be of another category: then only who has the permission for that
// one learns of it.
func (s groupService) JoinGroup(ctx context.Context, req *scribev1.JoinGroupRequest) (*scribev1.JoinGroupResponse, error) {
	if s.e.IsFree(ctx) {
		s.e.countAccess(ctx, access.Group, req.GetCategory())
		return s.GroupService.JoinGroup(ctx, req)
	}
	if err := s.e.checkCategory(ctx, access.Group, req.GetCategory()); err != nil {
		return nil, err
	}
	mayJoin := func() error {
		group, err := s.allowGroup(ctx, req.GetGroup())
		if group == nil && rpc.ReasonOf(err) == scribev1.Reason_REASON_UNKNOWN_GROUP {
			return nil // it is created
		}
		return err
	}
	if err := mayJoin(); err != nil {
		return nil, err
	}
	s.e.countAccess(ctx, access.Group, req.GetCategory())
	res, err := s.GroupService.JoinGroup(ctx, req)
	if rpc.ReasonOf(err) == scribev1.Reason_REASON_CONFLICT { // it may have been created for another category meanwhile, which the error names
		if err := mayJoin(); err != nil {
			return nil, err
		}
	}
	return res, err
}

// callGroup makes a call about a group that exists.
func callGroup[Req interface{ GetGroup() string }, Res any](ctx context.Context, s groupService, req Req, call func(context.Context, Req) (Res, error)) (Res, error) {
	free := s.e.IsFree(ctx)
	if free && (!s.e.trail.NotesAccess() || principal.FromContext(ctx).Kind == principal.Member) {
		return call(ctx, req)
	}
	group, err := s.allowGroup(ctx, req.GetGroup())
	if err != nil && !free { // else the role answers
		var none Res
		return none, err
	}
	if group != nil {
		s.e.countAccess(ctx, access.Group, group.GetCategory())
	}
	return call(ctx, req)
}

// HeartbeatGroup implements rpc.GroupService.
func (s groupService) HeartbeatGroup(ctx context.Context, req *scribev1.HeartbeatGroupRequest) (*scribev1.HeartbeatGroupResponse, error) {
	return callGroup(ctx, s, req, s.GroupService.HeartbeatGroup)
}

// GroupPositions implements rpc.GroupService.
func (s groupService) GroupPositions(ctx context.Context, req *scribev1.GroupPositionsRequest) (*scribev1.GroupPositionsResponse, error) {
	return callGroup(ctx, s, req, s.GroupService.GroupPositions)
}

// CommitGroup implements rpc.GroupService.
func (s groupService) CommitGroup(ctx context.Context, req *scribev1.CommitGroupRequest) (*scribev1.CommitGroupResponse, error) {
	return callGroup(ctx, s, req, s.GroupService.CommitGroup)
}

// LeaveGroup implements rpc.GroupService.
func (s groupService) LeaveGroup(ctx context.Context, req *scribev1.LeaveGroupRequest) (*scribev1.LeaveGroupResponse, error) {
	return callGroup(ctx, s, req, s.GroupService.LeaveGroup)
}

// DescribeGroup implements rpc.GroupService.
func (s groupService) DescribeGroup(ctx context.Context, req *scribev1.DescribeGroupRequest) (*scribev1.DescribeGroupResponse, error) {
	return callGroup(ctx, s, req, s.GroupService.DescribeGroup)
}

// ResetGroup implements rpc.GroupService.
func (s groupService) ResetGroup(ctx context.Context, req *scribev1.ResetGroupRequest) (*scribev1.ResetGroupResponse, error) {
	return callGroup(ctx, s, req, s.GroupService.ResetGroup)
}

// DeleteGroup implements rpc.GroupService.
func (s groupService) DeleteGroup(ctx context.Context, req *scribev1.DeleteGroupRequest) (*scribev1.DeleteGroupResponse, error) {
	return callGroup(ctx, s, req, s.GroupService.DeleteGroup)
}

// ListGroups implements rpc.GroupService. It leaves out groups that the caller may not use, and says that there are more only if there
// are more that it may use.
func (s groupService) ListGroups(ctx context.Context, req *scribev1.ListGroupsRequest) (*scribev1.ListGroupsResponse, error) {
	if s.e.IsFree(ctx) {
		return s.GroupService.ListGroups(ctx, req)
	}
	const most = 1000
	limit := int(cmp.Or(min(req.GetLimit(), most), most))
	out := &scribev1.ListGroupsResponse{Next: req.GetAfter()}
	ask := &scribev1.ListGroupsRequest{Prefix: req.GetPrefix(), After: req.GetAfter(), Category: req.GetCategory()}
	for {
		page, err := s.GroupService.ListGroups(ctx, ask)
		if err != nil {
			return nil, err
		}
		for _, g := range page.GetGroups() {
			if !s.mayUse(ctx, g) {
				continue
			}
			if len(out.GetGroups()) == limit {
				out.More = true
				return out, nil
			}
			out.Groups, out.Next = append(out.Groups, g), g.GetName()
		}
		if ask.After = page.GetNext(); !page.GetMore() {
			return out, nil
		}
	}
}
