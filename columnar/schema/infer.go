package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"unicode/utf8"
)

// ErrNoRows means that the samples contain no readable row, so no schema can be inferred.
var ErrNoRows = errors.New("no row could be read")

// InferOptions configures [Infer]. Start from [DefaultInferOptions].
type InferOptions struct {
	// MaxRows and MaxBytes bound how much of the samples is read.
	MaxRows  int
	MaxBytes int
	// MinRows is the minimum number of rows before a column with a value in every row is declared not nullable.
	MinRows int
	// Nullable makes all columns nullable, whatever the samples show. A schema that nobody reviews should not reject later rows.
	Nullable bool
	// OnError is copied into the schema.
	OnError OnError
	// CSV describes how lines are split. If it is nil, the first lines decide.
	CSV *CSVOptions
}

// DefaultInferOptions returns the defaults: 10,000 rows and 8 MiB at most.
func DefaultInferOptions() InferOptions {
	return InferOptions{MaxRows: 10_000, MaxBytes: 8 << 20, MinRows: 100, OnError: OnErrorNull}
}

// Validate reports every option that is out of range.
func (o InferOptions) Validate() error {
	var errs []error
	between := func(name string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("schema: infer: %s is %d, want %d to %d", name, v, low, high))
		}
	}
	between("MaxRows", o.MaxRows, 1, 10_000_000)
	between("MaxBytes", o.MaxBytes, 1<<10, 1<<30)
	between("MinRows", o.MinRows, 1, 10_000_000)
	if !slices.Contains(onErrors, string(o.OnError)) {
		errs = append(errs, fmt.Errorf("schema: infer: OnError is %q, want null or reject", o.OnError))
	}
	return errors.Join(errs...)
}

// Infer makes a schema of version 1 from sample messages of a format: JSON, NDJSON or CSV. The format "" selects JSON or NDJSON
// by the samples. Samples are not kept. The report counts what can't be read; if nothing can be read, the error is [ErrNoRows].
//
// Objects become structs, or maps if their keys look like data. Numbers become as wide as the values seen. Texts that are all
// instants of known formats become timestamps or dates, and so do whole numbers with a matching name and range. Texts with few
// distinct values among many rows become a dictionary. Values of several kinds become a string, which accepts everything.
func Infer(samples iter.Seq[[]byte], format Format, o InferOptions) (*Schema, Report, error) {
	if err := o.Validate(); err != nil {
		return nil, Report{}, err
	}
	c := &sampleReader{o: o}
	c.readSamples(samples)
	if format == "" {
		var err error
		if format, err = detectFormat(c.samples); err != nil {
			return nil, c.report, err
		}
	}
	s := &Schema{Version: 1, Format: format, OnError: o.OnError}
	switch format {
	case JSON, NDJSON:
		c.readJSON(format)
	case CSV:
		s.CSV = c.readCSV()
	case Avro, Protobuf:
		return nil, c.report, problemf("messages of the format %s do not describe themselves: declare the schema that they were written with", format)
	case Arrow:
		return nil, c.report, problemf("Arrow batches have a schema of their own: it is not inferred from their bytes")
	default:
		return nil, c.report, problemf("invalid format %q: want json, ndjson or csv", clipText(string(format)))
	}
	if c.report.Rows == 0 {
		return nil, c.report, c.noRows()
	}
	d := &typeChooser{o: o, report: &c.report}
	s.Fields = d.chooseColumns(c.root)
	if len(s.Fields) == 0 {
		return nil, c.report, fmt.Errorf("schema: infer: %w: the rows have no fields", ErrNoRows)
	}
	return s, c.report, s.Validate()
}

// sampleReader keeps samples within the bounds, and the observations of their rows.
type sampleReader struct {
	o       InferOptions
	samples [][]byte
	report  Report
	root    *seenValues
	nodes   int
	// object numbers the objects read, so that duplicate keys are detected.
	object uint64
}

func (c *sampleReader) noRows() error {
	if len(c.report.Why) > 0 {
		return fmt.Errorf("schema: infer: %w of %d: %s", ErrNoRows, c.report.Skipped, c.report.Why[0])
	}
	return fmt.Errorf("schema: infer: %w: there are no messages", ErrNoRows)
}

// skipRow counts a row that can't be read, and records why.
func (c *sampleReader) skipRow(format string, args ...any) {
	const most = 5
	c.report.Skipped++
	if len(c.report.Why) < most {
		c.report.Why = append(c.report.Why, fmt.Sprintf(format, args...))
	}
}

func (c *sampleReader) readSamples(samples iter.Seq[[]byte]) {
	left := c.o.MaxBytes
	for sample := range samples {
		if len(c.samples) >= c.o.MaxRows || left <= 0 {
			c.report.Cut = true
			return
		}
		if len(sample) > left {
			// A truncated sample of lines is still usable.
			end := bytes.LastIndexByte(sample[:left], '\n')
			c.report.Cut = true
			if end < 0 {
				if len(c.samples) == 0 {
					c.skipRow("a message of %d bytes is larger than the limit of samples (%d)", len(sample), c.o.MaxBytes)
					continue
				}
				return
			}
			sample = sample[:end]
		}
		left -= len(sample)
		c.report.Messages++
		c.report.Bytes += int64(len(sample))
		c.samples = append(c.samples, bytes.Clone(sample))
	}
}

var bom = []byte("\ufeff")

