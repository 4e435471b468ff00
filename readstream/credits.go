package readstream

import (
	"math"

	scribev1 "scribe/proto/scribe/v1"
)

// creditBalance is what a client allows the stream to send. A pointer costs one and its payload's length in bytes; the bytes may
// be overdrawn.
type creditBalance struct {
	pointers int64
	bytes    int64
}

func (c *creditBalance) addCredits(v *scribev1.StreamCredits) {
	c.pointers = min(c.pointers+int64(v.GetPointers()), maxCredits)
	// The overdraft is at most one payload, so the sum does not overflow.
	c.bytes = min(c.bytes+int64(min(v.GetBytes(), math.MaxInt64/2)), maxByteCredits)
}

func (c *creditBalance) hasCredits() bool { return c.pointers > 0 && c.bytes > 0 }

func (c *creditBalance) spendCredits(bytes uint32) {
	c.pointers--
	c.bytes -= int64(bytes)
}

// maxRuns bounds the remembered runs of sent pointers.
const maxRuns = 64

// sentRuns tracks the age of the pointers that were sent and whose credits have not come back: the client may still fetch their
// payloads. Credits given at the start, or beyond what was sent, return nothing. It keeps at most maxRuns runs: beyond that it
// merges neighbors, and the oldest time of a merged run holds until the last of its credits is back.
type sentRuns struct {
	runs           []sentRun // in the order of sending
	sent, returned uint64
}

// sentRun is a run of sent pointers, up to pointer number end, with their least persisted time.
type sentRun struct {
	end  uint64
	time int64
}

// noteSent records n sent pointers, none persisted before time.
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

// noteReturned records credits that the client has given.
func (o *sentRuns) noteReturned(n uint32) {
	o.returned = min(o.returned+uint64(n), o.sent)
	done := 0
	for done < len(o.runs) && o.runs[done].end <= o.returned {
		done++
	}
	o.runs = o.runs[:copy(o.runs, o.runs[done:])]
}

// oldestTime returns a lower bound of their persisted times; the largest value when there are none.
func (o *sentRuns) oldestTime() int64 {
	t := int64(math.MaxInt64)
	for _, r := range o.runs {
		t = min(t, r.time)
	}
	return t
}
