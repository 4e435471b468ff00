package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"scribe/internal/base/entropy"
	"scribe/storage/metalog/journal/schema"
)

// Options configure a leader. Every zero field but URL has a default.
type Options struct {
	// URL is where this replica serves writes, for others to find it; at most schema.MaxURL bytes.
	URL string
	// TryTimeout bounds one try of a change, beside the time that its bytes take; 0 means 1 s. The first tries have less.
	TryTimeout time.Duration
	// GiveUpAfter bounds a change with all its repetitions, beside the time that its bytes take; 0 means 2.5 s.
	GiveUpAfter time.Duration
	// Random draws ids and jitter; nil is the machine's randomness.
	Random *entropy.Source
	// Metrics counts; nil counts nothing.
	Metrics *Metrics
}

// slowestBytes is the rate in bytes a second that changes are given time for.
const slowestBytes = 4 << 20

func (o Options) withDefaults() Options {
	o.TryTimeout = cmp.Or(o.TryTimeout, time.Second)
	o.GiveUpAfter = cmp.Or(o.GiveUpAfter, 2500*time.Millisecond)
	if o.Metrics == nil {
		o.Metrics = newUnregistered()
	}
	return o
}

// Times are the times that an append or a beat tells, in Unix µs. A time below one that was told before has no effect.
type Times struct {
	// Time is the time of the appended group; of a beat, a watermark: no later entry has a time below it.
	Time int64
	// Bound is the bound of the leader's clock: it tells no time above it before a later change has raised it. 0 leaves it.
	Bound int64
}

// Leader appends to a journal until it is deposed. Its methods are safe for concurrent use, and wait for each other: one change is
// in flight.
//
// After ErrDeposed all methods return ErrDeposed for ever. After an ErrUnknown all methods return ErrUnknown until Resolve has
// found the outcome.
type Leader struct {
	journal Journal
	options Options
	encoder *schema.Encoder
	owner   ID
	// turn holds a token while no change is in flight. Who has it owns encoder.
	turn chan struct{}
	mu   struct {
		sync.Mutex
		// head is the head that this leader wrote last.
		head Head
		// doubt is the change whose outcome is unknown, nil for none.
		doubt *change
		// end is why the leader does not lead any more, nil while it does.
		end error
	}
}

// Lead takes over. The caller has applied the journal up to applied, and known is the head that goes exactly so far; otherwise the
// error is ErrInvalid. It returns ErrDeposed, as *LostError with the present head, when the head changed since: apply what is new, and decide again. With ErrUnknown and
// every error of the journal's own, the takeover may have happened or may still happen: nobody leads then, and another takeover
// ends it.
func Lead(ctx context.Context, j Journal, known Head, applied Position, o Options) (*Leader, error) {
	if applied != known.Position() {
		return nil, fmt.Errorf("%w: take over at entry %d with chain %v, entry %d with chain %v was applied", ErrInvalid, known.Seq, known.Chain, applied.Seq, applied.Chain)
	}
	if err := CheckDetached(known); err != nil {
		return nil, fmt.Errorf("take over in term %d: %w", known.Term+1, err)
	}
	encoder, err := schema.NewEncoder()
	if err != nil {
		return nil, err
	}
	l := &Leader{journal: j, options: o.withDefaults(), encoder: encoder, turn: make(chan struct{}, 1)}
	l.options.Random.Read(l.owner[:])
	next := known
	next.Term, next.Owner, next.Leader, next.Beat = known.Term+1, l.owner, o.URL, known.Beat+1
	l.mu.head = known
	if err := ValidateSwap(known, next, nil); err != nil {
		return nil, err
	}
	if err := l.settle(ctx, &change{known: known, next: next}); err != nil {
		return nil, fmt.Errorf("take over in term %d: %w", next.Term, err)
	}
	l.turn <- struct{}{}
	return l, nil
}

// Head returns the head that the leader wrote last.
func (l *Leader) Head() Head {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.head
}

// Append appends an entry. It does not keep payload's memory. When it returns nil the entry is durable, and the caller applies it.
//
// ErrFull, ErrInvalid and ErrDeposed are definite, and so is an error of ctx: the entry is not in the journal and will not be. After
// ErrFull the leader may go on. ErrUnknown: see Resolve. An error may be ErrDeposed and ErrUnknown at once: reading the journal
// tells, unless the entry was trimmed.
func (l *Leader) Append(ctx context.Context, payload []byte, t Times) error {
	start := time.Now()
	err := l.changeHead(ctx, func(next *Head) ([]byte, error) { return l.composeEntry(next, payload, t) })
	l.options.Metrics.countAppend(err, time.Since(start))
	return err
}

