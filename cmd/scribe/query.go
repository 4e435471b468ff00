package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"scribe/columnar/export"
	"scribe/columnar/sql"
	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/base/units"
)

type queryFlags struct {
	readFlags

	to       string
	follow   bool
	format   string
	file     string
	explain  bool
	stats    bool
	timeout  units.Duration
	memory   units.Bytes
	local    bool
	compress string
}

func newQuery() *cobra.Command {
	f := queryFlags{memory: columns.DefaultQueryMemory}
	cmd := &cobra.Command{
		Use:   "query 'SELECT ... FROM CATEGORY ...'",
		Short: "Run a SQL query over a category",
		Long: `Evaluate a SELECT over the messages of a category, and print the rows. Read proxies send only the columns and rows that are needed, computed
once for all readers, and payloads that can't contain a match are not fetched.

Syntax:
  SELECT list with expressions and aliases, WHERE, GROUP BY with count, sum, min, max, avg, approx_count_distinct and approx_quantile,
  HAVING, LIMIT, over one category, in PostgreSQL's syntax and with its rules for NULL. Quote names
  that are not plain identifiers, or are SQL keywords: SELECT "user" FROM "web.access". A category's columns are those of its schema ("scribe schema show"); one
  without a schema has the column payload. All also have _time, _persisted, _key, _shard, _offset and _attr['name'].

Which messages:
  The default is from the oldest message to the end of the category as of the start of the command; see --from and --to. --follow continues
  with new messages. GROUP BY needs an end. --checkpoint FILE resumes from FILE if it exists, after the last row that was printed, and keeps
  it up to date, as "scribe tail" does.

Output formats (-o):
  table    aligned columns under their names and types, for people
  jsonl    one object per line; integers and decimals with all their digits, times in RFC 3339
  csv      RFC 4180, with the names in the first line; null is an empty field, the empty text is ""
  arrow    an Arrow IPC stream: pyarrow.ipc.open_stream, polars.read_ipc_stream
  parquet  a Parquet file
  Bytes that are not UTF-8 are printed as \x and their digits in base 16.

A value that does not fit its column, or can't be computed, is null; the column _error gives the reason, and --stats the count. --explain
runs the query and prints how it was answered instead of its rows: the columns read, the predicate evaluated by read proxies, the pointers
skipped, and the rows in and out.

Exit codes: 0 if the answer is complete, if the reader of standard output exited, or if a signal ended --follow; 1 otherwise, for example
at a limit; 2 for mistakes in the query or the arguments; 3 if the category does not exist; 4 if access is denied; 5 if the cell is
unavailable.`,
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
	f.addFlags(fs, "earliest", "rows", ", as LIMIT does")
	fs.StringVar(&f.to, "to", "", "stop before messages persisted at this time, or at this age (default: the end as of the start of the command)")
	fs.BoolVar(&f.follow, "follow", false, "continue with new messages")
	fs.StringVarP(&f.format, "format", "o", string(export.Table), "table, jsonl, csv, arrow or parquet")
	fs.StringVar(&f.file, "output", "", "file to write to (default: standard output)")
	fs.BoolVar(&f.explain, "explain", false, "run the query and print how it was answered, not its rows")
	fs.BoolVar(&f.stats, "stats", false, "print statistics on standard error at the end")
	fs.Var(&f.timeout, "timeout", "fail after this time (default: never)")
	fs.Var(&f.memory, "max-memory", "memory limit of the query: half for fetched payloads, half for groups")
	fs.BoolVar(&f.local, "local", false, "fetch payloads as stored and evaluate everything in this process; the answer is the same")
	fs.StringVar(&f.compress, "compress", compressNone, "compression of data from read proxies: none, s2 or zstd")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.limited = cmd.Flags().Changed("count")
		return runQuery(cmd, *server, args[0], &f)
	}
	return cmd
}

// Values of --compress.
const compressNone = "none"

var compressions = map[string]columns.Compression{
	compressNone: columns.CompressionNone, "s2": columns.CompressionS2, "zstd": columns.CompressionZstd,
}

// runQuery runs the command.
func runQuery(cmd *cobra.Command, server, text string, f *queryFlags) (err error) {
	format, err := export.ParseFormat(f.format)
	if err != nil {
		return usageError(fmt.Errorf("-o %w", err))
	}
	parsed, err := sql.Parse(text)
	if err != nil {
		return usageError(err)
	}
	category := parsed.From.Category
	stderr := newStatusLine(cmd.ErrOrStderr())
	opts, err := f.consumerOptions(stderr)
	if err != nil {
		return usageError(err)
	}
	if err := f.checkFlags(cmd, format); err != nil {
		return usageError(err)
	}
	start, file, err := f.openStart(category)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	r := &queryRun{flags: f, stderr: stderr, signalled: cmd.Context(), file: file}
	if err := checkCategory(cmd.Context(), server, "query "+category, category, file); err != nil {
		if cmd.Context().Err() != nil {
			return r.interruptedError()
		}
		return err
	}
	r.query, err = columns.NewQuery(cmd.Context(), server, text, append(opts, consumer.WithStart(start), consumer.WithOnPause(r.flushOnPause))...)
	if wrong := new(sql.Error); errors.As(err, &wrong) {
		return usageError(wrong)
	}
	if err != nil {
		return queryError(err)
	}
	defer func() { err = errors.Join(err, r.query.Close()) }()
	ctx, stop := untilReaderGone(cmd.Context(), cmd.OutOrStdout())
	defer stop()
	defer r.showProgress(cmd.OutOrStdout())()
	return r.printAnswer(ctx, cmd.OutOrStdout(), format)
}

// queryError is a mistake in how the query was called, unless it has a code of its own.
func queryError(err error) error {
	if errors.Is(err, columns.ErrLimit) || errors.Is(err, context.Canceled) {
		return usageError(err)
	}
	return err
}

// minQueryMemory is the least that the consumer library takes.
const minQueryMemory units.Bytes = 1 << 20

// checkFlags finds flags that can't be right, or do not go together.
func (f *queryFlags) checkFlags(cmd *cobra.Command, format export.Format) error {
	switch {
	case f.memory < minQueryMemory:
		return fmt.Errorf("invalid value %v for --max-memory: want at least %v", f.memory, minQueryMemory)
	case f.explain && f.follow && !f.limited:
		return errors.New("--explain prints at the end, but --follow never ends: remove one of them, or add -n")
	case f.explain && (f.checkpoint != "" || f.file != ""):
		return errors.New("--explain prints no rows: remove --checkpoint and --output")
	case format == export.Parquet && f.follow && !f.limited:
		return errors.New("-o parquet needs an end, but --follow never ends: add -n or --to, or use another format")
	case format.Binary() && !f.explain && f.file == "" && isTerminal(cmd.OutOrStdout()):
		return fmt.Errorf("-o %s writes binary data: use --output FILE, or a pipe, instead of a terminal", format)
	case f.follow && f.to != "":
		return errors.New("--follow never ends, but --to sets an end: remove one of them")
	}
	return nil
}

// consumerOptions are those of the query that follow from the flags alone.
func (f *queryFlags) consumerOptions(stderr io.Writer) ([]consumer.Option, error) {
	compression, ok := compressions[f.compress]
	if !ok {
		return nil, fmt.Errorf("invalid value %q for --compress: want none, s2 or zstd", f.compress)
	}
	opts := append(f.readOptions("scribe query", stderr), columns.WithTimeLimit(f.timeout.Std()), columns.WithMaxMemory(int64(f.memory)),
		columns.WithCompression(compression))
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
	if f.local {
		opts = append(opts, columns.WithLocal())
	}
	return opts, nil
}
