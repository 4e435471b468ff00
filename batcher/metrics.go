package batcher

import (
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
	"scribe/internal/role/request"
)

// Stages of a flush.
const (
	stageCompress = "compress" // from the cut until the last block is compressed
	stagePut      = "put"      // one put of a blob
	stageAppend   = "append"   // one append of pointers
	stageTotal    = "total"    // from a flush's first frame to the answer of one of its parts
)

// batcherMetrics are the metrics of one batcher.
type batcherMetrics struct {
	set *metrics.Set

	flushes        *prometheus.CounterVec
	stages         *prometheus.HistogramVec
	blobs          prometheus.Counter
	blobBytes      prometheus.Counter
	rawBytes       prometheus.Counter
	payloads       prometheus.Counter
	orphans        prometheus.Counter
	orphanBytes    prometheus.Counter
	putFailures    prometheus.Counter
	appendFailures *prometheus.CounterVec
	opens          prometheus.Counter
	opensAhead     prometheus.Counter
	divided        prometheus.Counter
	pushed         *prometheus.CounterVec // by outcome
	pushedBytes    prometheus.Counter
}

func newMetrics(b *Batcher) *batcherMetrics {
	set := metrics.NewSet("scribe_batcher_")
	m := &batcherMetrics{
		set:            set,
		flushes:        set.CounterVec("flushes_total", "Flushes by what made them begin.", "trigger"),
		stages:         set.HistogramVec("flush_seconds", "Time of the stages of a flush.", prometheus.ExponentialBuckets(0.0001, 2, 20), "stage"),
		blobs:          set.Counter("blobs_total", "Blobs put."),
		blobBytes:      set.Counter("blob_bytes_total", "Bytes of the blobs put."),
		rawBytes:       set.Counter("flushed_bytes_total", "Bytes of frames in flushes, before compression."),
		payloads:       set.Counter("payloads_total", "Payloads in flushes."),
		orphans:        set.Counter("orphan_blobs_total", "Blobs that were put, or may have been, and that nothing points to."),
		orphanBytes:    set.Counter("orphan_bytes_total", "Bytes of those blobs."),
		putFailures:    set.Counter("put_failures_total", "Failed attempts to put a blob."),
		appendFailures: set.CounterVec("append_failures_total", "Failed attempts to append pointers, by cause.", "cause"),
		opens:          set.Counter("log_opens_total", "Metadata logs opened for writing."),
		opensAhead:     set.Counter("log_opens_ahead_total", "Those of them that were opened because of a plan, before a flush needed them."),
		divided:        set.Counter("divided_flushes_total", "Parts of flushes that were divided off, because the rest could get on and they could not."),
		pushed:         set.CounterVec("pushed_blocks_total", "Blocks to be pushed to read proxies while their blobs are put, by outcome: sent, or dropped for the reason.", "outcome"),
		pushedBytes:    set.Counter("pushed_bytes_total", "Bytes of the blocks that were pushed."),
	}
	set.GaugeFunc("push_queue_bytes", "Bytes of blocks that wait to be pushed, or are being pushed.", func() float64 { return float64(b.pusher.queuedBytes()) })
	declareSnapshot(set, b)
	return m
}

