package vector_test

import (
	"math"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/expr"
	"scribe/columnar/value"
)

func civilInstant(t arrow.Timestamp) time.Time { return time.UnixMicro(int64(t)).UTC() }

func (n *naive) stamp(t time.Time) any {
	if t.Year() > 200000 || t.Year() < -4700 {
		return n.fail()
	}
	return arrow.Timestamp(t.UnixMicro())
}

func (n *naive) span(months, days, micros int64) any {
	v, ok := value.Interval{Months: months, Days: days, Micros: micros}.Arrow()
	if !ok {
		return n.fail()
	}
	return v
}

func (n *naive) times(c *expr.Call, a []any) any {
	sign := int64(1)
	if c.Op == expr.Sub || c.Op == expr.Neg {
		sign = -1
	}
	switch x := a[0].(type) {
	case arrow.Date32:
		switch y := a[1].(type) {
		case int32:
			d := int64(x) + sign*int64(y)
			if d < value.MinDays || d > value.MaxDays {
				return n.fail()
			}
			return arrow.Date32(d)
		case arrow.Date32:
			return int32(x - y)
		}
	case arrow.Timestamp:
		switch y := a[1].(type) {
		case arrow.Timestamp:
			d := int64(x) - int64(y)
			return n.span(0, d/value.Day, d%value.Day)
		case arrow.MonthDayNanoInterval:
			t := civilInstant(x)
			day := t.Day()
			t = t.AddDate(0, 0, 1-day).AddDate(0, int(sign)*int(y.Months), 0)
			last := t.AddDate(0, 1, -1).Day()
			t = t.AddDate(0, 0, min(day, last)-1).AddDate(0, 0, int(sign)*int(y.Days))
			return n.stamp(time.UnixMicro(t.UnixMicro() + sign*(y.Nanoseconds/1000)).UTC())
		}
	case arrow.MonthDayNanoInterval:
		v := value.IntervalOf(x)
		switch c.Op {
		case expr.Neg:
			return n.span(-v.Months, -v.Days, -v.Micros)
		case expr.Mul, expr.Div:
			f := a[1].(float64)
			months, days, time := float64(v.Months)*f, float64(v.Days)*f, float64(v.Micros)*f
			if c.Op == expr.Div {
				if f == 0 {
					return n.fail()
				}
				months, days, time = float64(v.Months)/f, float64(v.Days)/f, float64(v.Micros)/f
			}
			if !(math.Abs(months) <= math.MaxInt32 && math.Abs(days) <= math.MaxInt32) {
				return n.fail()
			}
			round := func(f float64) float64 { return math.RoundToEven(f*1e6) / 1e6 }
			moreDays := round((months - math.Trunc(months)) * 30)
			seconds := round((days - math.Trunc(days) + moreDays - math.Trunc(moreDays)) * 86400)
			d := int64(days)
			if math.Abs(seconds) >= 86400 {
				d += int64(seconds / 86400)
				seconds -= math.Trunc(seconds/86400) * 86400
			}
			micros := math.RoundToEven(time + seconds*1e6)
			if !(math.Abs(micros) < 1<<63) {
				return n.fail()
			}
			return n.span(int64(months), d+int64(moreDays), int64(micros))
		default:
		}
		w := value.IntervalOf(a[1].(arrow.MonthDayNanoInterval))
		return n.span(v.Months+sign*w.Months, v.Days+sign*w.Days, v.Micros+sign*w.Micros)
	}
	panic("no such operator on times")
}

func (n *naive) calendar(c *expr.Call, a []any) any {
	field, _ := c.Detail.(string)
	if c.Op == expr.DateBin {
		v := value.IntervalOf(a[0].(arrow.MonthDayNanoInterval))
		stride := v.Days*value.Day + v.Micros
		if v.Months != 0 || stride <= 0 {
			return n.fail()
		}
		d := int64(a[1].(arrow.Timestamp)) - int64(a[2].(arrow.Timestamp))
		bin := int64(math.Floor(float64(d) / float64(stride)))
		for bin*stride > d {
			bin--
		}
		for (bin+1)*stride <= d {
			bin++
		}
		return arrow.Timestamp(int64(a[2].(arrow.Timestamp)) + bin*stride)
	}
	if v, ok := a[0].(arrow.MonthDayNanoInterval); ok {
		return extractSpan(field, value.IntervalOf(v))
	}
	t, ok := a[0].(arrow.Timestamp)
	if d, isDate := a[0].(arrow.Date32); isDate {
		t = arrow.Timestamp(int64(d) * value.Day)
	} else if !ok {
		panic("extract of what is no time")
	}
	at := civilInstant(t)
	if c.Op == expr.Extract {
		return extract(field, at)
	}
	year, month, day := at.Date()
	hour, minute, second := at.Clock()
	nanos := at.Nanosecond()
	switch field {
	case "milliseconds":
		nanos -= nanos % 1e6
	case "second":
		nanos = 0
	case "minute":
		nanos, second = 0, 0
	case "hour":
		nanos, second, minute = 0, 0, 0
	case "week":
		day -= (int(at.Weekday()) + 6) % 7
	case "quarter":
		month -= (month - 1) % 3
	case "decade":
		year -= year % 10
	case "century":
		year -= (year - 1) % 100
	case "millennium":
		year -= (year - 1) % 1000
	}
	switch field {
	case "year", "decade", "century", "millennium":
		month = 1
	}
	switch field {
	case "year", "decade", "century", "millennium", "quarter", "month":
		day = 1
	}
	switch field {
	case "microseconds", "milliseconds", "second", "minute", "hour":
	default:
		nanos, second, minute, hour = 0, 0, 0, 0
	}
	return n.stamp(time.Date(year, month, day, hour, minute, second, nanos, time.UTC))
}

func extract(field string, at time.Time) float64 {
	isoYear, week := at.ISOWeek()
	year := at.Year()
	switch field {
	case "year":
		return float64(year)
	case "month":
		return float64(at.Month())
	case "day":
		return float64(at.Day())
	case "hour":
		return float64(at.Hour())
	case "minute":
		return float64(at.Minute())
	case "second":
		return float64(at.Second()*1e6+at.Nanosecond()/1e3) / 1e6
	case "millisecond":
		return float64(at.Second()*1e6+at.Nanosecond()/1e3) / 1e3
	case "microsecond":
		return float64(at.Second()*1e6 + at.Nanosecond()/1e3)
	case "dow":
		return float64(at.Weekday())
	case "isodow":
		return float64((at.Weekday()+6)%7 + 1)
	case "doy":
		return float64(at.YearDay())
	case "week":
		return float64(week)
	case "isoyear":
		return float64(isoYear)
	case "quarter":
		return float64((at.Month()-1)/3 + 1)
	case "epoch":
		return float64(at.UnixMicro()) / 1e6
	case "century":
		return float64((year + 99) / 100)
	case "decade":
		return float64(year / 10)
	case "millennium":
		return float64((year + 999) / 1000)
	}
	panic(field)
}

func extractSpan(field string, v value.Interval) float64 {
	switch field {
	case "year":
		return float64(v.Months / 12)
	case "month":
		return float64(v.Months % 12)
	case "day":
		return float64(v.Days)
	case "hour":
		return float64(v.Micros / value.Hour)
	case "minute":
		return float64(v.Micros % value.Hour / value.Minute)
	case "second":
		return float64(v.Micros%value.Minute) / 1e6
	case "epoch":
		return float64(v.Months/12)*365.25*86400 + float64(v.Months%12)*30*86400 + float64(v.Days)*86400 + float64(v.Micros)/1e6
	}
	panic(field)
}
