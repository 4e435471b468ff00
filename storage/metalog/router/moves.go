package router

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// errOfOneEngine is the answer of the calls of which a move consists: they are between two engines, which the caller has.
var errOfOneEngine = fmt.Errorf("%w: a log moves between two engines, not between all of them", metalog.ErrInvalid)

// MoveOut implements metalog.Log.
func (l *Log) MoveOut(context.Context, record.ShardID, string, string) (h metalog.Handover, err error) {
	return h, errOfOneEngine
}

// MovedProducers implements metalog.Log.
func (l *Log) MovedProducers(context.Context, record.ShardID, uint64, uint64, int) ([]metalog.MovedProducer, error) {
	return nil, errOfOneEngine
}

// MoveIn implements metalog.Log.
func (l *Log) MoveIn(context.Context, metalog.Handover, []metalog.MovedProducer) (st metalog.State, err error) {
	return st, errOfOneEngine
}

// ForwardCategory implements metalog.Log.
func (l *Log) ForwardCategory(context.Context, uint32, metalog.Forward) (f metalog.Forward, err error) {
	return f, errOfOneEngine
}

// Stays implements metalog.Log: those in all engines.
func (l *Log) Stays(ctx context.Context, shard record.ShardID) (all []metalog.Stay, err error) {
	if err := l.enterCall(ctx); err != nil {
		return nil, err
	}
	defer l.calls.Leave()
	for _, e := range l.engines.Load().order {
		stays, err := e.Log.Stays(ctx, shard)
		if err != nil {
			return nil, err
		}
		all = append(all, stays...)
	}
	slices.SortStableFunc(all, func(a, b metalog.Stay) int { return cmp.Compare(a.Begin, b.Begin) })
	return all, nil
}
