package column

import (
	"encoding/binary"
	"math"

	"scribe/columnar/schema"
	"scribe/columnar/value"
)

// DayOf returns the day of an instant as an Arrow date. It returns false if the day is out of range.
func DayOf(micros int64) (int32, bool) {
	days := value.FloorDiv(micros, value.Day)
	return int32(days), days >= math.MinInt32 && days <= math.MaxInt32
}

// timeFormat is a time format with its precomputed properties.
type timeFormat struct {
	schema.TimeFormat
	parse func([]byte) (micros int64, ok bool) // nil: use the format's own Parse
	unix  bool                                 // numbers are accepted, too
	unit  int64                                // microseconds per unit of a unix format; 0 for nanoseconds
}

func timeFormats(t *schema.Type) []timeFormat {
	formats := make([]timeFormat, len(t.TimeFormats()))
	for i, f := range t.TimeFormats() {
		formats[i].TimeFormat = f
		formats[i].unit, formats[i].unix = f.Unix()
		switch f {
		case schema.RFC3339:
			formats[i].parse = readRFC3339
		case schema.DateOnly:
			formats[i].parse = readDateOnly
		default:
		}
	}
	return formats
}

// ParseInstant parses a text or a number as Unix microseconds. It tries the formats in order.
func ParseInstant(formats []timeFormat, text []byte, number bool) (micros int64, ok bool) {
	for i := range formats {
		f := &formats[i]
		switch {
		case number && !f.unix:
			continue
		case f.parse != nil:
			micros, ok = f.parse(text)
		default:
			micros, ok = f.Parse(asString(text))
		}
		if ok {
			return micros, true
		}
	}
	return 0, false
}

// InstantOfInteger is ParseInstant for an integer of at most 18 digits.
func InstantOfInteger(formats []timeFormat, v int64) (micros int64, ok bool) {
	for i := range formats {
		f := &formats[i]
		switch {
		case !f.unix:
		case f.unit == 0:
			return value.FloorDiv(v, 1000), true
		case v <= math.MaxInt64/f.unit-1 && -v <= math.MaxInt64/f.unit-1:
			return v * f.unit, true
		}
	}
	return 0, false
}

// readRFC3339 is schema.RFC3339.Parse, but many times faster for common forms.
func readRFC3339(b []byte) (int64, bool) {
	if len(b) < len("2006-01-02T15:04:05Z") {
		return 0, false
	}
	day, ok := readDate(b)
	hour, ok1 := readPair(b[11:], 23)
	minute, ok2 := readPair(b[14:], 59)
	second, ok3 := readPair(b[17:], 59)
	if !ok || !ok1 || !ok2 || !ok3 || b[10] != 'T' || b[13] != ':' || b[16] != ':' {
		return schema.RFC3339.Parse(asString(b))
	}
	at := day*value.Day + (hour*3600+minute*60+second)*1_000_000
	i := 19
	if b[i] == '.' {
		scale := int64(100_000)
		for i++; i < len(b) && b[i]-'0' <= 9; i++ {
			at += int64(b[i]-'0') * scale
			scale /= 10
		}
		if i == 20 {
			return 0, false
		}
	}
	switch {
	case i == len(b)-1 && b[i] == 'Z':
		return at, true
	case i == len(b)-6 && (b[i] == '+' || b[i] == '-') && b[i+3] == ':':
		h, ok1 := readPair(b[i+1:], 23)
		m, ok2 := readPair(b[i+4:], 59)
		if !ok1 || !ok2 {
			return schema.RFC3339.Parse(asString(b))
		}
		offset := (h*60 + m) * 60_000_000
		if b[i] == '+' {
			offset = -offset
		}
		return at + offset, true
	}
	return schema.RFC3339.Parse(asString(b))
}

// readDateOnly is schema.DateOnly.Parse.
func readDateOnly(b []byte) (int64, bool) {
	if len(b) != len(schema.DateOnly) {
		return 0, false
	}
	day, ok := readDate(b)
	return day * value.Day, ok
}

func readPair(b []byte, most int64) (int64, bool) {
	x, y := b[0]-'0', b[1]-'0'
	v := int64(x)*10 + int64(y)
	return v, x <= 9 && y <= 9 && v <= most
}

var daysIn = [13]int64{0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}

// readDate parses a date, 2006-01-02, as days since 1970.
func readDate(b []byte) (int64, bool) {
	// The digits and dashes of the first eight bytes are checked at once.
	w := binary.LittleEndian.Uint64(b)
	const dashes, mask = 0x2D00002D00000000, 0xFF0000FF00000000
	if w&mask != dashes {
		return 0, false
	}
	d := w&^mask ^ 0x0030300030303030
	if (d+0x0076760076767676|d)&0x0080800080808080 != 0 {
		return 0, false
	}
	year := int64(byte(d))*1000 + int64(byte(d>>8))*100 + int64(byte(d>>16))*10 + int64(byte(d>>24))
	month := int64(byte(d>>40))*10 + int64(byte(d>>48))
	day, ok := readPair(b[8:], 31)
	if !ok || month < 1 || month > 12 || day < 1 {
		return 0, false
	}
	if day > daysIn[month] && (month != 2 || day != 29 || year%4 != 0 || year%100 == 0 && year%400 != 0) {
		return 0, false
	}
	// The days-from-civil algorithm, with years that begin in March.
	y, m := year, month-3
	if month <= 2 {
		y, m = year-1, month+9
	}
	era := y / 400
	if y < 0 {
		era = -1
	}
	ofEra := y - era*400
	ofYear := (153*m+2)/5 + day - 1
	return era*146097 + ofEra*365 + ofEra/4 - ofEra/100 + ofYear - 719468, true
}
