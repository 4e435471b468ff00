package producer

import (
	"errors"
	"math"
	"time"

	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// frameAction is what happens to a frame after an attempt.
type frameAction uint8

const (
	acked   frameAction = 1 // it is stored, as far as was asked
	repeat  frameAction = 2 // it is sent again
	failed  frameAction = 3 // it is given up
	isolate frameAction = 4 // it is sent again, alone, since the cause may be another frame's
	trim    frameAction = 5 // its first messages are stored: the rest is sent
	sampled frameAction = 6 // the server left it out on purpose: it is neither stored nor sent again
)

// attemptOutcome is what an attempt means for a frame.
type attemptOutcome struct {
	action frameAction
	// cause is the sentinel and detail what was said, unless acked.
	cause, detail error
	// unknown says that this attempt may have stored the frame.
	unknown bool
	// gap says that the server misses messages before the frame's.
	gap bool
	// after is the server's hint when to try again.
	after time.Duration
	// stored is how many of the frame's messages are stored, with trim.
	stored int
}

// classifyRequest says what an error of a whole request means for each of its frames; several says that there was more than one.
func classifyRequest(err error, several bool) attemptOutcome {
	d := retry.Classify(err)
	if errors.Is(err, ErrInvalid) { // not encoded, so not sent
		d = retry.Decision{Class: retry.Invalid, Reason: scribev1.Reason_REASON_INVALID}
	}
	v := attemptOutcome{action: failed, cause: sentinelOf(d.Reason), detail: err, unknown: d.Unknown, after: d.After}
	switch {
	case errors.Is(err, ErrUnknownOutcome):
		v.action, v.cause, v.unknown = repeat, ErrUnknownOutcome, true
	case d.Class.Retryable():
		v.action = repeat
	case several && !v.unknown:
		v.action = isolate
	}
	return v
}

// classifyFrame says what a frame's own result means. first and count are its sequences.
func classifyFrame(res *scribev1.FrameResult, producer, first uint64, count int) attemptOutcome {
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
		// A frame of which a part is stored can't be taken as it is: the reason is about the frame, the conflict about the part.
		if next := storedTo(info, producer); next > first && next < first+uint64(count) {
			v.action, v.stored, v.cause = trim, int(next-first), ErrOutOfSequence
		}
	case scribev1.Reason_REASON_OUT_OF_SEQUENCE:
		v.action, v.gap = repeat, true
	case scribev1.Reason_REASON_UNSPECIFIED:
		v.unknown = true
	default:
		v.unknown = info.GetReason() == scribev1.Reason_REASON_UNKNOWN_OUTCOME
		if retry.ClassOf(info.GetReason()).Retryable() {
			v.action = repeat
		}
	}
	return v
}

// storedTo is the sequence up to which an error says that a producer's messages are stored; the largest when it does not say.
func storedTo(info *scribev1.ErrorInfo, producer uint64) uint64 {
	next := uint64(math.MaxUint64)
	for _, c := range info.GetConflicts() {
		if c.GetProducer() == producer && c.GetReason() == scribev1.Reason_REASON_DUPLICATE {
			next = min(next, c.GetNextSequence())
		}
	}
	return next
}
