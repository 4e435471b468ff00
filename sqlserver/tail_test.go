package sqlserver

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"scribe/consumer"
	"scribe/internal/cell/access"
	"scribe/internal/format/record"
	"scribe/internal/role/restrict"
)

// messages is a category that has some messages, then waits for what a test sends, until its context ends.
type messages struct {
	payloads []string
	more     chan string
	err      error // after the payloads
	pause    func()
	closed   sync.WaitGroup
	place    string // the checkpoint; empty = a short one
}

func (m *messages) Records(ctx context.Context) iter.Seq2[consumer.Record, error] {
	return func(yield func(consumer.Record, error) bool) {
		m.pause()
		for i, p := range m.payloads {
			if !yield(consumer.Record{Payload: []byte(p), Shard: record.MakeShardID(7, 0, 1), LSN: 1, Index: i, Persisted: time.UnixMicro(1), Time: time.UnixMicro(1)}, nil) {
				return
			}
		}
		if m.err != nil {
			yield(consumer.Record{}, m.err)
			return
		}
		for {
			m.pause()
			select {
			case p := <-m.more:
				if !yield(consumer.Record{Payload: []byte(p), Persisted: time.UnixMicro(1), Time: time.UnixMicro(1)}, nil) {
					return
				}
			case <-time.After(time.Second):
			case <-ctx.Done():
				yield(consumer.Record{}, ctx.Err())
				return
			}
		}
	}
}

func (m *messages) Checkpoint() string { return cmp.Or(m.place, "scribe1:place") }
func (m *messages) Close() error       { m.closed.Done(); return nil }

// askTail asks for a tail of the category.
func askTail(t *testing.T, s *site, m *messages, query string, header ...string) *http.Response {
	t.Helper()
	m.closed.Add(1)
	s.tail = func(_ *tailRequest, pause func()) (messageSource, error) { m.pause = pause; return m, nil }
	return s.do(http.MethodGet, query, "", append([]string{"Tail-Of", "access"}, header...)...)
}

// TestTailFormats: messages are lines or events, with a checkpoint after those that came together; what is missing is said in its place.
func TestTailFormats(t *testing.T) {
	const (
		line1 = `{"time":"1970-01-01T00:00:00.000001Z","persisted":"1970-01-01T00:00:00.000001Z","payload":"one\r\ndata: x","shard":"7/0/1","lsn":1,"index":0`
		line2 = `{"time":"1970-01-01T00:00:00.000001Z","persisted":"1970-01-01T00:00:00.000001Z","payload":"two","shard":"7/0/1","lsn":1,"index":1`
		place = `"checkpoint":"scribe1:place"}`
	)
	s := serve(t, &runner{}, nil)
	for accept, want := range map[string]string{
		"":                  "{" + place + "\n" + line1 + "}\n" + line2 + "," + place + "\n",
		"text/event-stream": "id: scribe1:place\n\ndata: " + line1 + "}\n\ndata: " + line2 + "," + place + "\nid: scribe1:place\n\nevent: end\ndata: {}\n\n",
	} {
		m := &messages{payloads: []string{"one\r\ndata: x", "two", "three"}}
		res := askTail(t, s, m, "?limit=2", "Accept", accept)
		got, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK || string(got) != want {
			t.Errorf("%q: %s, %v\n%s\nwant\n%s", accept, res.Status, err, got, want)
		}
		m.closed.Wait()
	}
	gap := &messages{err: &consumer.GapError{Category: "access", From: 3, To: 5, Reason: consumer.GapTrimmed}}
	res := askTail(t, s, gap, "?limit=1")
	if got, _ := io.ReadAll(res.Body); !strings.Contains(string(got), `{"gap":{"reason":"trimmed","pointers":2,"text":"messages of access are missing`) {
		t.Errorf("a gap: %s", got)
	}
	if n := testutil.ToFloat64(s.metrics.tailMessages); n != 4 {
		t.Errorf("%v messages are counted", n)
	}
}

