package sqlserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"scribe/internal/format/checkpoint"
)

const selectAll = "?sql=SELECT+*+FROM+access"

// readArrow reads an Arrow stream to its end.
func readArrow(t *testing.T, r io.Reader) (rows int64, batches int) {
	t.Helper()
	in, err := ipc.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Release()
	for in.Next() {
		if n := in.RecordBatch().NumRows(); n > 0 {
			rows += n
			batches++
		}
	}
	if in.Err() != nil {
		t.Fatal(in.Err())
	}
	return rows, batches
}

func TestFormats(t *testing.T) {
	s := serve(t, &runner{query: batches(3, 2, nil)}, nil)
	const jsonl = `{"n":0,"text":null}
{"n":1,"text":"some text"}
{"n":2,"text":"some text"}
{"n":3,"text":null}
{"n":4,"text":"some text"}
{"n":5,"text":"some text"}
`
	const csv = "n,text\r\n0,\r\n1,some text\r\n2,some text\r\n3,\r\n4,some text\r\n5,some text\r\n"
	for _, c := range []struct{ query, accept, media, body string }{
		{"", "", "application/x-ndjson", jsonl},
		{"", "*/*", "application/x-ndjson", jsonl},
		{"", "text/html, text/csv;q=0.5, application/x-ndjson;q=0.1", "text/csv", csv},
		{"", "application/x-ndjson;q=0, */*;q=0.1", "application/x-ndjson", jsonl},
		{"&format=csv", "application/x-ndjson", "text/csv", csv},
		{"&format=arrow", "", "application/vnd.apache.arrow.stream", ""},
		{"", "application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.stream", ""},
	} {
		t.Run(c.query+c.accept, func(t *testing.T) {
			res := s.get(selectAll+c.query, "Accept", c.accept)
			if res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), c.media) {
				t.Fatalf("%s, %q", res.Status, res.Header.Get("Content-Type"))
			}
			if c.body == "" {
				if rows, n := readArrow(t, res.Body); rows != 6 || n != 3 {
					t.Errorf("%d rows in %d batches", rows, n)
				}
			} else if got := read(t, res.Body); got != c.body {
				t.Errorf("got\n%s", got)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			if res.Trailer.Get("Scribe-Rows") != "6" || res.Trailer.Get("Scribe-Bytes-Fetched") != "4096" || res.Trailer.Get("Scribe-Pointers-Pruned") != "7" {
				t.Errorf("trailers %v", res.Trailer)
			}
		})
	}
	if res := s.get(selectAll, "Accept", "application/json"); res.StatusCode != http.StatusNotAcceptable {
		t.Errorf("JSON lines are not application/json, got %s", res.Status)
	}
	s.counted(apiHTTP, resultOK, 7)
	if n := testutil.ToFloat64(s.metrics.rows.WithLabelValues(apiHTTP)); n != 42 {
		t.Errorf("%v rows counted", n)
	}
	if log := s.log.String(); strings.Contains(log, "SELECT") || !strings.Contains(log, "category=access") {
		t.Errorf("the log at info has a query's text, or not its category:\n%s", log)
	}
}

// TestEmpty: an answer without rows is whole, too.
func TestEmpty(t *testing.T) {
	s := serve(t, &runner{query: batches(0, 0, nil)}, nil)
	if rows, _ := readArrow(t, s.get(selectAll+"&format=arrow").Body); rows != 0 {
		t.Error("rows out of nothing")
	}
	if got := read(t, s.get(selectAll+"&format=csv").Body); got != "n,text\r\n" {
		t.Errorf("got %q", got)
	}
	if got := read(t, s.get(selectAll).Body); got != "" {
		t.Errorf("got %q", got)
	}
}

