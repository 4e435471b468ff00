package readproxy

import (
	"errors"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	scribev1 "scribe/proto/scribe/v1"
)

type metrics struct {
	registerer prometheus.Registerer
	all        []prometheus.Collector

	requests     prometheus.Counter
	refused      *prometheus.CounterVec // by reason
	inFlight     prometheus.Gauge
	admitted     prometheus.Counter
	payloads     prometheus.Counter
	payloadBytes prometheus.Counter
	errors       *prometheus.CounterVec // by reason
	denied       *prometheus.CounterVec // by cause
	queueSeconds prometheus.Histogram

	// By tier.
	hits, misses, saved, damaged *prometheus.CounterVec
	shared                       prometheus.Counter
	fetching                     prometheus.Gauge

	storeReads, storeBytes, storeBlocks, storeWaste prometheus.Counter
	storeSeconds                                    prometheus.Histogram
	paced                                           prometheus.Counter

	sharedFailures *prometheus.CounterVec // by operation and kind
	fills          *prometheus.CounterVec // by outcome
	filledBytes    prometheus.Counter

	peerRequests, peerBytes, fallbacks prometheus.Counter

	viewPayloads, viewHits, viewShared, viewMisses, viewBytesIn, viewBytesOut, viewSeconds prometheus.Counter
}

// Tiers, as the values of a label, from the nearest to the farthest.
const (
	tierMemory = "memory"
	tierFlight = "flight" // the fetch of another request
	tierShared = "memcached"
	tierRegion = "region" // a read proxy of the region that has the blob
	tierStore  = "store"
)

const namespace, subsystem = "scribe", "readproxy"

