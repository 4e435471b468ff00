package plan

import (
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/expr"
	"scribe/columnar/near"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/value"
)

// bindNow binds the instant or day at which the query began.
func bindNow(b *queryBinder, c *functionCall) typedOperand {
	b.failIf(b.timeless, c.At, "Name a point in time.", "%s depends on the time of the query, which this condition may not", c.Func)
	if c.Func == "current_date" {
		days, _ := value.Split(arrow.Timestamp(b.now))
		return typedOperand{e: literal(&typeDate, arrow.Date32(days))} //nolint:gosec // microseconds of 64 bits are 29 bits of days
	}
	return typedOperand{e: literal(&typeTimestamp, arrow.Timestamp(b.now))}
}

// timeFields maps PostgreSQL's names to the fields of instants.
var timeFields = map[string]string{
	"microsecond": "microsecond", "microseconds": "microsecond", "us": "microsecond", "usec": "microsecond", "usecs": "microsecond",
	"millisecond": "millisecond", "milliseconds": "millisecond", "ms": "millisecond", "msec": "millisecond", "msecs": "millisecond",
	"second": "second", "seconds": "second", "sec": "second", "secs": "second", "s": "second",
	"minute": "minute", "minutes": "minute", "min": "minute", "mins": "minute", "m": "minute",
	"hour": "hour", "hours": "hour", "hr": "hour", "hrs": "hour", "h": "hour",
	"day": "day", "days": "day", "d": "day", "dow": "dow", "isodow": "isodow", "doy": "doy",
	"week": "week", "weeks": "week", "w": "week", "month": "month", "months": "month", "mon": "month", "mons": "month",
	"quarter": "quarter", "year": "year", "years": "year", "y": "year", "yr": "year", "yrs": "year", "isoyear": "isoyear",
	"decade": "decade", "decades": "decade", "dec": "decade", "decs": "decade", "century": "century", "centuries": "century", "cent": "century",
	"c": "century", "millennium": "millennium", "millennia": "millennium", "mil": "millennium", "mils": "millennium", "epoch": "epoch",
}

// fieldsWithout are the fields that values of a kind lack.
var fieldsWithout = map[schema.Kind]string{
	schema.Date:     " microsecond millisecond second minute hour ",
	schema.Interval: " dow isodow doy week isoyear ",
}

// timeField returns the name of a field, which must be a constant argument.
func (b *queryBinder) timeField(c *functionCall, i int, of *schema.Type) string {
	name := strings.ToLower(constantArg[string](b, c, i, &typeString))
	field, ok := timeFields[name]
	if !ok {
		hint := "Units are microsecond, millisecond, second, minute, hour, day, week, month, quarter, year, decade, century, millennium; " +
			"and of extract() dow, isodow, doy, isoyear and epoch."
		if found := near.Names(name, []string{
			"microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year", "decade", "century",
			"millennium", "dow", "isodow", "doy", "isoyear", "epoch",
		}); len(found) > 0 {
			hint = "Perhaps you meant " + found[0] + "."
		}
		panic(b.errorAt(c.args[i].pos, hint, "unit %q not recognized for type %s", sql.ClipText(name), typeName(of)))
	}
	return field
}

func bindExtract(b *queryBinder, c *functionCall) typedOperand {
	o := c.args[1]
	t := o.typ()
	b.failIf(t.Kind != schema.Date && t.Kind != schema.Timestamp && t.Kind != schema.Interval, c.At,
		hintIf(o.unknown, "Write TIMESTAMP, DATE or INTERVAL before the text."), "function %s does not exist", c.signature())
	field := b.timeField(c, 0, t)
	e := o.e
	if c.Func == "date_part" && t.Kind == schema.Date {
		e = b.castExpr(e, &typeTimestamp)
	}
	b.failIf(strings.Contains(fieldsWithout[e.Type().Kind], " "+field+" "), c.args[0].pos, "", "unit %q not supported for type %s",
		field, typeName(t))
	return typedOperand{e: b.makeCall(expr.Extract, typeFloat64, field, e)}
}

func bindDateTrunc(b *queryBinder, c *functionCall) typedOperand {
	if k := c.args[1].typ().Kind; k == schema.Interval {
		panic(b.errorAt(c.At, "", "date_trunc() of an interval is not supported"))
	}
	e := b.argAs(c, 1, &typeTimestamp)
	unit := b.timeField(c, 0, &typeTimestamp)
	switch unit {
	case "dow", "isodow", "doy", "isoyear", "epoch":
		panic(b.errorAt(c.args[0].pos, "", "unit %q not supported for type timestamptz", unit))
	case "microsecond", "millisecond":
		unit += "s"
	}
	return typedOperand{e: b.makeCall(expr.DateTrunc, typeTimestamp, unit, e)}
}

// checkStride rejects bins of a length that is not constant or not positive.
func checkStride(b *queryBinder, c *functionCall) {
	e := b.argAs(c, 0, &typeInterval)
	l, ok := e.(*expr.Literal)
	if !ok || l.Value == nil {
		return
	}
	v := l.Value.(arrow.MonthDayNanoInterval)
	switch {
	case v.Months != 0:
		panic(b.errorAt(c.args[0].pos, "Use date_trunc('month', x).", "timestamps cannot be binned into intervals containing months or years"))
	case int64(v.Days)*value.Day+v.Nanoseconds/1000 <= 0:
		panic(b.errorAt(c.args[0].pos, "", "stride must be greater than zero"))
	}
}
