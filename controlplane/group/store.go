package group

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"scribe/controlplane/request"
	"scribe/internal/format/bucket"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// maxAttempts bounds the attempts of a change that conflicts with other changes.
const maxAttempts = 16

// commitError wraps the error of a failed transaction with its reason, except for kv.ErrConflict, after which callers begin again.
func commitError(what string, err error) error {
	switch {
	case err == nil, errors.Is(err, kv.ErrConflict):
		return err
	case errors.Is(err, kv.ErrClosed), errors.Is(err, kv.ErrCorrupt):
		return request.ReadError(what, err)
	case errors.Is(err, kv.ErrInvalid):
		return rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "%s: %w", what, err)
	default:
		return rpc.RetryErrorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, time.Second, "%s: outcome unknown: %w", what, err)
	}
}

func errContended(what string) error {
	return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, 100*time.Millisecond, "%s: the group was changed concurrently %d times: try again", what, maxAttempts)
}

// loadGroup reads a group with its revision. It returns errors for the caller.
func (c *Coordinator) loadGroup(ctx context.Context, what, name string) (*Group, uint64, error) {
	e, err := c.deps.Store.Get(ctx, groupKey(name))
	if errors.Is(err, kv.ErrNotFound) {
		return nil, 0, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_GROUP, "%s: there is no consumer group %q", what, name)
	}
	if err != nil {
		return nil, 0, request.ReadError(what, err)
	}
	g, err := c.decodeCounted(name, e.Value)
	if err != nil {
		return nil, 0, request.ReadError(what, err)
	}
	return g, e.Revision, nil
}

// decodeCounted calls decodeGroup, and counts damage.
func (c *Coordinator) decodeCounted(name string, value []byte) (*Group, error) {
	g, err := decodeGroup(name, value)
	if err != nil {
		c.metrics.damaged.Inc()
	}
	return g, err
}