// composeEntry encodes the entry that moves next on.
func (l *Leader) composeEntry(next *Head, payload []byte, t Times) ([]byte, error) {
	advanceTimes(next, t)
	e := Entry{Seq: next.Seq + 1, Term: next.Term, Before: next.Chain, Time: next.Time, Payload: payload}
	l.options.Random.Read(e.ID[:])
	b, err := l.encoder.Encode(e)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	next.Seq, next.Entry, next.Chain = e.Seq, e.ID, schema.ChainAfter(b)
	l.options.Metrics.countBytes(len(payload), len(b))
	return b, nil
}

// Beat tells the others that this replica leads, and the times. A leader that appends need not beat.
func (l *Leader) Beat(ctx context.Context, t Times) error {
	return l.changeHead(ctx, func(next *Head) ([]byte, error) {
		next.Beat++
		advanceTimes(next, t)
		return nil, nil
	})
}

// RecordSnapshot tells that a snapshot up to an entry can be read by every replica. It must not be above the last entry. Entries
// up to it may be trimmed from then on, see Journal.Trim; the others never are. A lower number than before has no effect.
func (l *Leader) RecordSnapshot(ctx context.Context, seq uint64) error {
	return l.changeHead(ctx, func(next *Head) ([]byte, error) {
		next.Beat++
		next.Snapshot = max(next.Snapshot, seq)
		return nil, nil
	})
}

// HandOver ends the leadership in order: the next replica takes over without waiting. t.Bound is the newest time that the leader
// has told. It may be below the bound before, so that the next leader's clock need not wait for the rest of that.
func (l *Leader) HandOver(ctx context.Context, t Times) error { return l.endLead(ctx, t, "") }

// DetachTo ends the journal in order, as HandOver does, but nobody leads it any more: the node of a name takes the metadata along, and goes
// on without a journal.
func (l *Leader) DetachTo(ctx context.Context, t Times, node string) error {
	if node == "" || len(node) > schema.MaxDetached {
		return fmt.Errorf("%w: detach to a node with a name of %d bytes, want 1 to %d", ErrInvalid, len(node), schema.MaxDetached)
	}
	return l.endLead(ctx, t, node)
}

func (l *Leader) endLead(ctx context.Context, t Times, detached string) error {
	err := l.changeHead(ctx, func(next *Head) ([]byte, error) {
		next.Beat++
		next.Owner, next.Leader, next.Detached = ID{}, "", detached
		advanceTimes(next, Times{Time: t.Time})
		if t.Bound != 0 {
			next.Bound = max(t.Bound, next.Time)
		}
		return nil, nil
	})
	if err == nil {
		l.depose(fmt.Errorf("%w: it has handed over", ErrDeposed))
	}
	return err
}

// Resolve finds out the outcome of the change that returned ErrUnknown. applied says that it took effect: the caller goes on as if
// the call had returned nil. Without applied and without an error, or with ErrDeposed alone, it did not and never will. ErrUnknown
// means that the time was not enough again.
func (l *Leader) Resolve(ctx context.Context) (applied bool, err error) {
	if err := l.takeTurn(ctx); err != nil {
		return false, err
	}
	defer l.giveTurn()
	doubt, end := l.state()
	if doubt == nil {
		return false, end
	}
	err = l.settle(ctx, doubt)
	if errors.Is(err, ErrUnknown) || errors.Is(err, ErrDeposed) {
		return false, err
	}
	return err == nil, nil
}

// changeHead makes one change: compose gets the present head and turns it into the next one.
func (l *Leader) changeHead(ctx context.Context, compose func(next *Head) ([]byte, error)) error {
	if err := l.takeTurn(ctx); err != nil {
		return err
	}
	defer l.giveTurn()
	doubt, end := l.state()
	if end != nil {
		return end
	}
	if doubt != nil {
		return fmt.Errorf("%w: that of the change before has to be resolved first", ErrUnknown)
	}
	known := l.Head()
	next := known
	entry, err := compose(&next)
	if err == nil {
		err = ValidateSwap(known, next, entry)
	}
	if err != nil {
		return err
	}
	return l.settle(ctx, &change{known: known, next: next, entry: entry})
}

// advanceTimes raises the times of a head.
func advanceTimes(h *Head, t Times) {
	h.Time, h.Bound = max(h.Time, t.Time), max(h.Bound, t.Bound)
}

// takeTurn waits until no change is in flight. Its error is definite.
func (l *Leader) takeTurn(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-l.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Leader) giveTurn() { l.turn <- struct{}{} }

func (l *Leader) state() (doubt *change, end error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.doubt, l.mu.end
}

// depose ends the leadership; the first reason counts.
func (l *Leader) depose(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.doubt, l.mu.end = nil, cmp.Or(l.mu.end, err)
}
