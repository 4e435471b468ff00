package restrict

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"pgregory.net/rapid"

	"scribe/columnar"
	"scribe/columnar/export"
	"scribe/columnar/finish"
	"scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/transcode"
	"scribe/internal/format/record"
)

// A table of the property's model: what a row has, as plain values; nil is null. Each text that a row has nowhere else is a secret.
type modelRow struct {
	region, card, note any
	amount             any
	key                string
}

var modelColumns = []string{"region", "card", "amount", "note"}

func (r *modelRow) value(column string) any {
	return map[string]any{"region": r.region, "card": r.card, "amount": r.amount, "note": r.note}[column]
}

// modelCondition is a condition as text, and as what it means.
type modelCondition struct {
	text  string
	holds func(r *modelRow) bool
}

func number(v any) (int64, bool) { n, ok := v.(int64); return n, ok }

var modelConditions = []modelCondition{
	{"", nil},
	{"region = 'eu'", func(r *modelRow) bool { return r.region == "eu" }},
	{"amount > 10", func(r *modelRow) bool { n, ok := number(r.amount); return ok && n > 10 }},
	{"region = 'us' or amount is null", func(r *modelRow) bool { return r.region == "us" || r.amount == nil }},
	{"not (region = 'eu') and note like '%7%'", func(r *modelRow) bool {
		note, _ := r.note.(string)
		return r.region != nil && r.region != "eu" && strings.Contains(note, "7")
	}},
	{"amount + 1 < 5 or upper(region) = 'EU'", func(r *modelRow) bool { n, ok := number(r.amount); return ok && n+1 < 5 || r.region == "eu" }},
	{"false", func(*modelRow) bool { return false }},
}

// modelLimit is a limit with what it means.
type modelLimit struct {
	Limit
	holds func(r *modelRow) bool // nil = always
}

func (l *modelLimit) shows(r *modelRow) bool { return l.holds == nil || l.holds(r) }

func (l *modelLimit) showsColumn(c string) bool {
	return !slices.Contains(l.Hide, c) && !slices.Contains(l.Mask, c)
}

func drawLimits(rt *rapid.T) []modelLimit {
	var limits []modelLimit
	for len(limits) == 0 {
		for range rapid.IntRange(1, 3).Draw(rt, "limits") {
			var l modelLimit
			c := rapid.SampledFrom(modelConditions).Draw(rt, "condition")
			l.Where, l.holds = c.text, c.holds
			for _, column := range modelColumns {
				switch rapid.IntRange(0, 5).Draw(rt, column) {
				case 0:
					l.Hide = append(l.Hide, column)
				case 1:
					l.Mask = append(l.Mask, column)
				}
			}
			slices.Sort(l.Hide)
			slices.Sort(l.Mask)
			if l.limitsColumns() && rapid.Bool().Draw(rt, "show the key") {
				l.Show = []string{"_key"}
			}
			if !l.IsZero() {
				limits = append(limits, l)
			}
		}
	}
	return limits
}

func drawRows(rt *rapid.T) []modelRow {
	rows := make([]modelRow, rapid.IntRange(0, 12).Draw(rt, "rows"))
	for i := range rows {
		r := &rows[i]
		if v := rapid.SampledFrom([]string{"eu", "us", "as", ""}).Draw(rt, "region"); v != "" {
			r.region = v
		}
		if rapid.IntRange(0, 5).Draw(rt, "card") > 0 {
			r.card = fmt.Sprintf("card-%d-%d", i, rapid.IntRange(0, 99).Draw(rt, "number"))
		}
		if rapid.IntRange(0, 4).Draw(rt, "amount") > 0 {
			r.amount = int64(rapid.IntRange(-5, 40).Draw(rt, "amount"))
		}
		r.note = fmt.Sprintf("note-%d", rapid.IntRange(0, 30).Draw(rt, "note"))
		r.key = fmt.Sprintf("key-%d-x", i)
	}
	return rows
}

