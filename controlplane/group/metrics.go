package group

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the coordinator.
type metrics struct {
	registerer prometheus.Registerer
	all        []prometheus.Collector
	joins      prometheus.Counter
	leaves     prometheus.Counter
	expired    prometheus.Counter
	taken      prometheus.Counter
	moved      prometheus.Counter
	commits    *prometheus.CounterVec
	conflicts  prometheus.Counter
	damaged    prometheus.Counter
}

// Values of the label "result" of commits.
const (
	commitDone   = "done"
	commitFenced = "fenced"
	commitFailed = "failed"
)

func newMetrics(r prometheus.Registerer, active func() (groups, members float64)) (*metrics, error) {
	m := &metrics{registerer: r}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "scribe_controlplane_group_" + name, Help: help})
		m.all = append(m.all, c)
		return c
	}
	m.joins = counter("joins_total", "Memberships of consumer groups granted.")
	m.leaves = counter("leaves_total", "Memberships that their members ended.")
	m.expired = counter("expiries_total", "Memberships that ended because their members were silent.")
	m.taken = counter("takings_total", "Times that buckets were taken away which a member should have given back.")
	m.moved = counter("moved_buckets_total", "Buckets that were granted to a member.")
	m.conflicts = counter("conflicts_total", "Changes of a group that were tried again since another one came first.")
	m.damaged = counter("damaged_values_total", "Values of the store that could not be read, each time they were met.")
	m.commits = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "scribe_controlplane_group_commits_total",
		Help: "Commits by what became of them: done, fenced (the member had lost buckets of it) or failed.",
	}, []string{"result"})
	m.all = append(m.all, m.commits,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "scribe_controlplane_active_groups", Help: "Consumer groups with members, as far as this process knows.",
		}, func() float64 { groups, _ := active(); return groups }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "scribe_controlplane_group_members", Help: "Members of consumer groups, as far as this process knows.",
		}, func() float64 { _, members := active(); return members }))
	if r == nil {
		return m, nil
	}
	for i, c := range m.all {
		if err := r.Register(c); err != nil {
			for _, done := range m.all[:i] {
				r.Unregister(done)
			}
			return nil, fmt.Errorf("group: register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) close() {
	if m.registerer != nil {
		for _, c := range m.all {
			m.registerer.Unregister(c)
		}
	}
}
