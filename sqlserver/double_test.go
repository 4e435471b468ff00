package sqlserver

import (
	"bytes"
	"context"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"scribe/consumer/columns"
	"scribe/internal/transport/rpc"
	"scribe/internal/transport/rpc/memhttp"
	scribev1 "scribe/proto/scribe/v1"
)

var numbered = arrow.NewSchema([]arrow.Field{
	{Name: "n", Type: arrow.PrimitiveTypes.Int64}, {Name: "text", Type: arrow.BinaryTypes.String, Nullable: true},
}, nil)

// batchFrom has rows numbered from first; every third text is null.
func batchFrom(first, rows int, text string) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, numbered)
	defer b.Release()
	for i := first; i < first+rows; i++ {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		if i%3 == 0 {
			b.Field(1).AppendNull()
		} else {
			b.Field(1).(*array.StringBuilder).Append(text)
		}
	}
	return b.NewRecordBatch()
}

// runner is a double: each test says what the queries do.
type runner struct {
	query  func(ctx context.Context, req *Request) (rowSource, error)
	tables []tableInfo
	mu     struct {
		sync.Mutex
		asked []Request
	}
	open atomic.Int64 // results that were not closed
}

func (r *runner) Query(ctx context.Context, req *Request) (rowSource, error) {
	r.mu.Lock()
	r.mu.asked = append(r.mu.asked, *req)
	r.mu.Unlock()
	res, err := r.query(ctx, req)
	if err == nil {
		r.open.Add(1)
		res.(*result).runner = r
	}
	return res, err
}

func (r *runner) Tables(context.Context) []tableInfo { return r.tables }

func (r *runner) last() Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.asked[len(r.mu.asked)-1]
}

type result struct {
	runner *runner
	next   func() (arrow.RecordBatch, error)
	stats  columns.Stats
	place  func() string // may be nil
	paused string
	closed bool
	ended  chan struct{} // closed by Close; may be nil
}

func (r *result) Schema() *arrow.Schema            { return numbered }
func (r *result) Next() (arrow.RecordBatch, error) { return r.next() }
func (r *result) Category() string                 { return "access" }
func (r *result) Stats() columns.Stats             { return r.stats }
func (r *result) PausedAt() string                 { return r.paused }
func (r *result) Checkpoint() string {
	if r.place == nil {
		return ""
	}
	return r.place()
}

func (r *result) Close() error {
	if r.closed {
		panic("closed twice")
	}
	r.closed = true
	r.runner.open.Add(-1)
	if r.ended != nil {
		close(r.ended)
	}
	return nil
}

// batches is a query that answers some batches of rows, and then err (nil = the end).
func batches(n, rows int, err error) func(context.Context, *Request) (rowSource, error) {
	return func(context.Context, *Request) (rowSource, error) {
		i := 0
		return &result{stats: columns.Stats{RowsRead: 1000, FetchedBytes: 4096, Skipped: 7}, next: func() (arrow.RecordBatch, error) {
			if i++; i > n {
				if err != nil {
					return nil, err
				}
				return nil, io.EOF
			}
			return batchFrom((i-1)*rows, rows, "some text"), nil
		}}, nil
	}
}

// hanging is a query that answers one batch and then nothing until its context ends; ended is closed when it is given up after the batch.
func hanging(ended chan struct{}) func(context.Context, *Request) (rowSource, error) {
	return func(ctx context.Context, _ *Request) (rowSource, error) {
		r := &result{}
		r.next = func() (arrow.RecordBatch, error) {
			if r.ended == nil {
				r.ended = ended
				return batchFrom(0, 2, "x"), nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return r, nil
	}
}

// noCategories has none.
type noCategories struct{}

func (noCategories) All() iter.Seq[*scribev1.Category] {
	return slices.Values[[]*scribev1.Category](nil)
}

// site is a server that serves.
type site struct {
	*Server
	t        *testing.T
	runner   *runner
	registry *prometheus.Registry
	log      *lockedBuffer
	http     *httptest.Server
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func serve(t *testing.T, r *runner, change func(*Config)) *site {
	t.Helper()
	return serveOn(t, httptest.NewUnstartedServer(nil), nil, r, change)
}

// serveInMemory is serve within a bubble of testing/synctest, where time passes when everybody waits.
func serveInMemory(t *testing.T, r *runner, change func(*Config)) *site {
	t.Helper()
	l := memhttp.Listen()
	return serveOn(t, &httptest.Server{Listener: l, Config: new(http.Server)}, l.Dial, r, change)
}

func serveOn(t *testing.T, server *httptest.Server, dial rpc.Dial, r *runner, change func(*Config)) *site {
	t.Helper()
	cfg := DefaultConfig()
	cfg.DrainTimeout = 0
	if change != nil {
		change(&cfg)
	}
	s := &site{t: t, runner: r, registry: prometheus.NewRegistry(), log: &lockedBuffer{}}
	g, err := New(cfg, Deps{
		Categories: noCategories{}, Version: "test", Registerer: s.registry,
		Logger: slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelInfo})),
	})
	if err != nil {
		t.Fatal(err)
	}
	g.open, g.tables = r.Query, r.Tables
	s.Server = g
	mux := http.NewServeMux()
	mux.Handle(Path, g)
	mux.HandleFunc(TailPattern, g.ServeTail)
	s.http = server
	s.http.Config.Handler = mux
	s.http.Config.Protocols = new(http.Protocols)
	s.http.Config.Protocols.SetHTTP1(true)
	s.http.Config.Protocols.SetUnencryptedHTTP2(true)
	s.http.Start()
	if dial != nil {
		s.http.Client().Transport.(*http.Transport).DialContext = dial
	}
	t.Cleanup(func() {
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
		s.http.Close()
		if n := r.open.Load(); n != 0 {
			t.Errorf("%d results were not closed", n)
		}
	})
	return s
}

// get asks, without compression, and returns the response with its body open.
func (s *site) get(query string, header ...string) *http.Response {
	s.t.Helper()
	return s.do(http.MethodGet, query, "", header...)
}

// do sends a request to the path for queries, or with a header Tail-Of to that for tails of a category.
func (s *site) do(method, query, body string, header ...string) *http.Response {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	s.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, s.http.URL+Path+query, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "identity")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if of := req.Header.Get("Tail-Of"); of != "" {
		req.URL.Path = "/v1/tail/" + of
	}
	res, err := s.http.Client().Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// counted waits until a query has ended with a result; its answer may have been read before.
func (s *site) counted(api, result string, n float64) {
	s.t.Helper()
	s.await(func() bool { return testutil.ToFloat64(s.metrics.queries.WithLabelValues(api, result)) == n })
}

func (s *site) await(done func() bool) {
	s.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	patience := time.After(time.Minute)
	for !done() {
		select {
		case <-tick.C:
		case <-patience:
			s.t.Fatalf("it did not happen in time; the log:\n%s", s.log)
		}
	}
}

func read(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("%v after %d bytes", err, len(b))
	}
	return string(b)
}