// TestTailRefusals: what is wrong with a request is said before the answer begins, with what to do.
func TestTailRefusals(t *testing.T) {
	s := serve(t, &runner{}, func(c *Config) { c.MaxTails = 0 })
	s.deps.Rights = &onlyOne{category: "other"}
	for query, want := range map[string]string{
		"?limit=0":              "above 0",
		"?follow=1":             "unknown parameter",
		"?from=soon":            "want earliest, latest",
		"?from=scribe1:nothing": "from: ",
		"?where=status+%3E%3E":  "error",
		"?until_end=maybe":      "want 1, true",
		"?from=1h&from=2h":      "given 2 times",
	} {
		res := s.do(http.MethodGet, query, "", "Tail-Of", "access")
		if body, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), want) {
			t.Errorf("%s: %s, %s, want %q", query, res.Status, body, want)
		}
	}
	for want, header := range map[int][]string{
		http.StatusTooManyRequests: {"Accept", "*/*"},
		http.StatusNotAcceptable:   {"Accept", "text/html"},
		http.StatusBadRequest:      {"Last-Event-ID", "scribe1:nothing"},
	} {
		if res := s.do(http.MethodGet, "", "", append(header, "Tail-Of", "access")...); res.StatusCode != want {
			t.Errorf("%v: %s, want %d", header, res.Status, want)
		}
	}
	s.cfg.MaxTails = 1
	if res := s.do(http.MethodGet, "", "", "Tail-Of", "access"); res.StatusCode != http.StatusForbidden {
		t.Errorf("a category that the caller may not read: %s", res.Status)
	}
	if n := testutil.ToFloat64(s.metrics.tails.WithLabelValues("denied")); n != 1 {
		t.Errorf("%v denials are counted", n)
	}
}

// TestTailFailure: an error after the first byte is the last line, and the answer is cut.
func TestTailFailure(t *testing.T) {
	s := serve(t, &runner{}, nil)
	res := askTail(t, s, &messages{payloads: []string{"one"}, err: errors.New("the disk is gone")}, "")
	got, err := io.ReadAll(res.Body)
	if err == nil || !strings.Contains(string(got), `{"error":{"code":"internal","message":"the disk is gone"}}`+"\n") {
		t.Errorf("%v: %s", err, got)
	}
}

// TestTailLife: a tail that has nothing to say shows that it lives, and ends with its server or when its client may not read any more.
func TestTailLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveInMemory(t, &runner{}, nil)
		defer s.http.Client().CloseIdleConnections()
		m := &messages{}
		began := time.Now()
		res := askTail(t, s, m, "")
		first := make([]byte, len(`{"checkpoint":"scribe1:place"}`)+1)
		for range 3 {
			if _, err := io.ReadFull(res.Body, first); err != nil || string(first) != `{"checkpoint":"scribe1:place"}`+"\n" {
				t.Fatalf("%q, %v", first, err)
			}
		}
		if took := time.Since(began); took < 2*s.cfg.Heartbeat || took > 3*s.cfg.Heartbeat {
			t.Errorf("two heartbeats took %v", took)
		}
		s.cancelTails()
		got, err := io.ReadAll(res.Body)
		if err == nil || !strings.Contains(string(got), errClosing.Error()) {
			t.Errorf("%v: %q", err, got)
		}
		m.closed.Wait()
	})
}

// readsOne lets everybody read one category. Its word can be taken back.
type readsOne struct{ onlyOne }

func (o *readsOne) BeginRead(ctx context.Context, what access.Permission, category string) (context.Context, *restrict.Restriction, context.CancelFunc, error) {
	if what != access.Read || category != o.category {
		return nil, nil, nil, errDenied
	}
	return o.watch(ctx)
}

// TestTailLosesItsRight: a tail ends when its caller may not read the category any more, and says so.
func TestTailLosesItsRight(t *testing.T) {
	s := serve(t, &runner{}, nil)
	rights := &readsOne{onlyOne{category: "access"}}
	s.deps.Rights = rights
	m := &messages{payloads: []string{"one"}}
	res := askTail(t, s, m, "", "Accept", "text/event-stream")
	first := make([]byte, len("id: "))
	if _, err := io.ReadFull(res.Body, first); err != nil || string(first) != "id: " {
		t.Fatalf("%q, %v", first, err)
	}
	rights.ended(errDenied)
	got, err := io.ReadAll(res.Body)
	if err == nil || !strings.Contains(string(got), "event: failure\ndata: {\"error\":{\"code\":\"denied\"") || strings.Contains(string(got), "event: end") {
		t.Errorf("%v: %s", err, got)
	}
	m.closed.Wait()
}

// TestTailStalls: a client that takes nothing is cut off after a while, so that it holds no place for ever.
func TestTailStalls(t *testing.T) {
	s := serve(t, &runner{}, func(c *Config) { c.StallTimeout = 50 * time.Millisecond })
	large := strings.Repeat("x", 1<<20)
	m := &messages{payloads: slices.Repeat([]string{large}, 64)} // more than the buffers of a connection
	askTail(t, s, m, "")
	m.closed.Wait()
	s.await(func() bool { return testutil.ToFloat64(s.metrics.stalled) == 1 })
}

