package vector

import "scribe/columnar/schema"

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
