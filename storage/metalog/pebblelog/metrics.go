package pebblelog

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
	"scribe/storage/metalog"
	"scribe/storage/metalog/journal"
)

// engineMetrics are the engine's metrics. None of them is per shard or category.
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
	removed       prometheus.Counter
	background    prometheus.Counter
	stalls        prometheus.Counter
	// annotations counts annotations kept, badAnnotations those found damaged by a read.
	annotations, badAnnotations prometheus.Counter
	// The others are those of replicas; an engine of its own does not show them.
	barrierSeconds             prometheus.Histogram
	journalErrors, journalFull prometheus.Counter
	snapshots                  *prometheus.CounterVec // by outcome
	snapshotBytes, seeds       prometheus.Counter

	set *metrics.Set
}

func newMetrics(e *Engine) *engineMetrics {
	set := metrics.NewSet("scribe_metalog_")
	m := &engineMetrics{
		set:            set,
		appends:        set.CounterVec("appends_total", "Transactions by outcome: ok, or why they were refused; unknown counts those that failed otherwise.", "outcome"),
		appendedRecs:   set.Counter("appended_records_total", "Records that were appended."),
		appendedBytes:  set.Counter("appended_bytes_total", "Bytes of the records that were appended."),
		readRecs:       set.Counter("read_records_total", "Records that Read returned."),
		readBytes:      set.Counter("read_bytes_total", "Bytes of the records that Read returned."),
		commitBytes:    set.Counter("commit_bytes_total", "Bytes of batches written to the write-ahead log."),
		background:     set.Counter("background_errors_total", "Flushes and compactions that failed."),
		annotations:    set.Counter("annotations_total", "Annotations that were kept beside records."),
		badAnnotations: set.Counter("damaged_annotations_total", "Annotations that were damaged when they were read, and left out."),
		stalls:         set.Counter("write_stalls_total", "Times that appends had to wait for flushes or compactions."),
		commitSeconds:  set.Histogram("commit_seconds", "Time to write and sync one batch.", prometheus.ExponentialBuckets(0.0001, 2, 18)),
		commitGroup:    set.Histogram("commit_requests", "Requests that shared one sync.", prometheus.ExponentialBuckets(1, 2, 11)),
		subscriptions:  set.Gauge("subscriptions", "Running subscriptions."),
		removed:        set.Counter("removed_shards_total", "Empty shards that were removed from the lists of their categories."),
	}
	set.GaugeFunc("cached_shards", "Shards whose state is in memory.", func() float64 { return float64(e.table.len()) })
	set.GaugeFunc("queued_requests", "Requests that wait for the committer.", func() float64 { return float64(len(e.queue)) })
	set.GaugeFunc("clock_ahead_seconds", "How far the engine's clock is ahead of the wall's, and therefore stands still.",
		func() float64 { return float64(e.clock.microsAhead()) / 1e6 })
	set.GaugeFunc("failed", "1 when the engine failed and the process must be restarted.", func() float64 {
		if e.Err() != nil {
			return 1
		}
		return 0
	})
	set.GaugeFunc("disk_bytes", "Bytes of the folder's files.", e.diskBytes)
	if e.replica != nil {
		m.addReplica(e)
	}
	return m
}

// addReplica declares the metrics of a replica.
func (m *engineMetrics) addReplica(e *Engine) {
	m.barrierSeconds = m.set.Histogram("barrier_seconds", "Time that reads waited until this replica was up to date.", prometheus.ExponentialBuckets(0.0001, 2, 18))
	m.journalErrors = m.set.Counter("journal_errors_total", "Looks at the journal's head that failed.")
	m.journalFull = m.set.Counter("journal_full_total", "Groups that the journal had no room for.")
	m.snapshots = m.set.CounterOf("snapshots_total", "Snapshots of the folder by outcome.", "outcome", "ok", "failed")
	m.snapshotBytes = m.set.Counter("snapshot_bytes_total", "Bytes of tables that were uploaded for snapshots.")
	m.seeds = m.set.Counter("seeds_total", "Times that the folder was replaced by a snapshot.")
	m.set.GaugeFunc("leading", "1 while this replica leads.", func() float64 {
		if leads, _ := e.Leading(); leads {
			return 1
		}
		return 0
	})
	m.set.GaugeFunc("term", "The newest leader's term that this replica knows.", func() float64 {
		_, term := e.Leading()
		return float64(term)
	})
	m.set.GaugeFunc("applied_seq", "The newest entry of the journal that this replica shows.", func() float64 { return float64(e.Position().Applied) })
	m.set.GaugeFunc("lag_entries", "Entries of the journal that this replica knows of and does not show yet.", func() float64 {
		p := e.Position()
		return float64(p.Head - p.Applied)
	})
	e.replica.counts = journal.NewMetrics(m.set)
}

// diskBytes returns Pebble's disk usage, unless the engine may not touch Pebble any more.
func (e *Engine) diskBytes() float64 {
	if e.enterCall() != nil {
		return 0
	}
	defer e.leaveCall()
	return float64(e.db.Metrics().DiskSpaceUsage())
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

// refusals are the outcomes of appends that were refused.
var refusals = map[error]string{
	metalog.ErrInvalid: "invalid", metalog.ErrStaleBlob: "stale_blob", metalog.ErrSealed: "sealed", metalog.ErrFenced: "fenced",
	metalog.ErrConflict: "conflict", metalog.ErrSequence: "sequence",
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "cancelled"
	default:
		return cmp.Or(refusals[metalog.FindSentinel(err)], "unknown")
	}
}
