package vector

import (
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// caseNode is CASE: values[i] where conditions[i] is the first that is true, else the last of values.
type caseNode struct {
	t                  *schema.Type
	conditions, values []node
}

func (n *caseNode) eval(ev *eval, sel bitmap) *vec {
	rest := ev.selected(sel)
	m := ev.merge(n.t)
	for i, c := range n.conditions {
		if ev.err != nil || !rest.any() {
			return m.done()
		}
		is := truth(ev, c, rest)
		if !is.any() {
			continue
		}
		m.put(n.values[i].eval(ev, is), is)
		rest.andNot(is)
	}
	if rest.any() {
		m.put(n.values[len(n.values)-1].eval(ev, rest), rest)
	}
	return m.done()
}

// coalesceNode is the first value that is not null.
type coalesceNode struct {
	t      *schema.Type
	values []node
}

func (n *coalesceNode) eval(ev *eval, sel bitmap) *vec {
	rest := ev.selected(sel)
	m := ev.merge(n.t)
	for _, a := range n.values {
		if ev.err != nil || !rest.any() {
			break
		}
		v := a.eval(ev, rest)
		here := ev.presence(v)
		here.and(rest)
		m.put(v, here)
		rest.andNot(here)
	}
	return m.done()
}

// extremeNode is the greatest or the least of values.
type extremeNode struct {
	t      *schema.Type
	values []node
	order  expr.Orders // what the one so far is to the one that takes its place
}

func (n *extremeNode) eval(ev *eval, sel bitmap) *vec {
	m := ev.merge(n.t)
	for i, a := range n.values {
		v := a.eval(ev, sel)
		if ev.err != nil {
			break
		}
		here := ev.presence(v)
		if i > 0 && !v.nothing() {
			better := ev.compare(n.order, m.out, v, nil)
			better.and(m.out.valid)
			none := ev.copyOf(m.out.valid)
			none.not(ev.rows)
			better.or(none)
			here.and(better)
		}
		m.put(v, here)
	}
	return m.done()
}

// nullIfNode is a, or null where a equals b.
type nullIfNode struct {
	a, b node
}

func (n *nullIfNode) eval(ev *eval, sel bitmap) *vec {
	args := ev.args(sel, n.a, n.b)
	a := args[0]
	out := *spread(ev.scratch, a, ev.rows)
	if a.nothing() || args[1].nothing() {
		return &out
	}
	same := ev.compare(expr.Equal, a, args[1], sel)
	if valid := ev.valid(args...); valid != nil {
		same.and(valid)
	}
	if out.valid == nil {
		out.valid = ev.ones(ev.rows)
	} else {
		out.valid = ev.copyOf(out.valid)
	}
	out.valid.andNot(same)
	return &out
}

// merged is a vector that is put together of rows of others. Rows that nobody put are null.
type merged struct {
	ev  *eval
	t   *schema.Type
	out *vec
	// Of lists, structs and maps: the vectors, and each row's place in them, one behind the other.
	parts  []arrow.Array
	length int
	places []int32
}

func (ev *eval) merge(t *schema.Type) *merged {
	n := ev.rows
	m := &merged{ev: ev, t: t, out: &vec{kind: t.Kind, rows: n, scale: t.Scale, valid: ev.zeros(n)}}
	s, v := ev.scratch, m.out
	switch t.Kind {
	case schema.Bool:
		v.bits = ev.zeros(n)
	case schema.Int32, schema.Date:
		v.i32 = take[int32](s, n)
	case schema.Int64, schema.Timestamp:
		v.i64 = take[int64](s, n)
	case schema.Uint64:
		v.u64 = take[uint64](s, n)
	case schema.Float64:
		v.f64 = take[float64](s, n)
	case schema.Decimal:
		v.dec = zeroed(take[decimalNum](s, n))
	case schema.Interval:
		v.iv = zeroed(take[arrow.MonthDayNanoInterval](s, n))
	case schema.String, schema.Binary:
		v.begin, v.end = zeroed(take[int32](s, n)), zeroed(take[int32](s, n))
	default:
		m.places = take[int32](s, n)
		for i := range m.places {
			m.places[i] = -1
		}
	}
	return m
}

func zeroed[T any](v []T) []T {
	clear(v)
	return v
}

// put takes the rows of which from v.
func (m *merged) put(v *vec, which bitmap) {
	present := which
	if v.valid != nil {
		present = m.ev.presence(v)
		present.and(which)
	}
	m.out.valid.or(present)
	if v.nothing() {
		return
	}
	switch out := m.out; out.kind {
	case schema.Bool:
		for i, w := range present {
			out.bits[i] = out.bits[i]&^w | v.bits[i]&w
		}
	case schema.Int32, schema.Date:
		putFixed(out.i32, v.i32, v.at(), present)
	case schema.Int64, schema.Timestamp:
		putFixed(out.i64, v.i64, v.at(), present)
	case schema.Uint64:
		putFixed(out.u64, v.u64, v.at(), present)
	case schema.Float64:
		putFixed(out.f64, v.f64, v.at(), present)
	case schema.Decimal:
		putFixed(out.dec, v.dec, v.at(), present)
	case schema.Interval:
		putFixed(out.iv, v.iv, v.at(), present)
	case schema.String, schema.Binary:
		m.putText(v, present)
	case schema.Null:
	default:
		for i := range each(present, m.ev.rows) {
			m.places[i] = int32(m.length + i)
		}
		m.parts = append(m.parts, v.arr)
		m.length += v.arr.Len()
	}
}

func putFixed[T fixed](out, values []T, at int, which bitmap) {
	for i := range each(which, len(out)) {
		out[i] = values[i&at]
	}
}

// putText leaves the bytes of the first vector where they are, and copies those of the others behind them.
func (m *merged) putText(v *vec, which bitmap) {
	out := m.out
	if len(out.data) == 0 {
		out.data = slices.Clip(v.data)
		putFixed(out.begin, v.begin, v.at(), which)
		putFixed(out.end, v.end, v.at(), which)
		return
	}
	if !which.any() {
		return
	}
	total := 0
	for i := range each(which, m.ev.rows) {
		total += int(v.end[i&v.at()] - v.begin[i&v.at()])
		if v.one {
			break
		}
	}
	if total > math.MaxInt32-len(out.data) || !m.ev.grow(len(out.data)+total) {
		m.ev.fail()
		return
	}
	if v.one {
		begin := int32(len(out.data))
		out.data = append(out.data, v.str(0)...)
		for i := range each(which, m.ev.rows) {
			out.begin[i], out.end[i] = begin, int32(len(out.data))
		}
		return
	}
	for i := range each(which, m.ev.rows) {
		out.begin[i] = int32(len(out.data))
		out.data = append(out.data, v.str(i)...)
		out.end[i] = int32(len(out.data))
	}
}

func (m *merged) done() *vec {
	if m.places == nil {
		return m.out
	}
	if len(m.parts) == 0 {
		m.out.arr = array.MakeArrayOfNull(memory.DefaultAllocator, m.t.Arrow(), m.ev.rows)
		return m.out
	}
	all, err := concatenate(m.parts)
	if err != nil {
		if m.ev.err == nil {
			m.ev.err = err
		}
		all = m.parts[0]
		m.places = make([]int32, 0)
	}
	m.out.arr = takeArray(all, m.places, nil)
	return m.out
}
