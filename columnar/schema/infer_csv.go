package schema

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// readCSV reads the samples as lines and returns how lines are split.
func (c *sampleReader) readCSV() *CSVOptions {
	c.root = c.newSeenValues()
	o := &CSVOptions{Delimiter: ","}
	named := c.o.CSV != nil
	if named {
		*o = *c.o.CSV
	} else if len(c.samples) > 0 {
		o.Delimiter = guessDelimiter(c.samples[0])
	}
	messages := make([][][]string, 0, len(c.samples))
	for _, s := range c.samples {
		messages = append(messages, c.readLines(bytes.TrimPrefix(s, bom), o.Delimiter))
	}
	first := 0 // lines at the start of the first message that are not rows
	if !named {
		first = findHeader(messages, o)
	}
	names := o.Columns
	c.object++
	for i, lines := range messages {
		if o.Header && len(lines) > 0 {
			names, lines = lines[0], lines[1:]
		} else if i == 0 {
			lines = lines[min(first, len(lines)):]
		}
		for _, cells := range lines {
			if int(c.report.Rows) >= c.o.MaxRows {
				c.report.Cut = true
				return o
			}
			c.noteLine(names, cells, o.Null)
		}
	}
	return o
}

func guessDelimiter(sample []byte) string {
	line, _, _ := bytes.Cut(sample, []byte("\n"))
	best, most := ",", 0
	for _, d := range []string{",", ";", "\t", "|"} {
		if n := bytes.Count(line, []byte(d)); n > most {
			best, most = d, n
		}
	}
	return best
}

func (c *sampleReader) readLines(sample []byte, delimiter string) [][]string {
	r := csv.NewReader(bytes.NewReader(sample))
	r.Comma, r.FieldsPerRecord = []rune(delimiter + ",")[0], -1
	var lines [][]string
	for len(lines) <= c.o.MaxRows {
		cells, err := r.Read()
		switch perr := new(csv.ParseError); {
		case errors.Is(err, io.EOF):
			return lines
		case errors.As(err, &perr):
			c.skipRow("line %d of a message: %v", perr.StartLine, perr.Err)
			continue
		case err != nil:
			c.skipRow("%v", err)
			return lines
		}
		lines = append(lines, cells)
	}
	return lines
}

// findHeader detects where the columns are named: in each message, only in the first one, or nowhere. It returns the number of
// lines at the start of the first message that are not rows.
func findHeader(messages [][][]string, o *CSVOptions) int {
	i := slices.IndexFunc(messages, func(lines [][]string) bool { return len(lines) > 0 })
	if i < 0 {
		return 0
	}
	first := messages[i][0]
	again := 0
	for _, lines := range messages[i+1:] {
		if len(lines) > 0 && slices.Equal(lines[0], first) {
			again++
		}
	}
	switch {
	case !looksNamed(first):
		for j := range first {
			o.Columns = append(o.Columns, fmt.Sprintf("c%d", j+1))
		}
		return 0
	case again > 0 && again == len(messages)-1-i, len(messages) == 1 && len(messages[0]) > 1:
		o.Header = true
		return 0
	default:
		o.Columns = slices.Clone(first)
		return 1
	}
}

// looksNamed reports whether the cells of a line look like column names: distinct texts.
func looksNamed(cells []string) bool {
	taken := map[string]bool{}
	for _, cell := range cells {
		if cell == "" || taken[cell] || jsonNumber.MatchString(cell) || cell == "true" || cell == "false" || guessFormat(cell, "") != "" || len(cell) > MaxName ||
			!utf8.ValidString(cell) || strings.ContainsFunc(cell, unicode.IsControl) {
			return false
		}
		taken[cell] = true
	}
	return true
}

// noteLine records the cells of a line.
func (c *sampleReader) noteLine(names, cells []string, null string) {
	c.report.Rows++
	c.root.rows++
	c.root.objects++
	for i, cell := range cells {
		if i >= len(names) || names[i] == "" {
			c.root.dropped++
			continue
		}
		n := c.memberNode(c.root, names[i])
		if n == nil {
			continue
		}
		n.rows++
		cell = strings.ToValidUTF8(cell, "\ufffd")
		switch {
		case cell == null:
			n.nulls++
		case jsonNumber.MatchString(cell):
			n.addNumber(cell)
		case cell == "true" || cell == "false":
			n.bools++
		default:
			n.addText(cell)
		}
	}
}
