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

// groupFlags are those of a tail that is a member of a group.
type groupFlags struct {
	name    string
	member  string
	sharing string
}

func (f *groupFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.name, "group", "", "read as a member of this consumer group")
	fs.StringVar(&f.member, "member", "", "name in the group: one that is started again under its name goes on at once (default: a new one)")
	fs.StringVar(&f.sharing, "sharing", "auto", "how a new group shares the category: auto, pointers or shards")
}

var sharings = map[string]consumer.Sharing{
	"auto": consumer.ShareAuto, "pointers": consumer.SharePointers, "shards": consumer.ShareShards,
}

// options are those of the member.
func (f *tailFlags) groupOptions() ([]consumer.Option, error) {
	sharing, ok := sharings[f.group.sharing]
	var errs []error
	if !ok {
		errs = append(errs, fmt.Errorf("--sharing %q is none of auto, pointers, shards", f.group.sharing))
	}
	for flag, given := range map[string]bool{"--checkpoint": f.checkpoint != "", "--shards": len(f.shards) > 0, "--fail-on-gap": f.failOnGap} {
		if given {
			errs = append(errs, fmt.Errorf("%s does not go with --group: the group keeps the place, and reads everything", flag))
		}
	}
	start, err := startOf(f.from)
	errs = append(errs, err)
	return []consumer.Option{
		consumer.WithStart(start), consumer.WithMember(f.group.member), consumer.WithSharing(sharing), consumer.WithAutoCommit(0),
		consumer.WithMemberDescription("scribe tail"),
	}, errors.Join(errs...)
}

// tailingGroup is one run of the command as a member. Its methods do not run at the same time: the group sees to that.
type tailingGroup struct {
	tailing

	group     *consumer.Group
	committed time.Time
	failed    error // of a commit
}

func (f *tailFlags) tailGroup(cmd *cobra.Command, server, category string, format func([]byte, *consumer.Record) ([]byte, error), stderr *statusLine, opts []consumer.Option) (err error) {
	more, err := f.groupOptions()
	if err != nil {
		return usage(err)
	}
	t := &tailingGroup{tailing: tailing{flags: f, stderr: stderr, signalled: cmd.Context(), place: new(place)}}
	if _, err := describeOnce(cmd.Context(), server, "tail "+category, category); err != nil {
		if cmd.Context().Err() != nil {
			return t.interrupted()
		}
		return err
	}
	more = append(more, consumer.WithOnPause(t.pauseGroup), consumer.WithOnRevoked(func(r consumer.Rebalance) {
		if !r.Lost {
			t.pauseGroup()
		}
	}))
	if t.group, err = consumer.NewGroup(server, category, f.group.name, append(opts, more...)...); err != nil {
		return usage(err)
	}
	t.printer = &printer{format: format, out: newOutput(cmd.OutOrStdout()), place: t.place}
	ctx, stop := untilUnread(cmd.Context(), cmd.OutOrStdout())
	defer stop()
	t.ctx, t.finish = context.WithCancelCause(ctx)
	defer t.finish(nil)
	err = t.print()
	// What was printed is committed also when the end was not a good one: it must not come again.
	if saved := t.save(); err == nil {
		err = saved
	}
	if t.gaps > 0 {
		t.stderr.say("scribe: %d gaps: %d messages are missing, and %d payloads of which nobody knows how many they held", t.gaps, t.missing, t.uncounted)
	}
	return errors.Join(t.outcome(err), t.group.Close())
}

// print prints messages until something ends it.
func (t *tailingGroup) print() error {
	if t.flags.limited && t.flags.count == 0 {
		return t.group.Join(t.ctx)
	}
	n := uint64(0)
	for rec, err := range t.group.Records(t.ctx) {
		switch {
		case t.failed != nil:
			return t.failed
		case err != nil:
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
			t.stderr.say("scribe: gap: %v", err)
			continue
		}
		if err := t.printer.print(&rec); err != nil {
			return err
		}
		if n++; t.flags.limited && n >= t.flags.count {
			return nil
		}
		if t.printer.full() || time.Since(t.committed) >= saveEvery {
			if err := t.save(); err != nil {
				return err
			}
		}
	}
	return t.failed
}

// pauseGroup is called when everything that is there was printed.
func (t *tailingGroup) pauseGroup() {
	if err := t.save(); err != nil {
		t.finish(err)
	}
}

// commitTimeout bounds a commit at the end: a cell that is away must not keep a command from ending.
const commitTimeout = 10 * time.Second

// save hands over what was printed, and then commits it, if it is time to.
func (t *tailingGroup) save() error {
	if err := t.printer.flush(t.ctx); err != nil {
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
		t.stderr.say("scribe: %v: some of what was printed in the last second comes again, at another member", err)
		return nil
	case errors.Is(err, context.DeadlineExceeded) && t.ctx.Err() == nil:
		t.stderr.say("scribe: %v; trying again", err)
		return nil
	}
	return err
}
