package syslog

import (
	"net/netip"
	"strings"
	"time"
)

// maxTag bounds the name of a program. RFC 3164 says 32 characters, and some devices send more.
const maxTag = 48

// parse3164 parses a message of RFC 3164, and of what is sent in its place: days with a zero in front, more spaces, no host, longer
// names. What follows the time is a message in any case.
func (p *messageParser) parse3164(raw []byte) (f messageFields, ok bool) {
	priority, rest, ok := plainPriority(string(raw)) // the fields are substrings of it
	rest = strings.TrimLeft(rest, " ")
	if !ok || len(rest) <= len(time.Stamp) || rest[len(time.Stamp)] != ' ' {
		return f, false
	}
	t, err := time.Parse(time.Stamp, rest[:len(time.Stamp)])
	if err != nil {
		return f, false
	}
	t = p.guessYear(t)
	f.Time, f.Host = &t, p.host
	f.Facility, f.Severity = nameAt(facilities[:], priority/8), nameAt(severities[:], priority%8)
	rest = strings.TrimLeft(rest[len(time.Stamp):], " ")
	if p.host == "" {
		f.Host, rest = cutHost(rest)
	}
	f.App, f.ProcID, f.Message = cutTag(rest)
	return f, true
}

// cutHost returns the host and what follows it. A first word with a colon is a tag, and there is no host, unless it is an IPv6 address.
func cutHost(text string) (host, rest string) {
	host, rest, found := strings.Cut(text, " ")
	if !found || len(host) > maxHost || !isGraphic(host) {
		return "", text
	}
	if _, err := netip.ParseAddr(host); err != nil && strings.Contains(host, ":") {
		return "", text
	}
	return host, strings.TrimLeft(rest, " ")
}

// cutTag divides "APP[PROCID]: MESSAGE" or "APP: MESSAGE". Without the space, or the colon after PROCID, all of it is the message.
func cutTag(text string) (app, procID, message string) {
	i := strings.IndexAny(text, " :[")
	if i < 1 || i > maxTag || !isGraphic(text[:i]) {
		return "", "", text
	}
	app, rest := text[:i], text[i:]
	if rest[0] == '[' {
		end := 1 + strings.IndexAny(rest[1:], "[]")
		if rest[end] != ']' {
			return "", "", text
		}
		procID, rest = rest[1:end], rest[end+1:]
	}
	if message, ok := strings.CutPrefix(rest, ": "); ok {
		return app, procID, message
	}
	if procID == "" && !strings.HasPrefix(rest, ":") {
		app = ""
	}
	return app, procID, text
}

// guessYear returns a time without a year in the year that brings it closest to now: around New Year that may be another one.
func (p *messageParser) guessYear(t time.Time) time.Time {
	now := p.now().In(p.location)
	best := time.Time{}
	for y := now.Year() - 1; y <= now.Year()+1; y++ {
		c := time.Date(y, t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), p.location)
		if best.IsZero() || now.Sub(c).Abs() < now.Sub(best).Abs() {
			best = c
		}
	}
	return best
}
