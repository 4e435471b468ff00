package producer

import (
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
)

// WithRegisterer registers the producer's metrics, until Close:
//
//	scribe_producer_messages_total{outcome}      accepted, acked, sampled, failed, refused
//	scribe_producer_message_bytes_total{outcome} accepted, acked, sampled, failed
//	scribe_producer_dropped_messages_total{reason} see [DropReason]
//	scribe_producer_buffered_bytes, scribe_producer_memory_bytes, scribe_producer_streams, scribe_producer_linger_seconds
//	scribe_producer_requests_total{result}       ok, error
//	scribe_producer_ack_latency_seconds          from the first message of a frame to its acknowledgement
//
// No label has a category. A second producer in the same process needs a registerer with a distinguishing label
// ([prometheus.WrapRegistererWith]); otherwise [New] fails.
func WithRegisterer(r prometheus.Registerer) Option {
	return func(c *producerConfig) { c.registerer = r }
}

// producerMetrics exports the producer's counters.
type producerMetrics struct {
	set      *metrics.Set
	requests *prometheus.CounterVec
	latency  prometheus.Histogram
}

func newMetrics(stats func() Stats) *producerMetrics {
	set := metrics.NewSet("scribe_producer_")
	var messages, bytes, dropped, buffered, memory, streams, linger metrics.Value
	values := set.Snapshot(func(send metrics.Send) {
		s := stats()
		for _, o := range []struct {
			outcome         string
			messages, bytes uint64
		}{
			{"accepted", s.Accepted, s.AcceptedBytes},
			{"acked", s.Acked, s.AckedBytes},
			{"sampled", s.Sampled, s.SampledBytes},
			{"failed", s.Failed, s.FailedBytes},
		} {
			send(messages, float64(o.messages), o.outcome)
			send(bytes, float64(o.bytes), o.outcome)
		}
		send(messages, float64(s.Refused), "refused")
		for _, r := range dropReasons {
			send(dropped, float64(s.Dropped[r.reason]), string(r.reason)) // including 0, so that the first loss is seen as an increase
		}
		send(buffered, float64(s.BufferedBytes))
		send(memory, float64(s.Memory))
		send(streams, float64(s.Streams))
		send(linger, s.Linger.Seconds())
	})
	messages = values.Counter("messages_total", "Messages by what became of them; accepted ones are counted again by their outcome.", "outcome")
	bytes = values.Counter("message_bytes_total", "Bytes of messages, as messages_total.", "outcome")
	dropped = values.Counter("dropped_messages_total", "Messages lost to this producer, by reason.", "reason")
	buffered = values.Gauge("buffered_bytes", "Bytes of messages that wait or are being sent.")
	memory = values.Gauge("memory_bytes", "Memory in use out of the bound for buffers.")
	streams = values.Gauge("streams", "Categories and shards written to since the start.")
	linger = values.Gauge("linger_seconds", "How long messages linger that nobody waits for, in categories without a linger of their own.")
	return &producerMetrics{
		set:      set,
		requests: set.CounterVec("requests_total", "Write requests that ended, by whether the server answered for their frames.", "result"),
		latency: set.Histogram("ack_latency_seconds", "Time from the first message of a frame to its acknowledgement.",
			prometheus.ExponentialBuckets(0.0005, 2, 18)), // to 65 s
	}
}

func (m *producerMetrics) countRequest(err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.requests.WithLabelValues(result).Inc()
}
