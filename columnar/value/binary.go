package value

import "encoding/hex"

// ParseBinary parses \x and pairs of hexadecimal digits, with optional white space between pairs; or raw bytes, in which \\ is a
// backslash and \ with three octal digits is a byte.
func ParseBinary[T text](s T) ([]byte, error) {
	if len(s) >= 2 && s[0] == '\\' && s[1] == 'x' {
		return parseHex(s[2:])
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			out = append(out, s[i])
			continue
		}
		switch {
		case i+1 < len(s) && s[i+1] == '\\':
			out = append(out, '\\')
			i++
		case i+3 < len(s) && s[i+1]-'0' <= 3 && s[i+2]-'0' <= 7 && s[i+3]-'0' <= 7:
			out = append(out, (s[i+1]-'0')<<6|(s[i+2]-'0')<<3|(s[i+3]-'0'))
			i += 3
		default:
			return nil, ErrSyntax
		}
	}
	return out, nil
}

func parseHex[T text](s T) ([]byte, error) {
	out := make([]byte, 0, len(s)/2)
	for i := 0; i < len(s); {
		if c := s[i]; c == ' ' || c == '\n' || c == '\t' || c == '\r' {
			i++
			continue
		}
		if i+1 == len(s) {
			return nil, ErrSyntax
		}
		hi, lo := hexDigit(s[i]), hexDigit(s[i+1])
		if hi|lo > 15 {
			return nil, ErrSyntax
		}
		out = append(out, hi<<4|lo)
		i += 2
	}
	return out, nil
}

// hexDigit returns the value of a hexadecimal digit, or a value above 15 for another character.
func hexDigit(c byte) byte {
	switch {
	case isDigit(c):
		return c - '0'
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10
	}
	return 0xff
}

// AppendBinary appends \x and hexadecimal digits.
func AppendBinary(dst, v []byte) []byte { return hex.AppendEncode(append(dst, `\x`...), v) }
