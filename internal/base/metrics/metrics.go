// Package metrics declares the Prometheus metrics of a role, each in one place, and registers them together.
//
//	set := metrics.NewSet("scribe_sequencer_")
//	m.terms = set.Counter("terms_total", "Categories taken over.")
//	m.failures = set.CounterVec("failures_total", "Steps that failed and are retried.", "step")
//	if err := set.Register(registerer); err != nil { ... }
//	defer set.Unregister()
//
// Values that must be read together, so that sums hold in every scrape, are declared in one [Set.Snapshot].
package metrics

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Set has the metrics of one instance of a role. It is not safe for concurrent use; the metrics are.
type Set struct {
	prefix     string
	collectors []prometheus.Collector
	registerer prometheus.Registerer
}

// NewSet returns an empty set whose metrics' names begin with prefix.
func NewSet(prefix string) *Set { return &Set{prefix: prefix} }

func add[C prometheus.Collector](s *Set, c C) C {
	s.collectors = append(s.collectors, c)
	return c
}

// Counter declares a counter.
func (s *Set) Counter(name, help string) prometheus.Counter {
	return add(s, prometheus.NewCounter(prometheus.CounterOpts{Name: s.prefix + name, Help: help}))
}

// CounterVec declares a counter with labels.
func (s *Set) CounterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return add(s, prometheus.NewCounterVec(prometheus.CounterOpts{Name: s.prefix + name, Help: help}, labels))
}

// CounterOf declares a counter with one label, and exports each of its known values from the start.
func (s *Set) CounterOf(name, help, label string, values ...string) *prometheus.CounterVec {
	v := s.CounterVec(name, help, label)
	for _, value := range values {
		v.WithLabelValues(value)
	}
	return v
}

// Gauge declares a gauge.
func (s *Set) Gauge(name, help string) prometheus.Gauge {
	return add(s, prometheus.NewGauge(prometheus.GaugeOpts{Name: s.prefix + name, Help: help}))
}

// GaugeVec declares a gauge with labels.
func (s *Set) GaugeVec(name, help string, labels ...string) *prometheus.GaugeVec {
	return add(s, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: s.prefix + name, Help: help}, labels))
}

// GaugeFunc declares a gauge whose value is the result of read at each scrape.
func (s *Set) GaugeFunc(name, help string, read func() float64) {
	add(s, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: s.prefix + name, Help: help}, read))
}

// CounterFunc declares a counter whose value is the result of read at each scrape.
func (s *Set) CounterFunc(name, help string, read func() float64) {
	add(s, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: s.prefix + name, Help: help}, read))
}

// Histogram declares a histogram.
func (s *Set) Histogram(name, help string, buckets []float64) prometheus.Histogram {
	return add(s, prometheus.NewHistogram(prometheus.HistogramOpts{Name: s.prefix + name, Help: help, Buckets: buckets}))
}

// HistogramVec declares a histogram with labels.
func (s *Set) HistogramVec(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return add(s, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: s.prefix + name, Help: help, Buckets: buckets}, labels))
}

// Snapshot returns a group to which metrics are added that one call reads together: read runs at each scrape and sends their
// values.
func (s *Set) Snapshot(read func(send Send)) *Snapshot {
	return add(s, &Snapshot{prefix: s.prefix, read: read})
}

// Register registers all metrics, or none if one of them can't be. Without a registerer it does nothing.
func (s *Set) Register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for i, c := range s.collectors {
		if err := r.Register(c); err != nil {
			for _, c := range s.collectors[:i] {
				r.Unregister(c)
			}
			return fmt.Errorf("register metrics of %s: %w", s.prefix, err)
		}
	}
	s.registerer = r
	return nil
}

// Unregister removes the metrics from their registry, if any.
func (s *Set) Unregister() {
	if s.registerer == nil {
		return
	}
	for _, c := range s.collectors {
		s.registerer.Unregister(c)
	}
	s.registerer = nil
}

// Snapshot is a group of metrics whose values are read together.
type Snapshot struct {
	prefix string
	descs  []*prometheus.Desc
	read   func(send Send)
}

// Value is one metric of a Snapshot.
type Value struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// Send passes the value of a metric with its label values to the scrape.
type Send func(v Value, value float64, labels ...string)

// Counter declares a counter of the snapshot.
func (s *Snapshot) Counter(name, help string, labels ...string) Value {
	return s.declare(prometheus.CounterValue, name, help, labels)
}

// Gauge declares a gauge of the snapshot.
func (s *Snapshot) Gauge(name, help string, labels ...string) Value {
	return s.declare(prometheus.GaugeValue, name, help, labels)
}

func (s *Snapshot) declare(kind prometheus.ValueType, name, help string, labels []string) Value {
	desc := prometheus.NewDesc(s.prefix+name, help, labels, nil)
	s.descs = append(s.descs, desc)
	return Value{desc: desc, kind: kind}
}

// Describe implements prometheus.Collector.
func (s *Snapshot) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range s.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Snapshot) Collect(ch chan<- prometheus.Metric) {
	s.read(func(v Value, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(v.desc, v.kind, value, labels...)
	})
}
