package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/lifecycle"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// engineClient is the client of an engine's service.
type engineClient struct {
	svc   rpc.MetalogService
	life  context.Context //nolint:containedctx // ends with the client
	end   context.CancelFunc
	calls lifecycle.Calls
}

// NewClient returns a metalog.Log that calls svc. Its Close ends this client's calls; the engine keeps running.
//
// It checks the limits of package metalog before it sends a request, and the length of every answer.
func NewClient(svc rpc.MetalogService) metalog.Log {
	c := &engineClient{svc: svc}
	c.life, c.end = context.WithCancel(context.Background())
	return c
}

// Close implements metalog.Log. It must not be called from within a callback of Subscribe or WatchShards.
func (c *engineClient) Close() error {
	c.calls.Drain()
	c.end()
	return c.calls.Wait(context.Background())
}

// unaryCall makes a unary call, unless its arguments are invalid.
func unaryCall[Req, Res any](
	ctx context.Context, c *engineClient, invalid error, method func(context.Context, Req) (Res, error), req Req,
) (res Res, err error) {
	if !c.calls.Enter() {
		return res, metalog.ErrClosed
	}
	defer c.calls.Leave()
	if err := cmp.Or(invalid, ctx.Err()); err != nil {
		return res, err
	}
	res, err = method(ctx, req)
	return res, fromRPC(err)
}

// convertAnswer converts an answer that must have want elements. If it has another number, the outcome is unknown.
func convertAnswer[From, To any](what string, in []From, want int, convert func(From) To) ([]To, error) {
	if len(in) != want {
		return nil, fmt.Errorf("metalog: the server answered with %d %s instead of %d", len(in), what, want)
	}
	return convertAll(in, convert), nil
}

// Open implements metalog.Log.
func (c *engineClient) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	res, err := unaryCall(ctx, c, metalog.ValidateOpen(owner, shards), c.svc.Open,
		&scribev1.OpenRequest{Shards: numbers(shards), Owner: owner})
	if err != nil {
		return nil, err
	}
	return convertAnswer("states", res.GetStates(), len(shards), stateFromProto)
}

// Append implements metalog.Log.
func (c *engineClient) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	res, err := unaryCall(ctx, c, a.Validate(), c.svc.Append, appendToProto(a))
	if err != nil {
		return nil, err
	}
	return convertAnswer("results", res.GetAppended(), len(a.Shards), func(d *scribev1.Appended) metalog.Appended {
		return metalog.Appended{FirstLSN: record.LSN(d.GetFirstLsn()), Time: d.GetTime()}
	})
}

// Read implements metalog.Log.
func (c *engineClient) Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]metalog.Entry, error) {
	maxRecords, maxBytes = metalog.ReadLimits(maxRecords, maxBytes)
	res, err := unaryCall(ctx, c, metalog.ValidatePosition(shard, from), c.svc.Read, &scribev1.ReadRequest{
		Shard: uint64(shard), From: uint64(from), MaxRecords: uint32(maxRecords), MaxBytes: uint32(maxBytes),
	})
	if err != nil {
		return nil, err
	}
	return convertAll(res.GetEntries(), entryFromProto), nil
}

// Tail implements metalog.Log.
func (c *engineClient) Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	res, err := unaryCall(ctx, c, metalog.ValidateShards(shards), c.svc.Tail, &scribev1.TailRequest{Shards: numbers(shards)})
	if err != nil {
		return nil, err
	}
	return convertAnswer("states", res.GetStates(), len(shards), stateFromProto)
}

// Seek implements metalog.Log.
func (c *engineClient) Seek(ctx context.Context, shards []record.ShardID, t int64) ([]record.LSN, error) {
	res, err := unaryCall(ctx, c, metalog.ValidateShards(shards), c.svc.Seek, &scribev1.SeekRequest{Shards: numbers(shards), Time: t})
	if err != nil {
		return nil, err
	}
	return convertAnswer("positions", res.GetLsns(), len(shards), func(lsn uint64) record.LSN { return record.LSN(lsn) })
}

// Trim implements metalog.Log.
func (c *engineClient) Trim(ctx context.Context, shard record.ShardID, before record.LSN) error {
	_, err := unaryCall(ctx, c, nil, c.svc.Trim, &scribev1.TrimRequest{Shard: uint64(shard), Before: uint64(before)})
	return err
}

// Seal implements metalog.Log.
func (c *engineClient) Seal(ctx context.Context, shard record.ShardID) (metalog.State, error) {
	res, err := unaryCall(ctx, c, nil, c.svc.Seal, &scribev1.SealRequest{Shard: uint64(shard)})
	return stateFromProto(res.GetState()), err
}

// Retire implements metalog.Log.
func (c *engineClient) Retire(ctx context.Context, category uint32) error {
	_, err := unaryCall(ctx, c, nil, c.svc.Retire, &scribev1.RetireRequest{Category: category})
	return err
}

// Erase implements metalog.Log.
func (c *engineClient) Erase(ctx context.Context, category uint32) error {
	_, err := unaryCall(ctx, c, nil, c.svc.Erase, &scribev1.EraseRequest{Category: category})
	return err
}

// Shards implements metalog.Log.
func (c *engineClient) Shards(ctx context.Context, category uint32) ([]metalog.State, error) {
	res, err := unaryCall(ctx, c, nil, c.svc.ListShards, &scribev1.ListShardsRequest{Category: category})
	if err != nil {
		return nil, err
	}
	return convertAll(res.GetStates(), stateFromProto), nil
}

