package sqlserver

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Values of the label "api".
const (
	apiHTTP   = "http"
	apiFlight = "flight"
)

// resultOK is the value of the label "result" for a complete answer; the other values are the words of kinds.
const resultOK = "ok"

type metrics struct {
	registerer prometheus.Registerer
	all        []prometheus.Collector

	queries *prometheus.CounterVec // api, result
	seconds *prometheus.HistogramVec
	rows    *prometheus.CounterVec
	bytes   *prometheus.CounterVec
	fetched prometheus.Counter
	stalled prometheus.Counter
}

func newMetrics(r prometheus.Registerer, running, follows func() float64) (*metrics, error) {
	m := &metrics{registerer: r}
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "scribe_sqlserver_" + name, Help: help}, labels)
		m.all = append(m.all, v)
		return v
	}
	m.queries = vec("queries_total", "Queries by what came of them.", "api", "result")
	m.rows = vec("rows_total", "Rows that were answered.", "api")
	m.bytes = vec("bytes_total", "Bytes of answers: as written to HTTP before its framing, and as Arrow's buffers hold them for Flight.", "api")
	m.seconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "scribe_sqlserver_query_seconds", Help: "From the request to the end of its answer, without queries that follow.",
		Buckets: []float64{.005, .02, .1, .5, 2, 10, 60, 300, 1800},
	}, []string{"api"})
	m.fetched = prometheus.NewCounter(prometheus.CounterOpts{Name: "scribe_sqlserver_fetched_bytes_total", Help: "Bytes that queries got from read proxies."})
	m.stalled = prometheus.NewCounter(prometheus.CounterOpts{Name: "scribe_sqlserver_stalled_total", Help: "Answers that were cut since their client did not read them."})
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "scribe_sqlserver_" + name, Help: help}, f)
	}
	m.all = append(m.all, m.seconds, m.fetched, m.stalled,
		gauge("running_queries", "Queries that run.", running), gauge("following_queries", "Those of them that follow.", follows))
	for _, api := range []string{apiHTTP, apiFlight} {
		m.queries.WithLabelValues(api, resultOK)
		for _, k := range kinds {
			m.queries.WithLabelValues(api, k.word)
		}
		m.rows.WithLabelValues(api)
		m.bytes.WithLabelValues(api)
	}
	if r == nil {
		return m, nil
	}
	for i, x := range m.all {
		if err := r.Register(x); err != nil {
			m.all = m.all[:i]
			m.close()
			return nil, fmt.Errorf("sqlserver: metrics: %w", err)
		}
	}
	return m, nil
}

// close unregisters the metrics.
func (m *metrics) close() {
	if m.registerer == nil {
		return
	}
	for _, x := range m.all {
		m.registerer.Unregister(x)
	}
}
