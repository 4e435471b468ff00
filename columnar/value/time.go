package value

import (
	"math"
	"strconv"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
)

// Units of timestamps.
const (
	Microsecond int64 = 1
	Millisecond       = 1000 * Microsecond
	Second            = 1000 * Millisecond
	Minute            = 60 * Second
	Hour              = 60 * Minute
	Day               = 24 * Hour
)

// Bounds of dates and timestamps. They are PostgreSQL's, except that our timestamps end where microseconds since 1970 overflow,
// in 294247.
const (
	MinDays      = -2440588   // 4714-11-24 BC
	MaxDays      = 2145042905 // 5874897-12-31
	MinTimestamp = MinDays * Day
	MaxTimestamp = math.MaxInt64
)

// DaysOf returns the days since 1970-01-01 of a date in the proleptic Gregorian calendar. Year 0 is 1 BC. A month or day out of
// range carries over.
func DaysOf(year, month, day int64) int64 {
	return time.Date(int(year), time.Month(month), int(day), 0, 0, 0, 0, time.UTC).Unix() / (Day / Second)
}

// CivilOf returns the date of a day since 1970-01-01.
func CivilOf(days int64) (year int64, month, day int) {
	y, m, day := time.Unix(days*(Day/Second), 0).UTC().Date()
	return int64(y), int(m), day
}

// DaysIn returns the number of days of a month.
func DaysIn(year int64, month int) int {
	return time.Date(int(year), time.Month(month)+1, 0, 0, 0, 0, 0, time.UTC).Day()
}

// Split splits a timestamp into its day since 1970-01-01 and the microseconds of that day.
func Split(t arrow.Timestamp) (days, micros int64) {
	days = FloorDiv(int64(t), Day)
	return days, int64(t) - days*Day
}

// FloorDiv returns a/b rounded down; b must be positive.
func FloorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// FloorMod returns the remainder of [FloorDiv], which is not negative.
func FloorMod(a, b int64) int64 { return a - FloorDiv(a, b)*b }

// ParseDate parses the date of a text that [ParseTimestamp] accepts.
func ParseDate[T text](s T) (arrow.Date32, error) {
	p := timeParser[T]{s: trimSpace(s)}
	days, _, err := p.parseInstant()
	if err != nil {
		return 0, err
	}
	if days < MinDays || days > MaxDays {
		return 0, ErrRange
	}
	return arrow.Date32(days), nil
}

// ParseTimestamp parses year-month-day, or yearmonthday in eight digits. After a space or T may follow hour:minute, :second,
// .fraction (rounded to microseconds), and an offset from UTC: Z, UTC, GMT, or a sign and hour, optionally with :minute and
// :second, or minute without a colon. AD or BC may follow. Years have at least three digits. The text "epoch" is the start of
// 1970.
func ParseTimestamp[T text](s T) (arrow.Timestamp, error) {
	p := timeParser[T]{s: trimSpace(s)}
	days, micros, err := p.parseInstant()
	if err != nil {
		return 0, err
	}
	micros -= p.offset
	days += FloorDiv(micros, Day)
	micros = FloorMod(micros, Day)
	// The last day of the range is only partly in range.
	if last, rest := Split(MaxTimestamp); days < MinDays || days > last || days == last && micros > rest {
		return 0, ErrRange
	}
	return arrow.Timestamp(days*Day + micros), nil
}

// timeParser is the state of parsing a date and a time of day.
type timeParser[T text] struct {
	s      T
	at     int
	offset int64 // microseconds east of UTC
}

func (p *timeParser[T]) peekByte() byte {
	if p.at < len(p.s) {
		return p.s[p.at]
	}
	return 0
}

