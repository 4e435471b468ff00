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

// ErrNoRows says that samples had no row from which a schema could be inferred.
var ErrNoRows = errors.New("no row could be read")

// InferOptions bound and steer [Infer]. Start from [DefaultInferOptions].
type InferOptions struct {
	// MaxRows and MaxBytes are how much of the samples is read.
	MaxRows  int
	MaxBytes int
	// MinRows is how many rows must have a value before its column is declared to have one always.
	MinRows int
	// Nullable makes all columns nullable, whatever the samples have: a schema that nobody looks at should not refuse what comes later.
	Nullable bool
	// OnError is taken over into the schema.
	OnError OnError
	// CSV says how lines are cut. Without it that is found out from the first lines.
	CSV *CSVOptions
}

// DefaultInferOptions returns the defaults: 10,000 rows of at most 8 MiB.
func DefaultInferOptions() InferOptions {
	return InferOptions{MaxRows: 10_000, MaxBytes: 8 << 20, MinRows: 100, OnError: OnErrorNull}
}

// Validate reports every option that is out of its range.
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

// Infer makes a schema of version 1 from sample messages of a format: JSON, NDJSON or CSV, or with "" JSON or NDJSON, whichever they are.
// Samples are not kept. What can't be read of them is counted in the report; when that is all, the error is [ErrNoRows].
//
// Objects become structs, or maps where their keys look like data; numbers become as wide as what was seen; texts that all are instants
// of known formats become timestamps or dates, and so do whole numbers whose name and size say so; few texts among many rows become a
// dictionary. What was of several kinds becomes a string, which takes everything.
func Infer(samples iter.Seq[[]byte], format Format, o InferOptions) (*Schema, Report, error) {
	if err := o.Validate(); err != nil {
		return nil, Report{}, err
	}
	c := &collector{o: o}
	c.collect(samples)
	if format == "" {
		var err error
		if format, err = detect(c.samples); err != nil {
			return nil, c.report, err
		}
	}
	s := &Schema{Version: 1, Format: format, OnError: o.OnError}
	switch format {
	case JSON, NDJSON:
		c.json(format)
	case CSV:
		s.CSV = c.csv()
	case Avro, Protobuf:
		return nil, c.report, problem("messages of the format %s do not say what they hold: write down the schema that they were written with", format)
	case Arrow:
		return nil, c.report, problem("Arrow batches have a schema of their own, which is not inferred from their bytes")
	default:
		return nil, c.report, problem("%q is none of json, ndjson, csv", clip(string(format)))
	}
	if c.report.Rows == 0 {
		return nil, c.report, c.nothing()
	}
	d := &decider{o: o, report: &c.report}
	s.Fields = d.columns(c.root)
	if len(s.Fields) == 0 {
		return nil, c.report, fmt.Errorf("schema: infer: %w: the rows have no fields", ErrNoRows)
	}
	return s, c.report, s.Validate()
}

// collector keeps samples within bounds, and what was seen in their rows.
type collector struct {
	o       InferOptions
	samples [][]byte
	report  Report
	root    *seen
	nodes   int
	// object numbers the objects that were read, so that a key that is there twice is found out.
	object uint64
}

func (c *collector) nothing() error {
	if len(c.report.Why) > 0 {
		return fmt.Errorf("schema: infer: %w of %d: %s", ErrNoRows, c.report.Skipped, c.report.Why[0])
	}
	return fmt.Errorf("schema: infer: %w: there are no messages", ErrNoRows)
}

// skip counts a row that is not read.
func (c *collector) skip(format string, args ...any) {
	const most = 5
	c.report.Skipped++
	if len(c.report.Why) < most {
		c.report.Why = append(c.report.Why, fmt.Sprintf(format, args...))
	}
}

