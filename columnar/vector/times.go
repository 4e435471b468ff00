package vector

import (
	"math"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/value"
)

// addInterval adds months, then days, then time to t. A day beyond the end of the month becomes its last day.
func addInterval(t int64, a arrow.MonthDayNanoInterval) (int64, bool) {
	v := value.IntervalOf(a)
	if v.Months != 0 {
		days, micros := value.Split(arrow.Timestamp(t))
		year, month, day := value.CivilOf(days)
		m := year*12 + int64(month) - 1 + v.Months
		year, month = value.FloorDiv(m, 12), int(value.FloorMod(m, 12))+1
		// This can't overflow: months have 32 bits, so the range of years is small.
		days = value.DaysOf(year, int64(month), int64(min(day, value.DaysIn(year, month))))
		var ok bool
		if t, ok = mul64(days, value.Day); !ok {
			return 0, false
		}
		if t, ok = addSigned(t, micros); !ok {
			return 0, false
		}
	}
	t, ok := addSigned(t, v.Days*value.Day) // days have 32 bits
	if !ok {
		return 0, false
	}
	t, ok = addSigned(t, v.Micros)
	return t, ok && t >= value.MinTimestamp
}

func subInterval(t int64, a arrow.MonthDayNanoInterval) (int64, bool) {
	n, ok := negInterval(a)
	if !ok {
		return 0, false
	}
	return addInterval(t, n)
}

func addDate(d, n int32) (int32, bool) {
	s := int64(d) + int64(n)
	return int32(s), s >= value.MinDays && s <= value.MaxDays
}

func subDate(d, n int32) (int32, bool) {
	s := int64(d) - int64(n)
	return int32(s), s >= value.MinDays && s <= value.MaxDays
}

// subTimestamps returns the difference as days of 24 hours and the remaining time.
func subTimestamps(a, b int64) (arrow.MonthDayNanoInterval, bool) {
	d, ok := subSigned(a, b)
	return arrow.MonthDayNanoInterval{Days: int32(d / value.Day), Nanoseconds: d % value.Day * 1000}, ok
}

func negInterval(a arrow.MonthDayNanoInterval) (arrow.MonthDayNanoInterval, bool) {
	v := value.IntervalOf(a)
	return value.Interval{Months: -v.Months, Days: -v.Days, Micros: -v.Micros}.Arrow()
}

func addIntervals(a, b arrow.MonthDayNanoInterval) (arrow.MonthDayNanoInterval, bool) {
	v, w := value.IntervalOf(a), value.IntervalOf(b)
	// Micros has a thousandth of the range of 64 bits.
	return value.Interval{Months: v.Months + w.Months, Days: v.Days + w.Days, Micros: v.Micros + w.Micros}.Arrow()
}

func subIntervals(a, b arrow.MonthDayNanoInterval) (arrow.MonthDayNanoInterval, bool) {
	v, w := value.IntervalOf(a), value.IntervalOf(b)
	return value.Interval{Months: v.Months - w.Months, Days: v.Days - w.Days, Micros: v.Micros - w.Micros}.Arrow()
}

// mulInterval and divInterval compute like PostgreSQL.
func mulInterval(a arrow.MonthDayNanoInterval, f float64) (arrow.MonthDayNanoInterval, bool) {
	v := value.IntervalOf(a)
	return value.CascadeInterval(float64(v.Months)*f, float64(v.Days)*f, float64(v.Micros)*f)
}

func divInterval(a arrow.MonthDayNanoInterval, f float64) (arrow.MonthDayNanoInterval, bool) {
	if f == 0 {
		return arrow.MonthDayNanoInterval{}, false
	}
	v := value.IntervalOf(a)
	return value.CascadeInterval(float64(v.Months)/f, float64(v.Days)/f, float64(v.Micros)/f)
}

// toTimestamp rounds seconds since 1970 to microseconds. As in PostgreSQL, whose times count from 2000, it rounds the distance
// from there.
func toTimestamp(f float64) (int64, bool) {
	const since = 946684800
	f = math.RoundToEven((f - since) * 1e6)
	if !(math.Abs(f) < 1<<63) {
		return 0, false
	}
	t, ok := addSigned(int64(f), since*value.Second)
	return t, ok && t >= value.MinTimestamp
}

