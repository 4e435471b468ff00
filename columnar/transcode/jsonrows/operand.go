package jsonrows

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"unsafe"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/transcode/column"
	"scribe/columnar/transcode/jsonscan"
	"scribe/columnar/transcode/rows"
)

// asString returns b as a string without copying. The caller must not keep it.
func asString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// findSlot returns the slot of a field's value, or nil if there is none. For a field that is not nullable, null does not count as
// a value while another source has one.
func (r *jsonReader) findSlot(f *jsonField) *valueSlot {
	if f.only >= 0 {
		if s := &r.w.slots[f.only]; s.gen == r.w.gen {
			return s
		}
		return nil
	}
	var null *valueSlot
	for _, i := range f.sources {
		s := &r.w.slots[i]
		switch {
		case s.gen != r.w.gen:
		case s.kind != slotNull || f.nullable:
			return s
		case null == nil:
			null = s
		}
	}
	return null
}

// isNull reports whether the column is null, because its value is absent or does not fit.
func (r *jsonReader) isNull(o columnOperand) bool {
	if o.field < 0 {
		return o.own == rows.CommonKey && !r.message.HasKey
	}
	s := r.findSlot(&r.j.fields[o.field])
	if s == nil || s.kind == slotNull {
		return true
	}
	switch c := r.rows.Declared[r.j.fields[o.field].field]; {
	case isText(o.kind):
		_, ok := r.operandText(o)
		return !ok
	case hasWord(o.kind):
		r.w.resolveSlot(c, s)
	case s.kind != slotBad:
		// Nested values and decimals fit only if they can be appended.
		n := c.Len
		if why, at := r.w.appendSlot(c, s); why != "" {
			s.kind, s.at, s.why = slotBad, int32(at), why
		}
		c.Truncate(n)
	}
	return s.kind == slotBad
}

// hasWord reports whether values of the kind fit in slot.val.
func hasWord(k schema.Kind) bool {
	switch k {
	case schema.Bool, schema.Int32, schema.Int64, schema.Uint64, schema.Float64, schema.Date, schema.Timestamp:
		return true
	default:
		return false
	}
}

// resolveSlot turns a slot into slotValue or slotBad. The column's type must satisfy hasWord.
func (w *rowWalker) resolveSlot(c *column.Buffer, s *valueSlot) {
	switch s.kind {
	case slotValue, slotBad:
		return
	default:
	}
	val, why, at := w.slotWord(c, s)
	if why != "" {
		s.kind, s.why, s.at = slotBad, why, int32(at)
		return
	}
	s.kind, s.val = slotValue, val
}

// slotWord returns the value of a slot as a word: a number, an instant, a day, 1 for true, or the bits of a float.
func (w *rowWalker) slotWord(c *column.Buffer, s *valueSlot) (val int64, why string, at int) {
	t := c.Type
	at = int(s.at)
	switch s.kind {
	case slotTrue, slotFalse:
		if t.Kind == schema.Bool {
			return s.val, "", at
		}
		return 0, column.WhyNot(t.Kind), at
	case slotInt, slotNumber:
		val, why = w.numberWord(c, s)
		return val, why, at
	case slotText, slotEscaped:
		if t.Kind != schema.Timestamp && t.Kind != schema.Date {
			return 0, column.WhyNot(t.Kind), at - 1
		}
		text := w.b[s.at:s.end]
		if s.kind == slotEscaped {
			var fault jsonscan.Fault
			if text, fault = w.unescapeText(int(s.at), int(s.end)); !fault.OK() {
				return 0, fault.Why, fault.At
			}
		}
		val, why = column.TimeWord(c, text)
		return val, why, at - 1
	case slotNull:
		return 0, column.WhyNull, at
	default:
		return 0, column.WhyNot(t.Kind), at
	}
}

