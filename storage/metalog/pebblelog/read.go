package pebblelog

import (
	"context"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog/schema"
)

// readBudget bounds the size of one answer. The first record always fits.
type readBudget struct {
	records, bytes int
	taken          bool
}

// takeRecord reports whether a record of n bytes still fits, and counts it.
func (b *readBudget) takeRecord(n int) bool {
	if b.records <= 0 || b.taken && n > b.bytes {
		b.records = 0
		return false
	}
	b.taken = true
	b.records--
	b.bytes -= n
	return true
}

func (b *readBudget) spent() bool { return b.taken && (b.records <= 0 || b.bytes <= 0) }

// recordReader reads records from one consistent view of Pebble. It is for one goroutine, and must be closed.
type recordReader struct {
	db  *pebble.DB
	it  *pebble.Iterator
	key []byte
	// buf holds the data of entries.
	buf []byte
}

// close releases the view; the next read takes a new one.
func (r *recordReader) close() error {
	if r.it == nil {
		return nil
	}
	err := r.it.Close()
	r.it = nil
	return err
}

// errMissing means that a published record does not exist: it was trimmed since, or lost.
var errMissing = errors.New("missing")

// readEntries appends the records [from, next) as far as the budget allows, up to the first unreadable one. It fails only if the
// very first record is unreadable: with errMissing when it does not exist. The data is in r.buf.
func (r *recordReader) readEntries(dst []metalog.Entry, shard record.ShardID, from, next record.LSN, b *readBudget) ([]metalog.Entry, error) {
	for lsn := from; lsn < next && !b.spent(); lsn++ {
		time, data, err := r.readRecord(shard, lsn, lsn == from)
		if err != nil {
			if lsn > from { // the next call meets the error again
				return dst, nil
			}
			return dst, err
		}
		if !b.takeRecord(len(data)) {
			break
		}
		n := len(r.buf)
		r.buf = append(r.buf, data...) // when it grows, earlier entries keep the old array
		dst = append(dst, metalog.Entry{LSN: lsn, Time: time, Data: r.buf[n:len(r.buf):len(r.buf)]})
	}
	return dst, nil
}

// readRecord goes to the record at lsn and returns it. Without seek, that must be the next record. The data is valid until the
// iterator moves.
func (r *recordReader) readRecord(shard record.ShardID, lsn record.LSN, seek bool) (time int64, data []byte, err error) {
	if r.it == nil {
		if r.it, err = r.db.NewIter(nil); err != nil {
			return 0, nil, readError(shard, lsn, err)
		}
	}
	var found bool
	if seek {
		r.key = schema.AppendRecordKey(r.key[:0], shard, lsn)
		found = r.it.SeekGE(r.key)
	} else {
		found = r.it.Next()
	}
	if !found && r.it.Error() != nil {
		return 0, nil, readError(shard, lsn, r.it.Error())
	}
	if !found || schema.RecordKeyLSN(r.it.Key(), shard) != lsn {
		return 0, nil, errMissing
	}
	value, err := r.it.ValueAndErr()
	if err == nil {
		time, data, err = schema.Record(r.it.Key(), value)
	}
	if err != nil {
		return 0, nil, readError(shard, lsn, err)
	}
	return time, data, nil
}

// Read implements metalog.Log.
func (e *Engine) Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]metalog.Entry, error) {
	if err := e.enterCall(); err != nil {
		return nil, err
	}
	defer e.leaveCall()
	if err := metalog.ValidatePosition(shard, from); err != nil {
		return nil, err
	}
	maxRecords, maxBytes = metalog.ReadLimits(maxRecords, maxBytes)
	if err := e.awaitBarrier(ctx); err != nil {
		return nil, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		st, err := e.table.stateOf(shard)
		if err != nil {
			return nil, err
		}
		if from < st.First {
			return nil, &metalog.TrimmedError{Shard: shard, LSN: from, First: st.First}
		}
		r := recordReader{db: e.db}
		entries, err := r.readEntries(nil, shard, from, st.Next, &readBudget{records: maxRecords, bytes: maxBytes})
		if cerr := r.close(); err == nil {
			err = cerr
		}
		if errors.Is(err, errMissing) {
			if err = e.checkMissing(shard, from, st); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		e.metrics.read(entries)
		return entries, nil
	}
}

// checkMissing explains a missing record that lies within the state st. It returns nil if the shard was trimmed since, so that
// the caller should look again.
func (e *Engine) checkMissing(shard record.ShardID, lsn record.LSN, st schema.State) error {
	if e.replica != nil {
		e.replica.awaitPublished()
	}
	now, err := e.table.stateOf(shard)
	if err != nil {
		return err
	}
	if now.First > st.First || now.Epoch == 0 { // trimmed, or erased
		return nil
	}
	return &metalog.CorruptError{Shard: shard, LSN: lsn, Detail: "it is not there"}
}

// Tail implements metalog.Log.
func (e *Engine) Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	if err := e.enterCall(); err != nil {
		return nil, err
	}
	defer e.leaveCall()
	if err := metalog.ValidateShards(shards); err != nil {
		return nil, err
	}
	if err := e.awaitBarrier(ctx); err != nil {
		return nil, err
	}
	return e.tailStates(ctx, shards)
}

