package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"scribe/columnar/sql"
	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/base/atomicfile"
	"scribe/internal/base/lifecycle"
	"scribe/internal/base/units"
)

// tailRun is one run of the command. Its methods run on the iterating goroutine, except saveCheckpoint.
type tailRun struct {
	flags     *tailFlags
	consumer  *consumer.Consumer
	printer   *recordPrinter
	stderr    *statusLine
	signalled context.Context //nolint:containedctx // ends with a signal; that of the iteration also with the reader
	file      *checkpointFile // nil without one
	position  *outputPosition

	ctx    context.Context //nolint:containedctx // of the iteration
	finish context.CancelCauseFunc
	begun  bool // the first place is known and was saved
	// stopped is the error with which a flush between messages ended the iteration.
	stopped error
	// held means that the consumer's position is ahead of the printed messages.
	held bool

	dirty   lifecycle.WakeChannel // the place has changed
	rebased time.Time
	failing bool // the last save; of save alone

	gaps      uint64
	missing   uint64 // messages in gaps that know how many
	uncounted uint64 // payloads in the others
}

// saveEvery is how often the checkpoint file is updated.
const saveEvery = time.Second

// errEnough ends an iteration that has printed the requested number of messages.
var errEnough = errors.New("enough")

// errGap is added to a gap that ends an iteration, which stops before it.
var errGap = errors.New("messages are missing; without --fail-on-gap the tail skips them")

func (t *tailRun) printAll(ctx context.Context) error {
	t.dirty = lifecycle.NewWakeChannel()
	t.ctx, t.finish = context.WithCancelCause(ctx)
	defer t.finish(nil)
	saving, stopSaving := context.WithCancel(context.Background())
	var saver sync.WaitGroup
	saver.Go(func() { atomicfile.KeepSaved(saving, t.dirty, saveEvery, t.saveCheckpoint) })
	err := t.printRecords(t.consumer.Records(t.ctx), t.reportGap, t.flushFull)
	if ferr := t.flushPrinted(); ferr != nil {
		err = ferr
	} else if !t.held {
		t.rebasePosition(0)
	}
	stopSaving()
	saver.Wait()
	t.reportMissing()
	err = t.endError(err)
	if t.file != nil && t.begun {
		err = errors.Join(err, t.file.saveText(t.position.checkpointText()))
	}
	return err
}

// endError returns the command's error for the error that ended the iteration.
func (t *tailRun) endError(err error) error {
	switch {
	case err == nil, errors.Is(err, errEnough), errors.Is(err, syscall.EPIPE):
		return nil
	case t.signalled.Err() != nil && errors.Is(err, context.Canceled):
		return t.interruptedError()
	case errors.Is(err, context.Canceled):
		return nil // the reader of standard output exited
	case errors.As(err, new(*sql.Error)):
		return usageError(fmt.Errorf("--where: %w", err))
	case errors.Is(err, columns.ErrKeys):
		return usageError(fmt.Errorf("--key: %w", err))
	case errors.Is(err, consumer.ErrGap), errors.Is(err, consumer.ErrDamaged):
		return &codedError{code: exitError, err: err} // whatever the cause
	}
	return err
}

// endLast is the end of a tail in or after its last messages.
func (t *tailRun) endLast(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && t.signalled.Err() != nil {
		return errors.New("interrupted before the last messages were printed")
	}
	return t.endError(err)
}

// interruptedError returns the command's error after a signal.
func (t *tailRun) interruptedError() error {
	if !t.flags.untilEnd && !t.flags.limited {
		return nil
	}
	text := "interrupted before everything was printed"
	if t.file != nil {
		text += "; run it again to continue from the checkpoint"
	}
	return errors.New(text)
}

// printRecords prints messages until something ends it. passGap handles the error of a gap, and returns any other; passOn is called
// after each message.
func (t *tailRun) printRecords(records iter.Seq2[consumer.Record, error], passGap func(error) error, passOn func() error) error {
	n := uint64(0)
	for rec, err := range records {
		switch {
		case t.stopped != nil:
			t.held = true // by what was yielded all the same
			return t.stopped
		case err != nil:
			if err := passGap(err); err != nil {
				return err
			}
			continue
		}
		if err := t.printer.printRecord(&rec); err != nil {
			return err
		}
		if n++; t.flags.limited && n >= t.flags.count {
			return errEnough
		}
		if err := passOn(); err != nil {
			return err
		}
	}
	return t.stopped
}

// flushFull passes the printed messages on when there are many.
func (t *tailRun) flushFull() error {
	if !t.printer.bufferFull() {
		return nil
	}
	if err := t.flushPrinted(); err != nil {
		return err
	}
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	t.rebasePosition(saveEvery)
	return nil
}

