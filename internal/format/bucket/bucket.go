package bucket

import (
	"fmt"
	"math"
	"math/bits"

	"scribe/internal/format/record"
)

// Sharing is how the members of a group share a category. The numbers are persisted and never reused.
type Sharing uint8

const (
	// Pointers spreads the pointers of each shard over all buckets.
	Pointers Sharing = 1
	// Shards keeps each logical shard in one bucket.
	Shards Sharing = 2
)

// String returns the name in lower case.
func (s Sharing) String() string {
	switch s {
	case Pointers:
		return "pointers"
	case Shards:
		return "shards"
	default:
		return fmt.Sprintf("sharing(%d)", uint8(s))
	}
}

// Max is the largest number of buckets.
const Max = 1024

// Scheme assigns pointers to buckets.
type Scheme struct {
	Sharing Sharing
	// Buckets is a power of two, at most Max.
	Buckets uint32
}

// Validate reports the scheme's violations.
func (s Scheme) Validate() error {
	if s.Sharing != Pointers && s.Sharing != Shards {
		return fmt.Errorf("sharing %d is unknown", uint8(s.Sharing))
	}
	if s.Buckets == 0 || s.Buckets > Max || bits.OnesCount32(s.Buckets) != 1 {
		return fmt.Errorf("%d buckets: want a power of two up to %d", s.Buckets, Max)
	}
	return nil
}

// Of returns the bucket of the pointer at an LSN.
func (s Scheme) Of(shard record.ShardID, lsn record.LSN) uint32 {
	if s.Sharing == Shards {
		return s.wholeBucket(shard)
	}
	round, at := uint64(lsn)/uint64(s.Buckets), uint32(lsn)&(s.Buckets-1)
	return at ^ s.roundMask(shard, round)
}

// wholeBucket returns the bucket of a shard whose pointers are all in one bucket.
func (s Scheme) wholeBucket(shard record.ShardID) uint32 {
	return uint32(shard.Logical()) & (s.Buckets - 1)
}

// roundMask returns the mask that permutes the buckets in a round. A round is the pointers with the same LSN divided by the
// number of buckets.
func (s Scheme) roundMask(shard record.ShardID, round uint64) uint32 {
	// The finalizer of splitmix64, over shard and round.
	x := uint64(shard)*0x9e3779b97f4a7c15 + round
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return uint32(x^x>>31) & (s.Buckets - 1)
}

// Next returns the first LSN from from on in a bucket, or false if the shard has none.
func (s Scheme) Next(shard record.ShardID, bucket uint32, from record.LSN) (record.LSN, bool) {
	if s.Sharing == Shards {
		return from, s.wholeBucket(shard) == bucket
	}
	n := uint64(s.Buckets)
	round := uint64(from) / n
	lsn := record.LSN(round*n + uint64(bucket^s.roundMask(shard, round)))
	if lsn >= from {
		return lsn, true
	}
	if round == math.MaxUint64/n {
		return 0, false
	}
	round++
	return record.LSN(round*n + uint64(bucket^s.roundMask(shard, round))), true
}

// Count returns how many of the LSNs [from, to) are in a bucket.
func (s Scheme) Count(shard record.ShardID, bucket uint32, from, to record.LSN) uint64 {
	if from >= to {
		return 0
	}
	if s.Sharing == Shards {
		if s.wholeBucket(shard) != bucket {
			return 0
		}
		return uint64(to - from)
	}
	return s.countBelow(shard, bucket, to) - s.countBelow(shard, bucket, from)
}

// countBelow returns how many LSNs in [0, lsn) are in a bucket: one of each complete round, and possibly one of the last round.
func (s Scheme) countBelow(shard record.ShardID, bucket uint32, lsn record.LSN) uint64 {
	n := uint64(s.Buckets)
	round := uint64(lsn) / n
	if uint64(bucket^s.roundMask(shard, round)) < uint64(lsn)%n {
		return round + 1
	}
	return round
}

// Covers reports whether a bucket can have pointers of a shard at all.
func (s Scheme) Covers(shard record.ShardID, bucket uint32) bool {
	return s.Sharing != Shards || s.wholeBucket(shard) == bucket
}

// Filter selects the pointers in some buckets.
type Filter struct {
	Scheme Scheme
	Set    Set
}

// Has reports whether the filter selects the pointer at an LSN.
func (f *Filter) Has(shard record.ShardID, lsn record.LSN) bool {
	return f.Set.Has(f.Scheme.Of(shard, lsn))
}

// HasSome reports whether the filter may select any pointer of a shard.
func (f *Filter) HasSome(shard record.ShardID) bool {
	if f.Scheme.Sharing == Shards {
		return f.Set.Has(f.Scheme.wholeBucket(shard))
	}
	return !f.Set.Empty()
}
