package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"scribe/columnar/aggregate"
	"scribe/columnar/sql"
	"scribe/columnar/vector"
	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/format/loss"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// numbers is a cell with a category whose rows have n from 0 on, in payloads of some, over two shards.
func numbers(t testing.TB, payloads, rows int) *cell {
	t.Helper()
	c := newCell()
	c.schema = historyOf(t)
	n := 0
	for p := range payloads {
		var texts []string
		for range rows {
			texts = append(texts, fmt.Sprintf(`{"n":%d,"s":"row %d"}`, n, n))
			n++
		}
		c.addFrames(shardID(uint16(p%2), 1), rowsFrame(uint32(p%2), p, texts...))
	}
	return c
}

// newQuery is a query of a cell in the strict order.
func newQuery(t testing.TB, c *cell, text string, opts ...consumer.Option) *columns.Query {
	t.Helper()
	q, err := columns.NewQuery(t.Context(), "", text, append([]consumer.Option{
		consumer.WithServices(c, c), consumer.WithControl(c), consumer.WithWindow(0), consumer.WithHeartbeat(50 * time.Millisecond),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	return q
}

// TestLimitAndCheckpoint: a query that is cut by LIMIT anywhere and goes on from its checkpoint answers as one that was not cut.
func TestLimitAndCheckpoint(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := numbers(t, rapid.IntRange(1, 5).Draw(rt, "payloads"), rapid.IntRange(1, 6).Draw(rt, "rows"))
		c.serve(rapid.SampledFrom([]string{"here", "exact view", "all columns and rows"}).Draw(rt, "way"))
		text := `SELECT n FROM "web.access" WHERE n % 3 <> 1`
		want, _ := answer(t, c, text)
		var got strings.Builder
		start := consumer.Earliest()
		for range 100 {
			n := rapid.IntRange(1, 7).Draw(rt, "limit")
			part, q := answer(t, c, fmt.Sprintf("%s LIMIT %d", text, n), consumer.WithStart(start))
			got.WriteString(part)
			if strings.Count(part, "\n") < n {
				break
			}
			var err error
			if start, err = consumer.Checkpoint(q.Checkpoint()); err != nil {
				rt.Fatal(err)
			}
		}
		if got.String() != want {
			rt.Fatalf("in parts:\n%s\nin one:\n%s", got.String(), want)
		}
	})
}

// TestLimitWithinMessages: where LIMIT cuts a message of several rows, a query that goes on from the checkpoint begins with that message again: rows
// are repeated, none is lost.
func TestLimitWithinMessages(t *testing.T) {
	kept := history(t, strings.Replace(rowsSchema, "format: json", "format: ndjson", 1))
	rapid.Check(t, func(rt *rapid.T) {
		c := newCell()
		c.schema = kept
		n, longest := 0, 0
		of := map[string]int{} // row: message
		for p := range rapid.IntRange(1, 4).Draw(rt, "payloads") {
			var messages []string
			for range rapid.IntRange(1, 4).Draw(rt, "messages") {
				rows := rapid.IntRange(1, 5).Draw(rt, "rows")
				longest = max(longest, rows)
				var lines strings.Builder
				for range rows {
					of[fmt.Sprintf("{\"n\":%d}\n", n)] = 10*p + len(messages)
					fmt.Fprintf(&lines, "{\"n\":%d}\n", n)
					n++
				}
				messages = append(messages, lines.String())
			}
			c.addFrames(shardID(0, 1), rowsFrame(0, p, messages...))
		}
		c.serve(rapid.SampledFrom([]string{"here", "exact view", "all columns and rows"}).Draw(rt, "way"))
		limit := rapid.IntRange(1, longest+2).Draw(rt, "limit")
		text := fmt.Sprintf(`SELECT n FROM "web.access" LIMIT %d`, limit)
		next, start := 0, consumer.Earliest() // the row that has not been seen
		for range 100 {
			part, q := answer(t, c, text, consumer.WithStart(start))
			rows := slices.Collect(strings.Lines(part))
			for i, row := range rows {
				var at int
				if _, err := fmt.Sscanf(row, `{"n":%d}`, &at); err != nil {
					rt.Fatal(err)
				}
				switch {
				case at > next:
					rt.Fatalf("LIMIT %d: row %d comes where %d was expected", limit, at, next)
				case at < next && i > 0 && of[row] != of[rows[0]]:
					rt.Fatalf("LIMIT %d: row %d comes again, and is not of the message that was cut", limit, at)
				case at == next:
					next++
				}
			}
			if len(rows) < limit {
				break
			}
			var err error
			if start, err = consumer.Checkpoint(q.Checkpoint()); err != nil {
				rt.Fatal(err)
			}
		}
		if limit > longest && next != n {
			rt.Fatalf("LIMIT %d: %d of %d rows", limit, next, n)
		}
	})
}

// TestRowLimits: the lower of LIMIT and the option holds, and 0 is no row.
func TestRowLimits(t *testing.T) {
	c := numbers(t, 3, 4)
	for _, tt := range []struct {
		text  string
		limit int64
		want  int
	}{{"", 5, 5}, {"LIMIT 3", 5, 3}, {"LIMIT 9", 5, 5}, {"LIMIT 0", 5, 0}, {"", 0, 0}, {"LIMIT 100", 100, 12}} {
		got, _ := answer(t, c, `SELECT n FROM "web.access" `+tt.text, columns.WithRowLimit(tt.limit))
		if strings.Count(got, "\n") != tt.want {
			t.Errorf("%s and %d: %s", tt.text, tt.limit, got)
		}
	}
	if got, _ := answer(t, c, `SELECT s, count(*) AS c FROM "web.access" GROUP BY s ORDER BY s`, columns.WithRowLimit(2)); strings.Count(got, "\n") != 2 {
		t.Errorf("groups: %s", got)
	}
}

// TestBounds: each bound ends a query with an error that says which it was.
func TestBounds(t *testing.T) {
	c := numbers(t, 4, 50)
	for what, opt := range map[string]consumer.Option{"rows": columns.WithMaxRows(60), "bytes": columns.WithMaxBytes(500), "time": columns.WithTimeLimit(time.Nanosecond)} {
		q := newQuery(t, c, `SELECT n, s FROM "web.access"`, opt)
		var err error
		for _, err = range q.Batches(t.Context()) {
			if err != nil {
				break
			}
		}
		var limit *columns.LimitError
		if !errors.As(err, &limit) || !errors.Is(err, columns.ErrLimit) || limit.What != what || limit.Hint == "" {
			t.Errorf("%s: got %v", what, err)
		}
	}
	q := newQuery(t, c, `SELECT s, count(*) AS c FROM "web.access" GROUP BY s`, columns.WithMaxMemory(1<<20))
	if got := lines(t, q); strings.Count(got, "\n") != 200 {
		t.Errorf("%d groups", strings.Count(got, "\n"))
	}
	_, err := columns.NewQuery(t.Context(), "", `SELECT n FROM x`, columns.WithMaxMemory(1), columns.WithMaxRows(-1), columns.WithMaxBytes(-1), columns.WithTimeLimit(-1),
		columns.WithRowLimit(-2), columns.WithFollow(), columns.WithUntil(time.Now()))
	for _, option := range []string{"WithMaxMemory", "WithMaxRows", "WithMaxBytes", "WithTimeLimit", "WithRowLimit", "WithFollow"} {
		if err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("%s is not refused: %v", option, err)
		}
	}
}

