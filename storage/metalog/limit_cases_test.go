package metalog_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// shardList returns n distinct shards.
func shardList(n int) []record.ShardID {
	out := make([]record.ShardID, n)
	for i := range out {
		out[i] = record.ShardID(i)
	}
	return out
}

var limitCases = []testCase{
	{name: "what is over a limit is refused", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		good := appendTo(shardA, epoch, "x")
		with := func(change func(*metalog.ShardAppend)) *metalog.Append {
			s := appendTo(shardA, epoch, "x")
			change(&s)
			return &metalog.Append{Shards: []metalog.ShardAppend{s}}
		}
		big := make([]byte, metalog.MaxRecord+1)
		for what, a := range map[string]*metalog.Append{
			"nothing":                  {},
			"no records":               with(func(s *metalog.ShardAppend) { s.Records = nil }),
			"an empty record":          with(func(s *metalog.ShardAppend) { s.Records = [][]byte{{1}, {}} }),
			"a record too large":       with(func(s *metalog.ShardAppend) { s.Records = [][]byte{big} }),
			"a transaction too large":  with(func(s *metalog.ShardAppend) { s.Records = repeatRecord(big[1:], metalog.MaxAppend/metalog.MaxRecord+1) }),
			"too many records":         with(func(s *metalog.ShardAppend) { s.Records = repeatRecord(big[:1], metalog.MaxAppendRecords+1) }),
			"epoch 0":                  with(func(s *metalog.ShardAppend) { s.Epoch = 0 }),
			"a run backward":           with(func(s *metalog.ShardAppend) { s.Sequences = []metalog.Sequence{makeRun(1, 5, 4)} }),
			"a run to the largest":     with(func(s *metalog.ShardAppend) { s.Sequences = []metalog.Sequence{makeRun(1, 5, math.MaxUint64)} }),
			"a shard twice":            {Shards: []metalog.ShardAppend{good, appendTo(shardB, 1, "x"), good}},
			"a blob from before times": {Shards: []metalog.ShardAppend{good}, OldestBlob: -1},
		} {
			if _, err := e.log.Append(e.ctx, a); !errors.Is(err, metalog.ErrInvalid) {
				e.Errorf("an append of %s ended with %v", what, err)
			}
		}
		many := shardList(metalog.MaxShards + 1)
		positions := make([]metalog.Position, len(many))
		for i, s := range many {
			positions[i] = positionAt(s, 1)
		}
		nothing := func([]metalog.Update) error { return errors.New("called") }
		second := func(_ any, err error) error { return err }
		for what, err := range map[string]error{
			"Remove of nothing":             second(e.log.Remove(e.ctx, nil)),
			"Remove of a shard twice":       second(e.log.Remove(e.ctx, []metalog.Unused{{Shard: shardA, Epoch: 1}, {Shard: shardA, Epoch: 2}})),
			"Remove of too many":            second(e.log.Remove(e.ctx, make([]metalog.Unused, metalog.MaxShards+1))),
			"Open of nothing":               second(e.log.Open(e.ctx, "o", nil)),
			"Open of too many":              second(e.log.Open(e.ctx, "o", many)),
			"Open of a shard twice":         second(e.log.Open(e.ctx, "o", []record.ShardID{shardA, shardB, shardA})),
			"Open by a long name":           second(e.log.Open(e.ctx, strings.Repeat("o", metalog.MaxOwner+1), many[:1])),
			"Tail of nothing":               second(e.log.Tail(e.ctx, nil)),
			"Tail of too many":              second(e.log.Tail(e.ctx, many)),
			"Seek of nothing":               second(e.log.Seek(e.ctx, nil, 1)),
			"Seek of too many":              second(e.log.Seek(e.ctx, many, 1)),
			"Read from 0":                   second(e.log.Read(e.ctx, shardA, 0, 0, 0)),
			"Sequences of nothing":          second(e.log.Sequences(e.ctx, shardA, nil)),
			"Sequences of too many":         second(e.log.Sequences(e.ctx, shardA, make([]uint64, metalog.MaxProducers+1))),
			"Subscribe to nothing":          e.log.Subscribe(e.ctx, nil, 0, nothing),
			"Subscribe to too many":         e.log.Subscribe(e.ctx, positions, 0, nothing),
			"Subscribe from 0":              e.log.Subscribe(e.ctx, []metalog.Position{positionAt(shardA, 0)}, 0, nothing),
			"Subscribe to a shard twice":    e.log.Subscribe(e.ctx, []metalog.Position{positionAt(shardA, 1), positionAt(shardA, 2)}, 0, nothing),
			"Subscribe with a past to wait": e.log.Subscribe(e.ctx, positions[:1], -time.Second, nothing),
		} {
			if !errors.Is(err, metalog.ErrInvalid) {
				e.Errorf("%s ended with %v", what, err)
			}
		}
		wantEqual(e, "next LSN", e.tailOf(shardA).NextLSN, 1)
		wantEqual(e, "epoch", e.tailOf(shardA).Epoch, epoch)
	}},
	{name: "what is at a limit is not", test: func(e *caseEnv) {
		shards := shardList(metalog.MaxShards)
		if _, err := e.log.Open(e.ctx, strings.Repeat("o", metalog.MaxOwner), shards); err != nil {
			e.Fatal(err)
		}
		if states, err := e.log.Tail(e.ctx, shards); err != nil || len(states) != len(shards) {
			e.Fatalf("Tail returned %d states, %v", len(states), err)
		}
		if lsns, err := e.log.Seek(e.ctx, shards, 1); err != nil || len(lsns) != len(shards) {
			e.Fatalf("Seek returned %d positions, %v", len(lsns), err)
		}
		if states, err := e.log.Sequences(e.ctx, shardA, make([]uint64, metalog.MaxProducers)); err != nil || len(states) != metalog.MaxProducers {
			e.Fatalf("Sequences returned %d states, %v", len(states), err)
		}
	}},
}

