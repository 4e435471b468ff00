package syslog

import (
	"strings"
	"time"
)

// Limits of RFC 5424, section 6, in characters.
const (
	maxHost   = 255
	maxApp    = 48
	maxProcID = 128
	maxMsgID  = 32
)

// parsePlain5424 parses a message of RFC 5424 of the usual kind: valid, and without structured data. For others it returns false,
// and the full parser, which takes several times as long, decides. Where it returns true, both agree.
func parsePlain5424(raw []byte) (f messageFields, ok bool) {
	text := string(raw) // the fields are substrings of it
	priority, rest, ok := plainPriority(text)
	if !ok {
		return f, false
	}
	version, rest, ok := strings.Cut(rest, " ")
	if !ok || version != "1" {
		return f, false
	}
	stamp, rest, ok := strings.Cut(rest, " ")
	if !ok {
		return f, false
	}
	if stamp != "-" {
		t, ok := plainTime(stamp)
		if !ok {
			return f, false
		}
		f.Time = &t
	}
	for _, field := range []struct {
		value *string
		most  int
	}{{&f.Host, maxHost}, {&f.App, maxApp}, {&f.ProcID, maxProcID}, {&f.MsgID, maxMsgID}} {
		if *field.value, rest, ok = plainField(rest, field.most); !ok {
			return f, false
		}
	}
	switch {
	case rest == "-":
	case strings.HasPrefix(rest, "- "):
		f.Message = rest[2:]
	default:
		return f, false
	}
	f.Facility, f.Severity = nameAt(facilities[:], priority/8), nameAt(severities[:], priority%8)
	return f, true
}

// plainPriority reads "<N>", N from 0 to 191 without leading zeros.
func plainPriority(text string) (priority uint8, rest string, ok bool) {
	if text == "" || text[0] != '<' {
		return 0, "", false
	}
	n, i := 0, 1
	for ; i < len(text) && i <= 3 && text[i] >= '0' && text[i] <= '9'; i++ {
		n = n*10 + int(text[i]-'0')
	}
	if i == 1 || i == len(text) || text[i] != '>' || n > 191 || text[1] == '0' && i > 2 {
		return 0, "", false
	}
	return uint8(n), text[i+1:], true
}

// plainField reads a field of the header up to the space after it; "-" means empty.
func plainField(text string, most int) (field, rest string, ok bool) {
	i := strings.IndexByte(text, ' ')
	if i < 1 || i > most || !isGraphic(text[:i]) {
		return "", "", false
	}
	if field = text[:i]; field == "-" {
		field = ""
	}
	return field, text[i+1:], true
}

// isGraphic reports whether text has no space, and nothing that can't be seen.
func isGraphic(text string) bool {
	for _, c := range []byte(text) {
		if c < '!' || c > '~' {
			return false
		}
	}
	return true
}

// plainTime reads a time of RFC 3339 as restricted by RFC 5424: upper case, at most microseconds. time.Parse alone accepts more.
func plainTime(stamp string) (t time.Time, ok bool) {
	const seconds, zone = "0000-00-00T00:00:00", "+00:00"
	if len(stamp) <= len(seconds) || !matchesDigits(stamp[:len(seconds)], seconds) {
		return t, false
	}
	rest := stamp[len(seconds):]
	if rest[0] == '.' {
		digits := len(rest) - 1 - len(strings.TrimLeft(rest[1:], "0123456789"))
		if digits < 1 || digits > 6 {
			return t, false
		}
		rest = rest[1+digits:]
	}
	if rest != "Z" && (len(rest) != len(zone) || !matchesDigits("+"+rest[1:], zone) || rest[0] != '+' && rest[0] != '-' || rest[1:3] > "23") {
		return t, false
	}
	t, err := time.Parse(time.RFC3339Nano, stamp)
	return t, err == nil
}

// matchesDigits reports whether text, of the same length as pattern, has a digit wherever pattern has one, and is equal
// elsewhere.
func matchesDigits(text, pattern string) bool {
	for i, c := range []byte(pattern) {
		switch {
		case c != '0' && text[i] != c, c == '0' && (text[i] < '0' || text[i] > '9'):
			return false
		}
	}
	return true
}
