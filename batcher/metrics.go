package batcher

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
)

// Stages of a flush.
const (
	stageCompress = "compress" // from the cut until the last block is compressed
	stagePut      = "put"      // one put of a blob
	stageAppend   = "append"   // one append of pointers
	stageTotal    = "total"    // from a flush's first frame to the answer of one of its parts
)

const namespace = "scribe_batcher_"

// metrics are those of one batcher. What counts frames is collected from one snapshot, so that accepted = committed + duplicate +
// failed + buffered holds in every scrape.
type metrics struct {
	b *Batcher

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
	divided        prometheus.Counter

	accepted, committed, duplicate, buffered [3]*prometheus.Desc // frames, bytes, messages
	failed                                   [3]*prometheus.Desc
	overloaded                               *prometheus.Desc
	memory                                   *prometheus.Desc
	memoryPeak                               *prometheus.Desc
	memoryLimit                              *prometheus.Desc
	inFlight                                 *prometheus.Desc
	detached                                 *prometheus.Desc
	stalled                                  *prometheus.Desc
	pending                                  *prometheus.Desc
	refusedFrames                            *prometheus.Desc
	load                                     *prometheus.Desc
}

func newMetrics(b *Batcher) *metrics {
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
		b: b,
		flushes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: namespace + "flushes_total", Help: "Flushes by what made them begin.",
		}, []string{"trigger"}),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: namespace + "flush_seconds", Help: "Time of the stages of a flush.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 20),
		}, []string{"stage"}),
		blobs:       counter("blobs_total", "Blobs put."),
		blobBytes:   counter("blob_bytes_total", "Bytes of the blobs put."),
		rawBytes:    counter("flushed_bytes_total", "Bytes of frames in flushes, before compression."),
		payloads:    counter("payloads_total", "Payloads in flushes."),
		orphans:     counter("orphan_blobs_total", "Blobs that were put, or may have been, and that nothing points to."),
		orphanBytes: counter("orphan_bytes_total", "Bytes of those blobs."),
		putFailures: counter("put_failures_total", "Failed attempts to put a blob."),
		appendFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: namespace + "append_failures_total", Help: "Failed attempts to append pointers, by cause.",
		}, []string{"cause"}),
		opens:   counter("log_opens_total", "Metadata logs opened for writing."),
		divided: counter("divided_flushes_total", "Parts of flushes that were divided off, because the rest could get on and they could not."),

		accepted:      three("accepted_%s_total", "taken into memory."),
		committed:     three("committed_%s_total", "made durable."),
		duplicate:     three("duplicate_%s_total", "recognised as stored before."),
		failed:        three("failed_%s_total", "accepted and then not stored, by reason.", "reason"),
		buffered:      three("buffered_%s", "accepted and without an outcome yet."),
		overloaded:    desc("overloaded_requests_total", "Requests refused for lack of memory, or for their category's share of it."),
		refusedFrames: desc("refused_frames_total", "Frames refused before they were accepted, by cause: their category's share of the memory, or a shard that is held.", "cause"),
		memory:        desc("memory_bytes", "Bytes charged for frames in memory."),
		memoryPeak:    desc("memory_peak_bytes", "Most bytes charged since the start."),
		memoryLimit:   desc("memory_limit_bytes", "Bytes that may be charged."),
		inFlight:      desc("flushes_in_flight", "Flushes being written."),
		detached:      desc("parts_detached", "Parts of flushes that wait for a log beside the flushes being written."),
		stalled:       desc("shards_stalled", "Shards whose frames gather because those before them do not get on."),
		pending:       desc("pending_bytes", "Bytes that no flush has taken yet, compressed ones as far as they are."),
		load:          desc("load", "How busy the batcher tells that it is: 0 idle, 1000 refusing."),
	}
}

func (m *metrics) allCollectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.flushes, m.stages, m.blobs, m.blobBytes, m.rawBytes, m.payloads, m.orphans, m.orphanBytes, m.putFailures,
		m.appendFailures, m.opens, m.divided, m,
	}
}

func (m *metrics) observeStage(name string, d time.Duration) {
	m.stages.WithLabelValues(name).Observe(d.Seconds())
}

func (m *metrics) countBlob(d time.Duration, size int64) {
	m.observeStage(stagePut, d)
	m.blobs.Inc()
	m.blobBytes.Add(float64(size))
}

func (m *metrics) countFlush(f *flush) {
	m.flushes.WithLabelValues(f.trigger.String()).Inc()
	m.rawBytes.Add(float64(f.raw))
	m.payloads.Add(float64(f.payloads))
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, three := range [][3]*prometheus.Desc{m.accepted, m.committed, m.duplicate, m.failed, m.buffered} {
		for _, d := range three {
			ch <- d
		}
	}
	for _, d := range []*prometheus.Desc{
		m.overloaded, m.refusedFrames, m.memory, m.memoryPeak, m.memoryLimit, m.inFlight, m.detached, m.stalled, m.pending, m.load,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.b.mu.Lock()
	c := m.b.mu.counts.clone()
	acc := &m.b.mu.acc
	used, peak, detached, stalled, load := acc.memory.Used(), acc.memory.Peak(), acc.detached, len(acc.stalled), acc.loadLevel(m.b.now())
	running, pending := 0, int64(0)
	for _, fl := range acc.queues {
		running += fl.running
		pending += fl.pending.size
	}
	m.b.mu.Unlock()

	send := func(d *prometheus.Desc, kind prometheus.ValueType, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, float64(v), labels...)
	}
	three := func(d [3]*prometheus.Desc, kind prometheus.ValueType, a request.Amount, labels ...string) {
		send(d[0], kind, a.Frames, labels...)
		send(d[1], kind, a.Bytes, labels...)
		send(d[2], kind, a.Messages, labels...)
	}
	three(m.accepted, prometheus.CounterValue, c.accepted)
	three(m.committed, prometheus.CounterValue, c.committed)
	three(m.duplicate, prometheus.CounterValue, c.duplicate)
	three(m.buffered, prometheus.GaugeValue, c.buffered())
	for reason, a := range c.failed {
		three(m.failed, prometheus.CounterValue, a, rpc.ReasonLabel(reason))
	}
	send(m.overloaded, prometheus.CounterValue, c.overloaded)
	send(m.memory, prometheus.GaugeValue, used)
	send(m.memoryPeak, prometheus.GaugeValue, peak)
	send(m.memoryLimit, prometheus.GaugeValue, m.b.cfg.MemoryBytes)
	send(m.inFlight, prometheus.GaugeValue, int64(running))
	send(m.detached, prometheus.GaugeValue, int64(detached))
	send(m.stalled, prometheus.GaugeValue, int64(stalled))
	send(m.pending, prometheus.GaugeValue, pending)
	send(m.load, prometheus.GaugeValue, int64(load))
	send(m.refusedFrames, prometheus.CounterValue, c.refusedShare, "share")
	send(m.refusedFrames, prometheus.CounterValue, c.refusedTrouble, "held")
}
