// Package rendezvous has the hash of rendezvous hashing (Thaler and Ravishankar, 1996): a key goes to the member with the highest
// weight, so a member that joins or leaves moves only its own share.
package rendezvous

// WeightOf returns the weight of a member, given by its hash, for a key.
func WeightOf(key, member uint64) uint64 {
	h := key*0x9e3779b97f4a7c15 ^ member
	// The finalizer of SplitMix64 removes the patterns that multiplication and xor leave.
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}
