package metalog

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"scribe/internal/format/record"
)

// Errors that callers branch on. They are definite: the call changed nothing.
var (
	// ErrFenced means that a newer epoch owns the shard.
	ErrFenced = errors.New("metalog: a newer writer owns the shard")
	// ErrSealed means that the shard is sealed and accepts no more records.
	ErrSealed = errors.New("metalog: the shard is sealed")
	// ErrConflict means that the next LSN is not the one expected.
	ErrConflict = errors.New("metalog: the next LSN is not the one expected")
	// ErrSequence means that a producer's sequence does not continue the shard's state of that producer. It comes as
	// *SequenceError.
	ErrSequence = errors.New("metalog: producer sequences do not continue")
	// ErrStaleBlob means that the records refer to a blob that retention may have deleted.
	ErrStaleBlob = errors.New("metalog: the blob is older than the retention boundary")
	// ErrTrimmed means that the position was trimmed. It comes as *TrimmedError.
	ErrTrimmed = errors.New("metalog: the position was trimmed")
	// ErrInvalid means that the request is outside the limits of this package.
	ErrInvalid = errors.New("metalog: invalid request")
	// ErrClosed means that the engine is closed.
	ErrClosed = errors.New("metalog: closed")
	// ErrCorrupt means that stored data is missing or does not match its checksum. It comes as *CorruptError.
	ErrCorrupt = errors.New("metalog: damaged record")
	// ErrNotLeader means that this replica of the engine takes no writes: another one leads. It comes as *NotLeaderError.
	ErrNotLeader = errors.New("metalog: this replica does not lead")
	// ErrElsewhere means that another engine has the shard, or the position. It comes as *ElsewhereError, or as *RefusedError where calls name
	// several shards.
	ErrElsewhere = errors.New("metalog: another engine has it")
	// ErrClock means that the clocks of two engines are too far apart for a move. It comes as *ClockError.
	ErrClock = errors.New("metalog: the clocks of the engines are too far apart")
)

// FindSentinel returns which of the errors above err wraps, nil for none. An error of several shards may wrap several: the first in
// the order below counts.
func FindSentinel(err error) error {
	for _, sentinel := range []error{
		ErrSealed, ErrElsewhere, ErrFenced, ErrConflict, ErrSequence, ErrStaleBlob, ErrTrimmed, ErrCorrupt, ErrInvalid, ErrClock, ErrNotLeader, ErrClosed,
	} {
		if errors.Is(err, sentinel) {
			return sentinel
		}
	}
	return nil
}

// TrimmedError is an ErrTrimmed with the position where reading can continue.
type TrimmedError struct {
	Shard record.ShardID
	LSN   record.LSN
	First record.LSN
}

// Error implements error.
func (e *TrimmedError) Error() string {
	return fmt.Sprintf("metalog: shard %v: LSN %d was trimmed, the first one is %d", e.Shard, e.LSN, e.First)
}

// Unwrap makes errors.Is(err, ErrTrimmed) hold.
func (e *TrimmedError) Unwrap() error { return ErrTrimmed }

// SequenceKind is the reason why a run of sequences was refused.
type SequenceKind uint8

// Kinds of refusal.
const (
	// SequenceDuplicate: the run's first sequence is below the next one expected.
	SequenceDuplicate SequenceKind = 1
	// SequenceGap: the run's first sequence is above the next one expected.
	SequenceGap SequenceKind = 2
	// SequenceStaleEpoch: the producer has written with a newer epoch.
	SequenceStaleEpoch SequenceKind = 3
)

// SequenceConflict is one refused run.
type SequenceConflict struct {
	Shard record.ShardID
	Kind  SequenceKind
	// Run is the refused run.
	Run Sequence
	// Known is the shard's state of the producer before the transaction. It does not include earlier runs of the same
	// transaction.
	Known ProducerState
}

// SequenceError is an ErrSequence that lists the conflicts of the transaction, the first MaxConflicts of them at most.
type SequenceError struct {
	Conflicts []SequenceConflict
}

// Error implements error.
func (e *SequenceError) Error() string {
	if len(e.Conflicts) == 0 {
		return ErrSequence.Error()
	}
	c := e.Conflicts[0]
	return fmt.Sprintf("metalog: shard %v: producer %d sent sequences %d to %d in epoch %d, expected %d in epoch %d (%d conflicts in all)",
		c.Shard, c.Run.Producer, c.Run.First, c.Run.Last, c.Run.Epoch, c.Known.Next, c.Known.Epoch, len(e.Conflicts))
}

