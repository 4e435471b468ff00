package record_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"

	"scribe/internal/format/record"
)

// Every benchmark works on one frame of about 256 KiB an operation. MB/s
// counts payload bytes, msgs/s messages, on one core.
//
//	go test ./internal/format/record -run '^$' -bench . -cpu 1 -count 6 | tee new.txt && benchstat new.txt

type workload struct {
	name     string
	messages []record.Message
	bytes    int64 // of payloads
}

func workloads(b *testing.B) []workload {
	const frameLen = 256 << 10
	fixed := func(name string, size int, decorate func(*record.Message)) workload {
		random := rand.NewChaCha8([32]byte{1})
		w := workload{name: name}
		for range max(1, frameLen/size) {
			m := record.Message{Payload: make([]byte, size)}
			_, _ = random.Read(m.Payload) // never fails
			if decorate != nil {
				decorate(&m)
			}
			w.messages = append(w.messages, m)
			w.bytes += int64(size)
		}
		return w
	}
	text, err := os.ReadFile("testdata/access_log.txt")
	if err != nil {
		b.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	access := workload{name: "log=access"}
	for i := 0; access.bytes < frameLen; i++ {
		line := lines[i%len(lines)]
		access.messages = append(access.messages, record.Message{Payload: line})
		access.bytes += int64(len(line))
	}
	now := int64(1.7e15)
	return []workload{
		fixed("size=100B", 100, nil),
		fixed("size=100B,key,time,attributes=2", 100, func(m *record.Message) {
			now += 137
			m.Key, m.Time = m.Payload[:8], micro(now)
			m.Attributes = []record.Attribute{
				{Name: "traceparent", Value: m.Payload[:55]}, {Name: "pii", Value: []byte("no")},
			}
		}),
		access,
		fixed("size=10KB", 10_000, nil),
	}
}

func (w *workload) report(b *testing.B) {
	b.ReportMetric(float64(len(w.messages))*float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
}

func BenchmarkEncode(b *testing.B) {
	for _, w := range workloads(b) {
		b.Run(w.name, func(b *testing.B) {
			var builder record.Builder
			buf := make([]byte, 0, 1<<20)
			b.SetBytes(w.bytes)
			b.ReportAllocs()
			for b.Loop() {
				if err := builder.Reset(buf[:0], record.Envelope{Category: "bench"}); err != nil {
					b.Fatal(err)
				}
				for i := range w.messages {
					if err := builder.Append(&w.messages[i]); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := builder.Finish(); err != nil {
					b.Fatal(err)
				}
			}
			w.report(b)
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, w := range workloads(b) {
		b.Run(w.name, func(b *testing.B) {
			frame := encode(b, nil, record.Envelope{Category: "bench"}, w.messages)
			var (
				d record.Decoder
				r record.Record
			)
			b.SetBytes(w.bytes)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.Reset(frame); err != nil {
					b.Fatal(err)
				}
				n := 0
				for d.Next(&r) {
					n += len(r.Payload)
				}
				if d.Err() != nil || int64(n) != w.bytes {
					b.Fatal(n, d.Err())
				}
			}
			w.report(b)
		})
	}
}

// BenchmarkCheck is what every hop between producer and consumer does.
func BenchmarkCheck(b *testing.B) {
	for _, w := range workloads(b) {
		b.Run(w.name, func(b *testing.B) {
			frame := encode(b, nil, record.Envelope{Category: "bench"}, w.messages)
			b.SetBytes(w.bytes)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := record.Check(frame); err != nil {
					b.Fatal(err)
				}
			}
			w.report(b)
		})
	}
}

// BenchmarkParseHeader is the fixed cost of a frame in a hop.
func BenchmarkParseHeader(b *testing.B) {
	frame := encode(b, nil, record.Envelope{Category: "web.access"}, []record.Message{{}})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := record.ParseHeader(frame); err != nil {
			b.Fatal(err)
		}
	}
}
