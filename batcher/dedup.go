package batcher

import (
	"context"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// maxCachedProducers bounds the cached producers, at about 60 bytes each. Random entries above it are evicted.
const maxCachedProducers = 1 << 16

// dedupCache caches the states of producers in logs, as this batcher wrote them or read them from the engine. It serves to
// recognise duplicates before they are uploaded, and for nothing else: see Batcher.dropDuplicates. It is safe for concurrent use.
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

// cachedSequence is valid as long as the log has the epoch logEpoch: until then no other writer has appended to it.
type cachedSequence struct {
	logEpoch uint64
	epoch    uint32
	next     uint64
}

// addStates caches the states of a log's producers. logEpoch is the epoch of this writer in the log.
func (c *dedupCache) addStates(s record.ShardID, logEpoch uint64, states ...metalog.ProducerState) {
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

// addBatch caches the sequences of a committed batch.
func (c *dedupCache) addBatch(g *logBatch) {
	var states []metalog.ProducerState
	for e := range g.allRanges() {
		for _, r := range e.runs {
			states = append(states, metalog.ProducerState{Producer: r.Producer, Epoch: r.Epoch, Next: r.Last + 1})
		}
	}
	c.addStates(g.shard, g.entry.Epoch, states...)
}

// statesOf returns the cached states of the producers of a batch; nil if there are none.
func (c *dedupCache) statesOf(g *logBatch) map[uint64]metalog.ProducerState {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.mu.sequences) == 0 {
		return nil
	}
	var out map[uint64]metalog.ProducerState
	for f := range g.sequencedFrames() {
		k, ok := c.mu.sequences[producerKey{g.shard, f.producer}]
		if !ok || k.logEpoch != g.entry.Epoch {
			continue
		}
		if out == nil {
			out = make(map[uint64]metalog.ProducerState)
		}
		out[f.producer] = metalog.ProducerState{Producer: f.producer, Epoch: k.epoch, Next: k.next}
	}
	return out
}

// sequencedFrames yields the sequenced frames that are not dropped. Those of a payload that failed do not precede the others.
func (g *logBatch) sequencedFrames() iter.Seq[*frame] {
	return func(yield func(*frame) bool) {
		for pl, f := range g.allFrames() {
			if pl.fault == nil && f.sequenced && f.outcome != frameDropped && !yield(f) {
				return
			}
		}
	}
}

// dropDuplicates leaves out frames of exactly_once categories that are stored according to the cache, so that a flush of
// duplicates is not uploaded only to be refused. A stored frame stays stored whatever others have written since. A gap or a stale
// epoch may be outdated, so the engine is asked first; if it does not answer, the frames stay, and the append decides.
func (b *Batcher) dropDuplicates(ctx context.Context, p *flushPart) {
	for _, g := range p.batches {
		if !g.exactlyOnce || !g.isLive() {
			continue
		}
		known := b.dedup.statesOf(g)
		if known == nil {
			continue
		}
		changed := judgeFrames(g, known)
		doubtful := make(map[uint64]bool)
		for f := range g.sequencedFrames() {
			if _, ok := known[f.producer]; ok && f.outcome == frameRefused {
				doubtful[f.producer] = true
			}
		}
		if len(doubtful) > 0 {
			changed = b.confirmRefused(ctx, g, known, slices.Sorted(maps.Keys(doubtful))) || changed
		}
		if changed {
			p.rebuildRanges(g)
		}
	}
}

// confirmRefused judges frames again by the engine's current states of their producers. producers is sorted.
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
			for f := range g.sequencedFrames() {
				if _, asked := slices.BinarySearch(chunk, f.producer); asked {
					f.outcome, f.fault, changed = frameKept, nil, true
				}
			}
			continue
		}
		for i := range states {
			states[i].Producer = chunk[i]
			known[chunk[i]] = states[i]
		}
		b.dedup.addStates(g.shard, g.entry.Epoch, states...)
	}
	return judgeFrames(g, known) || changed
}