func TestCompression(t *testing.T) {
	s := serve(t, &runner{query: batches(3, 2, nil)}, nil)
	want := read(t, s.get(selectAll).Body)
	for encoding, open := range map[string]func(io.Reader) (io.Reader, error){
		"gzip": func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
		"zstd": func(r io.Reader) (io.Reader, error) {
			d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
			if err != nil {
				return nil, err
			}
			t.Cleanup(d.Close)
			return d, nil
		},
	} {
		res := s.get(selectAll, "Accept-Encoding", "br, "+encoding)
		if res.Header.Get("Content-Encoding") != encoding {
			t.Fatalf("%s: encoded as %q", encoding, res.Header.Get("Content-Encoding"))
		}
		r, err := open(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if got := read(t, r); got != want {
			t.Errorf("%s: got %q", encoding, got)
		}
	}
}

func TestRequests(t *testing.T) {
	r := &runner{query: batches(1, 1, nil)}
	s := serve(t, r, nil)
	since := time.Now()
	for name, c := range map[string]struct {
		method, query, media, body string
		want                       func(Request) bool
	}{
		"get": {"GET", "?sql=SELECT+1&limit=5&timeout=30s", "", "", func(r Request) bool {
			return r.SQL == "SELECT 1" && r.Limit == 5 && r.Timeout == 30*time.Second && r.From == "" && r.FromTime.IsZero() && r.To.IsZero() && !r.Follow && r.Memory > 0
		}},
		"json": {"POST", "", "application/json; charset=utf-8", `{"sql": "SELECT 'é'", "from": "2026-01-02T03:04:05Z", "to": null, "limit": 7}`, func(r Request) bool {
			return r.SQL == "SELECT 'é'" && r.Limit == 7 && r.FromTime.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
		}},
		"text": {"POST", "?from=latest&to=15m", "text/plain", "SELECT 1\n", func(r Request) bool {
			return r.SQL == "SELECT 1" && r.Limit == -1 && r.From == fromLatest && since.Sub(r.To) > 14*time.Minute && since.Sub(r.To) < 16*time.Minute
		}},
		"sql":     {"POST", "?from=earliest", "application/sql", "SELECT 1", func(r Request) bool { return r.SQL == "SELECT 1" && r.From == fromEarliest }},
		"no type": {"POST", "", "", "SELECT 1", func(r Request) bool { return r.SQL == "SELECT 1" }},
		"form":    {"POST", "", "application/x-www-form-urlencoded", "sql=SELECT+1&limit=3", func(r Request) bool { return r.SQL == "SELECT 1" && r.Limit == 3 }},
		"values": {"GET", "?sql=SELECT+a+FROM+t+WHERE+b=?+AND+c=?&param=it's&param=%3F", "", "", func(r Request) bool {
			return r.SQL == "SELECT a FROM t WHERE b = 'it''s' AND c = '?'"
		}},
		"json values": {"POST", "", "application/json", `{"sql": "SELECT $2, $1, $3, $4 FROM t", "param": [-1.50, "x", null, true]}`, func(r Request) bool {
			return r.SQL == "SELECT 'x', -1.50, NULL, TRUE FROM t"
		}},
		"checkpoint": {"GET", "?sql=x&follow=1&from=" + url.QueryEscape(checkpoint.Checkpoint{Category: "access"}.String()) + "&checkpoints=1", "", "", func(r Request) bool {
			return r.Place != nil && r.From == "" && r.FromTime.IsZero()
		}},
		"plus zone": {"GET", "?sql=x&from=2026-01-02T03:04:05+01:00", "", "", func(r Request) bool { return r.FromTime.UTC().Hour() == 2 }},
	} {
		t.Run(name, func(t *testing.T) {
			res := s.do(c.method, c.query, c.body, "Content-Type", c.media)
			if res.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s", res.Status, read(t, res.Body))
			}
			if got := r.last(); !c.want(got) {
				t.Errorf("asked %+v", got)
			}
		})
	}
}

