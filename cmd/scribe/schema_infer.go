package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"scribe/columnar/schema"
	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/base/units"
)

// maxSampleLine is the longest line of a file of samples: a message's largest size.
const maxSampleLine = 32 << 20

// Bounds of what is inferred from.
const (
	maxInferRows              = 10_000_000
	minInferBytes units.Bytes = 1 << 10
	maxInferBytes units.Bytes = 1 << 30
)

// inferFlags are what inferring is told.
type inferFlags struct {
	format    string
	rows      int
	bytes     units.Bytes
	nullable  bool
	reject    bool
	header    bool
	delimiter string
}

func (f *inferFlags) addFlags(cmd *cobra.Command) {
	o := schema.DefaultInferOptions()
	f.rows, f.bytes = o.MaxRows, units.Bytes(o.MaxBytes)
	fs := cmd.Flags()
	fs.StringVar(&f.format, "format", "", "json, ndjson or csv (default: detected from the messages or the file name)")
	fs.IntVar(&f.rows, "rows", f.rows, "most rows to read")
	fs.Var(&f.bytes, "bytes", "most bytes to read")
	fs.BoolVar(&f.nullable, "nullable", false, "make all columns nullable, even if every sample has them")
	fs.BoolVar(&f.reject, "reject", false, "write on_error: reject into the schema")
	fs.BoolVar(&f.header, "csv-header", false, "the first line of each message names the columns")
	fs.StringVar(&f.delimiter, "csv-delimiter", "", "delimiter between values (default: detected from the first line)")
}

func (f *inferFlags) inferOptions() (schema.InferOptions, error) {
	o := schema.DefaultInferOptions()
	switch {
	case f.rows < 1 || f.rows > maxInferRows:
		return o, usageError(fmt.Errorf("invalid value %d for --rows: want 1 to %d", f.rows, maxInferRows))
	case f.bytes < minInferBytes || f.bytes > maxInferBytes:
		return o, usageError(fmt.Errorf("invalid value %v for --bytes: want %v to %v", f.bytes, minInferBytes, maxInferBytes))
	case f.format != "" && !slices.Contains([]string{"json", "ndjson", "csv"}, f.format):
		return o, usageError(fmt.Errorf("invalid value %q for --format: want json, ndjson or csv", f.format))
	}
	o.MaxRows, o.MaxBytes, o.Nullable = f.rows, int(f.bytes), f.nullable
	if f.reject {
		o.OnError = schema.OnErrorReject
	}
	if f.header || f.delimiter != "" {
		if !f.header {
			return o, usageError(errors.New("--csv-delimiter needs --csv-header; without a header, declare the columns in a schema"))
		}
		o.CSV = &schema.CSVOptions{Delimiter: ",", Header: true}
		if f.delimiter != "" {
			o.CSV.Delimiter = f.delimiter
		}
	}
	return o, usageError(o.Validate())
}

