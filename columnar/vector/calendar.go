package vector

import (
	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/value"
)

// civilInstant is a timestamp split into its parts.
type civilInstant struct {
	days, micros int64 // days since 1970, and microseconds of the day
	year         int64 // 0 is 1 BC
	month, day   int
}

func instantOf(days, micros int64) civilInstant {
	i := civilInstant{days: days, micros: micros}
	i.year, i.month, i.day = value.CivilOf(days)
	return i
}

// historicYear returns the conventional number of a year: there is no year 0.
func historicYear(year int64) float64 {
	if year <= 0 {
		year--
	}
	return float64(year)
}

// weekday returns 0 for Monday.
func (i civilInstant) weekday() int64 { return value.FloorMod(i.days+3, 7) }

// isoWeek returns the ISO year, which contains most of the instant's week, and the number of the week in it.
func (i civilInstant) isoWeek() (year, week int64) {
	thursday := i.days - i.weekday() + 3
	year, _, _ = value.CivilOf(thursday)
	return year, (thursday-value.DaysOf(year, 1, 1))/7 + 1
}

// yearGroup returns the decade, century or millennium (n years) of a year. The first century begins with the year 1.
func yearGroup(year, n int64) int64 {
	if year > 0 {
		return (year + n - 1) / n
	}
	return -((n - 1 - (year - 1)) / n)
}

func decadeOf(year int64) int64 {
	if year >= 0 {
		return year / 10
	}
	return -((8 - (year - 1)) / 10)
}

// fields are the fields that extract takes of dates and timestamps.
var fields = map[string]func(civilInstant) float64{
	"year":        func(i civilInstant) float64 { return historicYear(i.year) },
	"month":       func(i civilInstant) float64 { return float64(i.month) },
	"day":         func(i civilInstant) float64 { return float64(i.day) },
	"hour":        func(i civilInstant) float64 { return float64(i.micros / value.Hour) },
	"minute":      func(i civilInstant) float64 { return float64(i.micros / value.Minute % 60) },
	"second":      func(i civilInstant) float64 { return float64(i.micros%value.Minute) / 1e6 },
	"millisecond": func(i civilInstant) float64 { return float64(i.micros%value.Minute) / 1e3 },
	"microsecond": func(i civilInstant) float64 { return float64(i.micros % value.Minute) },
	"dow":         func(i civilInstant) float64 { return float64((i.weekday() + 1) % 7) },
	"isodow":      func(i civilInstant) float64 { return float64(i.weekday() + 1) },
	"doy":         func(i civilInstant) float64 { return float64(i.days - value.DaysOf(i.year, 1, 1) + 1) },
	"week": func(i civilInstant) float64 {
		_, week := i.isoWeek()
		return float64(week)
	},
	"isoyear": func(i civilInstant) float64 {
		year, _ := i.isoWeek()
		return historicYear(year)
	},
	"quarter":    func(i civilInstant) float64 { return float64((i.month-1)/3 + 1) },
	"epoch":      epochOf,
	"century":    func(i civilInstant) float64 { return float64(yearGroup(i.year, 100)) },
	"decade":     func(i civilInstant) float64 { return float64(decadeOf(i.year)) },
	"millennium": func(i civilInstant) float64 { return float64(yearGroup(i.year, 1000)) },
}

func epochOf(i civilInstant) float64 {
	if i.micros == 0 {
		return float64(i.days * 86400) // the range of dates exceeds that of timestamps
	}
	return float64(i.days*value.Day+i.micros) / 1e6
}

// intervalFields are the fields that extract takes of intervals.
var intervalFields = map[string]func(arrow.MonthDayNanoInterval) float64{
	"year":        monthsOf(func(m int64) int64 { return m / 12 }),
	"month":       monthsOf(func(m int64) int64 { return m % 12 }),
	"quarter":     monthsOf(func(m int64) int64 { return m%12/3 + 1 }),
	"decade":      monthsOf(func(m int64) int64 { return m / 120 }),
	"century":     monthsOf(func(m int64) int64 { return m / 1200 }),
	"millennium":  monthsOf(func(m int64) int64 { return m / 12000 }),
	"day":         func(v arrow.MonthDayNanoInterval) float64 { return float64(v.Days) },
	"hour":        microsOf(func(m int64) float64 { return float64(m / value.Hour) }),
	"minute":      microsOf(func(m int64) float64 { return float64(m / value.Minute % 60) }),
	"second":      microsOf(func(m int64) float64 { return float64(m%value.Minute) / 1e6 }),
	"millisecond": microsOf(func(m int64) float64 { return float64(m%value.Minute) / 1e3 }),
	"microsecond": microsOf(func(m int64) float64 { return float64(m % value.Minute) }),
	"epoch": func(a arrow.MonthDayNanoInterval) float64 {
		v := value.IntervalOf(a)
		// A year has 365.25 days; each remaining month has 30.
		quarters := v.Months/12*1461 + v.Months%12*120 + v.Days*4
		return (float64(quarters*21600)*1e6 + float64(v.Micros)) / 1e6
	},
}

func monthsOf(f func(int64) int64) func(arrow.MonthDayNanoInterval) float64 {
	return func(v arrow.MonthDayNanoInterval) float64 { return float64(f(int64(v.Months))) }
}

func microsOf(f func(int64) float64) func(arrow.MonthDayNanoInterval) float64 {
	return func(v arrow.MonthDayNanoInterval) float64 { return f(value.IntervalOf(v).Micros) }
}

// truncations are the units of date_trunc for a timestamp.
var truncations = map[string]func(civilInstant) (int64, bool){
	"microseconds": truncDay(1),
	"milliseconds": truncDay(value.Millisecond),
	"second":       truncDay(value.Second),
	"minute":       truncDay(value.Minute),
	"hour":         truncDay(value.Hour),
	"day":          truncDay(value.Day),
	"week":         func(i civilInstant) (int64, bool) { return mul64(i.days-i.weekday(), value.Day) },
	"month":        func(i civilInstant) (int64, bool) { return yearMonth(i.year, i.month) },
	"quarter":      func(i civilInstant) (int64, bool) { return yearMonth(i.year, (i.month-1)/3*3+1) },
	"year":         func(i civilInstant) (int64, bool) { return yearMonth(i.year, 1) },
	"decade":       func(i civilInstant) (int64, bool) { return yearMonth(decadeOf(i.year)*10, 1) },
	"century":      truncYears(100),
	"millennium":   truncYears(1000),
}

func truncDay(unit int64) func(civilInstant) (int64, bool) {
	return func(i civilInstant) (int64, bool) {
		t, ok := mul64(i.days, value.Day)
		if !ok { // the first day of the range
			return 0, false
		}
		return t + i.micros - i.micros%unit, true
	}
}

func yearMonth(year int64, month int) (int64, bool) {
	return mul64(value.DaysOf(year, int64(month), 1), value.Day)
}

func truncYears(n int64) func(civilInstant) (int64, bool) {
	return func(i civilInstant) (int64, bool) {
		g := yearGroup(i.year, n)
		if i.year > 0 {
			return yearMonth(g*n-n+1, 1)
		}
		return yearMonth(g*n+1, 1)
	}
}
