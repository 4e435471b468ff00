package readproxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"scribe/columnar"
	"scribe/columnar/expr"
	queries "scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/schema/schematest"
	"scribe/columnar/sql"
	"scribe/columnar/transcode"
	"scribe/columnar/vector"
	"scribe/columnar/zone"
	"scribe/internal/format/loss"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/role/zonenote"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// accessSchema is a category of requests.
const accessSchema = `
format: json
fields:
  - {name: status, type: int32}
  - {name: path, type: string}
  - {name: bytes, type: int64}
  - {name: host, type: string}
`

// schemed is a category "a" with a schema.
type schemed struct{ text string }

func newSchemed(t testing.TB, texts ...string) schemed {
	t.Helper()
	return schemed{schematest.History(t, texts...).Marshal()}
}

func (c schemed) Lookup(name string) (*scribev1.Category, bool) {
	return &scribev1.Category{Name: name, Id: 1, Shards: 1, Schema: c.text}, name == "a"
}

func (c schemed) Resolve(_ context.Context, name string) (*scribev1.Category, error) {
	if cat, ok := c.Lookup(name); ok {
		return cat, nil
	}
	return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "no category %q", name)
}

// annotations is a metadata engine that keeps nothing but annotations.
type annotations struct {
	mu   sync.Mutex
	data map[logPosition][]byte
	err  error
}

func (a *annotations) Annotate(_ context.Context, notes []metalog.Annotation) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return 0, a.err
	}
	for _, n := range notes {
		a.data[logPosition{n.Shard, n.LSN}] = slices.Clone(n.Data)
	}
	return len(notes), nil
}

func (a *annotations) Annotations(
	_ context.Context, shard record.ShardID, from, to record.LSN, kind metalog.AnnotationKind, _ int,
) (notes []metalog.Annotation, until record.LSN, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for lsn := from; lsn < to; lsn++ {
		if d, ok := a.data[logPosition{shard, lsn}]; ok {
			notes = append(notes, metalog.Annotation{Shard: shard, LSN: lsn, Kind: kind, Data: d})
		}
	}
	return notes, to, a.err
}

func (a *annotations) get(lsn record.LSN) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.data[logPosition{testShard, lsn}]
}

var testShard = record.MakeShardID(1, 0, 1)

// viewHarness has a server for a category with a schema, and a position for what it learns.
type viewHarness struct {
	*harness
	notes *annotations
	now   int64
}

func newViewHarness(t testing.TB, change ...func(*Config)) *viewHarness {
	t.Helper()
	v := &viewHarness{notes: &annotations{data: map[logPosition][]byte{}}, now: time.Now().UnixMicro()}
	cats := newSchemed(t, accessSchema)
	v.harness = newHarnessWith(t, func(d *Deps) { d.Categories, d.Annotations = cats, v.notes }, change...)
	return v
}

// rows is a payload of JSON messages.
func rows(t testing.TB, messages ...string) payload {
	t.Helper()
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: "a", BaseTime: 1_700_000_000_000_000}); err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		if err := b.AppendPayload([]byte(m)); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return payload{category: "a", frames: out, messages: len(messages)}
}

// request is a fetch of the view of a query.
func (v *viewHarness) request(text string, pointers ...[]byte) *scribev1.FetchRequest {
	return &scribev1.FetchRequest{
		Pointers: pointers, Category: "a", Encoding: arrowIPC,
		View: &scribev1.View{Query: &scribev1.Query{Text: text, SchemaVersion: 1, Now: v.now}},
	}
}

