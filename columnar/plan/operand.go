package plan

import (
	"errors"
	"strconv"
	"strings"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/value"
)

// typedOperand is a bound expression whose type may still be open.
type typedOperand struct {
	e   expr.Expr
	pos int
	// unknown marks a text constant or NULL, which takes the type that its context requires. Until then it is a text.
	unknown bool
	// number is a constant number as written, with its sign. It may become any type that has the value. It is empty for other
	// operands.
	number string
}

// typ returns the operand's type, or null for an unknown one.
func (o *typedOperand) typ() *schema.Type {
	if o.unknown {
		return &typeNull
	}
	return o.e.Type()
}

func literal(t *schema.Type, v any) *expr.Literal { return &expr.Literal{T: plainType(t), Value: v} }

// isNull reports whether an expression is the constant null.
func isNull(e expr.Expr) bool {
	l, ok := e.(*expr.Literal)
	return ok && l.Value == nil
}

// isTrue reports whether a condition is the constant true.
func isTrue(e expr.Expr) bool {
	l, ok := e.(*expr.Literal)
	return ok && l.Truth() == expr.True
}

// bindNumber returns the operand for a constant number.
func (b *queryBinder) bindNumber(pos int, text string) typedOperand {
	t, v, err := naturalType(text)
	b.failIf(err != nil, pos, "", "number %s is out of range", text)
	return typedOperand{e: literal(&t, v), pos: pos, number: text}
}

// naturalType returns the default type of a constant number: int32, int64, decimal, or float64 if it has too many digits.
func naturalType(text string) (schema.Type, any, error) {
	if !strings.ContainsAny(text, ".eE") {
		if v, err := value.ParseInt(text, 32); err == nil {
			return typeInt32, int32(v), nil //nolint:gosec // 32 bits, as asked for
		}
		if v, err := value.ParseInt(text, 64); err == nil {
			return typeInt64, v, nil
		}
	}
	if whole, scale, ok := countDigits(text); ok {
		t := schema.Type{Kind: schema.Decimal, Precision: max(1, whole+scale), Scale: scale}
		if v, err := value.ParseDecimal(text, t.Precision, t.Scale); err == nil {
			return t, v, nil
		}
	}
	v, err := value.ParseFloat(text)
	return typeFloat64, v, err
}

// countDigits counts the decimal digits of a number before and after the point. It reports whether they fit in a decimal.
func countDigits(text string) (whole, scale int32, ok bool) {
	text = strings.TrimLeft(text, "+-")
	mantissa, exponent := text, 0
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		e, err := strconv.Atoi(text[i+1:])
		if err != nil || e > 1000 || e < -1000 {
			return 0, 0, false
		}
		mantissa, exponent = text[:i], e
	}
	before, after, _ := strings.Cut(mantissa, ".")
	before = strings.TrimLeft(before, "0")
	w, s := len(before)+exponent, len(after)-exponent
	if w > value.MaxPrecision || s > value.MaxPrecision || max(w, 0)+max(s, 0) > value.MaxPrecision {
		return 0, 0, false
	}
	return int32(max(w, 0)), int32(max(s, 0)), true //nolint:gosec // at most 38
}

// numberAs returns a constant number as a value of a type, if the conversion is exact. With loose, a number with a point may be
// an integer.
func numberAs(text string, t *schema.Type, loose bool) (any, bool) {
	switch t.Kind {
	case schema.Int32, schema.Int64, schema.Uint64:
		if strings.ContainsAny(text, ".eE") {
			whole, scale, ok := countDigits(text)
			if !loose || !ok || whole > 20 {
				return nil, false
			}
			if text, ok = wholeText(text, whole, scale); !ok {
				return nil, false
			}
		}
		if t.Kind == schema.Uint64 && strings.HasPrefix(text, "-") {
			return nil, false
		}
		v, err := parseText(t, text)
		return v, err == nil
	case schema.Decimal:
		whole, scale, ok := countDigits(text)
		if !ok || scale > t.Scale || whole > t.Precision-t.Scale {
			return nil, false
		}
		v, err := value.ParseDecimal(text, t.Precision, t.Scale)
		return v, err == nil
	case schema.Float64:
		v, err := value.ParseFloat(text)
		if v == 0 {
			v = 0 // -0 is an integer, whose zero has no sign
		}
		return v, err == nil
	default:
		return nil, false
	}
}

// wholeText returns a number without a fraction as the text of an integer.
func wholeText(text string, whole, scale int32) (string, bool) {
	v, err := value.ParseDecimal(text, max(1, whole+scale), scale)
	if err != nil {
		return "", false
	}
	before, after, _ := strings.Cut(string(value.AppendDecimal(nil, v, scale)), ".")
	return before, strings.Trim(after, "0") == ""
}

