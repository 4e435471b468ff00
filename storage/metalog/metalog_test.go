package metalog_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

func TestContinue(t *testing.T) {
	known := metalog.ProducerState{Producer: 9, Epoch: 4, Next: 20}
	for _, c := range []struct {
		state       metalog.ProducerState
		epoch       uint32
		first, last uint64
		kind        metalog.SequenceKind
	}{
		{metalog.ProducerState{Producer: 9}, 0, 7, 7, 0},
		{metalog.ProducerState{Producer: 9}, 3, 0, math.MaxUint64 - 1, 0},
		{known, 4, 20, 29, 0},
		{known, 4, 19, 29, metalog.SequenceDuplicate},
		{known, 4, 0, 19, metalog.SequenceDuplicate},
		{known, 4, 21, 29, metalog.SequenceGap},
		{known, 3, 20, 29, metalog.SequenceStaleEpoch},
		{known, 5, 0, 0, 0},
		{known, 5, 20, 20, 0},
	} {
		run := metalog.Sequence{Producer: 9, Epoch: c.epoch, First: c.first, Last: c.last}
		got, kind := c.state.Continue(run)
		want := c.state
		if c.kind == 0 {
			want = metalog.ProducerState{Producer: 9, Epoch: c.epoch, Next: c.last + 1}
		}
		if kind != c.kind || got != want {
			t.Errorf("%+v and %+v: got %+v, %d, want %+v, %d", c.state, run, got, kind, want, c.kind)
		}
	}
}

func TestErrorsMatchAndSayWhere(t *testing.T) {
	shard := record.MakeShardID(7, 2, 1)
	for _, c := range []struct {
		err   error
		is    []error
		isNot []error
		says  []string
	}{
		{
			&metalog.RefusedError{Refusals: []metalog.Refusal{
				{Err: metalog.ErrFenced, State: metalog.State{Shard: shard, Epoch: 3, NextLSN: 9}},
				{Err: metalog.ErrConflict, State: metalog.State{Shard: shard + 1}},
			}},
			[]error{metalog.ErrFenced, metalog.ErrConflict},
			[]error{metalog.ErrSealed, metalog.ErrSequence},
			[]string{"7/2/1", "epoch is 3", "LSN 9", "2 shards"},
		},
		{&metalog.RefusedError{}, nil, []error{metalog.ErrFenced}, []string{"refused"}},
		{&metalog.TrimmedError{Shard: shard, LSN: 4, First: 8}, []error{metalog.ErrTrimmed}, nil, []string{"7/2/1", "4", "8"}},
		{&metalog.CorruptError{Shard: shard, LSN: 4, Detail: "checksum"}, []error{metalog.ErrCorrupt}, nil, []string{"7/2/1", "LSN 4", "checksum"}},
		{&metalog.CorruptError{Shard: shard, Detail: "checksum"}, []error{metalog.ErrCorrupt}, nil, []string{"7/2/1", "state", "checksum"}},
		{
			&metalog.SequenceError{Conflicts: []metalog.SequenceConflict{{Shard: shard, Run: metalog.Sequence{Producer: 5, First: 6, Last: 7}}}},
			[]error{metalog.ErrSequence},
			nil,
			[]string{"7/2/1", "producer 5", "6 to 7"},
		},
		{&metalog.ElsewhereError{Shard: shard, LSN: 4, Engine: "b"}, []error{metalog.ErrElsewhere}, []error{metalog.ErrFenced}, []string{"7/2/1", "LSN 4", `"b"`}},
		{
			&metalog.ClockError{Time: 1_800_000_000_000_000, Clock: 1_800_007_200_000_001},
			[]error{metalog.ErrClock},
			[]error{metalog.ErrInvalid},
			[]string{"2027-01-15T08:00:00Z", "2027-01-15T10:00:00.000001Z", "1h0m0s"},
		},
		{&metalog.SequenceError{}, []error{metalog.ErrSequence}, nil, []string{"sequences"}},
	} {
		for _, target := range c.is {
			if !errors.Is(c.err, target) {
				t.Errorf("%v is not %v", c.err, target)
			}
		}
		for _, target := range c.isNot {
			if errors.Is(c.err, target) {
				t.Errorf("%v is %v", c.err, target)
			}
		}
		for _, part := range c.says {
			if !strings.Contains(c.err.Error(), part) {
				t.Errorf("%q does not say %q", c.err, part)
			}
		}
	}
}

func TestHeartbeats(t *testing.T) {
	from := []metalog.Position{{Shard: 1, LSN: 1}}
	for given, want := range map[time.Duration]time.Duration{
		0: metalog.DefaultHeartbeat, 1: metalog.MinHeartbeat, metalog.MinHeartbeat: metalog.MinHeartbeat, time.Hour: time.Hour,
	} {
		if got, err := metalog.ValidateSubscribe(from, given); err != nil || got != want {
			t.Errorf("heartbeat %v: got %v, %v, want %v", given, got, err, want)
		}
	}
}

// TestManyShardsTwice has a shard twice among more than are compared one by one.
func TestManyShardsTwice(t *testing.T) {
	shards := make([]record.ShardID, 100)
	for i := range shards {
		shards[i] = record.ShardID(i)
	}
	if err := metalog.ValidateOpen("o", shards); err != nil {
		t.Error(err)
	}
	shards[99] = 3
	if err := metalog.ValidateOpen("o", shards); !errors.Is(err, metalog.ErrInvalid) {
		t.Errorf("a shard that is there twice: %v", err)
	}
}
