package controlplane

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the role.
type metrics struct {
	categories prometheus.GaugeFunc
	members    prometheus.GaugeFunc
	watches    *prometheus.GaugeVec
	changes    *prometheus.CounterVec
	resets     prometheus.Counter
	resyncs    prometheus.Counter
	damaged    prometheus.Counter
	joins      prometheus.Counter
	leaves     prometheus.Counter
	expiries   prometheus.Counter
	// retiring, retired and retireFailures are of deleted categories whose logs are ended.
	retiring       prometheus.GaugeFunc
	retired        prometheus.Counter
	retireFailures prometheus.Counter
	pinHolders     prometheus.GaugeFunc
}

// gaugeSources are read when metrics are.
type gaugeSources struct{ categories, members, retiring, pinHolders func() float64 }

// Values of the labels "watch" and "change".
const (
	watchCategories = "categories"
	watchMembers    = "members"

	changeCreated = "created"
	changeUpdated = "updated"
	changeDeleted = "deleted"
)

func newMetrics(r prometheus.Registerer, now gaugeSources) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "scribe_controlplane_" + name, Help: help})
	}
	gauge := func(name, help string, f func() float64) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "scribe_controlplane_" + name, Help: help}, f)
	}
	m := &metrics{
		categories: gauge("categories", "Categories that exist.", now.categories),
		members:    gauge("members", "Processes with a lease.", now.members),
		watches: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "scribe_controlplane_watches", Help: "Running watches.",
		}, []string{"watch"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scribe_controlplane_category_changes_total", Help: "Changes of categories that this process made.",
		}, []string{"change"}),
		resets:   counter("watch_resets_total", "Category watches that had to start over since they were too far behind."),
		resyncs:  counter("store_reads_total", "Times that all categories were read from the store: at the start, and when following it failed."),
		damaged:  counter("damaged_values_total", "Values of the store that could not be read, each time they were met."),
		joins:    counter("joins_total", "Leases granted."),
		leaves:   counter("leaves_total", "Leases given back."),
		expiries: counter("expiries_total", "Leases that ended without a heartbeat."),

		retiring:       gauge("retirements_pending", "Deleted categories whose logs may still take records, so that their names can't be used again.", now.retiring),
		retired:        counter("retirements_total", "Deleted categories whose logs this process has ended."),
		retireFailures: counter("retirement_failures_total", "Attempts to end the logs of a deleted category that failed. They are repeated."),
		pinHolders:     gauge("pin_holders", "Processes whose readers hold back retention.", now.pinHolders),
	}
	for _, w := range []string{watchCategories, watchMembers} {
		m.watches.WithLabelValues(w)
	}
	for _, c := range []string{changeCreated, changeUpdated, changeDeleted} {
		m.changes.WithLabelValues(c)
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.categories, m.members, m.watches, m.changes, m.resets, m.resyncs, m.damaged, m.joins, m.leaves, m.expiries,
		m.retiring, m.retired, m.retireFailures, m.pinHolders,
	} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("controlplane: metrics: %w", err)
		}
	}
	return m, nil
}
