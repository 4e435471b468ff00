package zone

import (
	"bytes"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/value"
)

// valueSpan describes the possible values of an expression: all that are not null lie within the bounds.
type valueSpan struct {
	kind            schema.Kind // Invalid if nothing but nullness is known
	scale           int32
	low, high       boundValue
	hasLow, hasHigh bool
	// empty means that there are only nulls.
	empty   bool
	canNull bool
	// one means that all values that are not null equal the bounds, which are equal and not truncated.
	one bool
	// column has the filter that contains the values; nil if there is none.
	column *columnZone
}

var (
	anySpan  = valueSpan{canNull: true}
	nullSpan = valueSpan{canNull: true, empty: true}
)

// nullTruth returns Null if values may be null.
func (s *valueSpan) nullTruth() expr.Truths {
	if s.canNull {
		return expr.Null
	}
	return 0
}

func (s *valueSpan) isBounded() bool { return s.hasLow || s.hasHigh }

// asTruths returns the possible values as conditions. A value that is not a bool becomes True.
func (s *valueSpan) asTruths() expr.Truths {
	t := s.nullTruth()
	switch {
	case s.empty:
		return t
	case s.kind == schema.Bool:
		for v := range int64(2) {
			if (!s.hasLow || s.low.i <= v) && (!s.hasHigh || v <= s.high.i) {
				t |= expr.TruthOf(v == 1)
			}
		}
		return t
	case s.kind == schema.Invalid:
		return t | expr.False | expr.True
	}
	return t | expr.True
}

// truthsSpan returns a span without bounds for possible truths.
func truthsSpan(t expr.Truths) valueSpan {
	return valueSpan{canNull: t&expr.Null != 0, empty: t&^expr.Null == 0}
}

// spanOf returns the span of an expression.
func (p *zonePruner) spanOf(e expr.Expr, depth int) valueSpan {
	if depth > maxDepth {
		return anySpan
	}
	switch e := e.(type) {
	case *expr.Literal:
		return literalSpan(e)
	case *expr.Column:
		return p.column(e)
	case *expr.Call:
		switch {
		case e.Op == expr.Cast && len(e.Args) == 1:
			return castSpan(p.spanOf(e.Args[0], depth+1), &e.T)
		case e.Op == expr.DateTrunc && len(e.Args) == 1:
			unit, _ := e.Detail.(string)
			return truncateSpan(p.spanOf(e.Args[0], depth+1), unit)
		}
		return truthsSpan(p.callTruths(e, depth+1))
	}
	return anySpan
}

func literalSpan(e *expr.Literal) valueSpan {
	s := valueSpan{kind: e.T.Kind, scale: scaleOf(&e.T)}
	if e.Value == nil {
		s.empty, s.canNull = true, true
		return s
	}
	v, ok := boundOf(&e.T, e.Value)
	if !ok {
		return anySpan
	}
	s.low, s.high, s.hasLow, s.hasHigh, s.one = v, v, true, true, true
	return s
}

func scaleOf(t *schema.Type) int32 {
	if t.Kind == schema.Decimal {
		return t.Scale
	}
	return 0
}

// boundOf returns a literal's value as a bound.
func boundOf(t *schema.Type, literal any) (b boundValue, ok bool) {
	switch v := literal.(type) {
	case bool:
		if v {
			b.i = 1
		}
		return b, t.Kind == schema.Bool
	case int32:
		return boundValue{i: int64(v)}, t.Kind == schema.Int32
	case int64:
		return boundValue{i: v}, t.Kind == schema.Int64
	case uint64:
		return boundValue{u: v}, t.Kind == schema.Uint64
	case float64:
		return boundValue{f: v}, t.Kind == schema.Float64
	case decimal128.Num:
		return boundValue{d: v}, t.Kind == schema.Decimal
	case string:
		return boundValue{s: []byte(v)}, t.Kind == schema.String
	case []byte:
		return boundValue{s: v}, t.Kind == schema.Binary
	case arrow.Date32:
		return boundValue{i: int64(v)}, t.Kind == schema.Date
	case arrow.Timestamp:
		return boundValue{i: int64(v)}, t.Kind == schema.Timestamp
	}
	return b, false
}

// columnSpan returns the span of a column in the map.
func (m *Map) columnSpan(e *expr.Column) valueSpan {
	c := m.findColumn(e.Name)
	if c == nil || c.kind != e.T.Kind || c.scale != scaleOf(&e.T) {
		return anySpan
	}
	s := valueSpan{
		kind: c.kind, scale: c.scale, low: c.low, high: c.high, hasLow: c.hasLow, hasHigh: c.hasHigh,
		canNull: c.nulls > 0, empty: !c.synthetic && c.nulls == m.Rows, column: c,
	}
	s.one = s.hasLow && s.hasHigh && !c.lowCut && !c.highCut && compareBounds(c.kind, &c.low, &c.high) == 0
	return s
}

// ordersWith returns the possible orders between a value of s and one of o.
func (s *valueSpan) ordersWith(o *valueSpan) (orders expr.Orders) {
	if !s.hasLow || !o.hasHigh || compareBounds(s.kind, &s.low, &o.high) < 0 {
		orders |= expr.Less
	}
	if !s.hasHigh || !o.hasLow || compareBounds(s.kind, &s.high, &o.low) > 0 {
		orders |= expr.Greater
	}
	apart := s.hasHigh && o.hasLow && compareBounds(s.kind, &s.high, &o.low) < 0 ||
		s.hasLow && o.hasHigh && compareBounds(s.kind, &s.low, &o.high) > 0
	if !apart && s.mayHold(o) && o.mayHold(s) {
		orders |= expr.Equal
	}
	return orders
}

