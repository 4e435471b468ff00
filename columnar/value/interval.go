package value

import (
	"math"
	"math/bits"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
)

// Interval is months, days and microseconds, each with a sign of its own. Arrow's has nanoseconds, which [Interval.Arrow] and [IntervalOf]
// convert: what is below a microsecond is cut off.
type Interval struct {
	Months, Days int64
	Micros       int64
}

// IntervalOf returns what Arrow's value stands for.
func IntervalOf(v arrow.MonthDayNanoInterval) Interval {
	return Interval{int64(v.Months), int64(v.Days), v.Nanoseconds / 1000}
}

// Arrow returns the value as Arrow has it, false if a part is out of its range: the time may be up to 292 years.
func (v Interval) Arrow() (arrow.MonthDayNanoInterval, bool) {
	out := arrow.MonthDayNanoInterval{Months: int32(v.Months), Days: int32(v.Days), Nanoseconds: v.Micros * 1000}
	return out, int64(out.Months) == v.Months && int64(out.Days) == v.Days && out.Nanoseconds/1000 == v.Micros
}

// Compare orders intervals as PostgreSQL does: a month is 30 days, a day 24 hours.
func (v Interval) Compare(o Interval) int {
	hi, lo := v.span()
	ohi, olo := o.span()
	switch {
	case hi < ohi || hi == ohi && lo < olo:
		return -1
	case hi == ohi && lo == olo:
		return 0
	}
	return 1
}

// span is the length in microseconds, in 128 bits.
func (v Interval) span() (hi int64, lo uint64) {
	days := v.Days + v.Months*30
	h, l := bits.Mul64(uint64(days), uint64(Day))
	if days < 0 {
		h -= uint64(Day)
	}
	l, carry := bits.Add64(l, uint64(v.Micros), 0)
	h, _ = bits.Add64(h, uint64(v.Micros>>63), carry)
	return int64(h), l
}

