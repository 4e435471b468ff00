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

// sequencedTrim trims a sequenced category. Records of the sources keep blobs, since footers name their positions; the sequenced log only
// copies their pointers. So a copy must be trimmed before its source record:
//
//  1. Read how far the sources were sequenced.
//  2. Trim the sequenced log, by the persisted times in the sources.
//  3. Trim the sources, at most as far as step 1 says: the copies of these records were in the sequenced log at step 2.
//
// Unsequenced records are kept beyond the retention up to the pin limit, as for a slow reader. When they are trimmed then, a sequencer may
// be about to append one of them. So step 4 opens the logs, which fences the sequencer, and step 5 trims the sequenced log once more:
// what the sequencer appended before the fence has expired by more than the limit.
type sequencedTrim struct {
	r        *logTrimmer
	category uint32
	at       int64
	least    int64
	// state is how far the sources were sequenced.
	state *sequenced.State
	// log is the state of the sequenced log; epoch 0 if it does not exist.
	log metalog.State
	// held: unsequenced records are kept beyond the retention. overtaken: some unsequenced records were trimmed.
	held, overtaken bool
	// origins are where sources began in a recovery; only of those that did.
	origins map[record.ShardID]record.LSN
}

// positionOf returns up to where a source was sequenced. There is nothing below its origin.
func (s *sequencedTrim) positionOf(source record.ShardID) record.LSN {
	return max(s.state.Position(source), s.origins[source])
}

// beginTrim separates the sequencer's logs from the states of a category, trims the sequenced log, and returns the sources.
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
	s.origins = map[record.ShardID]record.LSN{}
	for _, st := range sources {
		if st.Origin != 0 {
			s.origins[st.Shard] = st.Origin
		}
		s.overtaken = s.overtaken || st.FirstLSN > s.positionOf(st.Shard)
	}
	return sources, s.trimLog(ctx)
}

// hasRecords reports whether the sequenced log has records.
func (s *sequencedTrim) hasRecords() bool { return s != nil && s.log.FirstLSN < s.log.NextLSN }

// trimLog trims the records of the sequenced log that expired in their sources.
func (s *sequencedTrim) trimLog(ctx context.Context) error {
	low, high := s.log.FirstLSN, s.log.NextLSN
	if low >= high {
		return nil
	}
	// Records sequenced before the time were persisted before it. Horizons never decrease: a binary search finds the first record to keep.
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

// isExpired reports whether all records up to an LSN of the sequenced log have expired. For an unreadable record, the next one decides.
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

// holdSources lowers the LSNs below which sources are trimmed to the sequenced positions, or to the pin limit if that is further.
func (s *sequencedTrim) holdSources(ctx context.Context, shards []record.ShardID, lsns []record.LSN) error {
	var unsequenced []record.ShardID
	var index []int
	for i, shard := range shards {
		if lsns[i] > s.positionOf(shard) {
			unsequenced, index = append(unsequenced, shard), append(index, i)
		}
	}
	if len(unsequenced) == 0 {
		return nil
	}
	s.held = true
	if err := s.r.c.waitForLog(ctx); err != nil {
		return err
	}
	limits, err := s.r.c.deps.Log.Seek(ctx, unsequenced, s.least)
	if err != nil {
		return err
	}
	for i, shard := range unsequenced {
		at := s.positionOf(shard)
		s.overtaken = s.overtaken || limits[i] > at
		lsns[index[i]] = min(lsns[index[i]], max(limits[i], at))
	}
	return nil
}

// fenceOvertaken ensures that no sequencer appends pointers to trimmed records. Each round repeats it until the sequencer's positions have
// passed the trimmed records, so a keeper that ends in between leaves nothing undone.
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

// pointerIn returns the encoded pointer in a record of a category's log: the record itself, or the pointer in a sequenced log's record; nil
// for a record without a pointer.
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