// TestLongTexts: a text as long as one may be can be asked, though the canonical text of it is longer; and a filter.
func TestLongTexts(t *testing.T) {
	c := numbers(t, 3, 4)
	var in strings.Builder
	for i := range 9_990 {
		if i > 0 {
			in.WriteByte(',')
		}
		fmt.Fprintf(&in, "%d", 10_000+i)
	}
	condition := "n IN(5," + in.String() + ")"
	condition += strings.Repeat(" ", columns.MaxQueryText-len(condition)-30)
	for name, where := range map[string]string{"canonical is too long": condition[:len(condition)-20], "both are": condition + strings.Repeat(" ", 30)} {
		c.serve("skipped pointers")
		c.starts = nil
		reader := open(t, c, consumer.WithControl(c), consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd(), columns.Where(where))
		got, err := described(t.Context(), reader)
		if err != nil || len(got) != 1 || !strings.HasPrefix(got[0], `{"n":5,`) {
			t.Errorf("a filter, %s: %v, %v", name, got, err)
		}
		for _, start := range c.starts {
			if n := len(start.GetFilter().GetText()); n > columns.MaxQueryText || (n > 0) != (name == "canonical is too long") {
				t.Errorf("a filter, %s: %d bytes of it travel", name, n)
			}
		}
	}
	text := `SELECT n FROM "web.access" WHERE ` + strings.TrimSpace(condition)
	c.serve("exact view")
	asked, exact := 0, c.views
	c.views = func(q *scribev1.Query, frames []byte) (*scribev1.Payload, error) {
		if asked++; len(q.GetText()) > columns.MaxQueryText {
			t.Errorf("a query of %d bytes travels", len(q.GetText()))
		}
		return exact(q, frames)
	}
	if got, q := answer(t, c, text, consumer.WithConcurrency(1)); got != "{\"n\":5}\n" || asked == 0 || q.Stats().ViewsRefused > 0 {
		t.Errorf("%d views were asked for, and the answer is %s", asked, got)
	}
}

