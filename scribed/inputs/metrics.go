package inputs

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
	"scribe/producer"
)

// NetworkMetrics are the counters of one network input.
type NetworkMetrics struct {
	// Messages and Bytes count what the agent accepted.
	Messages, Bytes prometheus.Counter
	// Dropped counts messages and Refused requests or connections, by reason; Truncated counts shortened messages.
	Dropped, Refused *prometheus.CounterVec
	Truncated        prometheus.Counter
	// Stray counts messages that went to the fallback category because there are too many categories.
	Stray prometheus.Counter

	set *metrics.Set
}

// Reasons of NetworkMetrics.Dropped and NetworkMetrics.Refused that several inputs use.
const (
	DropRefused  = "refused" // the agent refuses it for good
	DropFull     = "full"    // the agent has no capacity, and the source cannot wait
	DropInvalid  = "invalid" // it cannot be parsed
	DropTooLarge = "too_large"
	RefuseBusy   = "busy"
	// RefuseUnsupported is the reason for a content type or encoding that the input does not support.
	RefuseUnsupported = "unsupported"
)

// RefusalReason returns the label of an HTTP status in NetworkMetrics.Refused.
func RefusalReason(status int) string {
	switch status {
	case http.StatusTooManyRequests:
		return RefuseBusy
	case http.StatusServiceUnavailable:
		return DropFull
	case http.StatusRequestEntityTooLarge:
		return DropTooLarge
	case http.StatusUnsupportedMediaType:
		return RefuseUnsupported
	}
	return DropInvalid
}

// NewNetworkMetrics registers the metrics of an input of a kind under its name; a nil reg registers nothing.
func NewNetworkMetrics(kind, name string, reg prometheus.Registerer) (*NetworkMetrics, error) {
	set := metrics.NewSet("scribe_inputs_" + kind + "_")
	m := &NetworkMetrics{
		set:       set,
		Messages:  set.Counter("messages_total", "Messages that the agent has taken."),
		Bytes:     set.Counter("bytes_total", "Payload bytes of messages that the agent has taken."),
		Dropped:   set.CounterVec("dropped_messages_total", "Messages that were lost, by reason.", "reason"),
		Refused:   set.CounterVec("refused_total", "Requests or connections that were refused, by reason.", "reason"),
		Truncated: set.Counter("truncated_messages_total", "Messages that were cut to the limit."),
		Stray:     set.Counter("stray_messages_total", "Messages that went to the fallback category: there were too many categories."),
	}
	return m, RegisterInput(set, name, reg)
}

// RegisterInput registers the metrics of an input, with its name as a label; a nil reg registers nothing.
func RegisterInput(set *metrics.Set, name string, reg prometheus.Registerer) error {
	if reg == nil {
		return nil
	}
	return set.Register(prometheus.WrapRegistererWith(prometheus.Labels{"input": name}, reg))
}

// Unregister removes the metrics from the registry.
func (m *NetworkMetrics) Unregister() { m.set.Unregister() }

// CountTaken counts the messages that the agent accepted: those of a delivery with a final outcome that err does not refuse.
func (m *NetworkMetrics) CountTaken(messages []producer.Message, err error) {
	lost, size, _ := Refused(messages, err)
	m.Messages.Add(float64(len(messages) - lost))
	m.Bytes.Add(float64(PayloadBytes(messages) - size))
}
