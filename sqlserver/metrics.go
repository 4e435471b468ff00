package sqlserver

import (
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
)

// Values of the label "api".
const (
	apiHTTP   = "http"
	apiFlight = "flight"
	apiTail   = "tail" // of bytes alone
)

// resultOK is the value of the label "result" for a complete answer; the other values are the words of kinds.
const resultOK = "ok"

type roleMetrics struct {
	*metrics.Set

	queries, tails, rows, bytes    *prometheus.CounterVec
	seconds                        *prometheus.HistogramVec
	fetched, stalled, tailMessages prometheus.Counter
}

func newMetrics(r prometheus.Registerer, running, follows, tails func() float64) (*roleMetrics, error) {
	set := metrics.NewSet("scribe_sqlserver_")
	m := &roleMetrics{
		Set:     set,
		queries: set.CounterVec("queries_total", "Queries by what came of them.", "api", "result"),
		tails:   set.CounterVec("tails_total", "Tails over HTTP by what came of them.", "result"),
		rows:    set.CounterOf("rows_total", "Rows that were answered.", "api", apiHTTP, apiFlight),
		bytes: set.CounterOf("bytes_total", "Bytes of answers: as written to HTTP before its framing, and as Arrow's buffers hold them for Flight.",
			"api", apiHTTP, apiFlight, apiTail),
		seconds: set.HistogramVec("query_seconds", "From the request to the end of its answer, without queries that follow.",
			[]float64{.005, .02, .1, .5, 2, 10, 60, 300, 1800}, "api"),
		fetched:      set.Counter("fetched_bytes_total", "Bytes that queries got from read proxies."),
		tailMessages: set.Counter("tail_messages_total", "Messages that tails over HTTP were given."),
		stalled:      set.Counter("stalled_total", "Answers that were cut since their client did not read them."),
	}
	set.GaugeFunc("running_queries", "Queries that run.", running)
	set.GaugeFunc("following_queries", "Those of them that follow.", follows)
	set.GaugeFunc("running_tails", "Tails over HTTP that run.", tails)
	m.tails.WithLabelValues(resultOK)
	for _, k := range kinds {
		m.tails.WithLabelValues(k.word)
	}
	for _, api := range []string{apiHTTP, apiFlight} {
		m.queries.WithLabelValues(api, resultOK)
		for _, k := range kinds {
			m.queries.WithLabelValues(api, k.word)
		}
	}
	return m, m.Register(r)
}