// ask fetches the view of a query.
func (v *viewHarness) ask(t fataler, text string, pointers ...[]byte) []*scribev1.Payload {
	t.Helper()
	var all []*scribev1.Payload
	for len(all) < len(pointers) {
		res, err := v.server.Fetch(context.Background(), v.request(text, pointers[len(all):]...))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		all = append(all, res.GetPayloads()...)
	}
	return all
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// finish is what a reader does with a view: its own predicate, its own columns. It returns the rows as text.
func (v *viewHarness) finish(t fataler, text string, p *scribev1.Payload) []string {
	t.Helper()
	if e := p.GetError(); e != nil {
		t.Fatalf("%s: %v", text, e)
	}
	data := unpack(t, p)
	batch, err := columnar.DecodeIPC(data)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	defer batch.Release()
	if int64(p.GetView().GetKept()) != batch.NumRows() {
		t.Fatalf("%s: %d rows, the answer says %d", text, batch.NumRows(), p.GetView().GetKept())
	}
	bound := bind(t, text)
	f, err := vector.CompileFilter(bound.Pushdown(), batch.Schema())
	if err != nil {
		t.Fatalf("%s over %v: %v", text, batch.Schema(), err)
	}
	sel, err := f.Select(batch, nil)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if p.GetView().GetExact() && sel.Count() != sel.Rows() {
		t.Fatalf("%s: %d of %d rows match in an exact view", text, sel.Count(), sel.Rows())
	}
	taken := sel.Take(batch)
	defer taken.Release()
	return texts(t, bound, taken)
}

func unpack(t fataler, p *scribev1.Payload) []byte {
	t.Helper()
	data, err := p.GetData(), error(nil)
	if record.CRC(data) != p.GetCrc() {
		t.Fatalf("the checksum is wrong")
	}
	switch p.GetCodec() {
	case codecS2:
		data, err = s2.Decode(nil, data)
	case codecZstd:
		d, derr := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
		if derr != nil {
			t.Fatalf("%v", derr)
		}
		defer d.Close()
		data, err = d.DecodeAll(data, nil)
	}
	if err != nil || uint64(len(data)) != p.GetRawLength() {
		t.Fatalf("%d bytes, %d announced, %v", len(data), p.GetRawLength(), err)
	}
	return data
}

func bind(t fataler, text string) *queries.Plan {
	t.Helper()
	q, err := sql.Parse(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	s, err := schema.Parse([]byte(accessSchema))
	if err != nil {
		t.Fatalf("%v", err)
	}
	s.Version = 1
	p, err := queries.Bind(q, s, queries.Options{})
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return p
}

func texts(t fataler, p *queries.Plan, batch arrow.RecordBatch) []string {
	t.Helper()
	out := make([]string, batch.NumRows())
	names := []string{transcode.ColumnIndex}
	for _, c := range p.Columns {
		if !atReader(c.Name) {
			names = append(names, c.Name)
		}
	}
	for _, name := range names {
		at := batch.Schema().FieldIndices(name)
		if len(at) != 1 {
			t.Fatalf("%d columns %s", len(at), name)
		}
		for i := range out {
			out[i] += fmt.Sprintf("%s=%s ", name, batch.Column(at[0]).ValueStr(i))
		}
	}
	return out
}

// drawRow draws a message, mostly a row that fits.
func drawRow(t *rapid.T) string {
	switch rapid.IntRange(0, 11).Draw(t, "row") {
	case 0:
		return rapid.SampledFrom([]string{`{"status":"x","path":1}`, `{"status":`, `[]`, `{}`, ``, `{"status":null}`}).Draw(t, "odd")
	default:
		return fmt.Sprintf(`{"status":%d,"path":"/%s","bytes":%d,"host":"%s"}`, rapid.SampledFrom([]int{200, 301, 404, 500}).Draw(t, "status"),
			rapid.SampledFrom([]string{"a", "b", "img/1", "img/2"}).Draw(t, "path"), rapid.IntRange(0, 5).Draw(t, "bytes"),
			rapid.SampledFrom([]string{"x", "y"}).Draw(t, "host"))
	}
}

func drawQuery(t *rapid.T) string {
	columns := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"status", "path", "bytes", "host", "_time", "_key", "_error"}), 1, 4, rapid.ID[string]).Draw(t, "columns")
	q := "SELECT " + strings.Join(columns, ", ") + " FROM a"
	terms := rapid.SliceOfN(rapid.SampledFrom([]string{
		"status = 404", "status >= 400", "path LIKE '/img/%'", "host <> 'x'", "bytes IS NULL", "bytes > 2", "status = 500 OR host = 'y'", "NOT (status = 200)",
		"_key IS NULL", "path = '/a' AND bytes = 1", "_offset > 0", "_error IS NOT NULL", "status IS NULL",
	}), 0, 3).Draw(t, "terms")
	for i := range terms {
		terms[i] = "(" + terms[i] + ")"
	}
	if len(terms) > 0 {
		q += " WHERE " + strings.Join(terms, " AND ")
	}
	return q
}