// TestExpressionsThatGrow: expressions that make far more than they are given end their query, in WHERE, the SELECT list, and groups.
func TestExpressionsThatGrow(t *testing.T) {
	c := numbers(t, 2, 2)
	grown := "s"
	for range 4 {
		grown = "replace(" + grown + ", 'r', '" + strings.Repeat("r", 1000) + "')"
	}
	for _, text := range []string{
		`SELECT n FROM "web.access" WHERE length(` + grown + ") > 5", "SELECT " + grown + ` AS s FROM "web.access"`,
		"SELECT max(" + grown + `) AS s FROM "web.access"`, "SELECT upper(" + strings.ReplaceAll(grown, "(s,", "(max(s),") + `) AS s FROM "web.access"`,
	} {
		q := newQuery(t, c, text, columns.WithLocal())
		var err error
		for _, err = range q.Batches(t.Context()) {
			if err != nil {
				break
			}
		}
		limit := new(columns.LimitError)
		if !errors.As(err, &limit) || limit.What != "memory" || !errors.Is(err, vector.ErrTooLarge) || len(err.Error()) > 500 {
			t.Errorf("%.60s: %v", text, err)
		}
	}
}

// TestQueryErrors: what is wrong with a query is said before anything is read.
func TestQueryErrors(t *testing.T) {
	c := numbers(t, 1, 1)
	for text, want := range map[string]string{
		`SELECT m FROM "web.access"`: `"m"`, `SELECT`: "", `SELECT n FROM "web.access" WHERE s`: "", strings.Repeat("x", columns.MaxQueryText+1): "limit",
		`SELECT n FROM "web.access" WHERE ` + strings.Repeat("(", 10_000): "", `SELECT s ~ '(((a{100}){100}){100}){100}' AS r FROM "web.access"`: "",
	} {
		_, err := columns.NewQuery(t.Context(), "", text, consumer.WithServices(c, c), consumer.WithControl(c))
		if wrong := new(sql.Error); err == nil || !strings.Contains(err.Error(), want) || len(text) <= columns.MaxQueryText && !errors.As(err, &wrong) {
			t.Errorf("%.40s: got %v", text, err)
		}
	}
	if _, err := columns.NewQuery(t.Context(), "", `SELECT n FROM other`, consumer.WithServices(c, c), consumer.WithControl(c)); !errors.Is(err, consumer.ErrUnknownCategory) {
		t.Errorf("another category: got %v", err)
	}
	for text, column := range map[string]int{
		`SELECT count(*) FROM "web.access"`: 1, `SELECT n FROM "web.access" GROUP BY n`: 37, `SELECT DISTINCT n FROM "web.access"`: 1,
		`SELECT n FROM "web.access" ORDER BY n LIMIT 1`: 37,
	} {
		_, err := columns.NewQuery(t.Context(), "", text, consumer.WithServices(c, c), consumer.WithControl(c), columns.WithFollow())
		if wrong := new(sql.Error); !errors.As(err, &wrong) || !regexp.MustCompile("needs? an end").MatchString(wrong.Message) || wrong.Column != column {
			t.Errorf("%s, followed: got %v", text, err)
		}
	}
	if c.streams+c.fetches > 0 {
		t.Errorf("%d streams and %d fetches before an iteration", c.streams, c.fetches)
	}
}

