package etcdjournal

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"scribe/internal/base/backoff"
)

// sweepEvery is how many rounds of upkeep pass between sweeps of parts.
const sweepEvery = 20

// keptRevision is a revision of etcd and when it was the newest.
type keptRevision struct {
	at       time.Time
	revision int64
}

// upkeepState is what upkeep remembers between its rounds.
type upkeepState struct {
	// revisions are candidates for compaction, the oldest first.
	revisions []keptRevision
	sweepFrom string
	rounds    int
}

// keepUp runs upkeep while this handle swaps heads, until it closes.
func (j *Journal) keepUp() {
	var state upkeepState
	for backoff.Sleep(j.running, j.config.UpkeepEvery) == nil {
		if time.Since(time.Unix(0, j.used.Load())) > 2*j.config.UpkeepEvery {
			state = upkeepState{}
			continue
		}
		if err := j.upkeepOnce(j.running, &state, time.Now()); err != nil && j.running.Err() == nil {
			j.config.Logger.Warn("upkeep of the journal failed, it is tried again", "prefix", j.config.Prefix, "error", err)
		}
	}
}

// upkeepOnce is one round.
func (j *Journal) upkeepOnce(ctx context.Context, s *upkeepState, now time.Time) error {
	revision, err := j.measureSize(ctx)
	if err != nil {
		return err
	}
	s.revisions = append(s.revisions, keptRevision{now, revision})
	if err := j.compactHistory(ctx, s, now); err != nil {
		return err
	}
	if s.rounds++; s.rounds%sweepEvery == 0 {
		s.sweepFrom, err = j.sweepParts(ctx, s.sweepFrom)
	}
	return err
}

// measureSize asks the members for the size of their databases, and returns the newest revision. The largest counts. A member that
// is away does not, as long as one answers.
func (j *Journal) measureSize(ctx context.Context) (revision int64, err error) {
	var size int64
	for _, endpoint := range j.client.Endpoints() {
		c, cancel := j.request(ctx)
		status, statusErr := j.client.Status(c, endpoint)
		cancel()
		if statusErr != nil {
			err = j.failed(ctx, "ask "+endpoint+" for its size", statusErr)
			continue
		}
		size, revision = max(size, status.DbSizeInUse), max(revision, status.Header.Revision)
	}
	if revision == 0 {
		return 0, err
	}
	j.inUse.Store(size)
	return revision, nil
}

// compactHistory removes the history of keys before the newest revision that is old enough.
func (j *Journal) compactHistory(ctx context.Context, s *upkeepState, now time.Time) error {
	var target int64
	for len(s.revisions) > 0 && now.Sub(s.revisions[0].at) >= j.config.KeepHistory {
		target, s.revisions = s.revisions[0].revision, s.revisions[1:]
	}
	if target == 0 {
		return nil
	}
	c, cancel := j.request(ctx)
	defer cancel()
	_, err := j.client.Compact(c, target)
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return j.failed(ctx, "compact etcd", err)
	}
	return nil
}