// TestAViewNeverChangesAnAnswer has queries come and go over the same payloads; each gets what it gets when it is alone.
func TestAViewNeverChangesAnAnswer(t *testing.T) {
	var wide, reused int
	rapid.Check(t, func(rt *rapid.T) {
		crowd := newViewHarness(t, func(c *Config) {
			c.Views.Views, c.Views.Rebalance = rapid.IntRange(1, 3).Draw(rt, "views"), time.Millisecond
			if rapid.Bool().Draw(rt, "small cache") {
				c.CacheBytes = 4096
			}
		})
		var payloads []payload
		for range rapid.IntRange(1, 3).Draw(rt, "payloads") {
			payloads = append(payloads, rows(t, rapid.SliceOfN(rapid.Custom(drawRow), 1, 20).Draw(rt, "messages")...))
		}
		enc, _ := crowd.put(pointer.CodecZstd, payloads)
		queries := rapid.SliceOfN(rapid.Custom(drawQuery), 1, 6).Draw(rt, "queries")
		for range 6 {
			q := rapid.SampledFrom(queries).Draw(rt, "query")
			at := rapid.IntRange(0, len(enc)-1).Draw(rt, "payload")
			got := crowd.ask(rt, q, enc[at])[0]
			alone := newViewHarness(t)
			alone.store.Store = crowd.store.Store
			want := alone.ask(rt, q, enc[at])[0]
			if !want.GetView().GetExact() {
				rt.Fatalf("%s alone is served by a view that is not exact", q)
			}
			if g, w := crowd.finish(rt, q, got), alone.finish(rt, q, want); !slices.Equal(g, w) {
				rt.Fatalf("%s\nof %q\ngot  %q\nwant %q", q, payloads[at].frames, g, w)
			}
			if !got.GetView().GetExact() {
				wide++
			}
			if got.GetView().GetReused() {
				reused++
			}
		}
	})
	if wide == 0 || reused == 0 {
		t.Errorf("%d answers out of a wider view, %d that were made before: nothing was shown", wide, reused)
	}
}

func TestManyAskersOneView(t *testing.T) {
	v := newViewHarness(t)
	var messages []string
	for i := range 2000 {
		messages = append(messages, fmt.Sprintf(`{"status":%d,"path":"/%d"}`, 200+i%5, i))
	}
	enc, _ := v.put(pointer.CodecZstd, []payload{rows(t, messages...)})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range 5 {
				p := v.ask(t, "SELECT path FROM a WHERE status = 203", enc[0])[0]
				if got := v.finish(t, "SELECT path FROM a WHERE status = 203", p); len(got) != 400 {
					t.Errorf("%d rows", len(got))
				}
				if p.GetView().GetRows() != 2000 {
					t.Errorf("of %d rows", p.GetView().GetRows())
				}
			}
		})
	}
	all.Wait()
	if n := v.metric("view_payloads_total"); n != 1 {
		t.Errorf("the payload was transcoded %v times", n)
	}
	if n := v.store.reads.Load(); n != 1 {
		t.Errorf("and read %d times", n)
	}
	res, err := v.server.Views(t.Context(), &scribev1.ViewsRequest{Category: "a"})
	if err != nil || len(res.GetViews()) != 1 || len(res.GetQueries()) != 1 {
		t.Fatalf("%v, %v", res, err)
	}
	s := res.GetViews()[0]
	if s.GetPayloads() != 1 || s.GetHits() != 99 || s.GetRowsIn() != 2000 || s.GetRowsOut() != 400 || s.GetPredicate() != "status = 203" ||
		!slices.Contains(s.GetColumns(), "path") || s.GetQueries() != 1 || s.GetBytesIn() == 0 || s.GetBytesOut() == 0 {
		t.Errorf("the view is %v", s)
	}
	if q := res.GetQueries()[0]; q.GetView() != s.GetView() || q.GetPayloads() != 100 || !strings.Contains(q.GetQuery().GetText(), "203") {
		t.Errorf("the query is %v", q)
	}
	if res, _ := v.server.Views(t.Context(), &scribev1.ViewsRequest{Category: "b"}); len(res.GetViews()) != 0 {
		t.Error("another category has views")
	}
}

