package writeproxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
	"scribe/internal/role/admission"
	"scribe/internal/role/budget"
	"scribe/internal/role/request"
)

// proxyMetrics are the metrics of one proxy. Counts of frames come from one snapshot.
type proxyMetrics struct {
	set *metrics.Set

	refused   *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	submits   prometheus.Counter
	fallbacks prometheus.Counter
	created   prometheus.Counter
	renewed   prometheus.Counter
	placed    prometheus.Counter
	probes    *prometheus.CounterVec
	overQuota *prometheus.CounterVec
	shed      prometheus.Counter
	// notAdmitted counts bytes that the gate refused, by cause.
	notAdmitted *prometheus.CounterVec
	waits       prometheus.Histogram

	received, acknowledged, inFlight, failed, dropped request.AmountMetrics
	memory, memoryLimit                               metrics.Value
}

func newMetrics(p *Proxy) *proxyMetrics {
	set := metrics.NewSet("scribe_writeproxy_")
	m := &proxyMetrics{
		set:       set,
		refused:   set.CounterVec("refused_requests_total", "Requests refused as a whole, by reason.", "reason"),
		seconds:   set.HistogramVec("write_seconds", "Time from a request's admission to its answer, by acknowledgement level.", prometheus.ExponentialBuckets(0.0001, 2, 20), "ack"),
		submits:   set.Counter("submits_total", "Requests to batchers."),
		fallbacks: set.Counter("fallbacks_total", "Requests to batchers that went to a fallback."),
		created:   set.Counter("created_categories_total", "Categories created on first use."),
		renewed:   set.Counter("renewed_frames_total", "Frames sent again because their category's logs were sealed, after the category was resolved again."),
		placed:    set.Counter("placed_messages_total", "Messages that the proxy placed in shards by key or field, because their writer had not."),
		probes:    set.CounterVec("probes_total", "Probes of batchers that get no frames, by result: alive or dead.", "result"),
		overQuota: set.CounterVec("over_quota_bytes_total", "Bytes of frames over a quota, by what became of them, refused, delayed or left_out, and what the quota is of: category, prefix or owner.", "outcome", "quota"),
		shed:      set.Counter("shed_bytes_total", "Bytes of frames refused because memory is short, for the sake of categories of higher priority."),
		waits:     set.Histogram("throttle_seconds", "Time that frames waited for a quota.", prometheus.ExponentialBuckets(0.001, 2, 16)),
	}
	m.notAdmitted = set.CounterOf("not_admitted_bytes_total", "Bytes of frames refused because too many requests wait for batchers (queue), or come too fast (rate), or for the sake of categories of higher priority (priority).", "cause",
		admission.CauseQueue, admission.CauseRate, admission.CausePriority)
	set.GaugeFunc("answer_seconds", "How long batchers take to answer, on average over a moment.", func() float64 { return p.gate.ReadState().Latency.Seconds() })
	gauge := func(name, help string, read func() int) {
		set.GaugeFunc(name, help, func() float64 { return float64(read()) })
	}
	gauge("queue_length", "Requests that may wait for batchers at once, as it is set by how long they take to answer.", func() int { return p.gate.ReadState().Length })
	gauge("queue_requests", "Requests that wait for batchers.", func() int { return p.gate.ReadState().Inside })
	gauge("batchers", "Batchers known.", func() int { return len(p.deps.Batchers()) })
	gauge("batchers_left_alone", "Batchers that do not answer and are probed.", func() int { open, _ := p.fleet.countDegraded(); return open })
	gauge("batchers_lightened", "Batchers that get less than their share because they are full or slow.", func() int { _, light := p.fleet.countDegraded(); return light })
	gauge("quota_categories", "Quotas of categories and tenants that were used lately.", func() int { known, _ := p.quotas.CountQuotas(); return known })
	gauge("quota_leases", "Quotas of which the proxy leases more than an equal share, since the other proxies use less.", func() int { _, leased := p.quotas.CountQuotas(); return leased })
	gauge("quota_proxies", "Write proxies that share the quotas.", p.quotas.CountSharers)
	gauge("tracked_shards", "Logical shards whose traffic is remembered.", func() int { known, _ := p.traffic.countShards(); return known })
	gauge("split_shards", "Logical shards with more than one micro-shard.", func() int { _, split := p.traffic.countShards(); return split })
	set.CounterFunc("batcher_weight_changes_total", "Changes of batchers' weights.", func() float64 { return float64(p.fleet.changes.Load()) })
	set.CounterFunc("batcher_trips_total", "Times that a batcher was found not to answer.", func() float64 { return float64(p.fleet.trips.Load()) })

	values := set.Snapshot(func(send metrics.Send) { m.collect(p, send) })
	m.received = request.DeclareAmount(values.Counter, "received_%s_total", "in requests that were admitted.")
	m.acknowledged = request.DeclareAmount(values.Counter, "acknowledged_%s_total", "that reached the level asked for.")
	m.failed = request.DeclareAmount(values.Counter, "failed_%s_total", "that did not reach the level asked for, by reason.", "reason")
	m.dropped = request.DeclareAmount(values.Counter, "dropped_%s_total", "left out on purpose, by reason; sampled: beyond a quota.", "reason")
	m.inFlight = request.DeclareAmount(values.Gauge, "in_flight_%s", "without an outcome yet.")
	m.memory = values.Gauge("memory_bytes", "Bytes charged, of bodies being read, of requests being written, and of those that wait for a quota.", "what")
	m.memoryLimit = values.Gauge("memory_limit_bytes", "Bytes that may be charged.", "what")
	return m
}

func (m *proxyMetrics) collect(p *Proxy, send metrics.Send) {
	c := p.ledger.readCounts()
	m.received.Send(send, c.received)
	m.acknowledged.Send(send, c.acknowledged)
	m.dropped.Send(send, c.sampledOut, "sampled")
	m.inFlight.Send(send, c.inFlight())
	for reason, a := range c.failed {
		m.failed.Send(send, a, reason)
	}
	for what, b := range map[string]*budget.Budget{"bodies": p.bodies, "writes": p.writes, "throttled": p.quotas.Waiting} {
		send(m.memory, float64(b.Used()), what)
		send(m.memoryLimit, float64(b.Limit()), what)
	}
}
