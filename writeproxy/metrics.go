package writeproxy

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/rpc"
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

// counts says what became of the frames that were received. At all times received = acknowledged + failed + in flight. Requests
// that were refused as a whole are not in it.
type counts struct {
	received     amount
	acknowledged amount
	failed       map[scribev1.Reason]amount
}

// inFlight is what has no outcome yet.
func (c *counts) inFlight() amount {
	sum := c.received.minus(c.acknowledged)
	for _, a := range c.failed {
		sum = sum.minus(a)
	}
	return sum
}

func (it *item) amount() amount {
	return amount{frames: 1, bytes: int64(len(it.bytes)), messages: int64(it.messages)}
}

// received counts the frames of a request.
func (p *Proxy) received(items []item) {
	var sum amount
	for i := range items {
		sum.plus(items[i].amount())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.counts.received.plus(sum)
}

// answered counts what became of them.
func (p *Proxy) answered(items []item) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range items {
		it := &items[i]
		if it.result == nil { // a bug, which must not be taken for an acknowledgement
			it.result = &scribev1.FrameResult{Error: rpc.Info(errNoResult)}
		}
		if it.result.GetError() == nil {
			p.mu.counts.acknowledged.plus(it.amount())
			continue
		}
		reason := it.result.GetError().GetReason()
		sum := p.mu.counts.failed[reason]
		sum.plus(it.amount())
		p.mu.counts.failed[reason] = sum
	}
}

const namespace = "scribe_writeproxy_"

// metrics are those of one proxy. What counts frames is collected from one snapshot.
type metrics struct {
	p *Proxy

	refused   *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	submits   prometheus.Counter
	fallbacks prometheus.Counter
	created   prometheus.Counter

	received, acknowledged, inFlight, failed [3]*prometheus.Desc // frames, bytes, messages
	memory                                   *prometheus.Desc
	memoryLimit                              *prometheus.Desc
	batchers                                 *prometheus.Desc
}

func newMetrics(p *Proxy) *metrics {
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
		p: p,
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: namespace + "refused_requests_total", Help: "Requests refused as a whole, by reason.",
		}, []string{"reason"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: namespace + "write_seconds", Help: "Time from a request's admission to its answer, by acknowledgement level.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 20),
		}, []string{"ack"}),
		submits:      counter("submits_total", "Requests to batchers."),
		fallbacks:    counter("fallbacks_total", "Requests to batchers that went to a fallback."),
		created:      counter("created_categories_total", "Categories created on first use."),
		received:     three("received_%s_total", "in requests that were admitted."),
		acknowledged: three("acknowledged_%s_total", "that reached the level asked for."),
		failed:       three("failed_%s_total", "that did not reach the level asked for, by reason.", "reason"),
		inFlight:     three("in_flight_%s", "without an outcome yet."),
		memory:       desc("memory_bytes", "Bytes charged, of bodies being read and of requests being written.", "what"),
		memoryLimit:  desc("memory_limit_bytes", "Bytes that may be charged.", "what"),
		batchers:     desc("batchers", "Batchers known."),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.refused, m.seconds, m.submits, m.fallbacks, m.created, m}
}

func (m *metrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	var errs []error
	for _, c := range m.collectors() {
		if err := r.Register(c); err != nil {
			errs = append(errs, fmt.Errorf("writeproxy: register metrics: %w", err))
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

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, three := range [][3]*prometheus.Desc{m.received, m.acknowledged, m.failed, m.inFlight} {
		for _, d := range three {
			ch <- d
		}
	}
	ch <- m.memory
	ch <- m.memoryLimit
	ch <- m.batchers
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	p := m.p
	p.mu.Lock()
	c := p.mu.counts
	c.failed = maps.Clone(c.failed)
	p.mu.Unlock()

	send := func(d *prometheus.Desc, kind prometheus.ValueType, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, float64(v), labels...)
	}
	three := func(d [3]*prometheus.Desc, kind prometheus.ValueType, a amount, labels ...string) {
		send(d[0], kind, a.frames, labels...)
		send(d[1], kind, a.bytes, labels...)
		send(d[2], kind, a.messages, labels...)
	}
	three(m.received, prometheus.CounterValue, c.received)
	three(m.acknowledged, prometheus.CounterValue, c.acknowledged)
	three(m.inFlight, prometheus.GaugeValue, c.inFlight())
	for reason, a := range c.failed {
		three(m.failed, prometheus.CounterValue, a, reasonLabel(reason))
	}
	for what, mem := range map[string]*memory{"bodies": &p.bodies, "writes": &p.writes} {
		send(m.memory, prometheus.GaugeValue, mem.used.Load(), what)
		send(m.memoryLimit, prometheus.GaugeValue, mem.limit, what)
	}
	send(m.batchers, prometheus.GaugeValue, int64(len(p.deps.Batchers())))
}

func reasonLabel(r scribev1.Reason) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "REASON_"))
}

func ackLabel(a scribev1.AckLevel) string {
	return strings.ToLower(strings.TrimPrefix(a.String(), "ACK_LEVEL_"))
}
