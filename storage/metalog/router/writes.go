package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Open implements metalog.Log.
func (l *Log) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	if err := l.enterCall(ctx); err != nil {
		return nil, err
	}
	defer l.calls.Leave()
	if err := metalog.ValidateOpen(owner, shards); err != nil {
		return nil, err
	}
	found := make([]foundLog, len(shards))
	pending := map[string][]int{}
	for i, s := range shards {
		at := l.placeOf(s)
		pending[at] = append(pending[at], i)
	}
	// An error names few of the shards that are elsewhere, so it may take more calls than there are engines.
	for range maxHops + metalog.MaxShards/metalog.MaxConflicts {
		if len(pending) == 0 {
			return l.openedStates(ctx, found)
		}
		now := pending
		pending = map[string][]int{}
		if len(now) > 1 { // one engine would open its shards before another refuses those of a retired category
			if err := l.refuseRetired(ctx, shards); err != nil {
				return nil, err
			}
		}
		for _, name := range inOrder(l, now) {
			if err := l.openIn(ctx, name, owner, shards, now[name], found, pending); err != nil {
				return nil, err
			}
		}
	}
	return nil, unsettledError("opening logs")
}

// openIn opens those of the shards that indexes name in an engine, and puts those that are elsewhere into next; if any are, none was opened.
func (l *Log) openIn(ctx context.Context, name, owner string, shards []record.ShardID, indexes []int, found []foundLog, next map[string][]int) error {
	e, err := l.engine(name)
	if err != nil {
		return err
	}
	ids, at := make([]record.ShardID, len(indexes)), make(map[record.ShardID]int, len(indexes))
	for k, i := range indexes {
		ids[k], at[shards[i]] = shards[i], i
	}
	states, err := e.Open(ctx, owner, ids)
	if err == nil {
		for k, st := range states {
			found[indexes[k]] = foundLog{engine: name, state: st}
			l.notePlace(&st, name)
		}
		return nil
	}
	if errors.Is(err, metalog.ErrSealed) {
		return cmp.Or(l.refuseRetired(ctx, shards), l.publicRefusal(ctx, name, err))
	}
	moved, err := l.followRefusals(ctx, name, err)
	if err != nil {
		return err
	}
	for _, i := range indexes {
		to := name
		if m, ok := moved[shards[i]]; ok {
			to = m
		}
		next[to] = append(next[to], i)
	}
	return nil
}

// refuseRetired fails, as one engine would, if shards are of retired categories. The root knows: a category is retired there first.
func (l *Log) refuseRetired(ctx context.Context, shards []record.ShardID) error {
	var probes []record.ShardID
	of := map[uint32]bool{}
	for _, s := range shards {
		if _, ok := of[s.Category()]; !ok {
			of[s.Category()] = false
			probes = append(probes, probeShard(s.Category()))
		}
	}
	states, err := l.engines.Load().byName[l.root].Tail(ctx, probes)
	if err != nil {
		return err
	}
	for i := range states {
		of[probes[i].Category()] = states[i].Sealed
	}
	var refused []record.ShardID
	for _, s := range shards {
		if of[s.Category()] && len(refused) < metalog.MaxConflicts {
			refused = append(refused, s)
		}
	}
	if len(refused) == 0 {
		return nil
	}
	found, err := l.findLogs(ctx, refused)
	if err != nil {
		return err
	}
	all, err := l.openedStates(ctx, found)
	if err != nil {
		return err
	}
	e := new(metalog.RefusedError)
	for _, st := range all {
		e.Refusals = append(e.Refusals, metalog.Refusal{Err: metalog.ErrSealed, State: st})
	}
	return e
}

