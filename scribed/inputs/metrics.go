package inputs

import (
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

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

	registry prometheus.Registerer
	all      []prometheus.Collector
}

// Reasons of Metrics.Dropped and Metrics.Refused that several inputs have.
const (
	DropRefused  = "refused" // the agent will never take it
	DropFull     = "full"    // the agent has no room, and the source can't wait
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
	m := &NetworkMetrics{registry: reg}
	labels := prometheus.Labels{"input": name}
	counter := func(n, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "scribe_inputs_" + kind + "_" + n, Help: help, ConstLabels: labels})
		m.all = append(m.all, c)
		return c
	}
	vector := func(n, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "scribe_inputs_" + kind + "_" + n, Help: help, ConstLabels: labels}, []string{"reason"})
		m.all = append(m.all, c)
		return c
	}
	m.Messages = counter("messages_total", "Messages that the agent has taken.")
	m.Bytes = counter("bytes_total", "Bytes of those messages.")
	m.Dropped = vector("dropped_messages_total", "Messages that were lost, by reason.")
	m.Refused = vector("refused_total", "Requests or connections that were refused, by reason.")
	m.Truncated = counter("truncated_messages_total", "Messages that were cut to the limit.")
	m.Stray = counter("stray_messages_total", "Messages that went to the fallback category: there were too many categories.")
	if reg == nil {
		return m, nil
	}
	for i, c := range m.all {
		if err := reg.Register(c); err != nil {
			for _, done := range m.all[:i] {
				reg.Unregister(done)
			}
			return nil, errors.Join(errors.New("inputs: register metrics"), err)
		}
	}
	return m, nil
}

// Unregister takes the metrics out of the registry.
func (m *NetworkMetrics) Unregister() {
	if m.registry == nil {
		return
	}
	for _, c := range m.all {
		m.registry.Unregister(c)
	}
}

// CountTaken counts messages that the agent has taken: those of a delivery with a final outcome that were not refused by err.
func (m *NetworkMetrics) CountTaken(messages []producer.Message, err error) {
	lost, size, _ := Refused(messages, err)
	m.Messages.Add(float64(len(messages) - lost))
	m.Bytes.Add(float64(PayloadBytes(messages) - size))
}
