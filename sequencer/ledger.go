package sequencer

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// errStream means that the read stream contradicts itself, or the sequenced positions.
var errStream = errors.New("sequencer: invalid read stream")

// sourceStep is a pointer or a gap of a source, in the order of the stream.
type sourceStep struct {
	source record.ShardID
	lsn    record.LSN
	to     record.LSN // LSN after a gap; 0 for a pointer
	cause  sequenced.Cause
	time   int64 // persisted time in the source
	data   []byte
}

// nextLSN returns the source's LSN after the step.
func (s *sourceStep) nextLSN() record.LSN {
	if s.to != 0 {
		return s.to
	}
	return s.lsn + 1
}

// streamChecker checks that each message of a stream continues the previous ones, and converts it into steps. It does no I/O.
type streamChecker struct {
	// at are the next LSNs of the sources.
	at map[record.ShardID]record.LSN
}

func newStreamChecker(s *sequenced.State) *streamChecker { return &streamChecker{at: maps.Clone(s.At)} }

// joinShard adds a shard that the stream announces. Everything from its first record on is owed: if the stream begins later,
// retention was faster, and the returned step is the gap.
func (r *streamChecker) joinShard(v *scribev1.StreamShard) (*sourceStep, error) {
	shard, lsn := record.ShardID(v.GetShard()), record.LSN(v.GetLsn())
	switch at, known := r.at[shard]; {
	case sequenced.Reserved(shard) || lsn < record.FirstLSN:
		return nil, fmt.Errorf("%w: shard %v joins at LSN %d", errStream, shard, lsn)
	case known && lsn != at:
		return nil, fmt.Errorf("%w: shard %v joins at LSN %d, want %d", errStream, shard, lsn, at)
	case known:
		return nil, nil
	}
	r.at[shard] = lsn
	if lsn == record.FirstLSN {
		return nil, nil
	}
	return &sourceStep{source: shard, lsn: record.FirstLSN, to: lsn, cause: sequenced.CauseTrimmed}, nil
}

// checkEntry checks and converts a pointer.
func (r *streamChecker) checkEntry(e *scribev1.StreamEntry) (sourceStep, error) {
	s := sourceStep{source: record.ShardID(e.GetShard()), lsn: record.LSN(e.GetLsn()), time: e.GetTime(), data: e.GetPointer()}
	return s, r.advanceSource(&s)
}

// checkGap checks and converts a gap.
func (r *streamChecker) checkGap(g *scribev1.StreamGap) (sourceStep, error) {
	s := sourceStep{source: record.ShardID(g.GetShard()), lsn: record.LSN(g.GetFrom()), to: record.LSN(g.GetTo()), cause: sequenced.CauseDamaged}
	if g.GetReason() == scribev1.Reason_REASON_TRIMMED {
		s.cause = sequenced.CauseTrimmed
	}
	if s.to <= s.lsn {
		return s, fmt.Errorf("%w: empty gap in shard %v from LSN %d to %d", errStream, s.source, s.lsn, s.to)
	}
	return s, r.advanceSource(&s)
}

// startSource moves a source to where it began in a recovery of the metadata: nothing of it was sequenced before.
func (r *streamChecker) startSource(g *scribev1.StreamGap) error {
	s, err := r.checkGap(g)
	if err == nil && s.lsn != record.FirstLSN {
		err = fmt.Errorf("%w: shard %v began at LSN %d, and its gap from LSN %d", errStream, s.source, s.to, s.lsn)
	}
	return err
}

func (r *streamChecker) advanceSource(s *sourceStep) error {
	at, known := r.at[s.source]
	if !known || s.lsn != at {
		return fmt.Errorf("%w: shard %v continues at LSN %d, want %d (known: %v)", errStream, s.source, s.lsn, at, known)
	}
	r.at[s.source] = s.nextLSN()
	return nil
}

// appendLedger is a term's state of the two logs of its category, and decides what is appended to them. It does no I/O.
type appendLedger struct {
	category uint32
	// logEpoch and positionsEpoch are the term's epochs; nextPosition is the next LSN of the log of positions.
	logEpoch, positionsEpoch uint64
	nextPosition             record.LSN
	// state is the committed state.
	state *sequenced.State
	// changed is the number of bytes of changes since the newest whole state, whole the size of that state. A whole state is due
	// when writing it costs no more than reading the changes that it replaces.
	changed, whole int
	// limit is the minimum number of bytes of changes between two whole states.
	limit int
}

