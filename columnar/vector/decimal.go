package vector

import (
	"math/big"

	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/value"
)

// bigPow10 holds the powers of ten up to the largest one needed for the scales and precisions of two decimals.
var bigPow10 = func() (p [4*value.MaxPrecision + 1]*big.Int) {
	v := big.NewInt(1)
	for i := range p {
		p[i] = new(big.Int).Set(v)
		v.Mul(v, big.NewInt(10))
	}
	return p
}()

// smallDecimal returns a decimal as 64 bits if it fits with enough margin that the sum of two does not overflow.
func smallDecimal(v decimal128.Num) (int64, bool) {
	lo := int64(v.LowBits())
	return lo, v.HighBits() == lo>>63 && lo>>62 == lo>>63
}

// decimalArithmetic computes with decimals of possibly different scales. It holds the big integers of the slow path.
type decimalArithmetic struct {
	op             expr.Op
	sa, sb         int32 // scales of the arguments
	precision, out int32 // of the result
	a, b, q, r, h  big.Int
}

func decimalCalc(op expr.Op, ta, tb, t *schema.Type) calcFunc {
	return func(ev *programRun, out, a, b *columnVec, live bitmap) bitmap {
		d := decimalArithmetic{op: op, sa: ta.Scale, sb: tb.Scale, precision: t.Precision, out: t.Scale}
		return calcPairs(d.calc)(ev, out, a, b, live)
	}
}

// calc computes the result, exactly if its scale allows, otherwise rounded half away from zero.
func (d *decimalArithmetic) calc(a, b decimal128.Num) (decimal128.Num, bool) {
	if v, ok := d.calcFast(a, b); ok {
		return v, value.FitsPrecision(v, d.precision)
	}
	x, y := setDecimal(&d.a, &d.h, a), setDecimal(&d.b, &d.h, b)
	scale := max(d.sa, d.sb) // of q
	switch d.op {
	case expr.Add:
		d.alignScales(x, y)
		d.q.Add(x, y)
	case expr.Sub:
		d.alignScales(x, y)
		d.q.Sub(x, y)
	case expr.Mul:
		d.q.Mul(x, y)
		scale = d.sa + d.sb
	case expr.Div:
		if y.Sign() == 0 {
			return decimal128.Num{}, false
		}
		// q = x/10^sa / (y/10^sb) * 10^out, rounded.
		if shift := d.out + d.sb - d.sa; shift >= 0 {
			x.Mul(x, bigPow10[shift])
		} else {
			y.Mul(y, bigPow10[-shift])
		}
		d.divideRounded(x, y)
		scale = d.out
	case expr.Mod:
		if y.Sign() == 0 {
			return decimal128.Num{}, false
		}
		d.alignScales(x, y)
		d.q.Rem(x, y)
	default:
		return d.calcSingle(x)
	}
	return d.rescaleResult(scale)
}

// calcSingle computes operators of one value, which is x.
func (d *decimalArithmetic) calcSingle(x *big.Int) (decimal128.Num, bool) {
	d.q.Set(x)
	switch d.op {
	case expr.Neg:
		d.q.Neg(x)
	case expr.Abs:
		d.q.Abs(x)
	case expr.Floor, expr.Ceil:
		unit := bigPow10[d.sa]
		if d.op == expr.Ceil {
			x.Neg(x)
		}
		d.h.Mod(x, unit) // not negative, so h is the distance down to the next whole number
		d.q.Sub(x, &d.h)
		if d.op == expr.Ceil {
			d.q.Neg(&d.q)
		}
	default: // rescaleResult rounds for Round
	}
	return d.rescaleResult(d.sa)
}

// calcFast computes results for which 64 bits suffice.
func (d *decimalArithmetic) calcFast(a, b decimal128.Num) (decimal128.Num, bool) {
	x, ok := smallDecimal(a)
	if !ok {
		return decimal128.Num{}, false
	}
	y, ok := smallDecimal(b)
	if !ok {
		return decimal128.Num{}, false
	}
	same := d.sa == d.out && d.sb == d.out
	switch {
	case d.op == expr.Add && same:
		return decimal128.FromI64(x + y), true
	case d.op == expr.Sub && same:
		return decimal128.FromI64(x - y), true
	case d.op == expr.Mul && d.sa+d.sb == d.out:
		return a.Mul(b), true
	case d.op == expr.Mod && same && y != 0:
		return decimal128.FromI64(x % y), true
	case d.op == expr.Neg && same:
		return decimal128.FromI64(-x), true
	case d.op == expr.Abs && same:
		return decimal128.FromI64(max(x, -x)), true
	}
	return decimal128.Num{}, false
}

// alignScales converts both to the larger scale.
func (d *decimalArithmetic) alignScales(x, y *big.Int) {
	if d.sa < d.sb {
		x.Mul(x, bigPow10[d.sb-d.sa])
	} else if d.sb < d.sa {
		y.Mul(y, bigPow10[d.sa-d.sb])
	}
}

// divideRounded sets q to x/y, rounded half away from zero.
func (d *decimalArithmetic) divideRounded(x, y *big.Int) {
	d.q.QuoRem(x, y, &d.r)
	negative := x.Sign()*y.Sign() < 0
	d.r.Abs(&d.r)
	d.r.Lsh(&d.r, 1)
	if d.r.CmpAbs(y) >= 0 {
		if negative {
			d.q.Sub(&d.q, bigPow10[0])
		} else {
			d.q.Add(&d.q, bigPow10[0])
		}
	}
}

// rescaleResult converts q from a scale to the result's scale.
func (d *decimalArithmetic) rescaleResult(from int32) (decimal128.Num, bool) {
	if from < d.out {
		d.q.Mul(&d.q, bigPow10[d.out-from])
	} else if from > d.out {
		d.h.Set(&d.q)
		d.divideRounded(&d.h, bigPow10[from-d.out])
	}
	if d.q.BitLen() > 127 {
		return decimal128.Num{}, false
	}
	v := decimal128.FromBigInt(&d.q)
	return v, value.FitsPrecision(v, d.precision)
}

// setDecimal sets z, using tmp. It does not allocate once both have capacity.
func setDecimal(z, tmp *big.Int, v decimal128.Num) *big.Int {
	negative := v.Sign() < 0
	if negative {
		v = v.Negate()
	}
	z.SetUint64(uint64(v.HighBits()))
	z.Lsh(z, 64)
	z.Or(z, tmp.SetUint64(v.LowBits()))
	if negative {
		z.Neg(z)
	}
	return z
}
