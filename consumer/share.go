package consumer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"scribe/internal/format/bucket"
	"scribe/internal/format/checkpoint"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// shardPosition is the position of a bucket in one shard. It has two ends: a commit or a checkpoint contains the delivered end, a
// reopened stream begins at the received end. The queue holds what lies between them.
type shardPosition struct {
	shard  record.ShardID
	bucket uint32
	// Delivered: the next message is message skip of the pointer at lsn.
	lsn  record.LSN
	skip uint32
	// received is the LSN of the next pointer expected from the stream.
	received record.LSN
	// trimmed is an LSN below which retention is known to have removed everything; 0 = unknown.
	trimmed record.LSN
}

// asUndelivered returns a position from which everything undelivered is received again.
func (p *shardPosition) asUndelivered() *shardPosition {
	return &shardPosition{shard: p.shard, bucket: p.bucket, lsn: p.lsn, skip: p.skip, received: p.lsn, trimmed: p.trimmed}
}

// categoryShare is a consumer's part of a category with its positions: a plain state machine. The consumer's mutex guards it. A
// group member has the buckets that it is assigned; a consumer in no group has the only one of a scheme of one bucket.
//
// Positions are kept per bucket, since buckets come from other members, whose positions differed. In the long run all buckets of
// a shard have the same position, which takes one number for each shard (bucket.Position). Positions whose two ends differ are
// kept per bucket, for as long as they do; without a group they always are.
type categoryShare struct {
	scheme bucket.Scheme
	// alone: the consumer is in no group. Its shards begin where the stream says, and it finds out the category's id by itself.
	alone bool
	// opened: the shards' positions are known, from the group, a checkpoint or the first stream.
	opened bool
	// categoryID is 0 while unknown.
	categoryID uint32
	// owned are the buckets being read; draining are no longer read, and wait to be committed.
	owned, draining bucket.Set
	// version grows when positions were added that the stream may already have passed. Earlier watermarks do not cover these
	// positions, and the entries of a stream that was opened before do not continue them.
	version uint64
	shards  map[record.ShardID]*sharedShard
	// active are the shards with live positions. unsaved are the shards with deliveries that no commit covers, as of the last
	// fold.
	active, unsaved map[record.ShardID]struct{}
	// bounded: the iteration ends where the shards ended when it first saw them. undone counts the shards with something left to
	// read.
	bounded bool
	undone  int

	places bucket.Places // scratch space
}

// sharedShard is one physical shard.
type sharedShard struct {
	id record.ShardID
	// at has the positions of the owned and draining buckets, except live ones.
	at bucket.Position
	// cursor is the LSN that the stream brings next, or a lower bound of it.
	cursor record.LSN
	// origin is where the log began in a recovery, if nothing of it had been received before. removed is where it began when it was removed before
	// the stream announced it; 0 = it was not.
	origin, removed record.LSN
	// live are the buckets with messages received and not delivered, or delivered and not folded into at.
	live map[uint32]*shardPosition
	// end is where a bounded iteration stops; 0 = unknown, or unbounded. left: the shard counts in undone.
	end  record.LSN
	left bool
}

func newShare(scheme bucket.Scheme, categoryID uint32) *categoryShare {
	return &categoryShare{
		scheme: scheme, categoryID: categoryID, opened: true,
		owned: bucket.NewSet(scheme.Buckets), draining: bucket.NewSet(scheme.Buckets),
		shards: map[record.ShardID]*sharedShard{}, active: map[record.ShardID]struct{}{}, unsaved: map[record.ShardID]struct{}{},
	}
}

// onlyBucket is what a consumer in no group owns. It is not changed.
var onlyBucket = bucket.All(1)

// newWholeShare returns the share of a consumer in no group, which may begin at a checkpoint.
func newWholeShare(from *checkpoint.Checkpoint) *categoryShare {
	s := &categoryShare{
		scheme: bucket.Scheme{Sharing: bucket.Shards, Buckets: 1}, alone: true, opened: from != nil,
		owned: onlyBucket, shards: map[record.ShardID]*sharedShard{},
	}
	if from != nil {
		s.categoryID = from.CategoryID
		for _, q := range from.Positions {
			s.beginAt(q.Shard, q.LSN, q.Skip)
		}
	}
	return s
}

// beginAt sets the position in an unread shard, of a consumer in no group.
func (s *categoryShare) beginAt(id record.ShardID, lsn record.LSN, skip uint32) {
	sh := s.findShard(id)
	sh.cursor = lsn
	sh.live[0] = &shardPosition{shard: id, lsn: lsn, skip: skip, received: lsn}
}