// RemovedShards implements metalog.Log. A server of before there were removed shards answers with those that are listed, which say so.
func (c *engineClient) RemovedShards(ctx context.Context, category uint32, since int64) ([]metalog.State, error) {
	res, err := unaryCall(ctx, c, nil, c.svc.ListShards, &scribev1.ListShardsRequest{Category: category, Removed: true, Since: since})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(convertAll(res.GetStates(), stateFromProto), func(st metalog.State) bool { return !st.Removed }), nil
}

// Remove implements metalog.Log.
func (c *engineClient) Remove(ctx context.Context, shards []metalog.Unused) (int, error) {
	res, err := unaryCall(ctx, c, metalog.ValidateRemove(shards), c.svc.RemoveShards, &scribev1.RemoveShardsRequest{Shards: convertAll(shards, unusedToProto)})
	return int(res.GetRemoved()), err
}

// Sequences implements metalog.Log.
func (c *engineClient) Sequences(ctx context.Context, shard record.ShardID, producers []uint64) ([]metalog.ProducerState, error) {
	res, err := unaryCall(ctx, c, metalog.ValidateProducers(producers), c.svc.Sequences,
		&scribev1.SequencesRequest{Shard: uint64(shard), Producers: producers})
	if err != nil {
		return nil, err
	}
	return convertAnswer("producers", res.GetProducers(), len(producers), producerFromProto)
}

// AdvanceBoundary implements metalog.Log.
func (c *engineClient) AdvanceBoundary(ctx context.Context, t int64) (int64, error) {
	res, err := unaryCall(ctx, c, nil, c.svc.AdvanceBoundary, &scribev1.AdvanceBoundaryRequest{Time: t})
	return res.GetTime(), err
}

// Annotate implements metalog.Log.
func (c *engineClient) Annotate(ctx context.Context, notes []metalog.Annotation) (int, error) {
	res, err := unaryCall(ctx, c, metalog.ValidateAnnotations(notes), c.svc.Annotate,
		&scribev1.AnnotateRequest{Annotations: convertAll(notes, noteToProto)})
	return int(res.GetKept()), err
}

// Annotations implements metalog.Log.
func (c *engineClient) Annotations(
	ctx context.Context, shard record.ShardID, from, to record.LSN, kind metalog.AnnotationKind, maxBytes int,
) ([]metalog.Annotation, record.LSN, error) {
	to, maxBytes, invalid := metalog.ValidateAnnotationRange(shard, from, to, kind, maxBytes)
	res, err := unaryCall(ctx, c, invalid, c.svc.Annotations, &scribev1.AnnotationsRequest{
		Shard: uint64(shard), From: uint64(from), To: uint64(to), Kind: uint32(kind), MaxBytes: uint32(maxBytes), //nolint:gosec // within limits
	})
	if err != nil {
		return nil, 0, err
	}
	until := record.LSN(res.GetUntil())
	if until < from || until > to {
		return nil, 0, fmt.Errorf("metalog: the server answered with annotations up to LSN %d for a range from %d to %d", until, from, to)
	}
	return convertAll(res.GetAnnotations(), noteFromProto), until, nil
}

// Subscribe implements metalog.Log.
func (c *engineClient) Subscribe(ctx context.Context, from []metalog.Position, heartbeat time.Duration, fn func([]metalog.Update) error) error {
	heartbeat, invalid := metalog.ValidateSubscribe(from, heartbeat)
	req := &scribev1.SubscribeRequest{Heartbeat: durationpb.New(heartbeat), Positions: convertAll(from, positionToProto)}
	return c.followStream(ctx, invalid, func(ctx context.Context, sent func(error) error) error {
		return c.svc.Subscribe(ctx, req, func(res *scribev1.SubscribeResponse) error {
			return sent(fn(convertAll(res.GetUpdates(), updateFromProto)))
		})
	})
}

// WatchShards implements metalog.Log.
func (c *engineClient) WatchShards(ctx context.Context, category uint32, fn func([]record.ShardID) error) error {
	return c.followStream(ctx, nil, func(ctx context.Context, sent func(error) error) error {
		return c.svc.WatchShards(ctx, &scribev1.WatchShardsRequest{Category: category}, func(res *scribev1.WatchShardsResponse) error {
			return sent(fn(shardIDs(res.GetShards())))
		})
	})
}

// errEnded means that the server ended the stream without a reason.
var errEnded = errors.New("metalog: the server ended the stream")

// followStream makes a call that runs until the context ends, the client closes, or the callback fails, and returns the error for
// that cause.
func (c *engineClient) followStream(ctx context.Context, invalid error, run func(ctx context.Context, sent func(error) error) error) error {
	if !c.calls.Enter() {
		return metalog.ErrClosed
	}
	defer c.calls.Leave()
	if err := cmp.Or(invalid, ctx.Err()); err != nil {
		return err
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	var broken error
	err := run(inner, func(err error) error {
		broken = err
		return err
	})
	switch {
	case broken != nil:
		return broken
	case ctx.Err() != nil:
		return ctx.Err()
	case c.life.Err() != nil:
		return metalog.ErrClosed
	case err == nil:
		return errEnded
	default:
		return fromRPC(err)
	}
}
