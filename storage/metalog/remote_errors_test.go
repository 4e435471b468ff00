package metalog_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	connectrpc "connectrpc.com/connect"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
	"scribe/storage/metalog/remote"
)

// broken is an engine whose appends and subscriptions fail in a given way.
type broken struct {
	metalog.Log
	err error
}

func (b *broken) Append(context.Context, *metalog.Append) ([]metalog.Appended, error) {
	return nil, b.err
}

func (b *broken) Subscribe(context.Context, []metalog.Position, time.Duration, func([]metalog.Update) error) error {
	return b.err
}

var sentinels = []error{
	metalog.ErrFenced, metalog.ErrSealed, metalog.ErrConflict, metalog.ErrSequence, metalog.ErrStaleBlob, metalog.ErrTrimmed,
	metalog.ErrInvalid, metalog.ErrClosed, metalog.ErrCorrupt, metalog.ErrNotLeader,
	metalog.ErrElsewhere, metalog.ErrClock,
}

var anAppend = &metalog.Append{Shards: []metalog.ShardAppend{{Shard: 1, Epoch: 1, Records: [][]byte{{1}}}}}

// each calls an engine that fails with each of errs, over each transport, once with a unary call and once with a stream.
func each(t *testing.T, errs []error, check func(t *testing.T, want, got error)) {
	t.Helper()
	for name, c := range map[string]connect{"direct": direct, "memory": inMemory} {
		engine := &broken{}
		log := remote.NewClient(c(t, remote.NewServer(engine)))
		for i, want := range errs {
			t.Run(fmt.Sprintf("%s/%d", name, i), func(t *testing.T) {
				engine.err = want
				_, got := log.Append(t.Context(), anAppend)
				check(t, want, got)
				check(t, want, log.Subscribe(t.Context(), []metalog.Position{{Shard: 1, LSN: 1}}, 0, func([]metalog.Update) error { return nil }))
			})
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestEngineErrorsComeBack checks that every definite error matches what it matched at the engine, holds the same, and says the same.
func TestEngineErrorsComeBack(t *testing.T) {
	shard := record.MakeShardID(7, 2, 1)
	state := metalog.State{Shard: shard, FirstLSN: 2, NextLSN: 9, Epoch: 3, Sealed: true, LastTime: 5, Watermark: 6}
	moved := metalog.State{Shard: shard, FirstLSN: 2, NextLSN: 9, Epoch: 3, Begin: 7, Adopted: 2, MovedFrom: "a", MovedTo: "b"}
	run := metalog.Sequence{Producer: 1 << 63, Epoch: 7, First: 8, Last: 9}
	known := metalog.ProducerState{Producer: 1 << 63, Epoch: 6, Next: 5}
	errs := []error{
		&metalog.RefusedError{Refusals: []metalog.Refusal{{Err: metalog.ErrSealed, State: state}, {Err: metalog.ErrFenced, State: metalog.State{Shard: 4}}}},
		&metalog.RefusedError{Refusals: []metalog.Refusal{{Err: metalog.ErrConflict, State: state}}},
		&metalog.SequenceError{Conflicts: []metalog.SequenceConflict{
			{Shard: shard, Kind: metalog.SequenceDuplicate, Run: run, Known: known},
			{Shard: shard, Kind: metalog.SequenceGap, Run: run, Known: known},
			{Shard: shard, Kind: metalog.SequenceStaleEpoch, Run: run, Known: known},
		}},
		&metalog.TrimmedError{Shard: shard, LSN: 4, First: 8},
		&metalog.CorruptError{Shard: shard, LSN: 4, Detail: "checksum"},
		&metalog.CorruptError{Shard: shard, Detail: "checksum"},
		&metalog.NotLeaderError{Leader: "http://n2:7420"},
		&metalog.NotLeaderError{},
		&metalog.RefusedError{Refusals: []metalog.Refusal{{Err: metalog.ErrElsewhere, State: moved}}},
		&metalog.ElsewhereError{Shard: shard, LSN: 4, Engine: "b"},
		&metalog.ClockError{Time: 7, Clock: 5},
	}
	for _, s := range sentinels {
		errs = append(errs, s, fmt.Errorf("text around it: %w", s))
	}
	each(t, errs, func(t *testing.T, want, got error) {
		for _, s := range sentinels {
			if errors.Is(got, s) != errors.Is(want, s) {
				t.Errorf("%v is %v: %v", got, s, errors.Is(got, s))
			}
		}
		if got.Error() != want.Error() {
			t.Errorf("got %q, want %q", got, want)
		}
		for _, typed := range []any{
			new(*metalog.RefusedError), new(*metalog.SequenceError), new(*metalog.TrimmedError), new(*metalog.CorruptError),
			new(*metalog.NotLeaderError), new(*metalog.ElsewhereError), new(*metalog.ClockError),
		} {
			if !errors.As(want, typed) {
				continue
			}
			again := reflect.New(reflect.TypeOf(typed).Elem()).Interface()
			if !errors.As(got, again) || !reflect.DeepEqual(again, typed) {
				t.Errorf("got %+v, want %+v", again, typed)
			}
		}
		if rpc.ReasonOf(got) == scribev1.Reason_REASON_UNSPECIFIED {
			t.Errorf("%v has no reason for those who know only RPC", got)
		}
	})
}

// TestConflictsForThoseWhoKnowOnlyRPC checks that the conflicts are also where every service has them.
func TestConflictsForThoseWhoKnowOnlyRPC(t *testing.T) {
	err := &metalog.SequenceError{Conflicts: []metalog.SequenceConflict{{
		Shard: 7, Kind: metalog.SequenceGap, Run: metalog.Sequence{Producer: 5, Epoch: 2, First: 9, Last: 9}, Known: metalog.ProducerState{Producer: 5, Epoch: 1, Next: 4},
	}}}
	each(t, []error{err}, func(t *testing.T, _, got error) {
		c := rpc.Info(got).GetConflicts()
		if len(c) != 1 || c[0].GetShard() != 7 || c[0].GetProducer() != 5 || c[0].GetEpoch() != 1 || c[0].GetNextSequence() != 4 ||
			c[0].GetReason() != scribev1.Reason_REASON_OUT_OF_SEQUENCE {
			t.Errorf("the conflicts are %v", c)
		}
	})
}

// TestOtherErrorsStayUnknown checks that nothing passes for a definite error that is none.
func TestOtherErrorsStayUnknown(t *testing.T) {
	unknown := func(t *testing.T, _, got error) {
		t.Helper()
		if got == nil {
			t.Error("a failed call succeeded")
		}
		for _, s := range sentinels {
			if errors.Is(got, s) {
				t.Errorf("%v is %v", got, s)
			}
		}
	}
	each(t, []error{errors.New("the disk is on fire")}, func(t *testing.T, want, got error) {
		unknown(t, want, got)
		if !strings.Contains(got.Error(), want.Error()) || rpc.ReasonOf(got) != scribev1.Reason_REASON_UNKNOWN_OUTCOME {
			t.Errorf("the error is %v, reason %v", got, rpc.ReasonOf(got))
		}
	})
	// Reasons and codes of others than the engine promise nothing.
	others := []error{connectrpc.NewError(connectrpc.CodeInvalidArgument, errors.New("from a proxy"))}
	for _, r := range []scribev1.Reason{
		scribev1.Reason_REASON_FENCED, scribev1.Reason_REASON_INVALID, scribev1.Reason_REASON_SHUTTING_DOWN, scribev1.Reason_REASON_CORRUPT,
		scribev1.Reason_REASON_CONFLICT, scribev1.Reason_REASON_NO_BACKEND,
	} {
		others = append(others, rpc.Errorf(r, "from a proxy"))
	}
	each(t, others, unknown)
	// Nobody is there.
	log := remote.NewClient(rpc.NewMetalogClient(rpc.NewTransport(nil), "unix:/nowhere/at/all"))
	_, err := log.Append(t.Context(), anAppend)
	unknown(t, nil, err)
	unknown(t, nil, log.Subscribe(t.Context(), []metalog.Position{{Shard: 1, LSN: 1}}, 0, func([]metalog.Update) error { return nil }))
}

// short is a service whose answers do not fit their questions.
type short struct{ rpc.MetalogService }

func (short) Open(context.Context, *scribev1.OpenRequest) (*scribev1.OpenResponse, error) {
	return &scribev1.OpenResponse{}, nil
}

func (short) Append(context.Context, *scribev1.AppendRequest) (*scribev1.AppendResponse, error) {
	return &scribev1.AppendResponse{}, nil
}

func (short) Tail(context.Context, *scribev1.TailRequest) (*scribev1.TailResponse, error) {
	return &scribev1.TailResponse{}, nil
}

func (short) Seek(context.Context, *scribev1.SeekRequest) (*scribev1.SeekResponse, error) {
	return &scribev1.SeekResponse{}, nil
}

func (short) Sequences(context.Context, *scribev1.SequencesRequest) (*scribev1.SequencesResponse, error) {
	return &scribev1.SequencesResponse{}, nil
}

func (short) Subscribe(context.Context, *scribev1.SubscribeRequest, func(*scribev1.SubscribeResponse) error) error {
	return nil
}

// TestAnswersAreNotTrusted checks that an answer of another length is an error and not a panic of the caller.
func TestAnswersAreNotTrusted(t *testing.T) {
	log := remote.NewClient(short{})
	ctx, shards := t.Context(), []record.ShardID{1}
	second := func(_ any, err error) error { return err }
	for what, err := range map[string]error{
		"Open":      second(log.Open(ctx, "o", shards)),
		"Append":    second(log.Append(ctx, anAppend)),
		"Tail":      second(log.Tail(ctx, shards)),
		"Seek":      second(log.Seek(ctx, shards, 1)),
		"Sequences": second(log.Sequences(ctx, 1, []uint64{1})),
		"Subscribe": log.Subscribe(ctx, []metalog.Position{{Shard: 1, LSN: 1}}, 0, func([]metalog.Update) error { return nil }),
	} {
		if err == nil {
			t.Errorf("%s took an empty answer", what)
		}
	}
}
