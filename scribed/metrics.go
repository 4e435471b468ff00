package scribed

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	scribev1 "scribe/proto/scribe/v1"
)

// amount counts frames and what is in them.
type amount struct{ frames, bytes, messages int64 }

func (a *amount) plus(b amount) {
	a.frames += b.frames
	a.bytes += b.bytes
	a.messages += b.messages
}

func (a amount) minus(b amount) amount {
	return amount{frames: a.frames - b.frames, bytes: a.bytes - b.bytes, messages: a.messages - b.messages}
}

func (f *frame) amount() amount {
	return amount{frames: 1, bytes: int64(len(f.bytes)), messages: int64(f.messages)}
}

// counts says what became of the frames that were accepted. At all times accepted = forwarded + failed + dropped + buffered.
type counts struct {
	accepted  amount
	forwarded amount
	// failed was not forwarded, and whoever waited for it was told; dropped was not forwarded, and nobody waited. By reason.
	failed, dropped map[string]amount
	// refused counts requests of which nothing, or not all, was accepted for lack of memory.
	refused int64
}

func (c *counts) fail(reason string, a amount) {
	sum := c.failed[reason]
	sum.plus(a)
	c.failed[reason] = sum
}

func (c *counts) drop(reason string, a amount) {
	sum := c.dropped[reason]
	sum.plus(a)
	c.dropped[reason] = sum
}

// buffered is what has no outcome yet.
func (c *counts) buffered() amount {
	sum := c.accepted.minus(c.forwarded)
	for _, a := range c.failed {
		sum = sum.minus(a)
	}
	for _, a := range c.dropped {
		sum = sum.minus(a)
	}
	return sum
}

func (c *counts) clone() counts {
	out := *c
	out.failed, out.dropped = maps.Clone(c.failed), maps.Clone(c.dropped)
	return out
}

// abandonedReason is the label of frames whose caller gave up before they were sent.
const abandonedReason = "abandoned"

func reasonLabel(r scribev1.Reason) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "REASON_"))
}

const namespace = "scribe_scribed_"

// metrics are those of one scribed. What counts frames is collected from one snapshot.
type metrics struct {
	s *Scribed

	requests prometheus.Counter
	failures prometheus.Counter
	bytes    prometheus.Counter
	seconds  prometheus.Histogram

	accepted, forwarded, buffered [3]*prometheus.Desc // frames, bytes, messages
	failed, dropped               [3]*prometheus.Desc
	refused                       *prometheus.Desc
	memory                        *prometheus.Desc
	memoryLimit                   *prometheus.Desc
	categories                    *prometheus.Desc
}

func newMetrics(s *Scribed) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: namespace + name, Help: help})
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(namespace+name, help, labels, nil)
	}
	three := func(name, help string, labels ...string) (d [3]*prometheus.Desc) {
		for i, unit := range []string{"frames", "bytes", "messages"} {
			d[i] = desc(fmt.Sprintf(name, unit), strings.ToUpper(unit[:1])+unit[1:]+" "+help, labels...)
		}
		return d
	}
	return &metrics{
		s:        s,
		requests: counter("upstream_requests_total", "Requests to the upstream."),
		failures: counter("upstream_failures_total", "Requests to the upstream that failed as a whole."),
		bytes:    counter("upstream_bytes_total", "Bytes of frames in requests to the upstream."),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: namespace + "upstream_seconds", Help: "Time until the upstream answers.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 20),
		}),
		accepted:    three("accepted_%s_total", "taken into memory."),
		forwarded:   three("forwarded_%s_total", "that the upstream took."),
		buffered:    three("buffered_%s", "accepted and without an outcome yet."),
		failed:      three("failed_%s_total", "not forwarded, of which the caller was told, by reason.", "reason"),
		dropped:     three("dropped_%s_total", "not forwarded, for which nobody waited, by reason.", "reason"),
		refused:     desc("refused_total", "Times that a category's frames in a request were refused for lack of memory."),
		memory:      desc("memory_bytes", "Bytes charged, of frames in the queue and of bodies being read.", "what"),
		memoryLimit: desc("memory_limit_bytes", "Bytes that may be charged.", "what"),
		categories:  desc("buffered_categories", "Categories with frames in memory."),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.failures, m.bytes, m.seconds, m}
}

func (m *metrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	var errs []error
	for _, c := range m.collectors() {
		if err := r.Register(c); err != nil {
			errs = append(errs, fmt.Errorf("scribed: register metrics: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (m *metrics) unregister(r prometheus.Registerer) {
	if r == nil {
		return
	}
	for _, c := range m.collectors() {
		r.Unregister(c)
	}
}

func (m *metrics) sent(b *batch, d time.Duration) {
	m.requests.Inc()
	m.bytes.Add(float64(b.bytes))
	m.seconds.Observe(d.Seconds())
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, three := range [][3]*prometheus.Desc{m.accepted, m.forwarded, m.buffered, m.failed, m.dropped} {
		for _, d := range three {
			ch <- d
		}
	}
	for _, d := range []*prometheus.Desc{m.refused, m.memory, m.memoryLimit, m.categories} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.s
	s.mu.Lock()
	c := s.mu.counts.clone()
	used, bodies, categories := s.mu.queue.used, s.mu.bodies, len(s.mu.queue.lanes)
	s.mu.Unlock()

	send := func(d *prometheus.Desc, kind prometheus.ValueType, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, float64(v), labels...)
	}
	three := func(d [3]*prometheus.Desc, kind prometheus.ValueType, a amount, labels ...string) {
		send(d[0], kind, a.frames, labels...)
		send(d[1], kind, a.bytes, labels...)
		send(d[2], kind, a.messages, labels...)
	}
	three(m.accepted, prometheus.CounterValue, c.accepted)
	three(m.forwarded, prometheus.CounterValue, c.forwarded)
	three(m.buffered, prometheus.GaugeValue, c.buffered())
	for reason, a := range c.failed {
		three(m.failed, prometheus.CounterValue, a, reason)
	}
	for reason, a := range c.dropped {
		three(m.dropped, prometheus.CounterValue, a, reason)
	}
	send(m.refused, prometheus.CounterValue, c.refused)
	send(m.memory, prometheus.GaugeValue, used, "frames")
	send(m.memory, prometheus.GaugeValue, bodies, "bodies")
	send(m.memoryLimit, prometheus.GaugeValue, s.cfg.MemoryBytes, "frames")
	send(m.memoryLimit, prometheus.GaugeValue, s.cfg.MemoryBytes, "bodies")
	send(m.categories, prometheus.GaugeValue, int64(categories))
}
