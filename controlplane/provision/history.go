package provision

import (
	"slices"
	"time"

	scribev1 "scribe/proto/scribe/v1"
)

// weekHours is how many hours are remembered.
const weekHours = 7 * 24

// hourlyHistory is the traffic of a category, by the hour. Each hour's value is the 95th percentile of its minutes.
type hourlyHistory struct {
	// hour is the one that is being measured, in hours since 1970; 0 before the first.
	hour int64
	// hours has the earlier ones, by hour modulo weekHours.
	hours [weekHours]Rate
	// minutes has the means of the minutes of this hour; minute is the one that is being measured, with sum over steps.
	minutes []Rate
	minute  int64
	sum     Rate
	steps   float64
}

// advance begins an hour, and reports whether it ended another. A clock that goes back begins none.
func (h *hourlyHistory) advance(hour int64) bool {
	if h.hour == 0 {
		h.hour = hour
	}
	if hour <= h.hour {
		return false
	}
	h.endMinute()
	measured := ninetyFifth(h.minutes)
	h.minutes = h.minutes[:0]
	if hour-h.hour > weekHours {
		h.hour, measured = hour-weekHours, Rate{}
	}
	for ; h.hour < hour; h.hour++ {
		h.hours[h.hour%weekHours], measured = measured, Rate{}
	}
	return true
}

// noteRate takes the category's traffic in a step.
func (h *hourlyHistory) noteRate(at time.Duration, r Rate) {
	if minute := int64(at / time.Minute); minute != h.minute {
		h.endMinute()
		h.minute = minute
	}
	h.sum.Bytes += r.Bytes
	h.sum.Messages += r.Messages
	h.steps++
}

func (h *hourlyHistory) endMinute() {
	if h.steps > 0 && len(h.minutes) < 120 { // an hour that a clock made long is as good with two hours' minutes
		h.minutes = append(h.minutes, Rate{Bytes: h.sum.Bytes / h.steps, Messages: h.sum.Messages / h.steps})
	}
	h.sum, h.steps = Rate{}, 0
}

// ninetyFifth returns the 95th percentile, separately of bytes and messages.
func ninetyFifth(minutes []Rate) Rate {
	if len(minutes) == 0 {
		return Rate{}
	}
	at := (len(minutes) - 1) * 95 / 100
	bytes, messages := make([]float64, len(minutes)), make([]float64, len(minutes))
	for i, r := range minutes {
		bytes[i], messages[i] = r.Bytes, r.Messages
	}
	slices.Sort(bytes)
	slices.Sort(messages)
	return Rate{Bytes: bytes[at], Messages: messages[at]}
}

// expected returns the most that this hour and the next one had a day and a week ago.
func (h *hourlyHistory) expected() (most Rate) {
	for _, hour := range []int64{h.hour, h.hour + 1} {
		for _, back := range []int64{24, weekHours} {
			if at := hour - back; at >= 0 {
				r := h.hours[at%weekHours]
				most = Rate{Bytes: max(most.Bytes, r.Bytes), Messages: max(most.Messages, r.Messages)}
			}
		}
	}
	return most
}

// isEmpty reports whether no hour had traffic.
func (h *hourlyHistory) isEmpty() bool {
	for _, r := range h.hours {
		if r != (Rate{}) {
			return false
		}
	}
	return len(h.minutes) == 0 && h.sum == Rate{}
}

// encode returns the stored form, without shares.
func (h *hourlyHistory) encode() *scribev1.TrafficHistory {
	out := &scribev1.TrafficHistory{Hour: h.hour - 1}
	for i := range int64(weekHours) {
		r := h.hours[(h.hour+i)%weekHours]
		out.BytesPerSecond = append(out.BytesPerSecond, uint64(r.Bytes))
		out.MessagesPerSecond = append(out.MessagesPerSecond, uint64(r.Messages))
	}
	return out
}

// restore takes over a stored history. Values beyond a week are ignored, and so is a history from after the present hour: the clock was
// set back.
func (h *hourlyHistory) restore(stored *scribev1.TrafficHistory, hour int64) {
	if stored.GetHour() < 0 || stored.GetHour() >= hour {
		return
	}
	h.hour = stored.GetHour() + 1
	n := len(stored.GetBytesPerSecond())
	for i := range min(n, len(stored.GetMessagesPerSecond()), weekHours) {
		if at := stored.GetHour() - int64(i); at >= 0 {
			h.hours[at%weekHours] = Rate{
				Bytes: float64(stored.GetBytesPerSecond()[n-1-i]), Messages: float64(stored.GetMessagesPerSecond()[len(stored.GetMessagesPerSecond())-1-i]),
			}
		}
	}
	h.advance(hour)
}
