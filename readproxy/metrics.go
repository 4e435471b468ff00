package readproxy

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
	"scribe/internal/role/quota"
)

type roleMetrics struct {
	set *metrics.Set

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

	pushed      *prometheus.CounterVec // by outcome
	pushedBytes prometheus.Counter
	pushWaits   *prometheus.CounterVec // by outcome

	overQuota  *prometheus.CounterVec // by outcome
	quotaWaits prometheus.Histogram

	peerRequests, peerBytes, fallbacks prometheus.Counter

	restricted, rowsHeld prometheus.Counter

	viewSharedHits, viewSharedMisses                                                       prometheus.Counter
	viewPayloads, viewHits, viewShared, viewMisses, viewBytesIn, viewBytesOut, viewSeconds prometheus.Counter
}

// Tiers, as the values of a label, from the nearest to the farthest.
const (
	tierMemory = "memory"
	tierFlight = "flight" // the fetch of another request
	tierPush   = "push"   // a batcher, while the fetch waited
	tierShared = "memcached"
	tierRegion = "region" // a read proxy of the region that has the blob
	tierStore  = "store"
)

func newMetrics(r prometheus.Registerer, s *Server) (*roleMetrics, error) {
	set := metrics.NewSet("scribe_readproxy_")
	m := &roleMetrics{set: set}
	seconds := prometheus.ExponentialBuckets(0.0005, 4, 9)
	m.requests = set.Counter("requests_total", "Requests.")
	m.refused = set.CounterVec("requests_refused_total", "Requests that failed as a whole, by reason.", "reason")
	m.inFlight = set.Gauge("requests_in_flight", "Requests being served.")
	m.admitted = set.Counter("admitted_total", "Requests admitted.")
	m.payloads = set.Counter("payloads_total", "Payloads served.")
	m.payloadBytes = set.Counter("payload_bytes_total", "Bytes of the payloads served, as sent.")
	m.errors = set.CounterVec("payload_errors_total", "Payloads that could not be served, by reason.", "reason")
	m.denied = set.CounterVec("denied_total", "Requests refused because the server is busy: body, too many requests being read; herd, over the rate of requests; queue, too many queued or in service; late, no memory free in time.", "cause")
	m.queueSeconds = set.Histogram("queue_seconds", "Time that requests waited in the queue.", seconds)
	m.hits = set.CounterVec("cache_hits_total", "Blocks found in a tier.", "tier")
	m.misses = set.CounterVec("cache_misses_total", "Blocks not found in a tier.", "tier")
	m.saved = set.CounterVec("saved_bytes_total", "Bytes of blocks found in a tier, which no later tier was asked for; flight is a fetch that another request had begun.", "tier")
	m.damaged = set.CounterVec("damaged_blocks_total", "Blocks that did not match their checksum, by the tier that they came from. None is served.", "tier")
	m.shared = set.Counter("shared_fetches_total", "Misses answered by another request's fetch.")
	m.fetching = set.Gauge("fetches_in_flight", "Blocks being fetched or waiting to be fetched.")
	m.storeReads = set.Counter("store_reads_total", "Requests to blob stores.")
	m.storeBytes = set.Counter("store_bytes_total", "Bytes read from blob stores.")
	m.storeBlocks = set.Counter("store_blocks_total", "Blocks read from blob stores; more than reads where neighbours were read together.")
	m.storeWaste = set.Counter("store_waste_bytes_total", "Bytes between two wanted blocks that were read with them.")
	m.storeSeconds = set.Histogram("store_read_seconds", "Time of a request to a blob store.", seconds)
	m.paced = set.Counter("store_reads_paced_total", "Times that reads waited for the rate of requests to stores.")
	m.sharedFailures = set.CounterVec("memcached_failures_total", "Failed calls to memcached, by operation and kind; away: the server failed recently and was not asked.", "operation", "kind")
	m.fills = set.CounterVec("memcached_fills_total", "Blocks for memcached: stored, failed, or dropped because too many waited.", "outcome")
	m.filledBytes = set.Counter("memcached_filled_bytes_total", "Bytes stored in memcached.")
	m.pushed = set.CounterVec("pushed_blocks_total", "Blocks that batchers pushed, by outcome: kept, or refused for the reason; full, they would displace blocks that are read.", "outcome")
	m.pushedBytes = set.Counter("pushed_bytes_total", "Bytes of the pushed blocks that were kept, as stored.")
	m.pushWaits = set.CounterVec("push_waits_total", "Fetches that waited for a push: it arrived, or missed the time for it.", "outcome")
	set.CounterFunc("pushed_reads_total", "Pushed blocks that were read from memory, each counted once.", func() float64 { return float64(s.cache.readStats().pushedReads) })
	set.CounterFunc("pushed_unread_total", "Pushed blocks that were evicted from memory before anybody read them.", func() float64 { return float64(s.cache.readStats().pushedUnread) })
	set.GaugeFunc("push_categories", "Categories that are read at the tail, whose blocks batchers push.", func() float64 { return float64(s.tails.count()) })
	m.overQuota = set.CounterVec("over_quota_bytes_total", "Bytes of payloads over a quota for reading, by what became of them, refused, delayed or left_out, and what the quota is of: category, prefix or owner.", "outcome", "quota")
	for _, outcome := range []string{"refused", "delayed", "left_out"} {
		for _, kind := range []quota.Kind{quota.OfCategory, quota.OfPrefix, quota.OfOwner} {
			m.overQuota.WithLabelValues(outcome, string(kind))
		}
	}
	m.quotaWaits = set.Histogram("throttle_seconds", "Time that requests waited for a quota for reading.", prometheus.ExponentialBuckets(0.001, 2, 16))
	set.GaugeFunc("quota_categories", "Quotas for reading, of categories and tenants, that were used lately.", func() float64 { known, _ := s.quotas.CountQuotas(); return float64(known) })
	set.GaugeFunc("quota_leases", "Quotas of which the proxy leases more than an equal share, since the other proxies use less.", func() float64 { _, leased := s.quotas.CountQuotas(); return float64(leased) })
	m.peerRequests = set.Counter("region_requests_total", "Requests to read proxies of other regions.")
	m.peerBytes = set.Counter("region_bytes_total", "Bytes received from read proxies of other regions.")
	m.fallbacks = set.Counter("region_fallbacks_total", "Blocks read from another region's store because its read proxies did not deliver them.")
	m.viewPayloads = set.Counter("view_payloads_total", "Payloads made into a view.")
	m.viewHits = set.Counter("view_cache_hits_total", "Payloads in a view found in memory.")
	m.viewMisses = set.Counter("view_cache_misses_total", "Payloads in a view not found in memory.")
	m.viewShared = set.Counter("view_shared_total", "Payloads in a view that another request was making.")
	m.viewSharedHits = set.Counter("view_memcached_hits_total", "Payloads in a view found in memcached.")
	m.viewSharedMisses = set.Counter("view_memcached_misses_total", "Payloads in a view not found in memcached.")
	m.viewBytesIn = set.Counter("view_input_bytes_total", "Bytes of messages made into views.")
	m.viewBytesOut = set.Counter("view_output_bytes_total", "Bytes of views made.")
	m.viewSeconds = set.Counter("view_seconds_total", "Time spent making views, decompression included.")
	m.restricted = set.Counter("restricted_payloads_total", "Payloads of which only a part was made for readers that are limited to some rows and columns.")
	m.rowsHeld = set.Counter("rows_held_back_total", "Rows of these payloads that their readers may not see.")
	set.CounterFunc("zone_maps_written_total", "Zone maps that were written beside pointers.", func() float64 { return float64(s.zones.written.Load()) })
	set.CounterFunc("zone_maps_dropped_total", "Zone maps dropped because too many waited to be written.", func() float64 { return float64(s.zones.dropped.Load()) })
	set.CounterFunc("zone_maps_failed_total", "Zone maps that could not be written.", func() float64 { return float64(s.zones.failed.Load()) })
	set.GaugeFunc("views", "Views that serve running queries.", func() float64 { n, _ := s.views.table.Counts(); return float64(n) })
	set.GaugeFunc("running_queries", "Queries that fetched recently.", func() float64 { _, n := s.views.table.Counts(); return float64(n) })
	set.GaugeFunc("regions_away", "Other regions whose read proxies are unavailable.", func() float64 { return float64(s.countPausedRegions()) })
	set.GaugeFunc("cache_bytes", "Bytes in the memory cache.", func() float64 { return float64(s.cache.readStats().bytes) })
	set.GaugeFunc("cache_limit_bytes", "The most bytes in the memory cache.", func() float64 { return float64(s.cache.readStats().limit) })
	set.GaugeFunc("cache_proven_bytes", "Bytes of blocks in the memory cache that were requested again.", func() float64 { return float64(s.cache.readStats().proven) })
	set.GaugeFunc("cache_blocks", "Blocks in the memory cache.", func() float64 { return float64(s.cache.readStats().blocks) })
	set.CounterFunc("cache_evictions_total", "Blocks evicted from the memory cache.", func() float64 { return float64(s.cache.readStats().evicted) })
	set.GaugeFunc("queue_length", "Bound on requests queued or in service now.", func() float64 { return float64(s.gate.queue.ReadState().Length) })
	set.GaugeFunc("queue_requests", "Requests queued or in service.", func() float64 { return float64(s.gate.queue.ReadState().Inside) })
	set.GaugeFunc("queue_waiting", "Requests queued.", func() float64 { return float64(s.gate.queue.ReadState().Waiting) })
	set.GaugeFunc("answer_bytes", "Bytes of answers being sent.", func() float64 { return float64(s.gate.sending.heldBytes()) })
	set.GaugeFunc("body_bytes", "Bytes charged for requests being read.", func() float64 { return float64(s.gate.bodies.Used()) })
	set.GaugeFunc("request_bytes", "Bytes that requests in service need, and bytes of answers being sent.", func() float64 { return float64(s.gate.queue.ReadState().Bytes) })
	set.GaugeFunc("utilisation", "Utilisation of the host, the greater of processors and network, 0 to 1.", s.gate.utilisation)
	if s.shared != nil {
		set.GaugeFunc("memcached_servers_away", "Memcached servers that are unavailable.", func() float64 { return float64(s.shared.UnavailableServers()) })
	}
	if err := set.Register(r); err != nil {
		return nil, fmt.Errorf("readproxy: %w", err)
	}
	return m, nil
}