// TestCloseUnread: clients that do not read hold up a shutdown for a moment, not for as long as they may stall.
func TestCloseUnread(t *testing.T) {
	s := serve(t, &runner{}, func(c *Config) { c.StallTimeout = time.Hour })
	large := strings.Repeat("x", 32<<20) // more than the buffers of a connection
	s.runner.query = func(context.Context, *Request) (rowSource, error) {
		return &result{next: func() (arrow.RecordBatch, error) { return batchFrom(1, 1, large), nil }}, nil
	}
	s.get(selectAll)
	m := &messages{payloads: slices.Repeat([]string{large[:1<<20]}, 64)}
	askTail(t, s, m, "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Errorf("a shutdown while clients do not read: %v", err)
	}
	m.closed.Wait()
	if n := testutil.ToFloat64(s.metrics.stalled); n != 0 {
		t.Errorf("%v answers are counted as stalled, which the server has ended", n)
	}
}

// TestTailsOfOneCaller: one caller gets a quarter of the tails; the others' places stay.
func TestTailsOfOneCaller(t *testing.T) {
	s := serve(t, &runner{}, func(c *Config) { c.MaxTails = 8 })
	for range 2 {
		if res := askTail(t, s, &messages{payloads: []string{"one"}}, ""); res.StatusCode != http.StatusOK {
			t.Fatal(res.Status)
		}
	}
	res := s.do(http.MethodGet, "", "", "Tail-Of", "access")
	if body, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusTooManyRequests || !strings.Contains(string(body), "2 tails of 127.0.0.1 are running, the limit for one caller") {
		t.Errorf("a third: %s, %s", res.Status, body)
	}
	for _, caller := range []string{"client other", "", "", ""} {
		other := &runningTail{caller: caller}
		if err := s.admitTail(other); err != nil {
			t.Fatalf("%q: %v", caller, err)
		}
		t.Cleanup(func() { s.releaseTail(other) })
	}
}

// TestTailBuffer: the memory of a large message is not kept.
func TestTailBuffer(t *testing.T) {
	if emptyBuffer(make([]byte, 1, 1<<20)) != nil || cap(emptyBuffer(make([]byte, 1, tailBuffer))) != tailBuffer {
		t.Error("a large buffer is kept, or a small one is not")
	}
}

// TestTailPost: a form or JSON has the parameters that a URL has no room for.
func TestTailPost(t *testing.T) {
	s := serve(t, &runner{}, nil)
	var got *tailRequest
	s.tail = func(req *tailRequest, pause func()) (messageSource, error) {
		got = req
		m := &messages{payloads: []string{"one"}, pause: pause}
		m.closed.Add(1)
		return m, nil
	}
	large := "n = '" + strings.Repeat("x", 60<<10) + "'"
	const form, object = "application/x-www-form-urlencoded", "application/json"
	for _, c := range []struct{ media, body, query, want string }{
		{form, url.Values{"limit": {"1"}, "where": {large}, "key": {"a", "b"}}.Encode(), "", ""},
		{object, `{"limit": 1, "where": "` + large + `"}`, "", ""},
		{form, "limit=1", "?limit=1", "both in the URL and in the body"},
		{form, "limit=" + strings.Repeat("1", maxBody), "", "longer than"},
		{form, "sql=x", "", "unknown parameter"},
		{object, `{`, "", "CHECKPOINT"},
		{"text/plain", "limit=1", "", "Content-Type"},
	} {
		got = nil
		res := s.do(http.MethodPost, c.query, c.body, "Tail-Of", "access", "Content-Type", c.media)
		body, err := io.ReadAll(res.Body)
		switch {
		case c.want != "":
			if res.StatusCode < 400 || !strings.Contains(string(body), c.want) {
				t.Errorf("%s %.40q: %s, %s, want %q", c.media, c.body, res.Status, body, c.want)
			}
		case err != nil || res.StatusCode != http.StatusOK || got.limit != 1 || got.where != large || c.media == form && !slices.Equal(got.keys, []string{"a", "b"}):
			t.Errorf("%s %.40q: %s, %v, %.200s", c.media, c.body, res.Status, err, body)
		}
	}
}

// TestTailLargeCheckpoint: a large checkpoint is not written with every message, but with the last one.
func TestTailLargeCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveInMemory(t, &runner{}, nil)
		defer s.http.Client().CloseIdleConnections()
		m := &messages{place: "scribe1:" + strings.Repeat("p", largeCheckpoint), payloads: slices.Repeat([]string{strings.Repeat("x", tailBuffer)}, 10)}
		got := read(t, askTail(t, s, m, "?limit=10").Body)
		if n := strings.Count(got, m.place); n != 2 || !strings.HasSuffix(got, m.place+"\"}\n") || strings.Count(got, "\n") != 11 {
			t.Errorf("%d checkpoints at once, want one at the beginning and one at the end", n)
		}
		m.closed.Wait()
	})
}
