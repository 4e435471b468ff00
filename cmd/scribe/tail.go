package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"scribe/columnar/sql"
	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/base/units"
	"scribe/internal/format/checkpoint"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

type tailFlags struct {
	from       string
	untilEnd   bool
	count      uint64
	window     tailWindow
	checkpoint string
	output     string
	shards     shardList
	onDamage   string
	failOnGap  bool
	timeout    units.Duration
	readProxy  string
	where      string

	group   groupFlags
	limited bool // by count
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

Bytes that are not UTF-8 can't be JSON text. They are printed as base64 in separate fields: payload_base64, key_base64 and
attributes_base64.

Where it starts:
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

With --where the tail prints only messages that match a predicate, in the syntax of WHERE in "scribe query", over the columns of the
category's schema and those that every category has. Payloads that can't contain a match are not fetched. The checkpoint moves past
messages that do not match.

Missing messages, which retention removed before they were read or which are damaged, are reported on standard error and counted at the
end. With --fail-on-gap the tail stops before them instead, and its checkpoint stays there.

Exit codes: 0 if everything requested was printed, if the reader of standard output exited, or if a signal ended a tail that follows
without -n; 1 otherwise, for example after a signal before the end; 2 for mistakes in the arguments; 3 if the category does not exist;
4 if access is denied; 5 if the cell is unavailable. A second signal ends the program at once.`,
		Example: `  scribe tail access                                              # new messages
  scribe tail access --from earliest --until-end > access.log     # all messages
  scribe tail access --from 2026-11-21T09:00:00Z -n 10 -o jsonl   # the first ten since a time
  scribe tail access --from earliest --window 1s                  # at most a second out of order
  scribe tail access --from earliest --checkpoint access.cp       # and resume later
  scribe tail access --checkpoint access.cp -n 0                  # save the position, print nothing
  scribe tail access --where "status >= 500 AND path LIKE '/api/%'"
  scribe tail orders --shards 0,4-7 --fail-on-gap --until-end
  scribe tail access --group audit --from earliest                # shared with other members of the group
  scribe tail access --server http://us.example.net:7420 --read-proxy http://127.0.0.1:7420`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	fs := cmd.Flags()
	fs.StringVar(&f.from, "from", "latest", "earliest, latest, a time (2026-11-21T09:00:00Z), an age (15m, 3d) or the text of a checkpoint")
	fs.BoolVar(&f.untilEnd, "until-end", false, "stop at the end of the category as of the start of the command")
	fs.Uint64VarP(&f.count, "count", "n", 0, "stop after this many messages (default: no limit)")
	fs.Var(&f.window, "window", "ordering window, by which messages may be out of order of persisted time: 0 (strict order), a duration or unbounded (default: the category's, else unbounded)")
	fs.StringVar(&f.checkpoint, "checkpoint", "", "file to resume from and to update")
	fs.StringVarP(&f.output, "output", "o", "raw", "raw or jsonl")
	fs.Var(&f.shards, "shards", "logical shards to read, for example 0,4-7 (default: all)")
	fs.StringVar(&f.onDamage, "on-damage", damageStop, "what to do with damaged messages: stop, or skip and report them")
	fs.BoolVar(&f.failOnGap, "fail-on-gap", false, "stop with an error before missing messages")
	fs.StringVar(&f.where, "where", "", "print only messages that match this SQL predicate, for example: status >= 500 AND path LIKE '/api/%'")
	fs.Var((*addressFlag)(&f.readProxy), "read-proxy", "address of the cell whose read proxies fetch the payloads of another region's category (default: --server)")
	fs.Var(&f.timeout, "timeout", "fail when the cell is unavailable for this long (default: never)")
	f.group.addFlags(fs)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.limited = cmd.Flags().Changed("count")
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
	format, err := recordFormat(f.output)
	if err != nil {
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
	start, err := startOf(f.from)
	if err != nil {
		return err
	}
	if f.checkpoint != "" {
		if t.file, err = openCheckpointFile(f.checkpoint); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.file.Close()) }()
		saved, ok, err := t.file.loadStart(category)
		if err != nil {
			return err
		}
		if ok {
			start = saved
		}
	}
	// A consumer waits for a server that is away. A command that was given the wrong address or name should say so at once.
	found, err := describeOnce(cmd.Context(), server, "tail "+category, category)
	switch {
	case err != nil && cmd.Context().Err() != nil:
		return t.interruptedError()
	case err != nil:
		return err
	case t.file != nil && t.file.category != 0 && t.file.category != found.GetId():
		return t.file.unusableError(fmt.Errorf("the category %q was deleted and created again since", category))
	}
	if t.consumer, err = consumer.New(server, category, append(opts, consumer.WithStart(start), consumer.WithOnPause(t.flushOnPause))...); err != nil {
		return usageError(err)
	}
	defer func() { err = errors.Join(err, t.consumer.Close()) }()
	t.printer = &recordPrinter{format: format, out: newOutput(cmd.OutOrStdout()), position: t.position, marking: t.file != nil}
	ctx, stop := untilReaderGone(cmd.Context(), cmd.OutOrStdout())
	defer stop()
	defer stderr.showProgress(cmd.OutOrStdout(), t.printer, t.consumer)()
	return t.printAll(ctx)
}

