package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// client is an engine behind a service.
type client struct {
	svc   rpc.MetalogService
	life  context.Context //nolint:containedctx // ends with the client
	end   context.CancelFunc
	calls sync.WaitGroup
	mu    struct {
		sync.Mutex
		closed bool
	}
}

// NewClient returns the engine behind svc. Its Close ends what runs through this client; the engine goes on.
//
// It checks the limits of package metalog before it sends, and trusts no answer to be as long as the question was.
func NewClient(svc rpc.MetalogService) metalog.Log {
	c := &client{svc: svc}
	c.life, c.end = context.WithCancel(context.Background())
	return c
}

func (c *client) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return metalog.ErrClosed
	}
	c.calls.Add(1)
	return nil
}

func (c *client) leave() { c.calls.Done() }

// Close implements metalog.Log. It must not be called from within a callback of Subscribe or WatchShards.
func (c *client) Close() error {
	c.mu.Lock()
	c.mu.closed = true
	c.mu.Unlock()
	c.end()
	c.calls.Wait()
	return nil
}

// call makes a unary call.
func call[Req, Res any](ctx context.Context, c *client, method func(context.Context, Req) (Res, error), req Req) (res Res, err error) {
	if err := c.enter(); err != nil {
		return res, err
	}
	defer c.leave()
	if err := ctx.Err(); err != nil {
		return res, err
	}
	res, err = method(ctx, req)
	return res, fromRPC(err)
}

// errAnswer is an answer that does not fit its question: the outcome is unknown.
func errAnswer(what string, got, want int) error {
	return fmt.Errorf("metalog: the server answered with %d %s instead of %d", got, what, want)
}

// Open implements metalog.Log.
func (c *client) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	if err := metalog.ValidateOpen(owner, shards); err != nil {
		return nil, c.orClosed(err)
	}
	res, err := call(ctx, c, c.svc.Open, &scribev1.OpenRequest{Shards: numbers(shards), Owner: owner})
	if err != nil {
		return nil, err
	}
	if n := len(res.GetStates()); n != len(shards) {
		return nil, errAnswer("states", n, len(shards))
	}
	return statesFromProto(res.GetStates()), nil
}

// orClosed returns err, or that the client is closed.
func (c *client) orClosed(err error) error {
	if cerr := c.enter(); cerr != nil {
		return cerr
	}
	c.leave()
	return err
}

// Append implements metalog.Log.
func (c *client) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	if err := a.Validate(); err != nil {
		return nil, c.orClosed(err)
	}
	res, err := call(ctx, c, c.svc.Append, appendToProto(a))
	if err != nil {
		return nil, err
	}
	if n := len(res.GetAppended()); n != len(a.Shards) {
		return nil, errAnswer("results", n, len(a.Shards))
	}
	out := make([]metalog.Appended, len(a.Shards))
	for i, d := range res.GetAppended() {
		out[i] = metalog.Appended{FirstLSN: record.LSN(d.GetFirstLsn()), Time: d.GetTime()}
	}
	return out, nil
}

// Read implements metalog.Log.
func (c *client) Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]metalog.Entry, error) {
	if err := metalog.ValidatePosition(shard, from); err != nil {
		return nil, c.orClosed(err)
	}
	maxRecords, maxBytes = metalog.ReadLimits(maxRecords, maxBytes)
	res, err := call(ctx, c, c.svc.Read, &scribev1.ReadRequest{
		Shard: uint64(shard), From: uint64(from), MaxRecords: uint32(maxRecords), MaxBytes: uint32(maxBytes),
	})
	if err != nil {
		return nil, err
	}
	return entriesFromProto(res.GetEntries()), nil
}

// Tail implements metalog.Log.
func (c *client) Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	if err := metalog.ValidateShards(shards); err != nil {
		return nil, c.orClosed(err)
	}
	res, err := call(ctx, c, c.svc.Tail, &scribev1.TailRequest{Shards: numbers(shards)})
	if err != nil {
		return nil, err
	}
	if n := len(res.GetStates()); n != len(shards) {
		return nil, errAnswer("states", n, len(shards))
	}
	return statesFromProto(res.GetStates()), nil
}

// Seek implements metalog.Log.
func (c *client) Seek(ctx context.Context, shards []record.ShardID, t int64) ([]record.LSN, error) {
	if err := metalog.ValidateShards(shards); err != nil {
		return nil, c.orClosed(err)
	}
	res, err := call(ctx, c, c.svc.Seek, &scribev1.SeekRequest{Shards: numbers(shards), Time: t})
	if err != nil {
		return nil, err
	}
	if n := len(res.GetLsns()); n != len(shards) {
		return nil, errAnswer("positions", n, len(shards))
	}
	out := make([]record.LSN, len(shards))
	for i, lsn := range res.GetLsns() {
		out[i] = record.LSN(lsn)
	}
	return out, nil
}

// Trim implements metalog.Log.
func (c *client) Trim(ctx context.Context, shard record.ShardID, before record.LSN) error {
	_, err := call(ctx, c, c.svc.Trim, &scribev1.TrimRequest{Shard: uint64(shard), Before: uint64(before)})
	return err
}

