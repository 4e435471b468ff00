package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"scribe/columnar/schema"
	"scribe/consumer/columns"
	"scribe/internal/base/backoff"
	"scribe/internal/base/units"
	"scribe/internal/testkit/sample"
	"scribe/internal/transport/rpc"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// QueryOptions say who asks what.
type QueryOptions struct {
	// Readers follow the category, each with one of the first Queries of the list; 0 measures what writing alone takes.
	Readers, Queries int
	// BytesPerSecond of access log in JSON are written for Duration.
	BytesPerSecond units.Bytes
	Duration       units.Duration
}

// QueryReport is what it takes to answer many queries over one live category. CPU figures are of the whole process: producer, every role, and all
// readers.
type QueryReport struct {
	Readers int `json:"readers"`
	Queries int `json:"queries"`
	// Written is payload in bytes, and Messages how many.
	Written  int64   `json:"written_bytes"`
	Messages int64   `json:"messages"`
	Seconds  float64 `json:"seconds"`
	// RowsRead were behind what all readers read together, RowsOut are in their answers.
	RowsRead uint64 `json:"rows_read"`
	RowsOut  uint64 `json:"rows_out"`
	// Payloads came to readers; Reused of them had been made for another reader, and Local were made into rows by a reader.
	Payloads uint64 `json:"payloads"`
	Reused   uint64 `json:"reused"`
	Local    uint64 `json:"local"`
	// StoreBytes were fetched from the store, ServedBytes came to the readers.
	StoreBytes  int64  `json:"store_bytes"`
	ServedBytes uint64 `json:"served_bytes"`
	// CPUSeconds of all, WriteSeconds of the same writing with nobody who reads, CPUPerReader is the rest for each reader, and ShareOfCore
	// that in parts of a core while it lasted.
	CPUSeconds   float64 `json:"cpu_seconds"`
	WriteSeconds float64 `json:"write_cpu_seconds"`
	CPUPerReader float64 `json:"cpu_seconds_per_reader"`
	ShareOfCore  float64 `json:"share_of_a_core_per_reader"`
	// FirstRow is how long the first row of History bytes takes of which one message in 3,000 matches. LastRow is that of the one row at the end of
	// them, when nothing is known of what is before, and LastRowAgain when that was read.
	History      int64   `json:"history_bytes,omitempty"`
	FirstRow     float64 `json:"first_row_seconds,omitempty"`
	LastRow      float64 `json:"last_row_seconds,omitempty"`
	LastRowAgain float64 `json:"last_row_again_seconds,omitempty"`
	Skipped      uint64  `json:"skipped_pointers,omitempty"`
	Pointers     uint64  `json:"pointers,omitempty"`
}

const queryCategory = "access"

// benchQueries are what dashboards and alerts ask of an access log.
var benchQueries = []string{
	"SELECT client_ip, path FROM access WHERE status >= 500",
	"SELECT path FROM access WHERE status = 404",
	"SELECT client_ip, user_agent FROM access WHERE user_agent LIKE '%Googlebot%'",
	"SELECT ts, path, bytes FROM access WHERE bytes > 1000000",
	"SELECT path, referrer FROM access WHERE status = 404 AND referrer <> '-'",
	"SELECT client_ip FROM access WHERE method = 'POST'",
	"SELECT client_ip, path FROM access WHERE method <> 'GET' AND status < 400",
	"SELECT path FROM access WHERE path LIKE '/blog/%' AND status = 200",
	"SELECT path, bytes FROM access WHERE path LIKE '%.png' AND bytes > 100000",
	"SELECT client_ip, ts FROM access WHERE client_ip = '66.249.73.135'",
	"SELECT path FROM access WHERE status IN (301, 302, 304)",
	"SELECT user_agent FROM access WHERE user_agent ILIKE '%bot%' AND status >= 400",
	"SELECT path, status FROM access WHERE protocol = 'HTTP/1.0'",
	"SELECT referrer FROM access WHERE referrer LIKE '%google%'",
	"SELECT client_ip, bytes FROM access WHERE bytes BETWEEN 10000 AND 20000 AND method = 'GET'",
	"SELECT path FROM access WHERE path LIKE '/presentations/%'",
	"SELECT ts, client_ip FROM access WHERE status = 403 OR status = 401",
	"SELECT path, bytes FROM access WHERE bytes IS NULL",
	"SELECT path FROM access WHERE length(path) > 100",
	"SELECT client_ip, path, status FROM access WHERE status >= 400 AND user_agent LIKE 'Mozilla%'",
}

