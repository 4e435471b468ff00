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

// pruneFilter is the part of a stream's query that decides which payloads can be left out.
type pruneFilter struct {
	where expr.Expr
	defs  *zone.Definitions
	// placed: the filter uses columns given by a pointer's shard and time, so that pointers without a zone map can be left out,
	// too.
	placed bool
}

// recordPlace identifies a record.
type recordPlace struct {
	shard record.ShardID
	lsn   record.LSN
}

// prunedPointer is a pointer to be left out when it is its turn: no row of its payload matches the filter.
type prunedPointer struct {
	messages, bytes uint64
	// Of a sequenced log: the number of the message after the payload, and the pointer's persisted time in its source.
	next    uint64
	sourced int64
}

// planBytes bounds the texts of queries whose bound form is cached.
const planBytes = 1 << 20

// bindFilter binds a start's query to the category's schema. The local view of categories may lag the schema that the client
// knows.
func (s *Server) bindFilter(ctx context.Context, p *streamPlan, cat *scribev1.Category) error {
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
	f := &pruneFilter{where: bound.Where, defs: bound.Definitions}
	expr.Columns(f.where, func(c *expr.Column) {
		f.placed = f.placed || c.Name == schema.ColumnPersisted || c.Name == schema.ColumnShard
	})
	f.placed = f.placed && !p.sequenced // readers of a sequenced log see the shards and times of the sources
	p.filter = f
	return nil
}

// annotationsTimeout bounds a request for annotations, unless Config.ReadGrace is longer: streams continue without annotations
// rather than wait.
const annotationsTimeout = time.Second

// readAnnotations returns the annotations of a shard's records from an LSN on, and the LSN below which they are complete.
// Annotations are only an optimization: a failure is counted, and the result then says that nothing is known of any record.
func (st *consumerStream) readAnnotations(ctx context.Context, shard record.ShardID, from, to record.LSN) (notes map[record.LSN][]byte, until record.LSN) {
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

// judgeEntries returns which of the records read can be left out. It holds annotations of one engine answer at a time: those of
// many records may be larger than the records.
func (st *consumerStream) judgeEntries(ctx context.Context, shard record.ShardID, entries []metalog.Entry) map[record.LSN]prunedPointer {
	f := st.plan.filter
	if f == nil || len(entries) == 0 {
		return nil
	}
	out := make(map[record.LSN]prunedPointer)
	var notes map[record.LSN][]byte
	until, to := entries[0].LSN, entries[len(entries)-1].LSN+1
	for i := range entries {
		e := &entries[i]
		if e.LSN >= until {
			notes, until = st.readAnnotations(ctx, shard, e.LSN, to)
		}
		note := notes[e.LSN]
		if note == nil && !f.placed || st.plan.buckets != nil && !st.plan.buckets.Has(shard, e.LSN) {
			continue // records in buckets of other members are skipped anyway
		}
		l, encoded, ok := st.pointerOf(e)
		if ok && !f.mayMatch(st, shard, e.Time, note, encoded) {
			out[e.LSN] = l
		}
	}
	return out
}

// keepPruned remembers which records of a shard can be left out, among those that the merge holds: others were handed out while
// they were judged, or will be read and judged again. The mutex is held.
func (st *consumerStream) keepPruned(shard record.ShardID, leave map[record.LSN]prunedPointer) {
	if len(leave) == 0 {
		return
	}
	if st.mu.left == nil {
		st.mu.left = make(map[recordPlace]prunedPointer)
	}
	from, to := st.merge.Held(shard)
	for lsn, l := range leave {
		if from <= lsn && lsn < to {
			st.mu.left[recordPlace{shard, lsn}] = l
		}
	}
}

// dropPruned forgets records that the merge has given back. The mutex is held.
func (st *consumerStream) dropPruned() {
	maps.DeleteFunc(st.mu.left, func(at recordPlace, _ prunedPointer) bool {
		_, to := st.merge.Held(at.shard)
		return at.lsn >= to
	})
}

// forgetPruned forgets a record that the merge has handed out. The mutex is held.
func (st *consumerStream) forgetPruned(it *merge.Item) {
	switch {
	case len(st.mu.left) == 0:
	case it.Kind == merge.Gap:
		maps.DeleteFunc(st.mu.left, func(at recordPlace, _ prunedPointer) bool { return at.shard == it.Shard && at.lsn < it.To })
	default:
		delete(st.mu.left, recordPlace{it.Shard, it.LSN})
	}
}

// pointerOf decodes the pointer of a record. If that fails the record is not left out: the next reader of it reports the error.
func (st *consumerStream) pointerOf(e *metalog.Entry) (l prunedPointer, encoded []byte, ok bool) {
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

// mayMatch reports whether a row of a pointer's payload may match.
func (f *pruneFilter) mayMatch(st *consumerStream, shard record.ShardID, time int64, note, encoded []byte) bool {
	var m *zone.Map
	if note != nil {
		known, err := zonenote.Decode(note, encoded)
		switch {
		case err == nil:
			m = known.Under(f.defs)
		case errors.Is(err, zone.ErrVersion): // written by a newer build
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

// prunesNext drops the merge's next entry if it can be left out, and reports whether it did. A dropped entry takes no credits and
// no space in the batch, and the client is told. The mutex is held.
func (st *consumerStream) prunesNext() bool {
	if len(st.mu.left) == 0 {
		return false
	}
	shard, lsn := st.merge.Head()
	l, ok := st.mu.left[recordPlace{shard, lsn}]
	if !ok {
		return false
	}
	it := st.nextItem()
	if st.plan.sequenced {
		st.sourced.Store(l.sourced)
	}
	st.skipped.addSkipped(shard, lsn, it.Time, len(st.batch), &l)
	st.s.metrics.pruned.Inc()
	st.s.metrics.prunedMessages.Add(float64(l.messages))
	st.s.metrics.prunedBytes.Add(float64(l.bytes))
	return true
}

// skippedRuns are runs of left-out pointers that the client was not told of yet. Between two entries there is at most one run per
// shard: only the shard's next LSN matters.
type skippedRuns struct {
	runs []*scribev1.StreamSkip
	// last are the runs after the newest entry, by shard; after is that entry's number.
	last  map[record.ShardID]*scribev1.StreamSkip
	after int
}

func (s *skippedRuns) addSkipped(shard record.ShardID, lsn record.LSN, time int64, after int, l *prunedPointer) {
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

// takeRuns removes and returns the runs.
func (s *skippedRuns) takeRuns() []*scribev1.StreamSkip {
	runs := s.runs
	s.runs, s.last = nil, nil
	return runs
}
