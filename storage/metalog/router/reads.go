package router

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Tail implements metalog.Log.
func (l *Log) Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	if err := l.enterCall(ctx); err != nil {
		return nil, err
	}
	defer l.calls.Leave()
	if err := metalog.ValidateShards(shards); err != nil {
		return nil, err
	}
	return l.tailLogs(ctx, shards)
}

// tailLogs returns states as one engine would. The oldest record and the tail of a log may be in different engines: a state holds both as they
// were at one moment, which is when the tail was read if the oldest record is the same before and after.
func (l *Log) tailLogs(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	found, err := l.findLogs(ctx, shards)
	if err != nil {
		return nil, err
	}
	out := make([]metalog.State, len(shards))
	var split []int // indexes of logs with records in several engines
	for i := range found {
		out[i] = found[i].publicState()
		if found[i].hasOlder() {
			split = append(split, i)
		}
	}
	if len(split) == 0 {
		return out, nil
	}
	firsts, err := l.firstsOf(ctx, found, split)
	for range maxHops {
		if err != nil {
			return nil, err
		}
		ids := make([]record.ShardID, len(split))
		for k, i := range split {
			ids[k] = shards[i]
		}
		again, err := l.findLogs(ctx, ids)
		if err != nil {
			return nil, err
		}
		for k, i := range split {
			found[i] = again[k]
		}
		now, err := l.firstsOf(ctx, found, split)
		if err != nil {
			return nil, err
		}
		var rest []int
		restFirsts := map[int]record.LSN{}
		for _, i := range split {
			if now[i] != firsts[i] {
				rest, restFirsts[i] = append(rest, i), now[i]
				continue
			}
			out[i] = found[i].publicState()
			out[i].FirstLSN = now[i]
		}
		if split, firsts = rest, restFirsts; len(split) == 0 {
			return out, nil
		}
	}
	return nil, unsettledError("reading tails")
}

// firstsOf returns the LSNs of the oldest records of some of the logs.
func (l *Log) firstsOf(ctx context.Context, found []foundLog, indexes []int) (map[int]record.LSN, error) {
	some := make([]foundLog, len(indexes))
	for k, i := range indexes {
		some[k] = found[i]
	}
	if err := l.addFirsts(ctx, some); err != nil {
		return nil, err
	}
	firsts := make(map[int]record.LSN, len(indexes))
	for k, i := range indexes {
		firsts[i] = some[k].state.FirstLSN
	}
	return firsts, nil
}

// Read implements metalog.Log.
func (l *Log) Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]metalog.Entry, error) {
	if err := l.enterCall(ctx); err != nil {
		return nil, err
	}
	defer l.calls.Leave()
	if err := metalog.ValidatePosition(shard, from); err != nil {
		return nil, err
	}
	maxRecords, maxBytes = metalog.ReadLimits(maxRecords, maxBytes)
	entries, err := l.readFrom(ctx, shard, from, maxRecords, maxBytes)
	if err != nil || len(entries) == 0 || l.isAlone() {
		return entries, err
	}
	// The answer of an older stay ends where the next one begins, and that of the log does not. The engine that has the log now may have had it before,
	// and this router may have heard of no move, so only an answer without records is the log's end.
	for range metalog.MaxStays * MaxEngines {
		room := maxBytes - sizeOf(entries)
		if room <= 0 || len(entries) >= maxRecords {
			break
		}
		more, err := l.readFrom(ctx, shard, entries[len(entries)-1].LSN+1, maxRecords-len(entries), room)
		if err != nil && !isFinal(err) && !errors.Is(err, metalog.ErrTrimmed) {
			return nil, err // what follows is not known: the caller would take this for the end
		}
		if err != nil || len(more) == 0 || len(more[0].Data) > room {
			break // the next read meets it
		}
		entries = append(entries, more...)
	}
	return entries, nil
}

func sizeOf(entries []metalog.Entry) (n int) {
	for i := range entries {
		n += len(entries[i].Data)
	}
	return n
}

// readFrom reads from the engine that has the position.
func (l *Log) readFrom(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) (entries []metalog.Entry, err error) {
	at := l.placeOf(shard)
	var sent, absent []string // engines that sent the call on; absent ones have no such log
	for range maxHops {
		e, err := l.engine(at)
		if err != nil {
			return nil, err
		}
		entries, err := e.Read(ctx, shard, from, maxRecords, maxBytes)
		if next, ok := engineNamed(err); ok {
			if err := l.checkOlder(ctx, at, next, shard, from); err != nil {
				return nil, err
			}
			if slices.Contains(sent, next) { // on its way to an engine that had it before
				found, err := l.findLogs(ctx, []record.ShardID{shard})
				if err != nil || found[0].between && from >= found[0].state.NextLSN {
					return nil, err
				}
			}
			sent = append(sent, at)
			at = next
			continue
		}
		if errors.Is(err, metalog.ErrTrimmed) {
			return nil, l.trimmedError(ctx, shard, from, err)
		}
		if err != nil || len(entries) > 0 {
			return entries, err
		}
		// Nothing is there, unless the engine has never had the log and knows which one creates it.
		states, err := e.Tail(ctx, []record.ShardID{shard})
		if err != nil {
			return nil, err
		}
		st := states[0]
		if st.Epoch != 0 || st.MovedTo == "" || slices.Contains(absent, st.MovedTo) { // sent back, it is nowhere: see askTails
			return entries, nil
		}
		absent = append(absent, at)
		at = st.MovedTo
	}
	return nil, unsettledError("reading a log")
}

