package producer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metricset"
)

// WithRegisterer registers the producer's metrics, until Close:
//
//	scribe_producer_messages_total{outcome}      accepted, acked, sampled, failed, refused
//	scribe_producer_message_bytes_total{outcome} accepted, acked, sampled, failed
//	scribe_producer_dropped_messages_total{reason} see [DropReason]
//	scribe_producer_buffered_bytes, scribe_producer_memory_bytes, scribe_producer_streams
//	scribe_producer_requests_total{result}       ok, error
//	scribe_producer_ack_latency_seconds          from the first message of a frame to its acknowledgement
//
// No label has a category. A second producer of a process needs a registerer with a label of its own
// ([prometheus.WrapRegistererWith]); [New] fails without.
func WithRegisterer(r prometheus.Registerer) Option {
	return option(func(c *config) { c.registerer = r })
}

// metrics collects from the counters that the producer keeps anyway. The nil metrics counts nothing.
type metrics struct {
	stats    func() Stats
	set      *metricset.Set
	requests *prometheus.CounterVec
	latency  prometheus.Histogram
}

const metricsPrefix = "scribe_producer_"

var (
	messagesDesc = prometheus.NewDesc(metricsPrefix+"messages_total", "Messages by what became of them; accepted ones are counted again by their outcome.", []string{"outcome"}, nil)
	bytesDesc    = prometheus.NewDesc(metricsPrefix+"message_bytes_total", "Bytes of messages, as messages_total.", []string{"outcome"}, nil)
	droppedDesc  = prometheus.NewDesc(metricsPrefix+"dropped_messages_total", "Messages lost to this producer, by reason.", []string{"reason"}, nil)
	bufferedDesc = prometheus.NewDesc(metricsPrefix+"buffered_bytes", "Bytes of messages that wait or are being sent.", nil, nil)
	memoryDesc   = prometheus.NewDesc(metricsPrefix+"memory_bytes", "Memory in use out of the bound for buffers.", nil, nil)
	streamsDesc  = prometheus.NewDesc(metricsPrefix+"streams", "Categories and shards written to since the start.", nil, nil)
)

// newMetrics registers, unless r is nil.
func newMetrics(r prometheus.Registerer, stats func() Stats) (*metrics, error) {
	if r == nil {
		return nil, nil //nolint:nilnil // the nil metrics is valid
	}
	m := &metrics{
		stats: stats,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricsPrefix + "requests_total", Help: "Write requests that ended, by whether the server answered for their frames.",
		}, []string{"result"}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: metricsPrefix + "ack_latency_seconds", Help: "Time from the first message of a frame to its acknowledgement.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 18), // to 65 s
		}),
	}
	var err error
	m.set, err = metricset.Register(r, "producer", m)
	return m, err
}

func (m *metrics) close() {
	if m != nil {
		m.set.Unregister()
	}
}

func (m *metrics) request(err error) {
	if m == nil {
		return
	}
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.requests.WithLabelValues(result).Inc()
}

func (m *metrics) acked(latency time.Duration) {
	if m != nil {
		m.latency.Observe(latency.Seconds())
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{messagesDesc, bytesDesc, droppedDesc, bufferedDesc, memoryDesc, streamsDesc} {
		ch <- d
	}
	m.requests.Describe(ch)
	m.latency.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.stats()
	counter := func(d *prometheus.Desc, v uint64, label string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), label)
	}
	for _, o := range []struct {
		outcome         string
		messages, bytes uint64
	}{
		{"accepted", s.Accepted, s.AcceptedBytes},
		{"acked", s.Acked, s.AckedBytes},
		{"sampled", s.Sampled, s.SampledBytes},
		{"failed", s.Failed, s.FailedBytes},
	} {
		counter(messagesDesc, o.messages, o.outcome)
		counter(bytesDesc, o.bytes, o.outcome)
	}
	counter(messagesDesc, s.Refused, "refused")
	for _, r := range dropReasons {
		counter(droppedDesc, s.Dropped[r], string(r)) // also those at 0, so that the first is seen as an increase
	}
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	gauge(bufferedDesc, float64(s.BufferedBytes))
	gauge(memoryDesc, float64(s.Memory))
	gauge(streamsDesc, float64(s.Streams))
	m.requests.Collect(ch)
	m.latency.Collect(ch)
}
