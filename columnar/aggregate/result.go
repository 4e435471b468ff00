package aggregate

import (
	"fmt"
	"math"
	"math/big"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/plan"
	"scribe/columnar/schema"
	scalar "scribe/columnar/value"
	"scribe/columnar/vector"
)

// Families of aggregates. Those of one family share their state.
const (
	familyCount    = "count"
	familySum      = "sum"
	familyMin      = "min"
	familyMax      = "max"
	familyDistinct = "approx_count_distinct"
	familyQuantile = "approx_quantile"
)

// newState returns the state for p, whose argument is of kind (Invalid for count(*)). Package plan has already rejected what it
// rejects, with a position in the text.
func newState(p *plan.Aggregate, kind schema.Kind) (family string, s aggregateState, err error) {
	refuse := func() (string, aggregateState, error) {
		arg := "*"
		if p.Arg != nil {
			arg = p.Arg.Type().String()
		}
		return "", nil, fmt.Errorf("no such aggregate of %s with a result of type %s", arg, &p.T)
	}
	if p.Arg == nil && p.Func != "count" {
		return refuse()
	}
	class, _ := classOf(kind)
	switch p.Func {
	case "count":
		if p.T.Kind != schema.Int64 {
			return refuse()
		}
		return familyCount, &countState{}, nil
	case "sum", "avg":
		if s := newSum(p, kind); s != nil {
			return familySum, s, nil
		}
	case "min", "max":
		if p.T.Kind != kind || kind == schema.Decimal && p.T.Scale != p.Arg.Type().Scale {
			return refuse()
		}
		return p.Func, &extremeState{kind: kind, class: class, most: p.Func == "max"}, nil
	case "approx_count_distinct":
		if p.T.Kind == schema.Int64 {
			return familyDistinct, &distinctState{}, nil
		}
	case "approx_quantile":
		number := numberOf(p.Arg.Type())
		if p.T.Kind != schema.Float64 || number == nil {
			return refuse()
		}
		if len(p.Params) != 1 || !(p.Params[0] >= 0 && p.Params[0] <= 1) {
			return "", nil, fmt.Errorf("wants one share from 0 to 1, has %v", p.Params)
		}
		return familyQuantile, &sketchState{number: number}, nil
	}
	return refuse()
}

// newSum returns the state of a sum or average of values of a kind, or nil if there is none with p's type.
func newSum(p *plan.Aggregate, kind schema.Kind) aggregateState {
	switch kind {
	case schema.Int32, schema.Int64, schema.Uint64, schema.Decimal:
		switch p.T.Kind {
		case schema.Decimal, schema.Float64:
			return &sumState{unsigned: kind == schema.Uint64}
		case schema.Int64:
			if p.Func == "sum" && kind != schema.Decimal {
				return &sumState{unsigned: kind == schema.Uint64}
			}
		default:
		}
	case schema.Float64:
		if p.T.Kind == schema.Float64 {
			return &floatState{}
		}
	case schema.Interval:
		if p.T.Kind == schema.Interval {
			return &intervalState{}
		}
	default:
	}
	return nil
}

// numberOf returns a function that converts numbers of a type to float64, or nil for other types.
func numberOf(t *schema.Type) func(v *columnValues, i int) float64 {
	switch t.Kind {
	case schema.Int32, schema.Int64:
		return func(v *columnValues, i int) float64 { return float64(int64(v.lo[i])) }
	case schema.Uint64:
		return func(v *columnValues, i int) float64 { return float64(v.lo[i]) }
	case schema.Float64:
		return func(v *columnValues, i int) float64 { return math.Float64frombits(v.lo[i]) }
	case schema.Decimal:
		scale := t.Scale
		return func(v *columnValues, i int) float64 { return decimal128.New(int64(v.hi[i]), v.lo[i]).ToFloat64(scale) }
	default:
		return nil
	}
}

// Result returns the current groups that HAVING keeps, in the order of ORDER BY if there is one; see the package comment. It may
// be called again after more rows. The caller releases the batch.
func (a *Aggregator) Result() (arrow.RecordBatch, error) {
	if a.failed != nil {
		return nil, a.failed
	}
	a.result = vector.Stats{}
	batch, err := a.buildBatch(nil)
	if err != nil || a.group.Having == nil && len(a.order) == 0 {
		return batch, err
	}
	defer batch.Release()
	a.result = vector.Stats{} // count overflows only of the remaining groups
	places, err := a.keptGroups(batch)
	if err != nil {
		return nil, err
	}
	return a.buildBatch(places)
}

