package sequencer

import (
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
)

// Values of the label "step".
const (
	stepOpen    = "open"
	stepStream  = "stream"
	stepPointer = "pointer"
	stepAppend  = "append"
	stepTrim    = "trim"
)

type roleMetrics struct {
	*metrics.Set

	terms, fenced, pointers, messages, gaps, late prometheus.Counter

	refused       prometheus.Gauge
	failures      *prometheus.CounterVec
	appendSeconds prometheus.Histogram
}

func newMetrics(r prometheus.Registerer, s *Sequencer) (*roleMetrics, error) {
	set := metrics.NewSet("scribe_sequencer_")
	m := &roleMetrics{
		Set:           set,
		terms:         set.Counter("terms_total", "Takeovers of categories by this process."),
		fenced:        set.Counter("fenced_total", "Terms that ended because another sequencer took over the category."),
		pointers:      set.Counter("pointers_total", "Pointers appended to sequenced logs."),
		messages:      set.Counter("messages_total", "Messages of the appended pointers."),
		gaps:          set.Counter("gaps_total", "Gaps appended to sequenced logs: pointers trimmed or damaged before they were sequenced."),
		late:          set.Counter("late_pointers_total", "Pointers sequenced after one with a later persisted time: the engine broke its guarantee."),
		refused:       set.Gauge("refused_categories", "Categories beyond this process's limit, which it does not sequence."),
		failures:      set.CounterOf("failures_total", "Steps that failed and are retried.", "step", stepOpen, stepStream, stepPointer, stepAppend, stepTrim),
		appendSeconds: set.Histogram("append_seconds", "Duration of an append to a sequenced log.", prometheus.ExponentialBuckets(0.0005, 2, 14)),
	}
	set.GaugeFunc("categories", "Categories of this process.", func() float64 { return float64(s.readStatus().categories) })
	set.GaugeFunc("sequencing_categories", "Categories of this process that have a stream.", func() float64 { return float64(s.readStatus().sequencing) })
	set.GaugeFunc("failing_categories", "Categories of this process whose last step failed.", func() float64 { return float64(s.readStatus().failing) })
	set.GaugeFunc("lag_seconds", "Largest lag of a category's sequenced log behind the clock.", func() float64 { return s.readStatus().lag.Seconds() })
	return m, m.Register(r)
}
