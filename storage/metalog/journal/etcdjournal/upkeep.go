package etcdjournal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/internal/base/backoff"
	"scribe/internal/base/logthrottle"
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
	// denied means that etcd lets this user compact nothing, and that it was said.
	denied bool
	// left is, where compactions are denied, a revision that others have to compact; 0 if none is chosen.
	left      keptRevision
	sweepFrom string
	rounds    int
}

// keepUp runs upkeep while this handle swaps heads, until it closes.
func (j *Journal) keepUp() {
	var state upkeepState
	var failures logthrottle.Throttle
	for backoff.Sleep(j.running, j.config.UpkeepEvery) == nil {
		if time.Since(time.Unix(0, j.used.Load())) > 2*j.config.UpkeepEvery {
			state = upkeepState{denied: state.denied}
			j.neglected.Store(nil)
			j.members.Store(nil)
			continue
		}
		switch err := j.upkeepOnce(j.running, &state, time.Now()); {
		case j.running.Err() != nil:
		case err != nil:
			failures.Failed(j.running, j.config.Logger, "upkeep of the journal failed, it is tried again", "prefix", j.config.Prefix, "error", err)
		default:
			failures.Recovered(j.running, j.config.Logger, "upkeep of the journal goes on", "prefix", j.config.Prefix)
		}
	}
}

// MemberStatus is what a member of etcd said of itself.
type MemberStatus struct {
	// URL is where it serves clients.
	URL string
	// ID is its number, and Leader that of the one that leads, in a term; 0 if none is known.
	ID, Leader, Term uint64
	// Bytes is the size of its file.
	Bytes int64
	// Err is why it did not answer; nil if it did.
	Err error
}

// Members returns what the members of etcd said when upkeep asked them last; none for a handle that swaps no heads. It does not block, and
// nobody may change what it returns.
func (j *Journal) Members() []MemberStatus {
	if members := j.members.Load(); members != nil {
		return *members
	}
	return nil
}

// Neglected returns what upkeep can't do here and nobody else does; nil if there is nothing, and for a handle that swaps no heads. It does
// not block.
func (j *Journal) Neglected() error {
	if err := j.neglected.Load(); err != nil {
		return *err
	}
	return nil
}

// upkeepOnce is one round.
func (j *Journal) upkeepOnce(ctx context.Context, s *upkeepState, now time.Time) error {
	revision, err := j.measureSize(ctx)
	if err != nil {
		return err
	}
	s.revisions = append(s.revisions, keptRevision{now, revision})
	err = j.compactHistory(ctx, s, now)
	if s.rounds++; s.rounds%sweepEvery == 0 { // also if the history can't be compacted: parts take room as well
		var sweepErr error
		s.sweepFrom, sweepErr = j.sweepParts(ctx, s.sweepFrom)
		err = errors.Join(err, sweepErr)
	}
	return err
}

// measureSize asks the members for the size of their databases, and returns the newest revision. The largest counts. A member that
// is away does not, as long as one answers.
func (j *Journal) measureSize(ctx context.Context) (revision int64, err error) {
	var size int64
	var members []MemberStatus
	for _, endpoint := range j.client.Endpoints() {
		c, cancel := j.request(ctx)
		status, statusErr := j.client.Status(c, endpoint)
		cancel()
		if statusErr != nil {
			err = j.failed(ctx, "ask "+endpoint+" for its size", statusErr)
			members = append(members, MemberStatus{URL: endpoint, Err: statusErr})
			continue
		}
		members = append(members, MemberStatus{URL: endpoint, ID: status.Header.MemberId, Leader: status.Leader, Term: status.RaftTerm, Bytes: status.DbSize})
		size, revision = max(size, status.DbSizeInUse), max(revision, status.Header.Revision)
	}
	j.members.Store(&members)
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
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return j.leaveToOthers(ctx, s, keptRevision{now, target})
	case err != nil && !errors.Is(err, rpctypes.ErrCompacted):
		return j.failed(ctx, "compact etcd", err)
	}
	if s.denied {
		s.denied, s.left = false, keptRevision{}
		j.neglected.Store(nil)
		j.config.Logger.InfoContext(ctx, "etcd lets this process compact its history again", "prefix", j.config.Prefix)
	}
	return nil
}

// errNotCompacted is what grows etcd until it is full.
var errNotCompacted = errors.New("grant it the role root, or start etcd with --auto-compaction-mode=periodic --auto-compaction-retention=5m")

// leaveToOthers is for users whom etcd lets compact nothing, which only its role root may. Etcd can do so by itself, or an operator can:
// it looks at times whether somebody does. newest is a revision that would be compacted.
func (j *Journal) leaveToOthers(ctx context.Context, s *upkeepState, newest keptRevision) error {
	if !s.denied {
		s.denied = true
		j.config.Logger.WarnContext(ctx, "etcd does not let this process compact its history: unless somebody else does, it grows until it is full",
			"prefix", j.config.Prefix, "remedy", errNotCompacted.Error())
	}
	if s.left.revision == 0 {
		s.left = newest
	}
	if newest.at.Sub(s.left.at) < j.config.OthersCompact {
		return nil
	}
	c, cancel := j.request(ctx)
	defer cancel()
	_, err := j.client.Get(c, j.headKey(), clientv3.WithRev(s.left.revision), clientv3.WithCountOnly())
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		s.left = newest
		j.neglected.Store(nil)
	case err != nil:
		return j.failed(ctx, "ask whether etcd's history is compacted", err)
	default:
		err := fmt.Errorf("nobody has compacted etcd's history for %v, and its user here may not: %w", j.config.OthersCompact, errNotCompacted)
		j.neglected.Store(&err)
	}
	return nil
}
