package value

import (
	"math"
	"math/bits"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
)

// Interval is months, days and microseconds, each with its own sign. Arrow's interval has nanoseconds; [Interval.Arrow] and
// [IntervalOf] convert. Digits below a microsecond are truncated.
type Interval struct {
	Months, Days int64
	Micros       int64
}

// IntervalOf converts an Arrow interval.
func IntervalOf(v arrow.MonthDayNanoInterval) Interval {
	return Interval{int64(v.Months), int64(v.Days), v.Nanoseconds / 1000}
}

// Arrow converts to an Arrow interval. It returns false if a part is out of range: the time is at most 292 years.
func (v Interval) Arrow() (arrow.MonthDayNanoInterval, bool) {
	out := arrow.MonthDayNanoInterval{Months: int32(v.Months), Days: int32(v.Days), Nanoseconds: v.Micros * 1000}
	return out, int64(out.Months) == v.Months && int64(out.Days) == v.Days && out.Nanoseconds/1000 == v.Micros
}

// Length returns the length in microseconds, by which intervals compare as in PostgreSQL: a month has 30 days, a day 24 hours.
func (v Interval) Length() decimal128.Num {
	return decimal128.FromI64(v.Days + v.Months*30).Mul(decimal128.FromI64(Day)).Add(decimal128.FromI64(v.Micros))
}

// CascadeInterval returns an interval of fractional parts as PostgreSQL does: it converts fractions of months into days, at 30 per
// month, and fractions of days into time. It returns false if a part is out of range.
func CascadeInterval(months, days, micros float64) (arrow.MonthDayNanoInterval, bool) {
	if !(math.Abs(months) <= math.MaxInt32 && math.Abs(days) <= math.MaxInt32) {
		return arrow.MonthDayNanoInterval{}, false
	}
	out := Interval{Months: int64(months), Days: int64(days)}
	toMicros := func(f float64) float64 { return math.RoundToEven(f*1e6) / 1e6 }
	restDays := toMicros((months - math.Trunc(months)) * 30)
	const day = 86400
	seconds := toMicros((days - math.Trunc(days) + restDays - math.Trunc(restDays)) * day)
	if math.Abs(seconds) >= day {
		out.Days += int64(seconds / day)
		seconds -= math.Trunc(seconds/day) * day
	}
	out.Days += int64(restDays)
	micros = math.RoundToEven(micros + seconds*1e6)
	if !(math.Abs(micros) < 1<<63) {
		return arrow.MonthDayNanoInterval{}, false
	}
	out.Micros = int64(micros)
	return out.Arrow()
}

// AppendInterval appends nonzero years, months and days with their units, and the time if it is nonzero or the only part.
func AppendInterval(dst []byte, a arrow.MonthDayNanoInterval) []byte {
	v := IntervalOf(a)
	from := len(dst)
	// PostgreSQL writes a plus if the previous part was negative.
	negative := false
	part := func(n int64, unit string) {
		if n == 0 {
			return
		}
		if len(dst) > from {
			dst = append(dst, ' ')
		}
		if negative && n > 0 {
			dst = append(dst, '+')
		}
		negative = n < 0
		dst = strconv.AppendInt(dst, n, 10)
		dst = append(append(dst, ' '), unit...)
		if n != 1 {
			dst = append(dst, 's')
		}
	}
	part(v.Months/12, "year")
	part(v.Months%12, "mon")
	part(v.Days, "day")
	if v.Micros == 0 && len(dst) > from {
		return dst
	}
	if len(dst) > from {
		dst = append(dst, ' ')
	}
	if v.Micros < 0 {
		dst = append(dst, '-')
	} else if negative {
		dst = append(dst, '+')
	}
	return appendClock(dst, max(v.Micros, -v.Micros))
}

// intervalUnit is a unit in an interval's text.
type intervalUnit struct {
	months, days int64
	micros       int64
	// field is a bit that identifies the unit: each may occur at most once.
	field uint16
}

var (
	microseconds = intervalUnit{micros: 1, field: 1 << 0}
	milliseconds = intervalUnit{micros: Millisecond, field: 1 << 1}
	seconds      = intervalUnit{micros: Second, field: 1 << 2}
	minutes      = intervalUnit{micros: Minute, field: 1 << 3}
	hours        = intervalUnit{micros: Hour, field: 1 << 4}
	days         = intervalUnit{days: 1, field: 1 << 5}
	weeks        = intervalUnit{days: 7, field: 1 << 6}
	months       = intervalUnit{months: 1, field: 1 << 7}
	years        = intervalUnit{months: 12, field: 1 << 8}
	decades      = intervalUnit{months: 120, field: 1 << 9}
	centuries    = intervalUnit{months: 1200, field: 1 << 10}
	millennia    = intervalUnit{months: 12000, field: 1 << 11}
)