// storedPayload is a payload of rows in a format, several in a message where the format has that. messages are the numbers of the rows' messages.
func storedPayload(rt *rapid.T, format schema.Format, rows []modelRow) (out []byte, messages []int) {
	document := func(r *modelRow) []byte {
		b, err := json.Marshal(map[string]any{"region": r.region, "card": r.card, "amount": r.amount, "note": r.note})
		if err != nil {
			rt.Fatal(err)
		}
		return b
	}
	var b record.Builder
	for i, message := 0, 0; i < len(rows); {
		if err := b.Reset(out, record.Envelope{Category: "c", BaseTime: 7, Sequenced: true, Producer: 3, FirstSequence: 10}); err != nil {
			rt.Fatal(err)
		}
		for range rapid.IntRange(1, 3).Draw(rt, "messages") {
			n := 1
			if format != schema.JSON {
				n = rapid.IntRange(1, 3).Draw(rt, "rows of a message")
			}
			of := rows[i:min(i+n, len(rows))]
			if len(of) == 0 {
				break
			}
			i += len(of)
			messages = append(messages, slices.Repeat([]int{message}, len(of))...)
			message++
			var text bytes.Buffer
			w := csv.NewWriter(&text)
			for k := range of {
				if format == schema.CSV {
					fields := make([]string, len(modelColumns))
					for c, name := range modelColumns {
						if v := of[k].value(name); v != nil {
							fields[c] = fmt.Sprint(v)
						}
					}
					_ = w.Write(fields)
					continue
				}
				text.Write(document(&of[k]))
				if format == schema.NDJSON {
					text.WriteByte('\n')
				}
			}
			w.Flush()
			m := record.Message{Payload: text.Bytes(), Key: []byte(of[0].key), Time: time.UnixMicro(int64(1000 + i))}
			if err := b.Append(&m); err != nil {
				rt.Fatal(err)
			}
		}
		var err error
		if out, err = b.Finish(); err != nil {
			rt.Fatal(err)
		}
	}
	return out, messages
}

// visibleModel returns the rows that a reader may see with the values that it may see, as messages of JSON lines: those of one stored message are one. count is their number.
func visibleModel(rt *rapid.T, limits []modelLimit, rows []modelRow, messages []int) (frames []byte, visible []modelRow, hidden []string, count int) {
	var (
		b    record.Builder
		open []byte // the message whose lines are being collected
		of   int
	)
	if err := b.Reset(nil, record.Envelope{Category: "c", BaseTime: 7}); err != nil {
		rt.Fatal(err)
	}
	finish := func() {
		if len(open) == 0 {
			return
		}
		if err := b.Append(&record.Message{Payload: open}); err != nil {
			rt.Fatal(err)
		}
		open, count = nil, count+1
	}
	for i := range rows {
		r := &rows[i]
		by := slices.DeleteFunc(slices.Clone(limits), func(l modelLimit) bool { return !l.shows(r) })
		seen := modelRow{}
		values := map[string]any{}
		for _, c := range modelColumns {
			v := r.value(c)
			if !slices.ContainsFunc(by, func(l modelLimit) bool { return l.showsColumn(c) }) {
				if text, is := v.(string); is && strings.HasPrefix(text, "card-") {
					hidden = append(hidden, text)
				}
				v = nil
			}
			values[c] = v
		}
		if len(by) == 0 {
			continue
		}
		seen.region, seen.card, seen.amount, seen.note = values["region"], values["card"], values["amount"], values["note"]
		visible = append(visible, seen)
		text, err := json.Marshal(values)
		if err != nil {
			rt.Fatal(err)
		}
		if of != messages[i] {
			finish()
		}
		open, of = append(append(open, text...), '\n'), messages[i]
	}
	finish()
	if len(visible) > 0 {
		var err error
		if frames, err = b.Finish(); err != nil {
			rt.Fatal(err)
		}
	}
	return frames, visible, hidden, count
}