// mayHold reports whether the value of o, if it is a single one, may be in the filter of s.
func (s *valueSpan) mayHold(o *valueSpan) bool {
	c := s.column
	if c == nil || len(c.filter) == 0 || !o.one {
		return true
	}
	v := o.low // a widened int32 hashes as before
	return c.filter.mayHave(c.hashValue(&v))
}

// beginsTruths returns whether the values of s may begin with a text.
func (s *valueSpan) beginsTruths(prefix []byte) expr.Truths {
	o := s.nullTruth()
	switch {
	case s.empty:
		return o
	case len(prefix) == 0:
		return o | expr.True
	case s.one:
		return o | expr.TruthOf(bytes.HasPrefix(s.low.s, prefix))
	}
	o |= expr.False
	// Texts with the prefix lie at or above the prefix, and below its successor.
	end, bounded := successor(prefix)
	under := s.hasHigh && bytes.Compare(s.high.s, prefix) < 0
	over := bounded && s.hasLow && bytes.Compare(s.low.s, end) >= 0
	if !under && !over {
		o |= expr.True
	}
	return o
}

// castSpan returns the span after a cast that keeps the order of values and can't fail within the bounds. For other casts it
// knows nothing.
func castSpan(s valueSpan, to *schema.Type) valueSpan {
	switch {
	case s.kind == schema.Invalid && s.empty:
		return s
	case s.kind == schema.Invalid:
		return anySpan // the cast may fail
	case s.kind == to.Kind && s.scale == scaleOf(to):
		if !s.fitsType(to) {
			return anySpan
		}
		return s
	}
	out := s
	out.kind, out.scale = to.Kind, scaleOf(to)
	integral := s.kind == schema.Int32 || s.kind == schema.Int64
	switch {
	case s.kind == schema.Int32 && to.Kind == schema.Int64:
		return out
	case s.empty:
		out.column = nil
		return out
	case !s.hasLow || !s.hasHigh:
		return anySpan
	}
	// From here on the cast is not injective: two values may become one, but the filter contains the original values.
	out.column = nil
	switch {
	case integral && to.Kind == schema.Float64:
		out.low, out.high = boundValue{f: float64(s.low.i)}, boundValue{f: float64(s.high.i)}
	case s.kind == schema.Uint64 && to.Kind == schema.Float64:
		out.low, out.high = boundValue{f: float64(s.low.u)}, boundValue{f: float64(s.high.u)}
	case integral && to.Kind == schema.Decimal:
		var ok, ok2 bool
		out.low.d, ok = scaledDecimal(decimal128.FromI64(s.low.i), to)
		out.high.d, ok2 = scaledDecimal(decimal128.FromI64(s.high.i), to)
		if !ok || !ok2 {
			return anySpan
		}
	case s.kind == schema.Date && to.Kind == schema.Timestamp:
		if s.low.i < -maxDays || s.high.i > maxDays {
			return anySpan
		}
		out.low, out.high = boundValue{i: s.low.i * value.Day}, boundValue{i: s.high.i * value.Day}
	case s.kind == schema.Timestamp && to.Kind == schema.Date:
		out.low, out.high = boundValue{i: value.FloorDiv(s.low.i, value.Day)}, boundValue{i: value.FloorDiv(s.high.i, value.Day)}
	default:
		return anySpan
	}
	return out
}

// fitsType reports whether a type of the same kind and scale can hold all values. A decimal with too few digits turns larger
// values into null.
func (s *valueSpan) fitsType(to *schema.Type) bool {
	if s.kind != schema.Decimal || s.empty || to.Precision >= value.MaxPrecision {
		return true
	}
	return s.hasLow && s.hasHigh && to.Precision > 0 && s.low.d.FitsInPrecision(to.Precision) && s.high.d.FitsInPrecision(to.Precision)
}

// scaledDecimal returns an integer as a decimal, if it fits.
func scaledDecimal(v decimal128.Num, to *schema.Type) (decimal128.Num, bool) {
	whole := to.Precision - to.Scale
	if whole < 0 || whole < value.MaxPrecision && !v.FitsInPrecision(whole) {
		return v, false
	}
	return v.IncreaseScaleBy(to.Scale), true
}

// maxDays is the maximum distance of a timestamp from 1970 in days.
const maxDays = math.MaxInt64 / value.Day

// longest is the maximum distance by which date_trunc moves a timestamp back, in microseconds.
var longest = map[string]int64{
	"microseconds": 1, "milliseconds": value.Millisecond, "second": value.Second, "minute": value.Minute, "hour": value.Hour, "day": value.Day,
	"week": 7 * value.Day, "month": 31 * value.Day, "quarter": 92 * value.Day, "year": 366 * value.Day, "decade": 3653 * value.Day,
	"century": 36525 * value.Day, "millennium": 365250 * value.Day,
}

// truncateSpan returns the span after date_trunc: no value grows, and none shrinks by more than the unit.
func truncateSpan(s valueSpan, unit string) valueSpan {
	back, ok := longest[unit]
	if s.kind != schema.Timestamp || !ok || s.empty || !s.hasLow || !s.hasHigh {
		return anySpan
	}
	if s.low.i < math.MinInt64+back {
		return anySpan
	}
	s.low.i -= back
	s.one, s.column = false, nil
	return s
}