func (p *timeParser[T]) acceptByte(c byte) bool {
	if p.at < len(p.s) && p.s[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *timeParser[T]) skipSpace() {
	for p.at < len(p.s) && isSpace(p.s[p.at]) {
		p.at++
	}
}

// parseDigits parses between lo and hi digits.
func (p *timeParser[T]) parseDigits(lo, hi int) (v int64, n int, ok bool) {
	for n < hi && isDigit(p.peekByte()) {
		v = v*10 + int64(p.s[p.at]-'0')
		p.at++
		n++
	}
	return v, n, n >= lo
}

// parseInstant returns the day and the microseconds of the day, without applying the offset. The microseconds may exceed a day.
func (p *timeParser[T]) parseInstant() (days, micros int64, err error) {
	if foldEqual(p.s, "epoch") {
		return 0, 0, nil
	}
	year, month, day, ok := p.parseDate()
	if !ok {
		return 0, 0, ErrSyntax
	}
	if c := p.peekByte(); c|0x20 == 't' && p.at+1 < len(p.s) && isDigit(p.s[p.at+1]) {
		p.at++
	} else {
		p.skipSpace()
	}
	if isDigit(p.peekByte()) {
		if micros, err = p.parseClock(); err != nil {
			return 0, 0, err
		}
		p.skipSpace()
		if err := p.parseOffset(); err != nil {
			return 0, 0, err
		}
		p.skipSpace()
	}
	if rest := p.s[p.at:]; foldEqual(rest, "bc") {
		if year == 0 {
			return 0, 0, ErrRange
		}
		year = 1 - year
	} else if len(rest) > 0 && !foldEqual(rest, "ad") {
		return 0, 0, ErrSyntax
	} else if year == 0 {
		return 0, 0, ErrRange
	}
	if month < 1 || month > 12 || day < 1 || day > int64(DaysIn(year, int(month))) {
		return 0, 0, ErrRange
	}
	return DaysOf(year, month, day), micros, nil
}

func (p *timeParser[T]) parseDate() (year, month, day int64, ok bool) {
	year, n, ok := p.parseDigits(3, 8)
	if !ok {
		return 0, 0, 0, false
	}
	if n == 8 && p.peekByte() != '-' {
		return year / 10000, year / 100 % 100, year % 100, true
	}
	if !p.acceptByte('-') {
		return 0, 0, 0, false
	}
	if month, _, ok = p.parseDigits(1, 2); !ok || !p.acceptByte('-') {
		return 0, 0, 0, false
	}
	day, _, ok = p.parseDigits(1, 2)
	return year, month, day, ok && !isDigit(p.peekByte())
}

func (p *timeParser[T]) parseClock() (int64, error) {
	hour, _, _ := p.parseDigits(1, 2)
	if !p.acceptByte(':') {
		return 0, ErrSyntax
	}
	micros, err := p.parseMinutes()
	if err != nil {
		return 0, err
	}
	if micros += hour * Hour; micros > Day {
		return 0, ErrRange
	}
	return micros, nil
}

// parseMinutes parses minutes, and optional seconds with a fraction, after an hour.
func (p *timeParser[T]) parseMinutes() (micros int64, err error) {
	var second, fraction int64
	minute, _, ok := p.parseDigits(1, 2)
	if ok && p.acceptByte(':') {
		if second, _, ok = p.parseDigits(1, 2); ok && p.acceptByte('.') {
			fraction = p.parseFraction()
		}
	}
	if !ok || isDigit(p.peekByte()) {
		return 0, ErrSyntax
	}
	if minute > 59 || second > 60 {
		return 0, ErrRange
	}
	return minute*Minute + second*Second + fraction, nil
}

// parseFraction parses the digits after a point as rounded microseconds.
func (p *timeParser[T]) parseFraction() int64 {
	v, n, _ := p.parseDigits(0, 6)
	for ; n < 6; n++ {
		v *= 10
	}
	if isDigit(p.peekByte()) {
		// strtod rounds a half by the double of the digits. From six digits on it is exactly a half, or the following digits decide.
		half, some := p.s[p.at] == '5', false
		up := p.s[p.at] > '5'
		p.at++
		for isDigit(p.peekByte()) {
			some = some || p.s[p.at] != '0'
			p.at++
		}
		if up || half && (some || v%2 == 1) {
			v++
		}
	}
	return v
}

// parseOffset parses an optional offset.
func (p *timeParser[T]) parseOffset() error {
	rest := p.s[p.at:]
	for _, name := range []string{"utc", "gmt", "z"} {
		if len(rest) >= len(name) && foldEqual(rest[:len(name)], name) {
			p.at += len(name)
			return nil
		}
	}
	sign := int64(0)
	switch {
	case p.acceptByte('+'):
		sign = 1
	case p.acceptByte('-'):
		sign = -1
	default:
		return nil
	}
	v, n, ok := p.parseDigits(1, 6)
	if !ok {
		return ErrSyntax
	}
	var minute, second int64
	switch {
	case n == 3 || n == 4:
		v, minute = v/100, v%100
	case n > 4:
		v, minute, second = v/10000, v/100%100, v%100
	case p.acceptByte(':'):
		if minute, _, ok = p.parseDigits(2, 2); !ok {
			return ErrSyntax
		}
		if p.acceptByte(':') {
			if second, _, ok = p.parseDigits(2, 2); !ok {
				return ErrSyntax
			}
		}
	}
	if v > 15 || minute > 59 || second > 59 {
		return ErrRange
	}
	p.offset = sign * (v*Hour + minute*Minute + second*Second)
	return nil
}

// AppendDate appends year-month-day.
func AppendDate(dst []byte, v arrow.Date32) []byte {
	dst, bc := appendDay(dst, int64(v))
	return appendEra(dst, bc)
}

// AppendTimestamp appends year-month-day hour:minute:second, the necessary digits after the point, and +00.
func AppendTimestamp(dst []byte, v arrow.Timestamp) []byte {
	days, micros := Split(v)
	dst, bc := appendDay(dst, days)
	dst = append(dst, ' ')
	dst = append(appendClock(dst, micros), "+00"...)
	return appendEra(dst, bc)
}

func appendDay(dst []byte, days int64) (_ []byte, bc bool) {
	year, month, day := CivilOf(days)
	if bc = year <= 0; bc {
		year = 1 - year
	}
	if year > 9999 {
		dst = strconv.AppendInt(dst, year, 10)
	} else {
		dst = appendPair(appendPair(dst, year/100), year%100)
	}
	dst = appendPair(append(dst, '-'), int64(month))
	return appendPair(append(dst, '-'), int64(day)), bc
}

func appendEra(dst []byte, bc bool) []byte {
	if bc {
		return append(dst, " BC"...)
	}
	return dst
}

func appendPair(dst []byte, v int64) []byte { return append(dst, byte('0'+v/10), byte('0'+v%10)) }

// appendClock appends hours, which may exceed a day, minutes, seconds and any microseconds.
func appendClock(dst []byte, micros int64) []byte {
	if h := micros / Hour; h > 99 {
		dst = strconv.AppendInt(dst, h, 10)
	} else {
		dst = appendPair(dst, h)
	}
	dst = appendPair(append(dst, ':'), micros/Minute%60)
	dst = appendPair(append(dst, ':'), micros/Second%60)
	return appendFraction(dst, micros%Second)
}

func appendFraction(dst []byte, micros int64) []byte {
	if micros == 0 {
		return dst
	}
	dst = append(dst, '.')
	for unit := Second / 10; micros > 0; unit /= 10 {
		dst = append(dst, byte('0'+micros/unit))
		micros %= unit
	}
	return dst
}