// drawQuery is a query over the columns that there are.
func drawQuery(rt *rapid.T, columns []string) string {
	term := func() string {
		c := rapid.SampledFrom(columns).Draw(rt, "column")
		switch {
		case rapid.IntRange(0, 2).Draw(rt, "null") == 0:
			return c + rapid.SampledFrom([]string{" is null", " is not null"}).Draw(rt, "is")
		case c == "amount":
			return "amount " + rapid.SampledFrom([]string{">", "<=", "="}).Draw(rt, "op") + " " + strconv.Itoa(rapid.IntRange(-5, 40).Draw(rt, "n"))
		case c == "region":
			return "region " + rapid.SampledFrom([]string{"= 'eu'", "<> 'eu'", "in ('us', 'as')", "like '_u'"}).Draw(rt, "op")
		default:
			return rapid.SampledFrom([]string{c + " like '%7%'", "length(" + c + ") > 7", "coalesce(" + c + ", 'x') = 'x'", c + " < 'm'"}).Draw(rt, "op")
		}
	}
	var items []string
	for range rapid.IntRange(1, 3).Draw(rt, "items") {
		c := rapid.SampledFrom(columns).Draw(rt, "item")
		items = append(items, rapid.SampledFrom([]string{c, "cast(" + c + " as text)", c + " is null", "coalesce(cast(" + c + " as text), '-')"}).Draw(rt, "form"))
	}
	text := "SELECT " + strings.Join(items, ", ") + " FROM c"
	switch rapid.IntRange(0, 3).Draw(rt, "where") {
	case 0:
	case 1:
		text += " WHERE " + term()
	case 2:
		text += " WHERE " + term() + " OR " + term()
	default:
		text += " WHERE NOT (" + term() + " AND " + term() + ")"
	}
	return text
}

func linesOf(batch arrow.RecordBatch) []string {
	var lines []string
	values := make([]func([]byte, int) []byte, batch.NumCols())
	for i := range values {
		values[i] = export.JSONValues(batch.Column(i))
	}
	for r := range int(batch.NumRows()) {
		var line []byte
		for i := range values {
			line = append(values[i](line, r), ' ')
		}
		lines = append(lines, string(line))
	}
	return lines
}

