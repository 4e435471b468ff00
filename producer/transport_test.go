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

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar"
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

func TestWriteColumns(t *testing.T) {
	s := &server{}
	p := start(t, s, producer.WithMaxBufferedBytes(512<<10))
	schema := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}}, nil)
	batch := func(rows int) arrow.RecordBatch {
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		defer b.Release()
		for i := range rows {
			b.Field(0).(*array.Int64Builder).Append(int64(i))
		}
		return b.NewRecordBatch()
	}
	rec := batch(1000)
	defer rec.Release()
	for range 2 { // the second has sequences that follow those of the first
		if err := p.WriteColumns(t.Context(), "a", 2, rec); err != nil {
			t.Fatal(err)
		}
	}
	if h := s.frames[1]; h.Count != 1000 || h.Shard != 2 || h.FirstSequence != 1000 || !h.Sequenced() || h.BaseTime == 0 {
		t.Errorf("the frame is %+v", h)
	}
	got, err := columnar.DecodeIPC([]byte(s.payloads("a", 2)[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer got.Release()
	if !array.RecordEqual(got, rec) {
		t.Errorf("stored %v", got)
	}
	if st := p.Stats(); st.Acked != 2000 {
		t.Errorf("stats are %+v", st)
	}

	none, large := batch(0), batch(100_000)
	defer none.Release()
	defer large.Release()
	if err := p.WriteColumns(t.Context(), "a", 0, none); err != nil || len(s.frames) != 2 {
		t.Errorf("a batch without rows: %v, %d frames", err, len(s.frames))
	}
	if err := p.WriteColumns(t.Context(), "a", 0, large); !errors.Is(err, producer.ErrTooLarge) {
		t.Errorf("a batch over the memory bound: %v", err)
	}
	if err := p.WriteColumns(t.Context(), "no name", 0, rec); !errors.Is(err, producer.ErrInvalid) {
		t.Errorf("a wrong category: %v", err)
	}
	union := arrow.SparseUnionOf([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}}, []arrow.UnionTypeCode{0})
	ub := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "u", Type: union}}, nil))
	defer ub.Release()
	ub.Field(0).(*array.SparseUnionBuilder).Append(0)
	ub.Field(0).(*array.SparseUnionBuilder).Child(0).(*array.Int64Builder).Append(1)
	odd := ub.NewRecordBatch()
	defer odd.Release()
	if err := p.WriteColumns(t.Context(), "a", 0, odd); !errors.Is(err, producer.ErrInvalid) {
		t.Errorf("a type that frames do not carry: %v", err)
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