func TestBadRequests(t *testing.T) {
	r := &runner{query: func(context.Context, *Request) (rowSource, error) { return nil, errors.New("nobody should ask") }}
	s := serve(t, r, nil)
	const form, js = "application/x-www-form-urlencoded", "application/json"
	for name, c := range map[string]struct {
		method, query, media, body string
		status                     int
		says                       string
	}{
		"no query":        {"GET", "", "", "", 400, "there is no query"},
		"empty body":      {"POST", "", "text/plain", "  \n", 400, "there is no query"},
		"unknown name":    {"GET", "?sql=x&form=csv", "", "", 400, "unknown parameter \\\"form"},
		"twice":           {"GET", "?sql=x&sql=y", "", "", 400, "2 times"},
		"url and body":    {"POST", "?sql=x", "text/plain", "y", 400, "both"},
		"format":          {"GET", "?sql=x&format=xml", "", "", 400, "want arrow, jsonl or csv"},
		"follow":          {"GET", "?sql=x&follow=maybe", "", "", 400, "follow"},
		"follow to":       {"GET", "?sql=x&follow=1&to=1h", "", "", 400, "no end"},
		"checkpoints":     {"GET", "?sql=x&checkpoints=1&format=csv", "", "", 400, "ask for JSON lines"},
		"no checkpoint":   {"GET", "?sql=x&from=scribe1.AAAA", "", "", 400, "from: "},
		"from":            {"GET", "?sql=x&from=tomorrow", "", "", 400, "earliest, latest"},
		"to":              {"GET", "?sql=x&to=tomorrow", "", "", 400, "to \\\"tomorrow"},
		"limit":           {"GET", "?sql=x&limit=-3", "", "", 400, "want a number of rows"},
		"timeout":         {"GET", "?sql=x&timeout=0s", "", "", 400, "not a duration above zero"},
		"escape":          {"GET", "?sql=%zz", "", "", 400, "parameters of the URL"},
		"utf-8":           {"GET", "?sql=%ff", "", "", 400, "UTF-8"},
		"curl -d":         {"POST", "", form, "SELECT * FROM access", 400, "--data-urlencode"},
		"json":            {"POST", "", js, "{", 400, "not a JSON object"},
		"json list":       {"POST", "", js, "[]", 400, "not a JSON object"},
		"json nested":     {"POST", "", js, `{"sql": {}}`, 400, "want a string"},
		"json twice":      {"POST", "", js, `{"sql": "x"} {}`, 400, "more than one"},
		"json values":     {"POST", "", js, `{"sql": "select ? from t", "param": [[1]]}`, 400, "invalid element 1"},
		"few values":      {"GET", "?sql=select+?,?+from+t&param=1", "", "", 400, "has no value: 1 are given"},
		"many values":     {"GET", "?sql=select+?+from+t&param=1&param=2", "", "", 400, "1 parameters, but 2 values"},
		"values twice":    {"POST", "?param=1", js, `{"sql": "select ? from t", "param": [1]}`, 400, "both"},
		"media":           {"POST", "", "text/html", "x", 415, "Content-Type"},
		"bad media":       {"POST", "", ";", "x", 415, "Content-Type"},
		"method":          {"DELETE", "", "", "", 405, "neither GET nor POST"},
		"long query":      {"POST", "", "text/plain", strings.Repeat("x", MaxText+1), 413, "at most 65536"},
		"a megabyte":      {"POST", "", "text/plain", strings.Repeat("(", 1<<20), 413, "longer than"},
		"a megabyte json": {"POST", "", js, strings.Repeat(`{"a":`, 1<<18), 413, "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			res := s.do(c.method, c.query, c.body, "Content-Type", c.media)
			text := read(t, res.Body)
			if res.StatusCode != c.status || !strings.Contains(text, c.says) {
				t.Errorf("%s: %s", res.Status, text)
			}
			var body struct {
				Error struct{ Code, Message string }
			}
			if err := json.Unmarshal([]byte(text), &body); err != nil || body.Error.Message == "" || body.Error.Code == "" {
				t.Errorf("%v: %s", err, text)
			}
		})
	}
	// The connection is the server's to close with HTTP/1.0, so a cut would look like an end.
	c, err := net.Dial("tcp", s.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET %s%s HTTP/1.0\r\n\r\n", Path, selectAll)
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(line, "505") {
		t.Errorf("%q, %v", line, err)
	}
}