// retryConflicts reads a group in its turn, and passes it with its revision to change. It begins again while change fails with
// kv.ErrConflict, because another coordinator came first.
func (c *Coordinator) retryConflicts(ctx context.Context, what, name string, change func(g *Group, revision uint64) error) error {
	done, err := c.takeTurn(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	for range maxAttempts {
		g, revision, err := c.loadGroup(ctx, what, name)
		if err == nil {
			err = change(g, revision)
		}
		if !errors.Is(err, kv.ErrConflict) {
			return err
		}
		c.metrics.conflicts.Inc()
	}
	return errContended(what)
}

// changeGroup reads a group, lets fn change it, and stores it if fn returns true. It begins again when another change came first.
// It returns the group as stored.
func (c *Coordinator) changeGroup(ctx context.Context, what, name string, fn func(*Group) (bool, error)) (stored *Group, err error) {
	err = c.retryConflicts(ctx, what, name, func(g *Group, revision uint64) error {
		before := g.Generation
		changed, err := fn(g)
		if err == nil && changed {
			err = c.storeGroup(ctx, what, g, revision)
		}
		if err != nil {
			return err
		}
		for _, b := range g.Buckets {
			if changed && b.Granted > before {
				c.metrics.moved.Inc()
			}
		}
		stored = g
		return nil
	})
	return stored, err
}

// storeGroup stores a group on condition that its stored form has the revision (0: that there is none), and that the other
// conditions hold. It fails with kv.ErrConflict if they do not, else with an error for the caller.
func (c *Coordinator) storeGroup(ctx context.Context, what string, g *Group, revision uint64, conditions ...kv.Op) error {
	value, err := encodeGroup(g)
	if err != nil {
		return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: %w", what, err)
	}
	_, err = c.deps.Store.Commit(ctx, append(conditions, kv.Put(groupKey(g.Name), value).If(revision))...)
	return commitError(what, err)
}

// readPositions reads all positions of a group, and the times of its buckets.
func (c *Coordinator) readPositions(ctx context.Context, what string, g *Group) (positionMap, []int64, error) {
	prefix := positionsOf(g.Name, g.Positions)
	all, times := positionMap{}, make([]int64, len(g.Buckets))
	for e, err := range kv.All(ctx, c.deps.Store, prefix) {
		if err != nil {
			return nil, nil, request.ReadError(what, err)
		}
		if strings.TrimPrefix(e.Key, prefix) == timesKey {
			times, err = decodeTimes(g, e.Value)
		} else {
			err = decodePositions(g, e.Value, all)
		}
		if err != nil {
			c.metrics.damaged.Inc()
			return nil, nil, request.ReadError(what, err)
		}
	}
	// Positions may have been replaced and removed during the read; missing ones would be taken for untouched shards.
	now, _, err := c.loadGroup(ctx, what, g.Name)
	if err != nil {
		return nil, nil, err
	}
	if now.Positions != g.Positions {
		return nil, nil, rpc.RetryErrorf(scribev1.Reason_REASON_CONFLICT, 10*time.Millisecond, "%s: the group was reset concurrently: try again", what)
	}
	return all, times, nil
}

// installPositions stores a group with new positions: first the positions, as a set of their own, then the group, on condition
// that they are complete and that the group is unchanged (revision 0: that it does not exist). It fails with kv.ErrConflict if
// the condition does not hold, else with an error for the caller.
func (c *Coordinator) installPositions(ctx context.Context, what string, g *Group, revision uint64, all positionMap, times []int64) error {
	old := g.Positions
	for g.Positions == old || g.Positions == 0 {
		g.Positions = c.deps.Random.Uint64()
	}
	parts := make(map[uint32]positionMap)
	for shard, p := range all {
		chunk := chunkOf(shard)
		if parts[chunk] == nil {
			parts[chunk] = positionMap{}
		}
		parts[chunk][shard] = p
	}
	var ops []kv.Op
	for chunk, part := range parts {
		value, err := encodePositions(part)
		if err != nil {
			return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: %w", what, err)
		}
		ops = append(ops, kv.Put(chunkKey(g.Name, g.Positions, chunk), value))
	}
	value, err := encodeTimes(times)
	if err != nil {
		return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: %w", what, err)
	}
	ops = append(ops, kv.Put(positionsOf(g.Name, g.Positions)+timesKey, value))
	var complete []kv.Op
	for _, part := range kv.SplitOps(ops, 0) {
		written, err := c.deps.Store.Commit(ctx, part...)
		if err != nil {
			return commitError(what, err)
		}
		for _, op := range part {
			complete = append(complete, kv.Check(op.Key, written))
		}
	}
	return c.storeGroup(ctx, what, g, revision, complete...)
}

// removeOutdated removes all sets of positions of a name but one. It may fail; a later call removes the rest. It also removes a
// set that another process is about to install: the condition of that process's last transaction then fails.
func (c *Coordinator) removeOutdated(ctx context.Context, name string, keep uint64) {
	prefix, kept := positionsPrefix(name), positionsOf(name, keep)
	var (
		ops    []kv.Op
		failed error
	)
	for e, err := range kv.All(ctx, c.deps.Store, prefix) {
		failed = err
		if err == nil && (keep == 0 || !strings.HasPrefix(e.Key, kept)) {
			ops = append(ops, kv.Delete(e.Key))
		}
	}
	for part := range slices.Chunk(ops, kv.MaxOps) {
		_, err := c.deps.Store.Commit(ctx, part...)
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		c.log.Warn("outdated positions of a group not removed", "group", name, "error", failed)
	}
}

// positionCommit is a validated commit.
type positionCommit struct {
	set       bucket.Set
	shards    map[record.ShardID]*bucket.Position
	watermark int64
}

// errNothing says that a chunk needs no change.
var errNothing = errors.New("nothing has moved")

// advanceChunk moves the positions of one chunk forward, and returns its new value.
func (k *positionCommit) advanceChunk(g *Group, value []byte, shards []record.ShardID, scratch *bucket.Places) ([]byte, error) {
	at := positionMap{}
	if value != nil {
		if err := decodePositions(g, value, at); err != nil {
			return nil, err
		}
	}
	moved, all := false, bucket.All(g.Scheme.Buckets)
	for _, shard := range shards {
		to, was := k.shards[shard], at[shard]
		*scratch = g.Scheme.Expand(&was, *scratch)
		here := false
		for b := range k.set.Each() {
			if want := to.At(b); g.Scheme.Covers(shard, b) && (*scratch)[b].Before(want) {
				(*scratch)[b], here = want, true
			}
		}
		if here {
			at[shard], moved = g.Scheme.Compact(shard, *scratch, all), true
		}
	}
	if !moved {
		return nil, errNothing
	}
	out, err := encodePositions(at)
	if err == nil && len(out) > kv.MaxValue {
		err = rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE,
			"positions of group %q take %d bytes in one part, the limit is %d: its buckets are too far apart in too many shards", g.Name, len(out), kv.MaxValue)
	}
	return out, err
}

