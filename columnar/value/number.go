package value

import (
	"cmp"
	"errors"
	"math"
	"math/big"
	"math/bits"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
)

// Errors of parsing and of conversions. They are not wrapped: the caller knows the source of the value.
var (
	ErrSyntax = errors.New("not a value of the type")
	ErrRange  = errors.New("out of the type's range")
)

// MaxPrecision is the maximum number of decimal digits of a decimal.
const MaxPrecision = 38

// text is the input of the parsers: column memory as well as strings.
type text interface{ ~string | ~[]byte }

func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

func isDigit(c byte) bool { return c-'0' <= 9 }

// trimSpace removes the white space that PostgreSQL allows around most values.
func trimSpace[T text](s T) T {
	for len(s) > 0 && isSpace(s[0]) {
		s = s[1:]
	}
	for len(s) > 0 && isSpace(s[len(s)-1]) {
		s = s[:len(s)-1]
	}
	return s
}

// foldEqual reports whether s equals the lower-case ASCII word, ignoring case.
func foldEqual[T text](s T, word string) bool {
	return len(s) == len(word) && foldPrefix(s, word)
}

// foldPrefix reports whether s is a prefix of the lower-case ASCII word, ignoring case.
func foldPrefix[T text](s T, word string) bool {
	if len(s) > len(word) {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c-'A' < 26 {
			c |= 0x20
		}
		if c != word[i] {
			return false
		}
	}
	return true
}

// ParseBool parses true, yes, on, 1, their opposites, and unambiguous prefixes of them, ignoring case.
func ParseBool[T text](s T) (bool, error) {
	s = trimSpace(s)
	if len(s) == 0 {
		return false, ErrSyntax
	}
	switch {
	case foldPrefix(s, "true"), foldPrefix(s, "yes"), foldEqual(s, "on"), foldEqual(s, "1"):
		return true, nil
	case foldPrefix(s, "false"), foldPrefix(s, "no"), len(s) > 1 && foldPrefix(s, "off"), foldEqual(s, "0"):
		return false, nil
	}
	return false, ErrSyntax
}

// AppendBool appends true or false.
func AppendBool(dst []byte, v bool) []byte { return strconv.AppendBool(dst, v) }

// ParseInt parses a decimal integer that fits in bits.
func ParseInt[T text](s T, bits int) (int64, error) {
	negative, u, err := parseInteger(s)
	if err != nil {
		return 0, err
	}
	limit := uint64(1) << (bits - 1)
	if negative {
		if u > limit {
			return 0, ErrRange
		}
		return -int64(u), nil
	}
	if u >= limit {
		return 0, ErrRange
	}
	return int64(u), nil
}

// ParseUint parses a non-negative decimal integer.
func ParseUint[T text](s T) (uint64, error) {
	negative, u, err := parseInteger(s)
	if err == nil && negative && u != 0 {
		return 0, ErrRange
	}
	return u, err
}

func parseInteger[T text](s T) (negative bool, u uint64, err error) {
	s = trimSpace(s)
	if len(s) > 0 && (s[0] == '-' || s[0] == '+') {
		negative = s[0] == '-'
		s = s[1:]
	}
	if len(s) == 0 {
		return false, 0, ErrSyntax
	}
	over := false
	for i := range len(s) {
		d := uint64(s[i] - '0')
		if d > 9 {
			return false, 0, ErrSyntax
		}
		if u > math.MaxUint64/10 || u == math.MaxUint64/10 && d > math.MaxUint64%10 {
			over = true
			continue
		}
		u = u*10 + d
	}
	if over {
		return false, 0, ErrRange
	}
	return negative, u, nil
}

// AppendInt appends an integer.
func AppendInt(dst []byte, v int64) []byte { return strconv.AppendInt(dst, v, 10) }

// AppendUint appends an integer.
func AppendUint(dst []byte, v uint64) []byte { return strconv.AppendUint(dst, v, 10) }

// numberParts is a decimal number split into its parts.
type numberParts[T text] struct {
	negative      bool
	whole, frac   T
	exponent      int  // clamped to ±maxExponent, where every type is out of range
	significant   bool // a digit is not 0
	unsignedBegin int  // start of the digits
}