var units = map[string]intervalUnit{
	"us": microseconds, "usec": microseconds, "usecs": microseconds, "usecond": microseconds, "useconds": microseconds,
	"microsecon": microseconds, "microsecond": microseconds, "microseconds": microseconds,
	"ms": milliseconds, "msec": milliseconds, "msecs": milliseconds, "msecond": milliseconds, "mseconds": milliseconds,
	"millisecon": milliseconds, "millisecond": milliseconds, "milliseconds": milliseconds,
	"s": seconds, "sec": seconds, "secs": seconds, "second": seconds, "seconds": seconds,
	"m": minutes, "min": minutes, "mins": minutes, "minute": minutes, "minutes": minutes,
	"h": hours, "hr": hours, "hrs": hours, "hour": hours, "hours": hours,
	"d": days, "day": days, "days": days,
	"w": weeks, "week": weeks, "weeks": weeks,
	"mon": months, "mons": months, "month": months, "months": months,
	"y": years, "yr": years, "yrs": years, "year": years, "years": years,
	"dec": decades, "decs": decades, "decade": decades, "decades": decades,
	"c": centuries, "cent": centuries, "century": centuries, "centuries": centuries,
	"mil": millennia, "mils": millennia, "millennium": millennia, "millennia": millennia,
}

// The designators of ISO 8601.
var (
	dateDesignators = map[byte]intervalUnit{'Y': years, 'M': months, 'W': weeks, 'D': days}
	timeDesignators = map[byte]intervalUnit{'H': hours, 'M': minutes, 'S': seconds}
)

// ParseInterval parses numbers with units, each at most once (1 year 2 mons -3.5 days), a time of day (-04:05:06.7), years and
// months (1-2), "ago" at the end, or the designators of ISO 8601 (P1Y2M3DT4H5M6.7S). A number without a unit counts seconds. A
// fraction of a unit carries over to the next smaller one: of months into days at 30 per month, of days into time.
func ParseInterval[T text](s T) (arrow.MonthDayNanoInterval, error) {
	p := intervalParser[T]{timeParser: timeParser[T]{s: trimSpace(s)}}
	var ok bool
	if p.peekByte() == 'P' {
		p.at++
		ok = p.parseISO()
	} else {
		ok = p.parseWords()
	}
	if !ok {
		return arrow.MonthDayNanoInterval{}, ErrSyntax
	}
	if p.over {
		return arrow.MonthDayNanoInterval{}, ErrRange
	}
	out, ok := p.v.Arrow()
	if !ok {
		return out, ErrRange
	}
	return out, nil
}

// intervalParser is the state of parsing an interval.
type intervalParser[T text] struct {
	timeParser[T]
	v    Interval
	seen uint16 // fields
	over bool
}

// markFields marks fields as seen. It returns false if one was already seen.
func (p *intervalParser[T]) markFields(fields uint16) bool {
	again := p.seen&fields != 0
	p.seen |= fields
	return !again
}

// parseNumber parses a sign, digits and a fraction.
func (p *intervalParser[T]) parseNumber() (whole int64, frac float64, negative, ok bool) {
	if p.acceptByte('-') {
		negative = true
	} else {
		p.acceptByte('+')
	}
	from := p.at
	for isDigit(p.peekByte()) {
		if whole > math.MaxInt64/10-1 {
			p.over = true
			whole = 0
		}
		whole = whole*10 + int64(p.s[p.at]-'0')
		p.at++
	}
	n := p.at - from
	if p.peekByte() == '.' {
		point := p.at
		p.at++
		for isDigit(p.peekByte()) {
			p.at++
		}
		n += p.at - point - 1
		if p.at-point > 1 {
			frac, _ = strconv.ParseFloat(string(p.s[point:p.at]), 64)
		}
	}
	if negative {
		whole, frac = -whole, -frac
	}
	return whole, frac, negative, n > 0
}

func (p *intervalParser[T]) parseWords() bool {
	if p.acceptByte('@') {
		p.skipSpace()
	}
	for {
		p.skipSpace()
		if p.at == len(p.s) {
			return p.seen != 0
		}
		if p.seen != 0 && foldEqual(p.s[p.at:], "ago") {
			p.v = Interval{-p.v.Months, -p.v.Days, -p.v.Micros}
			return true
		}
		if !p.parseWord() {
			return false
		}
	}
}

