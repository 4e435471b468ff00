package zone

import (
	"bytes"
	"math"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"scribe/columnar/schema"
)

// Builder makes a map of the columns of a payload. It is not safe for concurrent use.
type Builder struct {
	defs    *Definitions
	rows    uint64
	columns []*columnBuilding
}

// columnBuilding is the state of a column under construction.
type columnBuilding struct {
	columnZone
	seen   uint64 // rows in the arrays added so far
	hashes map[uint64]struct{}
	many   bool // too many distinct values for a filter
	bad    bool // an array did not have the column's type
}

// NewBuilder returns a builder for a payload that is read under the schema of defs.
func NewBuilder(defs *Definitions) *Builder { return &Builder{defs: defs} }

// AddRows counts rows of the payload. A column is in the map only if its arrays have as many values as there are rows.
func (b *Builder) AddRows(n int) { b.rows += uint64(max(n, 0)) }

// AddArray adds the values of a column for all rows, or for the next rows: calls for one column add up. Columns without zones
// (lists, structs, columns that are not in the schema) are ignored. The array is not kept.
func (b *Builder) AddArray(name string, a arrow.Array) {
	c := b.columnBuilder(name)
	if c == nil || c.bad {
		return
	}
	c.seen += uint64(a.Len())    //nolint:gosec // a length
	c.nulls += uint64(a.NullN()) //nolint:gosec // a length
	c.bad = !c.addArray(a)
}

// columnBuilder returns the column with a name, or nil if it can't have zones.
func (b *Builder) columnBuilder(name string) *columnBuilding {
	for _, c := range b.columns {
		if c.name == name {
			return c
		}
	}
	d, ok := b.defs.columns[name]
	if !ok || kindCodes[d.typ.Kind] == 0 || len(name) > maxName || len(b.columns) >= MaxColumns {
		return nil
	}
	c := &columnBuilding{columnZone: columnZone{name: name, kind: d.typ.Kind, scale: d.typ.Scale, def: d.fingerprint}}
	b.columns = append(b.columns, c)
	return c
}

// Map returns the map of the added values, or nil if it is empty.
func (b *Builder) Map() *Map {
	m := &Map{Version: b.defs.version, Rows: b.rows}
	for _, c := range b.columns {
		if c.bad || c.seen != b.rows {
			continue
		}
		out := c.columnZone
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

// cutBounds truncates the bounds of strings: the lower one rounds down, the upper one up.
func (c *columnZone) cutBounds() {
	if !isTextual(c.kind) {
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

// successor returns the least text above all texts with a prefix. There is none for a prefix of only 0xff bytes.
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

// widenBounds extends the bounds to include a value.
func (c *columnBuilding) widenBounds(v *boundValue) {
	if !c.hasLow || compareBounds(c.kind, v, &c.low) < 0 {
		c.low, c.hasLow = *v, true
	}
	if !c.hasHigh || compareBounds(c.kind, v, &c.high) > 0 {
		c.high, c.hasHigh = *v, true
	}
}

// noteHash adds a hash to the future filter.
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

// addArray adds the values of an array. It returns false if the array does not have the column's type.
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

// addValues adds the values of an array of a kind.
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
		if isIntegral(c.kind) {
			c.noteHash(c.hashValue(&v))
		}
	}
	return true
}

// addTexts adds strings or binaries. The bytes returned by get are copied only if they become a bound.
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

// bytesOf returns the bytes of a string without copying. They must not be changed.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// addDictionary adds each value of a dictionary that is used.
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
