package sequencer

import (
	"github.com/cespare/xxhash/v2"
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
	h := (uint64(category)+1)*0x9e3779b97f4a7c15 ^ xxhash.Sum64String(member)
	// The finalizer of SplitMix64 removes the patterns that multiplication and xor leave.
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}
