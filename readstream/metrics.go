package readstream

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
	"scribe/internal/role/admission"
)

// roleMetrics are the role's metrics.
type roleMetrics struct {
	set *metrics.Set

	streams prometheus.Gauge
	shards  prometheus.Gauge
	opened  prometheus.Counter
	refused *prometheus.CounterVec // by reason
	ended   *prometheus.CounterVec // by reason
	// notAdmitted counts streams that the gate refused, by cause.
	notAdmitted  *prometheus.CounterVec
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

func newMetrics(r prometheus.Registerer, s *Server) (*roleMetrics, error) {
	set := metrics.NewSet("scribe_readstream_")
	m := &roleMetrics{set: set}
	m.streams = set.Gauge("streams", "Open streams.")
	m.shards = set.Gauge("shards", "Shards that open streams follow, each stream counting its own.")
	m.opened = set.Counter("streams_opened_total", "Streams that were opened.")
	m.refused = set.CounterVec("streams_refused_total", "Streams that were refused, by reason.", "reason")
	m.notAdmitted = set.CounterOf("openings_refused_total", "Streams that were refused because too many are being opened (queue), or come too fast (rate), or for the sake of categories of higher priority (priority).", "cause",
		admission.CauseQueue, admission.CauseRate, admission.CausePriority)
	set.GaugeFunc("queue_length", "Streams that may be opened at once, as it is set by how long that takes.", func() float64 { return float64(s.gate.ReadState().Length) })
	set.GaugeFunc("queue_requests", "Streams that are being opened.", func() float64 { return float64(s.gate.ReadState().Inside) })
	set.GaugeFunc("opening_seconds", "How long it takes to open a stream, on average over a moment.", func() float64 { return s.gate.ReadState().Latency.Seconds() })
	m.ended = set.CounterVec("streams_ended_total", "Opened streams that ended, by reason; none for clients that went away.", "reason")
	m.evictions = set.CounterVec("evictions_total", "Streams that were sent away with their positions, by reason.", "reason")
	m.pointers = set.Counter("pointers_total", "Pointers sent.")
	m.filtered = set.Counter("filtered_pointers_total", "Pointers that were not sent since they are in the buckets of other members of a group.")
	m.payloadBytes = set.Counter("payload_bytes_total", "Bytes of decoded payload that the pointers sent stand for.")
	m.pointerBytes = set.Counter("pointer_bytes_total", "Bytes of the pointers sent.")
	m.heartbeats = set.Counter("heartbeats_total", "Heartbeats sent.")
	m.stalls = set.Counter("credit_stalls_total", "Times that a stream with pointers to send ran out of credits.")
	m.gaps = set.CounterVec("gaps_total", "Gaps sent, by reason.", "reason")
	m.lost = set.CounterVec("gap_pointers_total", "Pointers that the gaps sent stand for, by reason, without the gaps that a recovery of the metadata left.", "reason")
	m.reads = set.Counter("log_reads_total", "Reads of the metadata engine.")
	m.lateReads = set.Counter("late_reads_total", "Reads that streams went on without, for the time being.")
	m.engineErrors = set.CounterVec("log_errors_total", "Failed calls of the metadata engine, by call.", "call")
	m.returned = set.Counter("returned_bytes_total", "Bytes of records that streams gave back, since all held too many, and read again later.")
	m.pruned = set.Counter("pruned_pointers_total", "Pointers that were not sent since no row of their payloads can match the stream's filter.")
	m.prunedMessages = set.Counter("pruned_messages_total", "Messages in the payloads of pointers that were not sent for the stream's filter.")
	m.prunedBytes = set.Counter("pruned_payload_bytes_total", "Bytes of decoded payload that the pointers stand for that were not sent for the stream's filter.")
	m.badZones = set.Counter("bad_zone_maps_total", "Zone maps beside pointers that are damaged or of other pointers. They are not used.")
	set.GaugeFunc("buffered_bytes", "Bytes of records that streams hold.", func() float64 { return float64(s.budget.Used()) })
	set.GaugeFunc("subscriptions", "Subscriptions to the metadata engine, shared by streams.",
		func() float64 { return float64(s.hub.Stats().Subscriptions) })
	set.CounterFunc("looks_total", "Looks at all tails of a category, shared by streams.", func() float64 { return float64(s.hub.Stats().Looks) })
	var pending, lagging, waiting metrics.Value
	measured := set.Snapshot(func(send metrics.Send) {
		pointers, lag := s.measureLag()
		send(pending, float64(pointers))
		send(lagging, lag.Seconds())
		for of := waitsNews; of <= lastStanding; of++ {
			send(waiting, s.countWaiting(of), standingLabels[of])
		}
	})
	pending = measured.Gauge("pending_pointers", "Pointers that streams have not sent, each stream counting its own.")
	lagging = measured.Gauge("lag_seconds", "How long ago the oldest pointer was persisted that a stream has not sent.")
	waiting = measured.Gauge("waiting_streams", "Open streams that wait, by what for.", "for")
	if err := set.Register(r); err != nil {
		return nil, fmt.Errorf("readstream: %w", err)
	}
	return m, nil
}