// TestReadersSeeTheTableThatTheirLimitsShow: for random rows, grants and queries the answer is that of the query over the table without the rows and
// values that no grant shows, in each form in which a reader can get it; and no byte of a withheld card is in what is sent.
func TestReadersSeeTheTableThatTheirLimitsShow(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		format := rapid.SampledFrom([]schema.Format{schema.JSON, schema.NDJSON, schema.CSV}).Draw(rt, "format")
		source, err := schema.Parse([]byte("format: " + string(format) + "\nfields:\n  - {name: region, type: dictionary}\n  - {name: card, type: dictionary}\n  - {name: amount, type: int64}\n  - {name: note, type: string}\n"))
		if err != nil {
			rt.Fatal(err)
		}
		source.Version = 4
		limits := drawLimits(rt)
		plainLimits := make([]Limit, len(limits))
		for i := range limits {
			plainLimits[i] = limits[i].Limit
			if again, err := ParseLimit(limits[i].String()); err != nil || again.String() != limits[i].String() {
				rt.Fatalf("%q is not read as it is written: %q, %v", limits[i].String(), again.String(), err)
			}
		}
		columns := slices.DeleteFunc(slices.Clone(modelColumns), func(c string) bool {
			return !slices.ContainsFunc(limits, func(l modelLimit) bool { return !slices.Contains(l.Hide, c) })
		})
		table, err := Compile(source, New(plainLimits...))
		if len(columns) == 0 {
			if err == nil {
				rt.Fatal("every column is hidden, and there is a table")
			}
			return
		}
		if err != nil {
			rt.Fatalf("%v: %v", plainLimits, err)
		}
		var names []string
		for i := range table.Schema().Fields {
			names = append(names, table.Schema().Fields[i].Name)
		}
		if !slices.Equal(names, columns) {
			rt.Fatalf("the reader knows the columns %v, want %v", names, columns)
		}
		rows := drawRows(rt)
		stored, messages := storedPayload(rt, format, rows)
		expected, visible, hidden, count := visibleModel(rt, limits, rows, messages)

		text := drawQuery(rt, columns)
		parsed, err := sql.Parse(text)
		if err != nil {
			rt.Fatal(err)
		}
		p, err := plan.Bind(parsed, table.Schema(), plan.Options{Now: time.Unix(1, 0)})
		if err != nil {
			rt.Fatalf("%s: %v", text, err)
		}
		reader, err := finish.New(p, transcode.Limits{})
		if err != nil {
			rt.Fatal(err)
		}
		// The reference does not use the table at all: it has a schema of its own, over JSON lines.
		model, err := schema.Parse([]byte("format: ndjson\nfields:\n  - {name: region, type: string}\n  - {name: card, type: string}\n  - {name: amount, type: int64}\n  - {name: note, type: string}\n"))
		if err != nil {
			rt.Fatal(err)
		}
		model.Version = 4
		mp, err := plan.Bind(parsed, model, plan.Options{Now: time.Unix(1, 0)})
		if err != nil {
			rt.Fatal(err)
		}
		reference, err := finish.New(mp, transcode.Limits{})
		if err != nil {
			rt.Fatal(err)
		}
		var st finish.Stats
		want, err := reference.Payload(expected, finish.Meta{}, &st)
		if err != nil {
			rt.Fatal(err)
		}
		defer want.Batch.Release()
		wanted := linesOf(want.Batch)
		check := func(form string, got *finish.Rows, sent []byte) {
			defer got.Batch.Release()
			if lines := linesOf(got.Batch); !slices.Equal(lines, wanted) || !slices.Equal(got.Index, want.Index) {
				rt.Fatalf("%s of %s under %v:\n%q at %v\nwant\n%q at %v", form, text, plainLimits, lines, got.Index, wanted, want.Index)
			}
			for _, secret := range hidden {
				if bytes.Contains(sent, []byte(secret)) {
					rt.Fatalf("%s under %v has %q", form, plainLimits, secret)
				}
			}
		}

		needed := []string{transcode.ColumnIndex}
		for _, c := range p.Columns {
			needed = append(needed, c.Name)
		}
		view, err := table.Rows(stored, needed)
		if err != nil {
			rt.Fatal(err)
		}
		defer view.Batch.Release()
		sent, err := columnar.EncodeIPC(nil, view.Batch)
		if err != nil {
			rt.Fatal(err)
		}
		st = finish.Stats{}
		got, err := reader.View(view.Batch, false, finish.Meta{}, &st)
		if err != nil {
			rt.Fatal(err)
		}
		check("a view", got, sent)
		if int(view.Batch.NumRows()) != len(visible) || view.Held != int64(len(rows)-len(visible)) {
			rt.Fatalf("%d rows, %d held back; want %d of %d", view.Batch.NumRows(), view.Held, len(visible), len(rows))
		}

		frames, err := table.Frames(stored, 1<<20)
		if err != nil {
			rt.Fatal(err)
		}
		if int(frames.Messages) != count || int(view.Messages) != count {
			rt.Fatalf("%d messages, and %d of a view, want %d", frames.Messages, view.Messages, count)
		}
		for f, err := range record.Split(frames.Bytes) {
			if err != nil {
				rt.Fatal(err)
			}
			if f.Sequenced() {
				rt.Fatal("sequences count messages that are not visible")
			}
			if _, err := record.Check(f.Bytes); err != nil {
				rt.Fatal(err)
			}
		}
		st = finish.Stats{}
		if got, err = reader.Payload(frames.Bytes, finish.Meta{}, &st); err != nil {
			rt.Fatal(err)
		}
		check("messages", got, frames.Bytes)
		shows := slices.ContainsFunc(limits, func(l modelLimit) bool { return !l.limitsColumns() || len(l.Show) > 0 })
		if !shows && bytes.Contains(frames.Bytes, []byte("key-")) {
			rt.Fatalf("messages under %v have keys", plainLimits)
		}
	})
}
