package vector

import (
	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// andNode and orNode evaluate their terms in the order of what they cost, and later ones only in rows that earlier ones have not decided.
type (
	andNode struct{ terms []node }
	orNode  struct{ terms []node }
)

// kleene is a state of an AND or OR: what is known of each row.
type kleene struct {
	open bitmap // rows that no term has decided so far
	null bitmap // rows in which a term was null; nil if none
}

func (ev *eval) begin(sel bitmap) kleene {
	if sel != nil {
		return kleene{open: ev.copyOf(sel)}
	}
	return kleene{open: ev.ones(ev.rows)}
}

// term evaluates a term in the rows that are open. Those in which it is value are not any more.
func (k *kleene) term(ev *eval, n node, value bool) {
	v := n.eval(ev, k.open)
	decided := ev.copyOf(v.bits)
	if !value {
		decided.not(ev.rows)
	}
	if v.valid != nil {
		decided.and(v.valid)
		null := ev.copyOf(v.valid)
		null.not(ev.rows)
		if k.null == nil {
			k.null = null
		} else {
			k.null.or(null)
		}
	}
	k.open.andNot(decided)
}

// done returns the result: rows that are not open have the value that decides, those that are have the other or are null.
func (k *kleene) done(ev *eval, value bool) *vec {
	out := &vec{kind: schema.Bool, rows: ev.rows, bits: k.open}
	if k.null != nil {
		k.null.and(k.open)
		k.null.not(ev.rows)
		out.valid = k.null
	}
	if value {
		out.bits = ev.copyOf(k.open)
		out.bits.not(ev.rows)
	}
	return out
}

func (n *andNode) eval(ev *eval, sel bitmap) *vec {
	k := ev.begin(sel)
	for _, t := range n.terms {
		if ev.err != nil || !k.open.any() {
			break
		}
		k.term(ev, t, false)
	}
	return k.done(ev, false)
}

func (n *orNode) eval(ev *eval, sel bitmap) *vec {
	k := ev.begin(sel)
	for _, t := range n.terms {
		if ev.err != nil || !k.open.any() {
			break
		}
		k.term(ev, t, true)
	}
	return k.done(ev, true)
}

// truth: a row in which a term is null can't become true.
func (n *andNode) truth(ev *eval, sel bitmap) bitmap {
	for i, t := range n.terms {
		if i > 0 && (ev.err != nil || !sel.any()) {
			break
		}
		sel = truth(ev, t, sel)
	}
	return sel
}

// truth: the rows in which no term was true so far are open, whether one was null or not.
func (n *orNode) truth(ev *eval, sel bitmap) bitmap {
	open := ev.begin(sel).open
	out := ev.zeros(ev.rows)
	for _, t := range n.terms {
		if ev.err != nil || !open.any() {
			break
		}
		is := truth(ev, t, open)
		out.or(is)
		open.andNot(is)
	}
	return out
}

type notNode struct{ a node }

func (n notNode) eval(ev *eval, sel bitmap) *vec {
	a := n.a.eval(ev, sel)
	out := &vec{kind: schema.Bool, rows: ev.rows, valid: a.valid, bits: ev.copyOf(a.bits)}
	out.bits.not(ev.rows)
	return out
}

// isNode is a test for null, true or false.
type isNode struct {
	op expr.Op
	a  node
}

func (n isNode) eval(ev *eval, sel bitmap) *vec {
	a := ev.args(sel, n.a)[0]
	out := &vec{kind: schema.Bool, rows: ev.rows}
	negate := false
	switch n.op {
	case expr.IsNull, expr.IsNotNull:
		negate = n.op == expr.IsNull
		if a.valid == nil {
			out.bits = ev.ones(ev.rows)
		} else {
			out.bits = ev.copyOf(a.valid)
		}
	default:
		negate = n.op == expr.IsNotTrue || n.op == expr.IsNotFalse
		out.bits = ev.copyOf(a.bits)
		if n.op == expr.IsFalse || n.op == expr.IsNotFalse {
			out.bits.not(ev.rows)
		}
		if a.valid != nil {
			out.bits.and(a.valid)
		}
	}
	if negate {
		out.bits.not(ev.rows)
	}
	return out
}
