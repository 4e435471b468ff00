package retention

import (
	"context"
	"errors"
	"fmt"

	"scribe/internal/cell/positions"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	"scribe/storage/metalog"
)

// sequencedTrim is the trimming of a sequenced category. Blobs are kept for the records of the sources, which their footers name; the sequenced
// log only repeats their pointers. So a record of it has to go before the record that it was copied from:
//
//  1. How far the sources were sequenced is read.
//  2. The sequenced log is trimmed, by the persisted times in the sources.
//  3. The sources are trimmed, as far as they were sequenced at 1: what is trimmed of them was in the log at 2, and went.
//
// What was not sequenced is kept beyond the retention, as for a reader that is behind, up to the pin limit. What is trimmed then may be in the
// hands of a sequencer that is about to append it. So the logs are opened, which fences it (4), and the sequenced log is trimmed once
// more (5), of what it appended before that: it has expired by more than the limit.
type sequencedTrim struct {
	r        *logTrimmer
	category uint32
	at       int64
	least    int64
	// state is how far the sources were sequenced.
	state *sequenced.State
	// log is the state of the sequenced log; epoch 0 when there is none.
	log metalog.State
	// held: what was not sequenced is kept beyond its time. overtaken: some of it is gone.
	held, overtaken bool
}

// beginTrim takes the logs that sequencers keep out of the states of a category, trims the sequenced one, and returns the others.
func (s *sequencedTrim) beginTrim(ctx context.Context, states []metalog.State) ([]metalog.State, error) {
	sources := make([]metalog.State, 0, len(states))
	s.log = metalog.State{Shard: sequenced.Log(s.category)}
	for _, st := range states {
		switch {
		case !sequenced.Reserved(st.Shard):
			sources = append(sources, st)
		case sequenced.IsLog(st.Shard):
			s.log = st
		}
	}
	if err := s.r.c.waitForLog(ctx); err != nil {
		return nil, err
	}
	var err error
	if s.state, err = positions.Read(ctx, s.r.c.deps.Log, s.category); err != nil {
		return nil, err
	}
	for _, st := range sources {
		s.overtaken = s.overtaken || st.FirstLSN > s.state.Position(st.Shard)
	}
	return sources, s.trimLog(ctx)
}

// hasRecords reports whether the sequenced log has records.
func (s *sequencedTrim) hasRecords() bool { return s != nil && s.log.FirstLSN < s.log.NextLSN }

// trimLog trims the sequenced log of what expired in its source.
func (s *sequencedTrim) trimLog(ctx context.Context) error {
	low, high := s.log.FirstLSN, s.log.NextLSN
	if low >= high {
		return nil
	}
	// What was sequenced before the time was persisted before it. Horizons never decrease, so the rest is searched for the first one to keep.
	shard := s.log.Shard
	lsns, err := s.r.c.deps.Log.Seek(ctx, []record.ShardID{shard}, s.at)
	if err != nil {
		return err
	}
	low = max(low, lsns[0])
	for low < high {
		middle := low + (high-low)/2
		expired, err := s.isExpired(ctx, middle)
		if err != nil {
			return err
		}
		if expired {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if low == s.log.FirstLSN {
		return nil
	}
	if err := s.r.c.waitForLog(ctx); err != nil {
		return err
	}
	if err := s.r.c.deps.Log.Trim(ctx, shard, low); err != nil {
		return fmt.Errorf("trim the sequenced log: %w", err)
	}
	s.r.c.metrics.trims.Inc()
	s.r.c.metrics.trimmed.Add(float64(low - s.log.FirstLSN))
	s.log.FirstLSN = low
	return nil
}

// isExpired reports whether everything up to an LSN of the sequenced log has expired. Of a record that can't be read the one behind it tells.
func (s *sequencedTrim) isExpired(ctx context.Context, lsn record.LSN) (bool, error) {
	for ; lsn < s.log.NextLSN; lsn++ {
		if err := s.r.c.waitForLog(ctx); err != nil {
			return false, err
		}
		entries, err := s.r.c.deps.Log.Read(ctx, s.log.Shard, lsn, 1, 0)
		switch {
		case errors.Is(err, metalog.ErrCorrupt):
			continue
		case err != nil:
			return false, fmt.Errorf("read the sequenced log at LSN %d: %w", lsn, err)
		case len(entries) == 0:
			return false, nil
		}
		rec, err := sequenced.Decode(s.log.Shard.Category(), entries[0].Data)
		if errors.Is(err, sequenced.ErrCorrupt) {
			continue
		}
		if err != nil {
			return false, err
		}
		return rec.Horizon < s.at, nil
	}
	return false, nil
}

// holdSources lowers the LSNs up to which sources would be trimmed to what was sequenced, or to what is older than the limit.
func (s *sequencedTrim) holdSources(ctx context.Context, shards []record.ShardID, lsns []record.LSN) error {
	var behind []record.ShardID
	var index []int
	for i, shard := range shards {
		if lsns[i] > s.state.Position(shard) {
			behind, index = append(behind, shard), append(index, i)
		}
	}
	if len(behind) == 0 {
		return nil
	}
	s.held = true
	if err := s.r.c.waitForLog(ctx); err != nil {
		return err
	}
	limits, err := s.r.c.deps.Log.Seek(ctx, behind, s.least)
	if err != nil {
		return err
	}
	for i, shard := range behind {
		at := s.state.Position(shard)
		s.overtaken = s.overtaken || limits[i] > at
		lsns[index[i]] = min(lsns[index[i]], max(limits[i], at))
	}
	return nil
}

// fenceOvertaken makes sure that no sequencer appends what was trimmed under it. It is repeated in each round until the sequencer has taken note of
// what is gone, so a keeper that ends in between leaves nothing undone.
func (s *sequencedTrim) fenceOvertaken(ctx context.Context) error {
	if !s.overtaken {
		delete(s.r.fenced, s.category)
		return nil
	}
	if s.log.Epoch != 0 && s.log.Epoch == s.r.fenced[s.category] {
		return nil
	}
	if err := s.r.c.waitForLog(ctx); err != nil {
		return err
	}
	states, err := s.r.c.deps.Log.Open(ctx, s.r.c.deps.Owner, []record.ShardID{sequenced.Log(s.category), sequenced.Positions(s.category)})
	if err != nil {
		return fmt.Errorf("fence the sequencer of category %d: %w", s.category, err)
	}
	s.r.fenced[s.category] = states[0].Epoch
	s.r.c.metrics.overtaken.Inc()
	s.r.c.log.WarnContext(ctx, "category trimmed beyond its sequencer: check that a sequencer is running", "category_id", s.category)
	s.log = states[0]
	return s.trimLog(ctx)
}

// pointerIn returns the encoded pointer in a record of a category's log: the record itself, or of a sequenced log what it holds; nil for a
// record that is there for something else.
func pointerIn(shard record.ShardID, data []byte) ([]byte, error) {
	switch {
	case !sequenced.Reserved(shard):
		return data, nil
	case !sequenced.IsLog(shard):
		_, err := sequenced.DecodeChange(shard.Category(), data)
		return nil, err
	}
	rec, err := sequenced.Decode(shard.Category(), data)
	return rec.Pointer, err
}
