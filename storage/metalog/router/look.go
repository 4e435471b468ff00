package router

import (
	"cmp"
	"context"
	"slices"

	"connectrpc.com/connect"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// categoryHome is the engine that creates the logs of a category.
type categoryHome struct {
	engine string
	// version is that of the mark with which it does; 0 if no engine has a mark.
	version uint64
	// since, when not 0, says that the category is on its way to engine, which has not accepted it: nobody creates its logs. It is the time of
	// the mark, below which the next engine's clock will not be.
	since int64
	from  string
}

// Home is where the logs of a category are created, as the engines say.
type Home struct {
	Engine string
	// Version is that of the mark with which it does; 0 if no engine has a mark.
	Version uint64
	// From, when not empty, is the engine that the category has left for Engine, which has not accepted it yet: nobody creates its logs.
	From string
}

// HomeOf asks the engines which one creates the logs of a category.
func (l *Log) HomeOf(ctx context.Context, category uint32) (Home, error) {
	if err := l.enterCall(ctx); err != nil {
		return Home{}, err
	}
	defer l.calls.Leave()
	h, err := l.findHome(ctx, category)
	return Home{Engine: h.engine, Version: h.version, From: h.from}, err
}

// findHome asks the engines which one creates the logs of a category, beginning with the root.
func (l *Log) findHome(ctx context.Context, category uint32) (h categoryHome, err error) {
	h = categoryHome{engine: l.root}
	mark, err := l.readMark(ctx, l.root, category)
	if err != nil {
		return h, err
	}
	h.version = mark.Version
	for range maxHops {
		if mark.To == "" {
			l.noteHome(category, h.engine)
			return h, nil
		}
		next, err := l.readMark(ctx, mark.To, category)
		if err != nil {
			return h, err
		}
		if next.Version < mark.Version {
			return categoryHome{engine: mark.To, version: mark.Version, since: mark.Time, from: h.engine}, nil
		}
		h = categoryHome{engine: mark.To, version: next.Version}
		mark = next
	}
	return h, unsettledError("looking for the engine of a category")
}

func (l *Log) readMark(ctx context.Context, name string, category uint32) (metalog.Forward, error) {
	e, err := l.engine(name)
	if err != nil {
		return metalog.Forward{}, err
	}
	mark, err := e.ForwardCategory(ctx, category, metalog.Forward{})
	if connect.CodeOf(err) == connect.CodeUnimplemented {
		return metalog.Forward{}, nil // a program that knows no marks has stored none
	}
	return mark, err
}

// Look implements metalog.Looker.
func (l *Log) Look(ctx context.Context, category uint32) (states []metalog.State, horizon int64, err error) {
	if err := l.enterCall(ctx); err != nil {
		return nil, 0, err
	}
	defer l.calls.Leave()
	if states, alone, err := l.listRoot(ctx, category); err != nil || alone {
		return states, 0, err
	}
	for range maxHops {
		var settled bool
		if states, horizon, settled, err = l.lookOnce(ctx, category); err != nil || settled {
			return states, horizon, err
		}
	}
	return nil, 0, unsettledError("looking at a category")
}

// lookOnce looks at a category. settled is false if its home changed meanwhile: then the horizon may be too high.
func (l *Log) lookOnce(ctx context.Context, category uint32) (states []metalog.State, horizon int64, settled bool, err error) {
	before, err := l.findHome(ctx, category)
	if err != nil {
		return nil, 0, false, err
	}
	// The horizon comes before the list: what is not in the list is created after it.
	if horizon, err = l.horizonOf(ctx, category, before); err != nil {
		return nil, 0, false, err
	}
	if states, err = l.listEverywhere(ctx, category); err != nil {
		return nil, 0, false, err
	}
	after, err := l.findHome(ctx, category)
	return states, horizon, after == before, err
}

// horizonOf returns a time below which no log that is created from now on has a record.
func (l *Log) horizonOf(ctx context.Context, category uint32, h categoryHome) (int64, error) {
	if h.since != 0 {
		return h.since, nil
	}
	e, err := l.engine(h.engine)
	if err != nil {
		return 0, err
	}
	states, err := e.Tail(ctx, []record.ShardID{probeShard(category)})
	if err != nil {
		return 0, err
	}
	return max(states[0].Watermark, 1), nil
}

// probeShard returns a shard of a category that never exists: writer slots are below. Its state has the engine's watermark, and says whether the
// category was retired.
func probeShard(category uint32) record.ShardID { return record.MakeShardID(category, 0, 1<<16-1) }

// listRoot lists the logs of a category in the root. alone reports that no other engine has any, nor had when the list was made: the mark that lets
// another one have them was read after it, and was not there.
func (l *Log) listRoot(ctx context.Context, category uint32) (states []metalog.State, alone bool, err error) {
	e, err := l.engine(l.root)
	if err != nil {
		return nil, false, err
	}
	if states, err = e.Shards(ctx, category); err != nil {
		return nil, false, err
	}
	mark, err := l.readMark(ctx, l.root, category)
	moved := slices.ContainsFunc(states, func(st metalog.State) bool { return st.MovedTo != "" || st.MovedFrom != "" })
	return states, err == nil && mark.Version == 0 && !moved, err
}

// listEverywhere lists the logs of a category in all engines.
func (l *Log) listEverywhere(ctx context.Context, category uint32) (all []metalog.State, err error) {
	var ids []record.ShardID
	for _, e := range l.engines.Load().order {
		states, err := e.Log.Shards(ctx, category)
		if err != nil {
			return nil, err
		}
		for _, st := range states {
			ids = append(ids, st.Shard)
			if st.MovedTo == "" {
				l.notePlace(&st, e.Name)
			}
		}
	}
	slices.Sort(ids)
	for part := range slices.Chunk(slices.Compact(ids), metalog.MaxShards) {
		states, err := l.tailLogs(ctx, part)
		if err != nil {
			return nil, err
		}
		for _, st := range states {
			if st.Epoch != 0 { // not erased meanwhile
				all = append(all, st)
			}
		}
	}
	slices.SortFunc(all, func(a, b metalog.State) int { return cmp.Compare(a.Shard, b.Shard) })
	return all, nil
}

// Shards implements metalog.Log.
func (l *Log) Shards(ctx context.Context, category uint32) ([]metalog.State, error) {
	states, _, err := l.Look(ctx, category)
	return states, err
}
