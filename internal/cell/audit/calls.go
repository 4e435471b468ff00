package audit

import (
	"context"
	"errors"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"scribe/internal/role/quota"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/proto/scribe/v1/scribev1connect"
)

// Procedures are the calls that the trail has: all that change something but messages and positions.
var Procedures = map[string]bool{
	scribev1connect.ControlServiceCreateCategoryProcedure:    true,
	scribev1connect.ControlServiceUpdateCategoryProcedure:    true,
	scribev1connect.ControlServiceDeleteCategoryProcedure:    true,
	scribev1connect.ControlServiceSetTenantQuotaProcedure:    true,
	scribev1connect.ControlServiceRemoveTenantQuotaProcedure: true,
	scribev1connect.GroupServiceResetGroupProcedure:          true,
	scribev1connect.GroupServiceDeleteGroupProcedure:         true,
	scribev1connect.BackupServiceCreateBackupProcedure:       true,
	scribev1connect.NodeServiceAddNodeProcedure:              true,
	scribev1connect.NodeServiceReplaceNodeProcedure:          true,
	scribev1connect.NodeServiceRemoveNodeProcedure:           true,
	scribev1connect.NodeServiceDetachCellProcedure:           true,
	scribev1connect.AccessServiceIssueTokenProcedure:         true,
	scribev1connect.AccessServiceRevokeTokenProcedure:        true,
	scribev1connect.AccessServiceAddGrantsProcedure:          true,
	scribev1connect.AccessServiceRemoveGrantsProcedure:       true,
}

// Interceptor returns what notes the calls of Procedures with their outcomes.
func (t *Trail) Interceptor() connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			res, err := next(ctx, req)
			if procedure := req.Spec().Procedure; Procedures[procedure] {
				t.noteCall(ctx, procedure, req.Any(), res, err)
			}
			return res, err
		}
	})
}

func (t *Trail) noteCall(ctx context.Context, procedure string, req any, res connect.AnyResponse, err error) {
	e := Entry{Action: procedure[strings.LastIndexByte(procedure, '/')+1:], Target: targetOf(req), Outcome: Done}
	switch reason := rpc.ReasonOf(err); {
	case err == nil && res != nil && e.Target == "":
		e.Target = targetOf(res.Any())
	case reason == scribev1.Reason_REASON_DENIED || reason == scribev1.Reason_REASON_UNAUTHENTICATED:
		return // the denial is noted where it was decided
	case err != nil:
		e.Outcome, e.Reason = Failed, scribev1.EnumName(reason)
		if c := new(connect.Error); reason == scribev1.Reason_REASON_UNSPECIFIED && errors.As(err, &c) {
			e.Reason = c.Code().String()
		}
	}
	if m, ok := req.(proto.Message); ok {
		text, _ := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m) // what can't be shown has no detail
		e.Detail = string(text)
	}
	t.Note(ctx, e)
}

// targetOf returns the name of what a request is about.
func targetOf(req any) string {
	switch r := req.(type) {
	case interface{ GetCategory() *scribev1.Category }:
		return r.GetCategory().GetName()
	case *scribev1.SetTenantQuotaRequest:
		return quota.TenantText(r.GetQuota().GetOwner(), r.GetQuota().GetPrefix())
	case *scribev1.RemoveTenantQuotaRequest:
		return quota.TenantText(r.GetOwner(), r.GetPrefix())
	case interface{ GetName() string }:
		return r.GetName()
	case interface{ GetGroup() string }:
		return r.GetGroup()
	case interface{ GetPrincipal() string }:
		return r.GetPrincipal()
	case interface{ GetId() string }:
		return r.GetId()
	case interface{ GetNode() string }:
		return r.GetNode()
	}
	return ""
}