// followRefusals returns where the shards are that an engine's refusal sends on, and that they may be used there. Other refusals, and logs that
// are between two engines, are an error.
func (l *Log) followRefusals(ctx context.Context, name string, err error) (map[record.ShardID]string, error) {
	refused := new(metalog.RefusedError)
	if !errors.As(err, &refused) || !errors.Is(err, metalog.ErrElsewhere) {
		return nil, err
	}
	moved := map[record.ShardID]string{}
	handed := map[string][]record.ShardID{}
	epochs := map[record.ShardID]uint64{}
	for _, r := range refused.Refusals {
		switch {
		case !errors.Is(r.Err, metalog.ErrElsewhere):
			continue
		case r.State.Epoch == 0:
			if err := l.awaitHome(ctx, r.State.Shard, name, r.State.MovedTo); err != nil {
				return nil, err
			}
		default:
			handed[r.State.MovedTo] = append(handed[r.State.MovedTo], r.State.Shard)
			epochs[r.State.Shard] = r.State.Epoch
		}
		moved[r.State.Shard] = r.State.MovedTo
	}
	for _, to := range inOrder(l, handed) {
		e, err := l.engine(to)
		if err != nil {
			return nil, err
		}
		states, err := e.Tail(ctx, handed[to])
		if err != nil {
			return nil, err
		}
		for _, st := range states {
			// Opened now, it would be created there beside the one that was handed over, if the engine has not had it before.
			if st.Epoch < epochs[st.Shard] {
				return nil, betweenError(st.Shard, name, to)
			}
		}
	}
	return moved, nil
}

// awaitHome fails while the engine to which a category was forwarded has not accepted it: its clock may be behind what readers were promised.
func (l *Log) awaitHome(ctx context.Context, shard record.ShardID, from, to string) error {
	l.mu.Lock()
	known := l.mu.homes[shard.Category()] == to
	l.mu.Unlock()
	if known {
		return nil
	}
	h, err := l.findHome(ctx, shard.Category())
	if err != nil {
		return err
	}
	if h.since != 0 {
		return betweenError(shard, from, to)
	}
	return nil
}

// openedStates returns the states of opened logs as callers see them.
func (l *Log) openedStates(ctx context.Context, found []foundLog) ([]metalog.State, error) {
	if err := l.addFirsts(ctx, found); err != nil {
		return nil, err
	}
	out := make([]metalog.State, len(found))
	for i := range found {
		out[i] = found[i].publicState()
	}
	return out, nil
}

// Append implements metalog.Log. It goes to one engine. One that has handed a log over, or never had it, refuses it without an effect; then it goes
// to the engine that has it, which refuses the epoch if the log has moved since it was opened.
func (l *Log) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	if err := l.enterCall(ctx); err != nil {
		return nil, err
	}
	defer l.calls.Leave()
	if err := a.Validate(); err != nil {
		return nil, err
	}
	for range maxHops + len(a.Shards)/metalog.MaxConflicts {
		at, err := l.engineOfAll(a)
		if err != nil { // as far as this router knows
			if at, err = l.findEngineOfAll(ctx, a); err != nil {
				return nil, err
			}
		}
		e, err := l.engine(at)
		if err != nil {
			return nil, err
		}
		done, err := e.Append(ctx, a)
		if err == nil || !namesLogsElsewhere(err) {
			return done, l.publicRefusal(ctx, at, err)
		}
		if err := l.findRefused(ctx, at, err); err != nil {
			return nil, err
		}
	}
	return nil, unsettledError("an append")
}

// engineOfAll returns the engine in which all shards of an append are.
func (l *Log) engineOfAll(a *metalog.Append) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := a.Shards[0].Shard
	at := l.place(first)
	if len(l.mu.at) == 0 {
		return at, nil
	}
	for i := range a.Shards[1:] {
		if s := a.Shards[1+i].Shard; l.place(s) != at {
			return "", &metalog.SpreadError{Shard: first, Engine: at, Other: s, OtherEngine: l.place(s)}
		}
	}
	return at, nil
}

// findEngineOfAll is engineOfAll after asking the engines.
func (l *Log) findEngineOfAll(ctx context.Context, a *metalog.Append) (string, error) {
	shards := make([]record.ShardID, len(a.Shards))
	for i := range a.Shards {
		shards[i] = a.Shards[i].Shard
	}
	for part := range slices.Chunk(shards, metalog.MaxShards) {
		if _, err := l.findLogs(ctx, part); err != nil {
			return "", err
		}
	}
	return l.engineOfAll(a)
}

// isElsewhere reports whether a shard that was refused may be in another engine: it was handed over, or the engine has never had it. An epoch of a
// shard that does not exist is ErrFenced, also where another engine has created it since this router looked for it.
func isElsewhere(r *metalog.Refusal) bool {
	return errors.Is(r.Err, metalog.ErrElsewhere) || errors.Is(r.Err, metalog.ErrFenced) && r.State.Epoch == 0
}

