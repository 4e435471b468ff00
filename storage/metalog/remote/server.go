package remote

import (
	"context"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// engineServer serves an engine.
type engineServer struct {
	log metalog.Log
}

// NewServer returns a service of log. The caller still owns log and closes it.
func NewServer(log metalog.Log) rpc.MetalogService { return &engineServer{log: log} }

// Open implements rpc.MetalogService.
func (s *engineServer) Open(ctx context.Context, req *scribev1.OpenRequest) (*scribev1.OpenResponse, error) {
	states, err := s.log.Open(ctx, req.GetOwner(), shardIDs(req.GetShards()))
	return &scribev1.OpenResponse{States: convertAll(states, stateToProto)}, toRPC(err)
}

// Append implements rpc.MetalogService.
func (s *engineServer) Append(ctx context.Context, req *scribev1.AppendRequest) (*scribev1.AppendResponse, error) {
	done, err := s.log.Append(ctx, appendFromProto(req))
	return &scribev1.AppendResponse{Appended: convertAll(done, func(d metalog.Appended) *scribev1.Appended {
		return &scribev1.Appended{FirstLsn: uint64(d.FirstLSN), Time: d.Time}
	})}, toRPC(err)
}

// Read implements rpc.MetalogService.
func (s *engineServer) Read(ctx context.Context, req *scribev1.ReadRequest) (*scribev1.ReadResponse, error) {
	// Bounded before the conversion, which would make a large number negative where int has 32 bits.
	records := int(min(req.GetMaxRecords(), metalog.MaxReadRecords))
	bytes := int(min(req.GetMaxBytes(), metalog.MaxReadBytes))
	entries, err := s.log.Read(ctx, record.ShardID(req.GetShard()), record.LSN(req.GetFrom()), records, bytes)
	return &scribev1.ReadResponse{Entries: entriesToProto(entries)}, toRPC(err)
}

// Tail implements rpc.MetalogService.
func (s *engineServer) Tail(ctx context.Context, req *scribev1.TailRequest) (*scribev1.TailResponse, error) {
	states, err := s.log.Tail(ctx, shardIDs(req.GetShards()))
	return &scribev1.TailResponse{States: convertAll(states, stateToProto)}, toRPC(err)
}

// Subscribe implements rpc.MetalogService.
func (s *engineServer) Subscribe(ctx context.Context, req *scribev1.SubscribeRequest, send func(*scribev1.SubscribeResponse) error) error {
	from := convertAll(req.GetPositions(), positionFromProto)
	return serveStream(func(sent func(error) error) error {
		return s.log.Subscribe(ctx, from, req.GetHeartbeat().AsDuration(), func(updates []metalog.Update) error {
			return sent(send(&scribev1.SubscribeResponse{Updates: convertAll(updates, updateToProto)}))
		})
	})
}

// serveStream runs a call with a callback. It returns the callback's error as it is, and the engine's as an RPC error.
func serveStream(run func(sent func(error) error) error) error {
	var broken error
	err := run(func(err error) error {
		broken = err
		return err
	})
	if broken != nil {
		return broken
	}
	return toRPC(err)
}

// Seek implements rpc.MetalogService.
func (s *engineServer) Seek(ctx context.Context, req *scribev1.SeekRequest) (*scribev1.SeekResponse, error) {
	lsns, err := s.log.Seek(ctx, shardIDs(req.GetShards()), req.GetTime())
	return &scribev1.SeekResponse{Lsns: numbers(lsns)}, toRPC(err)
}

// Trim implements rpc.MetalogService.
func (s *engineServer) Trim(ctx context.Context, req *scribev1.TrimRequest) (*scribev1.TrimResponse, error) {
	return &scribev1.TrimResponse{}, toRPC(s.log.Trim(ctx, record.ShardID(req.GetShard()), record.LSN(req.GetBefore())))
}

// Seal implements rpc.MetalogService.
func (s *engineServer) Seal(ctx context.Context, req *scribev1.SealRequest) (*scribev1.SealResponse, error) {
	state, err := s.log.Seal(ctx, record.ShardID(req.GetShard()))
	return &scribev1.SealResponse{State: stateToProto(state)}, toRPC(err)
}

// Retire implements rpc.MetalogService.
func (s *engineServer) Retire(ctx context.Context, req *scribev1.RetireRequest) (*scribev1.RetireResponse, error) {
	return &scribev1.RetireResponse{}, toRPC(s.log.Retire(ctx, req.GetCategory()))
}

// Erase implements rpc.MetalogService.
func (s *engineServer) Erase(ctx context.Context, req *scribev1.EraseRequest) (*scribev1.EraseResponse, error) {
	return &scribev1.EraseResponse{}, toRPC(s.log.Erase(ctx, req.GetCategory()))
}

// ListShards implements rpc.MetalogService.
func (s *engineServer) ListShards(ctx context.Context, req *scribev1.ListShardsRequest) (*scribev1.ListShardsResponse, error) {
	list := s.log.Shards
	if req.GetRemoved() {
		list = func(ctx context.Context, category uint32) ([]metalog.State, error) {
			return s.log.RemovedShards(ctx, category, req.GetSince())
		}
	}
	states, err := list(ctx, req.GetCategory())
	return &scribev1.ListShardsResponse{States: convertAll(states, stateToProto)}, toRPC(err)
}

// RemoveShards implements rpc.MetalogService.
func (s *engineServer) RemoveShards(ctx context.Context, req *scribev1.RemoveShardsRequest) (*scribev1.RemoveShardsResponse, error) {
	removed, err := s.log.Remove(ctx, convertAll(req.GetShards(), unusedFromProto))
	return &scribev1.RemoveShardsResponse{Removed: uint32(removed)}, toRPC(err) //nolint:gosec // at most as many as asked for
}

// WatchShards implements rpc.MetalogService.
func (s *engineServer) WatchShards(ctx context.Context, req *scribev1.WatchShardsRequest, send func(*scribev1.WatchShardsResponse) error) error {
	return serveStream(func(sent func(error) error) error {
		return s.log.WatchShards(ctx, req.GetCategory(), func(shards []record.ShardID) error {
			return sent(send(&scribev1.WatchShardsResponse{Shards: numbers(shards)}))
		})
	})
}

// Sequences implements rpc.MetalogService.
func (s *engineServer) Sequences(ctx context.Context, req *scribev1.SequencesRequest) (*scribev1.SequencesResponse, error) {
	producers, err := s.log.Sequences(ctx, record.ShardID(req.GetShard()), req.GetProducers())
	return &scribev1.SequencesResponse{Producers: convertAll(producers, producerToProto)}, toRPC(err)
}

// AdvanceBoundary implements rpc.MetalogService.
func (s *engineServer) AdvanceBoundary(ctx context.Context, req *scribev1.AdvanceBoundaryRequest) (*scribev1.AdvanceBoundaryResponse, error) {
	t, err := s.log.AdvanceBoundary(ctx, req.GetTime())
	return &scribev1.AdvanceBoundaryResponse{Time: t}, toRPC(err)
}

// Annotate implements rpc.MetalogService.
func (s *engineServer) Annotate(ctx context.Context, req *scribev1.AnnotateRequest) (*scribev1.AnnotateResponse, error) {
	kept, err := s.log.Annotate(ctx, convertAll(req.GetAnnotations(), noteFromProto))
	return &scribev1.AnnotateResponse{Kept: uint32(kept)}, toRPC(err) //nolint:gosec // at most as many as asked for
}

// Annotations implements rpc.MetalogService.
func (s *engineServer) Annotations(ctx context.Context, req *scribev1.AnnotationsRequest) (*scribev1.AnnotationsResponse, error) {
	notes, until, err := s.log.Annotations(ctx, record.ShardID(req.GetShard()), record.LSN(req.GetFrom()), record.LSN(req.GetTo()),
		annotationKind(req.GetKind()), int(min(req.GetMaxBytes(), metalog.MaxReadBytes)))
	return &scribev1.AnnotationsResponse{Annotations: convertAll(notes, noteToProto), Until: uint64(until)}, toRPC(err)
}
