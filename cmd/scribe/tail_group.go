package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"scribe/consumer"
)

// groupTail is a tail that is a member of a consumer group: it commits what standard output has taken. Its methods run on the goroutine
// that iterates.
type groupTail struct {
	flags   *tailFlags
	group   *consumer.Group
	printer *printer
	stderr  *statusLine
	ctx     context.Context //nolint:containedctx // of the iteration

	printed   bool      // messages went out that are not committed
	committed time.Time // when that was tried last
	gaps      uint64
	failed    error // of a pause
}

// commitEvery is how often a tail commits while messages come.
const commitEvery = time.Second

// lastCommit bounds the commit at the end, when what the command waits for is a person.
const lastCommit = 5 * time.Second

// alone reports the flags that mean nothing beside --group.
func (f *tailFlags) alone() error {
	switch {
	case f.checkpoint != "":
		return errors.New("--checkpoint beside --group: the group keeps the place")
	case len(f.shards) > 0:
		return errors.New("--shards beside --group: the members of a group share all shards")
	case f.untilEnd:
		return errors.New("--until-end beside --group: where a member's part ends changes while others come and go; -n stops after so many messages")
	case f.limited && f.count == 0:
		return errors.New("-n 0 beside --group: there is no place to be kept")
	}
	return nil
}

func tailGroup(cmd *cobra.Command, server, category string, f *tailFlags) (err error) {
	if err := f.alone(); err != nil {
		return usage(err)
	}
	format, err := recordFormat(f.output)
	if err != nil {
		return usage(err)
	}
	stderr := newStatusLine(cmd.ErrOrStderr())
	opts, err := f.options(stderr)
	if err != nil {
		return usage(err)
	}
	start, err := f.start()
	if err != nil {
		return err
	}
	if _, err := describeOnce(cmd.Context(), server, category); err != nil {
		return err
	}
	t := &groupTail{flags: f, stderr: stderr, committed: time.Now()}
	t.group, err = consumer.NewGroup(server, category, f.group, append(opts, consumer.WithStart(start), consumer.WithMemberDescription("scribe tail"),
		consumer.WithAutoCommit(0), consumer.WithOnPause(t.pause), consumer.WithOnRevoked(func(consumer.Rebalance) { t.pause() }))...)
	if err != nil {
		return usage(err)
	}
	defer func() { err = errors.Join(err, t.group.Close()) }()
	t.printer = &printer{format: format, out: newOutput(cmd.OutOrStdout()), place: new(place)}
	ctx, stop := untilUnread(cmd.Context(), cmd.OutOrStdout())
	defer stop()
	t.ctx = ctx
	err = t.records()
	if ferr := t.flush(); ferr != nil {
		err = ferr
	}
	last, done := context.WithTimeout(context.WithoutCancel(cmd.Context()), lastCommit)
	defer done()
	cerr := t.commit(last)
	if t.gaps > 0 {
		stderr.say("scribe: %d gaps", t.gaps)
	}
	switch {
	case err == nil, errors.Is(err, errEnough), errors.Is(err, syscall.EPIPE):
		return cerr
	case errors.Is(err, context.Canceled):
		if cmd.Context().Err() != nil && f.limited {
			return errors.New("interrupted before everything was printed that was asked for")
		}
		return cerr
	}
	return errors.Join(err, cerr)
}

// records prints messages until something ends it.
func (t *groupTail) records() error {
	n := uint64(0)
	for rec, err := range t.group.Records(t.ctx) {
		if t.failed != nil {
			return t.failed
		}
		if err != nil {
			if err := t.trouble(err); err != nil {
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
		if !t.printer.full() && time.Since(t.committed) < commitEvery {
			continue
		}
		if err := t.flush(); err != nil {
			return err
		}
		if time.Since(t.committed) >= commitEvery {
			if err := t.commit(t.ctx); err != nil {
				return err
			}
		}
	}
	return t.failed
}

// trouble tells of what does not end the iteration, and returns what does.
func (t *groupTail) trouble(err error) error {
	switch gap := new(consumer.GapError); {
	case errors.Is(err, consumer.ErrFenced):
		t.stderr.say("scribe: %v", err)
		return nil
	case !errors.As(err, &gap):
		return err
	case t.flags.failOnGap:
		return fmt.Errorf("%w: %w", err, errGap)
	}
	t.gaps++
	t.stderr.say("scribe: gap: %v", err)
	return nil
}

// pause is called when the iteration is about to wait, or is about to give messages to others.
func (t *groupTail) pause() {
	if t.failed == nil {
		t.failed = t.flush()
	}
	if t.failed == nil {
		t.failed = t.commit(t.ctx)
	}
}

func (t *groupTail) flush() error {
	t.printed = t.printed || t.printer.waiting > 0
	return t.printer.flush(t.ctx)
}

// commit makes the group's what went out. What a pipe did not take comes again, to whoever has the part then.
func (t *groupTail) commit(ctx context.Context) error {
	t.committed = time.Now()
	if !t.printed || t.printer.waiting > 0 {
		return nil
	}
	err := t.group.Commit(ctx)
	switch {
	case errors.Is(err, consumer.ErrFenced):
		t.stderr.say("scribe: %v", err)
	case err != nil:
		return err
	}
	t.printed = false
	return nil
}
