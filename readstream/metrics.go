package readstream

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	scribev1 "scribe/proto/scribe/v1"
)

// metrics are the role's metrics.
type metrics struct {
	registerer prometheus.Registerer
	all        []prometheus.Collector

	streams      prometheus.Gauge
	shards       prometheus.Gauge
	opened       prometheus.Counter
	refused      *prometheus.CounterVec // by reason
	ended        *prometheus.CounterVec // by reason
	evictions    *prometheus.CounterVec // by reason
	pointers     prometheus.Counter
	filtered     prometheus.Counter
	payloadBytes prometheus.Counter
	pointerBytes prometheus.Counter
	heartbeats   prometheus.Counter
	stalls       prometheus.Counter
	gaps         *prometheus.CounterVec // by reason
	lost         *prometheus.CounterVec // by reason
	reads        prometheus.Counter
	lateReads    prometheus.Counter
	engineErrors *prometheus.CounterVec // by call
	returned     prometheus.Counter

	pruned, prunedMessages, prunedBytes, badZones prometheus.Counter
}

const namespace, subsystem = "scribe", "readstream"

func newMetrics(r prometheus.Registerer, s *Server) (*metrics, error) {
	m := &metrics{registerer: r}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
		m.all = append(m.all, c)
		return c
	}
	vector := func(name, help, label string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, []string{label})
		m.all = append(m.all, c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
		m.all = append(m.all, g)
		return g
	}
	m.streams = gauge("streams", "Open streams.")
	m.shards = gauge("shards", "Shards that open streams follow, each stream counting its own.")
	m.opened = counter("streams_opened_total", "Streams that were opened.")
	m.refused = vector("streams_refused_total", "Streams that were refused, by reason.", "reason")
	m.ended = vector("streams_ended_total", "Opened streams that ended, by reason; none for clients that went away.", "reason")
	m.evictions = vector("evictions_total", "Streams that were sent away with their positions, by reason.", "reason")
	m.pointers = counter("pointers_total", "Pointers sent.")
	m.filtered = counter("filtered_pointers_total", "Pointers that were not sent since they are in the buckets of other members of a group.")
	m.payloadBytes = counter("payload_bytes_total", "Bytes of decoded payload that the pointers sent stand for.")
	m.pointerBytes = counter("pointer_bytes_total", "Bytes of the pointers sent.")
	m.heartbeats = counter("heartbeats_total", "Heartbeats sent.")
	m.stalls = counter("credit_stalls_total", "Times that a stream with pointers to send ran out of credits.")
	m.gaps = vector("gaps_total", "Gaps sent, by reason.", "reason")
	m.lost = vector("gap_pointers_total", "Pointers that the gaps sent stand for, by reason.", "reason")
	m.reads = counter("log_reads_total", "Reads of the metadata engine.")
	m.lateReads = counter("late_reads_total", "Reads that streams went on without, for the time being.")
	m.engineErrors = vector("log_errors_total", "Failed calls of the metadata engine, by call.", "call")
	m.returned = counter("returned_bytes_total", "Bytes of records that streams gave back, since all held too many, and read again later.")
	m.pruned = counter("pruned_pointers_total", "Pointers that were not sent since no row of their payloads can match the stream's filter.")
	m.prunedMessages = counter("pruned_messages_total", "Messages in the payloads of pointers that were not sent for the stream's filter.")
	m.prunedBytes = counter("pruned_payload_bytes_total", "Bytes of decoded payload that the pointers stand for that were not sent for the stream's filter.")
	m.badZones = counter("bad_zone_maps_total", "Zone maps beside pointers that are damaged or of other pointers. They are not used.")
	m.all = append(m.all, measured(s)...)
	if r == nil {
		return m, nil
	}
	for i, c := range m.all {
		if err := r.Register(c); err != nil {
			m.all = m.all[:i]
			m.close()
			return nil, errors.Join(errors.New("readstream: register metrics"), err)
		}
	}
	return m, nil
}

// measured are the metrics that are computed when they are collected.
func measured(s *Server) []prometheus.Collector {
	gauge := func(name, help string, labels prometheus.Labels, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, ConstLabels: labels,
		}, value)
	}
	all := []prometheus.Collector{
		gauge("buffered_bytes", "Bytes of records that streams hold.", nil, func() float64 { return float64(s.budget.Used()) }),
		gauge("subscriptions", "Subscriptions to the metadata engine, shared by streams.", nil,
			func() float64 { return float64(s.hub.Stats().Subscriptions) }),
		gauge("pending_pointers", "Pointers that streams have not sent, each stream counting its own.", nil, func() float64 {
			n, _ := s.measureLag()
			return float64(n)
		}),
		gauge("lag_seconds", "How long ago the oldest pointer was persisted that a stream has not sent.", nil, func() float64 {
			_, lag := s.measureLag()
			return lag.Seconds()
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "looks_total", Help: "Looks at all tails of a category, shared by streams.",
		}, func() float64 { return float64(s.hub.Stats().Looks) }),
	}
	for of := waitsNews; of <= lastStanding; of++ {
		all = append(all, gauge("waiting_streams", "Open streams that wait, by what for.", prometheus.Labels{"for": standingLabels[of]},
			func() float64 { return s.countWaiting(of) }))
	}
	return all
}

func (m *metrics) close() {
	if m.registerer == nil {
		return
	}
	for _, c := range m.all {
		m.registerer.Unregister(c)
	}
}

// label returns a reason as a label value: "trimmed" for REASON_TRIMMED.
func label(r scribev1.Reason) string { return reasonLabels[r] }

var reasonLabels = func() map[scribev1.Reason]string {
	const prefix = len("REASON_")
	out := map[scribev1.Reason]string{}
	for n, name := range scribev1.Reason_name {
		b := []byte(name[prefix:])
		for i, c := range b {
			if 'A' <= c && c <= 'Z' {
				b[i] = c + 'a' - 'A'
			}
		}
		out[scribev1.Reason(n)] = string(b)
	}
	return out
}()
