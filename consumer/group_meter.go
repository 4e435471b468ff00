package consumer

import (
	"time"

	"scribe/internal/format/pointer"
)

// rateMeter measures a member's activity over the last minute or so: a plain state machine.
type rateMeter struct {
	bytes, pointers uint64 // decoded, in total
	idle            time.Duration
	waiting         time.Time // since when the iteration waits; zero while it works

	last    time.Time // when rates were last updated, with the counts at that time
	was     meterSample
	rates   memberRates
	started bool
}

type meterSample struct {
	bytes, pointers, messages uint64
	idle                      time.Duration
}

// memberRates are per second; busy is a fraction.
type memberRates struct{ bytes, pointers, messages, busy float64 }

// startWaiting starts the meter in the waiting state.
func (m *rateMeter) startWaiting(now time.Time) { m.last, m.waiting = now, now }

func (m *rateMeter) countPayload(p *pointer.Pointer) {
	m.bytes += uint64(p.Length)
	m.pointers++
}

// noteWaiting records that the iteration waits for messages.
func (m *rateMeter) noteWaiting(now time.Time) {
	if m.waiting.IsZero() {
		m.waiting = now
	}
}

func (m *rateMeter) noteWorking(now time.Time) {
	if !m.waiting.IsZero() {
		m.idle += now.Sub(m.waiting)
		m.waiting = time.Time{}
	}
}

// memory is the time in which past measurements decay to a third.
const memory = 30 * time.Second

// readRates returns the rates, with messages counted elsewhere.
func (m *rateMeter) readRates(now time.Time, messages uint64) memberRates {
	passed := now.Sub(m.last)
	if passed < 100*time.Millisecond {
		return m.rates
	}
	idle := m.idle
	if !m.waiting.IsZero() {
		idle += now.Sub(m.waiting)
	}
	at := meterSample{m.bytes, m.pointers, messages, idle}
	s := passed.Seconds()
	fresh := memberRates{
		bytes: float64(at.bytes-m.was.bytes) / s, pointers: float64(at.pointers-m.was.pointers) / s, messages: float64(at.messages-m.was.messages) / s,
		busy: 1 - min(max((at.idle-m.was.idle).Seconds()/s, 0), 1),
	}
	part := min(s/memory.Seconds(), 1)
	if !m.started {
		part, m.started = 1, true
	}
	mix := func(old *float64, now float64) { *old += (now - *old) * part }
	mix(&m.rates.bytes, fresh.bytes)
	mix(&m.rates.pointers, fresh.pointers)
	mix(&m.rates.messages, fresh.messages)
	mix(&m.rates.busy, fresh.busy)
	m.last, m.was = now, at
	return m.rates
}