// QueryCount is how many different queries there are.
func QueryCount() int { return len(benchQueries) }

// accessJSON is the access log as JSON objects.
func accessJSON() Workload { return splitLines("access-json", sample.AccessJSON()) }

// Queries writes for a while, while all readers follow with their queries. Without readers it measures the writing. The cell must be new,
// and run in this process.
func Queries(ctx context.Context, server string, o QueryOptions) (r QueryReport, err error) {
	r.Readers, r.Queries = o.Readers, min(o.Queries, o.Readers)
	w := accessJSON()
	p, err := newAccessProducer(ctx, server, w)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.Close(ctx)) }()
	end := time.Now().Add(o.Duration.Std() + settling)
	readers := make([]*columns.Query, 0, o.Readers)
	defer func() {
		for _, q := range readers {
			err = errors.Join(err, q.Close())
		}
	}()
	for i := range o.Readers {
		q, err := columns.NewQuery(ctx, server, benchQueries[i%o.Queries], columns.WithUntil(end), columns.WithMaxMemory(8<<20))
		if err != nil {
			return r, err
		}
		readers = append(readers, q)
	}
	l := &trafficLoad{producer: p, workload: w, bytesPerSecond: float64(o.BytesPerSecond), wait: true, pick: func() string { return queryCategory }}
	span, err := measureSpan(ctx, server, func() error {
		group, ctx := errgroup.WithContext(ctx)
		for _, q := range readers {
			group.Go(func() error { return readToEnd(ctx, q) })
		}
		group.Go(func() error {
			if err := errors.Join(runFor(ctx, o.Duration.Std(), l.writeTraffic), p.Flush(ctx)); err != nil {
				return err
			}
			return backoff.Sleep(ctx, time.Until(end))
		})
		return group.Wait()
	})
	if err != nil {
		return r, err
	}
	r.Seconds, r.CPUSeconds = span.wall.Seconds(), span.cpu.Seconds()
	r.Written, r.Messages = l.bytes.Load(), l.messages.Load()
	r.StoreBytes = int64(span.grown["scribe_readproxy_store_bytes_total"])
	err = r.addStats(readers)
	return r, err
}

// settling is how long readers go on after the last write.
const settling = 2 * time.Second

// readToEnd reads a query to its end.
func readToEnd(ctx context.Context, q *columns.Query) error {
	for _, err := range q.Batches(ctx) {
		if err != nil {
			return err
		}
	}
	return nil
}

// addStats adds up the readers' figures, all of which must have read everything.
func (r *QueryReport) addStats(readers []*columns.Query) error {
	for _, q := range readers {
		s := q.Stats()
		r.RowsRead += s.RowsRead + s.SkippedMessages
		r.RowsOut += s.RowsOut
		r.Payloads += s.Payloads
		r.Reused += s.ReusedViews
		r.Local += s.Payloads - s.Views
		r.ServedBytes += s.FetchedBytes
	}
	if want := uint64(r.Messages) * uint64(len(readers)); r.RowsRead != want { //nolint:gosec // counts
		return fmt.Errorf("%d readers read %d rows together, %d messages were written", len(readers), r.RowsRead, r.Messages)
	}
	return nil
}

