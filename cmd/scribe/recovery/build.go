package recovery

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	"scribe/storage/metalog"
)

// LostRecord is the placeholder in a log for a lost record. It is not a pointer, so readers get a gap.
const LostRecord = "scribe: lost record: no blob holds its pointer"

// buildLogs builds each log from the claims that are valid, and writes it to the sink.
func (r *recoveryRun) buildLogs(ctx context.Context) error {
	plan, err := r.makePlan(ctx)
	if err != nil {
		return err
	}
	for _, f := range plan.findings {
		if err := r.deps.Found(f); err != nil {
			return err
		}
	}
	for _, id := range plan.retired {
		r.sink.Retire(id)
	}
	v := newOutcomeTable(r.scratch)
	r.report.Origin = record.LSN(max(r.now, r.report.Newest, r.cfg.TrimmedUntil)) //nolint:gosec // times after 1970
	build := func(shard record.ShardID, base *metalog.State) error {
		category := shard.Category()
		l := &logBuilder{r: r, v: v, shard: shard, base: base, category: plan.names[category], retention: plan.retention[category]}
		if plan.deleted[category] {
			return l.countDeleted(ctx)
		}
		l.sealed = plan.dropped[category]
		if err := l.buildLog(ctx); err != nil {
			return err
		}
		if at, sequenced := plan.sources[category]; sequenced {
			plan.sources[category] = append(at, sequencedFrom{shard, l.first})
		}
		return nil
	}
	if err := r.buildFromBase(ctx, plan, build); err != nil {
		return err
	}
	err = r.scratch.eachShard(ctx, func(shard record.ShardID) error {
		base, err := r.baseState(shard)
		if err != nil || base != nil {
			return err
		}
		return build(shard, nil)
	})
	if err != nil {
		return err
	}
	for _, cat := range plan.categories {
		if cat.IsSequenced() {
			if err := r.sequenceAnew(cat.GetId(), plan.sources[cat.GetId()]); err != nil {
				return err
			}
		}
	}
	r.report.Categories, r.report.Dropped, r.report.NextID = plan.categories, plan.keep, plan.nextID
	r.deps.Progress("records", r.report.Records)
	return r.countBlobs(ctx, v)
}

// buildFromBase builds the logs that the base has. Those of categories that do not exist any more are left out, and the categories are retired.
func (r *recoveryRun) buildFromBase(ctx context.Context, plan *categoryPlan, build func(record.ShardID, *metalog.State) error) error {
	if r.deps.Base == nil {
		return nil
	}
	r.deps.Base.Retired(func(first, last uint32) {
		for id := uint64(first); id <= uint64(last); id++ {
			r.sink.Retire(uint32(id)) //nolint:gosec // at most last
		}
	})
	exists := map[uint32]bool{}
	for _, cat := range slices.Concat(plan.categories, plan.keep) {
		exists[cat.GetId()] = true
	}
	return r.deps.Base.States(ctx, func(st metalog.State) error {
		category := st.Shard.Category()
		switch {
		case category == 0, sequenced.Reserved(st.Shard): // the lease of retention, and what is sequenced anew
			return nil
		case !exists[category]:
			r.sink.Retire(category)
			return nil
		}
		return build(st.Shard, &st)
	})
}

// sequencedFrom is the position at which the sequencer begins in a log.
type sequencedFrom struct {
	shard record.ShardID
	first record.LSN
}

