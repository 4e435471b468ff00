package batcher

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// maxKnown bounds the producers that are remembered, at about 60 bytes each. Beyond it some are forgotten.
const maxKnown = 1 << 16

// knowledge is what the logs know of producers, as far as this batcher wrote it or was told, so that what was sent twice is
// recognised before it is uploaded. It is never relied on for more than that: see Batcher.recall.
type knowledge map[producerKey]producerKnown

type producerKey struct {
	shard    record.ShardID
	producer uint64
}

// producerKnown counts as long as the log has the writer's epoch: while it has, nobody else has written.
type producerKnown struct {
	log   uint64
	epoch uint32
	next  uint64
}

// remember is called with mu held.
func (l *ledger) remember(s record.ShardID, log uint64, st metalog.ProducerState) {
	l.mu.known[producerKey{s, st.Producer}] = producerKnown{log: log, epoch: st.Epoch, next: st.Next}
	for k := range l.mu.known { // in the map's order: random
		if len(l.mu.known) <= maxKnown {
			break
		}
		delete(l.mu.known, k)
	}
}

// learn remembers the sequences of a group that is appended. It is called with mu held.
func (l *ledger) learn(g *group) {
	for _, pl := range g.payloads {
		for i := range pl.extents {
			for _, r := range pl.extents[i].runs {
				l.remember(g.shard, g.epoch, metalog.ProducerState{Producer: r.Producer, Epoch: r.Epoch, Next: r.Last + 1})
			}
		}
	}
}

// learnConflicts remembers what the engine said about producers when it refused their sequences.
func (l *ledger) learnConflicts(conflicts []metalog.SequenceConflict) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conflicts {
		if ln := l.mu.lanes[c.Shard]; ln != nil && ln.open && c.Known.Known() {
			known := c.Known
			known.Producer = c.Run.Producer
			l.remember(c.Shard, ln.epoch, known)
		}
	}
}

// learnStates remembers what the engine said about a log's producers.
func (l *ledger) learnStates(s record.ShardID, log uint64, states []metalog.ProducerState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, st := range states {
		if st.Known() {
			l.remember(s, log, st)
		}
	}
}

// known returns what is remembered of the producers of a group.
func (l *ledger) known(g *group) map[uint64]metalog.ProducerState {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.known) == 0 {
		return nil
	}
	var out map[uint64]metalog.ProducerState
	g.sequenced(func(f *frame) {
		k, ok := l.mu.known[producerKey{g.shard, f.producer}]
		if !ok || k.log != g.epoch {
			return
		}
		if out == nil {
			out = make(map[uint64]metalog.ProducerState)
		}
		out[f.producer] = metalog.ProducerState{Producer: f.producer, Epoch: k.epoch, Next: k.next}
	})
	return out
}

// sequenced calls fn with the frames whose sequences count.
func (g *group) sequenced(fn func(*frame)) {
	for _, pl := range g.payloads {
		if pl.fault != nil {
			continue
		}
		for i := range pl.pieces {
			for j := range pl.pieces[i].frames {
				if f := &pl.pieces[i].frames[j]; f.sequenced && f.verdict != dropped {
					fn(f)
				}
			}
		}
	}
}

// recall leaves out the frames of exactly_once categories that are known to be stored, so that a flush of duplicates is not uploaded
// only to be refused. That they are stored stays true whatever others have written since. What looks like a gap or a stale epoch
// may not: the engine is asked first, and when it does not answer the frames stay, for the append to decide.
func (b *Batcher) recall(ctx context.Context, p *part) {
	for _, g := range p.groups {
		if !g.exactlyOnce || g.records() == 0 {
			continue
		}
		known := b.ledger.known(g)
		if known == nil {
			continue
		}
		changed := judge(g, known)
		doubtful := make(map[uint64]bool)
		g.sequenced(func(f *frame) {
			if _, ok := known[f.producer]; ok && f.verdict == refused {
				doubtful[f.producer] = true
			}
		})
		if len(doubtful) > 0 {
			changed = b.confirm(ctx, g, known, slices.Sorted(maps.Keys(doubtful))) || changed
		}
		if changed {
			p.extend(g)
		}
	}
}

// confirm judges frames again by what the engine says of their producers now, which are sorted.
func (b *Batcher) confirm(ctx context.Context, g *group, known map[uint64]metalog.ProducerState, producers []uint64) (changed bool) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.LogTimeout)
	defer cancel()
	for chunk := range slices.Chunk(producers, metalog.MaxProducers) {
		states, err := b.deps.Log.Sequences(ctx, g.shard, chunk)
		if err != nil || len(states) != len(chunk) {
			b.deps.Logger.InfoContext(ctx, "producers could not be looked up", slog.Any("shard", g.shard), slog.Any("error", err))
			for _, producer := range chunk {
				delete(known, producer)
			}
			g.sequenced(func(f *frame) {
				if _, asked := slices.BinarySearch(chunk, f.producer); asked {
					f.verdict, f.fault, changed = kept, nil, true
				}
			})
			continue
		}
		b.ledger.learnStates(g.shard, g.epoch, states)
		for i, st := range states {
			st.Producer = chunk[i]
			known[chunk[i]] = st
		}
	}
	return judge(g, known) || changed
}
