package scribed

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
	"scribe/internal/role/request"
	"scribe/scribed/spool"
)

func amountOf(a spool.Amount) request.Amount {
	return request.Amount{Frames: a.Records, Bytes: a.Bytes, Messages: a.Messages}
}

// outcomeCounts counts accepted frames by their outcome. At all times accepted + recovered = forwarded + failed + dropped +
// memory + the spool's backlog.
type outcomeCounts struct {
	accepted request.Amount
	// recovered counts the frames that the spool held from an earlier run.
	recovered request.Amount
	forwarded request.Amount
	// failed and dropped count frames that were not forwarded, by reason: failed with a waiting caller, which was told; dropped
	// without one.
	failed, dropped map[string]request.Amount
	// memory counts the frames in memory, also those that are in the spool as well.
	memory request.Amount
	// refused counts entries of requests that were not accepted for lack of capacity.
	refused int64
	// early counts frames that came out of order at the upstream.
	early int64
}

func (c *outcomeCounts) addFailed(reason string, a request.Amount) {
	c.failed[reason] = c.failed[reason].Plus(a)
}

func (c *outcomeCounts) addDropped(reason string, a request.Amount) {
	c.dropped[reason] = c.dropped[reason].Plus(a)
}

// Labels of outcomes that are not RPC reasons.
const (
	abandonedReason = "abandoned" // the caller returned before it was sent
	fullReason      = "full"      // dropped as the category's rule says
	expiredReason   = "expired"   // older than the category's rule allows
)

// agentMetrics are the metrics of one scribed. The frame counts are read together, so that the balance holds in every scrape.
type agentMetrics struct {
	set *metrics.Set

	requests, failures, following, bytes, backfill, lettersFailed prometheus.Counter
	seconds                                                       prometheus.Histogram
}