// namesLogsElsewhere reports whether an append was refused for logs that may be in other engines.
func namesLogsElsewhere(err error) bool {
	refused := new(metalog.RefusedError)
	return errors.As(err, &refused) && slices.ContainsFunc(refused.Refusals, func(r metalog.Refusal) bool { return isElsewhere(&r) })
}

// findRefused looks for the logs that an engine refused because they are elsewhere. If none is, the refusal stands. Other refusals beside theirs are an
// error: a shard that was sealed or fenced is that wherever the others are.
func (l *Log) findRefused(ctx context.Context, at string, err error) error {
	refused := new(metalog.RefusedError)
	errors.As(err, &refused)
	var others []metalog.Refusal
	var moved []record.ShardID
	for i := range refused.Refusals {
		if r := &refused.Refusals[i]; isElsewhere(r) {
			moved = append(moved, r.State.Shard)
		} else {
			others = append(others, *r)
		}
	}
	found, ferr := l.findLogs(ctx, moved)
	if ferr != nil {
		return ferr
	}
	away := false
	for i := range found {
		f := &found[i]
		if f.between {
			return betweenError(moved[i], f.engine, f.state.MovedTo)
		}
		away = away || f.state.Epoch != 0 // also where it has come back since
	}
	switch {
	case !away && errors.Is(err, metalog.ErrElsewhere): // of logs that no engine has
		all := &metalog.RefusedError{Refusals: others}
		for i := range found {
			all.Refusals = append(all.Refusals, metalog.Refusal{Err: nowhere(&found[i].state), State: found[i].publicState()})
		}
		return l.publicRefusal(ctx, at, all)
	case !away:
		return l.publicRefusal(ctx, at, err)
	case len(others) > 0:
		return l.publicRefusal(ctx, at, &metalog.RefusedError{Refusals: others})
	}
	return nil
}

// nowhere is why a log that no engine has refuses an append.
func nowhere(st *metalog.State) error {
	if st.Sealed { // of a retired category
		return metalog.ErrSealed
	}
	return metalog.ErrFenced
}

// publicRefusal puts the states of logs into an engine's refusal that callers of the router know.
func (l *Log) publicRefusal(ctx context.Context, at string, err error) error {
	refused := new(metalog.RefusedError)
	if !errors.As(err, &refused) {
		return err
	}
	found := make([]foundLog, len(refused.Refusals))
	for i := range found {
		found[i] = foundLog{engine: at, state: refused.Refusals[i].State}
		if found[i].state.MovedTo == "" {
			continue
		}
		// Of a retired category: that is refused first, wherever the log is.
		there, ferr := l.findLogs(ctx, []record.ShardID{found[i].state.Shard})
		if ferr != nil {
			return ferr
		}
		found[i] = there[0]
	}
	states, serr := l.openedStates(ctx, found)
	if serr != nil {
		return serr
	}
	for i := range states {
		refused.Refusals[i].State = states[i]
	}
	return err
}

