package vector

import "scribe/columnar/schema"

// rowNode computes a value of a fixed width from each row's values. Rows with a null argument are null.
type rowNode[R fixedValue] struct {
	t    *schema.Type
	args []exprNode
	// calc returns the value. ok is false if there is none.
	calc func(args []*columnVec, i int) (v R, ok bool)
}

func (n *rowNode[R]) evalRows(ev *programRun, sel bitmap) *columnVec {
	args := ev.evalArgs(sel, n.args...)
	out := ev.newResult(n.t, args...)
	r := zeroValues(takeValues[R](ev.scratchMemory, ev.rows))
	var bad bitmap
	for i := range eachRow(ev.liveRows(sel, args...), ev.rows) {
		v, ok := n.calc(args, i)
		r[i] = v
		if !ok {
			bad = ev.markRow(bad, i)
		}
	}
	setValues(out, r)
	return ev.failRows(out, bad, sel)
}

// testNode computes a bool from each row's values. Rows with a null argument are null.
type testNode struct {
	args []exprNode
	// test returns the bool. ok is false if there is none.
	test func(args []*columnVec, i int) (is, ok bool)
}

func (n *testNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	args := ev.evalArgs(sel, n.args...)
	out := &columnVec{kind: schema.Bool, rows: ev.rows, valid: ev.validRows(args...), bits: ev.zeros(ev.rows)}
	var bad bitmap
	for i := range eachRow(ev.liveRows(sel, args...), ev.rows) {
		is, ok := n.test(args, i)
		if is {
			out.bits.set(i)
		}
		if !ok {
			bad = ev.markRow(bad, i)
		}
	}
	return ev.failRows(out, bad, sel)
}
