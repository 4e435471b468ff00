package metalogtest

import (
	"errors"
	"fmt"
	"sync"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

func makeRun(producer uint64, epoch uint32, first, last uint64) metalog.Sequence {
	return metalog.Sequence{Producer: producer, Epoch: epoch, First: first, Last: last}
}

// trySequences appends one record with runs.
func (e *caseEnv) trySequences(shard record.ShardID, epoch uint64, runs ...metalog.Sequence) error {
	s := appendTo(shard, epoch, "r")
	s.Sequences = runs
	return e.tryAppend(s)
}

// wantKnown checks a shard's state of a producer.
func (e *caseEnv) wantKnown(shard record.ShardID, want metalog.ProducerState) {
	e.Helper()
	got, err := e.log.Sequences(e.ctx, shard, []uint64{want.Producer})
	if err != nil || len(got) != 1 || got[0] != want {
		e.Fatalf("the shard knows %+v (%v), want %+v", got, err, want)
	}
}

// wantConflict checks that an append was refused for one run.
func (e *caseEnv) wantConflict(err error, want metalog.SequenceConflict) {
	e.Helper()
	e.wantError(err, metalog.ErrSequence)
	c := asError[*metalog.SequenceError](e, err).Conflicts
	if len(c) != 1 || c[0] != want {
		e.Fatalf("the conflicts are %+v, want %+v", c, want)
	}
}

var sequenceCases = []testCase{
	{name: "sequences continue", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.wantKnown(shardA, metalog.ProducerState{Producer: 9})
		e.wantError(e.trySequences(shardA, epoch, makeRun(9, 4, 100, 104)), nil) // a new producer begins anywhere
		e.wantKnown(shardA, metalog.ProducerState{Producer: 9, Epoch: 4, Next: 105})
		e.wantError(e.trySequences(shardA, epoch, makeRun(9, 4, 105, 105)), nil)
		e.wantError(e.trySequences(shardA, epoch, makeRun(9, 4, 106, 120), makeRun(9, 4, 121, 130)), nil)
		e.wantError(e.trySequences(shardA, epoch, makeRun(8, 0, 0, 0)), nil) // epoch and sequence 0 are as good as any
		e.wantKnown(shardA, metalog.ProducerState{Producer: 8, Epoch: 0, Next: 1})
		got, err := e.log.Sequences(e.ctx, shardA, []uint64{8, 1, 9, 8})
		want := []metalog.ProducerState{{Producer: 8, Next: 1}, {Producer: 1}, {Producer: 9, Epoch: 4, Next: 131}, {Producer: 8, Next: 1}}
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			e.Fatalf("Sequences returned %v, %v, want %v", got, err, want)
		}
		e.wantKnown(shardB, metalog.ProducerState{Producer: 9}) // each shard has its own
	}},
	{name: "a duplicate, a gap and a stale epoch are refused", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.wantError(e.trySequences(shardA, epoch, makeRun(9, 4, 10, 19)), nil)
		known := metalog.ProducerState{Producer: 9, Epoch: 4, Next: 20}
		for _, c := range []metalog.SequenceConflict{
			{Kind: metalog.SequenceDuplicate, Run: makeRun(9, 4, 10, 19)},
			{Kind: metalog.SequenceDuplicate, Run: makeRun(9, 4, 19, 25)}, // overlaps
			{Kind: metalog.SequenceGap, Run: makeRun(9, 4, 21, 25)},
			{Kind: metalog.SequenceStaleEpoch, Run: makeRun(9, 3, 20, 25)},
		} {
			c.Shard, c.Known = shardA, known
			e.wantConflict(e.trySequences(shardA, epoch, c.Run), c)
			e.wantKnown(shardA, known)
		}
		wantEqual(e, "next LSN", e.tailOf(shardA).NextLSN, 2)
	}},
	{name: "a new epoch begins anywhere and ends the old one", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.wantError(e.trySequences(shardA, epoch, makeRun(9, 4, 10, 19)), nil)
		e.wantError(e.trySequences(shardA, epoch, makeRun(9, 5, 3, 3)), nil)
		known := metalog.ProducerState{Producer: 9, Epoch: 5, Next: 4}
		e.wantKnown(shardA, known)
		e.wantConflict(e.trySequences(shardA, epoch, makeRun(9, 4, 20, 20)),
			metalog.SequenceConflict{Shard: shardA, Kind: metalog.SequenceStaleEpoch, Run: makeRun(9, 4, 20, 20), Known: known})
		// Within one append as well.
		e.wantError(e.trySequences(shardA, epoch, makeRun(9, 5, 4, 9), makeRun(9, 6, 0, 7)), nil)
		e.wantKnown(shardA, metalog.ProducerState{Producer: 9, Epoch: 6, Next: 8})
	}},
	{name: "runs of one append must be in order", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		for _, runs := range [][]metalog.Sequence{
			{makeRun(9, 1, 10, 19), makeRun(9, 1, 0, 9)},
			{makeRun(9, 1, 10, 19), makeRun(9, 1, 10, 19)},
			{makeRun(9, 1, 10, 19), makeRun(9, 1, 21, 29)},
			{makeRun(9, 2, 10, 19), makeRun(9, 1, 20, 29)},
		} {
			err := e.trySequences(shardA, epoch, runs...)
			e.wantError(err, metalog.ErrSequence)
			if c := asError[*metalog.SequenceError](e, err).Conflicts; len(c) != 1 || c[0].Run != runs[1] || c[0].Known != (metalog.ProducerState{Producer: 9}) {
				e.Fatalf("the conflicts of %v are %+v", runs, c)
			}
		}
		e.wantKnown(shardA, metalog.ProducerState{Producer: 9})
	}},
	{name: "a refused append names all conflicts and changes nothing", test: func(e *caseEnv) {
		epochs := e.openShards(shardA, shardB)
		e.wantError(e.trySequences(shardA, epochs[0], makeRun(1, 1, 0, 9), makeRun(2, 1, 0, 9)), nil)
		a, b := appendTo(shardA, epochs[0], "a"), appendTo(shardB, epochs[1], "b")
		a.Sequences = []metalog.Sequence{makeRun(1, 1, 5, 9), makeRun(1, 1, 10, 14), makeRun(2, 1, 11, 12), makeRun(3, 1, 7, 7)}
		b.Sequences = []metalog.Sequence{makeRun(4, 1, 1, 2), makeRun(4, 1, 4, 5)}
		err := e.tryAppend(a, b)
		got := asError[*metalog.SequenceError](e, err).Conflicts
		want := []metalog.SequenceConflict{
			{Shard: shardA, Kind: metalog.SequenceDuplicate, Run: a.Sequences[0], Known: metalog.ProducerState{Producer: 1, Epoch: 1, Next: 10}},
			{Shard: shardA, Kind: metalog.SequenceGap, Run: a.Sequences[2], Known: metalog.ProducerState{Producer: 2, Epoch: 1, Next: 10}},
			{Shard: shardB, Kind: metalog.SequenceGap, Run: b.Sequences[1], Known: metalog.ProducerState{Producer: 4}},
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			e.Fatalf("the conflicts are %+v, want %+v", got, want)
		}
		e.wantKnown(shardA, metalog.ProducerState{Producer: 1, Epoch: 1, Next: 10})
		e.wantKnown(shardA, metalog.ProducerState{Producer: 3})
		e.wantKnown(shardB, metalog.ProducerState{Producer: 4})
		wantEqual(e, "next LSN", e.tailOf(shardA).NextLSN, 2)
		wantEqual(e, "next LSN", e.tailOf(shardB).NextLSN, 1)
		// Without the refused runs it succeeds.
		a.Sequences = []metalog.Sequence{makeRun(1, 1, 10, 14), makeRun(3, 1, 7, 7)}
		b.Sequences = b.Sequences[:1]
		e.appendAll(a, b)
		e.wantKnown(shardA, metalog.ProducerState{Producer: 1, Epoch: 1, Next: 15})
	}},
	{name: "a fenced append leaves the sequences alone", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.openOne(shardA)
		e.wantError(e.trySequences(shardA, epoch, makeRun(9, 1, 0, 0)), metalog.ErrFenced)
		e.wantKnown(shardA, metalog.ProducerState{Producer: 9})
	}},
	{name: "many conflicts are cut at the limit", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		var runs []metalog.Sequence
		for i := range uint64(metalog.MaxConflicts + 50) {
			runs = append(runs, makeRun(i, 1, 0, 0))
		}
		e.wantError(e.trySequences(shardA, epoch, runs...), nil)
		err := e.trySequences(shardA, epoch, runs...)
		wantEqual(e, "conflicts", len(asError[*metalog.SequenceError](e, err).Conflicts), metalog.MaxConflicts)
	}},
	{name: "concurrent writers store each run once", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		var wg sync.WaitGroup
		for range 8 { // each tries to store the whole of a producer's past, as retries do
			wg.Go(func() {
				for i := range uint64(30) {
					s := appendTo(shardA, epoch, fmt.Sprint(i))
					s.Sequences = []metalog.Sequence{makeRun(9, 1, i*10, i*10+9)}
					if err := e.tryAppend(s); err != nil && !errors.Is(err, metalog.ErrSequence) {
						e.Error(err)
					}
				}
			})
		}
		wg.Wait()
		e.wantKnown(shardA, metalog.ProducerState{Producer: 9, Epoch: 1, Next: 300})
		var want []string
		for i := range 30 {
			want = append(want, fmt.Sprint(i))
		}
		e.wantRecords(shardA, 1, want...)
	}},
	{name: "sequences outlive a restart", needs: canRestart, test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.wantError(e.trySequences(shardA, epoch, makeRun(9, 4, 10, 19)), nil)
		e.restartLog()
		known := metalog.ProducerState{Producer: 9, Epoch: 4, Next: 20}
		e.wantKnown(shardA, known)
		e.wantConflict(e.trySequences(shardA, epoch, makeRun(9, 4, 10, 19)),
			metalog.SequenceConflict{Shard: shardA, Kind: metalog.SequenceDuplicate, Run: makeRun(9, 4, 10, 19), Known: known})
		e.wantError(e.trySequences(shardA, epoch, makeRun(9, 4, 20, 20)), nil)
	}},
}
