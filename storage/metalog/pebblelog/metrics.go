package pebblelog

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/storage/metalog"
)

// engineMetrics are what the engine counts. None of them is per shard or category.
type engineMetrics struct {
	appends       *prometheus.CounterVec // by outcome
	appendedRecs  prometheus.Counter
	appendedBytes prometheus.Counter
	readRecs      prometheus.Counter
	readBytes     prometheus.Counter
	commitSeconds prometheus.Histogram
	commitGroup   prometheus.Histogram
	commitBytes   prometheus.Counter
	subscriptions prometheus.Gauge
	background    prometheus.Counter
	stalls        prometheus.Counter
	// annotations were kept, badAnnotations damaged when they were read.
	annotations, badAnnotations prometheus.Counter

	all []prometheus.Collector
}

func newMetrics(e *Engine) *engineMetrics {
	m := &engineMetrics{}
	m.appends = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "scribe_metalog_appends_total",
		Help: "Transactions by outcome: ok, or why they were refused; unknown counts those that failed otherwise.",
	}, []string{"outcome"})
	m.all = append(m.all, m.appends)
	m.appendedRecs = m.counter("scribe_metalog_appended_records_total", "Records that were appended.")
	m.appendedBytes = m.counter("scribe_metalog_appended_bytes_total", "Bytes of the records that were appended.")
	m.readRecs = m.counter("scribe_metalog_read_records_total", "Records that Read returned.")
	m.readBytes = m.counter("scribe_metalog_read_bytes_total", "Bytes of the records that Read returned.")
	m.commitBytes = m.counter("scribe_metalog_commit_bytes_total", "Bytes of batches written to the write-ahead log.")
	m.background = m.counter("scribe_metalog_background_errors_total", "Flushes and compactions that failed.")
	m.annotations = m.counter("scribe_metalog_annotations_total", "Annotations that were kept beside records.")
	m.badAnnotations = m.counter("scribe_metalog_damaged_annotations_total", "Annotations that were damaged when they were read, and left out.")
	m.stalls = m.counter("scribe_metalog_write_stalls_total", "Times that appends had to wait for flushes or compactions.")
	m.commitSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "scribe_metalog_commit_seconds",
		Help:    "Time to write and sync one batch.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18),
	})
	m.commitGroup = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "scribe_metalog_commit_requests",
		Help:    "Requests that shared one sync.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 11),
	})
	m.subscriptions = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "scribe_metalog_subscriptions",
		Help: "Running subscriptions.",
	})
	m.all = append(m.all, m.commitSeconds, m.commitGroup, m.subscriptions)
	m.gauge("scribe_metalog_cached_shards", "Shards whose state is in memory.", func() float64 { return float64(e.table.len()) })
	m.gauge("scribe_metalog_queued_requests", "Requests that wait for the committer.", func() float64 { return float64(len(e.queue)) })
	m.gauge("scribe_metalog_clock_ahead_seconds", "How far the engine's clock is ahead of the wall's, and therefore stands still.",
		func() float64 { return float64(e.clock.microsAhead()) / 1e6 })
	m.gauge("scribe_metalog_failed", "1 when the engine failed and the process must be restarted.", func() float64 {
		if e.Err() != nil {
			return 1
		}
		return 0
	})
	m.gauge("scribe_metalog_disk_bytes", "Bytes of the folder's files.", func() float64 { return e.diskBytes() })
	return m
}

func (m *engineMetrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	m.all = append(m.all, c)
	return c
}

func (m *engineMetrics) gauge(name, help string, f func() float64) {
	m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
}

// diskBytes asks Pebble, unless it must not be touched any more.
func (e *Engine) diskBytes() float64 {
	if e.enterCall() != nil {
		return 0
	}
	defer e.calls.Leave()
	return float64(e.db.Metrics().DiskSpaceUsage())
}

func (m *engineMetrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for i, c := range m.all {
		if err := r.Register(c); err != nil {
			for _, done := range m.all[:i] {
				r.Unregister(done)
			}
			return err
		}
	}
	return nil
}

func (m *engineMetrics) unregister(r prometheus.Registerer) {
	if r == nil {
		return
	}
	for _, c := range m.all {
		r.Unregister(c)
	}
}

func (m *engineMetrics) commit(took time.Duration, group, bytes int) {
	m.commitSeconds.Observe(took.Seconds())
	m.commitGroup.Observe(float64(group))
	m.commitBytes.Add(float64(bytes))
}

func (m *engineMetrics) read(entries []metalog.Entry) {
	n := 0
	for i := range entries {
		n += len(entries[i].Data)
	}
	m.readRecs.Add(float64(len(entries)))
	m.readBytes.Add(float64(n))
}

func (m *engineMetrics) append(a *metalog.Append, err error) {
	m.appends.WithLabelValues(outcome(err)).Inc()
	if err != nil {
		return
	}
	records, bytes := 0, 0
	for i := range a.Shards {
		records += len(a.Shards[i].Records)
		for _, r := range a.Shards[i].Records {
			bytes += len(r)
		}
	}
	m.appendedRecs.Add(float64(records))
	m.appendedBytes.Add(float64(bytes))
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, metalog.ErrInvalid):
		return "invalid"
	case errors.Is(err, metalog.ErrStaleBlob):
		return "stale_blob"
	case errors.Is(err, metalog.ErrSealed):
		return "sealed"
	case errors.Is(err, metalog.ErrFenced):
		return "fenced"
	case errors.Is(err, metalog.ErrConflict):
		return "conflict"
	case errors.Is(err, metalog.ErrSequence):
		return "sequence"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "cancelled"
	default:
		return "unknown"
	}
}