// sequenceAnew lets a category be sequenced again from the recovered logs, since blobs do not contain its order. LSNs and message
// numbers continue far above all earlier ones. So no earlier checkpoint and no batch identifier can be taken for another
// position: readers get a gap, and then everything again. The present time in nanoseconds is far enough above: a category had
// fewer messages, even if it was recovered before.
func (r *recoveryRun) sequenceAnew(category uint32, sources []sequencedFrom) error {
	base := uint64(r.now) * 1000 //nolint:gosec // a time after 1970
	state := sequenced.NewState()
	state.Next, state.Offset = record.LSN(base), base
	for _, s := range sources {
		state.At[s.shard] = s.first
	}
	records := state.Whole()
	for i, data := range records {
		if err := r.sink.Record(sequenced.Positions(category), record.LSN(i+1), r.now, data); err != nil {
			return err
		}
	}
	return errors.Join(
		r.sink.Shard(metalog.State{Shard: sequenced.Log(category), FirstLSN: state.Next, NextLSN: state.Next, Epoch: EpochMargin, Origin: state.Next}),
		r.sink.Shard(metalog.State{
			Shard: sequenced.Positions(category), FirstLSN: record.FirstLSN, NextLSN: record.LSN(len(records) + 1), Epoch: EpochMargin, LastTime: r.now,
		}))
}

// countBlobs counts the blobs by outcome, and reports void and uncertain ones.
func (r *recoveryRun) countBlobs(ctx context.Context, v *outcomeTable) error {
	return r.scratch.eachRow(ctx, []byte{keyBlob}, func(row scratchRow) error {
		b, _, err := decodeBlobRow(row.value)
		if err != nil || b.Status != statusRead {
			return err
		}
		class, id := blobOfKey(row.key)
		known, err := v.outcomeOf(id)
		if err != nil {
			return err
		}
		finding := Finding{Key: pointer.Key(class, id), Size: b.Size}
		switch known {
		case outcomeCommitted:
			r.report.Committed++
			return nil
		case outcomeGone:
			return nil
		case outcomeVoid:
			r.report.Void++
			finding.Kind, finding.Reason = FindingVoid, "not committed: its payloads are in other blobs, or their writers know that they were not stored"
		default:
			r.report.Uncertain++
			finding.Kind, finding.Reason = FindingUncertain, "nothing says whether it was committed: it is among the last of its writer; taken as committed"
		}
		return r.deps.Found(finding)
	})
}

// logBuilder writes one log.
type logBuilder struct {
	r        *recoveryRun
	v        *outcomeTable
	shard    record.ShardID
	category string
	// retention is that of the category, in microseconds.
	retention int64
	sealed    bool
	// base is the state of the log in the base; nil without one. Until known, all records of the log are known: those that the base lacks are later.
	base  *metalog.State
	known int64
	gone  goneRun
	// cutFrom is the first record that is later than the moment that is restored, 0 before it was met. So are all after it.
	cutFrom record.LSN

	epoch       uint64
	first, next record.LSN // 0 while there is no record
	time        int64      // of the newest record
	records     int64      // since first
	restarted   bool
}

// countDeleted counts the records of a deleted category.
func (l *logBuilder) countDeleted(ctx context.Context) error {
	return l.r.scratch.eachPosition(ctx, l.shard, func(claims []positionClaim) error {
		c, _, err := l.standingClaim(claims)
		if c != nil {
			l.r.report.Deleted++
		}
		return err
	})
}

func (l *logBuilder) buildLog(ctx context.Context) error {
	epochs, err := l.r.shardStarts(ctx, l.shard)
	if err != nil {
		return err
	}
	if len(epochs) > 0 { // else no blob is later than the base
		l.epoch = epochs[len(epochs)-1].epoch
	}
	if err := l.copyBase(ctx); err != nil {
		return err
	}
	err = l.r.scratch.eachPosition(ctx, l.shard, func(claims []positionClaim) error {
		if l.base != nil && claims[0].lsn < l.base.NextLSN {
			return nil
		}
		c, known, err := l.standingClaim(claims)
		if err != nil || c == nil {
			return err
		}
		return l.appendRecord(c, known)
	})
	if err != nil {
		return err
	}
	// When a writer opened the log, everything below its start was committed, including lost records.
	if len(epochs) > 0 {
		if last := epochs[len(epochs)-1]; last.exact && last.lsn > l.next {
			if l.next == 0 {
				l.first, l.next = last.lsn, last.lsn
			} else if err := l.fillGap(last.lsn); err != nil {
				return err
			}
		}
	}
	if err := l.checkEnd(); err != nil {
		return err
	}
	if l.cutFrom >= max(l.first, 1) && l.cutFrom < l.next {
		if err := l.r.deps.Found(Finding{
			Kind: FindingCut, Category: l.category, Shard: l.shard, From: l.cutFrom, To: l.next, Reason: "they are later than the moment to restore: readers get a gap",
		}); err != nil {
			return err
		}
	}
	l.r.report.Logs++
	l.r.report.Clock = max(l.r.report.Clock, l.time)
	return l.r.sink.Shard(metalog.State{
		Shard: l.shard, FirstLSN: l.first, NextLSN: l.next, Epoch: l.epoch + EpochMargin, Sealed: l.sealed, LastTime: l.time, Origin: l.originLSN(),
	})
}