// checkOlder fails with ErrTrimmed if a read goes on in an older stay, whose records no longer count because the trim of them has reached
// the stay after it.
func (l *Log) checkOlder(ctx context.Context, at, next string, shard record.ShardID, from record.LSN) error {
	e, err := l.engine(at)
	if err != nil {
		return err
	}
	states, err := e.Tail(ctx, []record.ShardID{shard})
	if err != nil {
		return err
	}
	if st := states[0]; st.MovedFrom == next && from < st.Begin && st.FirstLSN > st.Begin {
		return &metalog.TrimmedError{Shard: shard, LSN: from, First: st.FirstLSN}
	}
	return nil
}

// trimmedError returns an engine's error for a trimmed position with the log's first LSN in all engines.
func (l *Log) trimmedError(ctx context.Context, shard record.ShardID, from record.LSN, err error) error {
	states, terr := l.tailLogs(ctx, []record.ShardID{shard})
	if terr != nil {
		return terr
	}
	if e := new(metalog.TrimmedError); errors.As(err, &e) && states[0].FirstLSN > from {
		return &metalog.TrimmedError{Shard: shard, LSN: from, First: max(e.First, states[0].FirstLSN)}
	}
	return err
}

// Seek implements metalog.Log.
func (l *Log) Seek(ctx context.Context, shards []record.ShardID, t int64) ([]record.LSN, error) {
	if err := l.enterCall(ctx); err != nil {
		return nil, err
	}
	defer l.calls.Leave()
	if err := metalog.ValidateShards(shards); err != nil {
		return nil, err
	}
	found, err := l.findLogs(ctx, shards)
	if err != nil {
		return nil, err
	}
	out := make([]record.LSN, len(shards))
	byEngine := map[string][]int{}
	for i := range found {
		at := found[i].engine
		if found[i].hasOlder() {
			if at, err = l.stayAt(ctx, shards[i], t, at); err != nil {
				return nil, err
			}
		}
		byEngine[at] = append(byEngine[at], i)
	}
	for _, name := range inOrder(l, byEngine) {
		e, err := l.engine(name)
		if err != nil {
			return nil, err
		}
		ids := make([]record.ShardID, 0, len(byEngine[name]))
		for _, i := range byEngine[name] {
			ids = append(ids, shards[i])
		}
		lsns, err := e.Seek(ctx, ids, t)
		if err != nil {
			return nil, err
		}
		for k, i := range byEngine[name] {
			out[i] = lsns[k]
		}
	}
	return out, nil
}

// stayAt returns the engine with a log's first record at or after t: of the first stay with one. Without any it is the engine where the log is.
func (l *Log) stayAt(ctx context.Context, shard record.ShardID, t int64, home string) (string, error) {
	type stayIn struct {
		metalog.Stay
		engine string
	}
	var all []stayIn
	for _, e := range l.engines.Load().order {
		stays, err := e.Log.Stays(ctx, shard)
		if err != nil {
			return "", err
		}
		for _, s := range stays {
			all = append(all, stayIn{s, e.Name})
		}
	}
	slices.SortStableFunc(all, func(a, b stayIn) int { return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.NextLSN, b.NextLSN)) })
	for _, s := range all {
		if s.FirstLSN < s.NextLSN && s.LastTime >= t {
			return s.engine, nil
		}
	}
	return home, nil
}

// Sequences implements metalog.Log.
func (l *Log) Sequences(ctx context.Context, shard record.ShardID, producers []uint64) ([]metalog.ProducerState, error) {
	if err := l.enterCall(ctx); err != nil {
		return nil, err
	}
	defer l.calls.Leave()
	for range maxHops {
		at := l.placeOf(shard)
		e, err := l.engine(at)
		if err != nil {
			return nil, err
		}
		states, err := e.Sequences(ctx, shard, producers)
		if err != nil {
			return nil, err
		}
		// What the engine knew was the newest if the log was still there afterwards.
		found, err := l.findLogs(ctx, []record.ShardID{shard})
		if err != nil || found[0].engine == at {
			return states, err
		}
		if found[0].state.Epoch == 0 {
			return states, nil // it is nowhere, and nobody knows a producer
		}
	}
	return nil, unsettledError("reading producers")
}
