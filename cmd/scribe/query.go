package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
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
	params   []string
	width    int
	rows     int64
}

func newQuery() *cobra.Command {
	f := queryFlags{memory: columns.DefaultQueryMemory}
	cmd := &cobra.Command{
		Use:   "query 'SELECT ... FROM CATEGORY ...' | 'SHOW TABLES' | 'DESCRIBE CATEGORY'",
		Short: "Run a SQL query over a category",
		Long: `Evaluate a SELECT over the messages of a category, and print the rows. Read proxies send only the columns and rows that are needed, computed
once for all readers, and payloads that can't contain a match are not fetched.

Syntax:
  SELECT [DISTINCT] list with expressions and aliases, WHERE, GROUP BY with count, sum, min, max, avg, approx_count_distinct and
  approx_quantile, HAVING, ORDER BY, LIMIT, OFFSET, over one category, in PostgreSQL's syntax and with its rules for NULL. Quote names
  that are not plain identifiers, or are SQL keywords: SELECT "user" FROM "web.access". A category's columns are those of its schema ("scribe schema show"); one
  without a schema has the column payload. All also have _time, _persisted, _key, _shard, _offset, _rate and _attr['name'].
  SHOW TABLES lists the categories, DESCRIBE CATEGORY its columns. Values for ? (or $1, $2, ...) are given with --param, once for each.

Which messages:
  The default is from the oldest message to the end of the category as of the start of the command; see --from and --to. --follow continues
  with new messages. GROUP BY, DISTINCT and ORDER BY need an end. --checkpoint FILE resumes from FILE if it exists, after the last row that was printed, and keeps
  it up to date, as "scribe tail" does.

Output formats (-o):
  table    aligned columns under their names and types, for people; on a terminal, lines are cut at its width, rows after the first
           1000 are counted, not printed, and a last line says how much is not shown: see --width and --rows
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
  scribe query "SELECT path, bytes FROM access ORDER BY bytes DESC NULLS LAST LIMIT 10"
  scribe query "SELECT path FROM access WHERE client_ip = ? AND status = ?" --param 66.249.73.135 --param 404
  scribe query "DESCRIBE access"
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
	fs.StringVar(&f.to, "to", "", "stop before messages persisted at this time: "+units.TimeHelp+" (default: the end as of the start of the command)")
	fs.BoolVar(&f.follow, "follow", false, "continue with new messages")
	fs.StringVarP(&f.format, "format", "o", string(export.Table), "table, jsonl, csv, arrow or parquet")
	fs.StringVar(&f.file, "output", "", "file to write to (default: standard output)")
	fs.BoolVar(&f.explain, "explain", false, "run the query and print how it was answered, not its rows")
	fs.BoolVar(&f.stats, "stats", false, "print statistics on standard error at the end")
	fs.Var(&f.timeout, "timeout", "fail after this time (default: never)")
	fs.Var(&f.memory, "max-memory", "memory limit of the query: half for fetched payloads, half for groups")
	fs.BoolVar(&f.local, "local", false, "fetch payloads as stored and evaluate everything in this process; the answer is the same")
	fs.StringVar(&f.compress, "compress", compressNone, "compression of data from read proxies: none, s2 or zstd")
	fs.StringArrayVar(&f.params, "param", nil, "value of the next parameter of the query, ? or $1: a text, which is read as the type that its place requires; can be repeated")
	fs.IntVar(&f.width, "width", 0, "cut lines of a table at this width; 0 = never (default: the width of the terminal)")
	fs.Int64Var(&f.rows, "rows", 0, "count further rows of a table without printing them; 0 = print all (default: 1000 on a terminal, unless --follow)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.limited = cmd.Flags().Changed("count")
		f.adaptTable(cmd)
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
	if len(f.params) > 0 {
		values := make([]sql.Parameter, len(f.params))
		for i, v := range f.params {
			values[i].Text = v
		}
		if text, err = sql.BindParameters(text, values); err != nil {
			return usageError(err)
		}
	}
	parsed, show, err := sql.ParseStatement(text)
	if err != nil {
		return usageError(err)
	}
	if err := f.checkFlags(cmd, format); err != nil {
		return usageError(err)
	}
	if show != nil {
		return f.printListing(cmd, server, show, format)
	}
	if f.checkpoint != "" && parsed.Offset > 0 {
		return usageError(errors.New("OFFSET leaves out rows at each start, but --checkpoint goes on where the last one ended: remove one of them"))
	}
	category := parsed.From.Category
	stderr := newStatusLine(cmd.ErrOrStderr())
	opts, err := f.consumerOptions(stderr)
	if err != nil {
		return usageError(err)
	}
	start, file, err := f.openStart(category)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	r := &queryRun{flags: f, stderr: stderr, signalled: cmd.Context(), file: file}
	if err := requireCategory(cmd.Context(), server, "query "+category, category, file); err != nil {
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
	case f.width < 0 || f.rows < 0:
		return errors.New("invalid --width or --rows: want 0 or more")
	case f.rows > 0 && f.checkpoint != "":
		return errors.New("--rows leaves out rows, but --checkpoint goes on after the last one: remove one of them, or take -n")
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
	if f.checkpoint != "" { // another query may continue from it
		opts = append(opts, columns.WithAllShards())
	}
	if f.limited {
		opts = append(opts, columns.WithRowLimit(int64(min(f.count, 1<<62)))) //nolint:gosec // bounded
	}
	if f.local {
		opts = append(opts, columns.WithLocal())
	}
	return opts, nil
}

// queryRun is one run of the command. Its methods run on the goroutine that iterates.
type queryRun struct {
	flags     *queryFlags
	query     *columns.Query
	stderr    *statusLine
	signalled context.Context //nolint:containedctx // ends with a signal; that of the iteration also with the reader
	file      *checkpointFile // nil without one

	ctx     context.Context //nolint:containedctx // of the iteration
	finish  context.CancelCauseFunc
	writer  export.Writer // nil with --explain
	format  export.Format
	waiting time.Time // when the first row came that was not handed out; zero if there is none
	saved   time.Time
	stopped error // why a pause has ended the iteration
	// unwritten says that rows could not be handed out: the place behind them is not where to go on.
	unwritten bool
	gaps      uint64
}

// tableWait is how long the rows of a table may wait for others, so that all columns are aligned alike.
const tableWait = 500 * time.Millisecond

func (r *queryRun) printAnswer(ctx context.Context, stdout io.Writer, format export.Format) (err error) {
	r.ctx, r.finish = context.WithCancelCause(ctx)
	defer r.finish(nil)
	r.format = format
	if r.flags.explain {
		return r.printExplanation(stdout)
	}
	out, closed, err := r.openOutput(stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closed()) }()
	if r.writer, err = r.flags.newWriter(format, out, r.query.Schema()); err != nil {
		return usageError(err)
	}
	err = r.endError(r.printRows())
	reportHidden(r.stderr, r.writer)
	if r.gaps > 0 {
		r.stderr.printLine("scribe: %d gaps: messages are missing from the answer", r.gaps)
	}
	if r.flags.stats {
		x := r.query.Explain()
		_, _ = io.WriteString(r.stderr, x.String()) // there is nobody else to tell
	}
	return err
}

// openOutput returns where rows go, and what closes it.
func (r *queryRun) openOutput(stdout io.Writer) (io.Writer, func() error, error) {
	if r.flags.file == "" {
		return &queryOutput{r.ctx, newOutput(stdout)}, func() error { return nil }, nil
	}
	file, err := os.Create(r.flags.file)
	if err != nil {
		return nil, nil, err
	}
	return file, file.Close, nil
}

// queryOutput is standard output as a writer: its reader may keep it waiting, but not at the end.
type queryOutput struct {
	ctx context.Context //nolint:containedctx // of the iteration
	out *stdoutWriter
}

// Write implements io.Writer.
func (o *queryOutput) Write(b []byte) (int, error) { return o.out.writeBytes(o.ctx, b) }

// printRows writes the rows, and all that belongs to them at the end.
func (r *queryRun) printRows() error {
	err := r.writeBatches()
	if errors.Is(err, syscall.EPIPE) {
		return err
	}
	// What came before an error is the beginning of the answer. Of groups there is none.
	if cerr := r.writer.Close(); cerr != nil {
		return errors.Join(err, cerr)
	}
	x := r.query.Explain()
	if r.unwritten || err != nil && (x.Grouped || x.Sorted) {
		return err
	}
	return errors.Join(err, r.saveCheckpoint())
}

func (r *queryRun) writeBatches() error {
	for batch, err := range r.query.Batches(r.ctx) {
		switch {
		case r.stopped != nil:
			return r.stopped
		case err != nil:
			if err := r.reportGap(err); err != nil {
				return err
			}
			continue
		}
		if err := r.writer.Write(batch); err != nil {
			r.unwritten = true
			return err
		}
		if r.waiting.IsZero() {
			r.waiting = time.Now()
		}
		if r.file != nil && time.Since(r.saved) > saveEvery {
			if err := r.flushRows(); err != nil {
				return err
			}
		}
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
	}
	return r.stopped
}

// reportGap tells of messages that are missing; any other error ends the iteration.
func (r *queryRun) reportGap(err error) error {
	if !errors.Is(err, consumer.ErrGap) {
		return err
	}
	if r.flags.failOnGap {
		return &codedError{code: exitError, err: fmt.Errorf("%w: messages are missing; without --fail-on-gap the query skips them", err)}
	}
	r.gaps++
	r.stderr.printLine("scribe: gap: %v", err)
	return nil
}

// flushOnPause is called by the iteration when it is about to wait: the reader should see what there is.
func (r *queryRun) flushOnPause() {
	if r.stopped != nil || r.writer == nil {
		return
	}
	if r.format == export.Table && (r.waiting.IsZero() || !r.flags.follow && time.Since(r.waiting) < tableWait) {
		return
	}
	if err := r.flushRows(); err != nil {
		r.stopped = err
		r.finish(err)
	}
}

// flushRows hands out what was written, and then says so in the checkpoint. A Parquet file is handed out at its end.
func (r *queryRun) flushRows() error {
	if err := r.writer.Flush(); err != nil {
		r.unwritten = true
		return err
	}
	r.waiting = time.Time{}
	if r.format == export.Parquet || r.query.Explain().Grouped {
		return nil
	}
	return r.saveCheckpoint()
}

// saveCheckpoint keeps the place behind the rows that were handed out.
func (r *queryRun) saveCheckpoint() error {
	if r.file == nil {
		return nil
	}
	text := r.query.Checkpoint()
	if text == "" {
		return nil
	}
	r.saved = time.Now()
	return r.file.saveText(text)
}

// printExplanation runs the query and prints how it was answered.
func (r *queryRun) printExplanation(stdout io.Writer) error {
	begin := time.Now()
	for _, err := range r.query.Batches(r.ctx) {
		if err != nil {
			if err := r.reportGap(err); err != nil {
				return r.endError(err)
			}
		}
	}
	x := r.query.Explain()
	_, err := fmt.Fprintf(stdout, "%s%-10s %.3f s\n", x.String(), "time", time.Since(begin).Seconds())
	return err
}

// endError is what the end of the rows means for the caller.
func (r *queryRun) endError(err error) error {
	switch {
	case err == nil, errors.Is(err, syscall.EPIPE):
		return nil
	case r.signalled.Err() != nil && errors.Is(err, context.Canceled):
		return r.interruptedError()
	case errors.Is(err, context.Canceled):
		return nil // nobody reads any more
	case errors.Is(err, columns.ErrLimit), errors.Is(err, consumer.ErrDamaged):
		return &codedError{code: exitError, err: err}
	}
	return err
}

// interruptedError is the end by a signal.
func (r *queryRun) interruptedError() error {
	if r.flags.follow && !r.flags.limited {
		return nil
	}
	return errors.New("interrupted before the answer was complete")
}

// showProgress shows how far the query is, when a person looks at standard error and the rows go elsewhere. The function that it returns ends
// that.
func (r *queryRun) showProgress(stdout io.Writer) (stop func()) {
	if !isTerminal(r.stderr.w) || isTerminal(stdout) && r.flags.file == "" && !r.flags.explain {
		return func() {}
	}
	return r.stderr.keepShowing(func() string {
		s, left := r.query.Stats(), r.query.Backlog()
		return fmt.Sprintf("%d of %d pointers, %d skipped, %s fetched, %d rows read, %d matched",
			s.Payloads+s.Skipped, s.Pointers+left.Pointers, s.Skipped, units.About(s.FetchedBytes), s.RowsRead, s.RowsMatched)
	})
}
