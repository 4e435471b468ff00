package vector

import (
	"math"
	"math/bits"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// arithNode is an operator of two values, arithNode with b nil of one.
type arithNode struct {
	op   expr.Op
	t    *schema.Type
	a, b node
	// calc makes the values.
	calc func(ev *eval, out, a, b *vec, live bitmap) (bad bitmap)
}

func (n *arithNode) eval(ev *eval, sel bitmap) *vec {
	var a, b *vec
	if n.b == nil {
		a = ev.args(sel, n.a)[0]
		b = a
	} else {
		args := ev.args(sel, n.a, n.b)
		a, b = args[0], args[1]
	}
	out := ev.result(n.t, a, b)
	return ev.failing(out, n.calc(ev, out, a, b, ev.live(sel, a, b)), sel)
}

// lane says where a kind's values are.
type lane[T fixed] func(*vec) *[]T

func lane32(v *vec) *[]int32  { return &v.i32 }
func lane64(v *vec) *[]int64  { return &v.i64 }
func laneU(v *vec) *[]uint64  { return &v.u64 }
func laneF(v *vec) *[]float64 { return &v.f64 }

// pairwise makes an operator of a function of two values that says whether it had a result.
func pairwise[A, B, R fixed](la lane[A], lb lane[B], lr lane[R], f func(A, B) (R, bool)) func(*eval, *vec, *vec, *vec, bitmap) bitmap {
	return func(ev *eval, out, a, b *vec, live bitmap) (bad bitmap) {
		va, vb, ma, mb := *la(a), *lb(b), a.at(), b.at()
		r := take[R](ev.scratch, ev.rows)
		if live != nil {
			clear(r)
		}
		for i := range each(live, ev.rows) {
			v, ok := f(va[i&ma], vb[i&mb])
			r[i] = v
			if !ok {
				if bad == nil {
					bad = ev.zeros(ev.rows)
				}
				bad.set(i)
			}
		}
		*lr(out) = r
		return bad
	}
}

// single is pairwise of one value.
func single[A, R fixed](la lane[A], lr lane[R], f func(A) (R, bool)) func(*eval, *vec, *vec, *vec, bitmap) bitmap {
	return pairwise(la, la, lr, func(a, _ A) (R, bool) { return f(a) })
}

type signed interface{ int32 | int64 }

func addSigned[T signed](a, b T) (T, bool) {
	s := a + b
	return s, (s^a)&(s^b) >= 0
}

func subSigned[T signed](a, b T) (T, bool) {
	s := a - b
	return s, (a^b)&(s^a) >= 0
}

func mul32(a, b int32) (int32, bool) {
	p := int64(a) * int64(b)
	return int32(p), p == int64(int32(p))
}

func mul64(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	h := int64(hi)
	if a < 0 {
		h -= b
	}
	if b < 0 {
		h -= a
	}
	return int64(lo), h == int64(lo)>>63
}

func divSigned[T signed](a, b T) (T, bool) {
	if b == 0 || b == -1 && a == -a && a != 0 {
		return 0, false
	}
	return a / b, true
}

func modInteger[T ordered](a, b T) (T, bool) {
	if b == 0 {
		return 0, false
	}
	return a % b, true
}

func negSigned[T signed](a T) (T, bool) { return -a, a != -a || a == 0 }

func absSigned[T signed](a T) (T, bool) {
	if a < 0 {
		return -a, a != -a
	}
	return a, true
}

func addUnsigned(a, b uint64) (uint64, bool) {
	s, c := bits.Add64(a, b, 0)
	return s, c == 0
}

func subUnsigned(a, b uint64) (uint64, bool) { return a - b, a >= b }

func mulUnsigned(a, b uint64) (uint64, bool) {
	hi, lo := bits.Mul64(a, b)
	return lo, hi == 0
}

func divUnsigned(a, b uint64) (uint64, bool) {
	if b == 0 {
		return 0, false
	}
	return a / b, true
}

// finite reports whether r may be the result of an operation on a and b: infinite only if one of these is.
func finite(r, a, b float64) bool {
	return !math.IsInf(r, 0) || math.IsInf(a, 0) || math.IsInf(b, 0)
}

func addFloat(a, b float64) (float64, bool) { r := a + b; return r, finite(r, a, b) }

func subFloat(a, b float64) (float64, bool) { r := a - b; return r, finite(r, a, b) }

func mulFloat(a, b float64) (float64, bool) {
	r := a * b
	return r, finite(r, a, b) && (r != 0 || a == 0 || b == 0)
}

func divFloat(a, b float64) (float64, bool) {
	if b == 0 && a == a {
		return 0, false
	}
	r := a / b
	return r, (!math.IsInf(r, 0) || math.IsInf(a, 0)) && (r != 0 || a == 0 || math.IsInf(b, 0))
}

func modFloat(a, b float64) (float64, bool) {
	if b == 0 {
		return 0, false
	}
	return math.Mod(a, b), true
}

func sure[A, R fixed](f func(A) R) func(A) (R, bool) {
	return func(a A) (R, bool) { return f(a), true }
}

func same[T fixed](a T) (T, bool) { return a, true }

type calc = func(*eval, *vec, *vec, *vec, bitmap) bitmap

// integerCalc returns the operator for a signed kind, nil if there is none.
func integerCalc[T signed](op expr.Op, l lane[T], mul func(a, b T) (T, bool)) calc {
	switch op {
	case expr.Add:
		return pairwise(l, l, l, addSigned[T])
	case expr.Sub:
		return pairwise(l, l, l, subSigned[T])
	case expr.Mul:
		return pairwise(l, l, l, mul)
	case expr.Div:
		return pairwise(l, l, l, divSigned[T])
	case expr.Mod:
		return pairwise(l, l, l, modSigned[T])
	case expr.Neg:
		return single(l, l, negSigned[T])
	case expr.Abs:
		return single(l, l, absSigned[T])
	case expr.Floor, expr.Ceil, expr.Round:
		return single(l, l, same[T])
	default:
		return nil
	}
}

func modSigned[T signed](a, b T) (T, bool) { return modInteger(a, b) }

func unsignedCalc(op expr.Op) calc {
	switch op {
	case expr.Add:
		return pairwise(laneU, laneU, laneU, addUnsigned)
	case expr.Sub:
		return pairwise(laneU, laneU, laneU, subUnsigned)
	case expr.Mul:
		return pairwise(laneU, laneU, laneU, mulUnsigned)
	case expr.Div:
		return pairwise(laneU, laneU, laneU, divUnsigned)
	case expr.Mod:
		return pairwise(laneU, laneU, laneU, modInteger[uint64])
	case expr.Neg:
		return single(laneU, laneU, func(a uint64) (uint64, bool) { return 0, a == 0 })
	case expr.Abs, expr.Floor, expr.Ceil, expr.Round:
		return single(laneU, laneU, same[uint64])
	default:
		return nil
	}
}

func floatCalc(op expr.Op) calc {
	switch op {
	case expr.Add:
		return pairwise(laneF, laneF, laneF, addFloat)
	case expr.Sub:
		return pairwise(laneF, laneF, laneF, subFloat)
	case expr.Mul:
		return pairwise(laneF, laneF, laneF, mulFloat)
	case expr.Div:
		return pairwise(laneF, laneF, laneF, divFloat)
	case expr.Mod:
		return pairwise(laneF, laneF, laneF, modFloat)
	case expr.Neg:
		return single(laneF, laneF, func(a float64) (float64, bool) { return -a, true })
	case expr.Abs:
		return single(laneF, laneF, sure(math.Abs))
	case expr.Floor:
		return single(laneF, laneF, sure(math.Floor))
	case expr.Ceil:
		return single(laneF, laneF, sure(math.Ceil))
	case expr.Round:
		return single(laneF, laneF, sure(math.RoundToEven))
	default:
		return nil
	}
}
