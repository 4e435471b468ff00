package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/columnar/schema"
	"scribe/columnar/transcode"
	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/base/units"
	"scribe/internal/format/record"
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
	case f.format != "":
		if err := checkChoice("--format", f.format, "json", "ndjson", "csv"); err != nil {
			return o, err
		}
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
		var s *schema.Schema
		var seen schema.Report
		if category != "" {
			s, seen, err = inferCategory(cmd.Context(), *server, category, schema.Format(f.format), o)
		} else {
			s, seen, err = inferFiles(cmd.InOrStdin(), args, f.format, o)
		}
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
	samples := fileLines(stdin, names, o.CSV, o.MaxBytes, &failed)
	s, report, err := schema.Infer(samples, schema.Format(format), o)
	if failed != nil {
		return nil, report, failed
	}
	return s, report, err
}

// fileLines iterates over the lines of files, or over whole files if each begins with a header: a line alone has none. A whole file
// that is longer than limit is cut behind it. What ends the iteration early is in failed. A line is valid until the next one.
func fileLines(stdin io.Reader, names []string, csv *schema.CSVOptions, limit int, failed *error) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, name := range names {
			file, err := openInput(stdin, name)
			if err != nil {
				*failed = err
				return
			}
			more := true
			if csv != nil && csv.Header {
				var content []byte
				content, err = io.ReadAll(io.LimitReader(file.content, int64(limit)+1))
				more = err == nil && yield(content)
			} else {
				lines := bufio.NewScanner(file.content)
				lines.Buffer(make([]byte, 0, 64<<10), maxSampleLine)
				for more && lines.Scan() {
					more = yield(lines.Bytes())
				}
				err = lines.Err()
			}
			if err := errors.Join(app.WithoutPath(err), file.close()); err != nil {
				*failed = fmt.Errorf("%s: %w", name, err)
				return
			}
			if !more {
				return
			}
		}
	}
}

func newSchemaCheck() *cobra.Command {
	var against string
	var shown int
	cmd := &cobra.Command{
		Use:   "check FILE [SAMPLES...]",
		Short: "Check a schema file, alone, on samples, or against a category's schema",
		Long: `Check the schema in a file (- for stdin). All mistakes are reported at once, with line numbers.

With sample files, the command reports how many rows fit, and why others do not. Each line of a file is a message, as for "scribe produce";
if messages are CSV with a header, each file is a message.

--against compares it with the latest version of a category's schema: + marks compatible changes, ! incompatible ones.

The exit code is 1 if a row does not fit or a change is marked with !, and 2 if the schema is invalid.`,
		Example: `  scribe schema check access.yaml
  scribe schema check access.yaml access.jsonl
  scribe schema check access.yaml --against access`,
		Args: cobra.MinimumNArgs(1),
	}
	server := serverFlag(cmd)
	cmd.Flags().StringVar(&against, "against", "", "compare with the latest version of this category's schema")
	cmd.Flags().IntVar(&shown, "errors", 10, "how many of the rows that do not fit to show")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := readSchema(args[0], cmd.InOrStdin())
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %s\n", args[0], s.Format, countText(len(s.Fields), "field"))
		if len(args) > 1 {
			err = checkSamples(cmd.OutOrStdout(), cmd.InOrStdin(), s, args[1:], shown)
		}
		if against == "" {
			return err
		}
		category, cerr := getCategory(cmd.Context(), *server, "compare with category "+against, against)
		if cerr != nil {
			return errors.Join(err, cerr)
		}
		h, cerr := parseHistory(category)
		if cerr != nil {
			return errors.Join(err, cerr)
		}
		changesOf(cmd.OutOrStdout(), h, s)
		return errors.Join(err, checkCompatible(h, s, false))
	}
	return cmd
}

// maxCheckFrame is how many bytes of samples are checked at a time.
const maxCheckFrame = 1 << 20

// sampleChecker puts samples into frames, and counts which of their rows fit.
type sampleChecker struct {
	t     *transcode.Transcoder
	b     record.Builder
	out   io.Writer
	shown int // errors that are still shown
	// file is where the messages of the open frame are from, line the number of its first one.
	file      string
	line      int
	rows, bad int64
}

// checkSamples says how many rows of files fit a schema.
func checkSamples(out io.Writer, stdin io.Reader, s *schema.Schema, names []string, shown int) error {
	if s.Format == schema.Arrow {
		return usageError(errors.New("can't check samples of the format arrow: they are batches, not lines of a file"))
	}
	lenient := *s
	lenient.OnError = schema.OnErrorNull // rows that are rejected would not say why
	t, err := transcode.New(transcode.Spec{Schema: &lenient, Columns: []string{schema.ColumnError, transcode.ColumnIndex}})
	if err != nil {
		return err
	}
	c := &sampleChecker{t: t, out: out, shown: shown}
	for _, name := range names {
		var failed error
		samples := fileLines(stdin, []string{name}, s.CSV, maxSampleLine, &failed)
		if err := c.openFrame(name, 1); err != nil {
			return err
		}
		line := 0
		for sample := range samples {
			line++
			if err := c.addSample(sample, line); err != nil {
				return fmt.Errorf("%s: line %d: %w", name, line, err)
			}
		}
		if err := errors.Join(failed, c.checkOpenFrame()); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%d of %d rows fit\n", c.rows-c.bad, c.rows)
	if c.bad > 0 {
		return fmt.Errorf("the schema does not fit %s", countText(c.bad, "row"))
	}
	return nil
}

// openFrame begins a frame.
func (c *sampleChecker) openFrame(file string, line int) error {
	c.file, c.line = file, line
	return c.b.Reset(nil, record.Envelope{Category: "samples"})
}

func (c *sampleChecker) addSample(sample []byte, line int) error {
	if c.b.Count() > 0 && (c.b.Len()+len(sample) > maxCheckFrame || c.b.Count() == record.MaxMessagesPerFrame) {
		if err := errors.Join(c.checkOpenFrame(), c.openFrame(c.file, line)); err != nil {
			return err
		}
	}
	return c.b.AppendPayload(sample)
}

// checkOpenFrame checks the rows of the open frame.
func (c *sampleChecker) checkOpenFrame() error {
	if c.b.Count() == 0 {
		return nil
	}
	frame, err := c.b.Finish()
	if err != nil {
		return err
	}
	batch, _, err := c.t.Transcode(frame, nil)
	if err != nil {
		return err
	}
	defer batch.Release()
	why, whyOK := batch.Column(0).(*array.String)
	index, indexOK := batch.Column(1).(*array.Uint32)
	if !whyOK || !indexOK {
		return fmt.Errorf("columns of the types %s and %s", batch.Column(0).DataType(), batch.Column(1).DataType())
	}
	c.rows += batch.NumRows()
	for i := range why.Len() {
		if why.IsNull(i) {
			continue
		}
		if c.bad++; c.shown > 0 {
			c.shown--
			fmt.Fprintf(c.out, "%s: message %d: %s\n", c.file, c.line+int(index.Value(i)), why.Value(i))
		}
	}
	return nil
}
