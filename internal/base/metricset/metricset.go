// Package metricset registers the metrics of a component together, and unregisters them when it closes.
//
//	m.set, err = metricset.Register(deps.Registerer, "writeproxy", m.requests, m.seconds, m)
//	...
//	m.set.Unregister() // in Close
package metricset

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Set is what was registered. A nil Set is one of nothing.
type Set struct {
	registerer prometheus.Registerer
	collectors []prometheus.Collector
}

// Register registers all collectors, or none and returns an error that names the component. A nil registerer registers nothing.
func Register(r prometheus.Registerer, component string, collectors ...prometheus.Collector) (*Set, error) {
	if r == nil {
		return nil, nil //nolint:nilnil // the nil Set is valid
	}
	s := &Set{registerer: r}
	for _, c := range collectors {
		if err := r.Register(c); err != nil {
			s.Unregister()
			return nil, fmt.Errorf("%s: register metrics: %w", component, err)
		}
		s.collectors = append(s.collectors, c)
	}
	return s, nil
}

// Unregister removes the metrics. Repeating it is harmless.
func (s *Set) Unregister() {
	if s == nil {
		return
	}
	for _, c := range s.collectors {
		s.registerer.Unregister(c)
	}
	s.collectors = nil
}