const maxExponent = 1 << 20

func parseNumber[T text](s T) (n numberParts[T], err error) {
	i := 0
	if i < len(s) && (s[i] == '-' || s[i] == '+') {
		n.negative = s[i] == '-'
		i++
	}
	n.unsignedBegin = i
	digits := func() T {
		from := i
		for i < len(s) && isDigit(s[i]) {
			n.significant = n.significant || s[i] != '0'
			i++
		}
		return s[from:i]
	}
	n.whole = digits()
	if i < len(s) && s[i] == '.' {
		i++
		n.frac = digits()
	}
	if len(n.whole)+len(n.frac) == 0 {
		return n, ErrSyntax
	}
	if i < len(s) && s[i]|0x20 == 'e' {
		i++
		sign := 1
		if i < len(s) && (s[i] == '-' || s[i] == '+') {
			if s[i] == '-' {
				sign = -1
			}
			i++
		}
		if i == len(s) || !isDigit(s[i]) {
			return n, ErrSyntax
		}
		for i < len(s) && isDigit(s[i]) {
			n.exponent = min(n.exponent*10+int(s[i]-'0'), maxExponent)
			i++
		}
		n.exponent *= sign
	}
	if i != len(s) {
		return n, ErrSyntax
	}
	return n, nil
}

// ParseFloat parses a number, NaN, or an infinity. A number that is too large, or rounds to zero without being zero, is out of
// range.
func ParseFloat[T text](s T) (float64, error) {
	s = trimSpace(s)
	n, err := parseNumber(s)
	if err != nil {
		return namedFloat(s[n.unsignedBegin:], n.negative)
	}
	f, err := strconv.ParseFloat(string(s), 64)
	if err != nil || f == 0 && n.significant {
		return 0, ErrRange
	}
	return f, nil
}

func namedFloat[T text](name T, negative bool) (float64, error) {
	switch {
	case foldEqual(name, "inf") || foldEqual(name, "infinity"):
		if negative {
			return math.Inf(-1), nil
		}
		return math.Inf(1), nil
	case foldEqual(name, "nan"):
		return math.NaN(), nil
	}
	return 0, ErrSyntax
}

