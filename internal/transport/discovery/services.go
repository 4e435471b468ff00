package discovery

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"connectrpc.com/connect"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Write returns a WriteService over the cell's write proxies, or the host's agent when that is the given address. It does not
// repeat a request with an unknown outcome: the producer decides.
func (c *Cell) Write() rpc.WriteService { return writeService{c} }

// ReadStream returns a ReadStreamService over the cell's instances. It does not reopen a broken stream.
func (c *Cell) ReadStream() rpc.ReadStreamService { return readStreamService{c} }

// ReadProxy returns a ReadProxyService over the cell's instances. Each pointer goes to the home of its blob, whose cache serves
// all consumers. A request with pointers of several homes is split.
func (c *Cell) ReadProxy() rpc.ReadProxyService { return readProxyService{c} }

// writers are the roles that accept writes; an agent does only if the given address is one.
var writers = []scribev1.Role{scribev1.Role_ROLE_SCRIBED, scribev1.Role_ROLE_WRITEPROXY}

type writeService struct{ c *Cell }

// Write implements rpc.WriteService.
func (s writeService) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	return s.tryWrite(ctx, req, req.GetFrames(), func(w rpc.WriteService, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
		return w.Write(ctx, req)
	})
}

// WritePieces implements rpc.PieceWriter.
func (s writeService) WritePieces(ctx context.Context, req *scribev1.WriteRequest, frames ...[]byte) (*scribev1.WriteResponse, error) {
	var first []byte
	if len(frames) > 0 {
		first = frames[0]
	}
	return s.tryWrite(ctx, req, first, func(w rpc.WriteService, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
		return rpc.WritePieces(ctx, w, req, frames...)
	})
}

// Publish implements rpc.WriteService.
func (s writeService) Publish(ctx context.Context, req *scribev1.PublishRequest) (*scribev1.PublishResponse, error) {
	ch, err := s.c.chooseWriters(ctx, req.GetAck())
	if err != nil {
		return nil, err
	}
	return tryFrom(ctx, s.c, isRefused, ch, rolesBeside(ch, req.GetAck()), func(in roleInstance) (*scribev1.PublishResponse, error) {
		return clientOf(s.c, in, rpc.NewWriteClient).Publish(ctx, requestFor(s.c, in, req))
	})
}

// readStreams are the roles that serve streams.
var readStreams = []scribev1.Role{scribev1.Role_ROLE_READSTREAM}

// Metalog returns a client of the cell's served metadata logs, for tools that inspect them.
func (c *Cell) Metalog(ctx context.Context) (rpc.MetalogService, error) {
	ch, err := c.chooseInstances(ctx, nil, scribev1.Role_ROLE_METALOG)
	if err != nil {
		return nil, err
	}
	return clientOf(c, roleInstance{ch.role, ch.urls[0]}, rpc.NewMetalogClient), nil
}

type readStreamService struct{ c *Cell }

// ErrBroken is the cause with which a caller cancels the context of a call if the instance does not answer or contradicts itself.
// The instance is then avoided for a while.
var ErrBroken = errors.New("discovery: the instance is broken")

// Stream implements rpc.ReadStreamService. There is no retry, since the caller's steps are consumed. An instance is avoided for a
// while if it evicts a stream because others have less load, if the connection breaks, or if the caller reports it as broken
// (ErrBroken).
func (s readStreamService) Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
	in, err := s.c.chooseForStream(ctx, scribev1.Role_ROLE_READSTREAM)
	if err != nil {
		return err
	}
	var sentAway error
	err = clientOf(s.c, in, rpc.NewReadStreamClient).Stream(ctx, recv, func(res *scribev1.StreamResponse) error {
		switch e := res.GetEvicted(); e.GetReason() { //nolint:exhaustive // after others the instance is as good as any
		case scribev1.Reason_REASON_OVERLOADED, scribev1.Reason_REASON_SHUTTING_DOWN:
			sentAway = rpc.RetryErrorf(e.GetReason(), passOver, "%s", e.GetMessage())
		}
		return send(res)
	})
	switch {
	case err == nil && sentAway != nil:
		s.c.reportOutcome(in, sentAway)
	case err == nil:
		s.c.reportOutcome(in, nil)
	case errors.Is(context.Cause(ctx), ErrBroken), ctx.Err() == nil && refusedOrLost(err):
		s.c.reportOutcome(in, err)
	}
	return err
}

