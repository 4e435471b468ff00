// Package units has the quantities of configuration and of the command line: durations with days, and sizes in bytes with binary
// and decimal suffixes. Both are types, so that quantities of different units are not confused.
package units

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration that also reads and writes days and weeks: "72h", "3d", "1w2d", "250ms".
type Duration time.Duration

// ParseDuration reads a duration. Units are those of time.ParseDuration and d (24 h) and w (7 d). It is never negative.
func ParseDuration(s string) (Duration, error) {
	var total time.Duration
	rest := s
	for _, u := range []struct {
		suffix string
		length time.Duration
	}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}} {
		number, after, ok := strings.Cut(rest, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || !(n >= 0) || n*float64(u.length) > math.MaxInt64/2 {
			return 0, durationError(s)
		}
		total += time.Duration(n * float64(u.length))
		rest = after
	}
	if rest != "" || s == "" {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 {
			return 0, durationError(s)
		}
		total += d
	}
	if total < 0 {
		return 0, durationError(s)
	}
	return Duration(total), nil
}

// TimeHelp says in help and errors which texts [ParseTime] reads.
const TimeHelp = "a time (2026-11-21T09:00:00Z), a date (2026-11-21, today, yesterday; from midnight on, in UTC) or an age (15m, 3d)"

// civilLayouts are times without a zone, which are in UTC as all times that are printed.
var civilLayouts = []string{time.DateOnly, "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateTime, "2006-01-02 15:04"}

// ParseTime reads an instant: in RFC 3339, or without a zone (UTC); a date, today or yesterday, which is the midnight (UTC) with which it begins;
// now; or how long before now it was, as [ParseDuration] reads it.
func ParseTime(s string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	for _, layout := range civilLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	midnight := now.UTC().Truncate(24 * time.Hour)
	switch s {
	case "now":
		return now, nil
	case "today":
		return midnight, nil
	case "yesterday":
		return midnight.AddDate(0, 0, -1), nil
	}
	if d, err := ParseDuration(s); err == nil {
		return now.Add(-d.Std()), nil
	}
	return time.Time{}, fmt.Errorf("%q is not a time: want %s", s, TimeHelp)
}

func durationError(s string) error {
	return fmt.Errorf("%q is not a duration: write a number and a unit, such as 250ms, 90s, 72h, 3d or 1w", s)
}

// Std returns d as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String writes whole days as such: "3d", "1d12h", "1m30s".
func (d Duration) String() string {
	const day = 24 * time.Hour
	days, rest := time.Duration(d)/day, time.Duration(d)%day
	text := rest.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	switch {
	case days == 0:
		return text
	case rest == 0:
		return fmt.Sprintf("%dd", days)
	default:
		return fmt.Sprintf("%dd%s", days, text)
	}
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := ParseDuration(string(b))
	if err == nil {
		*d = v
	}
	return err
}

// Set implements pflag.Value.
func (d *Duration) Set(s string) error { return d.UnmarshalText([]byte(s)) }

// Type implements pflag.Value.
func (d *Duration) Type() string { return "duration" }

// Bytes is a size in bytes: "64MiB", "10MB", "512k", "1048576".
type Bytes int64

// sizes are the suffixes with their factors, the largest first. A suffix that ends other suffixes comes after them. A single
// letter is binary, as in most operators' tools.
var sizes = []struct {
	suffix string
	factor int64
}{
	{"tib", 1 << 40},
	{"tb", 1e12},
	{"gib", 1 << 30},
	{"gb", 1e9},
	{"mib", 1 << 20},
	{"mb", 1e6},
	{"kib", 1 << 10},
	{"kb", 1e3},
	{"t", 1 << 40},
	{"g", 1 << 30},
	{"m", 1 << 20},
	{"k", 1 << 10},
	{"b", 1},
	{"", 1},
}

// ParseBytes reads a size. It is never negative.
func ParseBytes(s string) (Bytes, error) {
	lower := strings.ToLower(strings.TrimSpace(s))
	for _, u := range sizes {
		number, ok := strings.CutSuffix(lower, u.suffix)
		if !ok {
			continue
		}
		number = strings.TrimSpace(number)
		if n, err := strconv.ParseInt(number, 10, 64); err == nil && n >= 0 && n <= math.MaxInt64/u.factor {
			return Bytes(n * u.factor), nil
		}
		if f, err := strconv.ParseFloat(number, 64); err == nil && f >= 0 && f*float64(u.factor) < math.MaxInt64/2 {
			return Bytes(f * float64(u.factor)), nil
		}
		break
	}
	return 0, fmt.Errorf("%q is not a size: write a number of bytes, or a unit as in 512KiB, 64MiB, 10MB or 2GiB", s)
}

// About writes about how many bytes n is, to a tenth of the largest binary unit that it reaches, as all output for people does: "17B",
// "1.5KiB", "28.6MiB". [Bytes.String] is exact.
func About[N ~int | ~int64 | ~uint64 | ~float64](n N) string {
	const unit = 1024
	v, at := float64(n), -1
	for at < 0 && v >= unit || v >= unit-0.05 && at >= 0 && at < len(aboutUnits)-1 {
		v, at = v/unit, at+1
	}
	if at < 0 {
		return fmt.Sprintf("%.0fB", v)
	}
	return fmt.Sprintf("%.1f%ciB", v, aboutUnits[at])
}

// aboutUnits are the first letters of binary units.
const aboutUnits = "KMGTPE"

// String writes the size exactly, in the largest unit that divides it, but for kB: "64MiB", "10MB", "1500B", "0".
func (b Bytes) String() string {
	for _, u := range sizes[:7] {
		if int64(b) >= u.factor && int64(b)%u.factor == 0 {
			return fmt.Sprintf("%d%s%s", int64(b)/u.factor, strings.ToUpper(u.suffix[:1]), strings.Replace(u.suffix[1:], "b", "B", 1))
		}
	}
	if b == 0 {
		return "0"
	}
	return fmt.Sprintf("%dB", int64(b))
}

// MarshalText implements encoding.TextMarshaler.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *Bytes) UnmarshalText(text []byte) error {
	v, err := ParseBytes(string(text))
	if err == nil {
		*b = v
	}
	return err
}

// Set implements pflag.Value.
func (b *Bytes) Set(s string) error { return b.UnmarshalText([]byte(s)) }

// Type implements pflag.Value.
func (b *Bytes) Type() string { return "size" }