// originLSN returns where the log began in this recovery or an earlier one; 0 if it began at LSN 1. No blob has the origin of an
// earlier recovery, so that is the first LSN found. A log that began at LSN 1 would have had a record in each microsecond of half of the
// time since 1970 to come that far.
func (l *logBuilder) originLSN() record.LSN {
	if l.base != nil && l.base.Origin != 0 && !l.restarted {
		return l.base.Origin
	}
	if l.first >= l.r.report.Origin/2 {
		return l.first
	}
	return 0
}

// checkEnd lets the log begin anew at the origin if its end is unknown. A blob is deleted when its own records are trimmed, which its
// neighbours in a log may outlive in their blobs. So after the newest record there may have been others, unless it had not expired
// when retention ran last: they would have been trimmed after it. A reader that was after them must not take later records for them.
// A sealed log gets no records.
func (l *logBuilder) checkEnd() error {
	l.first, l.next = max(l.first, record.FirstLSN), max(l.next, record.FirstLSN)
	if l.sealed || (l.records > 0 || l.base != nil) && !l.mayHaveLostEnd() {
		return nil
	}
	to := max(l.r.report.Origin, l.next)
	finding := Finding{
		Kind: FindingRestart, Category: l.category, Shard: l.shard, From: l.first, To: to,
		Reason: "the log begins anew: no blob tells where it ended",
	}
	if l.records > 0 {
		finding.Reason = fmt.Sprintf("the log begins anew: the %d records of it have expired, and later ones may have been removed", l.records)
	}
	l.epoch = max(l.epoch, uint64(to))
	l.restartAt(to)
	return l.r.deps.Found(finding)
}

// mayHaveLostEnd reports whether the newest record had expired before retention ran last.
func (l *logBuilder) mayHaveLostEnd() bool {
	if l.r.cfg.TrimmedUntil == 0 {
		return false
	}
	return l.knownUntil()+l.retention <= min(l.r.now, max(l.r.cfg.TrimmedUntil, l.r.report.Newest))
}

// knownUntil returns a time: records that were not found in the log so far are later.
func (l *logBuilder) knownUntil() int64 { return max(l.time, l.known) }

// restartAt lets the log begin at an LSN, after records that have expired.
func (l *logBuilder) restartAt(lsn record.LSN) {
	if !l.restarted {
		l.r.report.Restarts++
	}
	l.restarted = true
	l.r.report.Expired += l.records
	l.r.report.Records -= l.records
	l.first, l.next, l.records = lsn, lsn, 0
}

// standingClaim returns the claim that is valid for a position; nil if there is none.
func (l *logBuilder) standingClaim(claims []positionClaim) (*positionClaim, blobOutcome, error) {
	left, err := l.v.standing(claims)
	if err != nil {
		return nil, 0, err
	}
	switch len(left) {
	case 0:
		return nil, 0, nil
	case 1:
		return left[0].positionClaim, left[0].known, nil
	}
	slices.SortFunc(left, func(a, b rivalClaim) int {
		return cmp.Or(-cmp.Compare(a.epoch, b.epoch), -bytes.Compare(a.blob[:], b.blob[:]))
	})
	l.r.report.Conflicts++
	return left[0].positionClaim, left[0].known, l.r.deps.Found(Finding{
		Kind: FindingConflict, Key: left[1].blob.String(), Category: l.category, Shard: l.shard, From: left[0].lsn, To: left[0].lsn + 1,
		Reason: fmt.Sprintf("%d blobs claim the position; %s gets it: it has the highest epoch and is the newest", len(left), left[0].blob),
	})
}

