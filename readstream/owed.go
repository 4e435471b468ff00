package readstream

import "math"

// maxRuns bounds what is remembered of pointers that were sent.
const maxRuns = 64

// sentRuns remembers how old the pointers are that were sent and whose credits have not come back: the client may still be about to fetch
// what they stand for. Credits given at the start, or beyond what was sent, give nothing back. It takes at most maxRuns runs: where there
// are more, neighbours become one, of which the oldest time holds until the last of its credits is back.
type sentRuns struct {
	runs           []sentRun // in the order of sending
	sent, returned uint64
}

// sentRun is pointers that were sent one after another: those up to the end-th, and the least persisted time among them.
type sentRun struct {
	end  uint64
	time int64
}

// noteSent takes note of n pointers, none persisted before time.
func (o *sentRuns) noteSent(n int, time int64) {
	if len(o.runs) == maxRuns {
		for i := range maxRuns / 2 {
			a, b := o.runs[2*i], o.runs[2*i+1]
			o.runs[i] = sentRun{b.end, min(a.time, b.time)}
		}
		o.runs = o.runs[:maxRuns/2]
	}
	o.sent += uint64(n) //nolint:gosec // a length
	o.runs = append(o.runs, sentRun{o.sent, time})
}

// noteReturned takes note of credits that the client has given.
func (o *sentRuns) noteReturned(n uint32) {
	o.returned = min(o.returned+uint64(n), o.sent)
	done := 0
	for done < len(o.runs) && o.runs[done].end <= o.returned {
		done++
	}
	o.runs = o.runs[:copy(o.runs, o.runs[done:])]
}

// oldestTime is a time before which none of them was persisted; the largest when there are none.
func (o *sentRuns) oldestTime() int64 {
	t := int64(math.MaxInt64)
	for _, r := range o.runs {
		t = min(t, r.time)
	}
	return t
}