// TestSortedRows: ORDER BY, DISTINCT and OFFSET have the same answer in whatever form payloads arrive.
func TestSortedRows(t *testing.T) {
	for text, want := range map[string]string{
		`SELECT n FROM "web.access" ORDER BY n DESC LIMIT 3`:                                   "29 28 27",
		`SELECT n FROM "web.access" ORDER BY n % 2 DESC, n LIMIT 3 OFFSET 13`:                  "27 29 0",
		`SELECT n FROM "web.access" WHERE n > 26 ORDER BY s`:                                   "27 28 29",
		`SELECT n FROM "web.access" ORDER BY n OFFSET 28`:                                      "28 29",
		`SELECT n FROM "web.access" ORDER BY n LIMIT 0`:                                        "",
		`SELECT n FROM "web.access" ORDER BY n OFFSET 99`:                                      "",
		`SELECT n FROM "web.access" WHERE n < 0 ORDER BY n LIMIT 9`:                            "",
		`SELECT n FROM "web.access" ORDER BY n % 2, _time, _persisted, _offset, n LIMIT 2`:     "0 2",
		`SELECT DISTINCT n / 10 AS n FROM "web.access" ORDER BY 1 DESC`:                        "2 1 0",
		`SELECT DISTINCT n % 3 AS n FROM "web.access" ORDER BY n LIMIT 1 OFFSET 1`:             "1",
		`SELECT DISTINCT count(*) AS n FROM "web.access" GROUP BY n % 4 ORDER BY 1`:            "7 8",
		`SELECT n % 4 AS n, count(*) FROM "web.access" GROUP BY 1 ORDER BY 1 LIMIT 2 OFFSET 2`: "2 3",
	} {
		for _, way := range ways {
			c := numbers(t, 6, 5)
			c.serve(way)
			got, q := answer(t, c, text)
			var found []string
			for _, m := range regexp.MustCompile(`"n":(\d+)`).FindAllStringSubmatch(got, -1) {
				found = append(found, m[1])
			}
			if strings.Join(found, " ") != want {
				t.Errorf("%s, %s: got %s, want %s", text, way, found, want)
			}
			if x := q.Explain(); x.Sorted == x.Grouped {
				t.Errorf("%s: explained as sorted %t, grouped %t", text, x.Sorted, x.Grouped)
			}
		}
	}
	// Without an order OFFSET leaves out what comes first, from payload to payload; a checkpoint is after what was left out.
	c := numbers(t, 6, 5)
	c.serve("here")
	all, _ := answer(t, c, `SELECT n FROM "web.access"`)
	got, q := answer(t, c, `SELECT n FROM "web.access" LIMIT 8 OFFSET 7`)
	at, err := consumer.Checkpoint(q.Checkpoint())
	if err != nil {
		t.Fatal(err)
	}
	rest, _ := answer(t, c, `SELECT n FROM "web.access"`, consumer.WithStart(at))
	skipped := strings.Join(strings.SplitAfter(all, "\n")[7:], "")
	if got+rest != skipped || strings.Count(got, "\n") != 8 {
		t.Errorf("got\n%s, then\n%swant\n%s", got, rest, skipped)
	}
}