func newMetrics(r prometheus.Registerer, s *Server) (*metrics, error) {
	m := &metrics{registerer: r}
	counter := func(name, help string) prometheus.Counter {
		v := prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
		m.all = append(m.all, v)
		return v
	}
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
		m.all = append(m.all, v)
		return v
	}
	gauge := func(name, help string) prometheus.Gauge {
		v := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
		m.all = append(m.all, v)
		return v
	}
	seconds := func(name, help string) prometheus.Histogram {
		v := prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9),
		})
		m.all = append(m.all, v)
		return v
	}
	gaugeFunc := func(name, help string, fn func() float64) {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, fn))
	}
	m.requests = counter("requests_total", "Requests.")
	m.refused = vector("requests_refused_total", "Requests that failed as a whole, by reason.", "reason")
	m.inFlight = gauge("requests_in_flight", "Requests being served.")
	m.admitted = counter("admitted_total", "Requests admitted.")
	m.payloads = counter("payloads_total", "Payloads served.")
	m.payloadBytes = counter("payload_bytes_total", "Bytes of the payloads served, as sent.")
	m.errors = vector("payload_errors_total", "Payloads that could not be served, by reason.", "reason")
	m.denied = vector("denied_total", "Requests refused because the server is busy: body, too many requests being read; herd, over the rate of requests; queue, too many queued or in service; late, no memory free in time.", "cause")
	m.queueSeconds = seconds("queue_seconds", "Time that requests waited in the queue.")
	m.hits = vector("cache_hits_total", "Blocks found in a tier.", "tier")
	m.misses = vector("cache_misses_total", "Blocks not found in a tier.", "tier")
	m.saved = vector("saved_bytes_total", "Bytes of blocks found in a tier, which no later tier was asked for; flight is a fetch that another request had begun.", "tier")
	m.damaged = vector("damaged_blocks_total", "Blocks that did not match their checksum, by the tier that they came from. None is served.", "tier")
	m.shared = counter("shared_fetches_total", "Misses answered by another request's fetch.")
	m.fetching = gauge("fetches_in_flight", "Blocks being fetched or waiting to be fetched.")
	m.storeReads = counter("store_reads_total", "Requests to blob stores.")
	m.storeBytes = counter("store_bytes_total", "Bytes read from blob stores.")
	m.storeBlocks = counter("store_blocks_total", "Blocks read from blob stores; more than reads where neighbours were read together.")
	m.storeWaste = counter("store_waste_bytes_total", "Bytes between two wanted blocks that were read with them.")
	m.storeSeconds = seconds("store_read_seconds", "Time of a request to a blob store.")
	m.paced = counter("store_reads_paced_total", "Times that reads waited for the rate of requests to stores.")
	m.sharedFailures = vector("memcached_failures_total", "Failed calls to memcached, by operation and kind; away: the server failed recently and was not asked.", "operation", "kind")
	m.fills = vector("memcached_fills_total", "Blocks for memcached: stored, failed, or dropped because too many waited.", "outcome")
	m.filledBytes = counter("memcached_filled_bytes_total", "Bytes stored in memcached.")
	m.peerRequests = counter("region_requests_total", "Requests to read proxies of other regions.")
	m.peerBytes = counter("region_bytes_total", "Bytes received from read proxies of other regions.")
	m.fallbacks = counter("region_fallbacks_total", "Blocks read from another region's store because its read proxies did not deliver them.")
	m.viewPayloads = counter("view_payloads_total", "Payloads made into a view.")
	m.viewHits = counter("view_cache_hits_total", "Payloads in a view found in memory.")
	m.viewMisses = counter("view_cache_misses_total", "Payloads in a view not found in memory.")
	m.viewShared = counter("view_shared_total", "Payloads in a view that another request was making.")
	m.viewBytesIn = counter("view_input_bytes_total", "Bytes of messages made into views.")
	m.viewBytesOut = counter("view_output_bytes_total", "Bytes of views made.")
	m.viewSeconds = counter("view_seconds_total", "Time spent making views, decompression included.")
	count := func(name, help string, value func() float64) {
		m.all = append(m.all, prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, value))
	}
	count("zone_maps_written_total", "Zone maps that were written beside pointers.", func() float64 { return float64(s.zones.written.Load()) })
	count("zone_maps_dropped_total", "Zone maps dropped because too many waited to be written.", func() float64 { return float64(s.zones.dropped.Load()) })
	count("zone_maps_failed_total", "Zone maps that could not be written.", func() float64 { return float64(s.zones.failed.Load()) })
	gaugeFunc("views", "Views that serve running queries.", func() float64 { n, _ := s.views.table.Counts(); return float64(n) })
	gaugeFunc("running_queries", "Queries that fetched recently.", func() float64 { _, n := s.views.table.Counts(); return float64(n) })
	gaugeFunc("regions_away", "Other regions whose read proxies are unavailable.", func() float64 { return float64(s.peers.countUnavailable()) })
	gaugeFunc("cache_bytes", "Bytes in the memory cache.", func() float64 { return float64(s.cache.readStats().bytes) })
	gaugeFunc("cache_limit_bytes", "The most bytes in the memory cache.", func() float64 { return float64(s.cache.readStats().limit) })
	gaugeFunc("cache_proven_bytes", "Bytes of blocks in the memory cache that were requested again.", func() float64 { return float64(s.cache.readStats().proven) })
	gaugeFunc("cache_blocks", "Blocks in the memory cache.", func() float64 { return float64(s.cache.readStats().blocks) })
	m.all = append(m.all, prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "cache_evictions_total", Help: "Blocks evicted from the memory cache.",
	}, func() float64 { return float64(s.cache.readStats().evicted) }))
	gaugeFunc("queue_length", "Bound on requests queued or in service now.", func() float64 { return float64(s.gate.queue.ReadState().Length) })
	gaugeFunc("queue_requests", "Requests queued or in service.", func() float64 { return float64(s.gate.queue.ReadState().Inside) })
	gaugeFunc("queue_waiting", "Requests queued.", func() float64 { return float64(s.gate.queue.ReadState().Waiting) })
	gaugeFunc("answer_bytes", "Bytes of answers being sent.", func() float64 { return float64(s.gate.sending.heldBytes()) })
	gaugeFunc("body_bytes", "Bytes charged for requests being read.", func() float64 { return float64(s.gate.bodies.Used()) })
	gaugeFunc("request_bytes", "Bytes that requests in service need, and bytes of answers being sent.", func() float64 { return float64(s.gate.queue.ReadState().Bytes) })
	gaugeFunc("utilisation", "Utilisation of the host, the greater of processors and network, 0 to 1.", s.gate.utilisation)
	if s.shared != nil {
		gaugeFunc("memcached_servers_away", "Memcached servers that are unavailable.", func() float64 { return float64(s.shared.UnavailableServers()) })
	}
	if r == nil {
		return m, nil
	}
	for i, v := range m.all {
		if err := r.Register(v); err != nil {
			m.all = m.all[:i]
			m.close()
			return nil, errors.Join(errors.New("readproxy: register metrics"), err)
		}
	}
	return m, nil
}

func (m *metrics) close() {
	if m.registerer == nil {
		return
	}
	for _, v := range m.all {
		m.registerer.Unregister(v)
	}
}

// reasonLabel returns the metric label of a reason: "missing" for REASON_MISSING.
func reasonLabel(r scribev1.Reason) string { return reasonLabels[r] }

var reasonLabels = func() map[scribev1.Reason]string {
	out := map[scribev1.Reason]string{}
	for n, name := range scribev1.Reason_name {
		out[scribev1.Reason(n)] = strings.ToLower(strings.TrimPrefix(name, "REASON_"))
	}
	return out
}()
