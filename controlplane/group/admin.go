package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/controlplane/request"
	"scribe/internal/format/bucket"
	"scribe/internal/format/checkpoint"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
	"scribe/storage/metalog"
)

// startAt is where a group begins to read.
type startAt struct {
	at         scribev1.StartAt
	time       int64
	checkpoint string
}

// clockSkew is how far ahead of the coordinator's clock a start time may be.
const clockSkew = time.Minute

// validate refuses a start that names no position, or two.
func (s startAt) validate(what string, now time.Time) error {
	var v request.Violations
	switch s.at {
	case scribev1.StartAt_START_AT_UNSPECIFIED, scribev1.StartAt_START_AT_EARLIEST, scribev1.StartAt_START_AT_LATEST:
		if s.time != 0 {
			v.Add("start_time", "is given without START_AT_TIME")
		}
	case scribev1.StartAt_START_AT_TIME:
		if s.time < 0 || s.time > now.Add(clockSkew).UnixMicro() {
			v.Add("start_time", "%v is before 1970 or in the future", time.UnixMicro(s.time).UTC())
		}
	default:
		v.Add("start_at", "%d is unknown", s.at)
	}
	if s.checkpoint != "" && s.at != scribev1.StartAt_START_AT_UNSPECIFIED {
		v.Add("checkpoint", "is given beside start_at")
	}
	return v.Err(what)
}

// groupStart is where a group begins: a position for each physical shard that the category has now, the times of the buckets there, and until when
// the shards are known: of others nothing persisted before is owed to the group.
type groupStart struct {
	positions  positionMap
	times      []int64
	knownUntil int64
}

// resolveStart finds out where a group begins. Shards that appear later are read from their first records.
func (c *Coordinator) resolveStart(ctx context.Context, what string, cat *scribev1.Category, scheme bucket.Scheme, s startAt) (*groupStart, error) {
	now := c.deps.Now()
	if err := s.validate(what, now); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.LogTimeout)
	defer cancel()
	// The time comes before the list, so that no shard is missing in the list that had a record before. Any shard tells it.
	probe, err := c.deps.Log.Tail(ctx, []record.ShardID{record.MakeShardID(cat.GetId(), 0, 0)})
	if err != nil {
		return nil, logError(what, err)
	}
	states, err := c.listLogs(ctx, what, cat.GetId(), cat.IsSequenced())
	if err != nil {
		return nil, err
	}
	var cp checkpoint.Checkpoint
	if s.checkpoint != "" {
		if cp, err = parseCheckpoint(what, cat, s.checkpoint); err != nil {
			return nil, err
		}
		if states, err = c.addUnlisted(ctx, what, cat, cp, states); err != nil {
			return nil, err
		}
	}
	if n := len(states); n > c.cfg.MaxShards {
		return nil, rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "%s: category %q has %d physical shards, the limit of a group is %d", what, cat.GetName(), n, c.cfg.MaxShards)
	}
	all, at := positionMap{}, int64(0)
	switch {
	case s.checkpoint != "":
		at = max(cp.Watermark, 0)
		if err := takeCheckpoint(what, scheme, cp, states, all); err != nil {
			return nil, err
		}
	case s.at == scribev1.StartAt_START_AT_EARLIEST:
		for _, v := range states {
			all[v.Shard] = bucket.Position{Low: v.FirstLSN}
		}
	case s.at == scribev1.StartAt_START_AT_TIME:
		at = s.time
		if err := c.seekTime(ctx, what, states, s.time, all); err != nil {
			return nil, err
		}
	default:
		at = now.UnixMicro()
		for _, v := range states {
			all[v.Shard] = bucket.Position{Low: v.NextLSN}
		}
	}
	return &groupStart{positions: all, times: slices.Repeat([]int64{at}, int(scheme.Buckets)), knownUntil: probe[0].Watermark}, nil
}

// listLogs returns the logs that readers of a category read: all logs, or the sequenced log of a sequenced category.
func (c *Coordinator) listLogs(ctx context.Context, what string, category uint32, isSequenced bool) ([]metalog.State, error) {
	states, err := c.deps.Log.Shards(ctx, category)
	if err != nil {
		return nil, logError(what, err)
	}
	return slices.DeleteFunc(states, func(v metalog.State) bool {
		if isSequenced {
			return !sequenced.IsLog(v.Shard)
		}
		return sequenced.Reserved(v.Shard)
	}), nil
}

