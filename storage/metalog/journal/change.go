package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"scribe/internal/base/backoff"
	"scribe/storage/metalog/journal/schema"
)

// change is a change of the head that is tried until its outcome is known. Every change differs from the head before it in more
// than the revision, and no two changes are alike, so a head that is like next shows that the change took effect.
type change struct {
	known, next Head
	// entry is the entry that next appends; nil if it appends none.
	entry []byte
	// uncertain says that a try failed without telling whether it took effect, or still will.
	uncertain bool
	// fence replaces next once the journal has refused a repetition of it. A refusal says nothing of the tries before; a fence that
	// takes effect does, because they can't any more.
	fence   *Head
	refusal error
}

// settle tries a change until its outcome is known. If the time is not enough, the change stays in doubt, and the error is
// ErrUnknown.
func (l *Leader) settle(ctx context.Context, c *change) error {
	transfer := time.Duration(len(c.entry)) * time.Second / slowestBytes
	within, cancel := context.WithTimeout(ctx, l.options.GiveUpAfter+transfer)
	defer cancel()
	pauses := backoff.Backoff{Min: 5 * time.Millisecond, Max: 250 * time.Millisecond, Random: l.options.Random}
	for failures := 1; ; failures++ {
		settled, err := l.tryChange(within, l.options.limitTry(failures)+transfer, c)
		if settled {
			l.options.Metrics.countResolved(c.uncertain, err)
			return err
		}
		if errors.Is(err, ErrClosed) || backoff.Sleep(within, pauses.Pause(failures)) != nil {
			l.keepDoubt(c)
			return fmt.Errorf("%w: %d tries, the last one: %w", ErrUnknown, failures, err)
		}
	}
}

// firstTry is the share of TryTimeout that the first try of a change has. A repetition of the same swap is harmless and costs little, and a
// server of the journal that passes its own lead on forgets requests on their way to it without a word.
const firstTry = 8

// limitTry returns the time limit of a try of a change, by its number from 1: it doubles, up to TryTimeout.
func (o *Options) limitTry(number int) time.Duration {
	return min(o.TryTimeout/firstTry<<min(number-1, firstTry), o.TryTimeout)
}

// tryChange tries a change once. settled says that its outcome is known, and err is the outcome then.
func (l *Leader) tryChange(ctx context.Context, limit time.Duration, c *change) (settled bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	next, entry := c.next, c.entry
	if c.fence != nil {
		next, entry = *c.fence, nil
	}
	head, err := l.journal.Swap(ctx, c.known, next, entry)
	var lost *LostError
	switch {
	case err == nil:
		l.setHead(head)
		return true, c.refusal
	case errors.As(err, &lost):
		return l.judgeLost(ctx, c, lost)
	case errors.Is(err, ErrWentBack):
		l.depose(fmt.Errorf("%w: %w", ErrDeposed, err))
		return true, fmt.Errorf("%w: %w", ErrUnknown, err)
	case errors.Is(err, ErrFull), errors.Is(err, ErrInvalid):
		return l.judgeRefused(c, err)
	default:
		c.uncertain = true
		return false, err
	}
}

// judgeRefused decides what it means that the journal refused a change.
func (l *Leader) judgeRefused(c *change, err error) (settled bool, _ error) {
	if !c.uncertain {
		return true, err
	}
	if c.fence == nil {
		fence := c.known
		fence.Beat++
		c.fence, c.refusal = &fence, err
	}
	return false, err
}

// judgeLost decides what it means that the head is not the known one any more: an earlier try of the change took effect, perhaps
// one that the engine made on its own, or another replica leads.
func (l *Leader) judgeLost(ctx context.Context, c *change, lost *LostError) (settled bool, err error) {
	switch {
	case isSameHead(lost.Head, c.next):
		l.setHead(lost.Head)
		return true, nil
	case c.fence != nil && isSameHead(lost.Head, *c.fence):
		l.setHead(lost.Head)
		return true, c.refusal
	}
	end := fmt.Errorf("%w: %w", ErrDeposed, lost)
	if c.entry == nil || lost.Head.Seq < c.next.Seq {
		l.depose(end)
		return true, end
	}
	present, err := l.hasEntry(ctx, c.next)
	switch {
	case errors.Is(err, ErrTrimmed):
		l.depose(end)
		return true, fmt.Errorf("%w: %w: %w", ErrUnknown, end, err)
	case err != nil:
		c.uncertain = true
		return false, err
	}
	l.depose(end)
	if present {
		return true, nil
	}
	return true, end
}

// hasEntry reports whether the last entry of head is the one in the journal.
func (l *Leader) hasEntry(ctx context.Context, head Head) (present bool, err error) {
	err = l.journal.Read(ctx, head.Seq, head.Seq, func(_ uint64, b []byte) error {
		e, err := schema.PeekEntry(b)
		present = err == nil && e.ID == head.Entry
		return err
	})
	return present && err == nil, err
}

// isSameHead reports whether two heads differ at most in their revisions.
func isSameHead(a, b Head) bool {
	a.Revision, b.Revision = 0, 0
	return a == b
}

// setHead records the head of a change that took effect.
func (l *Leader) setHead(head Head) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.head, l.mu.doubt = head, nil
}

func (l *Leader) keepDoubt(c *change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.doubt = c
}
