package producer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"scribe/internal/transport/rpc"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// serve puts a server on a port.
func serve(t testing.TB, s *server) string {
	t.Helper()
	mux := http.NewServeMux()
	(&rpc.Services{Write: s, Logger: slog.New(slog.DiscardHandler)}).Register(mux)
	hs := httptest.NewServer(mux)
	t.Cleanup(hs.Close)
	return hs.URL
}

func TestOverHTTP(t *testing.T) {
	s := &server{exactlyOnce: true, only: []string{"a"}, fault: nth(2, fault{after: refusal(scribev1.Reason_REASON_UNKNOWN_OUTCOME, 0)})}
	url := serve(t, s)
	hc := &http.Client{Transport: &http.Transport{}}
	defer hc.CloseIdleConnections()
	for _, opts := range [][]producer.Option{nil, {producer.WithHTTPClient(hc)}} {
		p, err := producer.New(url, opts...)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := p.Write(t.Context(), "a", messages(texts("m", 10))...); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Write(t.Context(), "b", producer.Message{}); !errors.Is(err, producer.ErrUnknownCategory) {
			t.Errorf("unknown category: %v", err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if got := len(s.payloads("a", 0)); got != 60 {
		t.Errorf("%d stored", got)
	}
	s.check(t)

	p, err := producer.New("http://127.0.0.1:1", producer.WithRetries(1), producer.WithBackoff(time.Microsecond, time.Microsecond))
	if err != nil {
		t.Fatal(err)
	}
	err = p.Write(t.Context(), "a", producer.Message{})
	if !errors.Is(err, producer.ErrUnavailable) || errors.Is(err, producer.ErrUnknownOutcome) {
		t.Errorf("nobody listens: %v", err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Everything at once, for the race detector: the producer's methods may be called from anywhere, Close among them.
func TestConcurrentUse(t *testing.T) {
	s := &server{exactlyOnce: true, fault: func(n int, _ *scribev1.WriteRequest) *fault {
		if n%5 == 0 {
			return &fault{after: errLost}
		}
		return nil
	}}
	p := start(t, s, producer.WithBackoff(time.Microsecond, time.Millisecond), producer.WithLinger(100*time.Microsecond),
		producer.WithMaxBufferedBytes(256<<10), producer.WithBatchBytes(8<<10), producer.WithOnDrop(func(producer.Drop) {}))
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			ctx := context.Background()
			category := fmt.Sprintf("c%d", g%3)
			for i := range 200 {
				text := fmt.Appendf(nil, "%d.%d.%s", g, i, strings.Repeat("x", 500))
				var err error
				switch i % 6 {
				case 0:
					p.Log(category, text)
				case 1:
					err = p.Write(ctx, category, producer.Message{Payload: text}, producer.Message{Payload: text, Shard: 1})
				case 2:
					p.WriteAsync(category, &producer.Message{Payload: text})
				case 3:
					err = p.WriteAsyncContext(ctx, category, &producer.Message{Payload: text}).Wait(ctx)
				case 4:
					err = p.WriteAtomic(ctx, category, 1, messages(texts("m", 5))...)
				case 5:
					err = p.Flush(ctx)
					p.Identity()
				}
				if err != nil && !errors.Is(err, producer.ErrClosed) {
					t.Error(err)
				}
				if st := p.Stats(); st.Accepted != st.Acked+st.Sampled+st.Failed+st.Buffered {
					t.Errorf("stats are %+v", st)
				}
				if g == 0 && i == 150 {
					if err := p.Close(ctx); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}