func newMetrics(s *Scribed) *agentMetrics {
	set := metrics.NewSet("scribe_scribed_")
	m := &agentMetrics{
		set:           set,
		requests:      set.Counter("upstream_requests_total", "Requests to the upstream."),
		failures:      set.Counter("upstream_failures_total", "Requests to the upstream that failed as a whole."),
		following:     set.Counter("upstream_following_total", "Requests to the upstream that were sent while others with some of their streams had no answer."),
		bytes:         set.Counter("upstream_bytes_total", "Bytes of frames in requests to the upstream."),
		backfill:      set.Counter("backfill_bytes_total", "Bytes of backlog frames in requests to the upstream."),
		lettersFailed: set.Counter("dead_letters_failed_total", "Frames that could not be written to the dead letters."),
		seconds:       set.Histogram("upstream_seconds", "Time until the upstream answers.", prometheus.ExponentialBuckets(0.0001, 2, 20)),
	}
	var read func(metrics.Send)
	v := set.Snapshot(func(send metrics.Send) { read(send) })
	var (
		accepted     = request.DeclareAmount(v.Counter, "accepted_%s_total", "taken into memory or into the spool.")
		recovered    = request.DeclareAmount(v.Counter, "recovered_%s_total", "that the spool held at the start.")
		forwarded    = request.DeclareAmount(v.Counter, "forwarded_%s_total", "that the upstream took.")
		buffered     = request.DeclareAmount(v.Gauge, "buffered_%s", "without an outcome yet: in memory, or in the spool only.", "where")
		failed       = request.DeclareAmount(v.Counter, "failed_%s_total", "not forwarded, reported to the caller, by reason.", "reason")
		dropped      = request.DeclareAmount(v.Counter, "dropped_%s_total", "not forwarded, without a waiting caller, by reason.", "reason")
		refused      = v.Counter("refused_total", "Times that a category's frames in a request were refused for lack of capacity.")
		memory       = v.Gauge("memory_bytes", "Bytes charged for queued frames and for request bodies being read.", "what")
		memoryLimit  = v.Gauge("memory_limit_bytes", "Limits of memory_bytes.", "what")
		categories   = v.Gauge("buffered_categories", "Categories with frames in memory or in the spool.")
		sending      = v.Gauge("upstream_in_flight_bytes", "Bytes of frames in requests to the upstream that have no answer, those of waiting callers with requests of their own not counted.")
		early        = v.Counter("upstream_out_of_order_total", "Frames that the upstream refused since those before them, in other requests, had not been stored.")
		unavailable  = v.Gauge("upstream_away", "1 while requests to the upstream fail.")
		blocked      = v.Gauge("blocked_calls", "Calls that wait for capacity.")
		blockedBytes = v.Gauge("blocked_bytes", "Bytes of frames of calls that wait for capacity.")
		reports      = v.Counter("loss_reports_total", "Loss reports that were handed on to the readers of their category.")
		counted      = v.Counter("delivery_reports_total", "Frames of delivery counts that the cell stored.")
		uncounted    = v.Counter("delivery_untold_messages_total", "Messages that the delivery counts of the cell lack: of too many producers at once, or refused.")
		untold       = v.Counter("losses_untold_messages_total", "Dropped messages without a loss report: of too many categories at once, or of one that takes nothing.")

		spoolBytes = v.Gauge("spool_charged_bytes", "Bytes in the spool, copies of frames in memory included.")
		spoolLimit = v.Gauge("spool_charge_limit_bytes", "Limit of the spool's files.")
		oldest     = v.Gauge("oldest_seconds", "Age of the oldest frame without an outcome, about a second ago.")

		letters        = v.Counter("dead_letters_total", "Frames written to the dead letters.")
		lettersRemoved = v.Counter("dead_letter_files_removed_total", "Dead letter files removed because of the limit.")
		letterBytes    = v.Gauge("dead_letter_bytes", "Bytes of the dead letters.")
	)
	read = func(send metrics.Send) {
		s.mu.Lock()
		defer s.mu.Unlock()
		q := &s.mu.queue
		backlog := s.readBacklog()
		accepted.Send(send, q.counts.accepted)
		recovered.Send(send, q.counts.recovered)
		forwarded.Send(send, q.counts.forwarded)
		buffered.Send(send, q.counts.memory, "memory")
		buffered.Send(send, backlog, "spool")
		for reason, a := range q.counts.failed {
			failed.Send(send, a, reason)
		}
		for reason, a := range q.counts.dropped {
			dropped.Send(send, a, reason)
		}
		var told, notTold int64
		if q.losses != nil {
			told, notTold = q.losses.Counts()
		}
		if q.delivery != nil {
			frames, messages := q.delivery.Counts()
			send(counted, float64(frames))
			send(uncounted, float64(messages))
		}
		send(refused, float64(q.counts.refused))
		send(reports, float64(told))
		send(untold, float64(notTold))
		send(memory, float64(q.used), "frames")
		send(memory, float64(s.mu.bodies), "bodies")
		send(memoryLimit, float64(s.cfg.MemoryBytes), "frames")
		send(memoryLimit, float64(s.cfg.MemoryBytes), "bodies")
		send(categories, float64(len(q.queues)))
		send(blocked, float64(q.blockedCalls))
		send(blockedBytes, float64(q.blockedBytes))
		send(sending, float64(q.sending))
		send(early, float64(q.counts.early))
		send(unavailable, float64(min(q.failures, 1)))
		if s.spool != nil {
			age := 0.0
			if !s.mu.oldest.IsZero() {
				age = max(s.now().Sub(s.mu.oldest).Seconds(), 0)
			}
			_, held := s.spool.Held("")
			send(oldest, age)
			send(spoolBytes, float64(spoolCharge(held)))
			send(spoolLimit, float64(s.cfg.Spool.MaxBytes))
		}
		if s.dead != nil {
			t := s.dead.Totals()
			send(letters, float64(t.Letters))
			send(lettersRemoved, float64(t.RemovedFiles))
			send(letterBytes, float64(t.Bytes))
		}
	}
	return m
}

func (m *agentMetrics) countRequest(b *upstreamBatch, d time.Duration) {
	m.requests.Inc()
	m.bytes.Add(float64(b.bytes))
	if slices.ContainsFunc(b.flights, func(fl *categoryFlight) bool { return fl.follows }) {
		m.following.Inc()
	}
	m.seconds.Observe(d.Seconds())
	if b.backfill {
		m.backfill.Add(float64(b.bytes))
	}
}