// seekTime finds the first records persisted at or after a time.
func (c *Coordinator) seekTime(ctx context.Context, what string, states []metalog.State, t int64, all positionMap) error {
	for part := range slices.Chunk(states, metalog.MaxShards) {
		shards := make([]record.ShardID, len(part))
		for i, v := range part {
			shards[i] = v.Shard
		}
		lsns, err := c.deps.Log.Seek(ctx, shards, t)
		if err != nil {
			return logError(what, err)
		}
		for i, lsn := range lsns {
			all[shards[i]] = bucket.Position{Low: max(lsn, record.FirstLSN)}
		}
	}
	return nil
}

// checkpointError refuses a checkpoint.
func checkpointError(what, format string, args ...any) error {
	return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: checkpoint: %w", what, fmt.Errorf(format, args...))
}

// parseCheckpoint parses a checkpoint, which must be of a category.
func parseCheckpoint(what string, cat *scribev1.Category, text string) (checkpoint.Checkpoint, error) {
	cp, err := checkpoint.Parse(text)
	switch {
	case err != nil:
		err = checkpointError(what, "%w", err)
	case cp.Category != cat.GetName():
		err = checkpointError(what, "it is of category %q, the group reads %q", cp.Category, cat.GetName())
	case cp.CategoryID != cat.GetId() && len(cp.Positions) > 0:
		err = checkpointError(what, "category %q was deleted and made again since", cat.GetName())
	}
	return cp, err
}

// addUnlisted adds to the listed shards those that a checkpoint names although they are not listed, which were removed, and those that were
// written after the checkpoint, and trimmed and removed by now: the group is owed a gap in each.
func (c *Coordinator) addUnlisted(ctx context.Context, what string, cat *scribev1.Category, cp checkpoint.Checkpoint, states []metalog.State) ([]metalog.State, error) {
	known := make(map[record.ShardID]bool, len(states)+len(cp.Positions))
	for _, v := range states {
		known[v.Shard] = true
	}
	var named []record.ShardID
	for _, p := range cp.Positions {
		// Where the kinds differ, the checkpoint is of a reader of the sources, or of the sequenced log.
		if !known[p.Shard] && sequenced.Reserved(p.Shard) == cat.IsSequenced() {
			known[p.Shard] = true
			named = append(named, p.Shard)
		}
	}
	for part := range slices.Chunk(named, metalog.MaxShards) {
		more, err := c.deps.Log.Tail(ctx, part)
		if err != nil {
			return nil, logError(what, err)
		}
		states = append(states, more...)
	}
	if cat.IsSequenced() {
		return states, nil
	}
	removed, err := c.deps.Log.RemovedShards(ctx, cat.GetId(), max(cp.Watermark, 1))
	if err != nil {
		return nil, logError(what, err)
	}
	return append(states, slices.DeleteFunc(removed, func(v metalog.State) bool { return known[v.Shard] })...), nil
}

// takeCheckpoint takes the positions of a checkpoint in some shards.
func takeCheckpoint(what string, scheme bucket.Scheme, cp checkpoint.Checkpoint, states []metalog.State, all positionMap) error {
	for _, v := range states {
		p, ok := cp.Position(v.Shard)
		switch {
		case !ok && v.OriginTime > 0 && v.OriginTime < cp.Watermark:
			// The shard was removed when the checkpoint was taken, and is back. What it had before is not owed to its readers.
			all[v.Shard] = bucket.Position{Low: v.Origin}
			continue
		case !ok:
			// The shard appeared after the checkpoint, and is read from its beginning. Its trimmed records were not read, so they
			// are a gap.
			all[v.Shard] = bucket.Position{Low: record.FirstLSN}
			continue
		case p.LSN > v.NextLSN || p.LSN == v.NextLSN && p.Skip > 0:
			return checkpointError(what, "shard %v is at LSN %d, its next one is %d: it is of another cell, or metadata was lost", v.Shard, p.LSN, v.NextLSN)
		}
		at := bucket.Position{Low: p.LSN}
		if p.Skip > 0 {
			at.Ahead = []bucket.Ahead{{Bucket: scheme.Of(v.Shard, p.LSN), Place: bucket.Place{LSN: p.LSN, Skip: p.Skip}}}
		}
		all[v.Shard] = at
	}
	return nil
}

