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
