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
		Short: "Read messages, from any point on",
		Long: `Read the messages of a category and follow it, until the reader of standard output goes away or a signal comes. With -o raw each
message's payload is printed with a newline behind it. With -o jsonl a message is an object on a line of its own:

  time, persisted     RFC 3339; a time before the year 0 or after 9999 is time_us, microseconds since 1970
  key                 if the message has one
  payload
  attributes          an object, if there are any
  shard, lsn, index   the message's place, its name for ever

Bytes that are not UTF-8 can't be JSON text. They come as base64 under a name of their own: payload_base64, key_base64, and the
attributes concerned in attributes_base64.

Where it begins:
  --checkpoint FILE resumes from FILE if that exists, behind the last message that was printed; else --from says.
  Logical shards that FILE says nothing of are read from their beginning.

What FILE says:
  It is never ahead of what standard output has taken. It is replaced as a whole about once a second, and at the end, also after a
  signal or an error, it is exact to the message. After a crash of this program or of its machine what was printed in the last
  second comes again; so does a message that was printed in part. One tail at a time uses a FILE: FILE.lock says so. A FILE that
  was cut or changed is an error, never another place. While FILE can't be written the tail goes on, says so and tries again.

With --group NAME it is a member of a consumer group: all that run with the same NAME share the category, and what was printed is
committed in the group about once a second, and at the end. --from says where the group begins, when it is new. Members may come
and go; what was printed and not committed by one that was killed comes again, at another. "scribe group --help" says more.

With --where only messages for which a predicate is true are printed: what stands behind WHERE in "scribe query", over the columns of the
category's schema and those that every category has. Payloads that are known to hold none are not fetched. The checkpoint moves past
messages that are left out.

Messages that are gone, because retention was faster than the reader or because they are damaged, are told of on standard error,
and counted at the end. With --fail-on-gap the tail ends in front of them instead, and its checkpoint stays there.

Exit codes: 0 when everything asked for was printed, the reader of standard output has gone, or a signal ended a tail that follows
without -n; 1 otherwise, for example when a signal came before the end; 2 for mistakes in the arguments; 3 when the category does
not exist; 4 when it may not be read; 5 when the cell can't be reached. A second signal ends the program at once.`,
		Example: `  scribe tail access                                              # what comes from now on
  scribe tail access --from earliest --until-end > access.log     # everything there is
  scribe tail access --from 2026-11-21T09:00:00Z -n 10 -o jsonl   # the first ten from a time on
  scribe tail access --from earliest --window 1s                  # at most a second out of order
  scribe tail access --from earliest --checkpoint access.cp       # and again later, from there
  scribe tail access --checkpoint access.cp -n 0                  # keep the place for later, print nothing
  scribe tail access --where "status >= 500 AND path LIKE '/api/%'"
  scribe tail orders --shards 0,4-7 --fail-on-gap --until-end
  scribe tail access --group audit --from earliest                # a part of it; others with the same --group get the rest
  scribe tail access --server http://us.example.net:7420 --read-proxy http://127.0.0.1:7420`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	fs := cmd.Flags()
	fs.StringVar(&f.from, "from", "latest", "earliest, latest, a time (2026-11-21T09:00:00Z), how long ago (15m, 3d) or a checkpoint's text")
	fs.BoolVar(&f.untilEnd, "until-end", false, "stop at the end as it is when the command begins")
	fs.Uint64VarP(&f.count, "count", "n", 0, "stop after so many messages (default: no limit)")
	fs.Var(&f.window, "window", "messages are at most this far out of order of persisted time: 0 (strict order), a duration, or unbounded (default: the category's, else unbounded)")
	fs.StringVar(&f.checkpoint, "checkpoint", "", "file to resume from and to keep current")
	fs.StringVarP(&f.output, "output", "o", "raw", "raw or jsonl")
	fs.Var(&f.shards, "shards", "logical shards to read, as 0,4-7 (default: all)")
	fs.StringVar(&f.onDamage, "on-damage", damageStop, "what to do with damaged messages: stop, or skip and tell")
	fs.BoolVar(&f.failOnGap, "fail-on-gap", false, "end with an error in front of messages that are gone")
	fs.StringVar(&f.where, "where", "", "print only messages for which this SQL predicate is true, as: status >= 500 AND path LIKE '/api/%'")
	fs.Var((*address)(&f.readProxy), "read-proxy", "address of the region to fetch payloads through, where the category is another region's (default: --server)")
	fs.Var(&f.timeout, "timeout", "give up when the cell can't be reached for so long (default: never)")
	f.group.add(fs)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.limited = cmd.Flags().Changed("count")
		return tail(cmd, *server, args[0], &f)
	}
	return cmd
}