// parseWord parses a number with its unit, a time of day, or years and months.
func (p *intervalParser[T]) parseWord() bool {
	from := p.at
	if c := p.peekByte(); (c == '-' || c == '+') && (p.at+1 == len(p.s) || !isDigit(p.s[p.at+1])) {
		return false
	}
	whole, frac, negative, ok := p.parseNumber()
	switch {
	case !ok:
		return false
	case p.peekByte() == ':':
		p.at = from
		return p.timeOfDay(negative)
	case p.peekByte() == '-':
		return p.yearsMonths(whole, negative)
	}
	p.skipSpace()
	from = p.at
	for p.peekByte()|0x20 >= 'a' && p.peekByte()|0x20 <= 'z' {
		p.at++
	}
	if from == p.at {
		return p.addUnits(whole, frac, seconds)
	}
	u, ok := unitOf(p.s[from:p.at])
	return ok && p.addUnits(whole, frac, u)
}

func unitOf[T text](name T) (intervalUnit, bool) {
	var lower [16]byte
	if len(name) > len(lower) {
		return intervalUnit{}, false
	}
	for i := range len(name) {
		lower[i] = name[i] | 0x20
	}
	u, ok := units[string(lower[:len(name)])]
	return u, ok
}

// yearsMonths parses the months after years.
func (p *intervalParser[T]) yearsMonths(year int64, negative bool) bool {
	p.at++
	month, _, ok := p.parseDigits(1, 2)
	if !ok || month > 11 || p.at < len(p.s) && !isSpace(p.s[p.at]) {
		return false
	}
	if negative {
		month = -month
	}
	if max(year, -year) > math.MaxInt32 {
		p.over = true
		return true
	}
	p.v.Months += year*12 + month
	return p.markFields(months.field)
}

// timeOfDay parses hour:minute:second. Hours may exceed a day.
func (p *intervalParser[T]) timeOfDay(negative bool) bool {
	if !p.markFields(hours.field | minutes.field | seconds.field) {
		return false
	}
	if !p.acceptByte('-') {
		p.acceptByte('+')
	}
	hour, _, ok := p.parseDigits(1, 10)
	if !ok || !p.acceptByte(':') {
		return false
	}
	micros, err := p.parseMinutes()
	if err != nil {
		return false
	}
	if hour > math.MaxInt64/Hour-1 {
		p.over = true
		return true
	}
	micros += hour * Hour
	if negative {
		micros = -micros
	}
	p.v.Micros, ok = addInt(p.v.Micros, micros)
	p.over = p.over || !ok
	return true
}

// addUnits adds whole and frac of a unit to the result.
func (p *intervalParser[T]) addUnits(whole int64, frac float64, u intervalUnit) bool {
	if !p.markFields(u.field) {
		return false
	}
	const limit = math.MaxInt32
	if (u.months != 0 || u.days != 0) && (whole > limit || whole < -limit-1) {
		p.over = true
		return true
	}
	switch {
	case u.months == 1:
		p.v.Months += whole
		p.addDays(frac * 30)
	case u.months != 0:
		p.v.Months += whole*u.months + int64(math.RoundToEven(frac*float64(u.months)))
	case u.days != 0:
		p.v.Days += whole * u.days
		p.addDays(frac * float64(u.days))
	default:
		hi, lo := bits.Mul64(uint64(max(whole, -whole)), uint64(u.micros))
		if hi != 0 || lo > math.MaxInt64/2 {
			p.over = true
			return true
		}
		p.addMicros(whole * u.micros)
		p.addMicros(int64(math.RoundToEven(frac * float64(u.micros))))
	}
	// Parts are kept small enough that their sums can't overflow.
	if max(p.v.Months, -p.v.Months) > 1<<40 || max(p.v.Days, -p.v.Days) > 1<<40 {
		p.over = true
		p.v = Interval{}
	}
	return true
}

// addDays adds days. Their fraction becomes time.
func (p *intervalParser[T]) addDays(days float64) {
	whole := math.Trunc(days)
	p.v.Days += int64(whole)
	p.addMicros(int64(math.RoundToEven((days - whole) * float64(Day))))
}

func (p *intervalParser[T]) addMicros(micros int64) {
	v, ok := addInt(p.v.Micros, micros)
	p.v.Micros = v
	p.over = p.over || !ok
}

func addInt(a, b int64) (int64, bool) {
	s := a + b
	return s, (s > a) == (b > 0)
}

// parseISO parses the designators after P.
func (p *intervalParser[T]) parseISO() bool {
	inTime, some := false, false
	for p.at < len(p.s) {
		if !inTime && p.acceptByte('T') {
			inTime, some = true, true
			continue
		}
		whole, frac, _, ok := p.parseNumber()
		if !ok || p.at == len(p.s) {
			return false
		}
		some = true
		u, ok := dateDesignators[p.s[p.at]]
		if inTime {
			u, ok = timeDesignators[p.s[p.at]]
		}
		p.at++
		if !ok || !p.addUnits(whole, frac, u) {
			return false
		}
	}
	return some
}
