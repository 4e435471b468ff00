package producer

import (
	"errors"
	"math"
	"time"

	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// frameAction is the next step for a frame after an attempt.
type frameAction uint8

const (
	acked   frameAction = 1 // it is stored, to the requested acknowledgement level
	repeat  frameAction = 2 // it is sent again
	failed  frameAction = 3 // it fails
	isolate frameAction = 4 // it is sent again, alone, since another frame may be the cause
	trim    frameAction = 5 // its first messages are stored; the rest is sent
	sampled frameAction = 6 // the server left it out by sampling; it is not sent again
)

// attemptOutcome is the classified outcome of an attempt for one frame.
type attemptOutcome struct {
	action frameAction
	// cause is the sentinel and detail the error of the attempt, unless action is acked.
	cause, detail error
	// unknown reports that this attempt may have stored the frame.
	unknown bool
	// gap reports that the server lacks messages before those of the frame.
	gap bool
	// outOfOrder reports that the frame followed one that the server has not taken.
	outOfOrder bool
	// after is the server's retry hint.
	after time.Duration
	// stored is the number of the frame's messages that are stored, if action is trim.
	stored int
}

// classifyRequest returns the outcome that an error of a whole request means for each of its frames. several reports that the
// request had more than one frame, renews that somebody renews the producer's token.
func classifyRequest(err error, several, renews bool) attemptOutcome {
	d := retry.Classify(err)
	if errors.Is(err, ErrInvalid) { // not encoded, so not sent
		d = retry.Decision{Class: retry.Invalid, Reason: scribev1.Reason_REASON_INVALID}
	}
	v := attemptOutcome{action: failed, cause: sentinelOf(d.Reason), detail: err, unknown: d.Unknown, after: d.After}
	switch {
	case errors.Is(err, ErrUnknownOutcome):
		v.action, v.cause, v.unknown = repeat, ErrUnknownOutcome, true
	case d.Class.Retryable(), renews && retry.IsLapsed(err):
		v.action = repeat
	case several && !v.unknown:
		v.action = isolate
	}
	return v
}

// classifyFrame returns the outcome that a frame's own result means. The frame has count sequences from first; renews is that of classifyRequest.
func classifyFrame(res *scribev1.FrameResult, producer, first uint64, count int, renews bool) attemptOutcome {
	info := res.GetError()
	switch {
	case info != nil:
	case res.GetSampledOut():
		return attemptOutcome{action: sampled}
	default:
		return attemptOutcome{action: acked}
	}
	err := rpc.FromInfo(info)
	v := attemptOutcome{action: failed, cause: sentinelOf(info.GetReason()), detail: err, after: retry.Hint(info, retry.LongestHint)}
	switch info.GetReason() {
	case scribev1.Reason_REASON_DUPLICATE:
		switch next := storedTo(info, producer); {
		case next >= first+uint64(count):
			return attemptOutcome{action: acked}
		case next > first:
			v.action, v.stored = trim, int(next-first)
		}
	case scribev1.Reason_REASON_INVALID:
		// The server can't accept a partly stored frame. The reason describes the frame, the conflict its stored part.
		if next := storedTo(info, producer); next > first && next < first+uint64(count) {
			v.action, v.stored, v.cause = trim, int(next-first), ErrOutOfSequence
		}
	case scribev1.Reason_REASON_OUT_OF_SEQUENCE:
		v.action, v.gap = repeat, true
	case scribev1.Reason_REASON_OUT_OF_ORDER:
		v.action, v.outOfOrder = repeat, true
	case scribev1.Reason_REASON_UNSPECIFIED:
		v.unknown = true
	default:
		v.unknown = info.GetReason() == scribev1.Reason_REASON_UNKNOWN_OUTCOME
		if retry.ClassOf(info.GetReason()).Retryable() || renews && retry.IsLapsed(err) {
			v.action = repeat
		}
	}
	return v
}

// storedTo returns the sequence up to which the producer's messages are stored, according to an error; math.MaxUint64 if the
// error has no such conflict.
func storedTo(info *scribev1.ErrorInfo, producer uint64) uint64 {
	next := uint64(math.MaxUint64)
	for _, c := range info.GetConflicts() {
		if c.GetProducer() == producer && c.GetReason() == scribev1.Reason_REASON_DUPLICATE {
			next = min(next, c.GetNextSequence())
		}
	}
	return next
}