// reportGap reports missing messages. It returns any other error, which ends the iteration.
func (t *tailRun) reportGap(err error) error {
	if errors.Is(err, consumer.ErrGap) && t.flags.failOnGap {
		t.held = true
		return fmt.Errorf("%w: %w", err, errGap)
	}
	if err := t.countGap(err); err != nil {
		return err
	}
	if err := t.flushPrinted(); err != nil {
		return err
	}
	t.rebasePosition(0)
	return nil
}

// countGap counts and names missing messages. It returns any other error.
func (t *tailRun) countGap(err error) error {
	gap := new(consumer.GapError)
	if !errors.As(err, &gap) {
		return err
	}
	t.gaps++
	if gap.Counted {
		t.missing += gap.Messages
	} else {
		t.uncounted += gap.Pointers()
	}
	t.stderr.printLine("scribe: gap: %v", err)
	return nil
}

// reportMissing tells at the end how many messages were missing.
func (t *tailRun) reportMissing() {
	if t.gaps > 0 {
		t.stderr.printLine("scribe: %d gaps: %d messages are missing, and %d payloads with unknown message counts", t.gaps, t.missing, t.uncounted)
	}
}

// flushOnPause is called before the iteration waits: it passes the printed messages on and updates the checkpoint.
func (t *tailRun) flushOnPause() {
	if t.stopped != nil || t.consumer.Checkpoint() == "" {
		return
	}
	err := t.flushPrinted()
	switch {
	case err != nil:
	case !t.begun:
		err = t.saveStart()
	case t.position.hasAdvanced():
		t.rebasePosition(saveEvery)
	default:
		t.rebasePosition(time.Minute) // for shards that appeared; what nothing was printed of need not be saved each second
	}
	if err != nil {
		t.stopped = err
		t.finish(err)
	}
}

// saveStart is called once, before the first message.
func (t *tailRun) saveStart() error {
	t.rebasePosition(0)
	if t.file != nil {
		// An error is better now than after messages that can't be recorded.
		if err := t.file.saveText(t.position.checkpointText()); err != nil {
			return err
		}
	}
	t.begun = true
	if t.flags.limited && t.flags.count == 0 {
		return errEnough
	}
	return nil
}

// flushPrinted passes the buffered messages to standard output. Only then do they count as printed.
func (t *tailRun) flushPrinted() error {
	err := t.printer.flushBuffer(t.ctx)
	t.held = t.held || err != nil
	t.requestSave()
	return err
}

// rebasePosition sets the base of the position to the consumer's checkpoint, which includes empty shards and gaps, at most once per atMost.
// All yielded messages must have been printed.
func (t *tailRun) rebasePosition(atMost time.Duration) {
	if t.file == nil || time.Since(t.rebased) < atMost {
		return
	}
	if text := t.consumer.Checkpoint(); text != "" {
		t.rebased = time.Now()
		t.position.setBase(text)
		t.requestSave()
	}
}

// requestSave asks for a save of the file soon. saveStart makes the first save itself.
func (t *tailRun) requestSave() {
	if t.file != nil && t.begun {
		t.dirty.WakeUp()
	}
}

// saveCheckpoint updates the file, on its own goroutine. After an error it tries again: an old position repeats messages after a crash, but
// ending now would repeat them for certain.
func (t *tailRun) saveCheckpoint() {
	err := t.file.saveText(t.position.checkpointText())
	switch {
	case err != nil && !t.failing:
		t.stderr.printLine("scribe: %v; trying again", err)
	case err == nil && t.failing:
		t.stderr.printLine("scribe: checkpoint file %s is written again", t.file.path)
	}
	if t.failing = err != nil; t.failing {
		t.requestSave()
	}
}

// showProgress shows the progress if standard error is a terminal and standard output is not. The returned function stops it.
func (t *tailRun) showProgress(stdout io.Writer) (stop func()) {
	if !isTerminal(t.stderr.w) || isTerminal(stdout) {
		return func() {}
	}
	rate := newByteRate()
	return t.stderr.keepShowing(func() string {
		bytes := t.printer.bytes.Load()
		return fmt.Sprintf("%d messages, %s, %s/s, %v behind", t.printer.messages.Load(), units.About(bytes), units.About(rate.measureRate(bytes)), t.consumer.Lag().Round(100*time.Millisecond))
	})
}

// groupFlags are the flags of a tail that is a member of a group.
type groupFlags struct {
	name    string
	member  string
	sharing string
	// delivery counts what the member prints.
	delivery bool
}

func (f *groupFlags) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.name, "group", "", "read as a member of this consumer group")
	fs.StringVar(&f.member, "member", "", "name of the member: a restart under the same name resumes at once (default: a new name)")
	fs.StringVar(&f.sharing, "sharing", "auto", "how a new group shares the category: auto, pointers or shards")
	fs.BoolVar(&f.delivery, "delivery", true, "with --group: tell the cell how many messages the group was given, for scribe audit")
}