// TestErrors: as long as nothing was answered, an error has its status, and the place in the text.
func TestErrors(t *testing.T) {
	place := &Error{Kind: KindInvalid, Message: `there is no column "pth"`, Line: 1, Column: 8, Position: 7, Caret: "SELECT pth FROM access\n       ^", Hint: `did you mean "path"?`}
	for name, c := range map[string]struct {
		err    error
		status int
		code   string
	}{
		"place":       {place, 400, "invalid"},
		"unknown":     {errorf(KindUnknown, "no category"), 404, "unknown_category"},
		"limit":       {errorf(KindLimit, "too many groups"), 422, "limit"},
		"unavailable": {errorf(KindUnavailable, "no read stream"), 503, "unavailable"},
		"other":       {errors.New("boom"), 500, "internal"},
	} {
		for when, query := range map[string]func(context.Context, *Request) (rowSource, error){
			"bound": func(context.Context, *Request) (rowSource, error) { return nil, c.err },
			"first": batches(0, 0, c.err),
		} {
			t.Run(name+" "+when, func(t *testing.T) {
				s := serve(t, &runner{query: query}, nil)
				res := s.get(selectAll + "&format=arrow")
				text := read(t, res.Body)
				var body errorBody
				if err := json.Unmarshal([]byte(text), &body); err != nil {
					t.Fatalf("%v: %s", err, text)
				}
				if res.StatusCode != c.status || body.Error.Code != c.code || res.Header.Get("Content-Type") != "application/json" {
					t.Errorf("%s, %s: %s", res.Status, res.Header.Get("Content-Type"), text)
				}
				if (c.status == 503) != (res.Header.Get("Retry-After") != "") {
					t.Errorf("Retry-After %q", res.Header.Get("Retry-After"))
				}
				if e := body.Error; errors.Is(c.err, place) && (e.Line != 1 || e.Column != 8 || *e.Position != 7 || e.Caret != place.Caret || e.Hint != place.Hint) {
					t.Errorf("got %+v", e)
				}
				s.counted(apiHTTP, c.code, 1)
			})
		}
	}
}

// TestCut: an answer that fails after its first byte does not look whole, in any format and protocol.
func TestCut(t *testing.T) {
	s := serve(t, &runner{query: batches(2, 3, errorf(KindUnavailable, "the store is away"))}, nil)
	h2 := &http.Transport{Protocols: new(http.Protocols)}
	h2.Protocols.SetUnencryptedHTTP2(true)
	defer h2.CloseIdleConnections()
	for _, c := range []*http.Client{s.http.Client(), {Transport: h2}} {
		for _, format := range []string{"arrow", "jsonl", "csv"} {
			res, err := c.Get(s.http.URL + Path + selectAll + "&format=" + format)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(res.Body)
			if err == nil {
				t.Errorf("%s %s: %d bytes look like the whole answer", res.Proto, format, len(text))
			}
			_ = res.Body.Close()
			if format == "jsonl" && res.ProtoMajor == 1 && !strings.HasSuffix(string(text), `{"error":{"code":"unavailable","message":"the store is away"}}`+"\n") {
				t.Errorf("the last line does not say why: %s", text)
			}
			if res.Trailer.Get("Scribe-Rows") != "" {
				t.Error("a cut answer has statistics")
			}
		}
	}
	s.counted(apiHTTP, "unavailable", 6)
}

// TestPanic: a bug that one query meets is one query's.
func TestPanic(t *testing.T) {
	s := serve(t, &runner{query: func(context.Context, *Request) (rowSource, error) {
		return &result{next: func() (arrow.RecordBatch, error) { panic("a bug") }}, nil
	}}, nil)
	res := s.get(selectAll)
	if text := read(t, res.Body); res.StatusCode != 500 || !strings.Contains(text, "met a bug") {
		t.Errorf("%s: %s", res.Status, text)
	}
	if !strings.Contains(s.log.String(), "a bug") {
		t.Error("the log does not say what")
	}
}