// appendRecord appends the record of a claim to the log.
func (l *logBuilder) appendRecord(c *positionClaim, known blobOutcome) error {
	if l.next == 0 {
		l.first, l.next = c.lsn, c.lsn
	}
	if c.lsn > l.next {
		if err := l.fillGap(c.lsn); err != nil {
			return err
		}
	}
	p, err := pointer.Decode(c.data)
	if err != nil {
		return errScratch
	}
	// The engine's time was later than the blob's creation. Writers' clocks may be ahead; the engine's was never ahead of the
	// present.
	l.time = max(l.time, min(c.blob.Time(), l.r.now), l.known, 1)
	data, messages := c.data, p.Messages
	// Its place stays taken: who has read it goes on after it. So do the sequences of its producers.
	if l.cutFrom == 0 && l.r.cfg.Until != 0 && c.blob.Time() > l.r.cfg.Until {
		l.cutFrom = c.lsn
	}
	if l.cutFrom != 0 {
		data, messages = []byte(CutRecord), 0
		l.r.report.Cut++
	}
	if err := l.r.sink.Record(l.shard, c.lsn, l.time, data); err != nil {
		return err
	}
	for _, q := range p.Sequences {
		state := metalog.ProducerState{Producer: q.Producer, Epoch: q.Epoch, Next: q.Last + 1}
		if err := l.r.sink.Producer(l.shard, state, c.lsn, l.time); err != nil {
			return err
		}
	}
	l.next = c.lsn + 1
	l.records++
	l.countRecord(messages)
	if known == outcomeUncertain {
		l.r.report.UncertainRecords++
	}
	return nil
}

// countRecord counts a record that was written.
func (l *logBuilder) countRecord(messages uint32) {
	l.r.report.Records++
	l.r.report.Messages += int64(messages)
	if l.r.report.Records%4096 == 0 {
		l.r.deps.Progress("records", l.r.report.Records)
	}
}

// fillGap handles missing records before a position. Retention deletes blobs in the order in which they become free, not in the
// order of one log. So if the records before a gap have expired, the missing ones were trimmed. Otherwise they are lost, and
// placeholders make a gap for readers.
//
// A log has fewer records than microseconds pass. So an LSN above the time of the record before it shows that the log began anew at the
// origin of an earlier recovery: what stands before the gap had expired then, or its blob arrived later and was never committed.
func (l *logBuilder) fillGap(to record.LSN) error {
	missing := uint64(to - l.next)
	finding := Finding{Category: l.category, Shard: l.shard, From: l.next, To: to}
	expired := l.knownUntil()+l.retention <= l.r.now || to > record.LSN(l.knownUntil()) //nolint:gosec // a time after 1970
	if expired || missing > l.r.cfg.MaxFill {
		finding.Kind = FindingRestart
		finding.From = l.first
		finding.Reason = fmt.Sprintf("the log begins after a gap: the %d records before it have expired", l.records)
		if !expired {
			finding.Reason = fmt.Sprintf("the log begins after a gap of %d records, too long to be filled: the %d records before it are skipped", missing, l.records)
			l.r.report.Lost += int64(missing) + l.records //nolint:gosec // far below
			l.r.report.Gaps++
		}
		l.restartAt(to)
		return l.r.deps.Found(finding)
	}
	finding.Kind = FindingGap
	finding.Reason = fmt.Sprintf("%d records are in no blob: they are lost, and readers get a gap", missing)
	l.r.report.Gaps++
	l.r.report.Lost += int64(missing) //nolint:gosec // at most Config.MaxFill
	l.time = max(l.knownUntil(), 1)
	for ; l.next < to; l.next++ {
		if err := l.r.sink.Record(l.shard, l.next, l.time, []byte(LostRecord)); err != nil {
			return err
		}
	}
	return l.r.deps.Found(finding)
}
