package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"scribe/columnar/export"
	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/base/units"
)

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
	rows    uint64
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
	if r.writer, err = export.New(format, out, r.query.Schema()); err != nil {
		return usageError(err)
	}
	err = r.endError(r.printRows())
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
	if r.unwritten || err != nil && r.query.Explain().Grouped {
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
		r.rows += uint64(batch.NumRows()) //nolint:gosec // not negative
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
