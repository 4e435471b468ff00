package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/spf13/cobra"

	"scribe/columnar/schema"
	"scribe/columnar/transcode"
	"scribe/internal/format/record"
)

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