// consumerOptions are those of the consumer that follow from the flags alone.
func (f *tailFlags) consumerOptions(stderr io.Writer) ([]consumer.Option, error) {
	opts := []consumer.Option{
		consumer.WithName("scribe tail"),
		consumer.WithRetryTimeout(f.timeout.Std()),
		consumer.WithLogger(slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))),
	}
	if f.untilEnd {
		opts = append(opts, consumer.WithUntilEnd())
	}
	if f.window.given {
		opts = append(opts, consumer.WithWindow(f.window.length))
	}
	if f.readProxy != "" {
		opts = append(opts, consumer.WithReadProxy(f.readProxy))
	}
	if len(f.shards) > 0 {
		opts = append(opts, consumer.WithLogicalShards(f.shards...))
	}
	if f.where != "" {
		if _, err := sql.ParsePredicate(f.where); err != nil {
			return nil, fmt.Errorf("--where: %w", err)
		}
		opts = append(opts, columns.Where(f.where))
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

// startOf is where --from says to begin.
func startOf(from string) (consumer.Start, error) {
	switch from {
	case "earliest":
		return consumer.Earliest(), nil
	case "latest":
		return consumer.Latest(), nil
	}
	if at, err := units.ParseTime(from, time.Now()); err == nil {
		return consumer.At(at), nil
	}
	if err := checkStart(from); err != nil {
		return consumer.Start{}, usageError(fmt.Errorf("--from: %w", err))
	}
	start, err := consumer.Checkpoint(from)
	if err != nil {
		return start, usageError(fmt.Errorf("--from: %w", err))
	}
	return start, nil
}

// checkStart tells what is no checkpoint at all from one that is damaged.
func checkStart(text string) error {
	if _, err := checkpoint.Parse(text); err != nil && !strings.HasPrefix(text, "scribe") {
		return fmt.Errorf("invalid value %q: want earliest, latest, a time such as 2026-11-21T09:00:00Z, an age such as 15m or 3d, or a checkpoint", excerptOf(text))
	}
	return nil
}

func describeOnce(ctx context.Context, server, doing, category string) (*scribev1.Category, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := rpc.NewControlClient(rpc.Default(), server).GetCategory(ctx, &scribev1.GetCategoryRequest{Name: category})
	if err != nil {
		return nil, callFailure(server, doing, err)
	}
	return res.GetCategory(), nil
}

// tailWindow is a flag for the ordering window of a reader.
type tailWindow struct {
	given  bool
	length time.Duration
}

// windowUnbounded is the window that is none.
const windowUnbounded = "unbounded"

// String implements pflag.Value.
func (w *tailWindow) String() string {
	switch {
	case !w.given:
		return ""
	case w.length == consumer.Unbounded:
		return windowUnbounded
	}
	return units.Duration(w.length).String()
}

// Set implements pflag.Value.
func (w *tailWindow) Set(s string) error {
	if s == windowUnbounded || s == "none" { // as categories have it
		*w = tailWindow{given: true, length: consumer.Unbounded}
		return nil
	}
	d, err := units.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("invalid window %q: want 0 (strict order), a duration with its unit such as 250ms, 1m or 1d, or %s", s, windowUnbounded)
	}
	*w = tailWindow{given: true, length: d.Std()}
	return nil
}

// Type implements pflag.Value.
func (w *tailWindow) Type() string { return "window" }

// shardList is a flag for logical shards, sorted and each once.
type shardList []uint32

// String implements pflag.Value.
func (l *shardList) String() string {
	var parts []string
	for i := 0; i < len(*l); {
		first := (*l)[i]
		last := first
		for i++; i < len(*l) && (*l)[i] == last+1; i++ {
			last++
		}
		if part := strconv.FormatUint(uint64(first), 10); last == first {
			parts = append(parts, part)
		} else {
			parts = append(parts, part+"-"+strconv.FormatUint(uint64(last), 10))
		}
	}
	return strings.Join(parts, ",")
}

// Set implements pflag.Value. Given more than once the flag adds up.
func (l *shardList) Set(s string) error {
	for part := range strings.SplitSeq(s, ",") {
		from, to, ranged := strings.Cut(strings.TrimSpace(part), "-")
		first, err := parseShard(from)
		last := first
		if err == nil && ranged {
			last, err = parseShard(to)
		}
		if err != nil || last < first {
			return fmt.Errorf("invalid shards %q: want numbers from 0 to %d and ranges, for example 0,4-7", s, record.MaxLogicalShard)
		}
		for n := first; n <= last; n++ {
			*l = append(*l, n)
		}
	}
	slices.Sort(*l)
	*l = slices.Compact(*l)
	return nil
}

// Type implements pflag.Value.
func (l *shardList) Type() string { return "shards" }

func parseShard(s string) (uint32, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 16) // record.MaxLogicalShard has 16 bits
	return uint32(n), err
}
