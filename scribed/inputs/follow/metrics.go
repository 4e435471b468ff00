package follow

import (
	"github.com/prometheus/client_golang/prometheus"

	"scribe/scribed/inputs"
)

// followMetrics are the metrics of one input, labeled with its name.
type followMetrics struct {
	inputs.WriteMetrics

	long                   *prometheus.CounterVec // by how they were handled
	rotations, truncations prometheus.Counter
	failures               prometheus.Counter
	files, open, lag       prometheus.Gauge
}

// dropLong is the reason of drops of long lines, as Config.LongLines says.
const dropLong = "too_long"

func newMetrics(name string, reg prometheus.Registerer) (*followMetrics, error) {
	w, set := inputs.NewWriteMetrics("follow", name)
	m := &followMetrics{
		WriteMetrics: w,
		long:         set.CounterVec("long_lines_total", "Lines over the limit, by what was done with them.", "action"),
		rotations:    set.Counter("rotations_total", "Files that were renamed or removed."),
		truncations:  set.Counter("truncations_total", "Files that were truncated or overwritten in place, and are read from their beginning again."),
		failures:     set.Counter("failures_total", "Failed scans, reads, deliveries and saves; each is retried."),
		files:        set.Gauge("files", "Followed files."),
		open:         set.Gauge("open_files", "Open files."),
		lag:          set.Gauge("lag_bytes", "Bytes of the files that are not delivered yet."),
	}
	return m, m.RegisterInput(reg)
}
