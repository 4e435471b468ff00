package rpc

import (
	"context"
	"slices"

	scribev1 "scribe/proto/scribe/v1"
	"scribe/proto/scribe/v1/scribev1connect"
)

// WriteService accepts messages. scribed and the write proxy implement it.
type WriteService = scribev1connect.WriteServiceHandler

// PieceWriter is a WriteService that accepts the frames of a request in pieces of memory, without a copy. The concatenated pieces
// stand for WriteRequest.Frames, which is not used. They are not used after it returns.
type PieceWriter interface {
	WritePieces(ctx context.Context, req *scribev1.WriteRequest, frames ...[]byte) (*scribev1.WriteResponse, error)
}

// WritePieces writes frames that are in pieces: without a copy if the service is a [PieceWriter], otherwise concatenated.
func WritePieces(ctx context.Context, s WriteService, req *scribev1.WriteRequest, frames ...[]byte) (*scribev1.WriteResponse, error) {
	if w, ok := s.(PieceWriter); ok {
		return w.WritePieces(ctx, req, frames...)
	}
	return s.Write(ctx, &scribev1.WriteRequest{Frames: slices.Concat(frames...), Ack: req.GetAck(), Follows: req.GetFollows(), Lingered: req.GetLingered()})
}

// BatchService accepts admitted frames. The batcher implements it.
type BatchService = scribev1connect.BatchServiceHandler

// ReadStreamService merges shards into a stream of pointers.
type ReadStreamService interface {
	// Bounds returns the readable range of shards.
	Bounds(ctx context.Context, req *scribev1.BoundsRequest) (*scribev1.BoundsResponse, error)
	// Stream runs one stream until ctx ends, recv or send fails, or the server evicts it (nil after the notice). recv blocks
	// for the client's next step until the context given to it ends; it fails with io.EOF when the client sends no more, which
	// does not end the stream. It is not called concurrently with itself, nor is send; the two may run at the same time.
	// Neither is called after Stream has returned.
	Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error
}

// ReadProxyService serves payloads.
type ReadProxyService = scribev1connect.ReadProxyServiceHandler

// ViewService reports the views that a read proxy makes for queries.
type ViewService = scribev1connect.ViewServiceHandler

// PushService takes blocks from batchers. The data of pushed blocks belongs to the service from then on: the caller must not
// change it.
type PushService = scribev1connect.PushServiceHandler

// MetalogService serves a metadata engine.
type MetalogService interface {
	Open(ctx context.Context, req *scribev1.OpenRequest) (*scribev1.OpenResponse, error)
	Append(ctx context.Context, req *scribev1.AppendRequest) (*scribev1.AppendResponse, error)
	Read(ctx context.Context, req *scribev1.ReadRequest) (*scribev1.ReadResponse, error)
	Tail(ctx context.Context, req *scribev1.TailRequest) (*scribev1.TailResponse, error)
	Subscribe(ctx context.Context, req *scribev1.SubscribeRequest, send func(*scribev1.SubscribeResponse) error) error
	Seek(ctx context.Context, req *scribev1.SeekRequest) (*scribev1.SeekResponse, error)
	Trim(ctx context.Context, req *scribev1.TrimRequest) (*scribev1.TrimResponse, error)
	Seal(ctx context.Context, req *scribev1.SealRequest) (*scribev1.SealResponse, error)
	Retire(ctx context.Context, req *scribev1.RetireRequest) (*scribev1.RetireResponse, error)
	Erase(ctx context.Context, req *scribev1.EraseRequest) (*scribev1.EraseResponse, error)
	ListShards(ctx context.Context, req *scribev1.ListShardsRequest) (*scribev1.ListShardsResponse, error)
	WatchShards(ctx context.Context, req *scribev1.WatchShardsRequest, send func(*scribev1.WatchShardsResponse) error) error
	Sequences(ctx context.Context, req *scribev1.SequencesRequest) (*scribev1.SequencesResponse, error)
	AdvanceBoundary(ctx context.Context, req *scribev1.AdvanceBoundaryRequest) (*scribev1.AdvanceBoundaryResponse, error)
	Annotate(ctx context.Context, req *scribev1.AnnotateRequest) (*scribev1.AnnotateResponse, error)
	Annotations(ctx context.Context, req *scribev1.AnnotationsRequest) (*scribev1.AnnotationsResponse, error)
}

