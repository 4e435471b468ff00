package producer_test

import (
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/format/record"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{only: []string{"a", "sampled"}, fault: func(n int, _ *scribev1.WriteRequest) *fault {
			if n == 1 {
				return &fault{before: refusal(scribev1.Reason_REASON_OVERLOADED, 0)}
			}
			return &fault{sample: func(h record.Header) bool { return h.CategoryName() == "sampled" }}
		}}
		reg := prometheus.NewRegistry()
		p := start(t, s, producer.WithRegisterer(reg), producer.WithMaxMessageBytes(10))
		if _, err := producer.New("", producer.WithService(s), producer.WithRegisterer(reg)); err == nil {
			t.Error("two producers share a registry without labels")
		}
		_ = p.Write(t.Context(), "a", messages([]string{"one", "two"})...)
		_ = p.Write(t.Context(), "sampled", messages([]string{"three"})...)
		_ = p.Write(t.Context(), "none", messages([]string{"four"})...)
		p.Log("a", make([]byte, 11))
		got := gather(t, reg)
		for name, want := range map[string]float64{
			"messages_total accepted": 4, "messages_total acked": 2, "messages_total sampled": 1, "messages_total failed": 1, "messages_total refused": 1,
			"message_bytes_total accepted": 15, "message_bytes_total acked": 6, "message_bytes_total sampled": 5, "message_bytes_total failed": 4,
			"dropped_messages_total unknown_category": 1, "dropped_messages_total too_large": 1, "dropped_messages_total buffer_full": 0,
			"requests_total ok": 3, "requests_total error": 1, "ack_latency_seconds": 1, "buffered_bytes": 0, "memory_bytes": 0, "streams": 3,
		} {
			if v, ok := got["scribe_producer_"+name]; !ok || v != want {
				t.Errorf("%s is %v, want %v", name, v, want)
			}
		}
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if families, err := reg.Gather(); err != nil || len(families) != 0 {
			t.Errorf("a closed producer still has %d metrics, %v", len(families), err)
		}
	})
}

// gather returns the values by name and label; a histogram's is its count.
func gather(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			out[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}