// asCheckpoint returns the delivered positions of a consumer in no group.
func (s *categoryShare) asCheckpoint(category string, watermark int64) checkpoint.Checkpoint {
	c := checkpoint.Checkpoint{Category: category, CategoryID: s.categoryID, Watermark: watermark}
	for id, sh := range s.shards {
		at := checkpoint.Position{Shard: id, LSN: sh.live[0].lsn, Skip: sh.live[0].skip}
		if at.Skip == 0 {
			at.LSN = sh.unreadAt(at.LSN)
		}
		c.Positions = append(c.Positions, at)
	}
	slices.SortFunc(c.Positions, func(a, b checkpoint.Position) int { return cmp.Compare(a.Shard, b.Shard) })
	return c
}

// adoptCategoryID compares the category id of a stream with the known one, or adopts it.
func (s *categoryShare) adoptCategoryID(id uint32) error {
	switch {
	case id == 0, id == s.categoryID:
		return nil
	case s.categoryID == 0:
		s.categoryID = id
		return nil
	case s.alone:
		return fmt.Errorf("%w: the category was deleted and made again since", ErrCheckpoint)
	default:
		return ErrCategoryReplaced
	}
}

// findShard returns a shard. It adds an unknown one as unread.
func (s *categoryShare) findShard(id record.ShardID) *sharedShard {
	sh := s.shards[id]
	if sh == nil {
		sh = &sharedShard{id: id, at: bucket.Position{Low: record.FirstLSN}, cursor: record.FirstLSN, live: map[uint32]*shardPosition{}}
		s.shards[id] = sh
	}
	return sh
}

// receivedOf returns the LSN from which on a bucket's pointers are still to be received.
func (sh *sharedShard) receivedOf(b uint32) record.LSN {
	if p := sh.live[b]; p != nil {
		return p.received
	}
	return sh.at.At(b).LSN
}

// unreadAt returns the position to resume from: at, or the first LSN if nothing of the log was read, and it began there in a recovery: it may begin
// elsewhere after another one.
func (sh *sharedShard) unreadAt(at record.LSN) record.LSN {
	if at == sh.origin {
		return record.FirstLSN
	}
	return at
}

// makeLive makes the position of a bucket live, before one of its pointers is received.
func (s *categoryShare) makeLive(sh *sharedShard, b uint32) *shardPosition {
	p := sh.live[b]
	if p == nil {
		at := sh.at.At(b)
		p = &shardPosition{shard: sh.id, bucket: b, lsn: at.LSN, skip: at.Skip, received: at.LSN}
		sh.live[b] = p
		s.active[sh.id] = struct{}{}
	}
	return p
}

// heldBuckets returns the buckets with known positions.
func (s *categoryShare) heldBuckets() bucket.Set {
	set := s.owned.Clone()
	set.AddAll(s.draining)
	return set
}

