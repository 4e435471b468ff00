package router

import (
	"cmp"
	"context"
	"slices"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Annotate implements metalog.Log. An annotation belongs to where its record is: those of logs that have moved are offered to all engines, and
// each takes those of its records.
func (l *Log) Annotate(ctx context.Context, notes []metalog.Annotation) (kept int, err error) {
	if err := l.enterCall(ctx); err != nil {
		return 0, err
	}
	defer l.calls.Leave()
	if err := metalog.ValidateAnnotations(notes); err != nil {
		return 0, err
	}
	if l.isAlone() {
		return l.engines.Load().byName[l.root].Annotate(ctx, notes)
	}
	var shards []record.ShardID
	for i := range notes {
		shards = append(shards, notes[i].Shard)
	}
	slices.Sort(shards)
	if _, err := l.findLogs(ctx, slices.Compact(shards)); err != nil { // those that have moved are known then
		return 0, err
	}
	var moved []metalog.Annotation
	for i := range notes {
		if l.isSpread(notes[i].Shard) || l.placeOf(notes[i].Shard) != l.root {
			moved = append(moved, notes[i])
		}
	}
	for _, e := range l.engines.Load().order {
		offered := moved
		if e.Name == l.root {
			offered = notes
		}
		if len(offered) == 0 {
			continue
		}
		n, err := e.Log.Annotate(ctx, offered)
		if kept += n; err != nil {
			return kept, err
		}
	}
	return min(kept, len(notes)), nil
}

// Annotations implements metalog.Log.
func (l *Log) Annotations(
	ctx context.Context, shard record.ShardID, from, to record.LSN, kind metalog.AnnotationKind, maxBytes int,
) (notes []metalog.Annotation, until record.LSN, err error) {
	if err := l.enterCall(ctx); err != nil {
		return nil, 0, err
	}
	defer l.calls.Leave()
	set := l.engines.Load()
	alone := l.isAlone()
	if !alone {
		if _, err := l.findLogs(ctx, []record.ShardID{shard}); err != nil {
			return nil, 0, err
		}
		alone = !l.isSpread(shard) && l.placeOf(shard) == l.root
	}
	if alone {
		return set.byName[l.root].Annotations(ctx, shard, from, to, kind, maxBytes)
	}
	to, maxBytes, err = metalog.ValidateAnnotationRange(shard, from, to, kind, maxBytes)
	if err != nil {
		return nil, 0, err
	}
	until = to
	for _, e := range set.order {
		some, end, err := e.Log.Annotations(ctx, shard, from, to, kind, maxBytes)
		if err != nil {
			return nil, 0, err
		}
		notes, until = append(notes, some...), min(until, end)
	}
	notes = slices.DeleteFunc(notes, func(n metalog.Annotation) bool { return n.LSN >= until })
	slices.SortFunc(notes, func(a, b metalog.Annotation) int { return cmp.Compare(a.LSN, b.LSN) })
	for i := range notes { // each engine has kept to the limit, all together may not have
		if maxBytes -= len(notes[i].Data); maxBytes < 0 && i > 0 {
			return notes[:i], notes[i].LSN, nil
		}
	}
	return notes, until, nil
}
