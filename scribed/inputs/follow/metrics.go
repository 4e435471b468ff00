package follow

import (
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
	"scribe/scribed/inputs"
)

// followMetrics are the metrics of one input, labeled with its name.
type followMetrics struct {
	messages, bytes        prometheus.Counter
	dropped                *prometheus.CounterVec // by reason
	long                   *prometheus.CounterVec // by how they were handled
	rotations, truncations prometheus.Counter
	failures               prometheus.Counter
	files, open, lag       prometheus.Gauge

	set *metrics.Set
}

// Reasons of drops.
const (
	dropRefused = "refused"  // the agent refuses it for good
	dropLong    = "too_long" // and Config.LongLines is drop
)

func newMetrics(name string, reg prometheus.Registerer) (*followMetrics, error) {
	set := metrics.NewSet("scribe_inputs_follow_")
	m := &followMetrics{
		set:         set,
		messages:    set.Counter("messages_total", "Messages that the agent has taken."),
		bytes:       set.Counter("bytes_total", "Payload bytes of messages that the agent has taken."),
		dropped:     set.CounterVec("dropped_messages_total", "Messages that were lost, by reason.", "reason"),
		long:        set.CounterVec("long_lines_total", "Lines over the limit, by what was done with them.", "action"),
		rotations:   set.Counter("rotations_total", "Files that were renamed or removed."),
		truncations: set.Counter("truncations_total", "Files that were truncated or overwritten in place, and are read from their beginning again."),
		failures:    set.Counter("failures_total", "Failed scans, reads, deliveries and saves; each is retried."),
		files:       set.Gauge("files", "Followed files."),
		open:        set.Gauge("open_files", "Open files."),
		lag:         set.Gauge("lag_bytes", "Bytes of the files that are not delivered yet."),
	}
	return m, inputs.RegisterInput(set, name, reg)
}
