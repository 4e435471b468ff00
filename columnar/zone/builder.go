package zone

import (
	"bytes"
	"math"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"scribe/columnar/schema"
)

// Builder makes a map of the columns of a payload. It is for one goroutine.
type Builder struct {
	defs    *Definitions
	rows    uint64
	columns []*columnBuilding
}

// columnBuilding is a column on its way.
type columnBuilding struct {
	columnZone
	seen   uint64 // rows of the arrays added
	hashes map[uint64]struct{}
	many   bool // more distinct values than a filter takes
	bad    bool // something that is no column of this type
}

// NewBuilder returns a builder for a payload that is read under the schema that defs is of.
func NewBuilder(defs *Definitions) *Builder { return &Builder{defs: defs} }

// AddRows counts rows of the payload. A column is in the map only if its arrays have as many values as there are rows.
func (b *Builder) AddRows(n int) { b.rows += uint64(max(n, 0)) }

// AddArray adds the values of a column of all rows, or of the next of them: calls for one column add up. What has no zones (lists,
// structs, columns that the schema does not have) is left out. The array is not kept.
func (b *Builder) AddArray(name string, a arrow.Array) {
	c := b.columnBuilder(name)
	if c == nil || c.bad {
		return
	}
	c.seen += uint64(a.Len())    //nolint:gosec // a length
	c.nulls += uint64(a.NullN()) //nolint:gosec // a length
	c.bad = !c.addArray(a)
}

// columnBuilder returns the column of a name, nil if it can't have zones.
func (b *Builder) columnBuilder(name string) *columnBuilding {
	for _, c := range b.columns {
		if c.name == name {
			return c
		}
	}
	d, ok := b.defs.columns[name]
	if !ok || len(name) > maxName || len(b.columns) >= MaxColumns {
		return nil
	}
	c := &columnBuilding{columnZone: columnZone{name: name, kind: d.typ.Kind, scale: d.typ.Scale, def: d.fingerprint}}
	if !c.classifyKind() {
		return nil
	}
	b.columns = append(b.columns, c)
	return c
}

// Map returns the map of what was added, nil if there is none.
func (b *Builder) Map() *Map {
	m := &Map{Version: b.defs.version, Rows: b.rows}
	for _, c := range b.columns {
		if c.bad || c.seen != b.rows {
			continue
		}
		out := c.columnZone
		out.rows = b.rows
		if !c.many && len(c.hashes) > 0 {
			out.filter = newFilter(c.hashes, maxFilter)
		}
		out.cutBounds()
		m.columns = append(m.columns, out)
	}
	if len(m.columns) == 0 {
		return nil
	}
	m.fitMaxLen()
	return m
}

// cutBounds shortens the bounds of strings: the lower one down, the upper one up.
func (c *columnZone) cutBounds() {
	if !c.textual {
		return
	}
	if c.hasLow && len(c.low.s) > maxBound {
		c.low.s, c.lowCut = c.low.s[:maxBound], true
	}
	if c.hasHigh && len(c.high.s) > maxBound {
		c.high.s, c.hasHigh = successor(c.high.s[:maxBound])
		c.highCut = true
	}
	c.low.s, c.high.s = bytes.Clone(c.low.s), bytes.Clone(c.high.s)
}

// successor returns the least text above all that begin with prefix; none is above a prefix of 0xff alone.
func successor(prefix []byte) (_ []byte, ok bool) {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != math.MaxUint8 {
			out := bytes.Clone(prefix[:i+1])
			out[i]++
			return out, true
		}
	}
	return nil, false
}

// widenBounds widens the bounds by a value.
func (c *columnBuilding) widenBounds(v *boundValue) {
	if !c.hasLow || compareBounds(c.kind, v, &c.low) < 0 {
		c.low, c.hasLow = *v, true
	}
	if !c.hasHigh || compareBounds(c.kind, v, &c.high) > 0 {
		c.high, c.hasHigh = *v, true
	}
}

// noteHash puts a hash into the filter to be.
func (c *columnBuilding) noteHash(h uint64) {
	if c.many {
		return
	}
	if c.hashes == nil {
		c.hashes = make(map[uint64]struct{}, 64)
	}
	if c.hashes[h] = struct{}{}; len(c.hashes) > maxDistinct {
		c.many, c.hashes = true, nil
	}
}

