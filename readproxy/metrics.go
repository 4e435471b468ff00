package readproxy

import (
	"errors"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	scribev1 "scribe/proto/scribe/v1"
)

type metrics struct {
	registerer prometheus.Registerer
	all        []prometheus.Collector

	requests     prometheus.Counter
	refused      *prometheus.CounterVec // by reason
	inFlight     prometheus.Gauge
	payloads     prometheus.Counter
	payloadBytes prometheus.Counter
	errors       *prometheus.CounterVec // by reason
	hits         prometheus.Counter
	misses       prometheus.Counter
	shared       prometheus.Counter
	storeReads   prometheus.Counter
	storeBytes   prometheus.Counter
	savedBytes   prometheus.Counter
	fetching     prometheus.Gauge
}

const namespace, subsystem = "scribe", "readproxy"

func newMetrics(r prometheus.Registerer, c *cache) (*metrics, error) {
	m := &metrics{registerer: r}
	counter := func(name, help string) prometheus.Counter {
		v := prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
		m.all = append(m.all, v)
		return v
	}
	vector := func(name, help, label string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, []string{label})
		m.all = append(m.all, v)
		return v
	}
	gauge := func(name, help string) prometheus.Gauge {
		v := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
		m.all = append(m.all, v)
		return v
	}
	gaugeFunc := func(name, help string, fn func() float64) {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, fn))
	}
	m.requests = counter("requests_total", "Requests.")
	m.refused = vector("requests_refused_total", "Requests that failed as a whole, by reason.", "reason")
	m.inFlight = gauge("requests_in_flight", "Requests being served.")
	m.payloads = counter("payloads_total", "Payloads served.")
	m.payloadBytes = counter("payload_bytes_total", "Bytes of the payloads served, as sent.")
	m.errors = vector("payload_errors_total", "Payloads that could not be served, by reason.", "reason")
	m.hits = counter("cache_hits_total", "Blocks that were in the cache.")
	m.misses = counter("cache_misses_total", "Blocks that were not in the cache.")
	m.shared = counter("shared_fetches_total", "Misses that another asker's fetch answered.")
	m.storeReads = counter("store_reads_total", "Reads of blob stores.")
	m.storeBytes = counter("store_bytes_total", "Bytes read from blob stores.")
	m.savedBytes = counter("saved_bytes_total", "Bytes that the cache and shared fetches spared the blob stores.")
	m.fetching = gauge("fetches_in_flight", "Blocks being fetched, or waiting for it.")
	gaugeFunc("cache_bytes", "Bytes in the cache.", func() float64 { _, n := c.stats(); return float64(n) })
	gaugeFunc("cache_blocks", "Blocks in the cache.", func() float64 { n, _ := c.stats(); return float64(n) })
	if r == nil {
		return m, nil
	}
	for i, v := range m.all {
		if err := r.Register(v); err != nil {
			m.all = m.all[:i]
			m.close()
			return nil, errors.Join(errors.New("readproxy: register metrics"), err)
		}
	}
	return m, nil
}

func (m *metrics) close() {
	if m.registerer == nil {
		return
	}
	for _, v := range m.all {
		m.registerer.Unregister(v)
	}
}

// label is a reason as the value of a label: "missing" for REASON_MISSING.
func label(r scribev1.Reason) string { return reasonLabels[r] }

var reasonLabels = func() map[scribev1.Reason]string {
	out := map[scribev1.Reason]string{}
	for n, name := range scribev1.Reason_name {
		out[scribev1.Reason(n)] = strings.ToLower(strings.TrimPrefix(name, "REASON_"))
	}
	return out
}()
