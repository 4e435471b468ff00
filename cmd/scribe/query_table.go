package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/spf13/cobra"

	"scribe/columnar/export"
	"scribe/columnar/listing"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	scribev1 "scribe/proto/scribe/v1"
)

// terminalRows is the number of rows of a table on a terminal, after which others are counted, but not printed.
const terminalRows = 1000

// adaptTable sets what bounds a table where no flag does: a terminal has a width, and nobody reads thousands of rows there.
func (f *queryFlags) adaptTable(cmd *cobra.Command) {
	width := terminalWidth(cmd.OutOrStdout())
	if width == 0 || f.file != "" {
		return
	}
	if !cmd.Flags().Changed("width") {
		f.width = width
	}
	if !cmd.Flags().Changed("rows") && !f.follow && f.checkpoint == "" {
		f.rows = terminalRows
	}
}

// newWriter returns what prints rows in a format.
func (f *queryFlags) newWriter(format export.Format, out io.Writer, s *arrow.Schema) (export.Writer, error) {
	if format == export.Table && (f.width > 0 || f.rows > 0) {
		return export.NewTable(out, s, export.TableLimits{Width: f.width, Rows: f.rows}), nil
	}
	return export.New(format, out, s)
}

// reportHidden says how much of a table is not shown, if anything.
func reportHidden(stderr *statusLine, w export.Writer) {
	table, ok := w.(export.TableWriter)
	if !ok {
		return
	}
	var parts, advice []string
	if n := table.HiddenRows(); n > 0 {
		parts, advice = append(parts, countText(n, "row")), append(advice, "--rows 0")
	}
	if n := table.HiddenColumns(); n > 0 {
		parts = append(parts, countText(n, "column"))
	}
	hidden := ""
	if len(parts) > 0 {
		hidden = strings.Join(parts, " and ") + " not shown"
	}
	if n := table.CutLines(); n > 0 {
		if advice = append(advice, "--width 0"); hidden != "" {
			hidden += ", "
		}
		hidden += countText(n, "line") + " cut"
	}
	if hidden != "" {
		stderr.printLine("scribe: %s: use %s or -o jsonl, or ask for less", hidden, strings.Join(advice, ", "))
	}
}

// printListing answers SHOW TABLES and DESCRIBE.
func (f *queryFlags) printListing(cmd *cobra.Command, server string, show *sql.Show, format export.Format) (err error) {
	for _, name := range []string{"from", "to", "follow", "checkpoint", "explain", "stats"} {
		if cmd.Flags().Changed(name) {
			return usageError(fmt.Errorf("%s reads no messages: remove --%s", show, name))
		}
	}
	var rows arrow.RecordBatch
	if show.Category == "" {
		var names []string
		err := eachCategory(cmd.Context(), server, "", func(c *scribev1.Category) error {
			names = append(names, c.GetName())
			return nil
		})
		if err != nil {
			return err
		}
		rows = listing.TableRows(names)
	} else {
		c, err := getCategory(cmd.Context(), server, "describe "+show.Category, show.Category)
		if err != nil {
			return err
		}
		h, err := schema.ParseHistory(c.GetSchema())
		if err != nil {
			return fmt.Errorf("read the schema of category %s: %w", show.Category, err)
		}
		rows = listing.ColumnRows(listing.Columns(h.Current()))
	}
	defer rows.Release()
	if f.limited {
		rows = rows.NewSlice(0, int64(min(f.count, uint64(rows.NumRows())))) //nolint:gosec // not negative
		defer rows.Release()
	}
	r := &queryRun{flags: f, ctx: cmd.Context()}
	out, closed, err := r.openOutput(cmd.OutOrStdout())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closed()) }()
	w, err := f.newWriter(format, out, rows.Schema())
	if err != nil {
		return usageError(err)
	}
	if err := errors.Join(w.Write(rows), w.Close()); err != nil {
		return err
	}
	reportHidden(newStatusLine(cmd.ErrOrStderr()), w)
	return nil
}

// eachCategory calls a function with each category that the caller may see and whose name has a prefix, by name.
func eachCategory(ctx context.Context, server, prefix string, do func(*scribev1.Category) error) error {
	for req := (&scribev1.ListCategoriesRequest{Prefix: prefix}); ; {
		res, err := callCell(ctx, server, "list categories", controlClient(server).ListCategories, req)
		if err != nil {
			return err
		}
		for _, c := range res.GetCategories() {
			req.After = c.GetName()
			if err := do(c); err != nil {
				return err
			}
		}
		if !res.GetMore() {
			return nil
		}
	}
}
