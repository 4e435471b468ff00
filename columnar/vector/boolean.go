package vector

import "scribe/columnar/schema"

// testNode makes a bool of each row's values; rows with a null argument are null.
type testNode struct {
	args []node
	// test returns the bool, and whether there is one.
	test func(args []*vec, i int) (is, ok bool)
}

func (n *testNode) eval(ev *eval, sel bitmap) *vec {
	args := ev.args(sel, n.args...)
	out := &vec{kind: schema.Bool, rows: ev.rows, valid: ev.valid(args...), bits: ev.zeros(ev.rows)}
	var bad bitmap
	for i := range each(ev.live(sel, args...), ev.rows) {
		is, ok := n.test(args, i)
		if is {
			out.bits.set(i)
		}
		if !ok {
			if bad == nil {
				bad = ev.zeros(ev.rows)
			}
			bad.set(i)
		}
	}
	return ev.failing(out, bad, sel)
}
