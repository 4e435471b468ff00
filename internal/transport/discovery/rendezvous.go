package discovery

import "github.com/cespare/xxhash/v2"

// weightOf returns an instance's rendezvous weight for a key (Thaler and Ravishankar, 1996). A key goes to the instance with the
// highest weight, so an instance that joins or leaves moves only its own share.
func weightOf(key uint64, url string) uint64 {
	h := key*0x9e3779b97f4a7c15 ^ xxhash.Sum64String(url)
	// The finalizer of SplitMix64 removes the patterns that multiplication and xor leave.
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}