func TestTooMany(t *testing.T) {
	ended := []chan struct{}{make(chan struct{}), make(chan struct{})}
	n := 0
	s := serve(t, &runner{query: func(ctx context.Context, req *Request) (rowSource, error) {
		n++
		return hanging(ended[n-1])(ctx, req)
	}}, func(c *Config) { c.MaxQueries, c.MaxFollows = 2, 1 })
	first := s.get(selectAll + "&follow=1")
	if res := s.get(selectAll + "&follow=1"); res.StatusCode != 429 || res.Header.Get("Retry-After") == "" {
		t.Errorf("a second one follows: %s", res.Status)
	}
	second := s.get(selectAll)
	res := s.get(selectAll)
	if text := read(t, res.Body); res.StatusCode != 429 || res.Header.Get("Retry-After") == "" || !strings.Contains(text, "2 queries are running") {
		t.Errorf("%s: %s", res.Status, text)
	}
	// Who goes away makes room at once.
	_ = first.Body.Close()
	<-ended[0]
	_ = second.Body.Close()
	<-ended[1]
	s.counted(apiHTTP, "cancelled", 2)
	s.counted(apiHTTP, "busy", 2)
	if err := testutil.GatherAndCompare(s.registry, strings.NewReader(`
# HELP scribe_sqlserver_following_queries Those of them that follow.
# TYPE scribe_sqlserver_following_queries gauge
scribe_sqlserver_following_queries 0
# HELP scribe_sqlserver_running_queries Queries that run.
# TYPE scribe_sqlserver_running_queries gauge
scribe_sqlserver_running_queries 0
`), "scribe_sqlserver_running_queries", "scribe_sqlserver_following_queries"); err != nil {
		t.Error(err)
	}
}

func TestTooManyRows(t *testing.T) {
	s := serve(t, &runner{query: batches(3, 10, nil)}, func(c *Config) { c.MaxRows = 25 })
	res := s.get(selectAll)
	text, err := io.ReadAll(res.Body)
	if err == nil || strings.Count(string(text), "\n") != 21 || !strings.Contains(string(text), `"code":"limit"`) {
		t.Errorf("%v: %s", err, text)
	}
}

func TestTooLong(t *testing.T) {
	for name, c := range map[string]struct {
		query string
		limit func(*Config)
	}{
		"the server's": {"", func(c *Config) { c.MaxTime = 30 * time.Millisecond }},
		"the client's": {"&timeout=30ms", nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // where the first rows leave before the time is over, however busy the machine is
				ended := make(chan struct{})
				s := serveInMemory(t, &runner{query: hanging(ended)}, c.limit)
				text, err := io.ReadAll(s.get(selectAll + c.query).Body)
				<-ended
				if err == nil || !strings.Contains(string(text), `"code":"timeout"`) {
					t.Errorf("%v: %s", err, text)
				}
				// One that follows has had its time, and is whole.
				ended2 := make(chan struct{})
				s.runner.query = hanging(ended2)
				res := s.get(selectAll + "&follow=1&timeout=30ms")
				if text := read(t, res.Body); strings.Count(text, "\n") != 2 || res.Trailer.Get("Scribe-Rows") != "2" {
					t.Errorf("got %s with %v", text, res.Trailer)
				}
				<-ended2
			})
		})
	}
}

// TestHeartbeat: an answer that follows begins without rows, and says that it lives.
func TestHeartbeat(t *testing.T) {
	quiet := func(ctx context.Context, _ *Request) (rowSource, error) {
		return &result{next: func() (arrow.RecordBatch, error) { <-ctx.Done(); return nil, ctx.Err() }}, nil
	}
	s := serve(t, &runner{query: quiet}, func(c *Config) { c.Heartbeat = 10 * time.Millisecond })
	lines := bufio.NewReader(s.get(selectAll + "&follow=1").Body)
	for range 3 {
		if line, err := lines.ReadString('\n'); line != "\n" || err != nil {
			t.Fatalf("%q, %v", line, err)
		}
	}
	in, err := ipc.NewReader(s.get(selectAll + "&follow=1&format=arrow").Body)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Release()
	for range 3 {
		if !in.Next() || in.RecordBatch().NumRows() != 0 {
			t.Fatalf("%v", in.Err())
		}
	}
	names := make([]byte, len("n,text\r\n"))
	if _, err := io.ReadFull(s.get(selectAll+"&follow=1&format=csv").Body, names); err != nil || string(names) != "n,text\r\n" {
		t.Errorf("%q, %v", names, err)
	}
}

// endless is a query whose answer has no end, of batches of some size.
func endless(rows, width int) func(context.Context, *Request) (rowSource, error) {
	return func(ctx context.Context, _ *Request) (rowSource, error) {
		text := strings.Repeat("x", width)
		i := 0
		return &result{next: func() (arrow.RecordBatch, error) {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			i += rows
			return batchFrom(i, rows, text), nil
		}}, nil
	}
}

