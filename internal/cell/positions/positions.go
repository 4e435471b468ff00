// Package positions reads from the metadata engine up to where a category was sequenced; see package sequenced.
package positions

import (
	"context"
	"errors"
	"fmt"

	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	"scribe/storage/metalog"
)

// LogReader is the part of the metadata engine that Read uses; see metalog.Log.
type LogReader interface {
	Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error)
	Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]metalog.Entry, error)
}

// Read returns the state in a category's log of positions: up to where its sources were sequenced, and the state of the two logs
// when they were read. A category that was never sequenced has an empty state. It takes memory for the positions of the
// category's sources.
//
// For a caller that has opened the logs, no other sequencer can change the result any more. For other callers it was current at
// some moment after the call began.
func Read(ctx context.Context, log LogReader, category uint32) (*sequenced.State, error) {
	shard := sequenced.Positions(category)
	for {
		states, err := log.Tail(ctx, []record.ShardID{shard})
		if err != nil {
			return nil, fmt.Errorf("look at the positions of category %d: %w", category, err)
		}
		if states[0].NextLSN == states[0].FirstLSN { // the newest whole state is never trimmed
			return sequenced.NewState(), nil
		}
		s, err := replayLog(ctx, log, category, &states[0])
		if errors.Is(err, metalog.ErrTrimmed) {
			continue // a sequencer has written all positions meanwhile
		}
		return s, err
	}
}

func replayLog(ctx context.Context, log LogReader, category uint32, st *metalog.State) (*sequenced.State, error) {
	r := sequenced.NewReader(category)
	for next := st.FirstLSN; next < st.NextLSN; {
		entries, err := log.Read(ctx, st.Shard, next, 0, 0)
		if err == nil && len(entries) == 0 {
			err = errors.New("there is nothing")
		}
		if err != nil {
			return nil, fmt.Errorf("read the positions of category %d from LSN %d: %w", category, next, err)
		}
		for i := range entries {
			if entries[i].LSN >= st.NextLSN {
				break
			}
			if err := r.Add(entries[i].Data); err != nil {
				return nil, fmt.Errorf("positions of category %d, shard %v, LSN %d: %w", category, st.Shard, entries[i].LSN, err)
			}
		}
		next = entries[len(entries)-1].LSN + 1
	}
	if s := r.State(); s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("%w: the log of positions of category %d holds no whole state", sequenced.ErrCorrupt, category)
}
