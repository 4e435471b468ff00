package readstream

import (
	"math"

	scribev1 "scribe/proto/scribe/v1"
)

// creditBalance are what a client allows to be sent. A pointer takes one and its payload's length in bytes; it may overdraw the bytes.
type creditBalance struct {
	pointers int64
	bytes    int64
}

func (c *creditBalance) addCredits(v *scribev1.StreamCredits) {
	c.pointers = min(c.pointers+int64(v.GetPointers()), maxCredits)
	// Overdrawn bytes are at most a payload: the sum does not overflow.
	c.bytes = min(c.bytes+int64(min(v.GetBytes(), math.MaxInt64/2)), maxByteCredits)
}

func (c *creditBalance) hasCredits() bool { return c.pointers > 0 && c.bytes > 0 }

func (c *creditBalance) spendCredits(bytes uint32) {
	c.pointers--
	c.bytes -= int64(bytes)
}