func (e *Engine) tailStates(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	states := make([]schema.State, len(shards))
	w, err := e.publishedStates(ctx, shards, states)
	if err != nil {
		return nil, err
	}
	out := make([]metalog.State, len(shards))
	for i, st := range states {
		out[i] = publicState(shards[i], st, w)
	}
	return out, nil
}

// Seek implements metalog.Log.
func (e *Engine) Seek(ctx context.Context, shards []record.ShardID, t int64) ([]record.LSN, error) {
	if err := e.enterCall(); err != nil {
		return nil, err
	}
	defer e.leaveCall()
	if err := metalog.ValidateShards(shards); err != nil {
		return nil, err
	}
	if err := e.awaitBarrier(ctx); err != nil {
		return nil, err
	}
	out := make([]record.LSN, len(shards))
	for i, shard := range shards {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		lsn, err := e.seekTime(shard, t)
		if err != nil {
			return nil, err
		}
		out[i] = lsn
	}
	return out, nil
}

// seekTime finds the first record at or after t in one shard.
func (e *Engine) seekTime(shard record.ShardID, t int64) (record.LSN, error) {
	for {
		st, err := e.table.stateOf(shard)
		if err != nil {
			return 0, err
		}
		if t > st.LastTime || st.First == st.Next {
			return st.Next, nil
		}
		r := recordReader{db: e.db} // a view taken after the state was read holds all of its records, unless they are trimmed
		lsn, err := r.bisectTime(shard, st, t)
		if cerr := r.close(); err == nil {
			err = cerr
		}
		if errors.Is(err, errMissing) {
			if err = e.checkMissing(shard, lsn, st); err == nil {
				continue
			}
		}
		return lsn, err
	}
}

// bisectTime finds the first record of st at or after t; a shard's times never decrease. With an error it returns the LSN of the
// record that caused it.
func (r *recordReader) bisectTime(shard record.ShardID, st schema.State, t int64) (record.LSN, error) {
	low, high := st.First, st.Next
	for low < high {
		mid := low + (high-low)/2
		time, _, err := r.readRecord(shard, mid, true)
		if err != nil {
			return mid, err
		}
		if time >= t {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low, nil
}

// Shards implements metalog.Log.
func (e *Engine) Shards(ctx context.Context, category uint32) ([]metalog.State, error) {
	if err := e.enterCall(); err != nil {
		return nil, err
	}
	defer e.leaveCall()
	if err := e.awaitBarrier(ctx); err != nil {
		return nil, err
	}
	return e.statesWhere(ctx, category, schema.KindState, isListed)
}

// RemovedShards implements metalog.Log.
func (e *Engine) RemovedShards(ctx context.Context, category uint32, since int64) ([]metalog.State, error) {
	if err := e.enterCall(); err != nil {
		return nil, err
	}
	defer e.leaveCall()
	if err := e.awaitBarrier(ctx); err != nil {
		return nil, err
	}
	return e.statesWhere(ctx, category, schema.KindStub, func(st schema.State) bool { return st.Removed && st.LastTime >= since })
}

// statesWhere returns the published states that take satisfies, of the shards of a category that have keys of a kind, in order.
func (e *Engine) statesWhere(ctx context.Context, category uint32, kind schema.Kind, take func(schema.State) bool) ([]metalog.State, error) {
	// Before the shards are listed: who takes the watermark for the time of the list misses no shard that had a record before.
	w, err := e.currentWatermark(ctx)
	if err != nil {
		return nil, err
	}
	ids, err := e.shardIDs(ctx, category, kind)
	if err != nil {
		return nil, err
	}
	states := make([]schema.State, len(ids))
	if err := e.table.states(ids, states); err != nil {
		return nil, err
	}
	out := make([]metalog.State, 0, len(ids))
	for i, st := range states {
		if take(st) {
			out = append(out, publicState(ids[i], st, w))
		}
	}
	return out, nil
}

// shardIDs returns the shards of a category that have a state, or a stub, in Pebble, in order, including unpublished ones.
func (e *Engine) shardIDs(ctx context.Context, category uint32, kind schema.Kind) (ids []record.ShardID, err error) {
	shardOf := schema.StateKeyShard
	if kind == schema.KindStub {
		shardOf = schema.StubKeyShard
	}
	low, high := schema.CategoryBounds(kind, category)
	for it, err := range keysBetween(e.db, low, high, seekNextKey) {
		if err != nil {
			return nil, err
		}
		id, err := shardOf(it.Key())
		if err != nil {
			return nil, readError(record.MakeShardID(category, 0, 0), 0, err)
		}
		ids = append(ids, id)
		if len(ids)%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return ids, nil
}
