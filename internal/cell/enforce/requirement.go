package enforce

import (
	"context"
	"strings"

	"scribe/internal/cell/access"
	"scribe/internal/transport/principal"
	"scribe/proto/scribe/v1/scribev1connect"
)

// requirement is what a call needs before its content is looked at, in a closed cell.
type requirement struct {
	// member: only members of the cell may.
	member bool
	// lasting: the call lasts, so its caller is asked for again whenever rights change. A cell may be closed while strangers listen.
	lasting bool
	// everybody: nothing needs to be proved.
	everybody bool
	// reads: a member may ask for it on behalf of somebody who is limited to some rows and columns. Its answer is made for that one.
	reads bool
	// cell is a permission on the cell as a whole; any are permissions of which the caller must have one somewhere. What the call
	// names is checked where it is known.
	cell, any access.Permission
}

var (
	membersOnly = requirement{member: true}
	watches     = requirement{member: true, lasting: true}
	operators   = requirement{cell: access.Operate}
	monitors    = requirement{cell: access.Monitor}
	everybody   = requirement{everybody: true}
	anyRight    = requirement{any: access.All}
)

func needs(what access.Permission) requirement { return requirement{any: what} }

// forReaders is what is needed for a call that a member may also make on behalf of a reader.
func forReaders(r requirement) requirement {
	r.reads = true
	return r
}

// procedures are the requirements of all calls. One that is not here is for members only.
var procedures = map[string]requirement{
	scribev1connect.WriteServiceWriteProcedure:   needs(access.Write),
	scribev1connect.WriteServicePublishProcedure: needs(access.Write),

	scribev1connect.BatchServiceSubmitProcedure: membersOnly,
	scribev1connect.PushServicePushProcedure:    membersOnly,

	scribev1connect.ReadStreamServiceStreamProcedure: forReaders(needs(access.Read)),
	scribev1connect.ReadStreamServiceBoundsProcedure: forReaders(needs(access.Read)),
	scribev1connect.ReadProxyServiceFetchProcedure:   forReaders(needs(access.Read)),
	scribev1connect.ViewServiceViewsProcedure:        operators, // it shows the text of queries

	scribev1connect.ControlServiceCreateCategoryProcedure:    needs(access.Manage),
	scribev1connect.ControlServiceUpdateCategoryProcedure:    needs(access.Manage),
	scribev1connect.ControlServiceDeleteCategoryProcedure:    needs(access.Manage),
	scribev1connect.ControlServiceGetCategoryProcedure:       forReaders(anyRight),
	scribev1connect.ControlServiceListCategoriesProcedure:    anyRight,
	scribev1connect.ControlServiceGetStatusProcedure:         forReaders(anyRight),
	scribev1connect.ControlServiceListMembersProcedure:       monitors,
	scribev1connect.ControlServiceListDroppedProcedure:       monitors,
	scribev1connect.ControlServiceWatchCategoriesProcedure:   watches,
	scribev1connect.ControlServiceWatchMembersProcedure:      watches,
	scribev1connect.ControlServiceJoinProcedure:              membersOnly,
	scribev1connect.ControlServiceHeartbeatProcedure:         membersOnly,
	scribev1connect.ControlServiceLeaveProcedure:             membersOnly,
	scribev1connect.ControlServiceForgetDroppedProcedure:     membersOnly,
	scribev1connect.ControlServiceHoldPinsProcedure:          membersOnly,
	scribev1connect.ControlServiceListPinsProcedure:          monitors,
	scribev1connect.ControlServiceShareQuotasProcedure:       membersOnly,
	scribev1connect.ControlServiceSetTenantQuotaProcedure:    needs(access.Manage),
	scribev1connect.ControlServiceRemoveTenantQuotaProcedure: needs(access.Manage),
	scribev1connect.ControlServiceListTenantQuotasProcedure:  anyRight,

	scribev1connect.GroupServiceJoinGroupProcedure:      needs(access.Group),
	scribev1connect.GroupServiceHeartbeatGroupProcedure: needs(access.Group),
	scribev1connect.GroupServiceGroupPositionsProcedure: needs(access.Group),
	scribev1connect.GroupServiceCommitGroupProcedure:    needs(access.Group),
	scribev1connect.GroupServiceLeaveGroupProcedure:     needs(access.Group),
	scribev1connect.GroupServiceListGroupsProcedure:     needs(access.Group),
	scribev1connect.GroupServiceDescribeGroupProcedure:  needs(access.Group),
	scribev1connect.GroupServiceResetGroupProcedure:     needs(access.Group),
	scribev1connect.GroupServiceDeleteGroupProcedure:    needs(access.Group),

	// What operators look at with scribe inspect; pointers of all categories are among it.
	scribev1connect.MetalogServiceReadProcedure:            operators,
	scribev1connect.MetalogServiceTailProcedure:            operators,
	scribev1connect.MetalogServiceSeekProcedure:            operators,
	scribev1connect.MetalogServiceListShardsProcedure:      operators,
	scribev1connect.MetalogServiceAnnotationsProcedure:     operators,
	scribev1connect.MetalogServiceSequencesProcedure:       operators,
	scribev1connect.MetalogServiceAdvanceBoundaryProcedure: operators, // who may only ask where it is: metalogService sees to that
	scribev1connect.MetalogServiceSubscribeProcedure:       watches,
	scribev1connect.MetalogServiceWatchShardsProcedure:     watches,
	scribev1connect.MetalogServiceOpenProcedure:            membersOnly,
	scribev1connect.MetalogServiceAppendProcedure:          membersOnly,
	scribev1connect.MetalogServiceTrimProcedure:            membersOnly,
	scribev1connect.MetalogServiceSealProcedure:            membersOnly,
	scribev1connect.MetalogServiceRetireProcedure:          membersOnly,
	scribev1connect.MetalogServiceEraseProcedure:           membersOnly,
	scribev1connect.MetalogServiceAnnotateProcedure:        membersOnly,

	// What a process says of itself names categories of all tenants.
	scribev1connect.ProcessServiceGetHealthProcedure:  monitors,
	scribev1connect.ProcessServiceGetTrafficProcedure: monitors,

	scribev1connect.NodeServiceDescribeNodeProcedure: monitors,
	scribev1connect.NodeServiceListNodesProcedure:    monitors,
	scribev1connect.NodeServiceAddNodeProcedure:      operators,
	scribev1connect.NodeServiceReplaceNodeProcedure:  operators,
	scribev1connect.NodeServiceRemoveNodeProcedure:   operators,
	scribev1connect.NodeServiceDetachCellProcedure:   operators,

	scribev1connect.BackupServiceCreateBackupProcedure: operators,

	scribev1connect.AccessServiceIssueTokenProcedure:   operators,
	scribev1connect.AccessServiceListTokensProcedure:   operators,
	scribev1connect.AccessServiceRevokeTokenProcedure:  operators,
	scribev1connect.AccessServiceAddGrantsProcedure:    operators,
	scribev1connect.AccessServiceRemoveGrantsProcedure: operators,
	scribev1connect.AccessServiceListGrantsProcedure:   operators,
	scribev1connect.AccessServiceCheckAccessProcedure:  operators,
	scribev1connect.AccessServiceWatchAccessProcedure:  watches, // it has keys
}

