package restrict

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"scribe/columnar"
	"scribe/columnar/schema"
	"scribe/columnar/schema/schematest"
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
	if err := b.Reset(dst, record.Envelope{Category: "c", Shard: 2, BaseTime: 5, SampleRate: 3, Sequenced: true, Producer: 9, FirstSequence: 100, Placement: 4}); err != nil {
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
		many = append(many, fmt.Sprintf("where amount = %d", i))
	}
	if _, err := Compile(schemaOf(t, payments), restrictionOf(t, many[1:]...)); err != nil {
		t.Errorf("as many limits as are allowed: %v", err)
	}
	if _, err := Compile(schemaOf(t, payments), restrictionOf(t, append(many[1:], many[1:]...)...)); err != nil {
		t.Errorf("the same limits twice: %v", err)
	}
	tooMany := restrictionOf(t, many...)
	if _, err := Compile(schemaOf(t, payments), tooMany); !errors.Is(err, ErrInapplicable) || !strings.Contains(err.Error(), "17 different limits, at most 16") {
		t.Errorf("one limit more than is allowed: %v", err)
	}
	if _, err := Decode(tooMany.Encode()); err == nil {
		t.Error("one limit more than is allowed in a header")
	}
	if got := Union(restrictionOf(t, many[:9]...), restrictionOf(t, many[8:]...)); got.Digest() != tooMany.Digest() || len(got.limits) != 0 {
		t.Error("what is too many together may be read")
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
		"where region = 'eu' mask card":           {`{"region":"eu","amount":1}`, `{"region":"eu"}`},
		"where region = 'eu' hide card show _key": {`{"region":"eu","amount":1} key=k`, `{"region":"eu"} key=k`},
		"where amount = 2 mask card show _attr":   {`{"region":"us","amount":2} trace=t-1`},
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
			if table.Rewritten() && frame.Placement != 0 {
				t.Errorf("%s: the tag of a layout, which tells the name of a field, is %d", limit, frame.Placement)
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
		if got := rows.Batch.Column(1).(*array.Uint32).Uint32Values(); !slices.Equal(got, []uint32{0, 2, 3}) || len(rows.Reports) != 1 || rows.Reports[0].Index != 1 {
			t.Errorf("%s: rows at %v, reports %v", limit, got, rows.Reports)
		}
		rows.Batch.Release()
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
		"where region = 'eu' mask card show _key": {`{"region":"eu"} key=k`, `{"region":"eu"}`},
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

// TestProtobufNames: a field of a Protobuf message has two names. A column of the one is not hidden while another column shows it by the other.
func TestProtobufNames(t *testing.T) {
	field := func(name string, number int32, kind descriptorpb.FieldDescriptorProto_Type, of string) *descriptorpb.FieldDescriptorProto {
		f := &descriptorpb.FieldDescriptorProto{Name: &name, Number: &number, Type: &kind, Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()}
		if of != "" {
			f.TypeName = &of
		}
		return f
	}
	const text, message = descriptorpb.FieldDescriptorProto_TYPE_STRING, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
	descriptors, err := proto.Marshal(&descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{{
		Name: new("m.proto"), Syntax: new("proto3"), MessageType: []*descriptorpb.DescriptorProto{
			{Name: new("M"), Field: []*descriptorpb.FieldDescriptorProto{field("card_no", 1, text, ""), field("owner_of", 2, message, ".P"), field("region", 3, text, "")}},
			{Name: new("P"), Field: []*descriptorpb.FieldDescriptorProto{field("first_name", 1, text, "")}},
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	column := func(name string, path ...string) schema.Field {
		return schema.Field{Name: name, Path: path, Type: schema.Type{Kind: schema.String}}
	}
	for _, test := range []struct {
		limit   string
		other   schema.Field
		refused bool
	}{
		{"mask card", column("pan", "cardNo"), true},
		{"hide card", column("pan", "cardNo"), true},
		{"mask owner", column("pan", "ownerOf", "first_name"), true},
		{"mask card", column("pan", "region"), false},
		{"where pan = 'x'", column("pan", "cardNo"), false}, // hides no column
	} {
		s := &schema.Schema{
			Version: 1, Format: schema.Protobuf, Protobuf: &schema.ProtobufOptions{Message: "M", Descriptors: descriptors},
			Fields: []schema.Field{column("card", "card_no"), column("owner", "owner_of"), test.other},
		}
		if _, err := Compile(s, restrictionOf(t, test.limit)); errors.Is(err, ErrInapplicable) != test.refused || err != nil && !test.refused {
			t.Errorf("%q beside column %s of %v: %v", test.limit, test.other.Name, test.other.Path, err)
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
	over := r.Over(7)
	if again, err := Decode(over.Encode()); err != nil || again.Least() != 7 || over.Digest() != r.Digest() || r.Least() != 0 || over.Over(3) != over {
		t.Errorf("over version 7: %d, %v", again.Least(), err)
	}
	// The most that rules may have fits, and so it is told in every way of reading.
	var most []string
	for i := range MaxLimits {
		limit := fmt.Sprintf("where amount = %d mask ", i)
		most = append(most, limit+strings.Repeat("x", MaxText-len(limit)))
	}
	text := restrictionOf(t, most...).Encode()
	if again, err := Decode(text); err != nil || len(again.Texts()) != MaxLimits || len(text) > 48<<10 {
		t.Errorf("the longest limits take %d bytes of a header, %v", len(text), err)
	}
	if _, err := ParseLimit(most[0] + "x"); err == nil || !strings.Contains(err.Error(), "2049 bytes, at most 2048") {
		t.Errorf("a limit that is too long: %v", err)
	}
	// As it is stored a limit has more blanks than as it was given.
	if _, err := ParseLimit("mask " + strings.Repeat("x", 2000) + strings.Repeat(",y", 20)); err != nil {
		t.Error(err)
	}
	if l, err := ParseLimit("mask " + strings.Repeat("x", 2000) + ",a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s"); err == nil {
		t.Errorf("what would be stored can't be read again: %d bytes", len(l.String()))
	}
	for _, text := range []string{"", "x", "W10", base64.RawURLEncoding.EncodeToString([]byte("where a = 1\n")), strings.Repeat("A", maxEncoded+1)} {
		if r, err := Decode(text); err == nil || r != nil {
			t.Errorf("%.20q: %v, %v", text, r, err)
		}
	}
}

// FuzzHeader: whatever a header says, what is taken of it is what is written again, bounded, and no restriction is none.
func FuzzHeader(f *testing.F) {
	f.Add(New(Limit{Where: "region = 'eu'", Mask: []string{"card"}}, Limit{Hide: []string{"a"}}).Encode())
	f.Add("")
	f.Add(base64.RawURLEncoding.EncodeToString([]byte("mask a\n\nmask b")))
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Decode(text)
		if err != nil {
			if r != nil {
				t.Errorf("%q: a restriction beside the error %v", text, err)
			}
			return
		}
		if r.Digest() == (Digest{}) || len(r.limits) == 0 || len(r.limits) > MaxLimits || len(r.Encode()) > maxEncoded {
			t.Fatalf("%q: %d limits", text, len(r.limits))
		}
		again, err := Decode(r.Encode())
		if err != nil || again.Digest() != r.Digest() {
			t.Errorf("%q is %q, which is not read as it is written: %v", text, r.Texts(), err)
		}
	})
}

// TestDigests: the digests of restrictions are in tickets, and compared between processes of different versions (docs/format/access.md). They don't change.
func TestDigests(t *testing.T) {
	for want, limits := range map[string][]string{
		"ANWUvrn_GHhsAUaH2n1PBw": {"where region = 'eu'"},
		"EtfmUxlaQE3pYC9vk0Q1OQ": {"where region = 'eu' mask card"},
		"3GMhbWFv6scpDRen_CUkCw": {"mask card", "where region = 'eu'", "hide a, \"B\" show _key"},
	} {
		if got := restrictionOf(t, limits...).Digest().Text(); got != want {
			t.Errorf("%q: %q, want %q", limits, got, want)
		}
	}
	if got := Nothing().Digest().Text(); got != "lId9NdKSWFaTwdSG5dhLbA" {
		t.Errorf("nothing: %q", got)
	}
}

// TestLatest: who can't apply a restriction to its copy of a category asks once for the newest, and not again while that is no help.
func TestLatest(t *testing.T) {
	c := NewCache(slog.New(slog.DiscardHandler))
	old := &scribev1.Category{Name: "c", Schema: historyText(t, "{name: region, type: string}")}
	fresh := &scribev1.Category{Name: "c", Schema: historyText(t, "{name: region, type: string}, {name: card, type: string}")}
	asked := 0
	resolve := func(to *scribev1.Category) func(context.Context, string) (*scribev1.Category, error) {
		return func(context.Context, string) (*scribev1.Category, error) {
			asked++
			return to, nil
		}
	}
	for name, of := range map[string]struct {
		copy, newest *scribev1.Category
		limit        string
		least        uint32
		asks         int
		err          error
	}{
		"a copy that is current":      {fresh, fresh, "mask card", 1, 0, nil},
		"an old copy":                 {old, fresh, "mask card", 0, 1, nil},
		"a column that is not there":  {old, old, "mask card", 0, 1, ErrInapplicable},
		"a version that is not there": {fresh, fresh, "mask card", 2, 1, ErrOld},
	} {
		asked = 0
		table, cat, err := c.Latest(t.Context(), of.copy, restrictionOf(t, of.limit).Over(of.least), resolve(of.newest))
		if asked != of.asks || !errors.Is(err, of.err) || (err == nil) != (of.err == nil) {
			t.Errorf("%s: asked %d times, %v", name, asked, err)
		}
		if err == nil && (table == nil || cat != of.newest) {
			t.Errorf("%s: %v, %v", name, table, cat)
		}
	}
	away := errors.New("the control plane is away")
	if _, _, err := c.Latest(t.Context(), old, restrictionOf(t, "mask card"), func(context.Context, string) (*scribev1.Category, error) { return nil, away }); !errors.Is(err, away) {
		t.Errorf("who can't ask hears %v", err)
	}
	// The same restriction of a category of that name with another schema is another table.
	a, err := c.TableOf(fresh, restrictionOf(t, "mask card"))
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := c.TableOf(fresh, restrictionOf(t, "mask card")); again != a {
		t.Error("the table is made again")
	}
	if _, err := c.TableOf(old, restrictionOf(t, "mask card")); !errors.Is(err, ErrInapplicable) {
		t.Errorf("the table of another schema: %v", err)
	}
}

// historyText is a schema as categories have it.
func historyText(t *testing.T, fields string) string {
	t.Helper()
	return schematest.History(t, "format: json\nfields: ["+fields+"]\n").Marshal()
}

// TestLargeMessages: what is made of a message, and of a payload, is bounded; the reader is refused, not the server filled.
func TestLargeMessages(t *testing.T) {
	// A line of 10 bytes becomes an object of names.
	name := strings.Repeat("n", 60)
	var fields []string
	for i := range 20 {
		fields = append(fields, fmt.Sprintf("{name: %s%d, type: int64}", name, i))
	}
	s := schemaOf(t, "format: csv\nfields: ["+strings.Join(fields, ", ")+", {name: card, type: string}]\n")
	line := strings.Repeat("1,", 20) + "x\n"
	table, err := Compile(s, restrictionOf(t, "mask card"))
	if err != nil {
		t.Fatal(err)
	}
	stored := frameOf(t, nil, strings.Repeat(line, 40_000))
	if _, err := table.Frames(stored, 64<<20); !errors.Is(err, columnar.ErrTooLarge) || !strings.Contains(err.Error(), "made anew") {
		t.Errorf("a message of %d bytes that would have more than %d: %v", len(stored), MaxMessage, err)
	}
	var small []string
	for range 100 {
		small = append(small, strings.Repeat(line, 100))
	}
	if _, err := table.Frames(frameOf(t, nil, small...), 1<<20); !errors.Is(err, columnar.ErrTooLarge) {
		t.Errorf("more than the limit in one frame: %v", err)
	}
	if f, err := table.Frames(frameOf(t, nil, small...), 32<<20); err != nil || f.Messages != 100 {
		t.Errorf("%v", err)
	}
}

// TestLines: a message with several rows stays one message, with the visible rows as lines: there are no more messages, and no more numbers of them, than were stored. Its key is
// visible if all of its visible rows show it.
func TestLines(t *testing.T) {
	for format, lines := range map[string][]string{
		"ndjson": {`{"region":"eu","card":"1","amount":1}` + "\n" + `{"region":"us","card":"2","amount":2}` + "\n" + `{"region":"eu","card":"3"}` + "\n", `{"region":"us","amount":4}`, `{"region":"us","amount":5}` + "\n" + `{"region":"eu","amount":6}`},
		"csv":    {"eu,1,1\nus,2,2\neu,3,\n", "us,,4\n", "us,,5\neu,,6\n"},
	} {
		s := schemaOf(t, strings.Replace(payments, "json", format, 1))
		table, err := Compile(s, restrictionOf(t, "where region = 'eu' mask card show _key", "where amount = 2"))
		if err != nil {
			t.Fatal(err)
		}
		stored := frameOf(t, nil, lines...)
		f, err := table.Frames(stored, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{`{"region":"eu","amount":1}` + "\n" + `{"region":"us","card":"2","amount":2}` + "\n" + `{"region":"eu"} key=k`, `{"region":"eu","amount":6} key=k`}
		if got := messagesOf(t, f.Bytes); !slices.Equal(got, want) || f.Messages != 2 {
			t.Errorf("%s: %q, want %q", format, got, want)
		}
		rows, err := table.Rows(stored, []string{transcode.ColumnIndex, schema.ColumnKey})
		if err != nil {
			t.Fatal(err)
		}
		if got := rows.Batch.Column(0).(*array.Uint32).Uint32Values(); !slices.Equal(got, []uint32{0, 0, 0, 1}) || rows.Messages != 2 || rows.Batch.Column(1).NullN() != 0 {
			t.Errorf("%s: rows of the messages %v, %d messages, keys %v", format, got, rows.Messages, rows.Batch.Column(1))
		}
		rows.Batch.Release()
		// One of its rows does not show the key.
		if table, err = Compile(s, restrictionOf(t, "where region = 'eu' mask card show _key", "where amount = 2 mask region")); err != nil {
			t.Fatal(err)
		}
		if f, err = table.Frames(stored, 1<<20); err != nil {
			t.Fatal(err)
		}
		if got := messagesOf(t, f.Bytes); len(got) != 2 || strings.Contains(got[0], "key=") || !strings.Contains(got[1], "key=") {
			t.Errorf("%s: a key that one of three rows hides: %q", format, got)
		}
		if rows, err = table.Rows(stored, []string{schema.ColumnKey}); err != nil {
			t.Fatal(err)
		}
		if rows.Batch.Column(0).NullN() != 3 {
			t.Errorf("%s: keys %v", format, rows.Batch.Column(0))
		}
		rows.Batch.Release()
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
