package writeproxy

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metricset"
	"scribe/internal/role/budget"
	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

const namespace = "scribe_writeproxy_"

// metrics are those of one proxy. What counts frames is collected from one snapshot.
type metrics struct {
	p   *Proxy
	set *metricset.Set

	refused   *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	submits   prometheus.Counter
	fallbacks prometheus.Counter
	created   prometheus.Counter
	renewed   prometheus.Counter
	probes    *prometheus.CounterVec
	overQuota *prometheus.CounterVec
	waits     prometheus.Histogram

	received, acknowledged, inFlight, failed, dropped [3]*prometheus.Desc // frames, bytes, messages

	memory, memoryLimit           *prometheus.Desc
	batchers, open, light         *prometheus.Desc
	weightChanges, trips          *prometheus.Desc
	quotaCategories, quotaProxies *prometheus.Desc
	shards, splitShards           *prometheus.Desc
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
		submits:   counter("submits_total", "Requests to batchers."),
		fallbacks: counter("fallbacks_total", "Requests to batchers that went to a fallback."),
		created:   counter("created_categories_total", "Categories created on first use."),
		renewed:   counter("renewed_frames_total", "Frames sent again since their category's logs were sealed, after asking for the category again."),
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: namespace + "probes_total", Help: "Probes of batchers that were left alone, by result: alive or dead.",
		}, []string{"result"}),
		overQuota: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: namespace + "over_quota_bytes_total", Help: "Bytes of frames over their category's quota, by what became of them: refused, delayed or left_out.",
		}, []string{"outcome"}),
		waits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: namespace + "throttle_seconds", Help: "Time that frames waited for their category's quota.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}),
		received:     three("received_%s_total", "in requests that were admitted."),
		acknowledged: three("acknowledged_%s_total", "that reached the level asked for."),
		failed:       three("failed_%s_total", "that did not reach the level asked for, by reason.", "reason"),
		dropped:      three("dropped_%s_total", "left out on purpose, by reason; sampled: beyond a quota.", "reason"),
		inFlight:     three("in_flight_%s", "without an outcome yet."),

		memory:          desc("memory_bytes", "Bytes charged, of bodies being read, of requests being written, and of those that wait for a quota.", "what"),
		memoryLimit:     desc("memory_limit_bytes", "Bytes that may be charged.", "what"),
		batchers:        desc("batchers", "Batchers known."),
		open:            desc("batchers_left_alone", "Batchers that do not answer and are probed."),
		light:           desc("batchers_lightened", "Batchers that get less than their share, since they are full or slow."),
		weightChanges:   desc("batcher_weight_changes_total", "Changes of batchers' weights."),
		trips:           desc("batcher_trips_total", "Times that a batcher was found not to answer."),
		quotaCategories: desc("quota_categories", "Categories with a quota that wrote lately."),
		quotaProxies:    desc("quota_proxies", "Write proxies that share the quotas."),
		shards:          desc("tracked_shards", "Logical shards whose traffic is remembered."),
		splitShards:     desc("split_shards", "Logical shards with more than one micro-shard."),
	}
}

func (m *metrics) register(r prometheus.Registerer) (err error) {
	m.set, err = metricset.Register(r, "writeproxy",
		m.refused, m.seconds, m.submits, m.fallbacks, m.created, m.renewed, m.probes, m.overQuota, m.waits, m)
	return err
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, three := range [][3]*prometheus.Desc{m.received, m.acknowledged, m.failed, m.dropped, m.inFlight} {
		for _, d := range three {
			ch <- d
		}
	}
	for _, d := range []*prometheus.Desc{
		m.memory, m.memoryLimit, m.batchers, m.open, m.light, m.weightChanges, m.trips, m.quotaCategories, m.quotaProxies, m.shards, m.splitShards,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	p := m.p
	c := p.ledger.counts()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, float64(v), labels...)
	}
	three := func(d [3]*prometheus.Desc, kind prometheus.ValueType, a request.Amount, labels ...string) {
		send(d[0], kind, a.Frames, labels...)
		send(d[1], kind, a.Bytes, labels...)
		send(d[2], kind, a.Messages, labels...)
	}
	three(m.received, prometheus.CounterValue, c.received)
	three(m.acknowledged, prometheus.CounterValue, c.acknowledged)
	three(m.dropped, prometheus.CounterValue, c.sampledOut, "sampled")
	three(m.inFlight, prometheus.GaugeValue, c.inFlight())
	for reason, a := range c.failed {
		three(m.failed, prometheus.CounterValue, a, rpc.ReasonLabel(reason))
	}
	for what, b := range map[string]*budget.Budget{"bodies": p.bodies, "writes": p.writes, "throttled": p.quotas.waiting} {
		send(m.memory, prometheus.GaugeValue, b.Used(), what)
		send(m.memoryLimit, prometheus.GaugeValue, b.Limit(), what)
	}
	open, light := p.fleet.degraded()
	known, split := p.traffic.counts()
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	send(m.batchers, gauge, int64(len(p.deps.Batchers())))
	send(m.open, gauge, int64(open))
	send(m.light, gauge, int64(light))
	send(m.weightChanges, counter, p.fleet.changes.Load())
	send(m.trips, counter, p.fleet.trips.Load())
	send(m.quotaCategories, gauge, int64(p.quotas.tracked()))
	send(m.quotaProxies, gauge, int64(max(p.quotas.proxies(), 1)))
	send(m.shards, gauge, int64(known))
	send(m.splitShards, gauge, int64(split))
}

func ackLabel(a scribev1.AckLevel) string {
	return strings.ToLower(strings.TrimPrefix(a.String(), "ACK_LEVEL_"))
}