// preparedAppend is a transaction of steps, with the state that holds once it is committed.
type preparedAppend struct {
	append *metalog.Append
	after  *sequenced.State
	// trim, if not 0, is the LSN below which the log of positions can be trimmed after the commit.
	trim record.LSN
	// pointers, bytes (of payload), messages and gaps count what it sequences. late counts pointers that were persisted before
	// one of their predecessors, which a strict stream never brings.
	pointers, gaps, late int
	messages, bytes      uint64
	changed, whole       int
	nextPosition         record.LSN
}

// prepareAppend builds a transaction of steps. It changes nothing.
func (l *appendLedger) prepareAppend(steps []sourceStep) (*preparedAppend, error) {
	after := &sequenced.State{Next: l.state.Next, Offset: l.state.Offset, Horizon: l.state.Horizon, At: l.state.At}
	b := &preparedAppend{after: after}
	touched := make(map[record.ShardID]record.LSN)
	records := make([][]byte, 0, len(steps))
	for i := range steps {
		rec, err := b.makeRecord(after, &steps[i])
		if err != nil {
			return nil, err
		}
		records = append(records, sequenced.Append(nil, &rec))
		touched[rec.Source] = rec.Next()
		after.Next++
	}
	// The positions of sources are changed in place after the commit: there may be 100,000.
	b.after.At = touched
	changes := l.changeRecords(b)
	b.nextPosition = l.nextPosition + record.LSN(len(changes))
	b.append = &metalog.Append{Shards: []metalog.ShardAppend{
		{Shard: sequenced.Log(l.category), Epoch: l.logEpoch, ExpectLSN: l.state.Next, Records: records},
		{Shard: sequenced.Positions(l.category), Epoch: l.positionsEpoch, ExpectLSN: l.nextPosition, Records: changes},
	}}
	return b, nil
}

// changeRecords returns the records for the log of positions.
func (l *appendLedger) changeRecords(b *preparedAppend) [][]byte {
	touched := b.after.At
	if l.whole > 0 && l.changed < max(l.limit, l.whole) {
		sources := make(map[record.ShardID]struct{}, len(touched))
		for s := range touched {
			sources[s] = struct{}{}
		}
		out := b.after.Changed(sources)
		b.changed, b.whole = l.changed+recordBytes(out), l.whole
		return out
	}
	all := &sequenced.State{Next: b.after.Next, Offset: b.after.Offset, Horizon: b.after.Horizon, At: maps.Clone(l.state.At)}
	maps.Copy(all.At, touched)
	out := all.Whole()
	b.changed, b.whole, b.trim = 0, recordBytes(out), l.nextPosition
	return out
}

func recordBytes(records [][]byte) (n int) {
	for _, r := range records {
		n += len(r)
	}
	return n
}

// makeRecord returns the record of a step.
func (b *preparedAppend) makeRecord(after *sequenced.State, s *sourceStep) (sequenced.Record, error) {
	rec := sequenced.Record{Kind: sequenced.KindGap, Source: s.source, LSN: s.lsn, Offset: after.Offset, Horizon: after.Horizon, To: s.to, Cause: s.cause}
	if s.to != 0 {
		b.gaps++
		return rec, nil
	}
	p, err := pointer.Decode(s.data)
	if err != nil { // does not happen: the stream has decoded it before
		return rec, fmt.Errorf("shard %v, LSN %d: %w", s.source, s.lsn, err)
	}
	rec.Kind, rec.To, rec.Cause, rec.Time = sequenced.KindPointer, 0, 0, max(s.time, 0)
	if rec.Pointer, err = sequenced.Strip(&p, s.data); err != nil {
		return rec, fmt.Errorf("shard %v, LSN %d: %w", s.source, s.lsn, err)
	}
	if rec.Time < after.Horizon {
		b.late++
	}
	rec.Horizon = max(after.Horizon, rec.Time)
	after.Horizon = rec.Horizon
	after.Offset += uint64(p.Messages)
	b.pointers++
	b.messages += uint64(p.Messages)
	b.bytes += uint64(p.Length)
	return rec, nil
}

// commitAppend adopts the state of a committed append.
func (l *appendLedger) commitAppend(b *preparedAppend) {
	maps.Copy(l.state.At, b.after.At)
	l.state.Next, l.state.Offset, l.state.Horizon = b.after.Next, b.after.Offset, b.after.Horizon
	l.changed, l.whole, l.nextPosition = b.changed, b.whole, b.nextPosition
}

// resumePositions returns the positions to open a stream with.
func (l *appendLedger) resumePositions() []*scribev1.ShardPosition {
	out := make([]*scribev1.ShardPosition, 0, len(l.state.At))
	for _, shard := range slices.Sorted(maps.Keys(l.state.At)) {
		out = append(out, &scribev1.ShardPosition{Shard: uint64(shard), Lsn: uint64(l.state.At[shard])})
	}
	return out
}
