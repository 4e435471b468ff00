package spool

import (
	"github.com/prometheus/client_golang/prometheus"
)

const namespace = "scribe_scribed_spool_"

// amountCounters are three counters.
type amountCounters struct{ records, messages, bytes prometheus.Counter }

func (c amountCounters) add(a Amount) {
	c.records.Add(float64(max(0, a.Records)))
	c.messages.Add(float64(max(0, a.Messages)))
	c.bytes.Add(float64(max(0, a.Bytes)))
}

// spoolMetrics are those of one spool.
type spoolMetrics struct {
	registerer prometheus.Registerer
	all        []prometheus.Collector

	appended, lost, dropped amountCounters

	syncSeconds                                  prometheus.Histogram
	syncWaits, syncFailures                      prometheus.Counter
	sealed, reclaimed, rewritten, rewrittenBytes prometheus.Counter
	damage, rebuilt, torn                        prometheus.Counter
	stateSaves, stateCut, stateDamage, diskFull  prometheus.Counter
}

func newMetrics(s *Spool) *spoolMetrics {
	m := &spoolMetrics{}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: namespace + name, Help: help})
		m.all = append(m.all, c)
		return c
	}
	sum := func(what, help string) amountCounters {
		return amountCounters{
			counter(what+"_records_total", "Records "+help), counter(what+"_messages_total", "Messages "+help), counter(what+"_bytes_total", "Bytes of frames "+help),
		}
	}
	m.appended = sum("appended", "that were appended.")
	m.lost = sum("lost", "that were found damaged. Of a range without a readable header only the bytes are known.")
	m.dropped = sum("dropped", "that were dropped to make room or because of their age.")
	m.syncSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: namespace + "sync_seconds", Help: "How long syncs of segments took.", Buckets: prometheus.ExponentialBuckets(100e-6, 2.5, 12),
	})
	m.all = append(m.all, m.syncSeconds)
	m.syncWaits = counter("sync_waits_total", "Calls that waited for a sync. They share syncs: see sync_seconds_count.")
	m.syncFailures = counter("sync_failures_total", "Syncs that failed; the segment was given up and what it held written to another file.")
	m.sealed = counter("sealed_segments_total", "Segments that got their footer.")
	m.reclaimed = counter("reclaimed_segments_total", "Segments that were removed since everything in them was done.")
	m.rewritten = counter("rewritten_segments_total", "Files that were written to replace others of which the most was done, or that failed.")
	m.rewrittenBytes = counter("rewritten_bytes_total", "Bytes of those files.")
	m.damage = counter("damaged_ranges_total", "Ranges that were found damaged.")
	m.rebuilt = counter("rebuilt_indexes_total", "Footers and indexes that were worked out by reading a segment.")
	m.torn = counter("torn_bytes_total", "Bytes that a crash had not let to disk as a whole, and that were cut.")
	m.stateSaves = counter("state_saves_total", "Saves of the state.")
	m.stateCut = counter("state_cut_total", "Saves of the state that had no room for everything; what was left out is given out again after a crash.")
	m.stateDamage = counter("state_damaged_total", "Damaged slots of the state file.")
	m.diskFull = counter("disk_full_total", "Times that the disk was full although the spool was not.")
	gauge := func(name, help string, value func() float64) {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: namespace + name, Help: help}, func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return value()
		}))
	}
	gauge("used_bytes", "What the files count, preallocated space included.", func() float64 { return float64(s.mu.used) })
	gauge("limit_bytes", "What they may count.", func() float64 { return float64(s.cfg.MaxBytes) })
	gauge("segments", "Segments with records.", func() float64 { return float64(len(s.mu.segments)) })
	gauge("held_records", "Records that are neither done nor dropped.", func() float64 { return float64(s.mu.sums.held.Records) })
	gauge("held_messages", "Messages that are neither done nor dropped.", func() float64 { return float64(s.mu.sums.held.Messages) })
	gauge("held_bytes", "Bytes of frames that are neither done nor dropped.", func() float64 { return float64(s.mu.sums.held.Bytes) })
	gauge("unsynced_bytes", "What is appended and not yet synced.", func() float64 { return float64(s.mu.unsynced) })
	gauge("index_bytes", "Memory of the indexes of sealed segments.", func() float64 { return float64(s.mu.indexes.used) })
	gauge("quarantined_bytes", "What is kept of damaged ranges.", func() float64 { return float64(s.quarantine.usedBytes()) })
	gauge("disk_full", "1 while nothing is appended since the disk is full.", func() float64 {
		if s.mu.diskFull {
			return 1
		}
		return 0
	})
	return m
}

func (m *spoolMetrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for i, c := range m.all {
		if err := r.Register(c); err != nil {
			for _, c := range m.all[:i] {
				r.Unregister(c)
			}
			return err
		}
	}
	m.registerer = r
	return nil
}

func (m *spoolMetrics) unregister() {
	if m.registerer == nil {
		return
	}
	for _, c := range m.all {
		m.registerer.Unregister(c)
	}
}