// readUnknown gives an unknown operand a type and parses its text as a value of it.
func (b *queryBinder) readUnknown(o typedOperand, t *schema.Type) typedOperand {
	l := o.e.(*expr.Literal)
	if l.Value == nil {
		return typedOperand{e: literal(t, nil), pos: o.pos}
	}
	text := l.Value.(string)
	if t.Kind == schema.Decimal && t.Precision == 0 {
		n := strings.TrimSpace(text)
		if nt, v, err := naturalType(n); err == nil && nt.Kind != schema.Float64 {
			if nt.Kind == schema.Decimal {
				return typedOperand{e: literal(&nt, v), pos: o.pos}
			}
			d := decimalOf(&nt)
			if v, ok := numberAs(n, &d, false); ok {
				return typedOperand{e: literal(&d, v), pos: o.pos}
			}
		}
		full := decimalOf(&typeString)
		t = &full
	}
	v, err := parseText(t, text)
	switch {
	case errors.Is(err, value.ErrRange):
		panic(b.errorAt(o.pos, "", "value %q is out of range for type %s", sql.ClipText(text), typeName(t)))
	case err != nil:
		panic(b.errorAt(o.pos, inputHints[t.Kind], "invalid input syntax for type %s: %q", typeName(t), sql.ClipText(text)))
	}
	return typedOperand{e: literal(t, v), pos: o.pos}
}

// textIfUnknown turns an unknown operand into a text.
func (b *queryBinder) textIfUnknown(o typedOperand) typedOperand {
	if o.unknown {
		return b.readUnknown(o, &typeString)
	}
	return o
}

// inputHints are examples of constants.
var inputHints = map[schema.Kind]string{
	schema.Timestamp: "Write it like 2024-02-03 04:05:06.789+00.",
	schema.Date:      "Write it like 2024-02-03.",
	schema.Interval:  "Write it like 1 day 2 hours, or 1 day 02:03:04.5.",
	schema.Bool:      "Write true or false.",
}

// convertTo converts an operand to a type. The caller has checked that the conversion exists.
func (b *queryBinder) convertTo(o typedOperand, t *schema.Type) expr.Expr {
	return b.convert(o, t, false)
}

func (b *queryBinder) convert(o typedOperand, t *schema.Type, loose bool) expr.Expr {
	if o.unknown {
		return b.readUnknown(o, t).e
	}
	if o.number != "" && !t.Equal(o.e.Type()) {
		if v, ok := numberAs(o.number, t, loose); ok {
			return literal(t, v)
		}
	}
	return b.castExpr(o.e, t)
}

// castExpr casts an expression, unless it already has the type.
func (b *queryBinder) castExpr(e expr.Expr, t *schema.Type) expr.Expr {
	if e.Type().Equal(t) {
		return e
	}
	return b.makeCall(expr.Cast, plainType(t), nil, e)
}

// commonOf returns the common type of operands. at is the index of an operand that does not fit the others. With loose, constants
// with a point may be integers, which loses nothing in comparisons.
func (b *queryBinder) commonOf(loose bool, operands ...typedOperand) (t schema.Type, at int, ok bool) {
	t = typeNull
	for i := range operands {
		if o := &operands[i]; !o.unknown && o.number == "" {
			if t, ok = commonType(&t, o.e.Type()); !ok {
				return t, i, false
			}
		}
	}
	for i := range operands {
		o := &operands[i]
		if o.number == "" {
			continue
		}
		if _, fits := numberAs(o.number, &t, loose); fits {
			continue
		}
		if t, ok = commonType(&t, o.e.Type()); !ok {
			return t, i, false
		}
	}
	if t.Kind == schema.Null {
		return typeString, 0, true
	}
	if t.Kind == schema.Decimal {
		t = b.widenDecimal(t, operands)
	}
	return t, 0, true
}

// widenDecimal widens a decimal type so that text constants among operands keep their exact value: '1.555' is not rounded to the
// other side's scale.
func (b *queryBinder) widenDecimal(t schema.Type, operands []typedOperand) schema.Type {
	for i := range operands {
		l, ok := operands[i].e.(*expr.Literal)
		if !ok || !operands[i].unknown || l.Value == nil {
			continue
		}
		text := strings.TrimSpace(l.Value.(string))
		if nt, _, err := naturalType(text); err == nil && isNumeric(nt.Kind) && nt.Kind != schema.Float64 {
			if _, fits := numberAs(text, &t, true); !fits {
				t = commonNumber(&t, &nt)
			}
		}
	}
	return t
}
