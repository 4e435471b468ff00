package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"scribe/consumer"
)

// groupFlags are the flags of a tail that is a member of a group.
type groupFlags struct {
	name    string
	member  string
	sharing string
}

func (f *groupFlags) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.name, "group", "", "read as a member of this consumer group")
	fs.StringVar(&f.member, "member", "", "name of the member: a restart under the same name resumes at once (default: a new name)")
	fs.StringVar(&f.sharing, "sharing", "auto", "how a new group shares the category: auto, pointers or shards")
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
	return []consumer.Option{
		consumer.WithStart(start), consumer.WithMember(f.group.member), consumer.WithSharing(sharing), consumer.WithAutoCommit(0),
		consumer.WithMemberDescription("scribe tail"),
	}, errors.Join(errs...)
}

// groupTailRun is one run of the command as a member. The group never calls its methods concurrently.
type groupTailRun struct {
	tailRun

	group     *consumer.Group
	committed time.Time
	failed    error // of a commit
}

func (f *tailFlags) tailGroup(cmd *cobra.Command, server, category string, format func([]byte, *consumer.Record) ([]byte, error), stderr *statusLine, opts []consumer.Option) (err error) {
	more, err := f.groupOptions()
	if err != nil {
		return usageError(err)
	}
	t := &groupTailRun{tailRun: tailRun{flags: f, stderr: stderr, signalled: cmd.Context(), position: new(outputPosition)}}
	if err := checkCategory(cmd.Context(), server, "tail "+category, category, nil); err != nil {
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
	n := uint64(0)
	for rec, err := range t.group.Records(t.ctx) {
		switch {
		case t.failed != nil:
			return t.failed
		case err != nil:
			if err := t.countGap(err); err != nil {
				return err
			}
			continue
		}
		if err := t.printer.printRecord(&rec); err != nil {
			return err
		}
		if n++; t.flags.limited && n >= t.flags.count {
			return nil
		}
		if t.printer.bufferFull() || time.Since(t.committed) >= saveEvery {
			if err := t.commitPrinted(); err != nil {
				return err
			}
		}
	}
	return t.failed
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
		t.failed = err
		return err
	}
	if t.failed != nil {
		return t.failed
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
