package scribed

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/spool"
)

// frameAmount counts frames and what is in them.
type frameAmount struct{ frames, bytes, messages int64 }

func amountOf(a spool.Amount) frameAmount {
	return frameAmount{frames: a.Records, bytes: a.Bytes, messages: a.Messages}
}

func (a *frameAmount) plus(b frameAmount) {
	a.frames += b.frames
	a.bytes += b.bytes
	a.messages += b.messages
}

func (a frameAmount) minus(b frameAmount) frameAmount {
	return frameAmount{frames: a.frames - b.frames, bytes: a.bytes - b.bytes, messages: a.messages - b.messages}
}

// outcomeCounts says what became of the frames that were accepted. At all times
// accepted + recovered = forwarded + failed + dropped + memory + the spool's backlog.
type outcomeCounts struct {
	accepted frameAmount
	// recovered is what the spool held of an earlier run.
	recovered frameAmount
	forwarded frameAmount
	// failed was not forwarded, and whoever waited for it was told; dropped was not forwarded, and nobody waited. By reason.
	failed, dropped map[string]frameAmount
	// memory is what is in memory, also if it is in the spool besides.
	memory frameAmount
	// refused counts entries of requests that were not accepted for lack of room.
	refused int64
}

func (c *outcomeCounts) addFailed(reason string, a frameAmount) {
	sum := c.failed[reason]
	sum.plus(a)
	c.failed[reason] = sum
}

func (c *outcomeCounts) addDropped(reason string, a frameAmount) {
	sum := c.dropped[reason]
	sum.plus(a)
	c.dropped[reason] = sum
}

// findImbalance is what is missing in the balance with what is in the spool only: always nothing.
func (c *outcomeCounts) findImbalance(backlog frameAmount) frameAmount {
	sum := c.accepted
	sum.plus(c.recovered)
	for _, a := range []frameAmount{c.forwarded, c.memory, backlog} {
		sum = sum.minus(a)
	}
	for _, a := range c.failed {
		sum = sum.minus(a)
	}
	for _, a := range c.dropped {
		sum = sum.minus(a)
	}
	return sum
}

func (c *outcomeCounts) clone() outcomeCounts {
	out := *c
	out.failed, out.dropped = maps.Clone(c.failed), maps.Clone(c.dropped)
	return out
}

// Labels of outcomes that are no reason of an RPC.
const (
	abandonedReason = "abandoned" // the caller gave up before it was sent
	fullReason      = "full"      // dropped as the category's rule says
	expiredReason   = "expired"   // older than the category's rule allows
)

func reasonLabel(r scribev1.Reason) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "REASON_"))
}

const namespace = "scribe_scribed_"

// agentMetrics are those of one scribed. What counts frames is collected from one snapshot.
type agentMetrics struct {
	s *Scribed

	requests      prometheus.Counter
	failures      prometheus.Counter
	bytes         prometheus.Counter
	seconds       prometheus.Histogram
	backfill      prometheus.Counter
	lettersFailed prometheus.Counter

	accepted, recovered, forwarded, buffered [3]*prometheus.Desc // frames, bytes, messages
	failed, dropped                          [3]*prometheus.Desc
	spoolBytes, spoolLimit, oldest, away     *prometheus.Desc
	blocked, blockedBytes                    *prometheus.Desc
	letters, lettersRemoved, letterBytes     *prometheus.Desc
	refused                                  *prometheus.Desc
	reports, untold                          *prometheus.Desc
	memory                                   *prometheus.Desc
	memoryLimit                              *prometheus.Desc
	categories                               *prometheus.Desc
}

func newMetrics(s *Scribed) *agentMetrics {
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
	return &agentMetrics{
		s:             s,
		requests:      counter("upstream_requests_total", "Requests to the upstream."),
		failures:      counter("upstream_failures_total", "Requests to the upstream that failed as a whole."),
		bytes:         counter("upstream_bytes_total", "Bytes of frames in requests to the upstream."),
		backfill:      counter("backfill_bytes_total", "Bytes of frames in requests to the upstream that came from the spool's backlog."),
		lettersFailed: counter("dead_letters_failed_total", "Frames that could not be written to the dead letters."),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: namespace + "upstream_seconds", Help: "Time until the upstream answers.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 20),
		}),
		accepted:    three("accepted_%s_total", "taken into memory or into the spool."),
		recovered:   three("recovered_%s_total", "that the spool held at the start."),
		forwarded:   three("forwarded_%s_total", "that the upstream took."),
		buffered:    three("buffered_%s", "without an outcome yet: in memory, or in the spool only.", "where"),
		failed:      three("failed_%s_total", "not forwarded, of which the caller was told, by reason.", "reason"),
		dropped:     three("dropped_%s_total", "not forwarded, for which nobody waited, by reason.", "reason"),
		refused:     desc("refused_total", "Times that a category's frames in a request were refused for lack of room."),
		memory:      desc("memory_bytes", "Bytes charged, of frames in the queue and of bodies being read.", "what"),
		memoryLimit: desc("memory_limit_bytes", "Bytes that may be charged.", "what"),
		categories:  desc("buffered_categories", "Categories with frames in memory or in the spool."),

		spoolBytes:     desc("spool_charged_bytes", "Bytes in the spool, copies of what is in memory included."),
		spoolLimit:     desc("spool_charge_limit_bytes", "Bytes that the spool may have."),
		oldest:         desc("oldest_seconds", "Age of the oldest frame without an outcome, about a second ago."),
		away:           desc("upstream_away", "1 while requests to the upstream fail."),
		blocked:        desc("blocked_calls", "Calls that wait for room."),
		blockedBytes:   desc("blocked_bytes", "Bytes of frames of calls that wait for room."),
		reports:        desc("loss_reports_total", "Reports of dropped messages that were handed on to the readers of their category."),
		untold:         desc("losses_untold_messages_total", "Dropped messages of which no reader is told: of too many categories at once, or of one that takes nothing."),
		letters:        desc("dead_letters_total", "Frames written to the dead letters."),
		lettersRemoved: desc("dead_letter_files_removed_total", "Files of dead letters removed to make room."),
		letterBytes:    desc("dead_letter_bytes", "Bytes of the dead letters."),
	}
}