// storeCommit moves a group's positions forward, in as many transactions as needed, each on condition that the group is
// unchanged. It fails with kv.ErrConflict when the group has changed, or another commit came first. Parts stored before that are
// harmless.
func (c *Coordinator) storeCommit(ctx context.Context, g *Group, revision uint64, k *positionCommit) error {
	byChunk := map[uint32][]record.ShardID{}
	for shard := range k.shards {
		byChunk[chunkOf(shard)] = append(byChunk[chunkOf(shard)], shard)
	}
	var (
		ops     []kv.Op
		scratch bucket.Places
	)
	read := func(key string) ([]byte, uint64, error) {
		e, err := c.deps.Store.Get(ctx, key)
		if errors.Is(err, kv.ErrNotFound) {
			return nil, 0, nil
		}
		return e.Value, e.Revision, err
	}
	for chunk, shards := range byChunk {
		key := chunkKey(g.Name, g.Positions, chunk)
		value, rev, err := read(key)
		if err != nil {
			return request.ReadError("commit", err)
		}
		value, err = k.advanceChunk(g, value, shards, &scratch)
		switch {
		case errors.Is(err, errNothing):
		case errors.Is(err, kv.ErrCorrupt):
			c.metrics.damaged.Inc()
			return request.ReadError("commit", err)
		case err != nil:
			return err
		default:
			ops = append(ops, kv.Put(key, value).If(rev))
		}
	}
	if k.watermark > 0 {
		key := positionsOf(g.Name, g.Positions) + timesKey
		value, rev, err := read(key)
		if err != nil {
			return request.ReadError("commit", err)
		}
		value, err = c.advanceTimes(g, k, value)
		if err != nil {
			return err
		}
		if value != nil { // last: the times are true once everything before is stored
			ops = append(ops, kv.Put(key, value).If(rev))
		}
	}
	for _, part := range kv.SplitOps(ops, 1) {
		_, err := c.deps.Store.Commit(ctx, append(slices.Clone(part), kv.Check(groupKey(g.Name), revision))...)
		if err != nil {
			return commitError("commit", err)
		}
	}
	return nil
}

// advanceTimes moves the times of the buckets forward, and returns their new value; nil if none has moved.
func (c *Coordinator) advanceTimes(g *Group, k *positionCommit, value []byte) (_ []byte, err error) {
	times := make([]int64, len(g.Buckets))
	if value != nil {
		if times, err = decodeTimes(g, value); err != nil {
			c.metrics.damaged.Inc()
			return nil, request.ReadError("commit", err)
		}
	}
	moved := false
	for b := range k.set.Each() {
		if times[b] < k.watermark {
			times[b], moved = k.watermark, true
		}
	}
	if !moved {
		return nil, nil
	}
	if value, err = encodeTimes(times); err != nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "commit: %w", err)
	}
	return value, nil
}

// timeOf returns the time up to which a bucket is committed: the time stored with commits, or the owner's reported watermark, if
// the owner has committed everything since.
func (g *Group) timeOf(b int, times []int64) int64 {
	t := times[b]
	if m := g.Member(g.Buckets[b].Owner); m != nil && g.Buckets[b].Granted <= m.Status.Generation {
		t = max(t, m.Status.Watermark)
	}
	return t
}
