package remote

import (
	"context"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// MoveOut implements rpc.MetalogService.
func (s *engineServer) MoveOut(ctx context.Context, req *scribev1.MoveOutRequest) (*scribev1.MoveOutResponse, error) {
	h, err := s.log.MoveOut(ctx, record.ShardID(req.GetShard()), req.GetFrom(), req.GetTo())
	return &scribev1.MoveOutResponse{Handover: handoverToProto(h)}, toRPC(err)
}

// MovedProducers implements rpc.MetalogService.
func (s *engineServer) MovedProducers(ctx context.Context, req *scribev1.MovedProducersRequest) (*scribev1.MovedProducersResponse, error) {
	limit := int(min(req.GetLimit(), metalog.MaxProducers))
	producers, err := s.log.MovedProducers(ctx, record.ShardID(req.GetShard()), req.GetEpoch(), req.GetFirst(), limit)
	return &scribev1.MovedProducersResponse{Producers: convertAll(producers, movedProducerToProto)}, toRPC(err)
}

// MoveIn implements rpc.MetalogService.
func (s *engineServer) MoveIn(ctx context.Context, req *scribev1.MoveInRequest) (*scribev1.MoveInResponse, error) {
	st, err := s.log.MoveIn(ctx, handoverFromProto(req.GetHandover()), convertAll(req.GetProducers(), movedProducerFromProto))
	return &scribev1.MoveInResponse{State: stateToProto(st)}, toRPC(err)
}

// ListStays implements rpc.MetalogService.
func (s *engineServer) ListStays(ctx context.Context, req *scribev1.ListStaysRequest) (*scribev1.ListStaysResponse, error) {
	stays, err := s.log.Stays(ctx, record.ShardID(req.GetShard()))
	return &scribev1.ListStaysResponse{Stays: convertAll(stays, stayToProto)}, toRPC(err)
}

// ForwardCategory implements rpc.MetalogService.
func (s *engineServer) ForwardCategory(ctx context.Context, req *scribev1.ForwardCategoryRequest) (*scribev1.ForwardCategoryResponse, error) {
	f, err := s.log.ForwardCategory(ctx, req.GetCategory(), forwardFromProto(req.GetForward()))
	return &scribev1.ForwardCategoryResponse{Forward: forwardToProto(f)}, toRPC(err)
}

// MoveOut implements metalog.Log.
func (c *engineClient) MoveOut(ctx context.Context, shard record.ShardID, from, to string) (metalog.Handover, error) {
	res, err := unaryCall(ctx, c, metalog.ValidateMoveOut(shard, from, to), c.svc.MoveOut,
		&scribev1.MoveOutRequest{Shard: uint64(shard), From: from, To: to})
	if err != nil {
		return metalog.Handover{}, err
	}
	return handoverFromProto(res.GetHandover()), nil
}

// MovedProducers implements metalog.Log.
func (c *engineClient) MovedProducers(ctx context.Context, shard record.ShardID, epoch, first uint64, limit int) ([]metalog.MovedProducer, error) {
	res, err := unaryCall(ctx, c, nil, c.svc.MovedProducers, &scribev1.MovedProducersRequest{
		Shard: uint64(shard), Epoch: epoch, First: first, Limit: uint32(metalog.ProducersLimit(limit)), //nolint:gosec // within limits
	})
	if err != nil {
		return nil, err
	}
	return convertAll(res.GetProducers(), movedProducerFromProto), nil
}

// MoveIn implements metalog.Log.
func (c *engineClient) MoveIn(ctx context.Context, h metalog.Handover, producers []metalog.MovedProducer) (metalog.State, error) {
	invalid := metalog.ValidateMoveIn(h, producers)
	req := &scribev1.MoveInRequest{}
	if invalid == nil {
		req.Handover, req.Producers = handoverToProto(h), convertAll(producers, movedProducerToProto)
	}
	res, err := unaryCall(ctx, c, invalid, c.svc.MoveIn, req)
	if err != nil {
		return metalog.State{}, err
	}
	return stateFromProto(res.GetState()), nil
}

// Stays implements metalog.Log.
func (c *engineClient) Stays(ctx context.Context, shard record.ShardID) ([]metalog.Stay, error) {
	res, err := unaryCall(ctx, c, nil, c.svc.ListStays, &scribev1.ListStaysRequest{Shard: uint64(shard)})
	if err != nil {
		return nil, err
	}
	return convertAll(res.GetStays(), stayFromProto), nil
}

// ForwardCategory implements metalog.Log.
func (c *engineClient) ForwardCategory(ctx context.Context, category uint32, f metalog.Forward) (metalog.Forward, error) {
	res, err := unaryCall(ctx, c, metalog.ValidateForward(f), c.svc.ForwardCategory,
		&scribev1.ForwardCategoryRequest{Category: category, Forward: forwardToProto(f)})
	if err != nil {
		return metalog.Forward{}, err
	}
	return forwardFromProto(res.GetForward()), nil
}

func handoverToProto(h metalog.Handover) *scribev1.Handover {
	return &scribev1.Handover{
		Shard: uint64(h.Shard), From: h.From, To: h.To, NextLsn: uint64(h.NextLSN), Epoch: h.Epoch, LastTime: h.LastTime, Time: h.Time, Sealed: h.Sealed,
		Producers: uint32(h.Producers), //nolint:gosec // at most MaxMovedProducers
	}
}

func handoverFromProto(h *scribev1.Handover) metalog.Handover {
	return metalog.Handover{
		Shard: record.ShardID(h.GetShard()), From: h.GetFrom(), To: h.GetTo(), NextLSN: record.LSN(h.GetNextLsn()), Epoch: h.GetEpoch(),
		LastTime: h.GetLastTime(), Time: h.GetTime(), Sealed: h.GetSealed(), Producers: int(h.GetProducers()),
	}
}

func movedProducerToProto(p metalog.MovedProducer) *scribev1.MovedProducer {
	return &scribev1.MovedProducer{Producer: p.Producer, Epoch: p.Epoch, Next: p.Next, Lsn: uint64(p.LSN), Time: p.Time}
}

func movedProducerFromProto(p *scribev1.MovedProducer) metalog.MovedProducer {
	state := metalog.ProducerState{Producer: p.GetProducer(), Epoch: p.GetEpoch(), Next: p.GetNext()}
	return metalog.MovedProducer{ProducerState: state, LSN: record.LSN(p.GetLsn()), Time: p.GetTime()}
}

func stayToProto(s metalog.Stay) *scribev1.ShardStay {
	return &scribev1.ShardStay{
		Begin: uint64(s.Begin), FirstLsn: uint64(s.FirstLSN), NextLsn: uint64(s.NextLSN), Epoch: s.Epoch, Adopted: s.Adopted, LastTime: s.LastTime,
		MovedFrom: s.MovedFrom, MovedTo: s.MovedTo, Left: s.Left,
	}
}

func stayFromProto(s *scribev1.ShardStay) metalog.Stay {
	return metalog.Stay{
		Begin: record.LSN(s.GetBegin()), FirstLSN: record.LSN(s.GetFirstLsn()), NextLSN: record.LSN(s.GetNextLsn()), Epoch: s.GetEpoch(), Adopted: s.GetAdopted(),
		LastTime: s.GetLastTime(), MovedFrom: s.GetMovedFrom(), MovedTo: s.GetMovedTo(), Left: s.GetLeft(),
	}
}

func forwardToProto(f metalog.Forward) *scribev1.CategoryForward {
	return &scribev1.CategoryForward{To: f.To, Version: f.Version, Time: f.Time}
}

func forwardFromProto(f *scribev1.CategoryForward) metalog.Forward {
	return metalog.Forward{To: f.GetTo(), Version: f.GetVersion(), Time: f.GetTime()}
}