// TestSortedBounds: what is sorted is bounded by rows and by memory.
func TestSortedBounds(t *testing.T) {
	c := numbers(t, 3, 40_000)
	for text, want := range map[string]string{
		`SELECT n FROM "web.access" ORDER BY n`:                                                   "more than 100000 rows to sort: add a LIMIT",
		`SELECT n, s || s || s || s || s || s || s AS s FROM "web.access" ORDER BY n LIMIT 60000`: "rows to sort take",
		`SELECT DISTINCT s || s || s || s || s AS s FROM "web.access"`:                            "groups take",
	} {
		q := newQuery(t, c, text, columns.WithMaxMemory(4<<20))
		var err error
		for _, e := range q.Batches(t.Context()) {
			err = errors.Join(err, e)
		}
		if !errors.Is(err, aggregate.ErrLimit) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: got %v", text, err)
		}
	}
	// Few of many rows take little.
	q := newQuery(t, c, `SELECT n, s || s || s || s || s AS s FROM "web.access" ORDER BY n DESC LIMIT 2`, columns.WithMaxMemory(4<<20))
	if got := lines(t, q); strings.Count(got, "\n") != 2 || !strings.Contains(got, `"n":119999`) {
		t.Errorf("got %s", got)
	}
}

// TestQueryFollows: rows come as they are written, and an end of the context ends the query and its requests.
func TestQueryFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := numbers(t, 1, 2)
		q := newQuery(t, c, `SELECT n FROM "web.access"`, columns.WithFollow())
		ctx, cancel := context.WithCancel(t.Context())
		rows := int64(0)
		for batch, err := range q.Batches(ctx) {
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				break
			}
			switch rows += batch.NumRows(); rows {
			case 2:
				c.addFrames(shardID(5, 1), rowsFrame(5, 1, `{"n":7}`))
			case 3:
				cancel()
			}
		}
		if rows != 3 {
			t.Errorf("%d rows", rows)
		}
		cancel()
	})
}

// TestCancelReachesServers: when the context ends a request that is under way sees it at once.
func TestCancelReachesServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := numbers(t, 1, 1)
		ctx, cancel := context.WithCancel(t.Context())
		seen := make(chan struct{})
		slow := fetching(func(fctx context.Context, _ *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
			cancel()
			<-fctx.Done()
			close(seen)
			return nil, fctx.Err()
		})
		q := newQuery(t, c, `SELECT n FROM "web.access"`, consumer.WithServices(c, slow))
		for _, err := range q.Batches(ctx) {
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		<-seen
	})
}

type fetching func(context.Context, *scribev1.FetchRequest) (*scribev1.FetchResponse, error)

func (f fetching) Fetch(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	return f(ctx, req)
}

// TestUntil: a query ends in front of a time, whether that has come or not.
func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := numbers(t, 4, 3)
		begin := time.UnixMicro(c.clock)
		past := begin.Add(-2000 * time.Microsecond) // the persisted time of the second payload
		if got, _ := answer(t, c, `SELECT n FROM "web.access"`, columns.WithUntil(past)); strings.Count(got, "\n") != 3 {
			t.Errorf("until the second payload: %s", got)
		}
		want, _ := answer(t, c, fmt.Sprintf(`SELECT n FROM "web.access" WHERE _persisted <= timestamp '%s'`, past.UTC().Format("2006-01-02 15:04:05.999999")))
		if strings.Count(want, "\n") != 6 {
			t.Errorf("with the second payload: %s", want)
		}
		// A time that is to come: what is written before it is in the answer, what is written at it is not.
		future := begin.Add(time.Minute)
		time.AfterFunc(time.Second, func() { c.addFrames(shardID(0, 1), rowsFrame(0, 9, `{"n":100}`)) })
		time.AfterFunc(time.Minute, func() {
			c.mu.Lock()
			c.clock = future.UnixMicro() - 1000
			c.mu.Unlock()
			c.addFrames(shardID(0, 1), rowsFrame(0, 9, `{"n":200}`))
		})
		if got, _ := answer(t, c, `SELECT max(n) AS top, count(*) AS c FROM "web.access"`, columns.WithUntil(future)); got != `{"top":100,"c":13}`+"\n" {
			t.Errorf("until a time to come: %s", got)
		}
		empty := newCell()
		if got, _ := answer(t, empty, `SELECT count(*) AS c FROM "web.access"`, columns.WithUntil(time.Now().Add(time.Minute))); got != `{"c":0}`+"\n" {
			t.Errorf("of nothing: %s", got)
		}
	})
}

