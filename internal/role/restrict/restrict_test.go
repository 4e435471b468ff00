package restrict

import (
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar"
	"scribe/columnar/schema"
	"scribe/columnar/transcode"
	"scribe/internal/format/loss"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

func restrictionOf(t testing.TB, texts ...string) *Restriction {
	t.Helper()
	limits := make([]Limit, len(texts))
	for i, text := range texts {
		var err error
		if limits[i], err = ParseLimit(text); err != nil {
			t.Fatal(err)
		}
	}
	return New(limits...)
}

func schemaOf(t testing.TB, text string) *schema.Schema {
	t.Helper()
	s, err := schema.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	s.Version = 1
	return s
}

const payments = "format: json\nfields:\n  - {name: region, type: string}\n  - {name: card, type: string}\n  - {name: amount, type: int64}\n"

// frameOf is a frame of messages with keys.
func frameOf(t testing.TB, dst []byte, messages ...string) []byte {
	t.Helper()
	var b record.Builder
	if err := b.Reset(dst, record.Envelope{Category: "c", Shard: 2, BaseTime: 5, SampleRate: 3, Sequenced: true, Producer: 9, FirstSequence: 100}); err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		msg := record.Message{
			Payload: []byte(m), Key: []byte("k"), Time: time.UnixMicro(77), Attributes: []record.Attribute{{Name: "trace", Value: []byte("t-1")}},
		}
		if err := b.Append(&msg); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// messagesOf are the messages of frames, with their keys and attributes after them.
func messagesOf(t testing.TB, frames []byte) (out []string) {
	t.Helper()
	for f, err := range record.Split(frames) {
		if err != nil {
			t.Fatal(err)
		}
		var (
			d record.Decoder
			r record.Record
		)
		if _, err := d.Reset(f.Bytes); err != nil {
			t.Fatal(err)
		}
		for d.Next(&r) {
			text := string(r.Payload)
			if r.HasKey {
				text += " key=" + string(r.Key)
			}
			if v, ok := r.Attributes.Get("trace"); ok {
				text += " trace=" + string(v)
			}
			out = append(out, text)
		}
		if err := d.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// TestInapplicable: what can't be told in a category as it is denies all of it.
func TestInapplicable(t *testing.T) {
	for limit, says := range map[string]string{
		"where country = 'eu'":                                    "country",
		"where region > 3 + region":                               "condition",
		"where region = eu":                                       `"eu" does not exist`,
		"where region = 'eu' and count(*) > 1":                    "condition",
		"hide iban":                                               `column "iban"`,
		"mask card, iban":                                         `column "iban"`,
		"hide region, card, amount":                               "every column is hidden",
		"where _persisted > '2026-01-01'":                         "_persisted",
		"where _time > now()":                                     "now()",
		"where region = 'eu' and now() < timestamp '2027-01-01'":  "depends on the time",
		"where region = 'eu' or current_date > date '2027-01-01'": "depends on the time",
		"where date_trunc('century', localtimestamp) = timestamp '2001-01-01'":               "depends on the time",
		"where region = 'eu' and (current_timestamp is null or amount is not null or 1 = 1)": "depends on the time",
		"where _offset > 3": "_offset",
	} {
		_, err := Compile(schemaOf(t, payments), restrictionOf(t, limit))
		if !errors.Is(err, ErrInapplicable) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", limit, err, says)
		}
	}
	if _, err := Compile(schema.Opaque(), restrictionOf(t, "mask payload")); !errors.Is(err, ErrInapplicable) || !strings.Contains(err.Error(), "needs a schema") {
		t.Errorf("columns of a category without a schema: %v", err)
	}
	var many []string
	for i := range MaxLimits + 1 {
		many = append(many, "where amount = "+strings.Repeat("1", i+1))
	}
	if _, err := Compile(schemaOf(t, payments), restrictionOf(t, many[:18]...)); err != nil {
		t.Errorf("some limits: %v", err)
	}
	if _, err := Compile(schemaOf(t, payments), restrictionOf(t, many...)); !errors.Is(err, ErrInapplicable) {
		t.Errorf("too many limits: %v", err)
	}
	c := NewCache(slog.New(slog.DiscardHandler))
	if _, err := c.TableOf(&scribev1.Category{Schema: "infer"}, restrictionOf(t, "where region = 'eu'")); !errors.Is(err, ErrInapplicable) {
		t.Errorf("a schema that is still to be inferred: %v", err)
	}
}

// TestMessages: rows that are visible as a whole are delivered as they were stored; with hidden columns they are made anew, without what may have a hidden value in it.
func TestMessages(t *testing.T) {
	stored := frameOf(t, nil, `{"region":"eu","card":"1","amount":1,"more":"u"}`, `{"region":"us","card":"2","amount":2}`, `{"region":"eu","card":"3","amount":"x"}`, `not JSON eu`)
	stored = frameOf(t, stored, `{"region":"us","card":"4"}`)
	stored = frameOf(t, stored, `{"region":"eu","card":"5"}`)
	for limit, want := range map[string][]string{
		// The third message has an amount that does not fit: the condition may not have seen all of it.
		"where region = 'eu'":                     {`{"region":"eu","card":"1","amount":1,"more":"u"} key=k trace=t-1`, `{"region":"eu","card":"5"} key=k trace=t-1`},
		"where region = 'eu' mask card":           {`{"region":"eu","card":null,"amount":1}`, `{"region":"eu","card":null,"amount":null}`},
		"where region = 'eu' hide card show _key": {`{"region":"eu","amount":1} key=k`, `{"region":"eu","amount":null} key=k`},
		"where amount = 2 mask card show _attr":   {`{"region":"us","card":null,"amount":2} trace=t-1`},
		"where region = 'as'":                     nil,
	} {
		table, err := Compile(schemaOf(t, payments), restrictionOf(t, limit))
		if err != nil {
			t.Fatalf("%s: %v", limit, err)
		}
		f, err := table.Frames(stored, 1<<20)
		if err != nil {
			t.Fatalf("%s: %v", limit, err)
		}
		if got := messagesOf(t, f.Bytes); !slices.Equal(got, want) || int(f.Messages) != len(want) || f.Held != int64(6-len(want)) {
			t.Errorf("%s: %q, %d messages, %d held back; want %q", limit, got, f.Messages, f.Held, want)
		}
		for frame, err := range record.Split(f.Bytes) {
			if err != nil || frame.Shard != 2 || frame.SampleRate != 3 || frame.Sequenced() || frame.BaseTime != 77 {
				t.Errorf("%s: a frame of shard %d, rate %d, sequenced %t, at %d: %v", limit, frame.Shard, frame.SampleRate, frame.Sequenced(), frame.BaseTime, err)
			}
		}
	}
	table, err := Compile(schemaOf(t, payments), restrictionOf(t, "mask card"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Frames(stored, 20); !errors.Is(err, columnar.ErrTooLarge) {
		t.Errorf("more than the limit: %v", err)
	}
}

// TestOpaque: a category without a schema can be limited by the columns that it has.
func TestOpaque(t *testing.T) {
	table, err := Compile(schema.Opaque(), restrictionOf(t, "where _attr['trace'] = 't-1' and position('b' in convert_from(payload, 'UTF8')) > 0"))
	if err != nil {
		table, err = Compile(schema.Opaque(), restrictionOf(t, "where _attr['trace'] = 't-1' and payload = 'abc'"))
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := table.Frames(frameOf(t, nil, "abc", "xyz"), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if got := messagesOf(t, f.Bytes); !slices.Equal(got, []string{"abc key=k trace=t-1"}) {
		t.Errorf("%q", got)
	}
}

// TestReports: reports of losses stay where they are among the messages, so that positions of rows and of messages agree.
func TestReports(t *testing.T) {
	stored := frameOf(t, nil, `{"region":"us"}`, `{"region":"eu","amount":1}`)
	report := &loss.Report{By: loss.ByAgent, Run: "r", Number: 1, Reason: "full", Messages: 3, Since: 1, Until: 2}
	withReport, err := loss.AppendFrame(stored, "c", 2, 50, report)
	if err != nil {
		t.Fatal(err)
	}
	stored = frameOf(t, withReport, `{"region":"eu","amount":2}`, `{"region":"us"}`, `{"region":"eu","amount":3}`)
	for _, limit := range []string{"where region = 'eu'", "where region = 'eu' mask card"} {
		table, err := Compile(schemaOf(t, payments), restrictionOf(t, limit))
		if err != nil {
			t.Fatal(err)
		}
		rows, err := table.Rows(stored, []string{"amount", transcode.ColumnIndex})
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Batch.Release()
		if got := rows.Batch.Column(1).(*array.Uint32).Uint32Values(); !slices.Equal(got, []uint32{0, 2, 3}) || len(rows.Reports) != 1 || rows.Reports[0].Index != 1 {
			t.Errorf("%s: rows at %v, reports %v", limit, got, rows.Reports)
		}
		f, err := table.Frames(stored, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if got := messagesOf(t, f.Bytes); len(got) != 4 || !strings.Contains(got[1], "full") || f.Messages != 4 || f.Frames != 3 {
			t.Errorf("%s: %q in %d frames", limit, got, f.Frames)
		}
	}
}

// batchFrame is a frame of a producer's batch.
func batchFrame(t testing.TB, dst []byte, regions, cards []string) []byte {
	t.Helper()
	s := arrow.NewSchema([]arrow.Field{{Name: "region", Type: arrow.BinaryTypes.String}, {Name: "card", Type: arrow.BinaryTypes.String}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	b.Field(0).(*array.StringBuilder).AppendValues(regions, nil)
	b.Field(1).(*array.StringBuilder).AppendValues(cards, nil)
	batch := b.NewRecordBatch()
	defer batch.Release()
	body, err := columnar.EncodeIPC(nil, batch)
	if err != nil {
		t.Fatal(err)
	}
	out, err := record.AppendArrowFrame(dst, record.Envelope{Category: "c", Shard: 2, BaseTime: 9}, len(regions), body)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestBatches: of batches that producers wrote the visible rows become messages; where messages are delivered as they are stored, batches are not delivered at all.
func TestBatches(t *testing.T) {
	stored := batchFrame(t, frameOf(t, nil, `{"region":"eu","card":"1"}`), []string{"us", "eu"}, []string{"2", "3"})
	for limit, want := range map[string][]string{
		"where region = 'eu' mask card show _key": {`{"region":"eu","card":null,"amount":null} key=k`, `{"region":"eu","card":null,"amount":null}`},
		"where region = 'eu'":                     {`{"region":"eu","card":"1"} key=k trace=t-1`},
	} {
		table, err := Compile(schemaOf(t, payments), restrictionOf(t, limit))
		if err != nil {
			t.Fatal(err)
		}
		f, err := table.Frames(stored, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if got := messagesOf(t, f.Bytes); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", limit, got, want)
		}
		rows, err := table.Rows(stored, []string{"region", transcode.ColumnIndex})
		if err != nil {
			t.Fatal(err)
		}
		if int(rows.Batch.NumRows()) != len(want) {
			t.Errorf("%s: %d rows", limit, rows.Batch.NumRows())
		}
		rows.Batch.Release()
	}
}

// TestTypes: what is written into new messages is read as it was, whatever its type.
func TestTypes(t *testing.T) {
	s := schemaOf(t, `{"format":"json","fields":[{"name":"secret","type":"string"},{"name":"f","type":"float64"},{"name":"d","type":"decimal(20,4)"},{"name":"u","type":"uint64"},
		{"name":"at","type":"timestamp","path":["when","at"]},{"name":"day","type":"date"},{"name":"ok","type":"bool"},{"name":"l","type":"list<int64>"},{"name":"m","type":"map<string>"},
		{"name":"s","type":"struct<a int64, b string>"},{"name":"bytes","type":"binary"}]}`)
	stored := frameOf(t, nil,
		`{"secret":"x","f":0.1,"d":"12.3456","u":18446744073709551615,"when":{"at":"2026-01-02T03:04:05.678901Z"},"day":"2026-01-02","ok":true,"l":[1,null,3],"m":{"k":"v\"q"},"s":{"a":5,"b":"ü"},"bytes":"raw"}`,
		`{"f":1e300,"d":-1,"u":0,"when":{"at":"1969-12-31T23:59:59.999999Z"},"day":"1969-12-31","ok":false,"l":[],"m":{},"s":{"a":null,"b":null},"bytes":""}`, `{}`)
	table, err := Compile(s, restrictionOf(t, "hide secret"))
	if err != nil {
		t.Fatal(err)
	}
	columns := []string{"f", "d", "u", "at", "day", "ok", "l", "m", "s", "bytes", transcode.ColumnIndex}
	rows, err := table.Rows(stored, columns)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Batch.Release()
	f, err := table.Frames(stored, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := transcode.New(transcode.Spec{Schema: table.Schema(), Columns: columns})
	if err != nil {
		t.Fatal(err)
	}
	again, st, err := tr.Transcode(f.Bytes, nil)
	if err != nil || st.BadValues != 0 {
		t.Fatalf("%+v, %v", st, err)
	}
	defer again.Release()
	for i := range columns {
		if !array.Equal(rows.Batch.Column(i), again.Column(i)) {
			t.Errorf("column %s: %v in a view, %v in messages %q", columns[i], rows.Batch.Column(i), again.Column(i), messagesOf(t, f.Bytes))
		}
	}
}

// TestHeader: what a member of the cell says of whom it reads for is read as it was written, and nothing else is.
func TestHeader(t *testing.T) {
	r := restrictionOf(t, "where region = 'eu' mask card", "where amount > 3", "where region = 'eu' mask card")
	again, err := Decode(r.Encode())
	if err != nil || again.Digest() != r.Digest() || !slices.Equal(again.Texts(), r.Texts()) || len(r.Texts()) != 2 {
		t.Errorf("%v, %v", again.Texts(), err)
	}
	if other := restrictionOf(t, "where amount > 3"); other.Digest() == r.Digest() || other.Digest() == (Digest{}) || (*Restriction)(nil).Digest() != (Digest{}) {
		t.Error("different restrictions have one digest")
	}
	none, _ := json.Marshal([]string{})
	for _, text := range []string{"", "x", string(none), "W10", "WyIiXQ", strings.Repeat("A", maxEncoded+1)} {
		if r, err := Decode(text); err == nil || r != nil {
			t.Errorf("%.20q: %v, %v", text, r, err)
		}
	}
}

func FuzzParseLimit(f *testing.F) {
	f.Add("where region = 'eu' mask card")
	f.Add(`hide "where", b mask c show _key, _attr`)
	f.Add(`where x in ('mask', "hide") and (hide or e'\'mask') mask a`)
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseLimit(text)
		if err != nil {
			return
		}
		again, err := ParseLimit(l.String())
		if err != nil || again.String() != l.String() || again.Where != l.Where || !slices.Equal(again.Hide, l.Hide) || !slices.Equal(again.Mask, l.Mask) {
			t.Errorf("%q is %q, which is %q, %v", text, l.String(), again.String(), err)
		}
	})
}