// buildBatch makes a batch of the groups at places, or of all groups if places is nil.
func (a *Aggregator) buildBatch(places []int) (arrow.RecordBatch, error) {
	if places == nil {
		places = make([]int, a.table.len())
		for i := range places {
			places[i] = i
		}
	}
	return vector.MakeBatch(a.schema, int64(len(places)), func(i int) (arrow.Array, error) {
		if i < len(a.keys) {
			return keyColumn(&a.table.keys[i], places, a.schema.Field(i).Type)
		}
		return a.outputColumn(&a.outputs[i-len(a.keys)], places)
	})
}

func keyColumn(s *keyStore, places []int, t arrow.DataType) (arrow.Array, error) {
	if s.class == text && len(s.data) > math.MaxInt32 {
		return nil, tooLong()
	}
	b := array.NewBuilder(memory.DefaultAllocator, t)
	defer b.Release()
	b.Reserve(len(places))
	for _, i := range places {
		appendScalar(b, s.valid[i], s.scalarAt(i))
	}
	return b.NewArray(), nil
}

func tooLong() error {
	return fmt.Errorf("%w: the strings of a column of the result take more than 2 GiB: narrow the query", ErrLimit)
}

// groupScalar is a value of a group in the form of columnValues.
type groupScalar struct {
	lo, hi uint64
	span   arrow.MonthDayNanoInterval
	text   []byte
}

func (s *keyStore) scalarAt(n int) (v groupScalar) {
	switch s.class {
	case word:
		v.lo = s.lo[n]
	case wide:
		v.lo, v.hi = s.lo[n], s.hi[n]
		if len(s.spans) > 0 {
			v.span = s.spans[n]
		}
	case text:
		v.text = s.textAt(n)
	}
	return v
}

// appendScalar appends a value, or null if it is not valid, to a column of its type.
func appendScalar(b array.Builder, valid bool, v groupScalar) {
	if !valid {
		b.AppendNull()
		return
	}
	switch b := b.(type) {
	case *array.StringBuilder:
		b.BinaryBuilder.Append(v.text)
	case *array.BinaryBuilder:
		b.Append(v.text)
	case *array.BooleanBuilder:
		b.Append(v.lo != 0)
	case *array.Int32Builder:
		b.Append(int32(v.lo))
	case *array.Int64Builder:
		b.Append(int64(v.lo))
	case *array.Uint64Builder:
		b.Append(v.lo)
	case *array.Float64Builder:
		b.Append(math.Float64frombits(v.lo))
	case *array.Date32Builder:
		b.Append(arrow.Date32(v.lo))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(v.lo))
	case *array.MonthDayNanoIntervalBuilder:
		b.Append(v.span)
	case *array.Decimal128Builder:
		b.Append(decimal128.New(int64(v.hi), v.lo))
	}
}

// outputColumn returns the column of an aggregate, and counts values that do not fit.
func (a *Aggregator) outputColumn(o *outputPlan, places []int) (arrow.Array, error) {
	g, p := &a.aggregates[o.aggregate], o.plan
	b := array.NewBuilder(memory.DefaultAllocator, plainType(&p.T))
	defer b.Release()
	b.Reserve(len(places))
	switch s := g.state.(type) {
	case *countState:
		for _, i := range places {
			b.(*array.Int64Builder).Append(s.groups[i])
		}
	case *distinctState:
		for _, i := range places {
			b.(*array.Int64Builder).Append(s.groups[i].estimateCount())
		}
	case *sketchState:
		for _, i := range places {
			if k := &s.groups[i]; k.countNumbers() > 0 {
				b.(*array.Float64Builder).Append(k.quantileAt(p.Params[0]))
			} else {
				b.AppendNull()
			}
		}
	case *extremeState:
		if s.texts > math.MaxInt32 {
			return nil, tooLong()
		}
		for _, i := range places {
			appendScalar(b, s.seen[i], s.scalarAt(i))
		}
	case *sumState:
		a.appendSums(b, s, p, places)
	case *floatState:
		a.appendFloats(b.(*array.Float64Builder), s, p, places)
	case *intervalState:
		a.appendSpans(b.(*array.MonthDayNanoIntervalBuilder), s, p, places)
	}
	return b.NewArray(), nil
}

func (s *extremeState) scalarAt(g int) (v groupScalar) {
	switch s.class {
	case word:
		v.lo = s.wordValue(g)
	case wide:
		if v.lo, v.hi = s.lo[g], s.hi[g]; s.most {
			v.lo, v.hi = ^v.lo, ^v.hi
		}
		v.hi ^= signBit
		if s.span != nil {
			v.span = s.span[g]
		}
	case text:
		v.text = s.text[g]
	}
	return v
}

