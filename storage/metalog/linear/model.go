package linear

import (
	"errors"
	"fmt"
	"slices"

	"github.com/anishathalye/porcupine"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// callKind is the kind of an operation.
type callKind string

const (
	doAppend  callKind = "append"
	doRead    callKind = "read"
	doTail    callKind = "tail"
	doOpen    callKind = "open"
	doTrim    callKind = "trim"
	doObserve callKind = "observe" // an update of a subscription
	doMove    callKind = "move"    // to another engine
)

// modelCall is the input of a call.
type modelCall struct {
	kind   callKind
	epoch  uint64     // of an append
	expect record.LSN // of an append; 0 = any
	values []uint64   // of an append
	from   record.LSN // of a read, an observation or a trim
	limit  int        // of a read
}

// modelEntry is a record. Its time is 0 while it is unknown; then it is least or later.
type modelEntry struct {
	value       uint64
	time, least int64
}

// modelAnswer is the output of a call.
type modelAnswer struct {
	// unknown means that the call failed, and may have taken effect.
	unknown bool
	// refused is the sentinel of a definite failure; state is the state that came with it, if any.
	refused error
	// state is the state returned by an open, a tail, or a refusal.
	state metalog.State
	// lsn and time are those of an append; with ErrTrimmed, lsn is the first remaining one.
	lsn  record.LSN
	time int64
	// entries are those of a read or an observation.
	entries []modelEntry
	// next, watermark and trimmed are those of an observation.
	next, trimmed record.LSN
	watermark     int64
}

// String describes the call in reports of unexplained histories.
func (a modelAnswer) String() string {
	text := "ok"
	switch {
	case a.unknown:
		return "unknown"
	case a.refused != nil:
		text = a.refused.Error()
	}
	if a.state.Shard != 0 {
		text += fmt.Sprintf(" %+v", a.state)
	}
	for _, number := range []struct {
		name string
		v    int64
	}{{"LSN", int64(a.lsn)}, {"time", a.time}, {"next", int64(a.next)}, {"trimmed to", int64(a.trimmed)}, {"watermark", a.watermark}} { //nolint:gosec // of a test
		if number.v != 0 {
			text += fmt.Sprintf(" %s %d", number.name, number.v)
		}
	}
	for _, e := range a.entries {
		text += fmt.Sprintf(" %#x@%d", e.value, e.time)
	}
	return text
}

// String describes the answer in reports of unexplained histories.
func (c modelCall) String() string {
	switch c.kind {
	case doAppend:
		return fmt.Sprintf("append %#x in epoch %d, expecting %d", c.values, c.epoch, c.expect)
	case doRead, doObserve, doTrim:
		return fmt.Sprintf("%s from %d, at most %d", c.kind, c.from, c.limit)
	default:
		return string(c.kind)
	}
}

// modelState is the model of one log. It is never changed in place.
type modelState struct {
	epoch uint64
	// burned means that an unanswered Open gave out an unknown epoch above this one.
	burned bool
	first  record.LSN
	// floor is a time below which no further record may come.
	floor   int64
	entries []modelEntry // from LSN 1 on
}

func (s modelState) next() record.LSN { return record.LSN(len(s.entries) + 1) }

func (s modelState) equal(o modelState) bool {
	return s.epoch == o.epoch && s.burned == o.burned && s.first == o.first && s.floor == o.floor && slices.Equal(s.entries, o.entries)
}

// withRecord returns s after an append; time 0 = unknown.
func (s modelState) withRecord(values []uint64, time int64) modelState {
	s.entries = slices.Clip(s.entries)
	for _, v := range values {
		s.entries = append(s.entries, modelEntry{value: v, time: time, least: s.floor})
	}
	s.floor = max(s.floor, time)
	return s
}

// revealEntry compares the records from an LSN on with the entries seen there, and takes over times that were unknown.
func (s modelState) revealEntry(from record.LSN, seen []modelEntry) (modelState, bool) {
	at := int(from) - 1
	if at < 0 || at+len(seen) > len(s.entries) {
		return s, len(seen) == 0
	}
	copied := false
	for i, got := range seen {
		have := s.entries[at+i]
		if have.value != got.value || have.time != 0 && have.time != got.time || got.time < have.least {
			return s, false
		}
		if have.time != 0 {
			continue
		}
		if !copied {
			s.entries, copied = slices.Clone(s.entries), true
		}
		s.entries[at+i].time = got.time
		s.floor = max(s.floor, got.time)
	}
	return s, s.timesGrow()
}

// timesGrow reports whether the known persisted times never decrease.
func (s modelState) timesGrow() bool {
	last := int64(0)
	for _, e := range s.entries {
		if e.time != 0 && e.time < last {
			return false
		}
		last = max(last, e.time)
	}
	return true
}

// withState compares s with a state that the engine returned, and takes over an unknown epoch from it.
func (s modelState) withState(st metalog.State) (modelState, bool) {
	if st.FirstLSN != s.first || st.NextLSN != s.next() || st.Sealed {
		return s, false
	}
	switch {
	case s.burned && st.Epoch > s.epoch:
		s.epoch, s.burned = st.Epoch, false
	case s.burned || st.Epoch != s.epoch:
		return s, false
	}
	s.floor = max(s.floor, st.Watermark)
	if len(s.entries) == 0 {
		return s, st.LastTime == 0
	}
	last := s.entries[len(s.entries)-1]
	last.time = st.LastTime
	return s.revealEntry(s.next()-1, []modelEntry{last})
}

// nextStates returns the possible states after a call with its answer; none if s does not allow the answer.
func (s modelState) nextStates(c modelCall, a modelAnswer) []modelState {
	if a.refused != nil {
		return s.refusedStates(c, a)
	}
	if a.unknown {
		return s.unknownStates(c)
	}
	after, ok := s, false
	switch c.kind {
	case doAppend:
		if ok = s.mayAppend(c) && a.lsn == s.next() && a.time >= s.floor; ok {
			after = s.withRecord(c.values, a.time)
		}
	case doOpen:
		if ok = a.state.Epoch > s.epoch; ok {
			after.epoch, after.burned = a.state.Epoch, false
			after, ok = after.withState(a.state)
		}
	case doMove:
		// The epoch of the handover is above all that were given out. Who only finishes another's move finds it there.
		if ok = a.state.Epoch > s.epoch || a.state.Epoch == s.epoch && !s.burned; ok {
			after, ok = s.withHandover(a)
			after.epoch, after.burned = a.state.Epoch, false
		}
	case doTail:
		after, ok = s.withState(a.state)
	case doTrim:
		after.first, ok = max(s.first, c.from), c.from <= s.next()
	case doRead:
		want := max(0, min(len(s.entries)-int(c.from-1), c.limit))
		if ok = c.from >= s.first && len(a.entries) == want; ok {
			after, ok = s.revealEntry(c.from, a.entries)
		}
	case doObserve:
		after, ok = s.withObserved(c, a)
	}
	if !ok {
		return nil
	}
	return []modelState{after}
}

// withHandover compares s with where a log was handed over: no later record may be below the time of that. A handover that another call began is
// one of an earlier state.
func (s modelState) withHandover(a modelAnswer) (modelState, bool) {
	raises := a.state.Epoch > s.epoch && !s.burned
	s.floor = max(s.floor, a.time)
	return s, a.lsn == s.next() || !raises && a.lsn < s.next()
}

// mayAppend reports whether a log accepts an append.
func (s modelState) mayAppend(c modelCall) bool {
	return c.epoch == s.epoch && !s.burned && (c.expect == 0 || c.expect == s.next())
}

// unknownStates returns the states for a call that took effect, or did not.
func (s modelState) unknownStates(c modelCall) []modelState {
	after := s
	switch {
	case c.kind == doAppend && s.mayAppend(c):
		after = s.withRecord(c.values, 0)
	case c.kind == doOpen, c.kind == doMove:
		after.burned = true
	case c.kind == doTrim && c.from <= s.next():
		after.first = max(s.first, c.from)
	}
	if after.equal(s) {
		return []modelState{s}
	}
	return []modelState{s, after}
}

// refusedStates returns the state after a definite failure: it changes nothing, and its reason must be true.
func (s modelState) refusedStates(c modelCall, a modelAnswer) []modelState {
	after, ok := s, true
	if a.state.Shard != 0 && (errors.Is(a.refused, metalog.ErrFenced) || errors.Is(a.refused, metalog.ErrConflict)) {
		if after, ok = s.withState(a.state); !ok {
			return nil
		}
	}
	switch {
	case errors.Is(a.refused, metalog.ErrFenced):
		ok = s.burned || c.epoch != s.epoch
	case errors.Is(a.refused, metalog.ErrConflict):
		ok = c.epoch == after.epoch && c.expect != 0 && c.expect != s.next()
	case errors.Is(a.refused, metalog.ErrTrimmed):
		ok = c.from < s.first && a.lsn == s.first
	case errors.Is(a.refused, metalog.ErrInvalid):
		ok = c.kind == doTrim && c.from > s.next()
	case errors.Is(a.refused, metalog.ErrSealed):
		ok = false
	}
	if !ok {
		return nil
	}
	return []modelState{after}
}

// withObserved returns s if the tail and the records that a subscriber got agree with it.
func (s modelState) withObserved(c modelCall, a modelAnswer) (modelState, bool) {
	end := c.from + record.LSN(len(a.entries))
	switch {
	case a.next != s.next(), a.trimmed > s.first, a.trimmed != 0 && a.trimmed != c.from, a.watermark != 0 && end < a.next:
		return s, false
	}
	after, ok := s.revealEntry(c.from, a.entries)
	after.floor = max(after.floor, a.watermark)
	return after, ok
}

// porcupineModel returns the model with which Porcupine checks one log.
func porcupineModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{modelState{first: 1}} },
		Step: func(before, input, output any) []any {
			var after []any
			for _, s := range before.(modelState).nextStates(input.(modelCall), output.(modelAnswer)) {
				after = append(after, s)
			}
			return after
		},
		Equal:             func(a, b any) bool { return a.(modelState).equal(b.(modelState)) },
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v -> %v", input, output) },
	}
	return m.ToModel()
}
