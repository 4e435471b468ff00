package bench

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/base/units"
)

// answerFunc is a store that answers without a network.
type answerFunc func(*http.Request) (*http.Response, error)

func (f answerFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestDelayRange: ranges and single durations are read and written the same way; others are refused.
func TestDelayRange(t *testing.T) {
	for text, want := range map[string]string{"30ms..90ms": "30ms..90ms", "5ms": "5ms", "0": "0s", "0..1s": "0s..1s", "7ms..7ms": "7ms"} {
		var d DelayRange
		if err := d.Set(text); err != nil || d.String() != want {
			t.Errorf("%q: %q, %v; want %q", text, d.String(), err, want)
		}
	}
	for _, text := range []string{"", "..", "1ms..", "..1ms", "90ms..30ms", "-1ms", "5", "1ms..2ms..3ms", "1ms..1h"} {
		d := DelayRange{Least: 1, Most: 2}
		if err := d.Set(text); err == nil || !strings.Contains(err.Error(), "30ms..90ms") || d.Most != 2 {
			t.Errorf("%q: %v, %v", text, d, err)
		}
	}
}

// TestDelayPerRequest: each request waits a time of its own inside the range, in virtual time, and those that wait don't wait for each other.
func TestDelayPerRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const requests = 100
		p := newDelayProxy(t.Context(), &url.URL{Scheme: "http", Host: "store"}, DelayRange{Least: units.Duration(30 * time.Millisecond), Most: units.Duration(90 * time.Millisecond)})
		waits := make(chan time.Duration, requests)
		begin := time.Now()
		p.forward.Transport = answerFunc(func(*http.Request) (*http.Response, error) {
			waits <- time.Since(begin)
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		})
		for range requests {
			go p.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/bucket/key", http.NoBody))
		}
		different := map[time.Duration]bool{}
		for range requests {
			wait := <-waits
			different[wait] = true
			if wait < 30*time.Millisecond || wait > 90*time.Millisecond {
				t.Errorf("a request waited %v", wait)
			}
		}
		if len(different) < requests/2 {
			t.Errorf("%d requests waited only %d different times", requests, len(different))
		}
	})
}

// TestDelayProxy: requests arrive as they were sent, with their host and body, and are counted by kind.
func TestDelayProxy(t *testing.T) {
	body := bytes.Repeat([]byte("blob "), 100_000)
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, err := io.ReadAll(r.Body)
		if err != nil || r.Method == http.MethodPut && !bytes.Equal(got, body) {
			t.Errorf("%s: a body of %d bytes, %v", r.Method, len(got), err)
		}
		w.Header().Set("Seen", r.Host+r.URL.RequestURI())
		if r.Method == http.MethodGet {
			_, _ = w.Write(body)
		}
	}))
	defer store.Close()
	p, err := NewDelayProxy(t.Context(), store.URL, DelayRange{})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for _, call := range []struct{ method, path string }{
		{http.MethodPut, "/b/x%2Fy%20z"},
		{http.MethodGet, "/b/k"},
		{http.MethodGet, "/b/k"},
		{http.MethodHead, "/b/k"},
		{http.MethodGet, "/b/?list-type=2&prefix=a%2Fb"},
		{http.MethodDelete, "/b/k"},
		{http.MethodPost, "/b/?delete="},
	} {
		var sent io.Reader = http.NoBody
		if call.method == http.MethodPut {
			sent = bytes.NewReader(body)
		}
		req, err := http.NewRequestWithContext(t.Context(), call.method, p.URL()+call.path, sent)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if seen := res.Header.Get("Seen"); err != nil || seen != p.address+call.path || call.method == http.MethodGet && !bytes.Equal(got, body) {
			t.Errorf("%s %s: the store saw %q, and answered %d bytes, %v", call.method, call.path, seen, len(got), err)
		}
	}
	n := int64(len(body))
	want := StoreRequests{Put: 1, Get: 2, Head: 1, List: 1, Delete: 1, Post: 1, SentBytes: n, ReceivedBytes: 3 * n}
	if got := p.Requests(); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
	if got := p.Requests().growthSince(want); got != (StoreRequests{}) {
		t.Errorf("grown by %+v", got)
	}
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestDelayProxyClose: a request that is held back is broken off.
func TestDelayProxyClose(t *testing.T) {
	p, err := NewDelayProxy(t.Context(), "http://127.0.0.1:1", DelayRange{Least: longestDelay, Most: longestDelay})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	answered := make(chan int, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		status := 0
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL(), http.NoBody)
		if err == nil {
			if res, err := client.Do(req); err == nil {
				status = res.StatusCode
				_ = res.Body.Close()
			}
		}
		answered <- status
	}()
	for p.Requests().Get == 0 {
		select {
		case status := <-answered:
			t.Fatalf("answered %d before the delay", status)
		case <-time.After(time.Millisecond):
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if status := <-answered; status == http.StatusOK {
		t.Error("the request was answered")
	}
}
