package retention

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
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

type metrics struct {
	registerer prometheus.Registerer
	all        []prometheus.Collector

	boundary  prometheus.Gauge
	sliceLag  prometheus.Gauge
	trimLag   prometheus.Gauge
	doomed    prometheus.Gauge
	doomBytes prometheus.Gauge
	held      prometheus.Gauge
	dropped   prometheus.Gauge
	trimmed   prometheus.Counter
	trims     prometheus.Counter
	revoked   prometheus.Counter
	overtaken prometheus.Counter
	erased    prometheus.Counter
	examined  prometheus.Counter
	sweeps    prometheus.Counter
	requests  prometheus.Counter
	collected *prometheus.CounterVec
	freed     *prometheus.CounterVec
	kept      *prometheus.CounterVec
	failures  *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer, c *Keeper) (*metrics, error) {
	m := &metrics{registerer: r}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "scribe_retention_" + name, Help: help})
		m.all = append(m.all, g)
		return g
	}
	counter := func(name, help string) prometheus.Counter {
		g := prometheus.NewCounter(prometheus.CounterOpts{Name: "scribe_retention_" + name, Help: help})
		m.all = append(m.all, g)
		return g
	}
	labelled := func(name, help, label string, values ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "scribe_retention_" + name, Help: help}, []string{label})
		for _, value := range values {
			v.WithLabelValues(value)
		}
		m.all = append(m.all, v)
		return v
	}
	flag := func(name, help string, on func() bool) {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "scribe_retention_" + name, Help: help}, func() float64 {
			if on() {
				return 1
			}
			return 0
		}))
	}
	flag("leads", "1: this process is the keeper that works.", c.Leads)
	flag("halted", "1: this process leads, and collects nothing, since the blobs have another cell's claim or the metadata logs are older than they.",
		func() bool { return c.Halted() != nil })
	m.boundary = gauge("boundary_age_seconds", "Age of the boundary: blobs that are younger are not looked at.")
	m.sliceLag = gauge("blobs_lag_seconds", "For how long the blobs that are examined next have been due.")
	m.trimLag = gauge("logs_lag_seconds", "For how long the category that is trimmed next has been due.")
	m.doomed = gauge("doomed_blobs", "Dead blobs that wait to be deleted.")
	m.doomBytes = gauge("doomed_bytes", "Bytes of dead blobs that wait to be deleted.")
	m.held = gauge("held_categories", "Categories whose trimming readers hold back.")
	m.dropped = gauge("dropped_categories", "Deleted categories of which something is left.")
	m.trimmed = counter("trimmed_pointers_total", "Pointers that were trimmed.")
	m.trims = counter("trims_total", "Logs that were trimmed.")
	m.revoked = counter("revoked_pins_total", "Times that a category was trimmed although readers needed it still, since they held it back for too long.")
	m.overtaken = counter("overtaken_categories_total", "Times that pointers were trimmed which their sequencer had not sequenced, since it was behind for too long.")
	m.erased = counter("erased_categories_total", "Deleted categories whose logs were removed.")
	m.examined = counter("examined_blobs_total", "Blobs of which it was decided whether they are dead.")
	m.sweeps = counter("sweeps_total", "Times that all blobs were listed.")
	m.requests = counter("store_requests_total", "Requests to the blob store, a listing of up to 1000 blobs being one.")
	m.collected = labelled("collected_blobs_total", "Blobs that were deleted.", "kind", kindExpired, kindOrphan)
	m.freed = labelled("collected_bytes_total", "Bytes of blobs that were deleted.", "kind", kindExpired, kindOrphan)
	m.kept = labelled("kept_blobs_total", "Times that a blob was kept since nobody can say whether it is dead.", "reason", reasonDamaged, reasonNewer, reasonUnknown)
	m.failures = labelled("failures_total", "Steps that failed and are tried again.", "step", "lease", "claim", "logs", "blobs")
	if r == nil {
		return m, nil
	}
	for i, x := range m.all {
		if err := r.Register(x); err != nil {
			m.all = m.all[:i]
			m.close()
			return nil, fmt.Errorf("retention: metrics: %w", err)
		}
	}
	return m, nil
}

// close unregisters the metrics.
func (m *metrics) close() {
	if m.registerer == nil {
		return
	}
	for _, x := range m.all {
		m.registerer.Unregister(x)
	}
}
