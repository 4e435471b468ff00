package producer_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"scribe/internal/format/record"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// sink acknowledges everything at once: what is measured is the producer.
type sink struct{}

func (sink) Write(_ context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	res := &scribev1.WriteResponse{}
	for _, err := range record.Split(req.GetFrames()) {
		if err != nil {
			return nil, err
		}
		res.Results = append(res.Results, &scribev1.FrameResult{})
	}
	return res, nil
}

func benchProducer(b *testing.B, opts ...producer.Option) *producer.Producer {
	b.Helper()
	p, err := producer.New("", append(opts, producer.WithService(sink{}))...)
	if err != nil {
		b.Fatal(err)
	}
	return p
}

func finish(b *testing.B, p *producer.Producer, messages int) {
	b.Helper()
	if err := p.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	if st := p.Stats(); st.Acked != uint64(messages) {
		b.Fatalf("%d of %d messages were acknowledged: %+v", st.Acked, messages, st)
	}
	b.ReportMetric(float64(messages)/b.Elapsed().Seconds(), "msgs/s")
}

// One core, everything included: encoding, sealing, checksums, requests to a service that does nothing.
//
//	go test ./producer -run '^$' -bench 'Log|Write' -cpu 1 -count 6
func BenchmarkLog(b *testing.B) {
	for _, size := range []int{100, 1000} {
		for _, categories := range []int{1, 1000} {
			b.Run(fmt.Sprintf("size=%d/categories=%d", size, categories), func(b *testing.B) {
				names := texts("category.", categories)
				payload := make([]byte, size)
				p := benchProducer(b, producer.WithMaxBufferedBytes(1<<30)) // nothing is dropped
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ResetTimer()
				for i := range b.N {
					p.Log(names[i%categories], payload)
					if i%4096 == 4095 {
						runtime.Gosched() // one core: the sender needs it too
					}
				}
				finish(b, p, b.N)
			})
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, batch := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("size=100/batch=%d", batch), func(b *testing.B) {
			ctx := context.Background()
			msgs := make([]producer.Message, batch)
			for i := range msgs {
				msgs[i].Payload = make([]byte, 100)
			}
			p := benchProducer(b)
			b.SetBytes(int64(100 * batch))
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if err := p.Write(ctx, "web.access", msgs...); err != nil {
					b.Fatal(err)
				}
			}
			finish(b, p, b.N*batch)
		})
	}
}

// Callers on all cores, on one category and on one each.
//
//	go test ./producer -run '^$' -bench LogParallel -count 6
func BenchmarkLogParallel(b *testing.B) {
	for _, shared := range []bool{true, false} {
		b.Run(fmt.Sprintf("size=100/shared=%t", shared), func(b *testing.B) {
			p := benchProducer(b, producer.WithMaxBufferedBytes(4<<30))
			b.SetBytes(100)
			names := make(chan string, 1024)
			for i := range 1024 {
				names <- fmt.Sprintf("category.%d", i)
			}
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				name, payload := "category", make([]byte, 100)
				if !shared {
					name = <-names
				}
				for pb.Next() {
					p.Log(name, payload)
				}
			})
			finish(b, p, b.N)
		})
	}
}

// What a category costs that was written to once and is idle since.
//
//	go test ./producer -run '^$' -bench IdleCategory -benchtime 100000x
func BenchmarkIdleCategory(b *testing.B) {
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // pools give up what they hold at the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	p := benchProducer(b, producer.WithLinger(time.Millisecond))
	names := texts("service.production.", b.N)
	before := heap()
	for _, name := range names {
		if err := p.WriteAsyncContext(b.Context(), name, &producer.Message{Payload: []byte("x")}).Err(); err != nil {
			b.Fatal(err)
		}
	}
	if err := p.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(heap()-before)/float64(b.N), "heap-B/category")
	runtime.KeepAlive(names)
	finish(b, p, b.N)
}
