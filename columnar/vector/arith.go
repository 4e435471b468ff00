package vector

import (
	"maps"
	"math"
	"math/bits"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// arithNode is an operator of two values, or of one if b is nil.
type arithNode struct {
	t    *schema.Type
	a, b exprNode
	calc calcFunc
}

// calcFunc sets the values of out and returns the rows without a result.
type calcFunc func(ev *programRun, out, a, b *columnVec, live bitmap) (bad bitmap)

func (n *arithNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	var a, b *columnVec
	if n.b == nil {
		a = ev.evalArgs(sel, n.a)[0]
		b = a
	} else {
		args := ev.evalArgs(sel, n.a, n.b)
		a, b = args[0], args[1]
	}
	out := ev.newResult(n.t, a, b)
	return ev.failRows(out, n.calc(ev, out, a, b, ev.liveRows(sel, a, b)), sel)
}

// calcPairs makes an operator from a function of two values that reports whether it has a result.
func calcPairs[A, B, R fixedValue](f func(A, B) (R, bool)) calcFunc {
	return func(ev *programRun, out, a, b *columnVec, live bitmap) (bad bitmap) {
		va, vb, ma, mb := valuesOf[A](a), valuesOf[B](b), a.indexMask(), b.indexMask()
		r := takeValues[R](ev.scratchMemory, ev.rows)
		if live != nil {
			clear(r)
		}
		for i := range eachRow(live, ev.rows) {
			v, ok := f(va[i&ma], vb[i&mb])
			r[i] = v
			if !ok {
				bad = ev.markRow(bad, i)
			}
		}
		setValues(out, r)
		return bad
	}
}

// calcSingle is calcPairs for a function of one value.
func calcSingle[A, R fixedValue](f func(A) (R, bool)) calcFunc {
	return calcPairs(func(a, _ A) (R, bool) { return f(a) })
}

type signedInt interface{ int32 | int64 }

func addSigned[T signedInt](a, b T) (T, bool) {
	s := a + b
	return s, (s^a)&(s^b) >= 0
}

func subSigned[T signedInt](a, b T) (T, bool) {
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

func divSigned[T signedInt](a, b T) (T, bool) {
	if b == 0 || b == -1 && a == -a && a != 0 {
		return 0, false
	}
	return a / b, true
}

func modInteger[T orderedInt](a, b T) (T, bool) {
	if b == 0 {
		return 0, false
	}
	return a % b, true
}

func negSigned[T signedInt](a T) (T, bool) { return -a, a != -a || a == 0 }

func absSigned[T signedInt](a T) (T, bool) {
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

// finiteResult reports whether r is a valid result for a and b: it may be infinite only if one of them is.
func finiteResult(r, a, b float64) bool {
	return !math.IsInf(r, 0) || math.IsInf(a, 0) || math.IsInf(b, 0)
}

func addFloat(a, b float64) (float64, bool) { r := a + b; return r, finiteResult(r, a, b) }

func subFloat(a, b float64) (float64, bool) { r := a - b; return r, finiteResult(r, a, b) }

func mulFloat(a, b float64) (float64, bool) {
	r := a * b
	return r, finiteResult(r, a, b) && (r != 0 || a == 0 || b == 0)
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

func alwaysOK[A, R fixedValue](f func(A) R) func(A) (R, bool) {
	return func(a A) (R, bool) { return f(a), true }
}

func keepValue[T fixedValue](a T) (T, bool) { return a, true }

// operatorForm is an operator on values of the kinds a and b, with a result of the kind t. For an operator of one value b is
// Null.
type operatorForm struct {
	op      expr.Op
	a, b, t schema.Kind
}

type (
	binaries[T fixedValue] map[expr.Op]func(a, b T) (T, bool)
	unaries[T fixedValue]  map[expr.Op]func(a T) (T, bool)
)

// forms are the operators on numbers and times, and their casts, except those on decimals.
var forms = func() map[operatorForm]calcFunc {
	f := timeForms()
	maps.Copy(f, castForms())
	addForms(f, schema.Int32, signedBinaries(mul32), signedUnaries[int32]())
	addForms(f, schema.Int64, signedBinaries(mul64), signedUnaries[int64]())
	addForms(f, schema.Uint64, binaries[uint64]{
		expr.Add: addUnsigned, expr.Sub: subUnsigned, expr.Mul: mulUnsigned, expr.Div: divUnsigned, expr.Mod: modInteger[uint64],
	}, unaries[uint64]{
		expr.Neg: func(a uint64) (uint64, bool) { return 0, a == 0 },
		expr.Abs: keepValue[uint64], expr.Floor: keepValue[uint64], expr.Ceil: keepValue[uint64], expr.Round: keepValue[uint64],
	})
	addForms(f, schema.Float64, binaries[float64]{
		expr.Add: addFloat, expr.Sub: subFloat, expr.Mul: mulFloat, expr.Div: divFloat, expr.Mod: modFloat,
	}, unaries[float64]{
		expr.Neg: func(a float64) (float64, bool) { return -a, true },
		expr.Abs: alwaysOK(math.Abs), expr.Floor: alwaysOK(math.Floor), expr.Ceil: alwaysOK(math.Ceil), expr.Round: alwaysOK(math.RoundToEven),
	})
	return f
}()

func signedBinaries[T signedInt](mul func(a, b T) (T, bool)) binaries[T] {
	return binaries[T]{expr.Add: addSigned[T], expr.Sub: subSigned[T], expr.Mul: mul, expr.Div: divSigned[T], expr.Mod: modInteger[T]}
}

func signedUnaries[T signedInt]() unaries[T] {
	return unaries[T]{expr.Neg: negSigned[T], expr.Abs: absSigned[T], expr.Floor: keepValue[T], expr.Ceil: keepValue[T], expr.Round: keepValue[T]}
}

// addForms adds the operators on numbers of one kind.
func addForms[T fixedValue](to map[operatorForm]calcFunc, k schema.Kind, two binaries[T], one unaries[T]) {
	for op, f := range two {
		to[operatorForm{op, k, k, k}] = calcPairs(f)
	}
	for op, f := range one {
		to[operatorForm{op, k, schema.Null, k}] = calcSingle(f)
	}
}

// compileCalculation compiles operators on numbers and times.
func (o *callCompiler) compileCalculation() (exprNode, error) {
	n := &arithNode{t: &o.e.T, a: o.argNode(0)}
	a, b := o.typeOf(0), o.typeOf(1)
	if len(o.args) == 2 {
		n.b = o.argNode(1)
	}
	if n.calc = forms[operatorForm{o.e.Op, a.Kind, b.Kind, n.t.Kind}]; n.calc != nil {
		return n, nil
	}
	if n.b == nil {
		b = a
	}
	if a.Kind != schema.Decimal || b.Kind != schema.Decimal || n.t.Kind != schema.Decimal {
		return nil, nil
	}
	n.calc = decimalCalc(o.e.Op, a, b, n.t)
	return n, nil
}