var sharings = map[string]consumer.Sharing{
	"auto": consumer.ShareAuto, "pointers": consumer.SharePointers, "shards": consumer.ShareShards,
}

// groupOptions returns the consumer options of a member.
func (f *tailFlags) groupOptions() ([]consumer.Option, error) {
	sharing, ok := sharings[f.group.sharing]
	var errs []error
	if !ok {
		errs = append(errs, fmt.Errorf("invalid value %q for --sharing: want auto, pointers or shards", f.group.sharing))
	}
	for flag, given := range map[string]bool{"--checkpoint": f.checkpoint != "", "--shards": len(f.shards) > 0, "--fail-on-gap": f.failOnGap} {
		if given {
			errs = append(errs, fmt.Errorf("%s can't be combined with --group: the group keeps the position, and reads everything", flag))
		}
	}
	start, err := startOf(f.from)
	errs = append(errs, err)
	countEvery := time.Duration(0)
	if f.group.delivery {
		countEvery = countInterval
	}
	return []consumer.Option{
		consumer.WithStart(start), consumer.WithDeliveryReports(countEvery), consumer.WithMember(f.group.member), consumer.WithSharing(sharing), consumer.WithAutoCommit(0),
		consumer.WithMemberDescription("scribe tail"),
	}, errors.Join(errs...)
}

// groupTailRun is one run of the command as a member. The group never calls its methods concurrently.
type groupTailRun struct {
	tailRun

	group     *consumer.Group
	committed time.Time
}

func (f *tailFlags) tailGroup(cmd *cobra.Command, server, category string, format func([]byte, *consumer.Record) ([]byte, error), stderr *statusLine, opts []consumer.Option) (err error) {
	more, err := f.groupOptions()
	if err != nil {
		return usageError(err)
	}
	t := &groupTailRun{tailRun: tailRun{flags: f, stderr: stderr, signalled: cmd.Context(), position: new(outputPosition)}}
	if err := requireCategory(cmd.Context(), server, "tail "+category, category, nil); err != nil {
		if cmd.Context().Err() != nil {
			return t.interruptedError()
		}
		return err
	}
	more = append(more, consumer.WithOnPause(t.pauseGroup), consumer.WithOnRevoked(func(r consumer.Rebalance) {
		if !r.Lost {
			t.pauseGroup()
		}
	}))
	if t.group, err = consumer.NewGroup(server, category, f.group.name, append(opts, more...)...); err != nil {
		return usageError(err)
	}
	t.printer = &recordPrinter{format: format, out: newOutput(cmd.OutOrStdout()), position: t.position}
	ctx, stop := untilReaderGone(cmd.Context(), cmd.OutOrStdout())
	defer stop()
	t.ctx, t.finish = context.WithCancelCause(ctx)
	defer t.finish(nil)
	err = t.printGroupRecords()
	// Printed messages are committed even after an error: they must not be printed again.
	if saved := t.commitPrinted(); err == nil {
		err = saved
	}
	t.reportMissing()
	return errors.Join(t.endError(err), t.group.Close())
}

// printGroupRecords prints messages until something ends it.
func (t *groupTailRun) printGroupRecords() error {
	if t.flags.limited && t.flags.count == 0 {
		return t.group.Join(t.ctx)
	}
	err := t.printRecords(t.group.Records(t.ctx), t.countGap, func() error {
		if t.printer.bufferFull() || time.Since(t.committed) >= saveEvery {
			return t.commitPrinted()
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// pauseGroup is called when all available messages were printed.
func (t *groupTailRun) pauseGroup() {
	if err := t.commitPrinted(); err != nil {
		t.finish(err)
	}
}

// commitTimeout bounds a commit: an unavailable cell must not keep the command from ending.
const commitTimeout = 10 * time.Second

// commitPrinted passes the buffered messages to standard output, then commits them.
func (t *groupTailRun) commitPrinted() error {
	if err := t.printer.flushBuffer(t.ctx); err != nil {
		t.stopped = err
		return err
	}
	if t.stopped != nil {
		return t.stopped
	}
	t.committed = time.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), commitTimeout)
	defer cancel()
	err := t.group.Commit(ctx)
	switch {
	case errors.Is(err, consumer.ErrFenced):
		t.stderr.printLine("scribe: %v: another member prints some messages of the last second again", err)
		return nil
	case errors.Is(err, context.DeadlineExceeded) && t.ctx.Err() == nil:
		t.stderr.printLine("scribe: %v; trying again", err)
		return nil
	}
	return err
}
