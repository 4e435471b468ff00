package follow

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// followMetrics are those of one input, which its name tells from others.
type followMetrics struct {
	messages, bytes        prometheus.Counter
	dropped                *prometheus.CounterVec // by reason
	long                   *prometheus.CounterVec // by what was done
	rotations, truncations prometheus.Counter
	failures               prometheus.Counter
	files, open, lag       prometheus.Gauge

	registry prometheus.Registerer
	all      []prometheus.Collector
}

// Reasons of drops.
const (
	dropRefused = "refused"  // the agent will never take it
	dropLong    = "too_long" // and long lines are dropped
)

func newMetrics(name string, reg prometheus.Registerer) (*followMetrics, error) {
	m := &followMetrics{registry: reg}
	labels := prometheus.Labels{"input": name}
	counter := func(n, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "scribe_inputs_follow_" + n, Help: help, ConstLabels: labels})
		m.all = append(m.all, c)
		return c
	}
	vector := func(n, help, label string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "scribe_inputs_follow_" + n, Help: help, ConstLabels: labels}, []string{label})
		m.all = append(m.all, c)
		return c
	}
	gauge := func(n, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "scribe_inputs_follow_" + n, Help: help, ConstLabels: labels})
		m.all = append(m.all, g)
		return g
	}
	m.messages = counter("messages_total", "Messages that the agent has taken.")
	m.bytes = counter("bytes_total", "Bytes of those messages.")
	m.dropped = vector("dropped_messages_total", "Messages that were lost, by reason.", "reason")
	m.long = vector("long_lines_total", "Lines over the limit, by what was done with them.", "action")
	m.rotations = counter("rotations_total", "Files that were found under another name, or gone.")
	m.truncations = counter("truncations_total", "Files that were cut or replaced in place, and are read from their beginning again.")
	m.failures = counter("failures_total", "Looks, reads, deliveries and saves that failed, and are repeated.")
	m.files = gauge("files", "Files that are followed.")
	m.open = gauge("open_files", "Files that are open.")
	m.lag = gauge("lag_bytes", "Bytes of the files that are not delivered yet.")
	if reg == nil {
		return m, nil
	}
	for i, c := range m.all {
		if err := reg.Register(c); err != nil {
			for _, done := range m.all[:i] {
				reg.Unregister(done)
			}
			return nil, errors.Join(errors.New("follow: register metrics"), err)
		}
	}
	return m, nil
}

func (m *followMetrics) unregister() {
	if m.registry == nil {
		return
	}
	for _, c := range m.all {
		m.registry.Unregister(c)
	}
}