// paths are the requirements of what is not a procedure, by the beginnings of paths. Any other path is for members only.
var paths = []struct {
	prefix string
	of     requirement
}{
	{"/livez", everybody},
	{"/readyz", everybody},
	{"/", everybody}, // the console, which holds no data
	{"/console/", everybody},
	{"/metrics", monitors},
	{"/debug/pprof/", operators},
	{"/v1/query", needs(access.Query)},
	{"/v1/status", anyRight},
	{"/v1/traffic", monitors},
	{"/v1/tail/", needs(access.Read)},
	{"/v1/lines/", needs(access.Write)},
	{"/arrow.flight.protocol.FlightService/", needs(access.Query)},
}

// requirementOf returns what a request to a path needs.
func requirementOf(path string) requirement {
	if r, ok := procedures[path]; ok {
		return r
	}
	for _, p := range paths {
		if path == p.prefix || p.prefix != "/" && strings.HasSuffix(p.prefix, "/") && strings.HasPrefix(path, p.prefix) {
			return p.of
		}
	}
	return membersOnly
}

// admitCall returns an error unless a call to a path can be open to the caller of ctx.
func (e *Enforcer) admitCall(ctx context.Context, path string) error {
	r := requirementOf(path)
	p := principal.FromContext(ctx)
	act := "call " + shortenName(path)
	switch {
	case isImposed(ctx) && !r.reads:
		return errRestrictedMember
	case r.everybody || e.IsFree(ctx):
		return nil
	case p.Kind == principal.Anonymous:
		return e.deny(ctx, p, e.orUnknown(access.Unproven), act)
	case r.member:
		return e.deny(ctx, p, e.orUnknown(access.NotMember), act)
	case r.cell != 0:
		return e.AllowCell(ctx, r.cell, r.cell.String()+" the cell")
	default:
		return e.AllowAny(ctx, r.any, act)
	}
}
