package request

import (
	"fmt"
	"strings"

	"scribe/internal/base/metrics"
)

// Amount counts frames with their bytes and messages.
type Amount struct{ Frames, Bytes, Messages int64 }

// Plus returns the sum.
func (a Amount) Plus(b Amount) Amount {
	return Amount{Frames: a.Frames + b.Frames, Bytes: a.Bytes + b.Bytes, Messages: a.Messages + b.Messages}
}

// Minus returns the difference.
func (a Amount) Minus(b Amount) Amount {
	return Amount{Frames: a.Frames - b.Frames, Bytes: a.Bytes - b.Bytes, Messages: a.Messages - b.Messages}
}

// AmountMetrics are the three metrics of an amount.
type AmountMetrics struct{ frames, bytes, messages metrics.Value }

// DeclareAmount declares the three metrics with a method of a snapshot. name has %s in place of the unit, as in
// "received_%s_total"; help follows the unit.
func DeclareAmount(declare func(name, help string, labels ...string) metrics.Value, name, help string, labels ...string) AmountMetrics {
	of := func(unit string) metrics.Value {
		return declare(fmt.Sprintf(name, unit), strings.ToUpper(unit[:1])+unit[1:]+" "+help, labels...)
	}
	return AmountMetrics{frames: of("frames"), bytes: of("bytes"), messages: of("messages")}
}

// Send sends the values of an amount.
func (m AmountMetrics) Send(send metrics.Send, a Amount, labels ...string) {
	send(m.frames, float64(a.Frames), labels...)
	send(m.bytes, float64(a.Bytes), labels...)
	send(m.messages, float64(a.Messages), labels...)
}