// A view that another made after a request had looked for it in memory, and before it was to make it, is not made again.
func TestAViewThatWasMadeMeanwhile(t *testing.T) {
	v := newViewHarness(t)
	enc, _ := v.put(pointer.CodecNone, []payload{rows(t, `{"status":1}`)})
	req := v.request("SELECT status FROM a", enc[0])
	encoding, cat, err := v.server.checkRequest(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := v.server.views.parseRequest(t.Context(), cat, req, nil)
	if err != nil {
		t.Fatal(err)
	}
	late := newAnswer(v.server, encoding, cat, req, wanted, nil)
	v.ask(t, "SELECT status FROM a", enc[0])
	if err := late.makeViews(t.Context()); err != nil || late.items[0].err != nil {
		t.Fatal(err, late.items[0].err)
	}
	if n := v.metric("view_payloads_total"); n != 1 || !late.items[0].reused {
		t.Errorf("the payload was transcoded %v times", n)
	}
}

// TestAMakerThatGoesAwayFailsNobody holds the store back until the first asker has given up.
func TestAMakerThatGoesAwayFailsNobody(t *testing.T) {
	v := newViewHarness(t)
	enc, _ := v.put(pointer.CodecNone, []payload{rows(t, `{"status":1}`)})
	reading, release := make(chan struct{}, 10), make(chan struct{})
	v.store.onRead(func(ctx context.Context, _ []byte, _ int64) error {
		reading <- struct{}{}
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := v.server.Fetch(ctx, v.request("SELECT status FROM a", enc[0]))
		gone <- err
	}()
	<-reading
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if got := v.finish(t, "SELECT status FROM a", v.ask(t, "SELECT status FROM a", enc[0])[0]); len(got) != 1 {
				t.Errorf("%q", got)
			}
		})
	}
	v.eventually(func() bool { return v.metric("requests_in_flight") == 5 })
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("who went away got %v", err)
	}
	close(release)
	all.Wait()
}