// ControlService keeps categories and membership.
type ControlService interface {
	CreateCategory(ctx context.Context, req *scribev1.CreateCategoryRequest) (*scribev1.CreateCategoryResponse, error)
	GetCategory(ctx context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error)
	ListCategories(ctx context.Context, req *scribev1.ListCategoriesRequest) (*scribev1.ListCategoriesResponse, error)
	UpdateCategory(ctx context.Context, req *scribev1.UpdateCategoryRequest) (*scribev1.UpdateCategoryResponse, error)
	DeleteCategory(ctx context.Context, req *scribev1.DeleteCategoryRequest) (*scribev1.DeleteCategoryResponse, error)
	WatchCategories(ctx context.Context, req *scribev1.WatchCategoriesRequest, send func(*scribev1.WatchCategoriesResponse) error) error
	Join(ctx context.Context, req *scribev1.JoinRequest) (*scribev1.JoinResponse, error)
	Heartbeat(ctx context.Context, req *scribev1.HeartbeatRequest) (*scribev1.HeartbeatResponse, error)
	Leave(ctx context.Context, req *scribev1.LeaveRequest) (*scribev1.LeaveResponse, error)
	ListMembers(ctx context.Context, req *scribev1.ListMembersRequest) (*scribev1.ListMembersResponse, error)
	WatchMembers(ctx context.Context, req *scribev1.WatchMembersRequest, send func(*scribev1.WatchMembersResponse) error) error
	GetStatus(ctx context.Context, req *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error)
	ListDropped(ctx context.Context, req *scribev1.ListDroppedRequest) (*scribev1.ListDroppedResponse, error)
	ForgetDropped(ctx context.Context, req *scribev1.ForgetDroppedRequest) (*scribev1.ForgetDroppedResponse, error)
	HoldPins(ctx context.Context, req *scribev1.HoldPinsRequest) (*scribev1.HoldPinsResponse, error)
	ListPins(ctx context.Context, req *scribev1.ListPinsRequest) (*scribev1.ListPinsResponse, error)
	ShareQuotas(ctx context.Context, req *scribev1.ShareQuotasRequest) (*scribev1.ShareQuotasResponse, error)
	SetTenantQuota(ctx context.Context, req *scribev1.SetTenantQuotaRequest) (*scribev1.SetTenantQuotaResponse, error)
	RemoveTenantQuota(ctx context.Context, req *scribev1.RemoveTenantQuotaRequest) (*scribev1.RemoveTenantQuotaResponse, error)
	ListTenantQuotas(ctx context.Context, req *scribev1.ListTenantQuotasRequest) (*scribev1.ListTenantQuotasResponse, error)
}

// AccessService keeps who may do what. The control plane serves it.
type AccessService interface {
	IssueToken(ctx context.Context, req *scribev1.IssueTokenRequest) (*scribev1.IssueTokenResponse, error)
	ListTokens(ctx context.Context, req *scribev1.ListTokensRequest) (*scribev1.ListTokensResponse, error)
	RevokeToken(ctx context.Context, req *scribev1.RevokeTokenRequest) (*scribev1.RevokeTokenResponse, error)
	AddGrants(ctx context.Context, req *scribev1.AddGrantsRequest) (*scribev1.AddGrantsResponse, error)
	RemoveGrants(ctx context.Context, req *scribev1.RemoveGrantsRequest) (*scribev1.RemoveGrantsResponse, error)
	ListGrants(ctx context.Context, req *scribev1.ListGrantsRequest) (*scribev1.ListGrantsResponse, error)
	CheckAccess(ctx context.Context, req *scribev1.CheckAccessRequest) (*scribev1.CheckAccessResponse, error)
	WatchAccess(ctx context.Context, req *scribev1.WatchAccessRequest, send func(*scribev1.WatchAccessResponse) error) error
}

// GroupService shares categories among the members of consumer groups. The control plane serves it.
type GroupService = scribev1connect.GroupServiceHandler

// ProcessService is what a process says of itself to operators. Every process serves it.
type ProcessService = scribev1connect.ProcessServiceHandler

// BackupService makes backups of a cell's metadata.
type BackupService = scribev1connect.BackupServiceHandler

// NodeService describes and changes the nodes of a cell. Every node serves it.
type NodeService = scribev1connect.NodeServiceHandler