// detectFormat reports whether samples are JSON objects, or lines of them.
func detectFormat(samples [][]byte) (Format, error) {
	const most = 100
	whole, lines, tried := 0, 0, 0
	for _, s := range samples[:min(len(samples), most)] {
		s = bytes.TrimSpace(bytes.TrimPrefix(s, bom))
		if len(s) == 0 {
			continue
		}
		tried++
		switch first, _, many := bytes.Cut(s, []byte("\n")); {
		case s[0] == '{' && json.Valid(s):
			whole++
		case many && s[0] == '{' && json.Valid(first):
			lines++
		}
	}
	switch {
	case tried == 0:
		return "", fmt.Errorf("schema: infer: %w: there are no messages", ErrNoRows)
	case lines > 0 && whole+lines > tried/2:
		return NDJSON, nil
	case whole > tried/2:
		return JSON, nil
	default:
		return "", fmt.Errorf("schema: infer: %w: %d of %d messages are not JSON objects: name the format, or declare a schema", ErrNoRows, tried-whole-lines, tried)
	}
}

// readJSON reads the samples as JSON objects, or as lines of them.
func (c *sampleReader) readJSON(format Format) {
	c.root = c.newSeenValues()
	for _, sample := range c.samples {
		sample = bytes.TrimPrefix(sample, bom)
		if format == JSON {
			c.readRow(sample)
			continue
		}
		for line := range bytes.SplitSeq(sample, []byte("\n")) {
			if line = bytes.TrimSpace(line); len(line) > 0 {
				c.readRow(line)
			}
		}
	}
}

// maxRowDepth is the maximum nesting depth of a JSON row.
const maxRowDepth = 128

func (c *sampleReader) readRow(row []byte) {
	if int(c.report.Rows) >= c.o.MaxRows {
		c.report.Cut = true
		return
	}
	row = bytes.TrimSpace(row)
	switch {
	case len(row) == 0:
		c.skipRow("empty message")
	case !utf8.Valid(row):
		c.skipRow("a row is not UTF-8: %s", clipText(fmt.Sprintf("%q", row[:min(len(row), 100)])))
	case tooDeep(row):
		c.skipRow("a row is nested too deep: the limit is %d levels", maxRowDepth)
	case row[0] != '{' || !json.Valid(row):
		c.skipRow("a row is not a JSON object: %s", clipText(string(row)))
	default:
		c.report.Rows++
		d := json.NewDecoder(bytes.NewReader(row))
		d.UseNumber()
		c.readValue(d, c.root, 0)
	}
}

// tooDeep reports whether a row nests too deep, by counting brackets.
func tooDeep(row []byte) bool {
	depth, quoted := 0, false
	for i := 0; i < len(row); i++ {
		switch c := row[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxRowDepth {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// readValue records the next value of a valid row in n. If n is nil, the value is skipped.
func (c *sampleReader) readValue(d *json.Decoder, n *seenValues, depth int) {
	if n == nil {
		_ = d.Decode(new(json.RawMessage))
		return
	}
	token, err := d.Token()
	if err != nil {
		return
	}
	n.rows++
	switch t := token.(type) {
	case nil:
		n.nulls++
	case bool:
		n.bools++
	case json.Number:
		n.addNumber(t.String())
	case string:
		n.addText(t)
	case json.Delim:
		switch {
		case depth >= maxShapeDepth: // its content is not recorded
			n.objects++
			n.deep = true
			for d.More() {
				if t == '{' {
					_, _ = d.Token() // the key
				}
				c.readValue(d, nil, depth)
			}
			_, _ = d.Token() // the bracket
		case t == '{':
			n.objects++
			c.readMembers(d, n, depth)
		default:
			n.arrays++
			c.readElements(d, n, depth)
		}
	}
}

func (c *sampleReader) readMembers(d *json.Decoder, n *seenValues, depth int) {
	c.object++
	object := c.object
	for d.More() {
		token, err := d.Token()
		key, ok := token.(string)
		if err != nil || !ok {
			return
		}
		in := c.memberNode(n, key)
		if in != nil {
			if in != n.elem && in.object == object {
				in = nil // the first of duplicate keys counts
			} else {
				in.object = object
			}
		}
		c.readValue(d, in, depth+1)
	}
	_, _ = d.Token() // the bracket
}

// memberNode returns the observation for a key of an object, or nil if a limit is reached.
func (c *sampleReader) memberNode(n *seenValues, key string) *seenValues {
	if n.elem != nil {
		return n.elem
	}
	if in, ok := n.fields[key]; ok {
		return in
	}
	if len(n.keys) >= maxObjectKeys && n != c.root {
		n.foldMembers()
		return n.elem
	}
	in := c.newSeenValues()
	if in == nil || len(key) > MaxKey {
		n.dropped++
		return nil
	}
	n.fields[key] = in
	n.keys = append(n.keys, key)
	return in
}

func (c *sampleReader) readElements(d *json.Decoder, n *seenValues, depth int) {
	if n.item == nil {
		n.item = c.newSeenValues()
	}
	for d.More() {
		c.readValue(d, n.item, depth+1)
	}
	_, _ = d.Token() // the bracket
}

// newSeenValues returns a new node, or nil if the limit is reached.
func (c *sampleReader) newSeenValues() *seenValues {
	if c.nodes >= maxNodesSeen {
		return nil
	}
	c.nodes++
	return newSeen()
}