func (w *rowWalker) numberWord(c *column.Buffer, s *valueSlot) (val int64, why string) {
	switch kind := c.Type.Kind; {
	case kind == schema.Int64 && s.kind == slotInt, kind == schema.Int32 && s.kind == slotInt && int64(int32(s.val)) == s.val:
		return s.val, ""
	case kind == schema.Float64 && s.kind == slotInt && s.val != 0 && -1<<53 < s.val && s.val < 1<<53: // excludes -0
		return int64(math.Float64bits(float64(s.val))), ""
	case kind == schema.Float64 && s.kind == slotNumber && s.places > 0 && s.val != 0:
		// Both operands are exact, so the quotient is the nearest float.
		return int64(math.Float64bits(float64(s.val) / tens[s.places])), ""
	case (kind == schema.Timestamp || kind == schema.Date) && s.kind == slotInt:
		micros, ok := column.InstantOfInteger(c.Times, s.val)
		if !ok {
			return 0, column.WhyNotTimeNumber
		}
		return column.InstantWord(c, micros)
	default:
		return column.NumberWord(c, w.b[s.at:s.end])
	}
}

// tens holds the powers of ten.
var tens = [16]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

// operandNumber, operandUnsigned and operandFloat return the value of a column; false means null.
func (r *jsonReader) operandNumber(o columnOperand) (int64, bool) {
	if o.field < 0 {
		return r.message.Time, true
	}
	f := &r.j.fields[o.field]
	s := r.findSlot(f)
	if s == nil || s.kind == slotNull {
		return 0, false
	}
	if s.kind == slotInt && o.kind == schema.Int64 {
		return s.val, true
	}
	r.w.resolveSlot(r.rows.Declared[f.field], s)
	return s.val, s.kind == slotValue
}

func (r *jsonReader) operandUnsigned(o columnOperand) (uint64, bool) {
	v, ok := r.operandNumber(o)
	return uint64(v), ok
}

func (r *jsonReader) operandFloat(o columnOperand) (float64, bool) {
	v, ok := r.operandNumber(o)
	return math.Float64frombits(uint64(v)), ok
}

// operandText returns the value of a column of strings or binaries, valid until the next call; false means null.
func (r *jsonReader) operandText(o columnOperand) ([]byte, bool) {
	if o.field < 0 {
		return r.message.Key, r.message.HasKey
	}
	s := r.findSlot(&r.j.fields[o.field])
	if s == nil || s.kind == slotNull || s.kind == slotBad {
		return nil, false
	}
	raw := r.w.b[s.at:s.end]
	switch s.kind {
	case slotText:
		return raw, true
	case slotEscaped:
		text, fault := r.w.unescapeText(int(s.at), int(s.end))
		if !fault.OK() {
			s.kind, s.why, s.at = slotBad, fault.Why, int32(fault.At)
			return nil, false
		}
		return text, true
	case slotInt, slotNumber, slotTrue, slotFalse:
		return raw, o.kind == schema.String
	case slotContainer:
		return raw, o.kind == schema.String && json.Valid(raw)
	default:
		return nil, false
	}
}

// operandString is operandText as a string, for comparisons that do not keep it.
func (r *jsonReader) operandString(o columnOperand) (string, bool) {
	b, ok := r.operandText(o)
	return asString(b), ok
}

// likePredicate is LIKE with a pattern without _: a prefix, parts in order, and a suffix. If open is false, the whole text must
// equal the prefix.
type likePredicate struct {
	o           columnOperand
	first, last string
	between     [][]byte
	open        bool
}

func (l *likePredicate) decideRow(r *jsonReader) expr.Truths {
	b, ok := r.operandText(l.o)
	if !ok {
		return expr.Null
	}
	if !l.open {
		return expr.TruthOf(string(b) == l.first)
	}
	if len(b) < len(l.first)+len(l.last) || !strings.HasPrefix(asString(b), l.first) || !strings.HasSuffix(asString(b), l.last) {
		return expr.False
	}
	b = b[len(l.first) : len(b)-len(l.last)]
	for _, part := range l.between {
		i := bytes.Index(b, part)
		if i < 0 {
			return expr.False
		}
		b = b[i+len(part):]
	}
	return expr.True
}