// Trim implements metalog.Log. It is carried out engine by engine. The newest stay that it reaches into comes first: what an older one still has
// does not count from then on (see addFirsts), and the others trim what is left, or learn what was trimmed.
func (l *Log) Trim(ctx context.Context, shard record.ShardID, before record.LSN) error {
	if err := l.enterCall(ctx); err != nil {
		return err
	}
	defer l.calls.Leave()
	found, err := l.findLogs(ctx, []record.ShardID{shard})
	if err != nil {
		return err
	}
	var order []string // of the stays, newest first
	first := -1
	for at, st := found[0].engine, found[0].state; ; {
		if first < 0 && before > st.Begin {
			first = len(order)
		}
		order = append(order, at)
		if st.MovedFrom == "" || slices.Contains(order, st.MovedFrom) {
			break
		}
		at = st.MovedFrom
		if st, err = l.stateIn(ctx, at, shard); err != nil {
			return err
		}
	}
	if first > 0 {
		at := order[first]
		order = slices.Insert(slices.Delete(order, first, first+1), 0, at)
	}
	for _, at := range order {
		e, err := l.engine(at)
		if err != nil {
			return err
		}
		if err := e.Trim(ctx, shard, before); err != nil {
			return err
		}
	}
	if len(order) == 1 {
		return nil
	}
	for _, e := range l.engines.Load().order { // a log that came back may have left engines behind that the newest stays do not name
		if slices.Contains(order, e.Name) {
			continue
		}
		st, err := l.stateIn(ctx, e.Name, shard)
		if err == nil && st.Epoch != 0 {
			err = e.Log.Trim(ctx, shard, before)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stateIn returns an engine's state of a log.
func (l *Log) stateIn(ctx context.Context, name string, shard record.ShardID) (st metalog.State, err error) {
	e, err := l.engine(name)
	if err != nil {
		return st, err
	}
	states, err := e.Tail(ctx, []record.ShardID{shard})
	if err != nil {
		return st, err
	}
	return states[0], nil
}

// Seal implements metalog.Log.
func (l *Log) Seal(ctx context.Context, shard record.ShardID) (metalog.State, error) {
	if err := l.enterCall(ctx); err != nil {
		return metalog.State{}, err
	}
	defer l.calls.Leave()
	found, err := l.findLogs(ctx, []record.ShardID{shard})
	if err != nil {
		return metalog.State{}, err
	}
	if f := found[0]; f.between {
		return metalog.State{}, betweenError(shard, f.engine, f.state.MovedTo)
	}
	e, err := l.engine(found[0].engine)
	if err != nil {
		return metalog.State{}, err
	}
	st, err := e.Seal(ctx, shard)
	if to, ok := engineNamed(err); ok {
		return metalog.State{}, betweenError(shard, found[0].engine, to)
	}
	if err != nil {
		return st, err
	}
	sealed := []foundLog{{engine: found[0].engine, state: st}}
	states, err := l.openedStates(ctx, sealed)
	if err != nil {
		return st, err
	}
	return states[0], nil
}

// Retire implements metalog.Log. It begins with the root, and ends where the marks of the category end: an engine to which a category is
// forwarded meanwhile is not left out.
func (l *Log) Retire(ctx context.Context, category uint32) error {
	return l.inAllEngines(ctx, category, func(e metalog.Log) error { return e.Retire(ctx, category) })
}

// Erase implements metalog.Log.
func (l *Log) Erase(ctx context.Context, category uint32) error {
	return l.inAllEngines(ctx, category, func(e metalog.Log) error { return e.Erase(ctx, category) })
}

// inAllEngines makes a call in every engine, the root first.
func (l *Log) inAllEngines(ctx context.Context, category uint32, call func(metalog.Log) error) error {
	if err := l.enterCall(ctx); err != nil {
		return err
	}
	defer l.calls.Leave()
	set := l.engines.Load()
	if err := call(set.byName[l.root]); err != nil {
		return err
	}
	for _, e := range set.order {
		if e.Name == l.root {
			continue
		}
		if err := call(e.Log); err != nil {
			return fmt.Errorf("engine %q: %w", e.Name, err)
		}
	}
	// An engine that this process does not know yet may have it: then this fails, and whoever retires tries again.
	h, err := l.findHome(ctx, category)
	if err == nil && set.byName[h.engine] == nil {
		err = unsettledError("ending a category")
	}
	return err
}

// AdvanceBoundary implements metalog.Log. The boundary is that of the root; the others are at least there when it is told. A log is adopted by
// an engine, and a category accepted, only after its boundary was put forward to that of the engine they come from (see Relocation), so a writer can't
// commit a blob below it in an engine that this process does not know yet.
func (l *Log) AdvanceBoundary(ctx context.Context, t int64) (int64, error) {
	if err := l.enterCall(ctx); err != nil {
		return 0, err
	}
	defer l.calls.Leave()
	set := l.engines.Load()
	boundary, err := set.byName[l.root].AdvanceBoundary(ctx, t)
	if err != nil || boundary == 0 {
		return boundary, err
	}
	for _, e := range set.order {
		if e.Name == l.root {
			continue
		}
		known, err := e.Log.AdvanceBoundary(ctx, 0)
		if err == nil && known < boundary {
			_, err = e.Log.AdvanceBoundary(ctx, boundary)
		}
		if err != nil {
			return 0, fmt.Errorf("engine %q: %w", e.Name, err)
		}
	}
	return boundary, nil
}
