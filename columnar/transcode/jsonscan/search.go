package jsonscan

import (
	"bytes"
	"math/bits"
)

const lanes = 32

// Search returns the first place of needle in b, -1 if there is none. It looks for the needle's first and last bytes at once: bytes.Index
// slows down to a twentieth where the first byte is a common one.
func Search(b, needle []byte) int {
	if len(needle) == 0 {
		return 0
	}
	dist := len(needle) - 1
	n := len(b) - dist // places where a needle may begin
	if n <= 0 {
		return -1
	}
	whole := 0
	if useAVX2 {
		whole = n &^ (lanes - 1)
	}
	for at := 0; at < whole; {
		step, pairs := pairAVX2(&b[at], whole-at, needle[0], needle[dist], dist)
		for at += step; pairs != 0; pairs &= pairs - 1 {
			if i := at + bits.TrailingZeros32(pairs); string(b[i:i+len(needle)]) == string(needle) {
				return i
			}
		}
		at += lanes
	}
	if i := bytes.Index(b[whole:], needle); i >= 0 {
		return whole + i
	}
	return -1
}

// SearchExponent returns the place of the first decimal digit that an e or E follows, -1 if there is none.
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