// Values of --on-damage.
const (
	damageStop = "stop"
	damageSkip = "skip"
)

func tail(cmd *cobra.Command, server, category string, f *tailFlags) (err error) {
	format, err := recordFormat(f.output)
	if err != nil {
		return usage(err)
	}
	stderr := newStatusLine(cmd.ErrOrStderr())
	opts, err := f.options(stderr)
	if err != nil {
		return usage(err)
	}
	if err := record.ValidateCategory(category); err != nil {
		return usage(err)
	}
	if f.group.name != "" {
		return f.tailGroup(cmd, server, category, format, stderr, opts)
	}
	t := &tailing{flags: f, stderr: stderr, signalled: cmd.Context(), place: new(place)}
	start, err := startOf(f.from)
	if err != nil {
		return err
	}
	if f.checkpoint != "" {
		if t.file, err = openCheckpointFile(f.checkpoint); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.file.Close()) }()
		saved, ok, err := t.file.load(category)
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
		return t.interrupted()
	case err != nil:
		return err
	case t.file != nil && t.file.category != 0 && t.file.category != found.GetId():
		return t.file.unusable(fmt.Errorf("the category %q was deleted and made anew since", category))
	}
	if t.consumer, err = consumer.New(server, category, append(opts, consumer.WithStart(start), consumer.WithOnPause(t.pause))...); err != nil {
		return usage(err)
	}
	defer func() { err = errors.Join(err, t.consumer.Close()) }()
	t.printer = &printer{format: format, out: newOutput(cmd.OutOrStdout()), place: t.place, marking: t.file != nil}
	ctx, stop := untilUnread(cmd.Context(), cmd.OutOrStdout())
	defer stop()
	defer stderr.progress(cmd.OutOrStdout(), t.printer, t.consumer)()
	return t.run(ctx)
}

// options are those of the consumer that follow from the flags alone.
func (f *tailFlags) options(stderr io.Writer) ([]consumer.Option, error) {
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
		return nil, fmt.Errorf("--on-damage %q is neither %s nor %s", f.onDamage, damageStop, damageSkip)
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
	if err := isPlace(from); err != nil {
		return consumer.Start{}, usage(fmt.Errorf("--from %w", err))
	}
	start, err := consumer.Checkpoint(from)
	if err != nil {
		return start, usage(fmt.Errorf("--from: %w", err))
	}
	return start, nil
}

// isPlace tells what is no checkpoint at all from one that is damaged.
func isPlace(text string) error {
	if _, err := checkpoint.Parse(text); err != nil && !strings.HasPrefix(text, "scribe") {
		return fmt.Errorf("%q is none of earliest, latest, a time as 2026-11-21T09:00:00Z, how long ago as 15m or 3d, and a checkpoint", excerptOf(text))
	}
	return nil
}

func describeOnce(ctx context.Context, server, doing, category string) (*scribev1.Category, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := rpc.NewControlClient(rpc.Default(), server).GetCategory(ctx, &scribev1.GetCategoryRequest{Name: category})
	if err != nil {
		return nil, called(server, doing, err)
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
		return fmt.Errorf("%q is none of 0 (strict order), a duration with its unit as 250ms, 1m or 1d, and %s", s, windowUnbounded)
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
			return fmt.Errorf("%q is no list of logical shards, 0 to %d, and ranges of them: write it as 0,4-7", s, record.MaxLogicalShard)
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
