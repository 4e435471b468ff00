package consumer

import (
	"fmt"
	"maps"
	"slices"

	"scribe/internal/format/bucket"
	"scribe/internal/format/checkpoint"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// memberShare is what a member of a group reads, and where it is there: a plain state machine, in place of the positions of a consumer that
// reads everything. The consumer's mutex guards it.
//
// A place has two ends, as in positions: what was received from the stream, and what was delivered. Both are kept by bucket, since
// buckets come from other members, who were somewhere else. In the long run all buckets of a shard are equally far, which takes one
// number for each shard (bucket.Position); what is between the ends is kept by bucket, for as long as it is.
type memberShare struct {
	scheme     bucket.Scheme
	categoryID uint32
	// owned are the buckets that are read; draining those that are not read any more, and wait to be committed.
	owned, draining bucket.Set
	// version grows when places were added that the stream may not have passed: watermarks of before say nothing of them, and what a stream
	// brings that was opened before is not what comes next of them.
	version uint64
	shards  map[record.ShardID]*sharedShard
	// active are the shards that have live places; unsaved those in which something was delivered that no commit covers yet, as far as
	// was seen when commits were made.
	active, unsaved map[record.ShardID]struct{}
	// bounded: the iteration ends where shards ended when it first saw them; undone is how many of these have something left.
	bounded bool
	undone  int

	places bucket.Places // to work in
}

// sharedShard is one physical shard.
type sharedShard struct {
	id record.ShardID
	// at is where the buckets are that are owned or draining, but for live ones.
	at bucket.Position
	// cursor is the LSN that the stream brings next, or later.
	cursor record.LSN
	// live are the buckets in which something was received and not delivered, or delivered and not taken into at.
	live map[uint32]*shardPosition
	// end is where a bounded iteration stops; 0 = not known, or not bounded. left says that it counts in undone.
	end  record.LSN
	left bool
}

func newShare(scheme bucket.Scheme, categoryID uint32) *memberShare {
	return &memberShare{
		scheme: scheme, categoryID: categoryID,
		owned: bucket.NewSet(scheme.Buckets), draining: bucket.NewSet(scheme.Buckets),
		shards: map[record.ShardID]*sharedShard{}, active: map[record.ShardID]struct{}{}, unsaved: map[record.ShardID]struct{}{},
	}
}

// findShard returns a shard, which it makes if it is new: then nothing of it was read.
func (s *memberShare) findShard(id record.ShardID) *sharedShard {
	sh := s.shards[id]
	if sh == nil {
		sh = &sharedShard{id: id, at: bucket.Position{Low: record.FirstLSN}, cursor: record.FirstLSN, live: map[uint32]*shardPosition{}}
		s.shards[id] = sh
	}
	return sh
}

// receivedOf is the LSN from which on a bucket's pointers are to come.
func (sh *sharedShard) receivedOf(b uint32) record.LSN {
	if p := sh.live[b]; p != nil {
		return p.received
	}
	return sh.at.At(b).LSN
}

// makeLive makes a place live: something of the bucket is about to be received.
func (s *memberShare) makeLive(sh *sharedShard, b uint32) *shardPosition {
	p := sh.live[b]
	if p == nil {
		at := sh.at.At(b)
		p = &shardPosition{shard: sh.id, bucket: b, lsn: at.LSN, skip: at.Skip, received: at.LSN}
		sh.live[b] = p
		s.active[sh.id] = struct{}{}
	}
	return p
}

// heldBuckets are the buckets whose places are known.
func (s *memberShare) heldBuckets() bucket.Set {
	set := s.owned.Clone()
	set.AddAll(s.draining)
	return set
}

// foldShard takes live places into at, and forgets those with nothing under way. It reports whether at says anything new.
func (s *memberShare) foldShard(sh *sharedShard, held bucket.Set) bool {
	changed := false
	s.places = s.scheme.Expand(&sh.at, s.places)
	for b, p := range sh.live {
		if at := (bucket.Place{LSN: p.lsn, Skip: p.skip}); s.places[b] != at {
			s.places[b], changed = at, true
		}
		if p.lsn >= p.received {
			delete(sh.live, b)
		}
	}
	if changed {
		sh.at = s.scheme.Compact(sh.id, s.places, held)
	}
	if len(sh.live) == 0 {
		delete(s.active, sh.id)
	}
	return changed
}

// foldAll folds every shard, and notes which ones have news for a commit.
func (s *memberShare) foldAll() {
	held := s.heldBuckets()
	for id := range s.active {
		if s.foldShard(s.shards[id], held) {
			s.unsaved[id] = struct{}{}
		}
	}
}

// isCommitted reports whether all that was delivered is covered by commits.
func (s *memberShare) isCommitted() bool {
	s.foldAll()
	return len(s.unsaved) == 0
}

// installBuckets takes buckets in, with their positions. Shards that these do not name are at their beginning.
func (s *memberShare) installBuckets(set bucket.Set, positions []*scribev1.GroupShardPosition) error {
	named := make(map[record.ShardID]bucket.Position, len(positions))
	for _, p := range positions {
		pos, err := s.parsePosition(p)
		if err != nil {
			return err
		}
		named[record.ShardID(p.GetShard())] = pos
	}
	s.foldAll()
	held := s.heldBuckets()
	held.AddAll(set)
	for id := range named {
		if s.shards[id] == nil && len(s.shards) >= checkpoint.MaxPositions {
			return fmt.Errorf("%w: the category has more than %d physical shards", ErrRefused, checkpoint.MaxPositions)
		}
		s.findShard(id)
	}
	var theirs bucket.Places
	for id, sh := range s.shards {
		pos := named[id]
		theirs = s.scheme.Expand(&pos, theirs)
		s.places = s.scheme.Expand(&sh.at, s.places)
		for b := range set.Each() {
			delete(sh.live, b)
			s.places[b] = theirs[b]
		}
		sh.at = s.scheme.Compact(id, s.places, held)
	}
	s.owned.AddAll(set)
	s.draining.RemoveAll(set)
	s.version++
	return nil
}

// parsePosition checks a position that a coordinator sent.
func (s *memberShare) parsePosition(p *scribev1.GroupShardPosition) (bucket.Position, error) {
	pos := bucket.Position{Low: record.LSN(p.GetLow())}
	bad := record.ShardID(p.GetShard()).Category() != s.categoryID || pos.Low < record.FirstLSN
	for i, a := range p.GetAhead() {
		bad = bad || a.GetBucket() >= s.scheme.Buckets || a.GetLsn() < p.GetLow() || i > 0 && a.GetBucket() <= p.GetAhead()[i-1].GetBucket()
		pos.Ahead = append(pos.Ahead, bucket.Ahead{Bucket: a.GetBucket(), Place: bucket.Place{LSN: record.LSN(a.GetLsn()), Skip: a.GetSkip()}})
	}
	if bad {
		return pos, fmt.Errorf("%w: the group's position in shard %v is not one", ErrProtocol, record.ShardID(p.GetShard()))
	}
	return pos, nil
}

// drainBuckets stops reading buckets. Their places stay until they are dropped.
func (s *memberShare) drainBuckets(set bucket.Set) {
	s.draining.AddAll(set)
	s.owned.RemoveAll(set)
	s.countAllUndone()
}

// resumeBuckets reads draining buckets on, from where they were delivered.
func (s *memberShare) resumeBuckets(set bucket.Set) {
	for id := range s.active {
		sh := s.shards[id]
		for b := range set.Each() {
			if p := sh.live[b]; p != nil {
				// What is queued of it is not delivered: it will come again, to another place.
				sh.live[b] = p.asUndelivered()
			}
		}
	}
	s.owned.AddAll(set)
	s.draining.RemoveAll(set)
	s.version++
}

// dropBuckets forgets buckets. It reports whether something was delivered of any that no commit covers, as far as that can be said.
func (s *memberShare) dropBuckets(set bucket.Set) (unsaved bool) {
	s.foldAll()
	unsaved = len(s.unsaved) > 0
	s.owned.RemoveAll(set)
	s.draining.RemoveAll(set)
	held := s.heldBuckets()
	for id, sh := range s.shards {
		for b := range set.Each() {
			delete(sh.live, b)
		}
		s.places = s.scheme.Expand(&sh.at, s.places)
		sh.at = s.scheme.Compact(id, s.places, held)
		if len(sh.live) == 0 {
			delete(s.active, id)
		}
	}
	if held.Empty() {
		clear(s.unsaved)
	}
	s.countAllUndone()
	return unsaved
}

// rewindToDelivered makes the stream begin again with what was not delivered, for a new iteration.
func (s *memberShare) rewindToDelivered(bounded bool) {
	s.bounded, s.undone = bounded, 0
	for _, sh := range s.shards {
		sh.end, sh.left = 0, false
		for b, p := range sh.live {
			sh.live[b] = p.asUndelivered()
		}
	}
}

// fillStart fills in what a stream is opened with.
func (s *memberShare) fillStart(start *scribev1.StreamStart) {
	start.StartAt, start.StartTime = scribev1.StartAt_START_AT_EARLIEST, 0
	start.Buckets = &scribev1.StreamBuckets{Sharing: uint32(s.scheme.Sharing), Buckets: s.scheme.Buckets, Set: s.owned.Clone()}
	filter := bucket.Filter{Scheme: s.scheme, Set: s.owned}
	for id, sh := range s.shards {
		if !filter.HasSome(id) {
			continue
		}
		s.places = s.scheme.Expand(&sh.at, s.places)
		for b, p := range sh.live {
			s.places[b] = bucket.Place{LSN: p.received}
		}
		for b := range s.owned.Each() {
			s.places[b].Skip = 0 // a pointer that is not done with is to come
		}
		pos := s.scheme.Compact(id, s.places, s.owned)
		sh.cursor = pos.Low
		start.Resume = append(start.Resume, &scribev1.ShardPosition{Shard: uint64(id), Lsn: uint64(pos.Low)})
	}
}

// joinShard takes a shard that a stream announces. The gap is what of it was removed before anybody of the group could read it.
func (s *memberShare) joinShard(v *scribev1.StreamShard) (gap *scribev1.StreamGap, err error) {
	id, lsn := record.ShardID(v.GetShard()), record.LSN(v.GetLsn())
	known := s.shards[id] != nil
	if !known {
		if lsn < record.FirstLSN || id.Category() != s.categoryID {
			return nil, fmt.Errorf("%w: shard %v joins at LSN %d", ErrProtocol, id, lsn)
		}
		if len(s.shards) >= checkpoint.MaxPositions {
			return nil, fmt.Errorf("%w: the category has more than %d physical shards", ErrRefused, checkpoint.MaxPositions)
		}
	}
	sh := s.findShard(id)
	if s.bounded && sh.end == 0 {
		sh.end = record.LSN(v.GetNextLsn())
	}
	s.countUndone(sh)
	if !known && lsn > record.FirstLSN {
		gap = &scribev1.StreamGap{Shard: uint64(id), From: uint64(record.FirstLSN), To: uint64(lsn), Reason: scribev1.Reason_REASON_TRIMMED}
	}
	return gap, nil
}

// receiveEntry takes a pointer's place, as shardPositions.receiveEntry does: deliver says that it is new, and the member's.
func (s *memberShare) receiveEntry(id record.ShardID, lsn record.LSN) (*shardPosition, bool, error) {
	sh := s.shards[id]
	if sh == nil {
		return nil, false, fmt.Errorf("%w: an entry of shard %v, which did not join", ErrProtocol, id)
	}
	if err := s.checkPassed(sh, lsn); err != nil {
		return nil, false, err
	}
	sh.cursor = max(sh.cursor, lsn+1)
	b := s.scheme.Of(id, lsn)
	if !s.owned.Has(b) || lsn < sh.receivedOf(b) || sh.end > 0 && lsn >= sh.end {
		return nil, false, nil
	}
	p := s.makeLive(sh, b)
	p.received = lsn + 1
	s.countUndone(sh)
	return p, true, nil
}

// checkPassed checks that the stream may go on at an LSN: that nothing between was the member's, and to come.
func (s *memberShare) checkPassed(sh *sharedShard, to record.LSN) error {
	for lsn := sh.cursor; lsn < to; lsn++ {
		if b := s.scheme.Of(sh.id, lsn); s.owned.Has(b) && sh.receivedOf(b) <= lsn && (sh.end == 0 || lsn < sh.end) {
			return fmt.Errorf("%w: shard %v goes from LSN %d to %d, and leaves out LSN %d", ErrProtocol, sh.id, sh.cursor, to, lsn)
		}
		if s.scheme.Sharing == bucket.Shards {
			break // they are all in one bucket
		}
	}
	return nil
}

// receiveGap takes a hole [from, to). It returns where it begins for the member, and the places that it takes further: none when nothing in it
// is the member's.
func (s *memberShare) receiveGap(g *scribev1.StreamGap) (from record.LSN, lost []*shardPosition, err error) {
	id := record.ShardID(g.GetShard())
	begin, to := record.LSN(g.GetFrom()), record.LSN(g.GetTo())
	sh := s.shards[id]
	switch {
	case sh == nil:
		return 0, nil, fmt.Errorf("%w: a gap in shard %v, which did not join", ErrProtocol, id)
	case to < begin:
		return 0, nil, fmt.Errorf("%w: shard %v has a gap from LSN %d to %d", ErrProtocol, id, begin, to)
	}
	if err := s.checkPassed(sh, begin); err != nil {
		return 0, nil, err
	}
	from, lost, _ = s.receiveRange(sh, begin, to)
	return from, lost, nil
}

// receiveSkip takes pointers [from, to) that were left out, since nothing of them is wanted. It returns the places that this takes further, and by how
// many pointers.
func (s *memberShare) receiveSkip(id record.ShardID, from, to record.LSN) (passed []*shardPosition, pointers uint64, err error) {
	sh := s.shards[id]
	switch {
	case sh == nil:
		return nil, 0, fmt.Errorf("%w: it leaves out pointers of shard %v, which did not join", ErrProtocol, id)
	case to < from:
		return nil, 0, fmt.Errorf("%w: shard %v leaves out pointers %d to %d", ErrProtocol, id, from, to)
	}
	if err := s.checkPassed(sh, from); err != nil {
		return nil, 0, err
	}
	_, passed, pointers = s.receiveRange(sh, from, to)
	return passed, pointers, nil
}

// receiveRange has received what is in [begin, to). It returns the places of the buckets that have something in it which is to come, where the
// first of that is, and how many pointers it is.
func (s *memberShare) receiveRange(sh *sharedShard, begin, to record.LSN) (from record.LSN, places []*shardPosition, pointers uint64) {
	sh.cursor = max(sh.cursor, to)
	if sh.end > 0 {
		to = min(to, sh.end)
	}
	take := func(b uint32) {
		next, ok := s.scheme.Next(sh.id, b, max(begin, sh.receivedOf(b)))
		if !ok || next >= to {
			return
		}
		if len(places) == 0 || next < from {
			from = next
		}
		p := s.makeLive(sh, b)
		p.received = to
		places, pointers = append(places, p), pointers+s.scheme.Count(sh.id, b, next, to)
	}
	if uint64(max(to, begin)-begin) < uint64(s.scheme.Buckets) { // few of them have something in it
		for lsn := begin; lsn < to; lsn++ {
			if b := s.scheme.Of(sh.id, lsn); s.owned.Has(b) {
				take(b)
			}
		}
	} else {
		for b := range s.owned.Each() {
			take(b)
		}
	}
	s.countUndone(sh)
	return from, places, pointers
}

// endShard takes the end of a shard: nothing more comes, whatever its end was thought to be.
func (s *memberShare) endShard(id record.ShardID) {
	if sh := s.shards[id]; sh != nil && sh.end > 0 {
		sh.end = min(sh.end, sh.cursor)
		s.countUndone(sh)
	}
}

// isLive reports whether a place is one that the member reads on from.
func (s *memberShare) isLive(p *shardPosition) bool {
	sh := s.shards[p.shard]
	return sh != nil && s.owned.Has(p.bucket) && sh.live[p.bucket] == p
}

// claims reports whether an item of the queue is to be delivered: what was received of a bucket that was given back since is not. Of a gap, and
// of what was left out, it keeps the places that the member reads on from: before one that was given back there may be a payload in the
// queue, which was not delivered.
func (s *memberShare) claims(it *streamItem) bool {
	switch it.kind {
	case itemPayload:
		return s.isLive(it.pos)
	case itemGap:
		it.lost = slices.DeleteFunc(it.lost, func(p *shardPosition) bool { return !s.isLive(p) })
		if len(it.lost) == 0 {
			return false
		}
		it.pos = it.lost[0]
		return true
	case itemSkipped:
		maps.DeleteFunc(it.runs, func(p *shardPosition, _ record.LSN) bool { return !s.isLive(p) })
		return len(it.runs) > 0
	case itemWatermark:
		return it.version == s.version
	default:
		return true
	}
}

// countUndone brings undone up to date with a shard: whether something of the member's is to come below its end.
func (s *memberShare) countUndone(sh *sharedShard) {
	if !s.bounded {
		return
	}
	left := false
	for b := range s.owned.Each() {
		if next, ok := s.scheme.Next(sh.id, b, sh.receivedOf(b)); ok && next < sh.end {
			left = true
			break
		}
	}
	if left != sh.left {
		sh.left = left
		if left {
			s.undone++
		} else {
			s.undone--
		}
	}
}

func (s *memberShare) countAllUndone() {
	for _, sh := range s.shards {
		s.countUndone(sh)
	}
}

// unsavedPositions returns the positions that a commit is to bring, of the buckets that are held, and takes them off the list: put them
// back when it fails.
func (s *memberShare) unsavedPositions() ([]*scribev1.GroupShardPosition, bucket.Set) {
	s.foldAll()
	held := s.heldBuckets()
	out := make([]*scribev1.GroupShardPosition, 0, len(s.unsaved))
	for id := range s.unsaved {
		at := s.shards[id].at
		p := &scribev1.GroupShardPosition{Shard: uint64(id), Low: uint64(at.Low)}
		for _, a := range at.Ahead {
			p.Ahead = append(p.Ahead, &scribev1.GroupBucketPosition{Bucket: a.Bucket, Lsn: uint64(a.LSN), Skip: a.Skip})
		}
		out = append(out, p)
	}
	clear(s.unsaved)
	return out, held
}

// putBack notes again that shards have news for a commit.
func (s *memberShare) putBack(positions []*scribev1.GroupShardPosition) {
	if s.heldBuckets().Empty() {
		return
	}
	for _, p := range positions {
		s.unsaved[record.ShardID(p.GetShard())] = struct{}{}
	}
}
