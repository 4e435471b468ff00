package sequencer

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Values of the label "step".
const (
	stepOpen    = "open"
	stepStream  = "stream"
	stepPointer = "pointer"
	stepAppend  = "append"
	stepTrim    = "trim"
)

type metrics struct {
	registerer prometheus.Registerer
	all        []prometheus.Collector

	terms         prometheus.Counter
	fenced        prometheus.Counter
	pointers      prometheus.Counter
	messages      prometheus.Counter
	gaps          prometheus.Counter
	late          prometheus.Counter
	refused       prometheus.Gauge
	failures      *prometheus.CounterVec
	appendSeconds prometheus.Histogram
}

func newMetrics(r prometheus.Registerer, s *Sequencer) (*metrics, error) {
	m := &metrics{registerer: r}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "scribe_sequencer_" + name, Help: help})
		m.all = append(m.all, c)
		return c
	}
	gauge := func(name, help string, fn func() float64) {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "scribe_sequencer_" + name, Help: help}, fn))
	}
	m.terms = counter("terms_total", "Categories that were taken over, once for each time.")
	m.fenced = counter("fenced_total", "Terms that ended because another sequencer took the category over.")
	m.pointers = counter("pointers_total", "Pointers appended to sequenced logs.")
	m.messages = counter("messages_total", "Messages of these pointers.")
	m.gaps = counter("gaps_total", "Gaps appended to sequenced logs: pointers that were gone or damaged before they were sequenced.")
	m.late = counter("late_pointers_total", "Pointers sequenced behind ones that were persisted later, which never happens while the engine keeps its promises.")
	m.refused = prometheus.NewGauge(prometheus.GaugeOpts{Name: "scribe_sequencer_refused_categories", Help: "Categories of this process beyond its limit, which are not sequenced."})
	m.failures = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "scribe_sequencer_failures_total", Help: "Steps that failed and are tried again."}, []string{"step"})
	for _, step := range []string{stepOpen, stepStream, stepPointer, stepAppend, stepTrim} {
		m.failures.WithLabelValues(step)
	}
	m.appendSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "scribe_sequencer_append_seconds", Help: "Time of an append to a sequenced log.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
	})
	m.all = append(m.all, m.refused, m.failures, m.appendSeconds)
	gauge("categories", "Categories of this process.", func() float64 { return float64(s.status().categories) })
	gauge("sequencing_categories", "Categories of this process that have a stream.", func() float64 { return float64(s.status().sequencing) })
	gauge("failing_categories", "Categories of this process whose last step failed.", func() float64 { return float64(s.status().failing) })
	gauge("lag_seconds", "How far what was sequenced is behind the clock, in the category where it is most.", func() float64 { return s.status().lag.Seconds() })
	if r == nil {
		return m, nil
	}
	for i, c := range m.all {
		if err := r.Register(c); err != nil {
			for _, c := range m.all[:i] {
				r.Unregister(c)
			}
			return nil, fmt.Errorf("sequencer: metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) close() {
	if m.registerer == nil {
		return
	}
	for _, c := range m.all {
		m.registerer.Unregister(c)
	}
}
