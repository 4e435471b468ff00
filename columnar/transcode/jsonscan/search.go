package jsonscan

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

const lanes = 32

// Search returns the first position of needle in b, or -1 if there is none. It searches for the needle's first and last bytes
// together: bytes.Index slows down to a twentieth if the first byte is common.
func Search(b, needle []byte) int {
	switch len(needle) {
	case 0:
		return 0
	case 1:
		return bytes.IndexByte(b, needle[0])
	default:
		return SearchPair(b, needle, 0, len(needle)-1)
	}
}

// SearchPair is [Search] with the two bytes of the needle at i and j, where i < j. It is fastest if these bytes are rare in b.
func SearchPair(b, needle []byte, i, j int) int {
	n := len(b) - len(needle) + 1 // possible start positions of the needle
	if n <= 0 {
		return -1
	}
	at := 0
	if useAVX2 {
		whole := n &^ (lanes - 1)
		for at < whole {
			step, pairs := pairAVX2(&b[at+i], whole-at, needle[i], needle[j], j-i)
			for at += step; pairs != 0; pairs &= pairs - 1 {
				if p := at + bits.TrailingZeros32(pairs); string(b[p:p+len(needle)]) == string(needle) {
					return p
				}
			}
			at += lanes
		}
		at = whole
	}
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	first, second := uint64(needle[i])*ones, uint64(needle[j])*ones
	for ; at+8 <= n; at += 8 {
		// Bytes are 0 where both bytes match the needle's.
		x := binary.LittleEndian.Uint64(b[at+i:]) ^ first | binary.LittleEndian.Uint64(b[at+j:]) ^ second
		// The high bits of the zero bytes, and possibly of some bytes above the first zero byte.
		for found := (x - ones) &^ x & highs; found != 0; found &= found - 1 {
			if p := at + bits.TrailingZeros64(found)/8; string(b[p:p+len(needle)]) == string(needle) {
				return p
			}
		}
	}
	for ; at < n; at++ {
		if string(b[at:at+len(needle)]) == string(needle) {
			return at
		}
	}
	return -1
}

// SearchExponent returns the position of the first decimal digit directly followed by e or E, or -1 if there is none.
func SearchExponent(b []byte) int {
	n := len(b) - 1
	if n <= 0 {
		return -1
	}
	whole := 0
	if useAVX2 {
		whole = n &^ (lanes - 1)
		if whole > 0 {
			if at, pairs := exponentAVX2(&b[0], whole); pairs != 0 {
				return at + bits.TrailingZeros32(pairs)
			}
		}
	}
	for i := whole; i < n; i++ {
		if b[i+1]|0x20 == 'e' && b[i]-'0' <= 9 {
			return i
		}
	}
	return -1
}
