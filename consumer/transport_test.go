package consumer_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"scribe/consumer"
	"scribe/internal/transport/rpc"
)

// serve puts a cell on a port.
func serve(t testing.TB, c *cell) string {
	t.Helper()
	mux := http.NewServeMux()
	(&rpc.Services{ReadStream: c, ReadProxy: c, Logger: slog.New(slog.DiscardHandler)}).Register(mux)
	hs := httptest.NewUnstartedServer(mux)
	hs.Config.Protocols = protocols()
	hs.Start()
	t.Cleanup(hs.Close)
	return hs.URL
}

func protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

func TestOverHTTP(t *testing.T) {
	c := newCell()
	var all []string
	for i := range 500 {
		texts := []string{fmt.Sprint(i, "a"), fmt.Sprint(i, "b")}
		all = append(all, texts...)
		c.add(shardID(0, uint16(1+i%3)), texts...)
	}
	url := serve(t, c)
	h2 := new(http.Protocols)
	h2.SetUnencryptedHTTP2(true)
	hc := &http.Client{Transport: &http.Transport{Protocols: h2}}
	defer hc.CloseIdleConnections()
	for _, opts := range [][]consumer.Option{nil, {consumer.WithHTTPClient(hc)}} {
		r, err := consumer.New(url, categoryName, append(opts, consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd(), consumer.WithPrefetchBytes(64<<10))...)
		if err != nil {
			t.Fatal(err)
		}
		got, err := read(t.Context(), r, 100)
		if err != nil {
			t.Fatal(err)
		}
		more, err := read(t.Context(), r, 0)
		want(t, append(got, more...), err, all...)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		other, err := consumer.New(url, "another", opts...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := read(t.Context(), other, 0); !errors.Is(err, consumer.ErrUnknownCategory) {
			t.Errorf("a category that does not exist: %v", err)
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	}
	c.check(t)

	r, err := consumer.New("http://127.0.0.1:1", categoryName, consumer.WithRetryTimeout(time.Millisecond), consumer.WithBackoff(time.Millisecond, time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := read(t.Context(), r, 0); !errors.Is(err, consumer.ErrUnavailable) {
		t.Errorf("nobody listens: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// For the race detector: a consumer is looked at and closed while it reads.
func TestConcurrentUse(t *testing.T) {
	c := newCell()
	for i := range 300 {
		c.add(shardID(0, uint16(1+i%3)), fmt.Sprint(i), "x", "y")
	}
	r := open(t, c, consumer.WithPrefetchBytes(64<<10))
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_, _, _, _, _ = r.Checkpoint(), r.Lag(), r.Watermark(), r.Buffered(), r.Stats()
				}
			}
		})
	}
	if got, err := read(t.Context(), r, 900); err != nil || len(got) != 900 {
		t.Errorf("%d messages: %v", len(got), err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := read(t.Context(), r, 0); !errors.Is(err, consumer.ErrClosed) {
			t.Error(err)
		}
	}()
	c.add(shardID(0, 1), "z")
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	<-done
	close(stop)
	wg.Wait()
}
