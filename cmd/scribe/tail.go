package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"scribe/columnar/sql"
	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/base/units"
	"scribe/internal/format/record"
)

type tailFlags struct {
	readFlags

	untilEnd bool
	follow   bool
	last     uint64
	output   string
	format   string
	// fromGiven: --from is on the command line or in the environment.
	fromGiven bool
	onDamage  string
	timeout   units.Duration
	where     string
	keys      []string
	group     groupFlags
}

func newTail() *cobra.Command {
	var f tailFlags
	cmd := &cobra.Command{
		Use:   "tail CATEGORY",
		Short: "Read messages, from any position on",
		Long: `Read the messages of a category and follow it, until the reader of standard output exits or a signal arrives. With -o raw the command
prints each message's payload and a newline. With -o jsonl it prints one object per line:

  time, persisted     RFC 3339; a time before the year 0 or after 9999 is time_us, microseconds since 1970
  key                 if the message has one
  payload
  attributes          an object, if there are any
  shard, lsn, index   the message's position, its permanent identifier

  rate                the message stands for so many, if the category's quota left out some beside it

With --format the command prints each message as a format string says, for example --format '%T %k %s\n':

` + formatHelp + `

Bytes that are not UTF-8 can't be JSON text. They are printed as base64 in separate fields: payload_base64, key_base64 and
attributes_base64.

Where it starts:
  With --last N at the last N messages: it prints these and stops; with -f it goes on with new ones (-n N prints N messages from the start on).
  With --checkpoint FILE, and if FILE exists, after the last message that was printed; otherwise at --from.
  Logical shards that are not in FILE are read from their beginning.

The checkpoint file:
  FILE is never ahead of what standard output has accepted. It is replaced atomically about once a second. At the end, even after a
  signal or an error, it is exact to the message. After a crash of the program or the machine, messages printed in the last second are
  printed again; so is a message that was printed in part. FILE.lock ensures that one tail at a time uses FILE. A truncated or changed
  FILE is an error. While FILE can't be written, the tail continues, reports the error and tries again.

With --group NAME the tail is a member of a consumer group: all members with the same NAME share the category. Printed messages are
committed about once a second, and at the end. --from is the start of a new group. Members may join and leave at any time; messages
that a killed member printed but did not commit are delivered again, to another member. See "scribe group --help".

With --key VALUE the tail prints only messages of that key: in a category that places messages by key, those with this key; in one that
places them by a field, those with this text or integer in the field (42 finds 42, 42.0 and "42"). It reads only the logical shards
in which such messages can be, and shards that are added while it follows, within about 5 seconds. With an ordering window, and in a
repeatable category, a tail without --until-end reads all shards. Given more than once, it prints the messages of each. Keep the keys
the same when you continue from a checkpoint file: other shards are read from their beginning. Arrow batches are not printed, as always.

With --where the tail prints only messages that match a predicate, in the syntax of WHERE in "scribe query", over the columns of the
category's schema and those that every category has. Payloads that can't contain a match are not fetched, and without --checkpoint logical
shards that can't, as with --key, are not read. The checkpoint moves past messages that do not match.

Missing messages, which retention removed before they were read or which are damaged, are reported on standard error and counted at the
end. With --fail-on-gap the tail stops before them instead, and its checkpoint stays there.

Exit codes: 0 if everything requested was printed, if the reader of standard output exited, or if a signal ended a tail that follows
without -n; 1 otherwise, for example after a signal before the end; 2 for mistakes in the arguments; 3 if the category does not exist;
4 if access is denied; 5 if the cell is unavailable. A second signal ends the program at once.`,
		Example: `  scribe tail access                                              # new messages
  scribe tail access --last 10                                    # the last ten messages
  scribe tail access --last 10 -f                                 # and then new ones
  scribe tail access --from yesterday --until-end                 # since midnight (UTC) of yesterday
  scribe tail access --format '%T %o %k %{host} %s\n'
  scribe tail access --from earliest --until-end > access.log     # all messages
  scribe tail access --from 2026-11-21T09:00:00Z -n 10 -o jsonl   # the first ten since a time
  scribe tail access --from earliest --window 1s                  # at most a second out of order
  scribe tail access --from earliest --checkpoint access.cp       # and resume later
  scribe tail access --checkpoint access.cp -n 0                  # save the position, print nothing
  scribe tail access --where "status >= 500 AND path LIKE '/api/%'"
  scribe tail orders --key user-17 --from earliest                # one key's messages
  scribe tail orders --shards 0,4-7 --fail-on-gap --until-end
  scribe tail access --group audit --from earliest                # shared with other members of the group
  scribe tail access --server http://us.example.net:7420 --read-proxy http://127.0.0.1:7420`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	fs := cmd.Flags()
	f.addFlags(fs, "latest", "messages", "")
	fs.BoolVar(&f.untilEnd, "until-end", false, "stop at the end of the category as of the start of the command")
	fs.BoolVarP(&f.follow, "follow", "f", false, "go on with new messages, as the tail does by default, also after --last")
	fs.Uint64Var(&f.last, "last", 0, "print the last N messages and stop; with -f go on with new ones")
	fs.StringVarP(&f.output, "output", "o", "raw", "raw or jsonl")
	fs.StringVar(&f.format, "format", "", "print messages as this format string says, in place of -o; see above")
	fs.StringVar(&f.onDamage, "on-damage", damageStop, "what to do with damaged messages: stop, or skip and report them")
	fs.StringVar(&f.where, "where", "", "print only messages that match this SQL predicate, for example: status >= 500 AND path LIKE '/api/%'")
	fs.StringArrayVar(&f.keys, "key", nil, "print only messages of this key, or value of the field, by which the category places messages (may be repeated)")
	setVariables(fs, "key") // SCRIBE_KEY is the file of a certificate's key
	fs.Var(&f.timeout, "timeout", "fail when the cell is unavailable for this long (default: never)")
	f.group.addFlags(fs)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.limited, f.fromGiven = cmd.Flags().Changed("count"), cmd.Flags().Changed("from")
		if f.format != "" && cmd.Flags().Changed("output") {
			return usageError(errors.New("--format and -o both say how messages are printed: give one of them"))
		}
		return runTail(cmd, *server, args[0], &f)
	}
	return cmd
}

