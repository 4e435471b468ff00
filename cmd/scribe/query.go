package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"scribe/columnar/export"
	"scribe/columnar/sql"
	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/base/units"
)

type queryFlags struct {
	from, to   string
	follow     bool
	count      uint64
	limited    bool // by count
	window     tailWindow
	format     string
	file       string
	explain    bool
	stats      bool
	timeout    units.Duration
	memory     units.Bytes
	checkpoint string
	local      bool
	compress   string
	failOnGap  bool
	readProxy  string
	shards     shardList
}

func newQuery() *cobra.Command {
	f := queryFlags{memory: columns.DefaultQueryMemory}
	cmd := &cobra.Command{
		Use:   "query 'SELECT ... FROM CATEGORY ...'",
		Short: "Ask a question of a category, in SQL",
		Long: `Evaluate a SELECT over the messages of a category, and print the rows. Only the columns and rows that the query needs travel: read
proxies choose them, for all readers together, and payloads that can't hold a match are not fetched.

What can be asked:
  SELECT list with expressions and aliases, WHERE, GROUP BY with count, sum, min, max, avg, approx_count_distinct and approx_quantile,
  HAVING, LIMIT, over one category, in PostgreSQL's syntax and with its rules for NULL. Names that are no plain words, or words of SQL,
  stand in double quotes: SELECT "user" FROM "web.access". A category's columns are those of its schema ("scribe schema show"); one
  without a schema has the column payload. Each has _time, _persisted, _key, _shard, _offset and _attr['name'] besides.

Which messages:
  Without --from those that are there, from the oldest on; without --to and --follow up to the end as it is when the command begins.
  --follow goes on with what is written after that. GROUP BY needs an end. --checkpoint FILE resumes from FILE if it exists, behind the
  last row that was printed, and keeps it current, as "scribe tail" does.

How it is printed (-o):
  table    aligned columns under their names and types, for people
  jsonl    an object a row on a line of its own; integers and decimals with all their digits, times in RFC 3339
  csv      RFC 4180, with the names in the first line; null is an empty field, the empty text is ""
  arrow    an Arrow IPC stream: pyarrow.ipc.open_stream, polars.read_ipc_stream
  parquet  a Parquet file
  Bytes that are not UTF-8 are printed as \x and their digits in base 16.

A value that does not fit its column is null, and so is one that can't be computed; the column _error says why. --stats says how many
there were. --explain runs the query, and prints how it was answered in place of its rows: the columns that were read, the predicate
that was given to read proxies, the pointers that were skipped, and the rows in and out.

Exit codes: 0 when the answer is complete, the reader of standard output has gone, or a signal ended --follow; 1 otherwise, for example
at a limit; 2 for mistakes in the query or the arguments; 3 when the category does not exist; 4 when it may not be read; 5 when the cell
can't be reached.`,
		Example: `  scribe query "SELECT client_ip, path FROM access WHERE status >= 500"
  scribe query "SELECT path, count(*) AS hits FROM access GROUP BY path HAVING count(*) > 100" -o csv
  scribe query "SELECT * FROM access WHERE user_agent LIKE '%Googlebot%'" --follow -o jsonl
  scribe query "SELECT date_trunc('minute', _time) AS minute, avg(bytes) FROM access GROUP BY 1" --from 2026-11-21T09:00:00Z --to 2026-11-21T10:00:00Z
  scribe query "SELECT * FROM access" -o parquet --output access.parquet
  scribe query "SELECT path FROM access WHERE status = 404 LIMIT 10" --explain`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	fs := cmd.Flags()
	fs.StringVar(&f.from, "from", "earliest", "earliest, latest, a time (2026-11-21T09:00:00Z), how long ago (15m, 3d) or a checkpoint's text")
	fs.StringVar(&f.to, "to", "", "a time, or how long ago: stop in front of what was persisted at it (default: the end as it is when the command begins)")
	fs.BoolVar(&f.follow, "follow", false, "go on with what is written from now on")
	fs.Uint64VarP(&f.count, "count", "n", 0, "stop after so many rows, as LIMIT does (default: no limit)")
	fs.Var(&f.window, "window", "rows are at most this far out of order of persisted time: 0 (strict order), a duration, or unbounded (default: the category's, else unbounded)")
	fs.StringVarP(&f.format, "format", "o", string(export.Table), "table, jsonl, csv, arrow or parquet")
	fs.StringVar(&f.file, "output", "", "file to write to (default: standard output)")
	fs.BoolVar(&f.explain, "explain", false, "run the query and print how it was answered, not its rows")
	fs.BoolVar(&f.stats, "stats", false, "say at the end, on standard error, what was read, skipped and found")
	fs.Var(&f.timeout, "timeout", "end with an error after so long (default: never)")
	fs.Var(&f.memory, "max-memory", "what the query may hold: half of it payloads on their way, half of it groups")
	fs.StringVar(&f.checkpoint, "checkpoint", "", "file to resume from and to keep current")
	fs.BoolVar(&f.local, "local", false, "fetch payloads as they are stored and evaluate everything here; the answer is the same")
	fs.StringVar(&f.compress, "compress", compressNone, "compression on the way from read proxies: none, s2 or zstd")
	fs.BoolVar(&f.failOnGap, "fail-on-gap", false, "end with an error in front of messages that are gone")
	fs.Var(&f.shards, "shards", "logical shards to read, as 0,4-7 (default: all)")
	fs.Var((*address)(&f.readProxy), "read-proxy", "address of the region to fetch through, where the category is another region's (default: --server)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.limited = cmd.Flags().Changed("count")
		return query(cmd, *server, args[0], &f)
	}
	return cmd
}

// Values of --compress.
const compressNone = "none"

var compressions = map[string]columns.Compression{
	compressNone: columns.CompressionNone, "s2": columns.CompressionS2, "zstd": columns.CompressionZstd,
}

// query runs the command.
func query(cmd *cobra.Command, server, text string, f *queryFlags) (err error) {
	format, err := export.ParseFormat(f.format)
	if err != nil {
		return usage(fmt.Errorf("-o %w", err))
	}
	parsed, err := sql.Parse(text)
	if err != nil {
		return usage(err)
	}
	category := parsed.From.Category
	stderr := newStatusLine(cmd.ErrOrStderr())
	opts, err := f.options(stderr)
	if err != nil {
		return usage(err)
	}
	if err := f.check(cmd, format); err != nil {
		return usage(err)
	}
	start, err := startOf(f.from)
	if err != nil {
		return err
	}
	r := &querying{flags: f, stderr: stderr, signalled: cmd.Context()}
	if f.checkpoint != "" {
		if r.file, err = openCheckpointFile(f.checkpoint); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.file.Close()) }()
		if saved, ok, err := r.file.load(category); err != nil {
			return err
		} else if ok {
			start = saved
		}
	}
	// A query waits for a server that is away. A command that was given the wrong address or name should say so at once.
	found, err := describeOnce(cmd.Context(), server, "query "+category, category)
	switch {
	case err != nil && cmd.Context().Err() != nil:
		return r.interrupted()
	case err != nil:
		return err
	case r.file != nil && r.file.category != 0 && r.file.category != found.GetId():
		return r.file.unusable(fmt.Errorf("the category %q was deleted and made anew since", category))
	}
	r.query, err = columns.NewQuery(cmd.Context(), server, text, append(opts, consumer.WithStart(start), consumer.WithOnPause(r.pause))...)
	if wrong := new(sql.Error); errors.As(err, &wrong) {
		return usage(wrong)
	}
	if err != nil {
		return queryError(err)
	}
	defer func() { err = errors.Join(err, r.query.Close()) }()
	ctx, stop := untilUnread(cmd.Context(), cmd.OutOrStdout())
	defer stop()
	defer r.progress(cmd.OutOrStdout())()
	return r.run(ctx, cmd.OutOrStdout(), format)
}

