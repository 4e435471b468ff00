package value

import (
	"math/bits"
	"strconv"
)

// uint128 is the magnitude of a decimal.
type uint128 struct{ hi, lo uint64 }

// pushDigit sets u to ten times u plus a digit. It returns false if the result exceeds 127 bits.
func (u *uint128) pushDigit(digit byte) bool {
	over, hi := bits.Mul64(u.hi, 10)
	carry, lo := bits.Mul64(u.lo, 10)
	hi, c := bits.Add64(hi, carry, 0)
	lo, c2 := bits.Add64(lo, uint64(digit), 0)
	hi, c3 := bits.Add64(hi, 0, c2)
	if over|c|c3 != 0 || hi>>63 != 0 {
		return false
	}
	*u = uint128{hi, lo}
	return true
}

func (u *uint128) increment() {
	u.lo++
	if u.lo == 0 {
		u.hi++
	}
}

// appendDigits appends u in decimal.
func (u uint128) appendDigits(dst []byte) []byte {
	const chunk = 1e19
	if u.hi == 0 {
		return strconv.AppendUint(dst, u.lo, 10)
	}
	hi, rest := u.hi/chunk, u.hi%chunk
	lo, last := bits.Div64(rest, u.lo, chunk)
	dst = uint128{hi, lo}.appendDigits(dst)
	from := len(dst)
	dst = append(dst, "0000000000000000000"...)
	for i := len(dst) - 1; i >= from; i-- {
		dst[i] = byte('0' + last%10)
		last /= 10
	}
	return dst
}