// foldShard folds live positions into at, and removes those whose two ends agree. It reports whether at has changed.
func (s *categoryShare) foldShard(sh *sharedShard, held bucket.Set) bool {
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

// foldAll folds every shard, and marks the changed ones as unsaved.
func (s *categoryShare) foldAll() {
	held := s.heldBuckets()
	for id := range s.active {
		if s.foldShard(s.shards[id], held) {
			s.unsaved[id] = struct{}{}
		}
	}
}

// isCommitted reports whether commits cover everything delivered.
func (s *categoryShare) isCommitted() bool {
	s.foldAll()
	return len(s.unsaved) == 0
}

// installBuckets adds buckets with their positions. In shards without a position they begin at the first record.
func (s *categoryShare) installBuckets(set bucket.Set, positions []*scribev1.GroupShardPosition) error {
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
func (s *categoryShare) parsePosition(p *scribev1.GroupShardPosition) (bucket.Position, error) {
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

// drainBuckets stops reading buckets. Their positions stay until the buckets are dropped.
func (s *categoryShare) drainBuckets(set bucket.Set) {
	s.draining.AddAll(set)
	s.owned.RemoveAll(set)
	s.countAllUndone()
}

// resumeBuckets resumes reading draining buckets, from their delivered positions.
func (s *categoryShare) resumeBuckets(set bucket.Set) {
	for id := range s.active {
		sh := s.shards[id]
		for b := range set.Each() {
			if p := sh.live[b]; p != nil {
				// Its queued messages are not delivered: they are received again, under a new position.
				sh.live[b] = p.asUndelivered()
			}
		}
	}
	s.owned.AddAll(set)
	s.draining.RemoveAll(set)
	s.version++
}

// dropBuckets removes buckets. It reports whether they have deliveries that no commit covers, as far as is known.
func (s *categoryShare) dropBuckets(set bucket.Set) (unsaved bool) {
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

// rewindToDelivered makes the stream of a new iteration repeat what was not delivered.
func (s *categoryShare) rewindToDelivered(bounded bool) {
	s.bounded, s.undone = bounded, 0
	for _, sh := range s.shards {
		sh.end, sh.left = 0, false
		for b, p := range sh.live {
			if p.received != p.lsn {
				sh.live[b] = p.asUndelivered()
			}
		}
	}
}

// fillStart sets the buckets and positions of a StreamStart. wanted selects the logs, without a group.
func (s *categoryShare) fillStart(start *scribev1.StreamStart, wanted func(record.ShardID) bool) {
	if !s.opened {
		return
	}
	// A shard without a position appeared after all those with one: none of it has been read.
	start.StartAt, start.StartTime = scribev1.StartAt_START_AT_EARLIEST, 0
	if s.alone {
		start.Resume = s.resumePositions(wanted)
		return
	}
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
			s.places[b].Skip = 0 // the pointer is not finished: it has to come
		}
		pos := s.scheme.Compact(id, s.places, s.owned)
		sh.cursor = pos.Low
		start.Resume = append(start.Resume, &scribev1.ShardPosition{Shard: uint64(id), Lsn: uint64(sh.unreadAt(pos.Low))})
	}
}

// resumePositions returns the positions to open a stream with, of a consumer in no group.
func (s *categoryShare) resumePositions(wanted func(record.ShardID) bool) []*scribev1.ShardPosition {
	var out []*scribev1.ShardPosition
	for id, sh := range s.shards {
		p := sh.live[0]
		sh.cursor = p.received
		if wanted(id) {
			r := &scribev1.ShardPosition{Shard: uint64(id), Lsn: uint64(p.received)}
			if p.received == p.lsn {
				r.Skip = p.skip
			}
			if r.GetSkip() == 0 {
				r.Lsn = uint64(sh.unreadAt(p.received))
			}
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *scribev1.ShardPosition) int { return cmp.Compare(a.GetShard(), b.GetShard()) })
	return out
}

// joinShard adds a shard that a stream announces. A known shard keeps its position. late: a bounded iteration of a consumer in no
// group has its ends, so it reads nothing of a new shard. The gap covers what was removed before any member of the group could
// read it.
func (s *categoryShare) joinShard(v *scribev1.StreamShard, late bool) (gap *scribev1.StreamGap, err error) {
	id, lsn := record.ShardID(v.GetShard()), record.LSN(v.GetLsn())
	known := s.shards[id] != nil
	if !known {
		if lsn < record.FirstLSN || id.Category() != s.categoryID && !s.alone {
			return nil, fmt.Errorf("%w: shard %v joins at LSN %d", ErrProtocol, id, lsn)
		}
		if len(s.shards) >= checkpoint.MaxPositions {
			return nil, fmt.Errorf("%w: the category has more than %d physical shards", ErrRefused, checkpoint.MaxPositions)
		}
	}
	if s.alone && !known {
		s.beginAt(id, max(lsn, record.LSN(v.GetOrigin())), 0)
	}
	sh := s.findShard(id)
	if !known {
		sh.removed = record.LSN(v.GetOrigin())
	}
	switch {
	case !s.bounded || sh.end > 0:
	case s.alone && late:
		sh.end = sh.cursor
	default:
		sh.end = max(record.LSN(v.GetNextLsn()), record.FirstLSN)
	}
	s.countUndone(sh)
	if !known && !s.alone && lsn > record.FirstLSN {
		gap = &scribev1.StreamGap{Shard: uint64(id), From: uint64(record.FirstLSN), To: uint64(lsn), Reason: scribev1.Reason_REASON_TRIMMED}
	}
	return gap, nil
}

// receiveEntry advances the received end past a pointer. deliver reports whether the pointer is new and belongs to the share. A
// pointer received before is ignored; a hole without a gap event is an error.
func (s *categoryShare) receiveEntry(id record.ShardID, lsn record.LSN) (*shardPosition, bool, error) {
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

// checkPassed checks that the stream may continue at an LSN: that it skipped no pointer that is still to be received.
func (s *categoryShare) checkPassed(sh *sharedShard, to record.LSN) error {
	for lsn := sh.cursor; lsn < to; lsn++ {
		if b := s.scheme.Of(sh.id, lsn); s.owned.Has(b) && sh.receivedOf(b) <= lsn && (sh.end == 0 || lsn < sh.end) {
			return fmt.Errorf("%w: shard %v goes from LSN %d to %d, and leaves out LSN %d", ErrProtocol, sh.id, sh.cursor, to, lsn)
		}
		if s.scheme.Sharing == bucket.Shards {
			break // all LSNs are in one bucket
		}
	}
	return nil
}

// passedRange is a range of pointers that the share no longer has to receive: from is the first of them, pointers their number,
// and places are the positions that it advances, none when it contains nothing of the share.
type passedRange struct {
	from     record.LSN
	places   []*shardPosition
	pointers uint64
}

// The ways in which a stream passes over pointers, in errors.
var (
	passedGap  = [...]string{"a gap in", "has a gap from LSN"}
	passedSkip = [...]string{"it leaves out pointers of", "leaves out pointers"} // the filter excludes them
)

// passOver marks [begin, to) of a shard as received.
func (s *categoryShare) passOver(how [2]string, id record.ShardID, begin, to record.LSN) (r passedRange, err error) {
	sh := s.shards[id]
	switch {
	case sh == nil:
		return r, fmt.Errorf("%w: %s shard %v, which did not join", ErrProtocol, how[0], id)
	case to < begin:
		return r, fmt.Errorf("%w: shard %v %s %d to %d", ErrProtocol, id, how[1], begin, to)
	}
	if err := s.checkPassed(sh, begin); err != nil {
		return r, err
	}
	sh.cursor = max(sh.cursor, to)
	if sh.end > 0 {
		to = min(to, sh.end)
	}
	take := func(b uint32) {
		next, ok := s.scheme.Next(sh.id, b, max(begin, sh.receivedOf(b)))
		if !ok || next >= to {
			return
		}
		if len(r.places) == 0 || next < r.from {
			r.from = next
		}
		p := s.makeLive(sh, b)
		p.received = to
		r.places, r.pointers = append(r.places, p), r.pointers+s.scheme.Count(sh.id, b, next, to)
	}
	if uint64(max(to, begin)-begin) < uint64(s.scheme.Buckets) { // only few buckets have pointers in the range
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
	return r, nil
}

// hasReceived reports whether something of a shard was received in a bucket of the share, now or by an earlier owner.
func (s *categoryShare) hasReceived(id record.ShardID) bool {
	sh := s.shards[id]
	if sh == nil {
		return false
	}
	for b := range s.owned.Each() {
		if sh.receivedOf(b) > max(sh.origin, record.FirstLSN) {
			return true
		}
	}
	return false
}

// endShard handles the end of a shard: nothing more comes, even if its end was thought to be later.
func (s *categoryShare) endShard(id record.ShardID) {
	sh := s.shards[id]
	if sh == nil || !s.bounded {
		return
	}
	if sh.end == 0 || sh.end > sh.cursor {
		sh.end = sh.cursor
	}
	s.countUndone(sh)
}

// isLive reports whether a position is one from which the consumer reads on.
func (s *categoryShare) isLive(p *shardPosition) bool {
	sh := s.shards[p.shard]
	return sh != nil && s.owned.Has(p.bucket) && sh.live[p.bucket] == p
}

// claims reports whether an item of the queue is to be delivered: not if its bucket was given back in the meantime. For gaps and
// skips it keeps only the live positions: for a bucket that was given back, an undelivered payload may stand before the item in
// the queue.
func (s *categoryShare) claims(it *streamItem) bool {
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

// countUndone updates undone for a shard: whether something below its end is still to be received.
func (s *categoryShare) countUndone(sh *sharedShard) {
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

func (s *categoryShare) countAllUndone() {
	for _, sh := range s.shards {
		s.countUndone(sh)
	}
}

// unsavedPositions returns the positions of the held buckets for a commit, and clears the list of unsaved shards. Call putBack if
// the commit fails.
func (s *categoryShare) unsavedPositions() ([]*scribev1.GroupShardPosition, bucket.Set) {
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

// putBack marks shards as unsaved again.
func (s *categoryShare) putBack(positions []*scribev1.GroupShardPosition) {
	if s.heldBuckets().Empty() {
		return
	}
	for _, p := range positions {
		s.unsaved[record.ShardID(p.GetShard())] = struct{}{}
	}
}