// TestSlowClient: what a client does not take is not read, and holds no more memory than the batch that is written and the next one.
func TestSlowClient(t *testing.T) {
	batchesRead := 0
	const rows, width = 4000, 1000 // 4 MB a batch
	s := serve(t, &runner{query: func(ctx context.Context, req *Request) (rowSource, error) {
		res, err := endless(rows, width)(ctx, req)
		next := res.(*result).next
		res.(*result).next = func() (arrow.RecordBatch, error) { batchesRead++; return next() }
		return res, err
	}}, func(c *Config) { c.StallTimeout = time.Second })
	var before, during runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	res := s.get(selectAll + "&format=arrow") // and reads nothing
	s.await(func() bool { return testutil.ToFloat64(s.metrics.stalled) == 1 })
	runtime.GC()
	runtime.ReadMemStats(&during)
	if grown := int64(during.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
		t.Errorf("%d MB more in use", grown>>20)
	}
	s.counted(apiHTTP, "cancelled", 1)
	if batchesRead > 10 { // what the sockets hold, and two
		t.Errorf("%d batches were read for a client that takes none", batchesRead)
	}
	if _, err := io.Copy(io.Discard, res.Body); err == nil {
		t.Error("what is left looks like the whole answer")
	}
}

// TestSlices: one large batch goes out in pieces, in order.
func TestSlices(t *testing.T) {
	s := serve(t, &runner{query: batches(1, 200_000, nil)}, nil)
	in, err := ipc.NewReader(s.get(selectAll + "&format=arrow").Body)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Release()
	next, n := int64(0), 0
	for in.Next() {
		b := in.RecordBatch()
		if b.NumRows() > sliceRows {
			t.Fatalf("a slice of %d rows", b.NumRows())
		}
		for i := range int(b.NumRows()) {
			if v := b.Column(0).ValueStr(i); v != fmt.Sprint(next) {
				t.Fatalf("row %d has %s", next, v)
			}
			next++
		}
		n++
	}
	if in.Err() != nil || next != 200_000 || n < 3 {
		t.Errorf("%d rows in %d slices, %v", next, n, in.Err())
	}
}

