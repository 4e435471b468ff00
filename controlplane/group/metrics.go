package group

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
)

// groupMetrics are the coordinator's metrics.
type groupMetrics struct {
	set       *metrics.Set
	joins     prometheus.Counter
	leaves    prometheus.Counter
	expired   prometheus.Counter
	taken     prometheus.Counter
	moved     prometheus.Counter
	commits   *prometheus.CounterVec
	conflicts prometheus.Counter
	damaged   prometheus.Counter
}

// Values of the label "result" of commits.
const (
	commitDone   = "done"
	commitFenced = "fenced"
	commitFailed = "failed"
)

func newMetrics(r prometheus.Registerer, active func() (groups, members float64)) (*groupMetrics, error) {
	set := metrics.NewSet("scribe_controlplane_")
	m := &groupMetrics{
		set:       set,
		joins:     set.Counter("group_joins_total", "Memberships of consumer groups granted."),
		leaves:    set.Counter("group_leaves_total", "Memberships that their members ended."),
		expired:   set.Counter("group_expiries_total", "Memberships that ended because their members were silent."),
		taken:     set.Counter("group_takings_total", "Times that buckets were taken away which a member should have given back."),
		moved:     set.Counter("group_moved_buckets_total", "Buckets that were granted to a member."),
		conflicts: set.Counter("group_conflicts_total", "Changes of a group that were tried again since another one came first."),
		damaged:   set.Counter("group_damaged_values_total", "Values of the store that could not be read, each time they were met."),
		commits: set.CounterVec("group_commits_total",
			"Commits by what became of them: done, fenced (the member had lost buckets of it) or failed.", "result"),
	}
	set.GaugeFunc("active_groups", "Consumer groups with members, as far as this process knows.",
		func() float64 { groups, _ := active(); return groups })
	set.GaugeFunc("group_members", "Members of consumer groups, as far as this process knows.",
		func() float64 { _, members := active(); return members })
	if err := set.Register(r); err != nil {
		return nil, fmt.Errorf("group: %w", err)
	}
	return m, nil
}
