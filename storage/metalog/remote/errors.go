package remote

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// toRPC converts an engine's error for the wire. Definite errors carry a MetalogFault; the others have an unknown outcome, and
// errors of ended contexts are left to the transport.
func toRPC(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	fault, conflicts := faultOf(err)
	if fault == nil {
		return rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "%w", err)
	}
	out := rpc.InfoError(&scribev1.ErrorInfo{Reason: fault.GetReason(), Conflicts: conflicts}, err)
	ce := new(connect.Error)
	if errors.As(out, &ce) {
		if d, derr := connect.NewErrorDetail(fault); derr == nil {
			ce.AddDetail(d)
		}
	}
	return out
}

// reasons maps the sentinels to reasons.
var reasons = map[error]scribev1.Reason{
	metalog.ErrSealed:    scribev1.Reason_REASON_SEALED,
	metalog.ErrFenced:    scribev1.Reason_REASON_FENCED,
	metalog.ErrConflict:  scribev1.Reason_REASON_CONFLICT,
	metalog.ErrSequence:  scribev1.Reason_REASON_OUT_OF_SEQUENCE,
	metalog.ErrStaleBlob: scribev1.Reason_REASON_STALE_BLOB,
	metalog.ErrTrimmed:   scribev1.Reason_REASON_TRIMMED,
	metalog.ErrCorrupt:   scribev1.Reason_REASON_CORRUPT,
	metalog.ErrInvalid:   scribev1.Reason_REASON_INVALID,
	metalog.ErrNotLeader: scribev1.Reason_REASON_NOT_LEADER,
	metalog.ErrClosed:    scribev1.Reason_REASON_SHUTTING_DOWN,
	metalog.ErrElsewhere: scribev1.Reason_REASON_ELSEWHERE,
	metalog.ErrClock:     scribev1.Reason_REASON_CLOCK_SKEW,
}

// kinds maps the kinds of refused runs to reasons.
var kinds = map[metalog.SequenceKind]scribev1.Reason{
	metalog.SequenceDuplicate:  scribev1.Reason_REASON_DUPLICATE,
	metalog.SequenceGap:        scribev1.Reason_REASON_OUT_OF_SEQUENCE,
	metalog.SequenceStaleEpoch: scribev1.Reason_REASON_STALE_PRODUCER,
}

// keyWithValue returns the key of a value, or the zero value if m does not have it.
func keyWithValue[K, V comparable](m map[K]V, value V) (key K) {
	for k, v := range m {
		if v == value {
			key = k
		}
	}
	return key
}

// faultOf describes a definite error of an engine; it returns nil for any other error.
func faultOf(err error) (*scribev1.MetalogFault, []*scribev1.SequenceConflict) {
	fault := &scribev1.MetalogFault{Reason: reasons[metalog.FindSentinel(err)]}
	if fault.GetReason() == scribev1.Reason_REASON_UNSPECIFIED {
		return nil, nil
	}
	var conflicts []*scribev1.SequenceConflict
	if e := new(metalog.RefusedError); errors.As(err, &e) {
		for _, r := range e.Refusals[:min(len(e.Refusals), metalog.MaxConflicts)] {
			fault.Refusals = append(fault.Refusals, &scribev1.ShardRefusal{Reason: reasons[metalog.FindSentinel(r.Err)], State: stateToProto(r.State)})
		}
	}
	if e := new(metalog.SequenceError); errors.As(err, &e) {
		for _, c := range e.Conflicts[:min(len(e.Conflicts), metalog.MaxConflicts)] {
			fault.Runs = append(fault.Runs, &scribev1.RunRefusal{
				Shard: uint64(c.Shard), Reason: kinds[c.Kind], Run: sequenceToProto(c.Run), Known: producerToProto(c.Known),
			})
			conflicts = append(conflicts, &scribev1.SequenceConflict{
				Shard: uint64(c.Shard), Producer: c.Run.Producer, Reason: kinds[c.Kind], Epoch: c.Known.Epoch, NextSequence: c.Known.Next,
			})
		}
		if len(fault.GetRuns()) > 0 {
			fault.Reason = fault.GetRuns()[0].GetReason()
		}
	}
	if e := new(metalog.TrimmedError); errors.As(err, &e) {
		fault.Shard, fault.Lsn, fault.FirstLsn = uint64(e.Shard), uint64(e.LSN), uint64(e.First)
	}
	if e := new(metalog.CorruptError); errors.As(err, &e) {
		fault.Shard, fault.Lsn, fault.Detail = uint64(e.Shard), uint64(e.LSN), e.Detail
	}
	if e := new(metalog.NotLeaderError); errors.As(err, &e) {
		fault.Leader = e.Leader
	}
	if e := new(metalog.ElsewhereError); errors.As(err, &e) {
		fault.Shard, fault.Lsn, fault.Engine = uint64(e.Shard), uint64(e.LSN), e.Engine
	}
	if e := new(metalog.ClockError); errors.As(err, &e) {
		fault.Time, fault.Clock = e.Time, e.Clock
	}
	return fault, conflicts
}

