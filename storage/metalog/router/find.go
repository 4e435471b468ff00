package router

import (
	"context"
	"slices"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// maxHops bounds how often a call is sent on: more engines than there are, so that moves on the way do not count as a circle.
const maxHops = 3 * MaxEngines

// foundLog is where a log is, and its state there.
type foundLog struct {
	engine string
	state  metalog.State
	// between: the engine has handed the log over, and the next one has not adopted it yet.
	between bool
	// visited are the engines that were asked one after another, each of which has no such log and sent the call on.
	visited []string
}

// findLogs looks for logs, beginning where each was last. The states are as new as the call, in the order of shards.
func (l *Log) findLogs(ctx context.Context, shards []record.ShardID) ([]foundLog, error) {
	found := make([]foundLog, len(shards))
	pending := map[string][]int{}
	for i, s := range shards {
		at := l.placeOf(s)
		found[i].visited = []string{at}
		pending[at] = append(pending[at], i)
	}
	for range maxHops {
		if len(pending) == 0 {
			return found, nil
		}
		next := map[string][]int{}
		for _, name := range inOrder(l, pending) {
			if err := l.askTails(ctx, name, shards, pending[name], found, next); err != nil {
				return nil, err
			}
		}
		pending = next
	}
	return nil, unsettledError("looking for logs")
}

// inOrder returns the names of the engines of a map, known ones in their order, so that what a process does follows from what it was told.
func inOrder[V any](l *Log, pending map[string]V) (names []string) {
	left := len(pending)
	for _, e := range l.engines.Load().order {
		if _, ok := pending[e.Name]; ok {
			names = append(names, e.Name)
			left--
		}
	}
	if left > 0 { // one is not known: asking it says so
		for name := range pending {
			if l.engines.Load().byName[name] == nil {
				names = append(names, name)
			}
		}
	}
	return names
}

// askTails asks an engine for the states of those of the shards that indexes name, and puts those that it sends on into next.
func (l *Log) askTails(ctx context.Context, name string, shards []record.ShardID, indexes []int, found []foundLog, next map[string][]int) error {
	e, err := l.engine(name)
	if err != nil {
		return err
	}
	ids := make([]record.ShardID, len(indexes))
	for k, i := range indexes {
		ids[k] = shards[i]
	}
	states, err := e.Tail(ctx, ids)
	if err != nil {
		return err
	}
	for k, st := range states {
		f := &found[indexes[k]]
		switch {
		case f.between && st.Epoch < f.state.Epoch:
			// The engine that handed it over knows more of it than this one, which has not adopted it yet. It may have had it before.
			continue
		case st.MovedTo != "" && st.Epoch == 0:
			visited := f.visited
			*f = foundLog{engine: name, state: st, visited: append(visited, st.MovedTo)}
			// Sent back, it is nowhere: the category is on its way back, and has its logs in these engines only. The first one had no such log when it was
			// asked, nor had the others, which would know one that they have handed over.
			if !slices.Contains(visited, st.MovedTo) {
				next[st.MovedTo] = append(next[st.MovedTo], indexes[k])
			}
			continue
		case st.MovedTo != "":
			*f = foundLog{engine: name, state: st, between: true, visited: []string{st.MovedTo}}
			next[st.MovedTo] = append(next[st.MovedTo], indexes[k])
			continue
		}
		*f = foundLog{engine: name, state: st}
		if st.Epoch != 0 {
			l.notePlace(&st, name)
		}
	}
	return nil
}

// addFirsts sets the LSNs of the oldest records of logs that may have older records in engines that they came from. The order of a trim decides what
// counts: it begins with the newest stay that it reaches into, so a newest stay whose beginning was trimmed has no older ones any more.
func (l *Log) addFirsts(ctx context.Context, found []foundLog) error {
	var ids []record.ShardID
	var indexes []int
	for i := range found {
		if found[i].hasOlder() {
			ids, indexes = append(ids, found[i].state.Shard), append(indexes, i)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	for _, e := range l.engines.Load().order { // a log that came back may have been in engines that its newest stays do not name
		states, err := e.Log.Tail(ctx, ids)
		if err != nil {
			return err
		}
		for k, i := range indexes {
			if st := &states[k]; st.Epoch != 0 && st.FirstLSN < st.NextLSN {
				found[i].state.FirstLSN = min(found[i].state.FirstLSN, st.FirstLSN)
			}
		}
	}
	return nil
}

// hasOlder reports whether records of a log may be in engines that it came from, also while it is on its way to the next one.
func (f *foundLog) hasOlder() bool {
	return f.state.MovedFrom != "" && f.state.FirstLSN <= f.state.Begin
}

// isNowhere reports whether no engine has a log, nor creates it now: its category is on its way.
func (f *foundLog) isNowhere() bool { return f.state.Epoch == 0 && f.state.MovedTo != "" }

// publicState is a state as callers of the router see it.
func (f *foundLog) publicState() metalog.State {
	st := f.state
	st.Begin, st.Adopted, st.MovedFrom, st.MovedTo = 0, 0, "", ""
	return st
}