// TestClose: closing ends what follows at once and refuses what comes.
func TestClose(t *testing.T) {
	ended := make(chan struct{})
	s := serve(t, &runner{query: hanging(ended)}, func(c *Config) { c.DrainTimeout = time.Hour })
	res := s.get(selectAll + "&follow=1")
	if _, err := io.ReadFull(res.Body, make([]byte, 1)); err != nil { // the query has begun
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-ended
	if text, err := io.ReadAll(res.Body); err == nil || !strings.Contains(string(text), "shutting down") {
		t.Errorf("%v: %s", err, text)
	}
	res = s.get(selectAll)
	if res.StatusCode != 503 || res.Header.Get("Retry-After") == "" {
		t.Errorf("%s", res.Status)
	}
	if n, err := testutil.GatherAndCount(s.registry); n != 0 || err != nil {
		t.Errorf("%d metrics are left, %v", n, err)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add("sql=SELECT+1&from=1h&limit=3", "text/plain", "x", "text/csv;q=0.3, */*")
	f.Add("", "application/json", `{"sql":"x","follow":true}`, "")
	f.Add("", "application/x-www-form-urlencoded", "sql=x&to=now", ";q=,")
	f.Fuzz(func(t *testing.T, query, media, body, accept string) {
		r := &http.Request{
			Method: http.MethodPost, ProtoMajor: 1, ProtoMinor: 1, URL: &url.URL{RawQuery: query},
			Header: http.Header{"Content-Type": {media}, "Accept": {accept}, "Accept-Encoding": {accept}},
			Body:   io.NopCloser(strings.NewReader(body)),
		}
		a, err := parseRequest(discard{}, r, time.Unix(1e9, 0))
		if (err == nil) != (a != nil) {
			t.Fatal("neither a request nor an error, or both")
		}
		if err != nil {
			return
		}
		handle := newTicket(&a.Request).encodeTicket()
		_, again, err := decodeTicket(handle, time.Unix(2e9, 0))
		if err != nil {
			t.Fatalf("its ticket %s: %v", handle, err)
		}
		if again.From != a.From || !again.FromTime.Equal(a.FromTime) || !again.To.Equal(a.To) || again.SQL != a.SQL ||
			again.Limit != a.Limit || again.Follow != a.Follow || again.Timeout != a.Timeout {
			t.Fatalf("%+v became %+v", a.Request, *again)
		}
	})
}

func FuzzTicket(f *testing.F) {
	f.Add([]byte(ticketMagic + `{"sql":"SELECT 1","limit":"4"}`))
	f.Add([]byte(ticketMagic + `{"sql":"SELECT a FROM t WHERE b = ?","values":"[{\"Type\":\"number\",\"Text\":\"4\"}]"}`))
	f.Fuzz(func(t *testing.T, handle []byte) {
		if _, req, err := decodeTicket(handle, time.Unix(1e9, 0)); err == nil && req == nil {
			t.Fatal("neither a request nor an error")
		}
	})
}

// discard is a response that nobody reads.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}

// TestCheckpoints: an answer tells the place after its rows once all rows of a batch were written, and where a query that follows has waited.
func TestCheckpoints(t *testing.T) {
	const rows = sliceRows + 1 // two slices
	place, wait := "", make(chan struct{})
	r := &runner{query: func(ctx context.Context, _ *Request) (rowSource, error) {
		batch := 0
		res := &result{paused: "scribe1.c", place: func() string { return place }}
		res.next = func() (arrow.RecordBatch, error) {
			switch batch++; batch {
			case 1:
				place = "scribe1.a"
				return batchFrom(0, rows, "x"), nil
			case 2:
				place = "scribe1.b"
				return batchFrom(rows, 1, "x"), nil
			}
			select {
			case <-wait:
			case <-ctx.Done():
			}
			place = "scribe1.c"
			return nil, io.EOF
		}
		return res, nil
	}}
	s := serve(t, r, func(c *Config) { c.Heartbeat = 20 * time.Millisecond })
	answer := func(query string) (lines []string) {
		t.Helper()
		res, follows := s.do("GET", "?sql=x&format=jsonl"+query, ""), strings.Contains(query, "follow")
		n := 0
		in := bufio.NewScanner(res.Body)
		for in.Scan() {
			switch line := in.Text(); {
			case strings.HasPrefix(line, `{"_checkpoint"`):
				lines = append(lines, fmt.Sprint(n, " ", line))
				if strings.Contains(line, "scribe1.c") && follows {
					close(wait)
				}
			case line != "":
				n++
			}
		}
		if err := in.Err(); err != nil {
			t.Error(err)
		}
		return append(lines, fmt.Sprint(n))
	}
	a, b := fmt.Sprintf(`%d {"_checkpoint":"scribe1.a"}`, rows), fmt.Sprintf(`%d {"_checkpoint":"scribe1.b"}`, rows+1)
	c, all := fmt.Sprintf(`%d {"_checkpoint":"scribe1.c"}`, rows+1), fmt.Sprint(rows+1)
	if got := answer("&follow=1&checkpoints=1"); !slices.Equal(got, []string{a, b, c, all}) {
		t.Errorf("an answer that follows has %q", got)
	}
	if got := answer("&checkpoints=1"); !slices.Equal(got, []string{a, b, c, all}) {
		t.Errorf("an answer with an end has %q", got)
	}
	if got := answer(""); !slices.Equal(got, []string{all}) {
		t.Errorf("nobody asked for %q", got)
	}
}

// TestPauseIsForgotten: a place at which a query has waited is before the rows that came since, and must not be told after theirs.
func TestPauseIsForgotten(t *testing.T) {
	place := "scribe1.a"
	c := &cellQuery{next: func() (arrow.RecordBatch, error, bool) { return batchFrom(0, 1, "x"), nil, true }}
	c.paused.Store(&place)
	if got := c.PausedAt(); got != place {
		t.Errorf("it has waited at %q", got)
	}
	batch, err := c.Next()
	if err != nil {
		t.Fatal(err)
	}
	batch.Release()
	if got := c.PausedAt(); got != "" {
		t.Errorf("after a batch it has waited at %q", got)
	}
}
