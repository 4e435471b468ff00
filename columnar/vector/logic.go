package vector

import (
	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// junctionNode is AND, or OR if decides is true. Terms are evaluated from cheapest to most expensive, later ones only for rows
// that earlier ones have not decided.
type junctionNode struct {
	terms   []exprNode
	decides bool // the term value that decides the result
}

// copySelected returns the rows of sel, in newly allocated memory.
func (ev *programRun) copySelected(sel bitmap) bitmap {
	if sel != nil {
		return ev.copyOf(sel)
	}
	return ev.ones(ev.rows)
}

func (n *junctionNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	open := ev.copySelected(sel) // rows that no term has decided yet
	var null bitmap              // rows in which a term was null; nil if none
	for _, t := range n.terms {
		if ev.err != nil || !open.any() {
			break
		}
		v := t.evalRows(ev, open)
		decided := ev.copyOf(v.bits)
		if !n.decides {
			decided.not(ev.rows)
		}
		if v.valid != nil {
			decided.and(v.valid)
			nulls := ev.copyOf(v.valid)
			nulls.not(ev.rows)
			if null == nil {
				null = nulls
			} else {
				null.or(nulls)
			}
		}
		open.andNot(decided)
	}
	// Rows that are not open have the deciding value. The others have the opposite value or are null.
	out := &columnVec{kind: schema.Bool, rows: ev.rows, bits: open}
	if null != nil {
		null.and(open)
		null.not(ev.rows)
		out.valid = null
	}
	if n.decides {
		out.bits = ev.copyOf(open)
		out.bits.not(ev.rows)
	}
	return out
}

// trueRows returns the rows of sel that are true. In an AND, a row with a null term can't become true. In an OR, a row remains
// open until a term is true, whether a term was null or not.
func (n *junctionNode) trueRows(ev *programRun, sel bitmap) bitmap {
	if !n.decides {
		for i, t := range n.terms {
			if i > 0 && (ev.err != nil || !sel.any()) {
				break
			}
			sel = trueRows(ev, t, sel)
		}
		return sel
	}
	open, out := ev.copySelected(sel), ev.zeros(ev.rows)
	for _, t := range n.terms {
		if ev.err != nil || !open.any() {
			break
		}
		is := trueRows(ev, t, open)
		out.or(is)
		open.andNot(is)
	}
	return out
}

type notNode struct{ a exprNode }

func (n notNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	a := n.a.evalRows(ev, sel)
	out := &columnVec{kind: schema.Bool, rows: ev.rows, valid: a.valid, bits: ev.copyOf(a.bits)}
	out.bits.not(ev.rows)
	return out
}

// truthNode is a test: whether a is one of the truths. For a value that is not a bool, the truths are Null, or True and False.
type truthNode struct {
	truths expr.Truths
	a      exprNode
}

func (n truthNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	a := ev.evalArgs(sel, n.a)[0]
	out := &columnVec{kind: schema.Bool, rows: ev.rows, bits: ev.presentRows(a)}
	truths, negate := n.truths, n.truths&expr.Null != 0
	if negate {
		truths = expr.AnyTruth &^ truths
	}
	switch truths {
	case expr.True:
		out.bits.and(a.bits)
	case expr.False:
		out.bits.andNot(a.bits)
	default: // only nullness counts
	}
	if negate {
		out.bits.not(ev.rows)
	}
	return out
}
