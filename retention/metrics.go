package retention

import (
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
)

// Values of the label "kind".
const (
	kindExpired = "expired"
	kindOrphan  = "orphan"
)

// Values of the label "reason".
const (
	reasonDamaged = "damaged"
	reasonNewer   = "newer"
	reasonUnknown = "unknown"
)

type keeperMetrics struct {
	*metrics.Set

	boundary, sliceLag, trimLag, doomed, doomBytes, held, dropped, unused, removalsHeld prometheus.Gauge

	trimmed, trims, revoked, overtaken, erased, removed, examined, sweeps, requests prometheus.Counter

	collected, freed, kept, failures *prometheus.CounterVec
}

func newKeeperMetrics(r prometheus.Registerer, c *Keeper) (*keeperMetrics, error) {
	set := metrics.NewSet("scribe_retention_")
	flag := func(name, help string, on func() bool) {
		set.GaugeFunc(name, help, func() float64 {
			if on() {
				return 1
			}
			return 0
		})
	}
	flag("leads", "1: this process is the leading keeper.", c.Leads)
	flag("halted", "1: this process leads but deletes nothing: the blob store has another cell's claim, or the metadata logs are older than the blobs.",
		func() bool { return c.Halted() != nil })
	m := &keeperMetrics{
		Set:       set,
		boundary:  set.Gauge("boundary_age_seconds", "Age of the boundary: younger blobs are not examined."),
		sliceLag:  set.Gauge("blobs_lag_seconds", "How long the next blobs to examine have been due."),
		trimLag:   set.Gauge("logs_lag_seconds", "How long the next category to trim has been due."),
		doomed:    set.Gauge("doomed_blobs", "Dead blobs that wait for their deletion."),
		doomBytes: set.Gauge("doomed_bytes", "Bytes of dead blobs that wait for their deletion."),
		held:      set.Gauge("held_categories", "Categories whose trimming readers delay."),
		dropped:   set.Gauge("dropped_categories", "Deleted categories whose logs are not erased yet."),
		trimmed:   set.Counter("trimmed_pointers_total", "Pointers trimmed."),
		trims:     set.Counter("trims_total", "Trims of logs."),
		revoked:   set.Counter("revoked_pins_total", "Trims of categories beyond a reader's pin, which had reached its limit."),
		overtaken: set.Counter("overtaken_categories_total", "Times that a category was trimmed beyond its sequencer, which lagged too far."),
		erased:    set.Counter("erased_categories_total", "Deleted categories whose logs were erased."),
		unused:    set.Gauge("unused_logs", "Empty logs that nobody has used for long and that wait for their removal."),
		removed:   set.Counter("removed_logs_total", "Empty logs that were removed."),
		removalsHeld: set.Gauge("removals_held", "1 while no empty log is removed, since some member of the cell does not know removed logs, or did not until a moment ago."),
		examined:  set.Counter("examined_blobs_total", "Blobs examined for references."),
		sweeps:    set.Counter("sweeps_total", "Completed listings of all blobs."),
		requests:  set.Counter("store_requests_total", "Requests to the blob store; a listing of up to 1000 blobs is one."),
		collected: set.CounterOf("collected_blobs_total", "Blobs deleted.", "kind", kindExpired, kindOrphan),
		freed:     set.CounterOf("collected_bytes_total", "Bytes of deleted blobs.", "kind", kindExpired, kindOrphan),
		kept: set.CounterOf("kept_blobs_total", "Times that a blob was kept because its references are unknown.", "reason",
			reasonDamaged, reasonNewer, reasonUnknown),
		failures: set.CounterOf("failures_total", "Steps that failed and are retried.", "step", "lease", "claim", "logs", "removal", "blobs"),
	}
	return m, m.Register(r)
}