// declareSnapshot declares the values that are read together, so that accepted = committed + duplicate + failed + buffered holds
// in every scrape.
func declareSnapshot(set *metrics.Set, b *Batcher) {
	var accepted, committed, duplicate, failed, buffered request.AmountMetrics
	var overloaded, refused, followed, memory, memoryPeak, memoryLimit, inFlight, detached, stalled, pending, load metrics.Value
	values := set.Snapshot(func(send metrics.Send) {
		s := b.readSnapshot()
		accepted.Send(send, s.counts.accepted)
		committed.Send(send, s.counts.committed)
		duplicate.Send(send, s.counts.duplicate)
		buffered.Send(send, s.counts.buffered())
		for reason, a := range s.counts.failed {
			failed.Send(send, a, reason)
		}
		send(overloaded, float64(s.counts.overloaded))
		send(refused, float64(s.counts.refusedShare), "share")
		send(refused, float64(s.counts.refusedPriority), "priority")
		send(refused, float64(s.counts.refusedTrouble), "held")
		send(refused, float64(s.counts.refusedOrder), "order")
		send(followed, float64(s.counts.followed))
		send(memory, float64(s.used))
		send(memoryPeak, float64(s.peak))
		send(memoryLimit, float64(b.cfg.MemoryBytes))
		send(inFlight, float64(s.running))
		send(detached, float64(s.detached))
		send(stalled, float64(s.stalled))
		send(pending, float64(s.pending))
		send(load, float64(s.load))
	})
	accepted = request.DeclareAmount(values.Counter, "accepted_%s_total", "taken into memory.")
	committed = request.DeclareAmount(values.Counter, "committed_%s_total", "made durable.")
	duplicate = request.DeclareAmount(values.Counter, "duplicate_%s_total", "recognised as stored before.")
	failed = request.DeclareAmount(values.Counter, "failed_%s_total", "accepted and then not stored, by reason.", "reason")
	buffered = request.DeclareAmount(values.Gauge, "buffered_%s", "accepted and without an outcome yet.")
	overloaded = values.Counter("overloaded_requests_total", "Requests refused for lack of memory, or for their category's share of it.")
	refused = values.Counter("refused_frames_total", "Frames refused before they were accepted, by cause: their category's share of the memory, memory that is kept for higher priorities, a shard that is held, or a frame before them that did not arrive.", "cause")
	followed = values.Counter("followed_frames_total", "Frames accepted while one that they follow, of an earlier request, had no outcome.")
	memory = values.Gauge("memory_bytes", "Bytes charged for frames in memory.")
	memoryPeak = values.Gauge("memory_peak_bytes", "Most bytes charged since the start.")
	memoryLimit = values.Gauge("memory_limit_bytes", "Bytes that may be charged.")
	inFlight = values.Gauge("flushes_in_flight", "Flushes being written.")
	detached = values.Gauge("parts_detached", "Parts of flushes that wait for a log beside the flushes being written.")
	stalled = values.Gauge("shards_stalled", "Shards whose frames gather because those before them do not get on.")
	pending = values.Gauge("pending_bytes", "Bytes that no flush has taken yet, compressed ones as far as they are.")
	load = values.Gauge("load", "How busy the batcher tells that it is: 0 idle, 1000 refusing.")
}

// metricsSnapshot has values read under one hold of Batcher.mu.
type metricsSnapshot struct {
	counts            frameCounts
	used, peak        int64
	running           int
	detached, stalled int
	pending           int64
	load              uint32
}

func (b *Batcher) readSnapshot() metricsSnapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	acc := &b.mu.acc
	s := metricsSnapshot{
		counts: b.mu.counts, used: acc.memory.Used(), peak: acc.memory.Peak(), detached: acc.detached, stalled: len(acc.stalled),
		load: acc.loadLevel(b.now()),
	}
	s.counts.failed = maps.Clone(s.counts.failed)
	for _, fl := range acc.queues {
		s.running += fl.running
		s.pending += fl.pending.size
	}
	return s
}

func (m *batcherMetrics) observeStage(name string, d time.Duration) {
	m.stages.WithLabelValues(name).Observe(d.Seconds())
}

func (m *batcherMetrics) countBlob(d time.Duration, size int64) {
	m.observeStage(stagePut, d)
	m.blobs.Inc()
	m.blobBytes.Add(float64(size))
}

func (m *batcherMetrics) countFlush(f *flush) {
	m.flushes.WithLabelValues(f.trigger.String()).Inc()
	m.rawBytes.Add(float64(f.raw))
	m.payloads.Add(float64(f.payloads))
}
