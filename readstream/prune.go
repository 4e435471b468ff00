package readstream

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/zone"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	"scribe/internal/role/queryplan"
	"scribe/internal/role/zonenote"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readstream/merge"
	"scribe/storage/metalog"
)

// filter is a stream's query, as far as it says which payloads can be left out.
type filter struct {
	where expr.Expr
	defs  *zone.Definitions
	// placed: where names what the place of a pointer says, so that pointers of which nothing was learned can be left out, too.
	placed bool
}

// place is a record's.
type place struct {
	shard record.ShardID
	lsn   record.LSN
}

// left is a pointer that will be left out when it is its turn: no row of its payload matches the filter.
type left struct {
	messages, bytes uint64
	// Of a sequenced log: the number of the message behind the payload, and the pointer's persisted time in its source.
	next    uint64
	sourced int64
}

// planBytes bounds the texts of queries that are kept bound.
const planBytes = 1 << 20

// bind binds the query of a start to the category's schema. The view of categories may be behind the schema that the client knows.
func (s *Server) bind(ctx context.Context, p *plan, cat *scribev1.Category) error {
	if p.query == nil {
		return nil
	}
	bound, err := s.plans.Bind(cat, p.query)
	if errors.Is(err, queryplan.ErrVersion) {
		now, rerr := s.deps.Categories.Resolve(ctx, p.category)
		if rerr != nil {
			return rerr
		}
		bound, err = s.plans.Bind(now, p.query)
	}
	if err != nil {
		return err
	}
	if bound.Where == nil {
		return nil // all rows match
	}
	f := &filter{where: bound.Where, defs: bound.Definitions}
	expr.Columns(f.where, func(c *expr.Column) {
		f.placed = f.placed || c.Name == schema.ColumnPersisted || c.Name == schema.ColumnShard
	})
	f.placed = f.placed && !p.sequenced // readers of a sequenced log see the places of the sources
	p.filter = f
	return nil
}

// annotationsTimeout bounds a question for what was learned of payloads, where Config.ReadGrace is not longer: streams go on without it
// rather than wait.
const annotationsTimeout = time.Second

// learned returns what is known of the payloads of records from an LSN on, and up to which it says all. It is only of use, so what fails is
// counted, and nothing more: then it says of all that nothing is known.
func (st *stream) learned(ctx context.Context, shard record.ShardID, from, to record.LSN) (notes map[record.LSN][]byte, until record.LSN) {
	ctx, cancel := context.WithTimeout(ctx, max(annotationsTimeout, st.s.cfg.ReadGrace))
	defer cancel()
	found, until, err := st.s.deps.Log.Annotations(ctx, shard, from, to, metalog.AnnotationZones, 0)
	if err != nil || until <= from {
		if !errors.Is(ctx.Err(), context.Canceled) {
			st.s.metrics.engineErrors.WithLabelValues("annotations").Inc()
		}
		return nil, to
	}
	notes = make(map[record.LSN][]byte, len(found))
	for i := range found {
		notes[found[i].LSN] = found[i].Data
	}
	return notes, until
}

// judge returns which of the records that were read can be left out. What was learned of them is held for an answer of the engine at a
// time: that of many records may be larger than they are.
func (st *stream) judge(ctx context.Context, shard record.ShardID, entries []metalog.Entry) map[record.LSN]left {
	f := st.plan.filter
	if f == nil || len(entries) == 0 {
		return nil
	}
	out := make(map[record.LSN]left)
	var notes map[record.LSN][]byte
	until, to := entries[0].LSN, entries[len(entries)-1].LSN+1
	for i := range entries {
		e := &entries[i]
		if e.LSN >= until {
			notes, until = st.learned(ctx, shard, e.LSN, to)
		}
		note := notes[e.LSN]
		if note == nil && !f.placed || st.plan.buckets != nil && !st.plan.buckets.Has(shard, e.LSN) {
			continue // what is in buckets of others is passed over anyway
		}
		l, encoded, ok := st.pointerOf(e)
		if ok && !f.mayMatch(st, shard, e.Time, note, encoded) {
			out[e.LSN] = l
		}
	}
	return out
}

// keep keeps which records of a shard can be left out, of those that the merge holds: others were handed out while they were judged, or will be
// read, and judged, again. The mutex is held.
func (st *stream) keep(shard record.ShardID, leave map[record.LSN]left) {
	if len(leave) == 0 {
		return
	}
	if st.mu.left == nil {
		st.mu.left = make(map[place]left)
	}
	from, to := st.merge.Held(shard)
	for lsn, l := range leave {
		if from <= lsn && lsn < to {
			st.mu.left[place{shard, lsn}] = l
		}
	}
}