func logError(what string, err error) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, time.Second, "%s: the metadata engine does not answer: %w", what, err)
}

// ListGroups implements rpc.GroupService.
func (c *Coordinator) ListGroups(ctx context.Context, req *scribev1.ListGroupsRequest) (*scribev1.ListGroupsResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	const what = "list groups"
	var v request.Violations
	for field, text := range map[string]string{"prefix": req.GetPrefix(), "after": req.GetAfter(), "category": req.GetCategory()} {
		if len(text) > maxName {
			v.Add(field, "%d bytes, the limit is %d", len(text), maxName)
		}
	}
	if err := v.Err(what); err != nil {
		return nil, err
	}
	r := kv.KeyRange{Prefix: groupKey(req.GetPrefix()), Limit: int(cmp.Or(min(req.GetLimit(), maxList), maxList))}
	if req.GetAfter() != "" {
		r.After = groupKey(req.GetAfter())
	}
	page, err := c.deps.Store.Range(ctx, r)
	if err != nil {
		return nil, request.ReadError(what, err)
	}
	res := &scribev1.ListGroupsResponse{More: page.More, Next: req.GetAfter()}
	for _, e := range page.Entries {
		res.Next = strings.TrimPrefix(e.Key, groupPrefix)
		g, err := c.decodeCounted(res.GetNext(), e.Value)
		if err != nil {
			return nil, request.ReadError(what, err)
		}
		if req.GetCategory() == "" || req.GetCategory() == g.Category {
			res.Groups = append(res.Groups, wireGroup(g))
		}
	}
	return res, nil
}

func wireGroup(g *Group) *scribev1.Group {
	return &scribev1.Group{
		Name: g.Name, Category: g.Category, CategoryId: g.CategoryID, Sharing: scribev1.GroupSharing(g.Scheme.Sharing), Buckets: g.Scheme.Buckets,
		Generation: g.Generation, Members: uint32(len(g.Members)), CreatedAt: g.CreatedAt, PositionedAt: g.PositionedAt,
	}
}

// ResetGroup implements rpc.GroupService.
func (c *Coordinator) ResetGroup(ctx context.Context, req *scribev1.ResetGroupRequest) (*scribev1.ResetGroupResponse, error) {
	what, leave, err := c.enterGroupCall("reset group", req.GetGroup())
	if err != nil {
		return nil, err
	}
	defer leave()
	to := startAt{req.GetStartAt(), req.GetStartTime(), req.GetCheckpoint()}
	if to.at == scribev1.StartAt_START_AT_UNSPECIFIED && to.checkpoint == "" {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: start_at: is not set", what)
	}
	var g *Group
	err = c.retryConflicts(ctx, what, req.GetGroup(), func(stored *Group, revision uint64) error {
		g = stored
		return c.resetGroup(ctx, what, g, revision, req.GetForce(), to)
	})
	if err != nil {
		return nil, err
	}
	c.removeOutdated(ctx, g.Name, g.Positions)
	c.log.Info("group reset", "group", g.Name, "to", to.at.String(), "time", to.time, "generation", g.Generation, "members", len(g.Members))
	return &scribev1.ResetGroupResponse{Group: wireGroup(g)}, nil
}

func (c *Coordinator) resetGroup(ctx context.Context, what string, g *Group, revision uint64, force bool, to startAt) error {
	if err := requireIdle(what, g, force); err != nil {
		return err
	}
	res, err := c.deps.Control.GetCategory(ctx, &scribev1.GetCategoryRequest{Name: g.Category})
	if err != nil {
		return err
	}
	cat := res.GetCategory()
	if cat.GetId() != g.CategoryID {
		// The members read logs that no longer exist: they have to join again.
		g.CategoryID, g.Useful = cat.GetId(), usefulIn(g.Scheme, cat)
		for len(g.Members) > 0 {
			g.RemoveMembers(g.Members[0].Epoch)
		}
	}
	start, err := c.resolveStart(ctx, what, cat, g.Scheme, to)
	if err != nil {
		return err
	}
	g.RegrantAll()
	g.PositionedAt, g.KnownUntil = c.deps.Now().UnixMicro(), start.knownUntil
	return c.installPositions(ctx, what, g, revision, start.positions, start.times)
}

