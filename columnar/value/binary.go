package value

import (
	"bytes"
	"encoding/hex"
)

// ParseBinary parses \x and pairs of hexadecimal digits, with optional white space between pairs; or raw bytes, in which \\ is a
// backslash and \ with three octal digits is a byte.
func ParseBinary[T text](s T) ([]byte, error) {
	if len(s) >= 2 && s[0] == '\\' && s[1] == 'x' {
		return parseHex([]byte(s[2:]))
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

func parseHex(s []byte) ([]byte, error) {
	out := make([]byte, 0, len(s)/2)
	for pairs := range bytes.FieldsFuncSeq(s, func(r rune) bool { return r == ' ' || r == '\n' || r == '\t' || r == '\r' }) {
		var err error
		if out, err = hex.AppendDecode(out, pairs); err != nil {
			return nil, ErrSyntax
		}
	}
	return out, nil
}

// AppendBinary appends \x and hexadecimal digits.
func AppendBinary(dst, v []byte) []byte { return hex.AppendEncode(append(dst, `\x`...), v) }