// timeForms are the operators on dates, timestamps and intervals.
func timeForms() map[operatorForm]calcFunc {
	return map[operatorForm]calcFunc{
		{expr.Add, schema.Timestamp, schema.Interval, schema.Timestamp}:   calcPairs(addInterval),
		{expr.Add, schema.Interval, schema.Timestamp, schema.Timestamp}:   calcPairs(swapArgs(addInterval)),
		{expr.Sub, schema.Timestamp, schema.Interval, schema.Timestamp}:   calcPairs(subInterval),
		{expr.Sub, schema.Timestamp, schema.Timestamp, schema.Interval}:   calcPairs(subTimestamps),
		{expr.Add, schema.Date, schema.Int32, schema.Date}:                calcPairs(addDate),
		{expr.Add, schema.Int32, schema.Date, schema.Date}:                calcPairs(addDate),
		{expr.Sub, schema.Date, schema.Int32, schema.Date}:                calcPairs(subDate),
		{expr.Sub, schema.Date, schema.Date, schema.Int32}:                calcPairs(subSigned[int32]),
		{expr.Add, schema.Interval, schema.Interval, schema.Interval}:     calcPairs(addIntervals),
		{expr.Sub, schema.Interval, schema.Interval, schema.Interval}:     calcPairs(subIntervals),
		{expr.Mul, schema.Interval, schema.Float64, schema.Interval}:      calcPairs(mulInterval),
		{expr.Mul, schema.Float64, schema.Interval, schema.Interval}:      calcPairs(swapArgs(mulInterval)),
		{expr.Div, schema.Interval, schema.Float64, schema.Interval}:      calcPairs(divInterval),
		{expr.Neg, schema.Interval, schema.Null, schema.Interval}:         calcSingle(negInterval),
		{expr.ToTimestamp, schema.Float64, schema.Null, schema.Timestamp}: calcSingle(toTimestamp),
	}
}

func swapArgs[A, B, R any](f func(A, B) (R, bool)) func(B, A) (R, bool) {
	return func(b B, a A) (R, bool) { return f(a, b) }
}

// compileCalendar compiles extract and date_trunc.
func (o *callCompiler) compileCalendar() (exprNode, error) {
	name, _ := o.e.Detail.(string)
	var c calcFunc
	switch a, field := o.typeOf(0).Kind, fields[name]; {
	case o.e.Op == expr.DateTrunc:
		if trunc := truncations[name]; trunc != nil {
			c = calcSingle(func(t arrow.Timestamp) (int64, bool) {
				r, ok := trunc(instantOf(value.Split(t)))
				return r, ok && r >= value.MinTimestamp
			})
		}
	case a == schema.Interval && intervalFields[name] != nil:
		c = calcSingle(alwaysOK(intervalFields[name]))
	case a == schema.Timestamp && field != nil:
		c = calcSingle(func(t arrow.Timestamp) (float64, bool) { return field(instantOf(value.Split(t))), true })
	case a == schema.Date && field != nil:
		c = calcSingle(func(d int32) (float64, bool) { return field(instantOf(int64(d), 0)), true })
	}
	if c == nil {
		return nil, nil
	}
	return &arithNode{t: &o.e.T, a: o.argNode(0), calc: c}, nil
}

// binRow computes date_bin of a stride, a time and an origin.
func binRow(args []*columnVec, i int) (int64, bool) {
	return dateBin(value.IntervalOf(valueAt[arrow.MonthDayNanoInterval](args[0], i)), valueAt[int64](args[1], i), valueAt[int64](args[2], i))
}

func dateBin(v value.Interval, t, origin int64) (int64, bool) {
	stride, ok := addSigned(v.Days*value.Day, v.Micros)
	if !ok || v.Months != 0 || stride <= 0 {
		return 0, false
	}
	diff, ok := subSigned(t, origin)
	if !ok {
		return 0, false
	}
	t, ok = subSigned(t, value.FloorMod(diff, stride))
	return t, ok && t >= value.MinTimestamp
}