// fromRPC restores the engine's error from an answer. Other errors stay as they are.
func fromRPC(err error) error {
	ce := new(connect.Error)
	if err == nil || !errors.As(err, &ce) {
		return err
	}
	for _, d := range ce.Details() {
		v, derr := d.Value()
		if derr != nil {
			continue
		}
		if fault, ok := v.(*scribev1.MetalogFault); ok {
			if e := engineError(fault); e != nil {
				return &servedError{engine: e, answer: ce}
			}
		}
	}
	return err
}

// engineError rebuilds the error that faultOf described, or returns nil for a reason that this build does not know.
func engineError(fault *scribev1.MetalogFault) error {
	shard, lsn := record.ShardID(fault.GetShard()), record.LSN(fault.GetLsn())
	switch {
	case len(fault.GetRuns()) > 0:
		e := &metalog.SequenceError{}
		for _, r := range fault.GetRuns() {
			e.Conflicts = append(e.Conflicts, metalog.SequenceConflict{
				Shard: record.ShardID(r.GetShard()), Kind: keyWithValue(kinds, r.GetReason()),
				Run: sequenceFromProto(r.GetRun()), Known: producerFromProto(r.GetKnown()),
			})
		}
		return e
	case len(fault.GetRefusals()) > 0:
		e := &metalog.RefusedError{}
		for _, r := range fault.GetRefusals() {
			if why := keyWithValue(reasons, r.GetReason()); why != nil {
				e.Refusals = append(e.Refusals, metalog.Refusal{Err: why, State: stateFromProto(r.GetState())})
			}
		}
		if len(e.Refusals) > 0 {
			return e
		}
	case fault.GetReason() == scribev1.Reason_REASON_TRIMMED:
		return &metalog.TrimmedError{Shard: shard, LSN: lsn, First: record.LSN(fault.GetFirstLsn())}
	case fault.GetReason() == scribev1.Reason_REASON_CORRUPT:
		return &metalog.CorruptError{Shard: shard, LSN: lsn, Detail: fault.GetDetail()}
	case fault.GetReason() == scribev1.Reason_REASON_NOT_LEADER:
		return &metalog.NotLeaderError{Leader: fault.GetLeader()}
	case fault.GetReason() == scribev1.Reason_REASON_ELSEWHERE && fault.GetEngine() != "":
		return &metalog.ElsewhereError{Shard: shard, LSN: lsn, Engine: fault.GetEngine()}
	case fault.GetReason() == scribev1.Reason_REASON_CLOCK_SKEW:
		return &metalog.ClockError{Time: fault.GetTime(), Clock: fault.GetClock()}
	}
	return keyWithValue(reasons, fault.GetReason())
}

// servedError is an engine's error that came over RPC: it matches both errors, and has the engine's text.
type servedError struct {
	engine error
	answer *connect.Error
}

// Error implements error.
func (e *servedError) Error() string { return e.answer.Message() }

// Unwrap implements the interface of package errors.
func (e *servedError) Unwrap() []error { return []error{e.engine, e.answer} }