// Values of --on-damage.
const (
	damageStop = "stop"
	damageSkip = "skip"
)

func runTail(cmd *cobra.Command, server, category string, f *tailFlags) (err error) {
	format, err := f.recordFormat()
	if err != nil {
		return usageError(err)
	}
	if err := f.checkLast(); err != nil {
		return usageError(err)
	}
	stderr := newStatusLine(cmd.ErrOrStderr())
	opts, err := f.consumerOptions(stderr)
	if err != nil {
		return usageError(err)
	}
	if err := record.ValidateCategory(category); err != nil {
		return usageError(err)
	}
	if f.group.name != "" {
		return f.tailGroup(cmd, server, category, format, stderr, opts)
	}
	t := &tailRun{flags: f, stderr: stderr, signalled: cmd.Context(), position: new(outputPosition)}
	start, file, err := f.openStart(category)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	t.file = file
	if err := requireCategory(cmd.Context(), server, "tail "+category, category, file); err != nil {
		if cmd.Context().Err() != nil {
			return t.interruptedError()
		}
		return err
	}
	ctx, stop := untilReaderGone(cmd.Context(), cmd.OutOrStdout())
	defer stop()
	out := newOutput(cmd.OutOrStdout())
	if f.last > 0 {
		var done bool
		if start, done, err = f.printLast(ctx, server, category, out, format, opts); err != nil || done {
			return t.endLast(ctx, err)
		}
	}
	if t.consumer, err = consumer.New(server, category, append(opts, consumer.WithStart(start), consumer.WithOnPause(t.flushOnPause))...); err != nil {
		return usageError(err)
	}
	defer func() { err = errors.Join(err, t.consumer.Close()) }()
	t.printer = &recordPrinter{format: format, out: out, position: t.position, marking: t.file != nil}
	defer t.showProgress(cmd.OutOrStdout())()
	return t.printAll(ctx)
}

// recordFormat returns what appends a message as -o or --format says.
func (f *tailFlags) recordFormat() (func([]byte, *consumer.Record) ([]byte, error), error) {
	if f.format == "" {
		return recordFormat(f.output)
	}
	format, err := parseFormat(f.format)
	if err != nil {
		return nil, fmt.Errorf("--format: %w", err)
	}
	return format, nil
}

// consumerOptions are those of the consumer that follow from the flags alone.
func (f *tailFlags) consumerOptions(stderr io.Writer) ([]consumer.Option, error) {
	opts := append(f.readOptions("scribe tail", stderr), consumer.WithRetryTimeout(f.timeout.Std()))
	if f.untilEnd {
		if f.follow {
			return nil, errors.New("--follow never ends, but --until-end does: remove one of them")
		}
		opts = append(opts, consumer.WithUntilEnd())
	}
	if f.where != "" {
		if _, err := sql.ParsePredicate(f.where); err != nil {
			return nil, fmt.Errorf("--where: %w", err)
		}
		opts = append(opts, columns.Where(f.where))
		if f.checkpoint != "" || f.last > 0 { // the next run may have another predicate; the last messages are looked for from the ends of all logs
			opts = append(opts, columns.WithAllShards())
		}
	}
	if len(f.keys) > 0 {
		switch {
		case len(f.shards) > 0:
			return nil, errors.New("--key can't be combined with --shards: the shards follow from the key")
		case f.group.name != "":
			return nil, errors.New("--key can't be combined with --group: a group reads all shards; use --where, with the same predicate in all members")
		}
		opts = append(opts, columns.Keys(f.keys...))
	}
	switch f.onDamage {
	case damageStop:
		opts = append(opts, consumer.WithDamage(consumer.DamageStop))
	case damageSkip:
		opts = append(opts, consumer.WithDamage(consumer.DamageSkip))
	default:
		return nil, fmt.Errorf("invalid value %q for --on-damage: want %s or %s", f.onDamage, damageStop, damageSkip)
	}
	return opts, nil
}
