package app

import (
	"context"
	"errors"
	"fmt"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// lateMetalog is the metadata engine for the control plane of this process: the engine of this process or of its configuration, or else the
// one that is a member of the cell. The control plane starts before the engine, so calls wait until setEngine or searchMembers.
type lateMetalog struct {
	// ready is closed when log or cell is set; they never change afterwards.
	ready chan struct{}
	log   metalog.Log
	cell  rpc.ControlService // knows the members
	// transport goes to other processes.
	transport *rpc.Transport
	// replicated means that all engines of the cell are replicas of one.
	replicated bool
}

// setEngine sets the engine of the process.
func (r *lateMetalog) setEngine(log metalog.Log) {
	r.log = log
	close(r.ready)
}

// searchMembers makes calls find the engine among the members of the cell.
func (r *lateMetalog) searchMembers(cell rpc.ControlService) {
	r.cell = cell
	close(r.ready)
}

// Retire implements controlplane.Retirer.
func (r *lateMetalog) Retire(ctx context.Context, category uint32) error {
	_, err := callEngine(ctx, r, func(log metalog.Log) (struct{}, error) { return struct{}{}, log.Retire(ctx, category) })
	return err
}

// Shards implements group.Log.
func (r *lateMetalog) Shards(ctx context.Context, category uint32) ([]metalog.State, error) {
	return callEngine(ctx, r, func(log metalog.Log) ([]metalog.State, error) { return log.Shards(ctx, category) })
}

// RemovedShards implements controlplane.LogLister and group.ShardLog.
func (r *lateMetalog) RemovedShards(ctx context.Context, category uint32, since int64) ([]metalog.State, error) {
	return callEngine(ctx, r, func(log metalog.Log) ([]metalog.State, error) { return log.RemovedShards(ctx, category, since) })
}

// Tail implements group.ShardLog.
func (r *lateMetalog) Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	return callEngine(ctx, r, func(log metalog.Log) ([]metalog.State, error) { return log.Tail(ctx, shards) })
}

// Seek implements group.Log.
func (r *lateMetalog) Seek(ctx context.Context, shards []record.ShardID, t int64) ([]record.LSN, error) {
	return callEngine(ctx, r, func(log metalog.Log) ([]record.LSN, error) { return log.Seek(ctx, shards, t) })
}

// callEngine calls fn with the engine.
func callEngine[T any](ctx context.Context, r *lateMetalog, fn func(metalog.Log) (T, error)) (result T, err error) {
	select {
	case <-r.ready:
	case <-ctx.Done():
		return result, fmt.Errorf("the metalog has not started: %w", context.Cause(ctx))
	}
	if r.log != nil {
		return fn(r.log)
	}
	urls, err := r.memberURLs(ctx)
	if err != nil {
		return result, err
	}
	log, err := newMetalogClient(r.transport, urls, nil)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	return fn(log)
}

var errNoMetalog = errors.New("no member of the cell has the role metalog: start one, or set its URL with --metalog at the control plane")

// memberURLs returns the URLs of the engine that is a member of the cell: of its replicas, if it is replicated. Two engines are an error:
// only one of them has the logs.
func (r *lateMetalog) memberURLs(ctx context.Context) ([]string, error) {
	res, err := r.cell.ListMembers(ctx, &scribev1.ListMembersRequest{Role: scribev1.Role_ROLE_METALOG})
	if err != nil {
		return nil, err
	}
	members := res.GetMembers()
	switch {
	case len(members) == 0:
		return nil, errNoMetalog
	case len(members) > 1 && !r.replicated:
		return nil, fmt.Errorf("%d members of the cell have the role metalog, %s and %s among them: set the URL of the right one with --metalog at the control plane",
			len(members), members[0].GetId(), members[1].GetId())
	}
	urls := make([]string, len(members))
	for i, m := range members {
		urls[i] = m.GetUrl()
	}
	return urls, nil
}
