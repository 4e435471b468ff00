package inputs

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
	"scribe/producer"
)

// WriteMetrics are the counters of what an input writes to the agent.
type WriteMetrics struct {
	// Messages and Bytes count what the agent accepted, Dropped the lost messages by reason.
	Messages, Bytes prometheus.Counter
	Dropped         *prometheus.CounterVec

	set  *metrics.Set
	name string
}

// NetworkMetrics are the counters of one network input.
type NetworkMetrics struct {
	WriteMetrics

	// Refused counts requests or connections by reason; Truncated counts shortened messages.
	Refused   *prometheus.CounterVec
	Truncated prometheus.Counter
	// Stray counts messages that went to the fallback category because there are too many categories.
	Stray prometheus.Counter
}

// Reasons of WriteMetrics.Dropped and NetworkMetrics.Refused that several inputs use.
const (
	DropRefused  = "refused" // the agent refuses it for good
	DropFull     = "full"    // the agent has no capacity, and the source cannot wait
	DropInvalid  = "invalid" // it cannot be parsed
	DropTooLarge = "too_large"
	RefuseBusy   = "busy"
	// RefuseUnsupported is the reason for a content type or encoding that the input does not support.
	RefuseUnsupported = "unsupported"
)

// CountRefused counts a refused request by its HTTP status.
func (m *NetworkMetrics) CountRefused(status int) {
	reason := DropInvalid
	switch status {
	case http.StatusTooManyRequests:
		reason = RefuseBusy
	case http.StatusServiceUnavailable:
		reason = DropFull
	case http.StatusRequestEntityTooLarge:
		reason = DropTooLarge
	case http.StatusUnsupportedMediaType:
		reason = RefuseUnsupported
	}
	m.Refused.WithLabelValues(reason).Inc()
}

// NewNetworkMetrics registers the metrics of an input of a kind under its name; a nil reg registers nothing.
func NewNetworkMetrics(kind, name string, reg prometheus.Registerer) (*NetworkMetrics, error) {
	w, set := NewWriteMetrics(kind, name)
	m := &NetworkMetrics{
		WriteMetrics: w,
		Refused:      set.CounterVec("refused_total", "Requests or connections that were refused, by reason.", "reason"),
		Truncated:    set.Counter("truncated_messages_total", "Messages that were cut to the limit."),
		Stray:        set.Counter("stray_messages_total", "Messages that went to the fallback category: there were too many categories."),
	}
	return m, m.RegisterInput(reg)
}

// NewWriteMetrics declares the counters of an input of a kind. The input declares its other metrics in set, and calls RegisterInput.
func NewWriteMetrics(kind, name string) (m WriteMetrics, set *metrics.Set) {
	set = metrics.NewSet("scribe_inputs_" + kind + "_")
	return WriteMetrics{
		set: set, name: name,
		Messages: set.Counter("messages_total", "Messages that the agent has taken."),
		Bytes:    set.Counter("bytes_total", "Payload bytes of messages that the agent has taken."),
		Dropped:  set.CounterVec("dropped_messages_total", "Messages that were lost, by reason.", "reason"),
	}, set
}

// RegisterInput registers the metrics, with the input's name as a label; a nil reg registers nothing.
func (m *WriteMetrics) RegisterInput(reg prometheus.Registerer) error {
	if reg == nil {
		return nil
	}
	return m.set.Register(prometheus.WrapRegistererWith(prometheus.Labels{"input": m.name}, reg))
}

// Unregister removes the metrics from the registry.
func (m *WriteMetrics) Unregister() { m.set.Unregister() }

// CountWrite counts the outcome of a write to the agent, if it is final; otherwise the messages are to be written again. lost is
// how many the agent refused for good.
func (m *WriteMetrics) CountWrite(messages []producer.Message, err error) (lost int, final bool) {
	lost, size, final := Refused(messages, err)
	if final {
		m.Messages.Add(float64(len(messages) - lost))
		m.Bytes.Add(float64(PayloadBytes(messages) - size))
	}
	return lost, final
}
