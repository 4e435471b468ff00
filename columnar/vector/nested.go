package vector

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// fieldNode reads a field of a struct.
type fieldNode struct {
	a     exprNode
	index int
	t     *schema.Type
}

func (n *fieldNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	a := ev.evalArgs(sel, n.a)[0]
	if a.arr == nil {
		return ev.allNull(n.t)
	}
	field := a.arr.(*array.Struct).Field(n.index)
	if a.valid != nil && isNested(n.t) {
		field = takeArray(field, identityRows(ev.rows), a.valid)
	}
	v := loadArray(ev.scratchMemory, n.t, field)
	v.valid = ev.liveRows(a.valid, v)
	return v
}

func isNested(t *schema.Type) bool {
	return t.Kind == schema.List || t.Kind == schema.Struct || t.Kind == schema.Map
}

func identityRows(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}

// allNull returns a vector in which all rows are null.
func (ev *programRun) allNull(t *schema.Type) *columnVec {
	return spreadConstant(ev.scratchMemory, constantNull(t.Kind, t.Scale), ev.rows)
}

// listElements holds the values of lists or maps, with the range of each row's elements.
type listElements struct {
	offsets []int32
	values  arrow.Array
}

func elementsOf(a arrow.Array) listElements {
	return listElements{offsetsOf(a.Data()), array.MakeFromData(a.Data().Children()[0])}
}

// pickNode reads one element of a list, or one value of a map.
type pickNode struct {
	a, b exprNode
	t    *schema.Type
	// pick returns the positions in the elements, and the rows that have one.
	pick func(ev *programRun, e listElements, b *columnVec, live bitmap) (places []int32, found bitmap)
	// of returns the array that the positions refer to.
	of func(listElements) arrow.Array
}

func (n *pickNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	args := ev.evalArgs(sel, n.a, n.b)
	a := args[0]
	if a.arr == nil {
		return ev.allNull(n.t)
	}
	e := elementsOf(a.arr)
	places, found := n.pick(ev, e, args[1], ev.liveRows(sel, args...))
	return gatherRows(ev.scratchMemory, loadArray(ev.scratchMemory, n.t, n.of(e)), places, found)
}

func pickElement(ev *programRun, e listElements, b *columnVec, live bitmap) ([]int32, bitmap) {
	places, found := takeValues[int32](ev.scratchMemory, ev.rows), ev.zeros(ev.rows)
	for i := range eachRow(live, ev.rows) {
		var nth int64
		if b.kind == schema.Int32 {
			nth = int64(valueAt[int32](b, i))
		} else {
			nth = valueAt[int64](b, i)
		}
		if first := int64(e.offsets[i]); nth >= 1 && nth <= int64(e.offsets[i+1])-first {
			places[i] = int32(first + nth - 1)
			found.set(i)
		}
	}
	return places, found
}

func pickValue(ev *programRun, e listElements, b *columnVec, live bitmap) ([]int32, bitmap) {
	places, found := takeValues[int32](ev.scratchMemory, ev.rows), ev.zeros(ev.rows)
	keys := loadArray(ev.scratchMemory, &schema.Type{Kind: schema.String}, e.values.(*array.Struct).Field(0))
	at := b.indexMask()
	for i := range eachRow(live, ev.rows) {
		key := b.str(i & at)
		for p := e.offsets[i+1] - 1; p >= e.offsets[i]; p-- {
			if string(keys.str(int(p))) == string(key) {
				places[i] = p
				found.set(i)
				break
			}
		}
	}
	return places, found
}

// listLengthNode counts a list's elements.
type listLengthNode struct{ a exprNode }

func (n listLengthNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	a := ev.evalArgs(sel, n.a)[0]
	if a.arr == nil {
		return ev.allNull(&schema.Type{Kind: schema.Int32})
	}
	out := &columnVec{kind: schema.Int32, rows: ev.rows, valid: a.valid}
	lengths, offsets := takeValues[int32](ev.scratchMemory, ev.rows), offsetsOf(a.arr.Data())
	for i := range lengths {
		lengths[i] = offsets[i+1] - offsets[i]
	}
	setValues(out, lengths)
	return out
}

// containsNode is a = ANY(b): true if an element is equal, otherwise null if an element or a is null; false for an empty list.
type containsNode struct {
	a, b exprNode
	t    *schema.Type // element type
}

func (n *containsNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	args := ev.evalArgs(sel, n.a, n.b)
	a, b := args[0], args[1]
	if b.arr == nil {
		return ev.allNull(&schema.Type{Kind: schema.Bool})
	}
	e := elementsOf(b.arr)
	values := loadArray(ev.scratchMemory, n.t, e.values)
	// One comparison per element.
	if values.rows == 0 {
		a = values
	} else if !a.one {
		rows := takeValues[int32](ev.scratchMemory, values.rows)
		clear(rows)
		for i := range ev.rows {
			for p := e.offsets[i]; p < e.offsets[i+1]; p++ {
				rows[p] = int32(i)
			}
		}
		a = gatherRows(ev.scratchMemory, a, rows, nil)
	}
	sub := &programRun{scratchMemory: ev.scratchMemory, rows: values.rows}
	same, valid := sub.zeros(values.rows), sub.validRows(a, values)
	if !a.isNullConstant() {
		same = sub.compareRows(expr.Equal, values, a, nil)
	}
	out := &columnVec{kind: schema.Bool, rows: ev.rows, bits: ev.zeros(ev.rows), valid: ev.zeros(ev.rows)}
	for i := range eachRow(ev.liveRows(sel, b), ev.rows) {
		known := true
		for p := int(e.offsets[i]); p < int(e.offsets[i+1]); p++ {
			if valid != nil && !valid.get(p) {
				known = false
			} else if same.get(p) {
				out.bits.set(i)
				known = true
				break
			}
		}
		if known {
			out.valid.set(i)
		}
	}
	return out
}

func (o *callCompiler) compileField() (exprNode, error) {
	a, t := o.typeOf(0), &o.e.T
	i, ok := o.e.Detail.(int)
	if !ok || i < 0 || i >= len(a.Fields) || !a.Fields[i].Type.Equal(t) {
		return nil, nil
	}
	return &fieldNode{o.argNode(0), i, t}, nil
}

func (o *callCompiler) compileElement() (exprNode, error) {
	if !o.typeOf(0).Elem.Equal(&o.e.T) {
		return nil, nil
	}
	return &pickNode{o.argNode(0), o.argNode(1), &o.e.T, pickElement, func(e listElements) arrow.Array { return e.values }}, nil
}

func (o *callCompiler) compileMapValue() (exprNode, error) {
	if !o.typeOf(0).Elem.Equal(&o.e.T) {
		return nil, nil
	}
	return &pickNode{o.argNode(0), o.argNode(1), &o.e.T, pickValue, func(e listElements) arrow.Array { return e.values.(*array.Struct).Field(1) }}, nil
}

func (o *callCompiler) compileContains() (exprNode, error) {
	if !o.typeOf(1).Elem.Equal(o.typeOf(0)) {
		return nil, nil
	}
	return &containsNode{o.argNode(0), o.argNode(1), o.typeOf(0)}, nil
}