// Bounds implements rpc.ReadStreamService.
func (s readStreamService) Bounds(ctx context.Context, req *scribev1.BoundsRequest) (*scribev1.BoundsResponse, error) {
	return try(ctx, s.c, refusedOrLost, readStreams, func(in roleInstance) (*scribev1.BoundsResponse, error) {
		return clientOf(s.c, in, rpc.NewReadStreamClient).Bounds(ctx, req)
	})
}

// Group returns a GroupService over the cell's control planes. It does not repeat a call with an unknown outcome.
func (c *Cell) Group() rpc.GroupService { return groupService{c} }

type groupService struct{ c *Cell }

// coordinators are the roles that serve groups.
var coordinators = []scribev1.Role{scribev1.Role_ROLE_CONTROLPLANE}

// askGroup calls an instance that serves groups. If none is known it calls the given address, since every process forwards such
// calls.
func askGroup[Req, Res any](ctx context.Context, s groupService, req Req, call func(rpc.GroupService, context.Context, Req) (Res, error)) (Res, error) {
	res, err := try(ctx, s.c, isRefused, coordinators, func(in roleInstance) (Res, error) {
		return call(clientOf(s.c, in, rpc.NewGroupClient), ctx, req)
	})
	if err != nil && ctx.Err() == nil && rpc.ReasonOf(err) == scribev1.Reason_REASON_NO_BACKEND {
		return call(rpc.NewGroupClient(s.c.transport, s.c.server), ctx, req)
	}
	return res, err
}

// JoinGroup implements rpc.GroupService.
func (s groupService) JoinGroup(ctx context.Context, req *scribev1.JoinGroupRequest) (*scribev1.JoinGroupResponse, error) {
	return askGroup(ctx, s, req, rpc.GroupService.JoinGroup)
}

// HeartbeatGroup implements rpc.GroupService.
func (s groupService) HeartbeatGroup(ctx context.Context, req *scribev1.HeartbeatGroupRequest) (*scribev1.HeartbeatGroupResponse, error) {
	return askGroup(ctx, s, req, rpc.GroupService.HeartbeatGroup)
}

// GroupPositions implements rpc.GroupService.
func (s groupService) GroupPositions(ctx context.Context, req *scribev1.GroupPositionsRequest) (*scribev1.GroupPositionsResponse, error) {
	return askGroup(ctx, s, req, rpc.GroupService.GroupPositions)
}

// CommitGroup implements rpc.GroupService.
func (s groupService) CommitGroup(ctx context.Context, req *scribev1.CommitGroupRequest) (*scribev1.CommitGroupResponse, error) {
	return askGroup(ctx, s, req, rpc.GroupService.CommitGroup)
}

// LeaveGroup implements rpc.GroupService.
func (s groupService) LeaveGroup(ctx context.Context, req *scribev1.LeaveGroupRequest) (*scribev1.LeaveGroupResponse, error) {
	return askGroup(ctx, s, req, rpc.GroupService.LeaveGroup)
}

// ListGroups implements rpc.GroupService.
func (s groupService) ListGroups(ctx context.Context, req *scribev1.ListGroupsRequest) (*scribev1.ListGroupsResponse, error) {
	return askGroup(ctx, s, req, rpc.GroupService.ListGroups)
}

// DescribeGroup implements rpc.GroupService.
func (s groupService) DescribeGroup(ctx context.Context, req *scribev1.DescribeGroupRequest) (*scribev1.DescribeGroupResponse, error) {
	return askGroup(ctx, s, req, rpc.GroupService.DescribeGroup)
}

// ResetGroup implements rpc.GroupService.
func (s groupService) ResetGroup(ctx context.Context, req *scribev1.ResetGroupRequest) (*scribev1.ResetGroupResponse, error) {
	return askGroup(ctx, s, req, rpc.GroupService.ResetGroup)
}