// TestGapsInQueries: what is missing is told between the rows, and the query goes on; reports of losses are no rows.
func TestGapsInQueries(t *testing.T) {
	for _, way := range []string{"here", "no views", "exact view"} {
		c := numbers(t, 4, 2)
		c.serve(way)
		report := loss.Report{Reason: "buffer_full", Messages: 5, Frames: 1, Bytes: 100, By: loss.ByAgent, Run: "x", Number: 1}
		c.addFrames(shardID(0, 1), rowsFrame(0, 9, `{"n":50}`), rowsFrame(0, 9, `{"n":51}`), lossFrame(t, &report))
		c.trim(shardID(1, 1), 2)
		q := newQuery(t, c, `SELECT n FROM "web.access"`)
		rows, reasons := int64(0), map[consumer.GapReason]int{}
		for batch, err := range q.Batches(t.Context()) {
			var gap *consumer.GapError
			switch {
			case errors.As(err, &gap):
				reasons[gap.Reason]++
			case err != nil:
				t.Fatal(err)
			default:
				rows += batch.NumRows()
			}
		}
		if rows != 3*2+2 || reasons[consumer.GapDropped] != 1 {
			t.Errorf("%s: %d rows, gaps %v", way, rows, reasons)
		}
	}
}

// lossFrame is a report as an agent writes it.
func lossFrame(t testing.TB, r *loss.Report) []byte {
	t.Helper()
	frame, err := loss.AppendFrame(nil, categoryName, 0, time.Now().UnixMicro(), r)
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

// TestFilter: a consumer with a filter yields what one without yields, but for what does not match; and a checkpoint anywhere goes on there.
func TestFilter(t *testing.T) {
	kept := historyOf(t)
	rapid.Check(t, func(rt *rapid.T) {
		c := newCell()
		c.schema = kept
		fillRows(rt, c)
		if rapid.Bool().Draw(rt, "skip") {
			c.serve("skipped pointers")
		}
		where := anyPredicate(rt, 2)
		opts := []consumer.Option{consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd(), consumer.WithWindow(0), consumer.WithControl(c), columns.WithNow(time.UnixMicro(1_700_000_000_000_000))}
		all, err := described(t.Context(), open(t, c, opts...))
		if err != nil {
			rt.Fatal(err)
		}
		matches, _ := answer(t, c, fmt.Sprintf(`SELECT coalesce(%s, false) AS m FROM "web.access"`, where), columns.WithLocal())
		var want []string
		for i, line := range strings.Split(strings.TrimSpace(matches), "\n") {
			if strings.Contains(line, "true") {
				want = append(want, all[i])
			}
		}
		n := rapid.IntRange(0, len(want)).Draw(rt, "first")
		reader := open(t, c, append(opts, columns.Where(where))...)
		var got []string
		checkpoint := ""
		for rec, err := range reader.Records(t.Context()) {
			if err != nil {
				rt.Fatal(err)
			}
			got = append(got, describe(rec))
			if len(got) == n {
				checkpoint = reader.Checkpoint()
				break
			}
		}
		if checkpoint != "" {
			start, err := consumer.Checkpoint(checkpoint)
			if err != nil {
				rt.Fatal(err)
			}
			rest, err := described(t.Context(), open(t, c, append(opts, columns.Where(where), consumer.WithStart(start))...))
			if err != nil {
				rt.Fatal(err)
			}
			got = append(got, rest...)
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			rt.Fatalf("WHERE %s\ngot:\n%s\nwant:\n%s", where, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// described is all that a consumer yields.
func described(ctx context.Context, c *consumer.Consumer) (out []string, err error) {
	for rec, err := range c.Records(ctx) {
		if err != nil {
			return out, err
		}
		out = append(out, describe(rec))
	}
	return out, nil
}

// describe is all that a record says.
func describe(r consumer.Record) string {
	return fmt.Sprintf("%s key %q %v %v %v/%d/%d %d", r.Payload, r.Key, r.Time.UTC(), r.Persisted.UTC(), r.Shard, r.LSN, r.Index, r.Attributes.Len())
}

// TestFilterErrors: a filter that is wrong is an error of the options, or of the first iteration when only the schema shows it.
func TestFilterErrors(t *testing.T) {
	c := numbers(t, 1, 1)
	if _, err := consumer.New("", categoryName, consumer.WithServices(c, c), columns.Where("n =")); err == nil || !strings.Contains(err.Error(), "Where") {
		t.Errorf("got %v", err)
	}
	reader := open(t, c, consumer.WithControl(c), columns.Where("m = 1"))
	for _, err := range reader.Records(t.Context()) {
		if wrong := new(sql.Error); !errors.As(err, &wrong) {
			t.Errorf("got %v", err)
		}
	}
	reader = open(t, c, consumer.WithControl(c), columns.Where("n = 1"))
	for _, err := range columns.Batches(t.Context(), reader) {
		if !errors.Is(err, consumer.ErrFiltered) {
			t.Errorf("got %v", err)
		}
	}
}

// TestViewsThatAreNone: whatever a server answers for a view, the rows are right: it is asked for the payload itself.
func TestViewsThatAreNone(t *testing.T) {
	c := numbers(t, 3, 4)
	text := `SELECT n, s FROM "web.access" WHERE n > 2`
	want, _ := answer(t, c, text, columns.WithLocal())
	for name, spoil := range map[string]func(p *scribev1.Payload){
		"bytes that are no stream": func(p *scribev1.Payload) { p.Data = []byte("nothing"); p.RawLength = 7 },
		"another length":           func(p *scribev1.Payload) { p.RawLength++ },
		"a huge length":            func(p *scribev1.Payload) { p.RawLength = 1 << 60 },
		"an unknown codec":         func(p *scribev1.Payload) { p.Codec = 77 },
		"broken zstd":              func(p *scribev1.Payload) { p.Codec = 2 },
		"broken s2":                func(p *scribev1.Payload) { p.Codec = 3 },
		"no view":                  func(p *scribev1.Payload) { p.View = nil },
	} {
		c.views = func(q *scribev1.Query, frames []byte) (*scribev1.Payload, error) {
			p, err := c.make(q, frames, false, nil)
			if err == nil {
				spoil(p)
				p.Crc = record.CRC(p.Data)
			}
			return p, err
		}
		got, q := answer(t, c, text)
		if s := q.Stats(); got != want || s.Views != 0 || s.ViewsRefused == 0 {
			t.Errorf("%s: got %s, %+v", name, got, s)
		}
	}
	lacking := func(q *scribev1.Query, frames []byte) (*scribev1.Payload, error) {
		return c.make(&scribev1.Query{Text: `SELECT n FROM "web.access"`, SchemaVersion: q.GetSchemaVersion()}, frames, false, nil)
	}
	c.views = lacking
	if got, q := answer(t, c, text); got != want || q.Stats().ViewsRefused == 0 {
		t.Errorf("a view without a column: got %s", got)
	}
	c.views = func(q *scribev1.Query, frames []byte) (*scribev1.Payload, error) {
		p, err := c.make(q, frames, false, nil)
		if err == nil {
			v := p.GetView()
			v.Rows, v.Kept, v.Rejected, v.Bad, v.Errors = math.MaxUint64, math.MaxUint64, 1<<63, 1<<63-1, math.MaxUint64
		}
		return p, err
	}
	got, q := answer(t, c, text)
	s := q.Stats()
	if most := max(s.RowsRead, s.RowsReceived, s.RowsRejected, s.RowsBad, s.Errors); got != want || s.Views != 3 || most >= 1<<50 {
		t.Errorf("views with counts that can't be: got %s, %+v", got, s)
	}
}

// TestExplain: an explanation says what is read, where which term is evaluated, and what became of it.
func TestExplain(t *testing.T) {
	c := numbers(t, 4, 3)
	c.serve("exact view")
	_, q := answer(t, c, `SELECT n AS number FROM "web.access" WHERE s LIKE 'row%' AND _offset > 0 LIMIT 5`)
	x := q.Explain()
	text := x.String()
	for _, want := range []string{"number int64", "n int64", "s string", "schema version 1", "as views of read proxies", "_offset > 0", "5 in the answer"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if strings.Contains(x.Pushed, "_offset") || !strings.Contains(x.Pushed, "LIKE") || x.Limit != 5 {
		t.Errorf("%+v", x)
	}
}