// makeEveryCall makes each call but Close on shardA, and returns their errors.
func (e *caseEnv) makeEveryCall(ctx context.Context, epoch uint64) map[string]error {
	second := func(_ any, err error) error { return err }
	third := func(_, _ any, err error) error { return err }
	shards := []record.ShardID{shardA}
	return map[string]error{
		"Open":            second(e.log.Open(ctx, "o", shards)),
		"Append":          second(e.log.Append(ctx, &metalog.Append{Shards: []metalog.ShardAppend{appendTo(shardA, epoch, "x")}})),
		"Read":            second(e.log.Read(ctx, shardA, 1, 0, 0)),
		"Tail":            second(e.log.Tail(ctx, shards)),
		"Seek":            second(e.log.Seek(ctx, shards, 1)),
		"Trim":            e.log.Trim(ctx, shardA, 2),
		"Seal":            second(e.log.Seal(ctx, shardA)),
		"Retire":          e.log.Retire(ctx, shardA.Category()),
		"Erase":           e.log.Erase(ctx, shardA.Category()),
		"Shards":          second(e.log.Shards(ctx, shardA.Category())),
		"Sequences":       second(e.log.Sequences(ctx, shardA, []uint64{1})),
		"AdvanceBoundary": second(e.log.AdvanceBoundary(ctx, 5)),
		"Annotate":        second(e.log.Annotate(ctx, []metalog.Annotation{{Shard: shardA, LSN: 1, Kind: zones, Data: []byte("x")}})),
		"Annotations":     third(e.log.Annotations(ctx, shardA, 1, 2, zones, 0)),
		"Subscribe":       e.log.Subscribe(ctx, []metalog.Position{positionAt(shardA, 1)}, 0, func([]metalog.Update) error { return nil }),
		"WatchShards":     e.log.WatchShards(ctx, shardA.Category(), func([]record.ShardID) error { return nil }),
	}
}

var endCases = []testCase{
	{name: "a call whose context ended does nothing", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, 1)
		ctx, cancel := context.WithCancel(e.ctx)
		cancel()
		ended := e.makeEveryCall(ctx, epoch)
		delete(ended, "Tail") // from memory
		delete(ended, "Shards")
		for what, err := range ended {
			if !errors.Is(err, context.Canceled) {
				e.Errorf("%s ended with %v", what, err)
			}
		}
		st := e.tailOf(shardA)
		if st.Epoch != epoch || st.NextLSN != 2 || st.FirstLSN != 1 || st.Sealed {
			e.Fatalf("the state is %+v", st)
		}
	}},
	{name: "a deadline ends a subscription", test: func(e *caseEnv) {
		ctx, cancel := context.WithTimeout(e.ctx, time.Millisecond)
		defer cancel()
		e.wantError(e.log.Subscribe(ctx, []metalog.Position{positionAt(shardA, 1)}, 0, func([]metalog.Update) error { return nil }), context.DeadlineExceeded)
	}},
	{name: "after Close every call says so", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.mustSucceed(e.log.Close())
		if err := e.log.Close(); err != nil {
			e.Fatalf("the second Close: %v", err)
		}
		for what, err := range e.makeEveryCall(e.ctx, epoch) {
			if !errors.Is(err, metalog.ErrClosed) {
				e.Errorf("%s ended with %v", what, err)
			}
		}
	}},
	{name: "Close ends subscriptions, and waits for running calls", test: func(e *caseEnv) {
		e.openOne(shardA)
		log := e.log
		ended := make(chan error, 2)
		inside, release := make(chan struct{}), make(chan struct{})
		returned := false
		go func() {
			err := log.Subscribe(e.ctx, []metalog.Position{positionAt(shardA, 1)}, long, func([]metalog.Update) error {
				close(inside)
				<-release
				returned = true
				return nil
			})
			ended <- err
		}()
		watching := make(chan struct{})
		go func() {
			ended <- log.WatchShards(e.ctx, 7, func([]record.ShardID) error {
				close(watching)
				return nil
			})
		}()
		<-inside
		<-watching
		closed := make(chan error, 1)
		go func() { closed <- log.Close() }()
		close(release)
		e.wantError(<-closed, nil)
		if !returned {
			e.Fatal("Close did not wait for the callback")
		}
		e.wantError(<-ended, metalog.ErrClosed)
		e.wantError(<-ended, metalog.ErrClosed)
	}},
	{name: "appends during Close are stored or refused", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		log := e.log
		const writers = 8
		var stored atomic.Int64
		started := make(chan struct{}, writers)
		wait := e.startAll(writers, func(int) error {
			for i := 0; ; i++ {
				_, err := log.Append(e.ctx, &metalog.Append{Shards: []metalog.ShardAppend{appendTo(shardA, epoch, "x")}})
				if i == 0 {
					started <- struct{}{}
				}
				switch {
				case errors.Is(err, metalog.ErrClosed):
					return nil
				case err != nil:
					return err
				}
				stored.Add(1)
			}
		})
		for range writers {
			<-started
		}
		e.restartLog()
		wait()
		wantEqual(e, "records", len(e.readAll(shardA, 1)), int(stored.Load()))
	}},
}