func (m *agentMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.failures, m.bytes, m.seconds, m.backfill, m.lettersFailed, m}
}

func (m *agentMetrics) register(r prometheus.Registerer) error {
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

func (m *agentMetrics) unregister(r prometheus.Registerer) {
	if r == nil {
		return
	}
	for _, c := range m.collectors() {
		r.Unregister(c)
	}
}

func (m *agentMetrics) countRequest(b *upstreamBatch, d time.Duration) {
	m.requests.Inc()
	m.bytes.Add(float64(b.bytes))
	m.seconds.Observe(d.Seconds())
	if b.backfill {
		m.backfill.Add(float64(b.bytes))
	}
}

// Describe implements prometheus.Collector.
func (m *agentMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, three := range [][3]*prometheus.Desc{m.accepted, m.recovered, m.forwarded, m.buffered, m.failed, m.dropped} {
		for _, d := range three {
			ch <- d
		}
	}
	for _, d := range []*prometheus.Desc{
		m.refused, m.memory, m.memoryLimit, m.categories, m.spoolBytes, m.spoolLimit, m.oldest, m.away,
		m.blocked, m.blockedBytes, m.reports, m.untold, m.letters, m.lettersRemoved, m.letterBytes,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *agentMetrics) Collect(ch chan<- prometheus.Metric) {
	s := m.s
	s.mu.Lock()
	q := &s.mu.queue
	backlog := s.readBacklog()
	c := q.counts.clone()
	var told, untold int64
	if q.losses != nil {
		told, untold = q.losses.Counts()
	}
	used, bodies, categories := q.used, s.mu.bodies, len(q.queues)
	blocked, blockedBytes, away, oldest := int64(q.blockedCalls), q.blockedBytes, q.isUnavailable(), s.mu.oldest
	s.mu.Unlock()

	send := func(d *prometheus.Desc, kind prometheus.ValueType, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, float64(v), labels...)
	}
	three := func(d [3]*prometheus.Desc, kind prometheus.ValueType, a frameAmount, labels ...string) {
		send(d[0], kind, a.frames, labels...)
		send(d[1], kind, a.bytes, labels...)
		send(d[2], kind, a.messages, labels...)
	}
	three(m.accepted, prometheus.CounterValue, c.accepted)
	three(m.recovered, prometheus.CounterValue, c.recovered)
	three(m.forwarded, prometheus.CounterValue, c.forwarded)
	three(m.buffered, prometheus.GaugeValue, c.memory, "memory")
	three(m.buffered, prometheus.GaugeValue, backlog, "spool")
	for reason, a := range c.failed {
		three(m.failed, prometheus.CounterValue, a, reason)
	}
	for reason, a := range c.dropped {
		three(m.dropped, prometheus.CounterValue, a, reason)
	}
	send(m.refused, prometheus.CounterValue, c.refused)
	send(m.reports, prometheus.CounterValue, told)
	send(m.untold, prometheus.CounterValue, untold)
	send(m.memory, prometheus.GaugeValue, used, "frames")
	send(m.memory, prometheus.GaugeValue, bodies, "bodies")
	send(m.memoryLimit, prometheus.GaugeValue, s.cfg.MemoryBytes, "frames")
	send(m.memoryLimit, prometheus.GaugeValue, s.cfg.MemoryBytes, "bodies")
	send(m.categories, prometheus.GaugeValue, int64(categories))
	send(m.blocked, prometheus.GaugeValue, blocked)
	send(m.blockedBytes, prometheus.GaugeValue, blockedBytes)
	isAway := int64(0)
	if away {
		isAway = 1
	}
	send(m.away, prometheus.GaugeValue, isAway)
	if s.spool != nil {
		age := 0.0
		if !oldest.IsZero() {
			age = max(s.now().Sub(oldest).Seconds(), 0)
		}
		ch <- prometheus.MustNewConstMetric(m.oldest, prometheus.GaugeValue, age)
		_, held := s.spool.Held("")
		send(m.spoolBytes, prometheus.GaugeValue, spoolCharge(held))
		send(m.spoolLimit, prometheus.GaugeValue, s.cfg.Spool.MaxBytes)
	}
	if s.dead != nil {
		t := s.dead.Totals()
		send(m.letters, prometheus.CounterValue, t.Letters)
		send(m.lettersRemoved, prometheus.CounterValue, t.RemovedFiles)
		send(m.letterBytes, prometheus.GaugeValue, t.Bytes)
	}
}