// dropLeft drops what is kept of records that the merge has given back. The mutex is held.
func (st *stream) dropLeft() {
	maps.DeleteFunc(st.mu.left, func(at place, _ left) bool {
		_, to := st.merge.Held(at.shard)
		return at.lsn >= to
	})
}

// forget drops what was kept of records that the merge has handed out. The mutex is held.
func (st *stream) forget(it *merge.Item) {
	switch {
	case len(st.mu.left) == 0:
	case it.Kind == merge.Gap:
		maps.DeleteFunc(st.mu.left, func(at place, _ left) bool { return at.shard == it.Shard && at.lsn < it.To })
	default:
		delete(st.mu.left, place{it.Shard, it.LSN})
	}
}

// pointerOf reads the pointer of a record. What is none, or can't be read, is not left out: whoever comes to it says what is wrong.
func (st *stream) pointerOf(e *metalog.Entry) (l left, encoded []byte, ok bool) {
	encoded = e.Data
	if st.plan.sequenced {
		rec, err := sequenced.Decode(st.cat.GetId(), e.Data)
		if err != nil || rec.Kind == sequenced.KindGap {
			return l, nil, false
		}
		encoded, l.next, l.sourced = rec.Pointer, rec.Offset, rec.Time
	}
	p, err := pointer.Decode(encoded)
	if err != nil {
		return l, nil, false
	}
	l.messages, l.bytes = uint64(p.Messages), uint64(p.Length)
	l.next += l.messages
	return l, encoded, true
}

// mayMatch reports whether a row of the payload of a pointer may match.
func (f *filter) mayMatch(st *stream, shard record.ShardID, time int64, note, encoded []byte) bool {
	var m *zone.Map
	if note != nil {
		known, err := zonenote.Decode(note, encoded)
		switch {
		case err == nil:
			m = known.Under(f.defs)
		case errors.Is(err, zone.ErrVersion): // of a newer build
		default:
			st.s.metrics.badZones.Inc()
		}
	}
	if f.placed {
		m = m.With(schema.ColumnPersisted, schema.Type{Kind: schema.Timestamp}, arrow.Timestamp(time)).
			With(schema.ColumnShard, schema.Type{Kind: schema.Uint64}, uint64(shard))
	}
	return zone.MayMatch(f.where, m)
}

// prunes takes the merge's next entry out, and reports that it did, if it can be left out: it takes neither credits nor room, and the
// client is told. The mutex is held.
func (st *stream) prunes() bool {
	if len(st.mu.left) == 0 {
		return false
	}
	shard, lsn := st.merge.Head()
	l, ok := st.mu.left[place{shard, lsn}]
	if !ok {
		return false
	}
	it, _ := st.merge.Next()
	st.forget(&it)
	delete(st.skips, shard)
	st.watermark, st.pending = st.merge.Low(), st.merge.Pending()
	if st.plan.sequenced {
		st.sourced.Store(l.sourced)
	}
	st.skipped.add(shard, lsn, it.Time, len(st.batch), &l)
	st.s.metrics.pruned.Inc()
	st.s.metrics.prunedMessages.Add(float64(l.messages))
	st.s.metrics.prunedBytes.Add(float64(l.bytes))
	return true
}

// skipped are runs of pointers that were left out and that the client was not told of. Between two entries there is at most one of a
// shard: where the shard goes on is all that counts.
type skipped struct {
	runs []*scribev1.StreamSkip
	// last are the runs of shards behind the newest entry, which is the after-th.
	last  map[record.ShardID]*scribev1.StreamSkip
	after int
}

func (s *skipped) add(shard record.ShardID, lsn record.LSN, time int64, after int, l *left) {
	if s.last == nil || s.after != after {
		s.last, s.after = map[record.ShardID]*scribev1.StreamSkip{}, after
	}
	run := s.last[shard]
	if run == nil {
		run = &scribev1.StreamSkip{Shard: uint64(shard), From: uint64(lsn), After: uint32(after)} //nolint:gosec // at most Config.BatchEntries
		s.runs = append(s.runs, run)
		s.last[shard] = run
	}
	run.To, run.Time = uint64(lsn)+1, time
	if l.sourced != 0 {
		run.NextOffset = l.next
	}
	run.Messages += l.messages
	run.Bytes += l.bytes
}

// take returns the runs, and forgets them.
func (s *skipped) take() []*scribev1.StreamSkip {
	runs := s.runs
	s.runs, s.last = nil, nil
	return runs
}
