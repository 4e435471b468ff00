package metrics_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"scribe/internal/base/metrics"
)

// declare makes a set with a metric of each kind.
func declare() *metrics.Set {
	set := metrics.NewSet("scribe_test_")
	set.Counter("calls_total", "Calls.").Add(3)
	set.CounterOf("failures_total", "Failures.", "step", "open", "append")
	set.GaugeFunc("lag_seconds", "Lag.", func() float64 { return 1.5 })
	var held, taken metrics.Value
	values := set.Snapshot(func(send metrics.Send) {
		send(held, 7)
		send(taken, 8, "large")
	})
	held, taken = values.Gauge("held_bytes", "Bytes held."), values.Counter("taken_total", "Taken.", "class")
	return set
}

func TestSet(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	set := declare()
	if err := set.Register(r); err != nil {
		t.Fatal(err)
	}
	want := `
# HELP scribe_test_calls_total Calls.
# TYPE scribe_test_calls_total counter
scribe_test_calls_total 3
# HELP scribe_test_failures_total Failures.
# TYPE scribe_test_failures_total counter
scribe_test_failures_total{step="append"} 0
scribe_test_failures_total{step="open"} 0
# HELP scribe_test_held_bytes Bytes held.
# TYPE scribe_test_held_bytes gauge
scribe_test_held_bytes 7
# HELP scribe_test_lag_seconds Lag.
# TYPE scribe_test_lag_seconds gauge
scribe_test_lag_seconds 1.5
# HELP scribe_test_taken_total Taken.
# TYPE scribe_test_taken_total counter
scribe_test_taken_total{class="large"} 8
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want)); err != nil {
		t.Error(err)
	}

	// A set that can't be registered leaves nothing behind, and one that is unregistered makes way.
	other := metrics.NewSet("scribe_test_")
	other.Counter("others_total", "Others.")
	other.Counter("calls_total", "Calls.")
	if err := other.Register(r); err == nil || !strings.Contains(err.Error(), "scribe_test_") {
		t.Errorf("a second set of the same names: %v", err)
	}
	set.Unregister()
	if n, err := testutil.GatherAndCount(r); n != 0 || err != nil {
		t.Errorf("%d metrics are left: %v", n, err)
	}
	if err := other.Register(r); err != nil {
		t.Error(err)
	}
	if err := declare().Register(nil); err != nil {
		t.Error(err)
	}
}