// queryError is a mistake in how the query was called, unless it has a code of its own.
func queryError(err error) error {
	if errors.Is(err, columns.ErrLimit) || errors.Is(err, context.Canceled) {
		return usage(err)
	}
	return err
}

// minQueryMemory is the least that the consumer library takes.
const minQueryMemory units.Bytes = 1 << 20

// check finds flags that can't be right, or do not go together.
func (f *queryFlags) check(cmd *cobra.Command, format export.Format) error {
	switch {
	case f.memory < minQueryMemory:
		return fmt.Errorf("--max-memory is %v, the least is %v", f.memory, minQueryMemory)
	case f.explain && f.follow && !f.limited:
		return errors.New("--explain prints at the end, and --follow has none: leave out one of them, or give -n")
	case f.explain && (f.checkpoint != "" || f.file != ""):
		return errors.New("--explain prints no rows: leave out --checkpoint and --output")
	case format == export.Parquet && f.follow && !f.limited:
		return errors.New("-o parquet is readable only when it is complete, and --follow has no end: give -n or --to, or another format")
	case format.Binary() && !f.explain && f.file == "" && isTerminal(cmd.OutOrStdout()):
		return fmt.Errorf("-o %s is not for a terminal: give --output FILE, or a pipe", format)
	case f.follow && f.to != "":
		return errors.New("--follow has no end, and --to is one: leave out one of them")
	}
	return nil
}

// options are those of the query that follow from the flags alone.
func (f *queryFlags) options(stderr *statusLine) ([]consumer.Option, error) {
	opts := []consumer.Option{
		consumer.WithName("scribe query"),
		consumer.WithLogger(slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))),
		columns.WithTimeLimit(f.timeout.Std()),
		columns.WithMaxMemory(int64(f.memory)),
	}
	compression, ok := compressions[f.compress]
	if !ok {
		return nil, fmt.Errorf("--compress %q is none of none, s2 and zstd", f.compress)
	}
	opts = append(opts, columns.WithCompression(compression))
	if f.to != "" {
		until, err := units.ParseTime(f.to, time.Now())
		if err != nil {
			return nil, fmt.Errorf("--to %w", err)
		}
		opts = append(opts, columns.WithUntil(until))
	}
	if f.follow {
		opts = append(opts, columns.WithFollow())
	}
	if f.limited {
		opts = append(opts, columns.WithRowLimit(int64(min(f.count, 1<<62)))) //nolint:gosec // bounded
	}
	if f.window.given {
		opts = append(opts, consumer.WithWindow(f.window.length))
	}
	if f.local {
		opts = append(opts, columns.WithLocal())
	}
	if f.readProxy != "" {
		opts = append(opts, consumer.WithReadProxy(f.readProxy))
	}
	if len(f.shards) > 0 {
		opts = append(opts, consumer.WithLogicalShards(f.shards...))
	}
	return opts, nil
}