// Seal implements metalog.Log.
func (c *client) Seal(ctx context.Context, shard record.ShardID) (metalog.State, error) {
	res, err := call(ctx, c, c.svc.Seal, &scribev1.SealRequest{Shard: uint64(shard)})
	if err != nil {
		return metalog.State{}, err
	}
	return stateFromProto(res.GetState()), nil
}

// Retire implements metalog.Log.
func (c *client) Retire(ctx context.Context, category uint32) error {
	_, err := call(ctx, c, c.svc.Retire, &scribev1.RetireRequest{Category: category})
	return err
}

// Erase implements metalog.Log.
func (c *client) Erase(ctx context.Context, category uint32) error {
	_, err := call(ctx, c, c.svc.Erase, &scribev1.EraseRequest{Category: category})
	return err
}

// Shards implements metalog.Log.
func (c *client) Shards(ctx context.Context, category uint32) ([]metalog.State, error) {
	res, err := call(ctx, c, c.svc.ListShards, &scribev1.ListShardsRequest{Category: category})
	if err != nil {
		return nil, err
	}
	return statesFromProto(res.GetStates()), nil
}

// Sequences implements metalog.Log.
func (c *client) Sequences(ctx context.Context, shard record.ShardID, producers []uint64) ([]metalog.ProducerState, error) {
	if err := metalog.ValidateProducers(producers); err != nil {
		return nil, c.orClosed(err)
	}
	res, err := call(ctx, c, c.svc.Sequences, &scribev1.SequencesRequest{Shard: uint64(shard), Producers: producers})
	if err != nil {
		return nil, err
	}
	if n := len(res.GetProducers()); n != len(producers) {
		return nil, errAnswer("producers", n, len(producers))
	}
	out := make([]metalog.ProducerState, len(producers))
	for i, p := range res.GetProducers() {
		out[i] = producerFromProto(p)
	}
	return out, nil
}

// AdvanceBoundary implements metalog.Log.
func (c *client) AdvanceBoundary(ctx context.Context, t int64) (int64, error) {
	res, err := call(ctx, c, c.svc.AdvanceBoundary, &scribev1.AdvanceBoundaryRequest{Time: t})
	if err != nil {
		return 0, err
	}
	return res.GetTime(), nil
}

// Annotate implements metalog.Log.
func (c *client) Annotate(ctx context.Context, notes []metalog.Annotation) (int, error) {
	if err := metalog.ValidateAnnotations(notes); err != nil {
		return 0, c.orClosed(err)
	}
	res, err := call(ctx, c, c.svc.Annotate, &scribev1.AnnotateRequest{Annotations: notesToProto(notes)})
	if err != nil {
		return 0, err
	}
	return int(res.GetKept()), nil
}

// Annotations implements metalog.Log.
func (c *client) Annotations(
	ctx context.Context, shard record.ShardID, from, to record.LSN, kind metalog.AnnotationKind, maxBytes int,
) ([]metalog.Annotation, record.LSN, error) {
	to, maxBytes, err := metalog.ValidateAnnotationRange(shard, from, to, kind, maxBytes)
	if err != nil {
		return nil, 0, c.orClosed(err)
	}
	res, err := call(ctx, c, c.svc.Annotations, &scribev1.AnnotationsRequest{
		Shard: uint64(shard), From: uint64(from), To: uint64(to), Kind: uint32(kind), MaxBytes: uint32(maxBytes), //nolint:gosec // within limits
	})
	if err != nil {
		return nil, 0, err
	}
	until := record.LSN(res.GetUntil())
	if until < from || until > to {
		return nil, 0, fmt.Errorf("metalog: the server answered with annotations up to LSN %d for a range from %d to %d", until, from, to)
	}
	return notesFromProto(res.GetAnnotations()), until, nil
}

// Subscribe implements metalog.Log.
func (c *client) Subscribe(ctx context.Context, from []metalog.Position, heartbeat time.Duration, fn func([]metalog.Update) error) error {
	heartbeat, err := metalog.ValidateSubscribe(from, heartbeat)
	if err != nil {
		return c.orClosed(err)
	}
	req := &scribev1.SubscribeRequest{Positions: make([]*scribev1.ShardPosition, len(from)), Heartbeat: durationpb.New(heartbeat)}
	for i, p := range from {
		req.Positions[i] = &scribev1.ShardPosition{Shard: uint64(p.Shard), Lsn: uint64(p.LSN)}
	}
	return c.stream(ctx, func(ctx context.Context, sent func(error) error) error {
		return c.svc.Subscribe(ctx, req, func(res *scribev1.SubscribeResponse) error { return sent(fn(updatesFromProto(res))) })
	})
}

// WatchShards implements metalog.Log.
func (c *client) WatchShards(ctx context.Context, category uint32, fn func([]record.ShardID) error) error {
	return c.stream(ctx, func(ctx context.Context, sent func(error) error) error {
		return c.svc.WatchShards(ctx, &scribev1.WatchShardsRequest{Category: category}, func(res *scribev1.WatchShardsResponse) error {
			return sent(fn(ids(res.GetShards())))
		})
	})
}

// errEnded is a stream that the server ended without a reason.
var errEnded = errors.New("metalog: the server ended the stream")

// stream makes a call that runs until the context ends, the client closes, or the callback fails, and says which of them it was.
func (c *client) stream(ctx context.Context, run func(ctx context.Context, sent func(error) error) error) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if err := ctx.Err(); err != nil {
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