// requireIdle refuses an operation that requires a group without members.
func requireIdle(what string, g *Group, force bool) error {
	if force || len(g.Members) == 0 {
		return nil
	}
	return rpc.Errorf(scribev1.Reason_REASON_GROUP_ACTIVE, "%s: it has %d members, %q among them: end them, or force it", what, len(g.Members), g.Members[0].Name)
}

// DeleteGroup implements rpc.GroupService.
func (c *Coordinator) DeleteGroup(ctx context.Context, req *scribev1.DeleteGroupRequest) (*scribev1.DeleteGroupResponse, error) {
	what, leave, err := c.enterGroupCall("delete group", req.GetGroup())
	if err != nil {
		return nil, err
	}
	defer leave()
	err = c.retryConflicts(ctx, what, req.GetGroup(), func(g *Group, revision uint64) error {
		if err := requireIdle(what, g, req.GetForce()); err != nil {
			return err
		}
		_, err := c.deps.Store.Commit(ctx, kv.Delete(groupKey(g.Name)).If(revision))
		return commitError(what, err)
	})
	if err != nil {
		return nil, err
	}
	c.removeOutdated(ctx, req.GetGroup(), 0)
	c.log.Info("group deleted", "group", req.GetGroup())
	return &scribev1.DeleteGroupResponse{}, nil
}

// holdPins pins the records that active groups need of categories and that retention is about to remove, or would have removed.
func (c *Coordinator) holdPins() {
	c.mu.Lock()
	names := slices.Collect(maps.Keys(c.mu.active))
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.stopped, c.cfg.StoreTimeout)
	defer cancel()
	needs := map[uint32]int64{}
	for _, name := range names {
		from, category, err := c.neededSince(ctx, name)
		if err != nil {
			if c.stopped.Err() == nil && rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_GROUP {
				c.log.Warn("group pins not computed: retention may delete what the group has not read", "group", name, "error", err)
			}
			continue
		}
		if at, ok := needs[category]; from > 0 && (!ok || from < at) {
			needs[category] = from
		}
	}
	const most = 10_000 // limit of the protocol
	req := &scribev1.HoldPinsRequest{Holder: c.deps.Holder, Ttl: durationpb.New(3 * max(c.cfg.PinInterval, time.Second))}
	for category, from := range needs {
		if len(req.GetPins()) < most {
			req.Pins = append(req.Pins, &scribev1.Pin{Category: category, From: from})
		}
	}
	if _, err := c.deps.Control.HoldPins(ctx, req); err != nil && c.stopped.Err() == nil {
		c.log.Warn("group pins not held: retention may delete what groups have not read", "error", err)
	}
}

// neededSince returns the persisted time from which a group needs records that retention is about to remove; 0 if none are at
// risk.
func (c *Coordinator) neededSince(ctx context.Context, name string) (from int64, category uint32, err error) {
	const what = "hold pins"
	g, _, err := c.loadGroup(ctx, what, name)
	if err != nil || len(g.Members) == 0 {
		return 0, 0, err
	}
	e, err := c.deps.Store.Get(ctx, positionsOf(name, g.Positions)+timesKey)
	if err != nil {
		if errors.Is(err, kv.ErrNotFound) {
			return 0, 0, nil // it was reset in the meantime
		}
		return 0, 0, request.ReadError(what, err)
	}
	times, err := decodeTimes(g, e.Value)
	if err != nil {
		return 0, 0, request.ReadError(what, err)
	}
	res, err := c.deps.Control.GetCategory(ctx, &scribev1.GetCategoryRequest{Name: g.Category})
	if err != nil || res.GetCategory().GetId() != g.CategoryID {
		return 0, 0, err
	}
	now := c.deps.Now().UnixMicro()
	from = now
	for b := range g.Useful {
		from = min(from, max(g.timeOf(int(b), times), 1))
	}
	retention := res.GetCategory().GetRetention().AsDuration()
	if now-from < (retention - max(retention/8, time.Minute)).Microseconds() {
		return 0, 0, nil
	}
	return from, g.CategoryID, nil
}
