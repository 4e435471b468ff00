package readstream

import (
	"context"
	"time"

	"scribe/internal/cell/positions"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readstream/merge"
	"scribe/storage/metalog"
)

// listShards returns the logs that a stream may contain, and the engine's time as of which they are listed, 0 if that is not known: every log is
// among them that had a record before and was not removed. A sequenced log may not exist yet: then it is followed once it does.
func (s *Server) listShards(ctx context.Context, p *streamPlan, cat *scribev1.Category) (states []metalog.State, listed int64, err error) {
	states, err = s.deps.Log.Shards(ctx, cat.GetId())
	switch {
	case err != nil:
		return nil, 0, err
	case !p.sequenced && len(states) > 0:
		return states, states[0].Watermark, nil
	case !p.sequenced:
		return s.listAsOf(ctx, cat.GetId())
	}
	if err := s.awaitSequencer(ctx, states); err != nil {
		return nil, 0, err
	}
	states, err = s.deps.Log.Tail(ctx, []record.ShardID{sequenced.Log(cat.GetId())})
	return states, 0, err
}

// listAsOf lists the logs of a category that has none: what is listed has the time of it, so that is asked for first.
func (s *Server) listAsOf(ctx context.Context, category uint32) (states []metalog.State, listed int64, err error) {
	probe, err := s.deps.Log.Tail(ctx, []record.ShardID{record.MakeShardID(category, 0, 0)})
	if err == nil {
		states, err = s.deps.Log.Shards(ctx, category)
	}
	if err != nil {
		return nil, 0, err
	}
	return states, probe[0].Watermark, nil
}

// awaitSequencer waits, at most Config.SequencedWait, until all messages are sequenced that were acknowledged before the stream
// was requested. So a client that writes and then reads to the end finds its messages, and one that then reads from the end does
// not. It does not wait longer for a sequencer that lags or does not run: such a stream ends, or begins, where the sequenced log
// does.
func (s *Server) awaitSequencer(ctx context.Context, states []metalog.State) error {
	deadline := time.Now().Add(s.cfg.SequencedWait)
	for pause := time.Millisecond; ; pause *= 2 {
		done := true
		var state *sequenced.State
		for _, v := range states {
			if sequenced.Reserved(v.Shard) || v.NextLSN == v.FirstLSN {
				continue
			}
			if state == nil {
				var err error
				if state, err = positions.Read(ctx, s.deps.Log, v.Shard.Category()); err != nil {
					s.log.Warn("how far a category is sequenced can't be read", "category_id", v.Shard.Category(), "error", err)
					return nil // the failing sequencer reports details; what is sequenced can be read
				}
			}
			done = done && state.Position(v.Shard) >= v.NextLSN
		}
		left := time.Until(deadline)
		if done || left <= 0 {
			return nil
		}
		select {
		case <-time.After(min(pause, left)):
		case <-s.evicting.Done():
			return s.closingError()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unwrapEntry returns the pointer of an entry. In a sequenced log it extracts the pointer from the record, or turns the entry
// into a gap if the record is one.
func (st *consumerStream) unwrapEntry(it *merge.Item) (pointer.Pointer, error) {
	if !st.plan.sequenced {
		return pointer.Decode(it.Data)
	}
	rec, err := sequenced.Decode(st.cat.GetId(), it.Data)
	if err != nil {
		return pointer.Pointer{}, err
	}
	if rec.Kind == sequenced.KindGap {
		it.Kind, it.To, it.Cause = merge.Gap, it.LSN+1, merge.Corrupt
		if rec.Cause == sequenced.CauseTrimmed {
			it.Cause = merge.Trimmed
		}
		return pointer.Pointer{}, nil
	}
	p, err := pointer.Decode(rec.Pointer)
	if err == nil {
		it.Data = rec.Pointer
		st.sources = append(st.sources, rec)
		st.sourced.Store(rec.Time)
	}
	return p, err
}

// addSources sets, on entries of a sequenced log, where they were written and their messages' numbers.
func (st *consumerStream) addSources(entries []*scribev1.StreamEntry) {
	for i := range st.sources {
		rec := &st.sources[i]
		entries[i].SourceShard, entries[i].SourceLsn, entries[i].Offset = uint64(rec.Source), uint64(rec.LSN), rec.Offset
	}
	clear(st.sources)
	st.sources = st.sources[:0]
}