// Beside puts a report beside what writing alone took.
func (r *QueryReport) Beside(writing QueryReport) {
	if r.Readers == 0 || writing.Written == 0 {
		return
	}
	r.WriteSeconds = writing.CPUSeconds * float64(r.Written) / float64(writing.Written)
	r.CPUPerReader = (r.CPUSeconds - r.WriteSeconds) / float64(r.Readers)
	r.ShareOfCore = r.CPUPerReader / r.Seconds
}

// FirstRow writes a history with one row that is looked for near its end, and measures how long that takes in a new cell.
func FirstRow(ctx context.Context, server string, history int64) (r QueryReport, err error) {
	r.History, r.Readers, r.Queries = history, 1, 1
	w := accessJSON()
	p, err := newAccessProducer(ctx, server, w)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.Close(ctx)) }()
	for n := int64(0); n < history; {
		for _, m := range w.Messages {
			p.WriteAsyncContext(ctx, queryCategory, &producer.Message{Payload: m})
			if n += int64(len(m)); n >= history {
				break
			}
		}
	}
	if err := p.Write(ctx, queryCategory, producer.Message{Payload: []byte(`{"path":"/needle","status":599}`)}); err != nil {
		return r, err
	}
	for _, m := range []struct {
		seconds *float64
		where   string
	}{{&r.FirstRow, "status = 500"}, {&r.LastRow, "status = 599"}, {&r.LastRowAgain, "status = 599"}} {
		begin := time.Now()
		q, err := columns.NewQuery(ctx, server, "SELECT path FROM access WHERE "+m.where+" LIMIT 1")
		if err != nil {
			return r, err
		}
		if err := errors.Join(readToEnd(ctx, q), q.Close()); err != nil {
			return r, err
		}
		*m.seconds = time.Since(begin).Seconds()
		s := q.Stats()
		if r.Pointers, r.Skipped = s.Pointers, s.Skipped; s.RowsOut != 1 {
			return r, fmt.Errorf("the row was not found: %+v", s)
		}
	}
	return r, nil
}

// newAccessProducer creates the category with a schema that is inferred from the messages, and returns a producer for it.
func newAccessProducer(ctx context.Context, server string, w Workload) (*producer.Producer, error) {
	s, _, err := schema.Infer(slices.Values(w.Messages), schema.JSON, schema.DefaultInferOptions())
	if err == nil {
		err = createCategory(ctx, rpc.NewControlClient(rpc.Default(), server), &scribev1.Category{Name: queryCategory, Schema: string(s.Marshal())})
	}
	if err != nil {
		return nil, err
	}
	return producer.New(server, producer.WithMaxBufferedBytes(buffered))
}

// QueryTable prints reports for people.
func QueryTable(w io.Writer, reports []QueryReport) error {
	const header = "readers\tqueries\twritten MB\trows read\trows out\tpayloads\treused\tlocal\tfetched MB\tserved MB\tCPU s\twriting s\tCPU s/reader\t% of a core/reader\t"
	ofHistory := func(r QueryReport) bool { return r.History > 0 }
	err := printTable(w, header, slices.DeleteFunc(slices.Clone(reports), ofHistory), func(w io.Writer, r *QueryReport) {
		fmt.Fprintf(w, "%d\t%d\t%.0f\t%d\t%d\t%d\t%d\t%d\t%.1f\t%.1f\t%.2f\t%.2f\t%.3f\t%.2f\t\n", r.Readers, r.Queries, float64(r.Written)/1e6, r.RowsRead, r.RowsOut,
			r.Payloads, r.Reused, r.Local, float64(r.StoreBytes)/1e6, float64(r.ServedBytes)/1e6, r.CPUSeconds, r.WriteSeconds, r.CPUPerReader, 100*r.ShareOfCore)
	})
	for _, r := range reports {
		if err == nil && ofHistory(r) {
			_, err = fmt.Fprintf(w, "%.0f MB of history: the first row after %.3f s; the one at the end after %.3f s, and %.3f s once it was read (%d of %d pointers skipped)\n",
				float64(r.History)/1e6, r.FirstRow, r.LastRow, r.LastRowAgain, r.Skipped, r.Pointers)
		}
	}
	return err
}
