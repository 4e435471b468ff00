package vector

import (
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// caseNode is CASE: values[i] for the first true conditions[i], otherwise the last of values.
type caseNode struct {
	t                  *schema.Type
	conditions, values []exprNode
}

func (n *caseNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	rest := ev.copySelected(sel)
	m := ev.newMerged(n.t)
	for i, c := range n.conditions {
		if ev.err != nil || !rest.any() {
			return m.finishMerge()
		}
		is := trueRows(ev, c, rest)
		if !is.any() {
			continue
		}
		m.putRows(n.values[i].evalRows(ev, is), is)
		rest.andNot(is)
	}
	if rest.any() {
		m.putRows(n.values[len(n.values)-1].evalRows(ev, rest), rest)
	}
	return m.finishMerge()
}

// coalesceNode is the first value that is not null.
type coalesceNode struct {
	t      *schema.Type
	values []exprNode
}

func (n *coalesceNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	rest := ev.copySelected(sel)
	m := ev.newMerged(n.t)
	for _, a := range n.values {
		if ev.err != nil || !rest.any() {
			break
		}
		v := a.evalRows(ev, rest)
		here := ev.presentRows(v)
		here.and(rest)
		m.putRows(v, here)
		rest.andNot(here)
	}
	return m.finishMerge()
}

// extremeNode is the greatest or the least of values.
type extremeNode struct {
	t      *schema.Type
	values []exprNode
	order  expr.Orders // order of the current extreme to a value that replaces it
}

func (n *extremeNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	m := ev.newMerged(n.t)
	for i, a := range n.values {
		v := a.evalRows(ev, sel)
		if ev.err != nil {
			break
		}
		here := ev.presentRows(v)
		if i > 0 && !v.isNullConstant() {
			better := ev.compareRows(n.order, m.out, v, nil)
			better.and(m.out.valid)
			none := ev.copyOf(m.out.valid)
			none.not(ev.rows)
			better.or(none)
			here.and(better)
		}
		m.putRows(v, here)
	}
	return m.finishMerge()
}

// nullIfNode is a, or null where a equals b.
type nullIfNode struct {
	a, b exprNode
}

func (n *nullIfNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	args := ev.evalArgs(sel, n.a, n.b)
	a := args[0]
	out := *spreadConstant(ev.scratchMemory, a, ev.rows)
	if a.isNullConstant() || args[1].isNullConstant() {
		return &out
	}
	same := ev.compareRows(expr.Equal, a, args[1], sel)
	if valid := ev.validRows(args...); valid != nil {
		same.and(valid)
	}
	out.valid = ev.presentRows(&out)
	out.valid.andNot(same)
	return &out
}

// rowMerger builds a vector from rows of other vectors. Rows that are not put are null.
type rowMerger struct {
	ev  *programRun
	t   *schema.Type
	out *columnVec
	// For lists, structs and maps: the vectors, and the position of each row in their concatenation.
	parts  []arrow.Array
	length int
	places []int32
}

func (ev *programRun) newMerged(t *schema.Type) *rowMerger {
	n := ev.rows
	m := &rowMerger{ev: ev, t: t, out: &columnVec{kind: t.Kind, rows: n, scale: t.Scale, valid: ev.zeros(n)}}
	s, v := ev.scratchMemory, m.out
	switch t.Kind {
	case schema.Bool:
		v.bits = ev.zeros(n)
	case schema.String, schema.Binary:
		v.begin, v.end = zeroValues(takeValues[int32](s, n)), zeroValues(takeValues[int32](s, n))
	case schema.List, schema.Struct, schema.Map:
		m.places = takeValues[int32](s, n)
		for i := range m.places {
			m.places[i] = -1
		}
	default:
		v.fixed = zeroValues(s.takeBytes(n * fixedWidth(t.Kind)))
	}
	return m
}

func zeroValues[T any](v []T) []T {
	clear(v)
	return v
}

// putRows copies the rows in which from v.
func (m *rowMerger) putRows(v *columnVec, which bitmap) {
	present := which
	if v.valid != nil {
		present = m.ev.presentRows(v)
		present.and(which)
	}
	m.out.valid.or(present)
	if v.isNullConstant() {
		return
	}
	switch out := m.out; {
	case out.kind == schema.Bool:
		for i, w := range present {
			out.bits[i] = out.bits[i]&^w | v.bits[i]&w
		}
	case out.kind == schema.String || out.kind == schema.Binary:
		m.putText(v, present)
	case fixedWidth(out.kind) == 4:
		putValues(valuesOf[int32](out), valuesOf[int32](v), v.indexMask(), present)
	case fixedWidth(out.kind) == 8:
		putValues(valuesOf[int64](out), valuesOf[int64](v), v.indexMask(), present)
	case fixedWidth(out.kind) == 16:
		putValues(valuesOf[decimal128.Num](out), valuesOf[decimal128.Num](v), v.indexMask(), present)
	case m.places != nil:
		for i := range eachRow(present, m.ev.rows) {
			m.places[i] = int32(m.length + i)
		}
		m.parts = append(m.parts, v.arr)
		m.length += v.arr.Len()
	}
}

func putValues[T fixedValue](out, values []T, at int, which bitmap) {
	for i := range eachRow(which, len(out)) {
		out[i] = values[i&at]
	}
}

// putText keeps the bytes of the first vector in place and copies those of the others after them.
func (m *rowMerger) putText(v *columnVec, which bitmap) {
	out := m.out
	if len(out.data) == 0 {
		out.data = slices.Clip(v.data)
		putValues(out.begin, v.begin, v.indexMask(), which)
		putValues(out.end, v.end, v.indexMask(), which)
		return
	}
	if !which.any() {
		return
	}
	total := 0
	for i := range eachRow(which, m.ev.rows) {
		total += int(v.end[i&v.indexMask()] - v.begin[i&v.indexMask()])
		if v.one {
			break
		}
	}
	if total > math.MaxInt32-len(out.data) || !m.ev.reserveBytes(len(out.data)+total) {
		m.ev.failTooLarge()
		return
	}
	if v.one {
		begin := int32(len(out.data))
		out.data = append(out.data, v.str(0)...)
		for i := range eachRow(which, m.ev.rows) {
			out.begin[i], out.end[i] = begin, int32(len(out.data))
		}
		return
	}
	for i := range eachRow(which, m.ev.rows) {
		out.begin[i] = int32(len(out.data))
		out.data = append(out.data, v.str(i)...)
		out.end[i] = int32(len(out.data))
	}
}

func (m *rowMerger) finishMerge() *columnVec {
	if m.places == nil {
		return m.out
	}
	if len(m.parts) == 0 {
		m.out.arr = array.MakeArrayOfNull(memory.DefaultAllocator, m.t.Arrow(), m.ev.rows)
		return m.out
	}
	all, err := concatArrays(m.parts)
	if err != nil {
		if m.ev.err == nil {
			m.ev.err = err
		}
		all = m.parts[0]
		m.places = make([]int32, 0)
	}
	m.out.arr = takeArray(all, m.places, nil)
	return m.out
}