// DeleteGroup implements rpc.GroupService.
func (s groupService) DeleteGroup(ctx context.Context, req *scribev1.DeleteGroupRequest) (*scribev1.DeleteGroupResponse, error) {
	return askGroup(ctx, s, req, rpc.GroupService.DeleteGroup)
}

// try calls one instance after another until one answers, or one fails with an error that other instances would return too.
func try[T any](ctx context.Context, c *Cell, elsewhere func(error) bool, roles []scribev1.Role, call func(roleInstance) (T, error)) (T, error) {
	ch, err := c.chooseInstances(ctx, nil, roles...)
	if err != nil {
		var zero T
		return zero, err
	}
	return tryFrom(ctx, c, elsewhere, ch, roles, call)
}

// tryFrom is try that begins with instances that were chosen. Without roles there are no others.
func tryFrom[T any](
	ctx context.Context, c *Cell, elsewhere func(error) bool, ch instanceChoice, roles []scribev1.Role, call func(roleInstance) (T, error),
) (T, error) {
	res, err := tryChosen(ctx, c, elsewhere, ch, call)
	if others := c.chooseOthers(ctx, ch, err, roles); len(others.urls) > 0 {
		return tryChosen(ctx, c, elsewhere, others, call)
	}
	return res, err
}

// chooseOthers returns the instances that took over from those that were chosen, if these are stopping.
func (c *Cell) chooseOthers(ctx context.Context, chosen instanceChoice, refusal error, roles []scribev1.Role) (others instanceChoice) {
	if len(roles) == 0 || refusal == nil || rpc.ReasonOf(refusal) != scribev1.Reason_REASON_SHUTTING_DOWN || len(chosen.urls) > maxTries || ctx.Err() != nil {
		return others
	}
	others, err := c.chooseInstances(ctx, nil, roles...)
	if err != nil {
		return instanceChoice{}
	}
	if others.role == chosen.role {
		others.urls = slices.DeleteFunc(others.urls, func(url string) bool { return slices.Contains(chosen.urls, url) })
	}
	return others
}

// tryChosen is try with instances that were chosen.
func tryChosen[T any](ctx context.Context, c *Cell, elsewhere func(error) bool, ch instanceChoice, call func(roleInstance) (T, error)) (T, error) {
	var zero T
	var failed []error
	for _, url := range ch.urls[:min(len(ch.urls), maxTries)] {
		in := roleInstance{ch.role, url}
		res, err := call(in)
		if err == nil {
			c.reportOutcome(in, nil)
			return res, nil
		}
		failed = append(failed, err)
		if ctx.Err() != nil || !elsewhere(err) {
			break
		}
		c.reportOutcome(in, err)
	}
	return zero, joinErrors(failed)
}

// joinErrors combines the errors of several instances into one. The last one tells the outcome of the request, unless it only
// says that an instance can't be reached and another error says more.
func joinErrors(failed []error) error {
	last := len(failed) - 1
	main := last
	for main > 0 && rpc.ReasonOf(failed[main]) == scribev1.Reason_REASON_NO_BACKEND {
		main--
	}
	if rpc.ReasonOf(failed[main]) == scribev1.Reason_REASON_NO_BACKEND {
		main = last
	}
	err := failed[main]
	if last == 0 {
		return err
	}
	others := slices.Delete(slices.Clone(failed), main, main+1)
	return fmt.Errorf("%w (%d other instances failed: %v)", err, len(others), errors.Join(others...)) //nolint:errorlint // one error has a reason
}

// isRefused reports whether an instance refused a request that another one may carry out.
func isRefused(err error) bool {
	switch rpc.ReasonOf(err) {
	case scribev1.Reason_REASON_NO_BACKEND, scribev1.Reason_REASON_SHUTTING_DOWN, scribev1.Reason_REASON_OVERLOADED:
		return true
	default:
		// The address belongs to another service by now.
		return connect.CodeOf(err) == connect.CodeUnimplemented
	}
}
