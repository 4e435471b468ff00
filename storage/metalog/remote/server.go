package remote

import (
	"context"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// server serves an engine.
type server struct {
	log metalog.Log
}

// NewServer returns a service of log, which stays the caller's to close.
func NewServer(log metalog.Log) rpc.MetalogService { return &server{log: log} }

// Open implements rpc.MetalogService.
func (s *server) Open(ctx context.Context, req *scribev1.OpenRequest) (*scribev1.OpenResponse, error) {
	states, err := s.log.Open(ctx, req.GetOwner(), ids(req.GetShards()))
	if err != nil {
		return nil, toRPC(err)
	}
	return &scribev1.OpenResponse{States: statesToProto(states)}, nil
}

// Append implements rpc.MetalogService.
func (s *server) Append(ctx context.Context, req *scribev1.AppendRequest) (*scribev1.AppendResponse, error) {
	done, err := s.log.Append(ctx, appendFromProto(req))
	if err != nil {
		return nil, toRPC(err)
	}
	res := &scribev1.AppendResponse{Appended: make([]*scribev1.Appended, len(done))}
	for i, d := range done {
		res.Appended[i] = &scribev1.Appended{FirstLsn: uint64(d.FirstLSN), Time: d.Time}
	}
	return res, nil
}

// Read implements rpc.MetalogService.
func (s *server) Read(ctx context.Context, req *scribev1.ReadRequest) (*scribev1.ReadResponse, error) {
	// Before the conversion, which would make a large number negative where int has 32 bits.
	records := int(min(req.GetMaxRecords(), metalog.MaxReadRecords))
	bytes := int(min(req.GetMaxBytes(), metalog.MaxReadBytes))
	entries, err := s.log.Read(ctx, record.ShardID(req.GetShard()), record.LSN(req.GetFrom()), records, bytes)
	if err != nil {
		return nil, toRPC(err)
	}
	return &scribev1.ReadResponse{Entries: entriesToProto(entries)}, nil
}

// Tail implements rpc.MetalogService.
func (s *server) Tail(ctx context.Context, req *scribev1.TailRequest) (*scribev1.TailResponse, error) {
	states, err := s.log.Tail(ctx, ids(req.GetShards()))
	if err != nil {
		return nil, toRPC(err)
	}
	return &scribev1.TailResponse{States: statesToProto(states)}, nil
}

// Subscribe implements rpc.MetalogService.
func (s *server) Subscribe(ctx context.Context, req *scribev1.SubscribeRequest, send func(*scribev1.SubscribeResponse) error) error {
	from := make([]metalog.Position, len(req.GetPositions()))
	for i, p := range req.GetPositions() {
		from[i] = metalog.Position{Shard: record.ShardID(p.GetShard()), LSN: record.LSN(p.GetLsn())}
	}
	return follow(func(sent func(error) error) error {
		return s.log.Subscribe(ctx, from, req.GetHeartbeat().AsDuration(), func(updates []metalog.Update) error {
			return sent(send(updatesToProto(updates)))
		})
	})
}

// follow runs a call with a callback, and returns the callback's error as it is and the engine's as an RPC's.
func follow(run func(sent func(error) error) error) error {
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
func (s *server) Seek(ctx context.Context, req *scribev1.SeekRequest) (*scribev1.SeekResponse, error) {
	lsns, err := s.log.Seek(ctx, ids(req.GetShards()), req.GetTime())
	if err != nil {
		return nil, toRPC(err)
	}
	return &scribev1.SeekResponse{Lsns: numbers(lsns)}, nil
}

// Trim implements rpc.MetalogService.
func (s *server) Trim(ctx context.Context, req *scribev1.TrimRequest) (*scribev1.TrimResponse, error) {
	if err := s.log.Trim(ctx, record.ShardID(req.GetShard()), record.LSN(req.GetBefore())); err != nil {
		return nil, toRPC(err)
	}
	return &scribev1.TrimResponse{}, nil
}

// Seal implements rpc.MetalogService.
func (s *server) Seal(ctx context.Context, req *scribev1.SealRequest) (*scribev1.SealResponse, error) {
	state, err := s.log.Seal(ctx, record.ShardID(req.GetShard()))
	if err != nil {
		return nil, toRPC(err)
	}
	return &scribev1.SealResponse{State: stateToProto(state)}, nil
}

// Retire implements rpc.MetalogService.
func (s *server) Retire(ctx context.Context, req *scribev1.RetireRequest) (*scribev1.RetireResponse, error) {
	if err := s.log.Retire(ctx, req.GetCategory()); err != nil {
		return nil, toRPC(err)
	}
	return &scribev1.RetireResponse{}, nil
}

// Erase implements rpc.MetalogService.
func (s *server) Erase(ctx context.Context, req *scribev1.EraseRequest) (*scribev1.EraseResponse, error) {
	if err := s.log.Erase(ctx, req.GetCategory()); err != nil {
		return nil, toRPC(err)
	}
	return &scribev1.EraseResponse{}, nil
}

// ListShards implements rpc.MetalogService.
func (s *server) ListShards(ctx context.Context, req *scribev1.ListShardsRequest) (*scribev1.ListShardsResponse, error) {
	states, err := s.log.Shards(ctx, req.GetCategory())
	if err != nil {
		return nil, toRPC(err)
	}
	return &scribev1.ListShardsResponse{States: statesToProto(states)}, nil
}

// WatchShards implements rpc.MetalogService.
func (s *server) WatchShards(ctx context.Context, req *scribev1.WatchShardsRequest, send func(*scribev1.WatchShardsResponse) error) error {
	return follow(func(sent func(error) error) error {
		return s.log.WatchShards(ctx, req.GetCategory(), func(shards []record.ShardID) error {
			return sent(send(&scribev1.WatchShardsResponse{Shards: numbers(shards)}))
		})
	})
}

// Sequences implements rpc.MetalogService.
func (s *server) Sequences(ctx context.Context, req *scribev1.SequencesRequest) (*scribev1.SequencesResponse, error) {
	producers, err := s.log.Sequences(ctx, record.ShardID(req.GetShard()), req.GetProducers())
	if err != nil {
		return nil, toRPC(err)
	}
	res := &scribev1.SequencesResponse{Producers: make([]*scribev1.ProducerState, len(producers))}
	for i, p := range producers {
		res.Producers[i] = producerToProto(p)
	}
	return res, nil
}

// AdvanceBoundary implements rpc.MetalogService.
func (s *server) AdvanceBoundary(ctx context.Context, req *scribev1.AdvanceBoundaryRequest) (*scribev1.AdvanceBoundaryResponse, error) {
	t, err := s.log.AdvanceBoundary(ctx, req.GetTime())
	if err != nil {
		return nil, toRPC(err)
	}
	return &scribev1.AdvanceBoundaryResponse{Time: t}, nil
}

// Annotate implements rpc.MetalogService.
func (s *server) Annotate(ctx context.Context, req *scribev1.AnnotateRequest) (*scribev1.AnnotateResponse, error) {
	kept, err := s.log.Annotate(ctx, notesFromProto(req.GetAnnotations()))
	if err != nil {
		return nil, toRPC(err)
	}
	return &scribev1.AnnotateResponse{Kept: uint32(kept)}, nil //nolint:gosec // at most as many as asked for
}

// Annotations implements rpc.MetalogService.
func (s *server) Annotations(ctx context.Context, req *scribev1.AnnotationsRequest) (*scribev1.AnnotationsResponse, error) {
	notes, until, err := s.log.Annotations(ctx, record.ShardID(req.GetShard()), record.LSN(req.GetFrom()), record.LSN(req.GetTo()),
		annotationKind(req.GetKind()), int(min(req.GetMaxBytes(), metalog.MaxReadBytes)))
	if err != nil {
		return nil, toRPC(err)
	}
	return &scribev1.AnnotationsResponse{Annotations: notesToProto(notes), Until: uint64(until)}, nil
}
