package zone

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"scribe/columnar/schema"
)

// bloomFilter is a split-block Bloom filter as in Parquet: blocks of eight 32-bit words. The high half of a value's hash selects
// the block. The low half, multiplied by a different salt for each word, selects one bit in each word of the block.
type bloomFilter []byte

// blockLen is the length of a block in bytes.
const blockLen = 32

var salts = [8]uint32{0x47b6137b, 0x44974d91, 0x8824ad5b, 0xa2b7289d, 0x705495c7, 0x2df1424b, 0x9efc4947, 0x5c6bfb31}

// bitsPerValue gives a false-positive rate of about one in 500.
const bitsPerValue = 14

// maxDistinct is the maximum number of values in a filter. With more, even the largest filter excludes too little.
const maxDistinct = maxFilter * blockLen * 8 / 6

// newFilter makes a filter of at most blocks blocks from the hashes of distinct values. It returns nil if there are too many
// values.
func newFilter(hashes map[uint64]struct{}, blocks int) bloomFilter {
	need := (len(hashes)*bitsPerValue + blockLen*8 - 1) / (blockLen * 8)
	blocks = min(max(need, 1), blocks)
	if blocks < 1 || len(hashes) > blocks*blockLen*8/6 {
		return nil
	}
	f := make(bloomFilter, blocks*blockLen)
	for h := range hashes {
		block := f.blockOf(h)
		for i, salt := range salts {
			word := block[4*i:]
			binary.LittleEndian.PutUint32(word, binary.LittleEndian.Uint32(word)|1<<(uint32(h)*salt>>27)) //nolint:gosec // the low half
		}
	}
	return f
}

func (f bloomFilter) blockOf(h uint64) []byte {
	at := int((h >> 32) * uint64(len(f)/blockLen) >> 32) //nolint:gosec // below the number of blocks
	return f[at*blockLen : (at+1)*blockLen]
}

// mayHave reports whether a value may be in the filter.
func (f bloomFilter) mayHave(h uint64) bool {
	block := f.blockOf(h)
	for i, salt := range salts {
		if binary.LittleEndian.Uint32(block[4*i:])&(1<<(uint32(h)*salt>>27)) == 0 { //nolint:gosec // the low half
			return false
		}
	}
	return true
}

// hashText and hashNumber hash values for filters. Integers of any width hash alike.
func hashText(b []byte) uint64 { return xxhash.Sum64(b) }

func hashNumber(v uint64) uint64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	return xxhash.Sum64(b[:])
}

// hashValue returns the hash of a value of a column that may have a filter.
func (c *columnZone) hashValue(v *boundValue) uint64 {
	switch {
	case isTextual(c.kind):
		return hashText(v.s)
	case c.kind == schema.Uint64:
		return hashNumber(v.u)
	default:
		return hashNumber(uint64(v.i)) //nolint:gosec // two's complement
	}
}