// AppendFloat appends the shortest text that reads back as v however ties are broken.
func AppendFloat(dst []byte, v float64) []byte {
	switch {
	case v != v:
		return append(dst, "NaN"...)
	case math.IsInf(v, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(v, -1):
		return append(dst, "-Infinity"...)
	}
	if a := math.Abs(v); a != 0 && (a < 1e-4 || a >= 1e15) {
		from := len(dst)
		dst = strconv.AppendFloat(dst, v, 'e', -1, 64)
		for digits := 1; a >= 1<<53 && isTied(dst[from:], v); digits++ {
			if dst = strconv.AppendFloat(dst[:from], v, 'e', digits, 64); digits < 16 {
				if back, err := strconv.ParseFloat(string(dst[from:]), 64); err != nil || back != v {
					dst = strconv.AppendFloat(dst[:from], v, 'e', -1, 64) // too few digits
				}
			}
		}
		return dst
	}
	return strconv.AppendFloat(dst, v, 'f', -1, 64)
}

// isTied reports whether a text of v is exactly half way to the next number. Go uses such a text if reading it returns v;
// PostgreSQL uses a longer one. Below 2^53 a tie would need more digits than a shortest text has.
func isTied(text []byte, v float64) bool {
	s, _, err := big.ParseFloat(string(text), 10, 1100, big.ToNearestEven) // exact: it is a whole number of at most 1024 bits
	if err != nil {
		return false
	}
	exact := new(big.Float).SetPrec(1100).SetFloat64(v)
	next := new(big.Float).SetPrec(1100)
	switch s.Cmp(exact) {
	case 0:
		return false
	case 1:
		next.SetFloat64(math.Nextafter(v, math.Inf(1)))
	default:
		next.SetFloat64(math.Nextafter(v, math.Inf(-1)))
	}
	if next.IsInf() {
		return false
	}
	return s.Add(s, s).Cmp(next.Add(next, exact)) == 0
}

// FitsPrecision reports whether v has at most precision digits.
func FitsPrecision(v decimal128.Num, precision int32) bool {
	v = v.Abs()
	return v.HighBits() >= 0 && v.Less(decimal128.GetScaleMultiplier(int(min(max(precision, 0), MaxPrecision))))
}

// PowerOfTen returns 10^n.
func PowerOfTen(n int32) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

// ParseDecimal parses a number and rounds it to the scale, half away from zero.
func ParseDecimal[T text](s T, precision, scale int32) (decimal128.Num, error) {
	n, err := parseNumber(trimSpace(s))
	if err != nil {
		return decimal128.Num{}, err
	}
	// digit(i) is the i-th digit overall. point is the number of digits left of the point after applying the exponent. keep is the
	// number of digits in the result.
	total := len(n.whole) + len(n.frac)
	digit := func(i int) byte {
		if i < len(n.whole) {
			return n.whole[i] - '0'
		}
		if i < total {
			return n.frac[i-len(n.whole)] - '0'
		}
		return 0
	}
	keep := len(n.whole) + n.exponent + int(scale)
	var v decimal128.Num
	digits := 0 // of v
	if n.significant {
		for i := range keep {
			if i >= total && digits == 0 {
				break
			}
			v = v.Mul(decimal128.GetScaleMultiplier(1)).Add(decimal128.FromU64(uint64(digit(i))))
			if digits > 0 || digit(i) > 0 {
				digits++
			}
			if digits > MaxPrecision {
				return decimal128.Num{}, ErrRange
			}
		}
		if keep >= 0 && keep < total && digit(keep) >= 5 {
			v = v.Add(decimal128.FromU64(1))
		}
	}
	if !FitsPrecision(v, precision) {
		return decimal128.Num{}, ErrRange
	}
	if n.negative {
		v = v.Negate()
	}
	return v, nil
}

// AppendDecimal appends v with scale digits after the point. A negative scale, which no column of ours has but a client's Arrow data may have,
// is the number of zeros after the digits.
func AppendDecimal(dst []byte, v decimal128.Num, scale int32) []byte {
	if v.Sign() < 0 {
		dst = append(dst, '-')
		v = v.Negate()
	}
	var buf [48]byte
	digits := appendDigits(buf[:0], uint64(v.HighBits()), v.LowBits())
	if scale <= 0 {
		dst = append(dst, digits...)
		if v != (decimal128.Num{}) {
			for range -int(scale) {
				dst = append(dst, '0')
			}
		}
		return dst
	}
	if whole := len(digits) - int(scale); whole > 0 {
		dst = append(dst, digits[:whole]...)
		digits = digits[whole:]
	} else {
		dst = append(dst, '0')
	}
	dst = append(dst, '.')
	for range int(scale) - len(digits) {
		dst = append(dst, '0')
	}
	return append(dst, digits...)
}

// appendDigits appends a number of 128 bits in decimal.
func appendDigits(dst []byte, hi, lo uint64) []byte {
	if hi == 0 {
		return strconv.AppendUint(dst, lo, 10)
	}
	const chunk = 1e19
	lower, last := bits.Div64(hi%chunk, lo, chunk)
	dst = appendDigits(dst, hi/chunk, lower)
	from := len(dst)
	dst = append(dst, "0000000000000000000"...)
	for i := len(dst) - 1; i >= from; i-- {
		dst[i] = byte('0' + last%10)
		last /= 10
	}
	return dst
}

// CompareFloats orders floats as PostgreSQL does: NaN equals itself and is above all other numbers.
func CompareFloats(a, b float64) int {
	if a != a || b != b {
		return cmp.Compare(b, a) // package cmp has NaN below all others
	}
	return cmp.Compare(a, b)
}

// FloatBits returns the bits of f with a single zero and a single NaN: values that are equal in SQL have equal bits.
func FloatBits(f float64) uint64 {
	switch {
	case f == 0:
		return 0
	case f != f:
		return math.Float64bits(math.NaN())
	}
	return math.Float64bits(f)
}
