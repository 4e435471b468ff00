package sequencer

import (
	"github.com/cespare/xxhash/v2"

	"scribe/internal/base/rendezvous"
)

// chooseMember returns the member that sequences a category: the one with the highest rendezvous weight (Thaler and Ravishankar,
// 1996), so that a member that joins or leaves moves only its own share; "" when there are no members. The order of members does
// not matter.
func chooseMember(category uint32, members []string) string {
	var best string
	var most uint64
	for _, m := range members {
		if w := memberWeight(category, m); best == "" || w > most || w == most && m < best {
			best, most = m, w
		}
	}
	return best
}

func memberWeight(category uint32, member string) uint64 {
	return rendezvous.WeightOf(uint64(category)+1, xxhash.Sum64String(member))
}
