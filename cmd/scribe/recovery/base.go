package recovery

import (
	"context"
	"fmt"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Base is a copy of the logs from before the loss, with which a recovery begins: of a backup. What it has was committed, and nothing else was until then, so
// blobs are only needed for what came later. pebblelog.Copy is one.
type Base interface {
	// Boundary is the time below which no blob could be committed any more. Unix microseconds, 0 if there is none.
	Boundary() int64
	// Clock is not below the time of any record, Unix microseconds.
	Clock() int64
	// IsRetired reports whether a category is retired, Retired calls fn with all runs of them, last inclusive.
	IsRetired(category uint32) bool
	Retired(fn func(first, last uint32))
	// State returns the state of a shard, States calls fn with all of them in order.
	State(s record.ShardID) (st metalog.State, found bool, err error)
	States(ctx context.Context, fn func(metalog.State) error) error
	// Record returns a record, nil if there is none. Records calls fn with the records [from, to); the data is valid during the call.
	Record(s record.ShardID, lsn record.LSN) ([]byte, error)
	Records(ctx context.Context, s record.ShardID, from, to record.LSN, fn func(lsn record.LSN, time int64, data []byte) error) error
	// Producer returns the state of a producer, zero if it is not known. Producers calls fn with all, and with the newest record of each.
	Producer(s record.ShardID, producer uint64) (metalog.ProducerState, error)
	Producers(ctx context.Context, s record.ShardID, fn func(p metalog.ProducerState, lsn record.LSN, time int64) error) error
}

// CutRecord is the placeholder in a log for a record that is later than the moment that was restored. It is not a pointer, so readers get a gap.
const CutRecord = "scribe: cut record: it is later than the moment that was restored"

// baseState returns the state of a shard in the base; nil if it has none.
func (r *recoveryRun) baseState(shard record.ShardID) (*metalog.State, error) {
	if r.deps.Base == nil {
		return nil, nil
	}
	st, found, err := r.deps.Base.State(shard)
	if err != nil || !found {
		return nil, err
	}
	return &st, nil
}

// applyBase decides the outcome of blobs that claim positions which the base has: it has the record of the one that was committed. A blob that claims a later
// position in an earlier epoch than the base's was not committed either.
func (r *recoveryRun) applyBase(ctx context.Context, v *outcomeTable) error {
	if r.deps.Base == nil {
		return nil
	}
	return r.scratch.eachShard(ctx, func(shard record.ShardID) error {
		st, err := r.baseState(shard)
		if err != nil || st == nil {
			return err
		}
		return r.scratch.eachPosition(ctx, shard, func(claims []positionClaim) error { return r.decideByBase(v, st, claims) })
	})
}

func (r *recoveryRun) decideByBase(v *outcomeTable, st *metalog.State, claims []positionClaim) error {
	lsn := claims[0].lsn
	if lsn < st.FirstLSN {
		return nil // trimmed: nothing tells whose it was, and nothing depends on it
	}
	var owner pointer.BlobID
	if lsn < st.NextLSN {
		data, err := r.deps.Base.Record(st.Shard, lsn)
		if err != nil {
			return err
		}
		if p, err := pointer.Decode(data); err == nil { // else it is a placeholder: nobody's
			owner = p.Blob
		}
	}
	for i := range claims {
		c := &claims[i]
		known, err := v.outcomeOf(c.blob)
		if err != nil {
			return err
		}
		to := known
		switch {
		case known == outcomeGone:
		case lsn < st.NextLSN && c.blob == owner:
			to = outcomeCommitted
		case lsn < st.NextLSN:
			to = outcomeVoid
		case known == outcomeUncertain && c.epoch < st.Epoch:
			to = outcomeVoid
		}
		if to == known {
			continue
		}
		if known == outcomeCommitted {
			r.report.Contradictions++
			if err := r.deps.Found(Finding{
				Kind: FindingContradiction, Key: c.blob.String(), Shard: c.shard, From: lsn, To: lsn + 1,
				Reason: "its writer says that it was committed, but the backup has another record there; that one is kept",
			}); err != nil {
				return err
			}
		}
		if err := v.setOutcome(c.blob, to); err != nil {
			return err
		}
	}
	return nil
}

// hasBlob reports whether a blob is in the store.
func (r *recoveryRun) hasBlob(class uint32, id pointer.BlobID) (bool, error) {
	if r.lastBlob.id == id { // neighbours in a log are often in one blob
		return r.lastBlob.there, nil
	}
	value, err := r.scratch.getCopy(blobKey(class, id))
	if err != nil {
		return false, err
	}
	there := false
	if value != nil {
		b, _, err := decodeBlobRow(value)
		if err != nil {
			return false, err
		}
		there = b.Generation == r.scratch.generation
	}
	r.lastBlob.id, r.lastBlob.there = id, there
	return there, nil
}

// goneRun is a run of records of the base whose blobs are not in the store any more.
type goneRun struct {
	from, to record.LSN
	// live counts those that have not expired.
	live int64
}

// copyBase begins the log with what the base has of it. Records whose blobs are gone are left out at the beginning of the log, as if they had been trimmed, and
// have placeholders behind others.
func (l *logBuilder) copyBase(ctx context.Context) error {
	if l.base == nil {
		return nil
	}
	base, st := l.r.deps.Base, l.base
	l.epoch, l.sealed = max(l.epoch, st.Epoch), l.sealed || st.Sealed
	l.first, l.next = st.FirstLSN, st.FirstLSN
	err := base.Records(ctx, l.shard, st.FirstLSN, st.NextLSN, l.copyRecord)
	if err == nil {
		err = l.reportGone()
	}
	if err == nil {
		err = base.Producers(ctx, l.shard, func(p metalog.ProducerState, lsn record.LSN, time int64) error {
			return l.r.sink.Producer(l.shard, p, lsn, time)
		})
	}
	if err != nil {
		return fmt.Errorf("backup: log %v of category %q: %w", l.shard, l.category, err)
	}
	l.time = st.LastTime
	l.known = max(st.LastTime, l.r.deps.Watermark)
	return nil
}

// copyRecord takes over a record of the base.
func (l *logBuilder) copyRecord(lsn record.LSN, time int64, data []byte) error {
	there, messages := true, uint32(0)
	if p, err := pointer.Decode(data); err == nil { // else it is a placeholder, and remains one
		messages = p.Messages
		if there, err = l.r.hasBlob(p.Class, p.Blob); err != nil {
			return err
		}
	}
	if !there {
		if l.gone.to == 0 {
			l.gone.from = lsn
		}
		l.gone.to = lsn + 1
		if time+l.retention > l.r.now {
			l.gone.live++
		}
		if l.records == 0 {
			l.first, l.next = lsn+1, lsn+1
			return nil
		}
		data, messages = []byte(LostRecord), 0
	} else if err := l.reportGone(); err != nil {
		return err
	}
	if err := l.r.sink.Record(l.shard, lsn, time, data); err != nil {
		return err
	}
	l.next = lsn + 1
	l.records++
	l.r.report.Copied++
	l.countRecord(messages)
	return nil
}

// reportGone reports the run of records without blobs that has ended.
func (l *logBuilder) reportGone() error {
	gone := l.gone
	if l.gone = (goneRun{}); gone.to == 0 {
		return nil
	}
	if gone.live == 0 {
		l.r.report.Expired += int64(gone.to - gone.from) //nolint:gosec // of records in a folder
		return nil
	}
	l.r.report.Gaps++
	l.r.report.Lost += gone.live
	return l.r.deps.Found(Finding{
		Kind: FindingGap, Category: l.category, Shard: l.shard, From: gone.from, To: gone.to,
		Reason: fmt.Sprintf("the blobs of these records of the backup are not in the store any more, and by the retention of the category in the backup %d records have not expired", gone.live),
	})
}
