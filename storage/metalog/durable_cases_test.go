package metalog_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

var durableCases = []testCase{
	{name: "what was acknowledged outlives crashes under load", needs: canCrash, test: func(e *caseEnv) {
		for round := range 4 {
			crashUnderLoad(e, round)
		}
	}},
	{name: "watermarks hold over a restart with a clock that went back", test: func(e *caseEnv) {
		watermarksOutlive(e, e.restartLog)
	}},
	{name: "watermarks hold over a crash with a clock that went back", needs: canCrash, test: func(e *caseEnv) {
		watermarksOutlive(e, e.crashLog)
	}},
}

// crashUnderLoad runs writers, each in a shard of its own and all in a common one, until the engine crashes. Then acknowledged
// records must exist, LSNs must be dense, and the sequences must match the records.
func crashUnderLoad(e *caseEnv, round int) {
	const writers = 6
	common := record.MakeShardID(50, uint16(round), 0)
	shards := []record.ShardID{common}
	for w := range writers {
		shards = append(shards, record.MakeShardID(50, uint16(round), uint16(w+1)))
	}
	epochs := e.openShards(shards...)
	log := e.log
	type acked struct {
		own, all record.LSN
		time     int64
	}
	var mu sync.Mutex
	acks := make([][]acked, writers)
	warm := make(chan struct{}, 1000)
	ctx, stop := context.WithCancel(e.ctx)
	defer stop()
	wait := e.startAll(writers, func(w int) error {
		for i := uint64(0); ctx.Err() == nil; i++ {
			own := appendTo(shards[w+1], epochs[w+1], fmt.Sprint(w, " ", i))
			own.Sequences = []metalog.Sequence{makeRun(uint64(w), i, i)}
			all := appendTo(common, epochs[0], fmt.Sprint(w, " ", i))
			done, err := log.Append(e.ctx, &metalog.Append{Shards: []metalog.ShardAppend{own, all}})
			if err != nil {
				return nil //nolint:nilerr // the engine crashes: the outcome is unknown
			}
			mu.Lock()
			acks[w] = append(acks[w], acked{done[0].FirstLSN, done[1].FirstLSN, done[0].Time})
			mu.Unlock()
			select {
			case warm <- struct{}{}:
			default:
			}
		}
		return nil
	})
	for range 40 * (round + 1) {
		<-warm
	}
	// Acknowledgements of the old engine after the crash do not count.
	mu.Lock()
	before := slices.Clone(acks)
	mu.Unlock()
	e.crashLog()
	stop()
	wait()
	all := e.readAll(common, 1)
	for w := range writers {
		own := e.readAll(shards[w+1], 1)
		for i, en := range own {
			wantEqual(e, "record", string(en.Data), fmt.Sprint(w, " ", i))
		}
		e.wantKnown(shards[w+1], metalog.ProducerState{Producer: uint64(w), Epoch: epochOf(own), Next: uint64(len(own))})
		for i, a := range before[w] {
			if int(a.own) > len(own) || own[a.own-1].Time != a.time || int(a.all) > len(all) || string(all[a.all-1].Data) != fmt.Sprint(w, " ", i) {
				e.Fatalf("round %d: the record of writer %d that was acknowledged at LSN %d and %d is gone", round, w, a.own, a.all)
			}
		}
	}
	total := 0
	for _, st := range shards[1:] {
		total += len(e.readAll(st, 1))
	}
	wantEqual(e, "records in the common shard", len(all), total)
	e.appendAll(appendTo(common, epochs[0], "after"))
}

func epochOf(entries []metalog.Entry) uint32 {
	if len(entries) == 0 {
		return 0
	}
	return 1
}

// watermarksOutlive checks the watermarks sent before against records appended after again, with a clock that was set back.
func watermarksOutlive(e *caseEnv, again func() metalog.Log) {
	epochs := e.openShards(shardA, shardB)
	e.fillShard(shardA, epochs[0], 1)
	promised := e.tailOf(shardA).Watermark
	for range 3 {
		e.in.clock.Advance(3 * time.Hour)
		f := e.follow(metalog.MinHeartbeat, positionAt(shardA, 1), positionAt(shardB, 1))
		e.in.clock.Advance(time.Minute)
		promised = max(promised, f.waitWatermark(shardA, promised+1).Watermark, f.waitWatermark(shardB, promised+1).Watermark, e.tailOf(shardB).Watermark)
		f.stopChecked()
		again()
		e.in.clock.Advance(-2 * time.Hour)
		for i, s := range []record.ShardID{shardA, shardB} {
			if done := e.appendAll(appendTo(s, epochs[i], "x"))[0]; done.Time < promised {
				e.Fatalf("a record has time %d, but %d was promised", done.Time, promised)
			}
		}
		if w := e.tailOf(shardA).Watermark; w < promised {
			e.Fatalf("the watermark is %d, but %d was promised", w, promised)
		}
	}
}
