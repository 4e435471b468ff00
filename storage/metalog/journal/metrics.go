package journal

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
)

// Metrics count what leaders do, over all terms of a process.
type Metrics struct {
	appends  *prometheus.CounterVec // by outcome
	resolved *prometheus.CounterVec // by outcome
	seconds  prometheus.Histogram
	payload  prometheus.Counter
	stored   prometheus.Counter
}

// NewMetrics declares the metrics in a set.
func NewMetrics(set *metrics.Set) *Metrics {
	return &Metrics{
		appends: set.CounterOf("journal_appends_total", "Appends to the journal by outcome.", "outcome",
			"ok", "full", "deposed", "unknown", "invalid", "cancelled"),
		resolved: set.CounterOf("journal_resolved_total", "Changes of the journal that failed without an outcome, by the outcome that was found later.",
			"outcome", "applied", "not_applied"),
		seconds: set.Histogram("journal_append_seconds", "Time until an entry was durable.", prometheus.ExponentialBuckets(0.0001, 2, 18)),
		payload: set.Counter("journal_payload_bytes_total", "Bytes of entries before compression."),
		stored:  set.Counter("journal_entry_bytes_total", "Bytes of entries as they are sent to the journal."),
	}
}

// newUnregistered returns metrics that nobody reads.
func newUnregistered() *Metrics { return NewMetrics(metrics.NewSet("scribe_metalog_")) }

func (m *Metrics) countAppend(err error, took time.Duration) {
	m.appends.WithLabelValues(outcomeOf(err)).Inc()
	if err == nil {
		m.seconds.Observe(took.Seconds())
	}
}

func (m *Metrics) countBytes(payload, stored int) {
	m.payload.Add(float64(payload))
	m.stored.Add(float64(stored))
}

// countResolved counts a change whose outcome is err, if it was unknown before.
func (m *Metrics) countResolved(uncertain bool, err error) {
	switch {
	case !uncertain || errors.Is(err, ErrUnknown):
	case err == nil:
		m.resolved.WithLabelValues("applied").Inc()
	default:
		m.resolved.WithLabelValues("not_applied").Inc()
	}
}

func outcomeOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrUnknown):
		return "unknown"
	case errors.Is(err, ErrFull):
		return "full"
	case errors.Is(err, ErrDeposed):
		return "deposed"
	case errors.Is(err, ErrInvalid):
		return "invalid"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "cancelled"
	default:
		return "unknown"
	}
}
