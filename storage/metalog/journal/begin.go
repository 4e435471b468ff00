package journal

import (
	"context"
	"errors"
	"fmt"
)

// BeginAt begins a journal that was never written at a position above 0, as if all entries up to there had been trimmed: what the logs hold
// by then is in a snapshot, which every replica needs, and which must be readable before the call. All times that were ever told are at
// most t.Bound.
//
// It returns the head also if an earlier call with the same arguments began the journal, and nothing has changed since. ErrLost, as
// *LostError with the present head: the journal was begun before. After other errors the outcome is unknown, and the call can be repeated.
func BeginAt(ctx context.Context, j Journal, at Position, t Times) (Head, error) {
	if at.Seq == 0 {
		return Head{}, fmt.Errorf("%w: a journal that begins with a snapshot begins after an entry", ErrInvalid)
	}
	// Revision 0 is that of a journal that was never written.
	known := Head{Seq: at.Seq, Chain: at.Chain, Time: t.Time, Bound: t.Bound}
	next := known
	next.Beat, next.Snapshot = 1, at.Seq
	head, err := j.Swap(ctx, known, next, nil)
	if lost, ok := errors.AsType[*LostError](err); ok && isSameHead(lost.Head, next) {
		return lost.Head, nil
	}
	return head, err
}

// CheckDetached returns a *DetachedError if the journal has ended with a head.
func CheckDetached(head Head) error {
	if head.Detached == "" {
		return nil
	}
	return &DetachedError{To: head.Detached}
}