func TestCompressedViews(t *testing.T) {
	v := newViewHarness(t)
	var messages []string
	for i := range 3000 {
		messages = append(messages, fmt.Sprintf(`{"status":200,"path":"/the/same/again/%d"}`, i%7))
	}
	enc, _ := v.put(pointer.CodecNone, []payload{rows(t, messages...)}, []payload{rows(t, `{}`)})
	q := "SELECT path FROM a"
	plain := v.ask(t, q, enc[0])[0]
	for _, codec := range []uint32{codecZstd, codecS2} {
		req := v.request(q, enc[0], enc[1])
		req.View.Codec = codec
		for range 2 {
			res, err := v.server.Fetch(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			p := res.GetPayloads()[0]
			if p.GetCodec() != codec || len(p.GetData()) > len(plain.GetData())*2/3 {
				t.Errorf("codec %d, %d bytes of %d", p.GetCodec(), len(p.GetData()), len(plain.GetData()))
			}
			if got := v.finish(t, q, p); !slices.Equal(got, v.finish(t, q, plain)) {
				t.Error("other rows")
			}
			v.finish(t, q, res.GetPayloads()[1])
		}
	}
}

func TestWhatIsNoViewIsRefused(t *testing.T) {
	v := newViewHarness(t)
	enc, _ := v.put(pointer.CodecNone, []payload{rows(t, `{"status":1}`)})
	for name, spoil := range map[string]func(*scribev1.FetchRequest){
		"a query that is none":       func(r *scribev1.FetchRequest) { r.View.Query.Text = "SELECT" },
		"a column that is not there": func(r *scribev1.FetchRequest) { r.View.Query.Text = "SELECT stauts FROM a" },
		"another category":           func(r *scribev1.FetchRequest) { r.View.Query.Text = "SELECT status FROM b" },
		"another version":            func(r *scribev1.FetchRequest) { r.View.Query.SchemaVersion = 9 },
		"no time":                    func(r *scribev1.FetchRequest) { r.View.Query.Now = 0 },
		"no query":                   func(r *scribev1.FetchRequest) { r.View.Query = nil },
		"a codec":                    func(r *scribev1.FetchRequest) { r.View.Codec = 9 },
		"a place too many": func(r *scribev1.FetchRequest) {
			r.Places = []*scribev1.PointerPlace{{Shard: 1, Lsn: 1}, {Shard: 1, Lsn: 2}}
		},
		"a megabyte": func(r *scribev1.FetchRequest) { r.View.Query.Text = strings.Repeat("x", 1<<20) },
		"ten thousand parentheses": func(r *scribev1.FetchRequest) {
			r.View.Query.Text = "SELECT status FROM a WHERE " + strings.Repeat("(", 10_000) + "true"
		},
	} {
		req := v.request("SELECT status FROM a", enc[0])
		spoil(req)
		if _, err := v.server.Fetch(t.Context(), req); rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID {
			t.Errorf("%s: %v", name, err)
		}
	}
	if p := v.ask(t, "SELECT status FROM a", enc[0])[0]; len(v.finish(t, "SELECT status FROM a", p)) != 1 {
		t.Error("and what is one was not served")
	}
}

// lossFrame is a frame that reports a loss.
func lossFrame(t testing.TB) []byte {
	t.Helper()
	b, err := loss.AppendFrame(nil, "a", 0, 1_700_000_000_000_000, &loss.Report{
		Reason: "full", Messages: 3, By: "agent", Run: "r", Number: 1, Since: 1, Until: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestReportsOfLossesAreNoRows(t *testing.T) {
	v := newViewHarness(t)
	p := payload{category: "a"}
	report := lossFrame(t)
	for _, part := range [][]byte{report, rows(t, `{"status":1}`, `{"status":2}`).frames, report, report, rows(t, `{"status":3}`).frames} {
		p.frames = append(p.frames, part...)
	}
	p.messages = 6
	enc, _ := v.put(pointer.CodecZstd, []payload{p}, []payload{{category: "a", frames: report, messages: 1}})
	req := v.request("SELECT status FROM a", enc...)
	req.Places = []*scribev1.PointerPlace{{Shard: uint64(testShard), Lsn: 1}, {Shard: uint64(testShard), Lsn: 2}}
	res, err := v.server.Fetch(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	got := res.GetPayloads()[0]
	want := []string{"_index=1 status=1 ", "_index=2 status=2 ", "_index=5 status=3 "}
	if rows := v.finish(t, "SELECT status FROM a", got); !slices.Equal(rows, want) {
		t.Errorf("got %q, want %q", rows, want)
	}
	var at []uint32
	for _, l := range got.GetView().GetLosses() {
		at = append(at, l.GetIndex())
		if !slices.Equal(l.GetFrame(), report) {
			t.Error("the report came to harm")
		}
	}
	if !slices.Equal(at, []uint32{0, 3, 4}) {
		t.Errorf("reports are at %v", at)
	}
	if only := res.GetPayloads()[1]; len(only.GetView().GetLosses()) != 1 || only.GetView().GetRows() != 0 || only.GetError() != nil {
		t.Errorf("a payload of nothing but a report: %v, %v", only.GetView(), only.GetError())
	}
	closeServer(t, v)
	if v.notes.get(1) != nil || v.notes.get(2) != nil {
		t.Error("a payload with a report can be left out")
	}
}

func closeServer(t testing.TB, v *viewHarness) {
	t.Helper()
	v.eventually(func() bool {
		v.server.zones.mu.Lock()
		defer v.server.zones.mu.Unlock()
		return v.server.zones.mu.writing == 0
	})
}

func TestZoneMapsAreLearnedOnce(t *testing.T) {
	v := newViewHarness(t)
	enc, _ := v.put(pointer.CodecZstd, []payload{rows(t, `{"status":404,"path":"/b"}`, `{"status":200,"path":"/a"}`)})
	fetch := func(text string) {
		t.Helper()
		req := v.request(text, enc[0])
		req.Places = []*scribev1.PointerPlace{{Shard: uint64(testShard), Lsn: 7}}
		res, err := v.server.Fetch(t.Context(), req)
		if err != nil || res.GetPayloads()[0].GetError() != nil {
			t.Fatal(res, err)
		}
		closeServer(t, v)
	}
	fetch("SELECT path FROM a WHERE status = 404")
	m, err := zonenote.Decode(v.notes.get(7), enc[0])
	if err != nil || !m.Has("status") || m.Has("path") || !m.Has("_time") || !m.Has("_key") || m.Rows != 2 {
		t.Fatalf("%+v, %v", m, err)
	}
	if _, err := zonenote.Decode(v.notes.get(7), []byte("another pointer")); !errors.Is(err, zonenote.ErrForeign) {
		t.Errorf("for another pointer: %v", err)
	}
	where := func(text string) bool {
		return zone.MayMatch(bind(t, "SELECT status FROM a WHERE "+text).Where, m.Under(zone.Define(bind(t, "SELECT status FROM a").Schema)))
	}
	if !where("status = 404") || !where("status > 300") || where("status = 500") || where("status IS NULL") || !where("path = '/c'") {
		t.Error("what it says is not what there is")
	}
	fetch("SELECT path FROM a WHERE path = '/b'")
	if m, err = zonenote.Decode(v.notes.get(7), enc[0]); err != nil || !m.Has("status") || !m.Has("path") {
		t.Fatalf("another predicate: %+v, %v", m, err)
	}
	if where("path = '/c'") || where("status = 500") {
		t.Error("what was known is lost, or what is new is not there")
	}
	if n := v.server.zones.written.Load(); n != 2 {
		t.Errorf("%d zone maps were written", n)
	}
	v.notes.mu.Lock()
	v.notes.err = errors.New("the engine is away")
	v.notes.mu.Unlock()
	fetch("SELECT host FROM a WHERE host = 'x'")
	if n := v.server.zones.failed.Load(); n != 1 {
		t.Errorf("%d failures", n)
	}
}

// BenchmarkView makes a payload of 16,000 rows into a view, compressed or not: decompression, transcoding, IPC.
//
//	go test ./readproxy -run '^$' -bench View -benchtime 50x -count 6
func BenchmarkView(b *testing.B) {
	var messages []string
	r := rand.New(rand.NewPCG(1, 2))
	for range 16_000 {
		messages = append(messages, fmt.Sprintf(`{"status":%d,"path":"/images/%d","bytes":%d,"host":"host-%d.example.com","extra":"%x"}`,
			[]int{200, 200, 200, 301, 404}[r.IntN(5)], r.IntN(1000), r.IntN(100_000), r.IntN(20), r.Uint64()))
	}
	p := rows(b, messages...)
	for _, c := range []struct{ name, text string }{
		{"all", "SELECT status, path, bytes, host FROM a"}, {"one of five", "SELECT path FROM a WHERE status = 404"},
	} {
		v := newViewHarness(b)
		enc, _ := v.put(pointer.CodecZstd, []payload{p})
		for _, codec := range []uint32{codecPlain, codecS2, codecZstd} {
			b.Run(fmt.Sprintf("%s/codec=%d", c.name, codec), func(b *testing.B) {
				req := v.request(c.text, enc[0])
				req.View.Codec = codec
				b.SetBytes(int64(len(p.frames)))
				var n int
				for b.Loop() {
					v.server.cache.clear()
					res, err := v.server.Fetch(b.Context(), req)
					if err != nil {
						b.Fatal(err)
					}
					n = len(res.GetPayloads()[0].GetData())
				}
				b.ReportMetric(float64(n), "answer-bytes")
			})
		}
	}
	b.Run("cached", func(b *testing.B) {
		v := newViewHarness(b)
		enc, _ := v.put(pointer.CodecZstd, []payload{p})
		req := v.request("SELECT path FROM a WHERE status = 404", enc[0])
		for b.Loop() {
			if _, err := v.server.Fetch(b.Context(), req); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// TestExpressionsThatGrow: a predicate that takes too much memory is no damage of the payload: whoever asked is to fetch it raw. Those who share a
// view with such a query are served without it from then on.
func TestExpressionsThatGrow(t *testing.T) {
	v := newViewHarness(t, func(c *Config) { c.Views.Views = 1 })
	var payloads []payload
	for i := range 4 {
		payloads = append(payloads, rows(t, `{"status":200,"path":"/a"}`, fmt.Sprintf(`{"status":404,"path":"/%d"}`, i)))
	}
	enc, _ := v.put(pointer.CodecZstd, payloads)
	grown := "path"
	for range 4 {
		grown = "replace(" + grown + ", '/', '" + strings.Repeat("/", 1000) + "')"
	}
	good, bad := "SELECT status FROM a WHERE status = 404", "SELECT status FROM a WHERE length("+grown+") > 5"
	answered := func(at int) {
		t.Helper()
		if p := v.ask(t, good, enc[at])[0]; p.GetError() != nil || len(v.finish(t, good, p)) != 1 {
			t.Errorf("payload %d: the other query is answered with %v", at, p.GetError())
		}
	}
	answered(0)
	for _, p := range v.ask(t, bad, enc[1], enc[2]) {
		if p.GetError().GetReason() != scribev1.Reason_REASON_TOO_LARGE || !strings.Contains(p.GetError().GetMessage(), "RAW") {
			t.Errorf("answered with %v", p.GetError())
		}
	}
	answered(1)
	answered(3)
	if _, err := v.server.Fetch(t.Context(), v.request(bad, enc[3])); rpc.ReasonOf(err) != scribev1.Reason_REASON_TOO_LARGE {
		t.Errorf("asked again: %v", err)
	}
	views, queries := v.server.views.table.State()
	if len(queries) != 1 || len(views) != 1 || strings.Contains(expr.Text(views[0].Shape.Where()), "replace") {
		t.Errorf("%d queries are served by %d views", len(queries), len(views))
	}
}
