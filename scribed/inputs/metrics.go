package inputs

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
	"scribe/producer"
)

// NetworkMetrics are the counters of one input over a network.
type NetworkMetrics struct {
	// Messages and Bytes that the agent has taken.
	Messages, Bytes prometheus.Counter
	// Dropped messages, by reason; Refused requests or connections, by reason; Truncated messages.
	Dropped, Refused *prometheus.CounterVec
	Truncated        prometheus.Counter
	// Stray messages went to the fallback category, since there are too many categories.
	Stray prometheus.Counter

	set *metrics.Set
}

// Reasons of Metrics.Dropped and Metrics.Refused that several inputs have.
const (
	DropRefused  = "refused" // the agent will never take it
	DropFull     = "full"    // the agent has no capacity, and the source can't wait
	DropInvalid  = "invalid" // it can't be read
	DropTooLarge = "too_large"
	RefuseBusy   = "busy"
	// RefuseUnsupported is a content type or encoding that nobody here reads.
	RefuseUnsupported = "unsupported"
)

// RefusalReason is the label of an HTTP status in Metrics.Refused.
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

// NewNetworkMetrics registers the metrics of a kind of input under its name; nil keeps none.
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

// RegisterInput registers the metrics of an input, with its name as label; nil keeps none.
func RegisterInput(set *metrics.Set, name string, reg prometheus.Registerer) error {
	if reg == nil {
		return nil
	}
	return set.Register(prometheus.WrapRegistererWith(prometheus.Labels{"input": name}, reg))
}

// Unregister takes the metrics out of the registry.
func (m *NetworkMetrics) Unregister() { m.set.Unregister() }

// CountTaken counts messages that the agent has taken: those of a delivery with a final outcome that were not refused by err.
func (m *NetworkMetrics) CountTaken(messages []producer.Message, err error) {
	lost, size, _ := Refused(messages, err)
	m.Messages.Add(float64(len(messages) - lost))
	m.Bytes.Add(float64(PayloadBytes(messages) - size))
}