// addArray takes the values of an array. It reports false for one that is not of the column's type.
func (c *columnBuilding) addArray(a arrow.Array) bool {
	switch a := a.(type) {
	case *array.Boolean:
		return c.addValues(a, schema.Bool, func(i int, v *boundValue) {
			v.i = 0
			if a.Value(i) {
				v.i = 1
			}
		})
	case *array.Int32:
		return c.addValues(a, schema.Int32, func(i int, v *boundValue) { v.i = int64(a.Value(i)) })
	case *array.Int64:
		return c.addValues(a, schema.Int64, func(i int, v *boundValue) { v.i = a.Value(i) })
	case *array.Uint64:
		return c.addValues(a, schema.Uint64, func(i int, v *boundValue) { v.u = a.Value(i) })
	case *array.Float64:
		return c.addValues(a, schema.Float64, func(i int, v *boundValue) { v.f = a.Value(i) })
	case *array.Decimal128:
		if t, ok := a.DataType().(interface{ GetScale() int32 }); !ok || t.GetScale() != c.scale {
			return false
		}
		return c.addValues(a, schema.Decimal, func(i int, v *boundValue) { v.d = a.Value(i) })
	case *array.Date32:
		return c.addValues(a, schema.Date, func(i int, v *boundValue) { v.i = int64(a.Value(i)) })
	case *array.Timestamp:
		if t, ok := a.DataType().(*arrow.TimestampType); !ok || t.Unit != arrow.Microsecond {
			return false
		}
		return c.addValues(a, schema.Timestamp, func(i int, v *boundValue) { v.i = int64(a.Value(i)) })
	case *array.String:
		return c.addTexts(a, schema.String, func(i int) []byte { return bytesOf(a.Value(i)) })
	case *array.Binary:
		return c.addTexts(a, schema.Binary, a.Value)
	case *array.Dictionary:
		return c.addDictionary(a)
	default:
		return false
	}
}

// addValues takes the values of an array that is of a kind.
func (c *columnBuilding) addValues(a arrow.Array, kind schema.Kind, get func(i int, v *boundValue)) bool {
	if c.kind != kind {
		return false
	}
	var v boundValue
	for i := range a.Len() {
		if a.IsNull(i) {
			continue
		}
		get(i, &v)
		c.widenBounds(&v)
		if c.integral {
			c.noteHash(c.hashValue(&v))
		}
	}
	return true
}

// addTexts takes strings, or binaries; get's bytes are not kept unless they are a bound.
func (c *columnBuilding) addTexts(a arrow.Array, kind schema.Kind, get func(i int) []byte) bool {
	if c.kind != kind {
		return false
	}
	for i := range a.Len() {
		if !a.IsNull(i) {
			c.addText(get(i))
		}
	}
	return true
}

func (c *columnBuilding) addText(b []byte) {
	if !c.hasLow || bytes.Compare(b, c.low.s) < 0 {
		c.low.s, c.hasLow = append(c.low.s[:0:0], b...), true
	}
	if !c.hasHigh || bytes.Compare(b, c.high.s) > 0 {
		c.high.s, c.hasHigh = append(c.high.s[:0:0], b...), true
	}
	if !c.many {
		c.noteHash(hashText(b))
	}
}

// bytesOf returns the bytes of a string that nobody changes.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// addDictionary takes each value of a dictionary that is used.
func (c *columnBuilding) addDictionary(a *array.Dictionary) bool {
	values, ok := a.Dictionary().(*array.String)
	if !ok || c.kind != schema.String {
		return false
	}
	used := make([]bool, values.Len())
	for i := range a.Len() {
		if a.IsNull(i) {
			continue
		}
		switch at := a.GetValueIndex(i); {
		case at < 0 || at >= len(used):
			return false
		case values.IsNull(at):
			c.nulls++
		default:
			used[at] = true
		}
	}
	for at, ok := range used {
		if ok {
			c.addText(bytesOf(values.Value(at)))
		}
	}
	return true
}
