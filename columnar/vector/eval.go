package vector

import (
	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/schema"
)

// exprNode is a compiled expression. Nodes are immutable.
type exprNode interface {
	// evalRows returns the values of every row of the batch, or a constant. Only the rows of sel are required, or all if it is nil.
	// Other rows may have any value, and their errors are not counted. sel is not changed.
	evalRows(ev *programRun, sel bitmap) *columnVec
}

// programColumn is a column that a program reads.
type programColumn struct {
	name  string
	index int // index in the batch
	t     schema.Type
}

// programRun is the state of one evaluation of a program.
type programRun struct {
	*scratchMemory
	rows    int
	columns []programColumn
	batch   arrow.RecordBatch
	loaded  []*columnVec // columns read so far, by index in columns
	errs    bitmap       // rows with an error; nil if there are none
}

// loadColumn returns the values of a column.
func (ev *programRun) loadColumn(i int) *columnVec {
	if ev.loaded[i] == nil {
		c := &ev.columns[i]
		ev.loaded[i] = loadArray(ev.scratchMemory, &c.t, ev.batch.Column(c.index))
	}
	return ev.loaded[i]
}

// noteErrors counts the errors of selected rows.
func (ev *programRun) noteErrors(bad, sel bitmap) {
	if sel != nil {
		bad = ev.copyOf(bad)
		bad.and(sel)
	}
	if !bad.any() {
		return
	}
	if ev.errs == nil {
		ev.errs = ev.zeros(ev.rows)
	}
	ev.errs.or(bad)
}

// liveRows returns the rows of sel in which no argument is null, or nil if that is every row.
func (ev *programRun) liveRows(sel bitmap, args ...*columnVec) bitmap {
	out, own := sel, false
	for _, a := range args {
		switch {
		case a.valid == nil:
		case a.one:
			if !a.valid.get(0) {
				return ev.zeros(ev.rows)
			}
		case out == nil:
			out = a.valid
		default:
			if !own {
				out, own = ev.copyOf(out), true
			}
			out.and(a.valid)
		}
	}
	return out
}

// validRows returns the rows in which no argument is null.
func (ev *programRun) validRows(args ...*columnVec) bitmap { return ev.liveRows(nil, args...) }

// evalArgs evaluates the arguments of an operator, and expands at least one of them if all are constants.
func (ev *programRun) evalArgs(sel bitmap, nodes ...exprNode) []*columnVec {
	out := make([]*columnVec, len(nodes))
	constant := true
	for i, n := range nodes {
		out[i] = n.evalRows(ev, sel)
		constant = constant && out[i].one
	}
	if constant && len(out) > 0 {
		out[0] = spreadConstant(ev.scratchMemory, out[0], ev.rows)
	}
	return out
}

// newResult returns a vector for an operator's values, null where one of args is null.
func (ev *programRun) newResult(t *schema.Type, args ...*columnVec) *columnVec {
	return &columnVec{kind: t.Kind, scale: t.Scale, rows: ev.rows, valid: ev.validRows(args...)}
}

// markRow sets a row in a bitmap, which it allocates if it is nil.
func (ev *programRun) markRow(rows bitmap, i int) bitmap {
	if rows == nil {
		rows = ev.zeros(ev.rows)
	}
	rows.set(i)
	return rows
}

// failRows makes the rows in bad null and counts them as errors. bad must not be used afterwards.
func (ev *programRun) failRows(v *columnVec, bad, sel bitmap) *columnVec {
	if bad == nil {
		return v
	}
	if v.valid != nil {
		bad.and(v.valid)
	}
	if !bad.any() {
		return v
	}
	ev.noteErrors(bad, sel)
	v.valid = ev.presentRows(v)
	v.valid.andNot(bad)
	return v
}

// columnNode reads a column.
type columnNode struct{ index int }

func (n columnNode) evalRows(ev *programRun, _ bitmap) *columnVec { return ev.loadColumn(n.index) }

// constantNode is a literal.
type constantNode struct{ v *columnVec }

func (n constantNode) evalRows(ev *programRun, _ bitmap) *columnVec {
	if n.v.kind == schema.Bool {
		out := &columnVec{kind: schema.Bool, rows: ev.rows}
		switch {
		case n.v.isNullConstant():
			out.bits, out.valid = ev.zeros(ev.rows), ev.zeros(ev.rows)
		case n.v.bits[0] != 0:
			out.bits = ev.ones(ev.rows)
		default:
			out.bits = ev.zeros(ev.rows)
		}
		return out
	}
	return n.v
}

// trueRows returns the rows of sel in which a bool is true, in memory that the caller may change. Unlike evalRows it does not
// distinguish false from null, so it can skip more rows.
func trueRows(ev *programRun, n exprNode, sel bitmap) bitmap {
	if n, ok := n.(*junctionNode); ok {
		return n.trueRows(ev, sel)
	}
	v := n.evalRows(ev, sel)
	out := ev.copyOf(v.bits)
	if v.valid != nil {
		out.and(v.valid)
	}
	if sel != nil {
		out.and(sel)
	}
	return out
}

// byCode evaluates an expression of one column once for each value of the column's dictionary.
type byCode struct {
	column int
	inner  exprNode
}

func (n *byCode) evalRows(ev *programRun, sel bitmap) *columnVec {
	dict, ok := ev.batch.Column(ev.columns[n.column].index).(dictionaryArray)
	if !ok || dict.Dictionary().Len() >= ev.rows {
		return n.inner.evalRows(ev, sel)
	}
	t := &ev.columns[n.column].t
	values := loadArray(ev.scratchMemory, t, dict.Dictionary())
	null := values.rows
	if dict.NullN() > 0 || null == 0 {
		// One additional value stands for null rows.
		values = withNull(ev.scratchMemory, values)
	}
	sub := &programRun{scratchMemory: ev.scratchMemory, rows: values.rows, columns: ev.columns, batch: ev.batch, loaded: make([]*columnVec, len(ev.columns))}
	sub.loaded[n.column] = values
	out := spreadConstant(ev.scratchMemory, n.inner.evalRows(sub, nil), sub.rows)
	codes := replaceNulls(ev.scratchMemory, loadCodes(ev.scratchMemory, dict), loadValid(ev.scratchMemory, dict), int32(null))
	if sub.errs != nil {
		ev.noteErrors(gatherBits(ev.scratchMemory, sub.errs, codes), sel)
	}
	return gatherRows(ev.scratchMemory, out, codes, nil)
}

// dictionaryArray is the required subset of *array.Dictionary.
type dictionaryArray interface {
	arrow.Array
	Dictionary() arrow.Array
}

// withNull returns v with an additional null row.
func withNull(s *scratchMemory, v *columnVec) *columnVec {
	codes, valid := takeValues[int32](s, v.rows+1), s.ones(v.rows+1)
	for i := range codes {
		codes[i] = int32(i)
	}
	valid.clear(v.rows)
	return gatherRows(s, v, codes, valid)
}
