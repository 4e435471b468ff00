package metricset

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestRegister(t *testing.T) {
	counter := func(name string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: "Test."})
	}
	r := prometheus.NewPedanticRegistry()
	registered := func() int {
		t.Helper()
		all, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	s, err := Register(r, "role", counter("a"), counter("b"))
	if err != nil || registered() != 2 {
		t.Fatalf("%d metrics are registered: %v", registered(), err)
	}
	if _, err := Register(r, "role", counter("c"), counter("a")); err == nil || !strings.HasPrefix(err.Error(), "role: register metrics: ") || registered() != 2 {
		t.Errorf("%d metrics are registered after a conflict: %v", registered(), err)
	}
	s.Unregister()
	s.Unregister()
	if registered() != 0 {
		t.Errorf("%d metrics are left", registered())
	}
	none, err := Register(nil, "role", counter("a"))
	if err != nil {
		t.Error(err)
	}
	none.Unregister()
}
