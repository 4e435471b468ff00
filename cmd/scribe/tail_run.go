package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"scribe/columnar/sql"
	"scribe/consumer"
	"scribe/internal/base/atomicfile"
)

// tailing is one run of the command. Its methods run on the goroutine that iterates, but for save.
type tailing struct {
	flags     *tailFlags
	consumer  *consumer.Consumer
	printer   *printer
	stderr    *statusLine
	signalled context.Context //nolint:containedctx // ends with a signal; that of the iteration also with the reader
	file      *checkpointFile // nil without one
	place     *place

	ctx    context.Context //nolint:containedctx // of the iteration
	finish context.CancelCauseFunc
	begun  bool // the first place is known and was saved
	// stopped is why a pause has ended the iteration.
	stopped error
	// held: the consumer's place is ahead of what was printed.
	held bool

	dirty   chan struct{} // of capacity 1: the place has changed
	rebased time.Time
	failing bool // the last save; of save alone

	gaps      uint64
	missing   uint64 // messages in gaps that know how many
	uncounted uint64 // payloads in the others
}

// saveEvery is how often the checkpoint file is brought up to date.
const saveEvery = time.Second

// errEnough ends an iteration that has brought what was asked for.
var errEnough = errors.New("enough")

// errGap goes with a gap that ends an iteration in front of it.
var errGap = errors.New("messages are missing; without --fail-on-gap the tail goes on behind them")

func (t *tailing) run(ctx context.Context) error {
	t.dirty = make(chan struct{}, 1)
	t.ctx, t.finish = context.WithCancelCause(ctx)
	defer t.finish(nil)
	saving, stopSaving := context.WithCancel(context.Background())
	var saver sync.WaitGroup
	saver.Go(func() { atomicfile.KeepSaved(saving, t.dirty, saveEvery, t.save) })
	err := t.records()
	if ferr := t.flush(); ferr != nil {
		err = ferr
	} else if !t.held {
		t.rebase(0)
	}
	stopSaving()
	saver.Wait()
	if t.gaps > 0 {
		t.stderr.say("scribe: %d gaps: %d messages are missing, and %d payloads of which nobody knows how many they held", t.gaps, t.missing, t.uncounted)
	}
	err = t.outcome(err)
	if t.file != nil && t.begun {
		err = errors.Join(err, t.file.save(t.place.text()))
	}
	return err
}

// outcome is what the end of the messages means for the caller.
func (t *tailing) outcome(err error) error {
	switch {
	case err == nil, errors.Is(err, errEnough), errors.Is(err, syscall.EPIPE):
		return nil
	case t.signalled.Err() != nil && errors.Is(err, context.Canceled):
		return t.interrupted()
	case errors.Is(err, context.Canceled):
		return nil // nobody reads any more
	case errors.As(err, new(*sql.Error)):
		return usage(fmt.Errorf("--where: %w", err))
	case errors.Is(err, consumer.ErrGap), errors.Is(err, consumer.ErrDamaged):
		return &codedError{code: exitError, err: err} // whatever the store said
	}
	return err
}

// interrupted is the end by a signal.
func (t *tailing) interrupted() error {
	if !t.flags.untilEnd && !t.flags.limited {
		return nil
	}
	text := "interrupted before everything was printed that was asked for"
	if t.file != nil {
		text += "; run again, the command goes on behind it"
	}
	return errors.New(text)
}

// records prints messages until something ends it.
func (t *tailing) records() error {
	n := uint64(0)
	for rec, err := range t.consumer.Records(t.ctx) {
		switch {
		case t.stopped != nil:
			t.held = true // by what was yielded all the same
			return t.stopped
		case err != nil:
			if err := t.gap(err); err != nil {
				return err
			}
			continue
		}
		if err := t.printer.print(&rec); err != nil {
			return err
		}
		if n++; t.flags.limited && n >= t.flags.count {
			return errEnough
		}
		if !t.printer.full() {
			continue
		}
		if err := t.flush(); err != nil {
			return err
		}
		if t.ctx.Err() != nil {
			return context.Cause(t.ctx)
		}
		t.rebase(saveEvery)
	}
	return t.stopped
}

// gap tells of messages that are missing; any other error ends the iteration.
func (t *tailing) gap(err error) error {
	gap := new(consumer.GapError)
	if !errors.As(err, &gap) {
		return err
	}
	if t.flags.failOnGap {
		t.held = true
		return fmt.Errorf("%w: %w", err, errGap)
	}
	t.gaps++
	if gap.Counted {
		t.missing += gap.Messages
	} else {
		t.uncounted += gap.Pointers()
	}
	t.stderr.say("scribe: gap: %v", err)
	if err := t.flush(); err != nil {
		return err
	}
	t.rebase(0)
	return nil
}

// pause is called by the iteration when it is about to wait: the reader should see what there is, and the checkpoint say so.
func (t *tailing) pause() {
	if t.stopped != nil || t.consumer.Checkpoint() == "" {
		return
	}
	err := t.flush()
	switch {
	case err != nil:
	case !t.begun:
		err = t.begin()
	case t.place.moved():
		t.rebase(saveEvery)
	default:
		t.rebase(time.Minute) // for shards that appeared; what nothing was printed of need not be saved each second
	}
	if err != nil {
		t.stopped = err
		t.finish(err)
	}
}

// begin is called once, in front of the first message.
func (t *tailing) begin() error {
	t.rebase(0)
	if t.file != nil {
		// Better now than after messages that can't be accounted for.
		if err := t.file.save(t.place.text()); err != nil {
			return err
		}
	}
	t.begun = true
	if t.flags.limited && t.flags.count == 0 {
		return errEnough
	}
	return nil
}

// flush hands over what was printed; only then it counts as such.
func (t *tailing) flush() error {
	err := t.printer.flush(t.ctx)
	t.held = t.held || err != nil
	t.changed()
	return err
}

// rebase takes the consumer's own place, which knows of shards without messages and of gaps, unless it did so less than some time ago.
// All that was yielded must have been printed.
func (t *tailing) rebase(atMost time.Duration) {
	if t.file == nil || time.Since(t.rebased) < atMost {
		return
	}
	if text := t.consumer.Checkpoint(); text != "" {
		t.rebased = time.Now()
		t.place.rebase(text)
		t.changed()
	}
}

// changed lets the file be written soon. The first time is not left to that.
func (t *tailing) changed() {
	if t.file == nil || !t.begun {
		return
	}
	select {
	case t.dirty <- struct{}{}:
	default: // who saves will see this, too
	}
}

// save brings the file up to date, on a goroutine of its own. What can't be saved now is tried again: an old place repeats messages
// after a crash, and an end now would do so for certain.
func (t *tailing) save() {
	err := t.file.save(t.place.text())
	switch {
	case err != nil && !t.failing:
		t.stderr.say("scribe: %v; trying again", err)
	case err == nil && t.failing:
		t.stderr.say("scribe: checkpoint file %s is written again", t.file.path)
	}
	if t.failing = err != nil; t.failing {
		t.changed()
	}
}
