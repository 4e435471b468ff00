package consumer

import (
	"time"

	"scribe/internal/format/pointer"
)

// rateMeter measures a member's activity over the last minute or so: a plain state machine.
type rateMeter struct {
	total   meterValues // since the start; messages are counted elsewhere
	waiting time.Time   // since when the iteration waits; zero while it works

	last    time.Time // when rates were last updated, with the totals at that time
	was     meterValues
	rates   meterValues
	started bool
}

// meterValues are totals, or rates per second. Idle is in seconds.
type meterValues [4]float64

const (
	meterBytes = iota // decoded
	meterPointers
	meterMessages
	meterIdle
)

// startWaiting starts the meter in the waiting state.
func (m *rateMeter) startWaiting(now time.Time) {
	m.last, m.waiting = now, now
	m.rates[meterIdle] = 1
}

func (m *rateMeter) countPayload(p *pointer.Pointer) {
	m.total[meterBytes] += float64(p.Length)
	m.total[meterPointers]++
}

// noteWaiting records that the iteration waits for messages.
func (m *rateMeter) noteWaiting(now time.Time) {
	if m.waiting.IsZero() {
		m.waiting = now
	}
}

func (m *rateMeter) noteWorking(now time.Time) {
	if !m.waiting.IsZero() {
		m.total[meterIdle] += now.Sub(m.waiting).Seconds()
		m.waiting = time.Time{}
	}
}

// memory is the time in which past measurements decay to a third.
const memory = 30 * time.Second

// readRates returns the rates, with messages counted elsewhere.
func (m *rateMeter) readRates(now time.Time, messages uint64) meterValues {
	passed := now.Sub(m.last)
	if passed < 100*time.Millisecond {
		return m.rates
	}
	at := m.total
	at[meterMessages] = float64(messages)
	if !m.waiting.IsZero() {
		at[meterIdle] += now.Sub(m.waiting).Seconds()
	}
	part := min(passed.Seconds()/memory.Seconds(), 1)
	if !m.started {
		part, m.started = 1, true
	}
	for i := range at {
		m.rates[i] += ((at[i]-m.was[i])/passed.Seconds() - m.rates[i]) * part
	}
	m.last, m.was = now, at
	return m.rates
}
