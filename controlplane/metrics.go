package controlplane

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
)

// roleMetrics are the role's metrics.
type roleMetrics struct {
	watches *prometheus.GaugeVec
	changes *prometheus.CounterVec
	resets  prometheus.Counter
	resyncs prometheus.Counter
	// accessChanges counts changes of tokens and grants.
	accessChanges *prometheus.CounterVec
	damaged       prometheus.Counter
	joins         prometheus.Counter
	leaves        prometheus.Counter
	expiries      prometheus.Counter
	// refusals counts processes that were not admitted, by what was wrong.
	refusals *prometheus.CounterVec
	// retired and retireFailures count retirements of deleted categories.
	retired        prometheus.Counter
	retireFailures prometheus.Counter
	// leaderChanges, beatFailures and forwarded are of control planes that share a store.
	leaderChanges prometheus.Counter
	beatFailures  prometheus.Counter
	forwarded     *prometheus.CounterVec
	quotaReports  prometheus.Counter
	// planChanges and planFailures count writes of plans of micro-shards.
	planChanges  prometheus.Counter
	splits       prometheus.Counter
	planFailures prometheus.Counter
}

// Values of the labels "watch" and "change".
const (
	watchCategories = "categories"
	watchMembers    = "members"
	watchAccess     = "access"

	changeCreated = "created"
	changeUpdated = "updated"
	changeDeleted = "deleted"

	forwardDone    = "done"
	forwardFailed  = "failed"
	forwardRefused = "refused"

	refusedID    = "id"
	refusedStore = "store"
)

// measureLeading returns 1 if this control plane leads.
func (c *ControlPlane) measureLeading() float64 {
	if c.leadership.currentTerm(time.Now()) == nil {
		return 0
	}
	return 1
}

func newMetrics(r prometheus.Registerer, c *ControlPlane) (*roleMetrics, error) {
	set := metrics.NewSet("scribe_controlplane_")
	m := &roleMetrics{
		watches: set.GaugeVec("watches", "Running watches.", "watch"),
		changes: set.CounterOf("category_changes_total", "Changes of categories that this process made.", "change",
			changeCreated, changeUpdated, changeDeleted),
		resets:  set.Counter("watch_resets_total", "Category watches that had to start over since they were too far behind."),
		resyncs: set.Counter("store_reads_total", "Times that all categories were read from the store: at the start, and when following it failed."),
		accessChanges: set.CounterOf("access_changes_total", "Changes of tokens, grants and ticket keys that this process made.", "change",
			accessIssued, accessRevoked, accessGranted, accessUngranted, accessTended),
		damaged:        set.Counter("damaged_values_total", "Values of the store that could not be read, each time they were met."),
		joins:          set.Counter("joins_total", "Leases granted."),
		leaves:         set.Counter("leaves_total", "Leases given back."),
		expiries:       set.Counter("expiries_total", "Leases that ended without a heartbeat."),
		refusals:       set.CounterOf("refused_members_total", "Processes that were refused as members: another one has their id, or their store of payloads is not the cell's.", "why", refusedID, refusedStore),
		retired:        set.Counter("retirements_total", "Deleted categories whose logs this process has ended."),
		retireFailures: set.Counter("retirement_failures_total", "Attempts to end the logs of a deleted category that failed. They are repeated."),
		splits:         set.Counter("shard_splits_total", "Logical shards that this process has split since they were too busy."),
		planChanges:    set.Counter("plan_changes_total", "Plans of categories' micro-shards that this process has changed."),
		planFailures:   set.Counter("plan_failures_total", "Times that plans could not be read or stored. They are repeated."),
		leaderChanges:  set.Counter("leader_changes_total", "Terms of control planes, and ends of terms, that this process has seen."),
		beatFailures:   set.Counter("beat_failures_total", "Times that this process led and could not confirm it in the store."),
		forwarded: set.CounterOf("forwarded_calls_total", "Calls that only the leader serves, and that were passed on to it, or refused because none was known.", "result",
			forwardDone, forwardFailed, forwardRefused),
		quotaReports: set.Counter("quota_reports_total", "Reports of what processes want of quotas, which this process answered as the leader."),
	}
	set.GaugeFunc("quota_categories", "Quotas of categories and tenants that are divided by what processes want, those for writing and those for reading.", func() float64 {
		n, _ := c.quotas.countDivided()
		return float64(n)
	})
	set.GaugeFunc("tenant_quotas", "Owners and prefixes of names that have a quota.", func() float64 { return float64(c.tenants.count()) })
	set.CounterFunc("quota_divisions_total", "Divisions of a quota among processes.", func() float64 {
		_, n := c.quotas.countDivided()
		return float64(n)
	})
	set.GaugeFunc("leads", "1 while this control plane leads, or has its store for itself.", c.measureLeading)
	set.GaugeFunc("term", "How many control planes have led, the present one included; 0 where one has its store for itself.", func() float64 {
		seen, _ := c.leadership.seenTerm()
		return float64(seen.Term)
	})
	set.GaugeFunc("categories", "Categories that exist.", func() float64 { return float64(c.feed.countLive()) })
	set.GaugeFunc("planned_categories", "Categories whose micro-shards are planned, since they have traffic or had it at this time of another day.",
		func() float64 { return float64(c.plans.countLive()) })
	set.GaugeFunc("reported_shards", "Logical shards of which write proxies report traffic.", func() float64 { return float64(len(c.traffic.addUp(time.Now()))) })
	set.GaugeFunc("members", "Processes with a lease.", func() float64 { return float64(c.members.countMembers()) })
	set.GaugeFunc("retirements_pending", "Deleted categories whose logs may still take records, so that their names can't be used again.",
		func() float64 { return float64(c.retireSchedule.countPending()) })
	set.GaugeFunc("pin_holders", "Processes whose readers hold back retention.", func() float64 { return float64(c.pins.countHolders()) })
	for _, w := range []string{watchCategories, watchMembers, watchAccess} {
		m.watches.WithLabelValues(w)
	}
	if err := set.Register(r); err != nil {
		return nil, fmt.Errorf("controlplane: %w", err)
	}
	return m, nil
}