func (c *collector) collect(samples iter.Seq[[]byte]) {
	left := c.o.MaxBytes
	for sample := range samples {
		if len(c.samples) >= c.o.MaxRows || left <= 0 {
			c.report.Cut = true
			return
		}
		if len(sample) > left {
			// What has lines is of use when its end is missing.
			end := bytes.LastIndexByte(sample[:left], '\n')
			c.report.Cut = true
			if end < 0 {
				if len(c.samples) == 0 {
					c.skip("a message of %d bytes is larger than all that is read (%d)", len(sample), c.o.MaxBytes)
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

// detect says whether samples are JSON objects, or lines of them.
func detect(samples [][]byte) (Format, error) {
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
		return "", fmt.Errorf("schema: infer: %w: %d of %d messages are no JSON objects; name the format, or declare a schema", ErrNoRows, tried-whole-lines, tried)
	}
}

// json reads the samples as JSON objects, or lines of them.
func (c *collector) json(format Format) {
	c.root = c.node()
	for _, sample := range c.samples {
		sample = bytes.TrimPrefix(sample, bom)
		if format == JSON {
			c.row(sample)
			continue
		}
		for line := range bytes.SplitSeq(sample, []byte("\n")) {
			if line = bytes.TrimSpace(line); len(line) > 0 {
				c.row(line)
			}
		}
	}
}

// maxRowDepth is how deep a row of JSON may nest.
const maxRowDepth = 128

func (c *collector) row(row []byte) {
	if int(c.report.Rows) >= c.o.MaxRows {
		c.report.Cut = true
		return
	}
	row = bytes.TrimSpace(row)
	switch {
	case len(row) == 0:
		c.skip("a message is empty")
	case !utf8.Valid(row):
		c.skip("a row is not UTF-8: %s", clip(fmt.Sprintf("%q", row[:min(len(row), 100)])))
	case tooDeep(row):
		c.skip("a row nests more than %d deep", maxRowDepth)
	case row[0] != '{' || !json.Valid(row):
		c.skip("a row is no JSON object: %s", clip(string(row)))
	default:
		c.report.Rows++
		d := json.NewDecoder(bytes.NewReader(row))
		d.UseNumber()
		c.value(d, row, c.root, 0)
	}
}

// tooDeep looks at brackets alone.
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

// value reads the next value of a row that is valid. n may be nil: then it is passed over.
func (c *collector) value(d *json.Decoder, row []byte, n *seen, depth int) {
	token, err := d.Token()
	if err != nil {
		return
	}
	switch t := token.(type) {
	case nil:
		n.null()
	case bool:
		n.bool()
	case json.Number:
		n.number(t.String())
	case string:
		n.text(t)
	case json.Delim:
		if depth >= maxShapeDepth {
			n.deeper()
			n = nil // what is in it is seen nowhere
		}
		if t == '{' {
			c.members(d, row, n, depth)
		} else {
			c.elements(d, row, n, depth)
		}
	}
}

func (c *collector) members(d *json.Decoder, row []byte, n *seen, depth int) {
	if n != nil {
		n.rows++
		n.objects++
	}
	c.object++
	object := c.object
	for d.More() {
		token, err := d.Token()
		key, ok := token.(string)
		if err != nil || !ok {
			return
		}
		var in *seen
		if n != nil {
			// Of equal keys the first counts.
			if in = c.member(n, key); in != nil && in != n.elem && in.object == object {
				in = nil
			}
			if in != nil {
				in.object = object
			}
		}
		c.value(d, row, in, depth+1)
	}
	_, _ = d.Token() // the bracket
}

// member returns what is seen under a key of an object, nil if there is no room for more.
func (c *collector) member(n *seen, key string) *seen {
	if n.elem != nil {
		return n.elem
	}
	if in, ok := n.fields[key]; ok {
		return in
	}
	if len(n.keys) >= maxObjectKeys && n != c.root {
		n.fold()
		return n.elem
	}
	in := c.node()
	if in == nil || len(key) > MaxKey {
		n.dropped++
		return nil
	}
	if n.fields == nil {
		n.fields = map[string]*seen{}
	}
	n.fields[key] = in
	n.keys = append(n.keys, key)
	return in
}

func (c *collector) elements(d *json.Decoder, row []byte, n *seen, depth int) {
	var in *seen
	if n != nil {
		n.rows++
		n.arrays++
		if n.item == nil {
			n.item = c.node()
		}
		in = n.item
	}
	for d.More() {
		c.value(d, row, in, depth+1)
	}
	_, _ = d.Token() // the bracket
}

// node returns a new node, nil when there are too many.
func (c *collector) node() *seen {
	if c.nodes >= maxNodesSeen {
		return nil
	}
	c.nodes++
	return &seen{}
}
