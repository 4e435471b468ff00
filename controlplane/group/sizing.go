package group

import (
	"fmt"
	"math"
	"time"

	"scribe/internal/base/units"
)

// groupSizing is the input of the size of a group. Rates are in decoded bytes a second; 0 = unknown, except for lag.
type groupSizing struct {
	members  int
	capacity uint64 // of one member that is busy all the time
	traffic  uint64 // written to the category
	lag      uint64 // pending bytes
	most     int    // members that can have something to do
}

// A group is sized so that its members are busy for a part of their time, which leaves capacity for peaks and for the loss of a
// member, and so that it works off its lag within a bounded time.
const (
	busyPart   = 0.7
	drainAfter = 10 * time.Minute
)

// recommendMembers returns how many members the group should have, or 0 if that is unknown, and the reason.
func (n groupSizing) recommendMembers() (members int, why string) {
	if n.capacity == 0 {
		if n.members == 0 {
			return 0, "unknown yet: no member has read for long enough to measure its speed"
		}
		return 0, fmt.Sprintf("unknown yet: none of %d members has read for long enough to measure its speed", n.members)
	}
	each := busyPart * float64(n.capacity)
	catchUp := float64(n.lag) / drainAfter.Seconds()
	wanted := int(math.Ceil(min((float64(n.traffic)+catchUp)/each, 1<<30)))
	why = fmt.Sprintf("%s/s are written and %s wait; a busy member takes %s/s: %d of them, busy for %.0f%% of their time, keep up",
		units.About(n.traffic), units.About(n.lag), units.About(n.capacity), max(wanted, 1), busyPart*100)
	if n.lag > 0 {
		why += fmt.Sprintf(" and are through with what waits in %v", units.Duration(drainAfter))
	}
	switch {
	case wanted > n.most:
		why += fmt.Sprintf("; but no more than %d can have something to do: there are no more buckets with messages", n.most)
		wanted = n.most
	case wanted < 1:
		wanted = 1
	}
	return wanted, why
}
