package batcher

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// maxCachedProducers bounds the producers that are remembered, at about 60 bytes each. Beyond it some are forgotten.
const maxCachedProducers = 1 << 16

// dedupCache is what the logs know of producers, as far as this batcher wrote it or was told, so that what was sent twice is
// recognised before it is uploaded. It is never relied on for more than that: see Batcher.dropDuplicates. It is safe for concurrent use.
type dedupCache struct {
	mu struct {
		sync.Mutex
		sequences map[producerKey]cachedSequence
	}
}

type producerKey struct {
	shard    record.ShardID
	producer uint64
}

// cachedSequence counts as long as the log has the writer's epoch: while it has, nobody else has written.
type cachedSequence struct {
	logEpoch uint64
	epoch    uint32
	next     uint64
}

// add caches the states of a log's producers. logEpoch is the writer's.
func (c *dedupCache) add(s record.ShardID, logEpoch uint64, states ...metalog.ProducerState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.sequences == nil {
		c.mu.sequences = make(map[producerKey]cachedSequence)
	}
	for _, st := range states {
		if st.Known() {
			c.mu.sequences[producerKey{s, st.Producer}] = cachedSequence{logEpoch: logEpoch, epoch: st.Epoch, next: st.Next}
		}
	}
	for k := range c.mu.sequences { // in the map's order: random
		if len(c.mu.sequences) <= maxCachedProducers {
			break
		}
		delete(c.mu.sequences, k)
	}
}

// addBatch caches the sequences of a batch that is appended.
func (c *dedupCache) addBatch(g *logBatch) {
	var states []metalog.ProducerState
	for _, pl := range g.payloads {
		for i := range pl.ranges {
			for _, r := range pl.ranges[i].runs {
				states = append(states, metalog.ProducerState{Producer: r.Producer, Epoch: r.Epoch, Next: r.Last + 1})
			}
		}
	}
	c.add(g.shard, g.entry.Epoch, states...)
}

// statesOf returns what is cached of the producers of a batch.
func (c *dedupCache) statesOf(g *logBatch) map[uint64]metalog.ProducerState {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.mu.sequences) == 0 {
		return nil
	}
	var out map[uint64]metalog.ProducerState
	g.eachSequenced(func(f *frame) {
		k, ok := c.mu.sequences[producerKey{g.shard, f.producer}]
		if !ok || k.logEpoch != g.entry.Epoch {
			return
		}
		if out == nil {
			out = make(map[uint64]metalog.ProducerState)
		}
		out[f.producer] = metalog.ProducerState{Producer: f.producer, Epoch: k.epoch, Next: k.next}
	})
	return out
}

// eachSequenced calls fn with the frames whose sequences count.
func (g *logBatch) eachSequenced(fn func(*frame)) {
	for _, pl := range g.payloads {
		if pl.fault != nil {
			continue
		}
		for i := range pl.spans {
			for j := range pl.spans[i].frames {
				if f := &pl.spans[i].frames[j]; f.sequenced && f.outcome != frameDropped {
					fn(f)
				}
			}
		}
	}
}

// dropDuplicates leaves out the frames of exactly_once categories that are known to be stored, so that a flush of duplicates is not uploaded
// only to be refused. That they are stored stays true whatever others have written since. What looks like a gap or a stale epoch
// may not: the engine is asked first, and when it does not answer the frames stay, for the append to decide.
func (b *Batcher) dropDuplicates(ctx context.Context, p *flushPart) {
	for _, g := range p.batches {
		if !g.exactlyOnce || g.pointerCount() == 0 {
			continue
		}
		known := b.dedup.statesOf(g)
		if known == nil {
			continue
		}
		changed := judgeFrames(g, known)
		doubtful := make(map[uint64]bool)
		g.eachSequenced(func(f *frame) {
			if _, ok := known[f.producer]; ok && f.outcome == frameRefused {
				doubtful[f.producer] = true
			}
		})
		if len(doubtful) > 0 {
			changed = b.confirmRefused(ctx, g, known, slices.Sorted(maps.Keys(doubtful))) || changed
		}
		if changed {
			p.rebuildRanges(g)
		}
	}
}

// confirmRefused judges frames again by what the engine says of their producers now, which are sorted.
func (b *Batcher) confirmRefused(ctx context.Context, g *logBatch, known map[uint64]metalog.ProducerState, producers []uint64) (changed bool) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.LogTimeout)
	defer cancel()
	for chunk := range slices.Chunk(producers, metalog.MaxProducers) {
		states, err := b.deps.Log.Sequences(ctx, g.shard, chunk)
		if err != nil || len(states) != len(chunk) {
			b.deps.Logger.InfoContext(ctx, "failed to look up producers", slog.Any("shard", g.shard), slog.Any("error", err))
			for _, producer := range chunk {
				delete(known, producer)
			}
			g.eachSequenced(func(f *frame) {
				if _, asked := slices.BinarySearch(chunk, f.producer); asked {
					f.outcome, f.fault, changed = frameKept, nil, true
				}
			})
			continue
		}
		for i := range states {
			states[i].Producer = chunk[i]
			known[chunk[i]] = states[i]
		}
		b.dedup.add(g.shard, g.entry.Epoch, states...)
	}
	return judgeFrames(g, known) || changed
}