// Unwrap makes errors.Is(err, ErrSequence) hold.
func (e *SequenceError) Unwrap() error { return ErrSequence }

// Refusal is the reason why one shard refused its part of a call.
type Refusal struct {
	// Err is ErrSealed, ErrElsewhere, ErrFenced or ErrConflict.
	Err error
	// State is the shard's state when it refused; its Epoch is 0 when the shard does not exist. With ErrElsewhere its MovedTo is the engine that
	// has the shard, or that creates it.
	State State
}

// RefusedError is an ErrSealed, ErrElsewhere, ErrFenced or ErrConflict of an Append, an ErrSealed or ErrElsewhere of an Open, or one of those of
// a move, with every shard that refused its part (at most MaxConflicts). It matches each error in it. A caller can leave out the listed shards and repeat the rest.
type RefusedError struct {
	Refusals []Refusal
}

// Error implements error.
func (e *RefusedError) Error() string {
	if len(e.Refusals) == 0 {
		return "metalog: refused"
	}
	r := e.Refusals[0]
	return fmt.Sprintf("%v: shard %v, whose epoch is %d and next LSN %d (%d shards refused in all)",
		r.Err, r.State.Shard, r.State.Epoch, r.State.NextLSN, len(e.Refusals))
}

// Unwrap makes errors.Is hold for each shard's error.
func (e *RefusedError) Unwrap() []error {
	var errs []error
	for _, kind := range []error{ErrSealed, ErrElsewhere, ErrFenced, ErrConflict} {
		if slices.ContainsFunc(e.Refusals, func(r Refusal) bool { return errors.Is(r.Err, kind) }) {
			errs = append(errs, kind)
		}
	}
	return errs
}

// CorruptError is an ErrCorrupt with the position of the damage.
type CorruptError struct {
	// Shard is the shard whose record or state is damaged.
	Shard record.ShardID
	// LSN is the LSN of the damaged record; 0 when the shard's own state is damaged.
	LSN record.LSN
	// Detail describes the damage to a person.
	Detail string
}

// Error implements error.
func (e *CorruptError) Error() string {
	if e.LSN == 0 {
		return fmt.Sprintf("metalog: shard %v: damaged state: %s", e.Shard, e.Detail)
	}
	return fmt.Sprintf("metalog: shard %v: damaged record at LSN %d: %s", e.Shard, e.LSN, e.Detail)
}

// Unwrap makes errors.Is(err, ErrCorrupt) hold.
func (e *CorruptError) Unwrap() error { return ErrCorrupt }

// NotLeaderError is an ErrNotLeader with the replica that leads.
type NotLeaderError struct {
	// Leader is the URL of the replica that leads, as its followers know it; empty when this one does not know it.
	Leader string
}

// Error implements error.
func (e *NotLeaderError) Error() string {
	if e.Leader == "" {
		return ErrNotLeader.Error() + ", and knows no leader: try another replica, or later"
	}
	return fmt.Sprintf("%v: %q does", ErrNotLeader, e.Leader)
}

// Unwrap makes errors.Is(err, ErrNotLeader) hold.
func (e *NotLeaderError) Unwrap() error { return ErrNotLeader }

// ElsewhereError is an ErrElsewhere of one shard, or of a position in it.
type ElsewhereError struct {
	Shard record.ShardID
	// LSN is the position asked for, or, where the call has none, the one at which the shard goes on in the other engine.
	LSN record.LSN
	// Engine is the engine to ask. It has the position, had it until it was trimmed, or knows which engine to ask next.
	Engine string
}

// Error implements error.
func (e *ElsewhereError) Error() string {
	return fmt.Sprintf("metalog: shard %v: engine %q has LSN %d: ask that one", e.Shard, e.Engine, e.LSN)
}

// Unwrap makes errors.Is(err, ErrElsewhere) hold.
func (e *ElsewhereError) Unwrap() error { return ErrElsewhere }

// ClockError is an ErrClock with both times, Unix microseconds.
type ClockError struct {
	// Time is what an engine's clock must pass, or the clock of the other engine.
	Time int64
	// Clock is the engine's clock.
	Clock int64
}

// Error implements error.
func (e *ClockError) Error() string {
	return fmt.Sprintf("%v: one is at %s, the other at %s, and the limit is %v: set the hosts' clocks, or wait",
		ErrClock, time.UnixMicro(e.Time).UTC().Format(time.RFC3339Nano), time.UnixMicro(e.Clock).UTC().Format(time.RFC3339Nano), MaxClockJump)
}

// Unwrap makes errors.Is(err, ErrClock) hold.
func (e *ClockError) Unwrap() error { return ErrClock }