// appendOverflow appends null for a value that does not fit.
func (a *Aggregator) appendOverflow(b array.Builder) {
	a.result.Errors++
	b.AppendNull()
}

func (a *Aggregator) appendFloats(b *array.Float64Builder, s *floatState, p *plan.Aggregate, places []int) {
	for _, i := range places {
		switch g := &s.groups[i]; {
		case g.n == 0:
			b.AppendNull()
		case g.sum-g.sum != 0 && !g.infinite:
			a.appendOverflow(b)
		case p.Func == "avg":
			b.Append(g.sum / float64(g.n))
		default:
			b.Append(g.sum)
		}
	}
}

func (a *Aggregator) appendSums(b array.Builder, s *sumState, p *plan.Aggregate, places []int) {
	scale := int32(0)
	if t := p.Arg.Type(); t.Kind == schema.Decimal {
		scale = t.Scale
	}
	for _, i := range places {
		g, divisor := &s.groups[i], int64(1)
		if g.n == 0 {
			b.AppendNull()
			continue
		}
		if p.Func == "avg" {
			divisor = g.n
		}
		switch b := b.(type) {
		case *array.Int64Builder:
			if n, ok := g.asInt64(); ok {
				b.Append(n)
			} else {
				a.appendOverflow(b)
			}
		case *array.Float64Builder:
			f, _ := new(big.Rat).SetFrac(g.asBig(), new(big.Int).Mul(scalar.PowerOfTen(scale), big.NewInt(divisor))).Float64()
			b.Append(f)
		case *array.Decimal128Builder:
			if d, ok := g.asDecimal(p.T.Precision, p.T.Scale-scale, divisor); ok {
				b.Append(d)
			} else {
				a.appendOverflow(b)
			}
		}
	}
}

func (s *exactSum) asBig() *big.Int {
	n := new(big.Int).SetInt64(int64(s.hi))
	n.Lsh(n, 64).Or(n, new(big.Int).SetUint64(s.mid))
	return n.Lsh(n, 64).Or(n, new(big.Int).SetUint64(s.lo))
}

// asDecimal returns the sum divided by divisor, with shift additional digits after the point, rounded half away from zero as in
// PostgreSQL. It returns false if the result has more than precision digits.
func (s *exactSum) asDecimal(precision, shift int32, divisor int64) (decimal128.Num, bool) {
	if sign := uint64(int64(s.mid) >> 63); divisor == 1 && shift == 0 && s.hi == sign && s.mid != signBit {
		d := decimal128.New(int64(s.mid), s.lo)
		return d, d.FitsInPrecision(precision)
	}
	n, by := s.asBig(), big.NewInt(divisor)
	if shift >= 0 {
		n.Mul(n, scalar.PowerOfTen(shift))
	} else {
		by.Mul(by, scalar.PowerOfTen(-shift))
	}
	negative := n.Sign() < 0
	n.Abs(n).Lsh(n, 1).Add(n, by).Quo(n, by.Lsh(by, 1))
	if n.Cmp(scalar.PowerOfTen(precision)) >= 0 {
		return decimal128.Num{}, false
	}
	if negative {
		n.Neg(n)
	}
	return decimal128.FromBigInt(n), true
}

func (a *Aggregator) appendSpans(b *array.MonthDayNanoIntervalBuilder, s *intervalState, p *plan.Aggregate, places []int) {
	for _, i := range places {
		g := &s.groups[i]
		if g.n == 0 {
			b.AppendNull()
			continue
		}
		months, ok1 := g.months.asInt64()
		days, ok2 := g.days.asInt64()
		nanos, ok3 := g.nanos.asInt64()
		sum := arrow.MonthDayNanoInterval{Months: int32(months), Days: int32(days), Nanoseconds: nanos}
		ok := ok1 && ok2 && ok3
		switch {
		case !ok:
		case p.Func == "avg":
			by := float64(g.n)
			sum, ok = scalar.CascadeInterval(float64(months)/by, float64(days)/by, float64(nanos)/1000/by)
		default:
			ok = int64(sum.Months) == months && int64(sum.Days) == days
		}
		if ok {
			b.Append(sum)
		} else {
			a.appendOverflow(b)
		}
	}
}

// asInt64 returns the sum, and whether it fits.
func (s *exactSum) asInt64() (int64, bool) {
	sign := uint64(int64(s.lo) >> 63)
	return int64(s.lo), s.mid == sign && s.hi == sign
}