// AppendInterval writes years, months and days that are not zero, each with its unit, and a time if there is one or nothing else.
func AppendInterval(dst []byte, a arrow.MonthDayNanoInterval) []byte {
	v := IntervalOf(a)
	from := len(dst)
	// A plus is written where the part before was negative.
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

// units of the interval's input, with what one of each is.
var units = map[string]struct {
	months, days int64
	micros       int64
}{
	"us": {micros: 1}, "usec": {micros: 1}, "usecs": {micros: 1}, "usecond": {micros: 1}, "useconds": {micros: 1},
	"microsecon": {micros: 1}, "microsecond": {micros: 1}, "microseconds": {micros: 1},
	"ms": {micros: Millisecond}, "msec": {micros: Millisecond}, "msecs": {micros: Millisecond}, "msecond": {micros: Millisecond},
	"mseconds": {micros: Millisecond}, "millisecon": {micros: Millisecond}, "millisecond": {micros: Millisecond}, "milliseconds": {micros: Millisecond},
	"s": {micros: Second}, "sec": {micros: Second}, "secs": {micros: Second}, "second": {micros: Second}, "seconds": {micros: Second},
	"m": {micros: Minute}, "min": {micros: Minute}, "mins": {micros: Minute}, "minute": {micros: Minute}, "minutes": {micros: Minute},
	"h": {micros: Hour}, "hr": {micros: Hour}, "hrs": {micros: Hour}, "hour": {micros: Hour}, "hours": {micros: Hour},
	"d": {days: 1}, "day": {days: 1}, "days": {days: 1},
	"w": {days: 7}, "week": {days: 7}, "weeks": {days: 7},
	"mon": {months: 1}, "mons": {months: 1}, "month": {months: 1}, "months": {months: 1},
	"y": {months: 12}, "yr": {months: 12}, "yrs": {months: 12}, "year": {months: 12}, "years": {months: 12},
	"dec": {months: 120}, "decs": {months: 120}, "decade": {months: 120}, "decades": {months: 120},
	"c": {months: 1200}, "cent": {months: 1200}, "century": {months: 1200}, "centuries": {months: 1200},
	"mil": {months: 12000}, "mils": {months: 12000}, "millennium": {months: 12000}, "millennia": {months: 12000},
}

// ParseInterval reads numbers with units (1 year 2 mons -3.5 days), a time of day (-04:05:06.7), "ago" at the end, or the designators of
// ISO 8601 (P1Y2M3DT4H5M6.7S). A fraction of a unit goes on in the next smaller: of months into days of 30, of days into time.
func ParseInterval[T text](s T) (arrow.MonthDayNanoInterval, error) {
	p := span[T]{clock: clock[T]{s: trim(s)}}
	var ok bool
	if p.peek() == 'P' {
		p.at++
		ok = p.iso()
	} else {
		ok = p.words()
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

// span reads an interval.
type span[T text] struct {
	clock[T]
	v    Interval
	over bool
}

// number reads sign, digits and fraction.
func (p *span[T]) number() (whole int64, frac float64, negative, ok bool) {
	if p.accept('-') {
		negative = true
	} else {
		p.accept('+')
	}
	from := p.at
	for isDigit(p.peek()) {
		if whole > math.MaxInt64/10-1 {
			p.over = true
			whole = 0
		}
		whole = whole*10 + int64(p.s[p.at]-'0')
		p.at++
	}
	n := p.at - from
	if p.peek() == '.' {
		point := p.at
		p.at++
		for isDigit(p.peek()) {
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

func (p *span[T]) words() bool {
	seen := false
	for {
		p.space()
		if p.at == len(p.s) {
			return seen
		}
		if !isDigit(p.peek()) && p.peek() != '-' && p.peek() != '+' && p.peek() != '.' {
			if seen && foldEqual(p.s[p.at:], "ago") {
				p.v = Interval{-p.v.Months, -p.v.Days, -p.v.Micros}
				return true
			}
			return false
		}
		seen = true
		from := p.at
		whole, frac, negative, ok := p.number()
		if !ok {
			return false
		}
		if p.peek() == ':' {
			p.at = from
			if !p.timeOfDay(negative) {
				return false
			}
			continue
		}
		p.space()
		from = p.at
		for p.peek()|0x20 >= 'a' && p.peek()|0x20 <= 'z' {
			p.at++
		}
		unit := p.s[from:p.at]
		if len(unit) == 0 {
			unit = T("s")
		}
		if !p.add(whole, frac, unit) {
			return false
		}
	}
}

// timeOfDay reads hour:minute:second, of which the hours are not bounded by a day.
func (p *span[T]) timeOfDay(negative bool) bool {
	if !p.accept('-') {
		p.accept('+')
	}
	hour, _, ok := p.digits(1, 10)
	if !ok || !p.accept(':') {
		return false
	}
	minute, _, ok := p.digits(1, 2)
	if !ok || minute > 59 {
		return false
	}
	micros := minute * Minute
	if p.accept(':') {
		second, _, ok := p.digits(1, 2)
		if !ok || second > 59 {
			return false
		}
		micros += second * Second
		if p.accept('.') {
			micros += p.fraction()
		}
	}
	if isDigit(p.peek()) {
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

// add counts whole and frac of a unit in.
func (p *span[T]) add(whole int64, frac float64, name T) bool {
	var lower [16]byte
	if len(name) > len(lower) {
		return false
	}
	for i := range len(name) {
		lower[i] = name[i] | 0x20
	}
	u, ok := units[string(lower[:len(name)])]
	if !ok {
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
	// Parts stay so small that their sums can't wrap.
	if max(p.v.Months, -p.v.Months) > 1<<40 || max(p.v.Days, -p.v.Days) > 1<<40 {
		p.over = true
		p.v = Interval{}
	}
	return true
}

// addDays adds days of which the fraction is time.
func (p *span[T]) addDays(days float64) {
	whole := math.Trunc(days)
	p.v.Days += int64(whole)
	p.addMicros(int64(math.RoundToEven((days - whole) * float64(Day))))
}

func (p *span[T]) addMicros(micros int64) {
	v, ok := addInt(p.v.Micros, micros)
	p.v.Micros = v
	p.over = p.over || !ok
}

func addInt(a, b int64) (int64, bool) {
	s := a + b
	return s, (s > a) == (b > 0)
}

// iso reads the designators behind P.
func (p *span[T]) iso() bool {
	inTime, seen := false, false
	for p.at < len(p.s) {
		if !inTime && p.accept('T') {
			inTime = true
			seen = false
			continue
		}
		whole, frac, _, ok := p.number()
		if !ok || p.at == len(p.s) {
			return false
		}
		seen = true
		designator := p.s[p.at]
		p.at++
		unit := ""
		switch {
		case inTime && designator == 'H':
			unit = "h"
		case inTime && designator == 'M':
			unit = "m"
		case inTime && designator == 'S':
			unit = "s"
		case !inTime && designator == 'Y':
			unit = "y"
		case !inTime && designator == 'M':
			unit = "mon"
		case !inTime && designator == 'W':
			unit = "w"
		case !inTime && designator == 'D':
			unit = "d"
		default:
			return false
		}
		if !p.add(whole, frac, T(unit)) {
			return false
		}
	}
	return seen
}
