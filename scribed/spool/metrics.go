package spool

import (
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
)

// amountCounters count records, messages and bytes.
type amountCounters struct{ records, messages, bytes prometheus.Counter }

func (c amountCounters) add(a Amount) {
	c.records.Add(float64(max(0, a.Records)))
	c.messages.Add(float64(max(0, a.Messages)))
	c.bytes.Add(float64(max(0, a.Bytes)))
}

// spoolMetrics are the metrics of one spool.
type spoolMetrics struct {
	set *metrics.Set

	appended, lost, dropped amountCounters

	syncSeconds                                  prometheus.Histogram
	syncWaits, syncFailures                      prometheus.Counter
	sealed, reclaimed, rewritten, rewrittenBytes prometheus.Counter
	damage, rebuilt, torn                        prometheus.Counter
	stateSaves, stateCut, stateDamage, diskFull  prometheus.Counter
	keyFailures                                  prometheus.Counter
}

func newMetrics(s *Spool) *spoolMetrics {
	set := metrics.NewSet("scribe_scribed_spool_")
	m, counter := &spoolMetrics{set: set}, set.Counter
	sum := func(what, help string) amountCounters {
		return amountCounters{
			counter(what+"_records_total", "Records "+help), counter(what+"_messages_total", "Messages "+help), counter(what+"_bytes_total", "Bytes of frames "+help),
		}
	}
	m.appended = sum("appended", "that were appended.")
	m.lost = sum("lost", "that were found damaged. Of a range without a readable header only the bytes are known.")
	m.dropped = sum("dropped", "dropped because of a limit or their age, or because their key was deleted.")
	m.syncSeconds = set.Histogram("sync_seconds", "How long syncs of segments took.", prometheus.ExponentialBuckets(100e-6, 2.5, 12))
	m.syncWaits = counter("sync_waits_total", "Calls that waited for a sync. They share syncs: see sync_seconds_count.")
	m.syncFailures = counter("sync_failures_total", "Failed syncs; each abandons a segment, whose records are written to another file.")
	m.sealed = counter("sealed_segments_total", "Segments that were sealed.")
	m.reclaimed = counter("reclaimed_segments_total", "Segments removed because all their records were done.")
	m.rewritten = counter("rewritten_segments_total", "Segments written to replace mostly finished or failed ones.")
	m.rewrittenBytes = counter("rewritten_bytes_total", "Bytes of rewritten segments.")
	m.damage = counter("damaged_ranges_total", "Ranges that were found damaged.")
	m.rebuilt = counter("rebuilt_indexes_total", "Footers and indexes rebuilt by reading a segment.")
	m.torn = counter("torn_bytes_total", "Bytes cut from segment ends that a crash left incomplete.")
	m.stateSaves = counter("state_saves_total", "Saves of the state.")
	m.stateCut = counter("state_cut_total", "Saves of the state that left something out for lack of space; it is given out again after a crash.")
	m.stateDamage = counter("state_damaged_total", "Damaged slots of the state file.")
	m.keyFailures = counter("key_failures_total", "Appends and claims that failed because the key of a category could not be made or unwrapped.")
	m.diskFull = counter("disk_full_total", "Times that the disk was full although the spool was not.")
	gauge := func(name, help string, value func() float64) {
		set.GaugeFunc(name, help, func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return value()
		})
	}
	gauge("used_bytes", "Bytes charged for the files, preallocated space included.", func() float64 { return float64(s.mu.used) })
	gauge("limit_bytes", "Limit of used_bytes.", func() float64 { return float64(s.cfg.MaxBytes) })
	gauge("segments", "Segments with records.", func() float64 { return float64(len(s.mu.segments)) })
	gauge("held_records", "Records neither done nor dropped.", func() float64 { return float64(s.mu.sums.held.Records) })
	gauge("held_messages", "Messages neither done nor dropped.", func() float64 { return float64(s.mu.sums.held.Messages) })
	gauge("held_bytes", "Bytes of frames neither done nor dropped.", func() float64 { return float64(s.mu.sums.held.Bytes) })
	gauge("unsynced_bytes", "Bytes appended and not yet synced.", func() float64 { return float64(s.mu.unsynced) })
	gauge("index_bytes", "Memory of the indexes of sealed segments.", func() float64 { return float64(s.mu.indexes.used) })
	gauge("quarantined_bytes", "Bytes of damaged ranges in the quarantine.", func() float64 { return float64(s.quarantine.usedBytes()) })
	set.GaugeFunc("encrypted", "1 if records are encrypted before they are written.", func() float64 {
		if s.keys.Encrypts() {
			return 1
		}
		return 0
	})
	set.GaugeFunc("keys", "Keys of categories in the folder.", func() float64 { return float64(s.keys.Count()) })
	gauge("disk_full", "1 while appends are refused because the disk is full.", func() float64 {
		if s.mu.diskFull {
			return 1
		}
		return 0
	})
	return m
}
