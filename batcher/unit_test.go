package batcher

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/format/record"
	"scribe/storage/blob/encryption"
	"scribe/storage/metalog"
)

// pack loses nothing, and keeps blocks within their bounds.
func TestPack(t *testing.T) {
	key := new(encryption.Key)
	rapid.Check(t, func(t *rapid.T) {
		target := rapid.IntRange(1, 1000).Draw(t, "target")
		var payloads []*payload
		for i := range rapid.IntRange(0, 50).Draw(t, "payloads") {
			payloads = append(payloads, &payload{
				batch: &logBatch{logTarget: target0(rapid.Uint32Range(1, 4).Draw(t, "category"), uint16(i))},
				bytes: rapid.IntRange(1, 1500).Draw(t, "bytes"),
				key:   rapid.SampledFrom([]*encryption.Key{nil, nil, key}).Draw(t, "key"),
			})
		}
		seen := map[*payload]bool{}
		for _, b := range packBlocks(slices.Clone(payloads), target) {
			sum := 0
			if first := b.payloads[0].batch.shard.Category(); b.key() != nil && slices.ContainsFunc(b.payloads, func(pl *payload) bool { return pl.batch.shard.Category() != first }) {
				t.Fatal("an encrypted block has payloads of several categories")
			}
			for _, pl := range b.payloads {
				if seen[pl] || pl.block != b || pl.offset != sum {
					t.Fatalf("payload at %d instead of %d, seen %v", pl.offset, sum, seen[pl])
				}
				seen[pl] = true
				sum += pl.bytes
			}
			if sum != b.raw || len(b.payloads) > 1 && sum > maxBlockFactor*target {
				t.Fatalf("block of %d payloads with %d bytes says %d, the target is %d", len(b.payloads), sum, b.raw, target)
			}
		}
		if len(seen) != len(payloads) {
			t.Fatalf("%d of %d payloads are in blocks", len(seen), len(payloads))
		}
	})
}

func target0(category uint32, logical uint16) logTarget {
	return logTarget{shard: record.MakeShardID(category, logical, 1)}
}

// Frames that judge keeps are what the engine takes, and all others are ones that it would refuse.
func TestJudgeAgreesWithTheEngine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		known := map[uint64]metalog.ProducerState{}
		g := &logBatch{logTarget: logTarget{shard: once0, exactlyOnce: true}, payloads: []*payload{{}}}
		pl := g.payloads[0]
		pl.batch = g
		pl.spans = []frameSpan{{}}
		for p := range uint64(2) {
			if rapid.Bool().Draw(t, "known") {
				known[p] = metalog.ProducerState{Producer: p, Epoch: rapid.Uint32Range(0, 2).Draw(t, "epoch"), Next: rapid.Uint64Range(1, 6).Draw(t, "next")}
			} else {
				known[p] = metalog.ProducerState{Producer: p}
			}
		}
		for range rapid.IntRange(1, 12).Draw(t, "frames") {
			pl.spans[0].frames = append(pl.spans[0].frames, frame{
				size: 1, messages: rapid.Uint32Range(1, 3).Draw(t, "messages"), sequenced: true,
				producer: rapid.Uint64Range(0, 1).Draw(t, "producer"), epoch: rapid.Uint32Range(0, 2).Draw(t, "frame epoch"),
				first: rapid.Uint64Range(0, 8).Draw(t, "first"),
			})
		}
		judgeFrames(g, known)
		state := maps.Clone(known)
		for i, f := range pl.spans[0].frames {
			next, kind := state[f.producer].Continue(metalog.Sequence{Producer: f.producer, Epoch: f.epoch, First: f.first, Last: f.lastSequence()})
			if (f.outcome == frameKept) != (kind == 0) {
				t.Fatalf("frame %d: verdict %d, the engine says %d", i, f.outcome, kind)
			}
			if (f.outcome == frameRefused) != (f.fault != nil) {
				t.Fatalf("frame %d: verdict %d with fault %v", i, f.outcome, f.fault)
			}
			state[f.producer] = next
		}
		pl.rebuildRanges()
		frames := 0
		for _, e := range pl.ranges {
			frames += e.frames
			for _, r := range e.runs {
				if _, kind := known[r.Producer].Continue(metalog.Sequence(r)); kind != 0 {
					t.Fatalf("run %v of an extent is refused with %d", r, kind)
				}
				known[r.Producer], _ = known[r.Producer].Continue(metalog.Sequence(r))
			}
		}
		kept := slices.DeleteFunc(slices.Clone(pl.spans[0].frames), func(f frame) bool { return f.outcome != 0 })
		if frames != len(kept) {
			t.Fatalf("%d frames in extents, %d are kept", frames, len(kept))
		}
	})
}