func newSchemaInfer() *cobra.Command {
	var f inferFlags
	var category string
	var set, report bool
	cmd := &cobra.Command{
		Use:   "infer [FILE...]",
		Short: "Infer a schema from samples",
		Long: `Infer a schema from sample messages and print it. The samples are the lines of files (- for stdin), as for "scribe produce", or with --category
the first messages of a category. --set makes the result that category's schema.

Objects become structs, or maps if their keys look like data (hosts, numbers, ids). Numbers get the narrowest type that fits. Strings
that are all times in known formats become timestamps or dates, and so do integers whose names and sizes suggest it. A column with few
distinct strings in many rows becomes a dictionary. Mixed types become a string. A column is not nullable only if there are at least 100
rows and all have it. --report explains what was seen of each field and why its type was chosen.

The first line of a CSV file may name the columns; the schema uses these names, and the line is not a message. Use --csv-header if each
message has many lines and begins with such a header; each file is then one message.`,
		Example: `  scribe schema infer access.jsonl > access.yaml
  scribe schema infer access.jsonl --report -o json > access.json
  scribe schema infer --category access --set`,
	}
	server, format := serverFlag(cmd), schemaFormat(cmd)
	f.addFlags(cmd)
	cmd.Flags().StringVar(&category, "category", "", "infer the schema from the first messages of this category")
	cmd.Flags().BoolVar(&set, "set", false, "set it as the schema of --category; it must be compatible with an existing one")
	cmd.Flags().BoolVar(&report, "report", false, "print details of each field on standard error")
	cmd.Args = func(_ *cobra.Command, args []string) error {
		switch {
		case (category == "") == (len(args) == 0):
			return errors.New("want either files or --category")
		case set && category == "":
			return errors.New("--set needs --category")
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		output, err := format()
		if err != nil {
			return err
		}
		o, err := f.inferOptions()
		if err != nil {
			return err
		}
		infer := func() (*schema.Schema, schema.Report, error) { return inferFiles(cmd.InOrStdin(), args, f.format, o) }
		if category != "" {
			infer = func() (*schema.Schema, schema.Report, error) {
				return inferCategory(cmd.Context(), *server, category, schema.Format(f.format), o)
			}
		}
		s, seen, err := infer()
		if err != nil {
			return err
		}
		if report {
			err = seen.Print(cmd.ErrOrStderr())
		} else {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s from %s; %s could not be read\n", countText(len(s.Fields), "column"), countText(seen.Rows, "row"), countText(seen.Skipped, "row"))
		}
		if err == nil && set {
			err = setInferred(cmd, *server, category, s)
		}
		return errors.Join(err, writeSchema(cmd.OutOrStdout(), s, output))
	}
	return cmd
}

// setInferred makes an inferred schema a category's.
func setInferred(cmd *cobra.Command, server, name string, s *schema.Schema) error {
	category, err := getCategory(cmd.Context(), server, "set the schema of category "+name, name)
	if err != nil {
		return err
	}
	h, err := parseHistory(category)
	if err != nil {
		return err
	}
	if changesOf(cmd.ErrOrStderr(), h, s) {
		return nil
	}
	if err := checkCompatible(h, s, false); err != nil {
		return fmt.Errorf("%w; with --nullable all columns may be null, as in a schema that a query inferred", err)
	}
	return setSchema(cmd, server, category, s, false)
}

func inferCategory(ctx context.Context, server, name string, format schema.Format, o schema.InferOptions) (*schema.Schema, schema.Report, error) {
	c, err := consumer.New(server, name, consumer.WithRetryTimeout(callTimeout))
	if err != nil {
		return nil, schema.Report{}, usageError(err)
	}
	s, report, err := columns.InferSchema(ctx, c, format, o)
	return s, report, errors.Join(err, c.Close())
}

// inferFiles infers from the lines of files.
func inferFiles(stdin io.Reader, names []string, format string, o schema.InferOptions) (*schema.Schema, schema.Report, error) {
	if format == "" {
		switch strings.ToLower(filepath.Ext(names[0])) {
		case ".csv", ".tsv":
			format = string(schema.CSV)
		}
	}
	var failed error
	samples := fileLines(stdin, names, &failed)
	if o.CSV != nil && o.CSV.Header {
		samples = wholeFiles(stdin, names, o.MaxBytes, &failed) // a line alone has no header
	}
	s, report, err := schema.Infer(samples, schema.Format(format), o)
	if failed != nil {
		return nil, report, failed
	}
	return s, report, err
}

// fileLines iterates over the lines of files. What ends it early is in failed. A line is valid until the next one.
func fileLines(stdin io.Reader, names []string, failed *error) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, name := range names {
			file, done, err := openInput(stdin, name)
			if err != nil {
				*failed = err
				return
			}
			lines := bufio.NewScanner(file)
			lines.Buffer(make([]byte, 0, 64<<10), maxSampleLine)
			for lines.Scan() {
				if !yield(lines.Bytes()) {
					_ = done()
					return
				}
			}
			if err := errors.Join(withoutPath(lines.Err()), done()); err != nil {
				*failed = fmt.Errorf("%s: %w", name, err)
				return
			}
		}
	}
}

// wholeFiles iterates over files, each a message. One that is longer than limit is cut behind it.
func wholeFiles(stdin io.Reader, names []string, limit int, failed *error) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, name := range names {
			file, done, err := openInput(stdin, name)
			if err != nil {
				*failed = err
				return
			}
			content, err := io.ReadAll(io.LimitReader(file, int64(limit)+1))
			if err := errors.Join(withoutPath(err), done()); err != nil {
				*failed = fmt.Errorf("%s: %w", name, err)
				return
			}
			if !yield(content) {
				return
			}
		}
	}
}
