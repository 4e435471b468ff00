package schema

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Named formats of instants. Any other format is a layout of the package time, such as "02/Jan/2006:15:04:05 -0700". A layout
// without a zone is in UTC. A zone written in letters must be UTC, GMT or Z, since other letters do not determine an offset.
const (
	// RFC3339 is 2006-01-02T15:04:05Z: T, t or a space between date and time, any number of fraction digits, and Z, z or an offset.
	RFC3339 TimeFormat = "rfc3339"
	// UnixSeconds and the following formats count from 1970, as a number or a text, with or without a fraction, without an exponent.
	UnixSeconds TimeFormat = "unix_s"
	UnixMillis  TimeFormat = "unix_ms"
	UnixMicros  TimeFormat = "unix_us"
	UnixNanos   TimeFormat = "unix_ns"
	// DateOnly is the default layout of dates.
	DateOnly TimeFormat = time.DateOnly
)

var timeFormatNames = []string{string(RFC3339), string(UnixSeconds), string(UnixMillis), string(UnixMicros), string(UnixNanos)}

// TimeFormats returns the formats that values of the type are read with: its own, or the default of its kind.
func (t *Type) TimeFormats() []TimeFormat {
	switch {
	case len(t.Formats) > 0:
		return t.Formats
	case t.Kind == Timestamp:
		return []TimeFormat{RFC3339}
	case t.Kind == Date:
		return []TimeFormat{DateOnly}
	default:
		return nil
	}
}

// Unix returns the microseconds per unit of a unix format, and whether f is a unix format. Only unix formats read numbers. For
// UnixNanos it returns 0, since a microsecond has 1000 nanoseconds.
func (f TimeFormat) Unix() (micros int64, ok bool) {
	switch f {
	case UnixSeconds:
		return 1_000_000, true
	case UnixMillis:
		return 1_000, true
	case UnixMicros:
		return 1, true
	case UnixNanos:
		return 0, true
	default:
		return 0, false
	}
}

// Parse parses an instant and returns it in microseconds since 1970. Finer digits are rounded down, towards the past. A number is
// passed as it was written. Parse defines what the formats mean; faster implementations must agree with it.
func (f TimeFormat) Parse(text string) (micros int64, ok bool) {
	if unit, unix := f.Unix(); unix {
		return parseUnix(text, unit)
	}
	layout := string(f)
	if f == RFC3339 {
		layout = time.RFC3339
		if len(text) < len("2006-01-02T15:04:05Z") {
			return 0, false
		}
		if c := text[10]; c == ' ' || c == 't' {
			text = text[:10] + "T" + text[11:]
		}
		text = strings.Replace(text, "z", "Z", 1)
		if text[10] != 'T' || strings.IndexByte(text, ',') >= 0 {
			return 0, false
		}
	}
	t, err := time.Parse(layout, text)
	if err != nil {
		return 0, false
	}
	if name, offset := t.Zone(); offset == 0 && name != "" && !slices.Contains([]string{"UTC", "GMT", "Z"}, name) {
		return 0, false
	}
	return t.UnixMicro(), true
}

// parseUnix parses a decimal number of units. unit is the number of microseconds per unit, or 0 for nanoseconds.
func parseUnix(text string, unit int64) (int64, bool) {
	digits, negative := strings.CutPrefix(text, "-")
	whole, fraction, dotted := strings.Cut(digits, ".")
	if !allDigits(whole) || len(whole) > 19 || dotted && !allDigits(fraction) {
		return 0, false
	}
	units, err := strconv.ParseUint(whole, 10, 64)
	if err != nil || unit != 0 && units > math.MaxInt64/uint64(unit)-1 {
		return 0, false
	}
	// Digits below a microsecond only matter for rounding down a time before 1970.
	rest := strings.TrimRight(fraction, "0") != ""
	var n int64
	if unit == 0 {
		rest = rest || units%1000 != 0
		n = int64(units / 1000)
	} else {
		n = int64(units) * unit
		for i, scale := 0, unit/10; i < len(fraction) && scale > 0; i, scale = i+1, scale/10 {
			n += int64(fraction[i]-'0') * scale
		}
		places := len(strconv.FormatInt(unit, 10)) - 1
		rest = strings.TrimRight(fraction[min(places, len(fraction)):], "0") != ""
	}
	if negative {
		n = -n
		if rest {
			n--
		}
	}
	return n, true
}

func allDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// checkFormat returns the problem of a format for a kind, with a suggestion. message is empty if there is none.
func (f TimeFormat) checkFormat(kind Kind) (message, hint string) {
	if slices.Contains(timeFormatNames, string(f)) {
		return "", ""
	}
	const layouts = `a layout shows how the instant 2006-01-02 15:04:05 is written, as in "02/Jan/2006:15:04:05 -0700"`
	switch {
	case f == "":
		return "empty time format", layouts
	case len(f) > 100:
		return "time format too long: the limit is 100 bytes", ""
	case strings.Contains(string(f), "%"):
		return "the time format " + strconv.Quote(string(f)) + " is in the syntax of strftime", layouts
	}
	// A layout that contains the full date reproduces it.
	at := time.Date(2021, 11, 23, 13, 14, 17, 0, time.UTC)
	got, ok := f.Parse(at.Format(string(f)))
	if back := time.UnixMicro(got).UTC(); !ok || back.Year() != at.Year() || back.YearDay() != at.YearDay() {
		message = "the time format " + strconv.Quote(string(f)) + " does not have year, month and day, which a " + kind.String() + " needs"
		return message, cmp.Or(nearFormat(f), layouts)
	}
	return "", ""
}
