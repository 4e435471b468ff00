package zone

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/schema"
	"scribe/columnar/value"
)

// Limits of a map.
const (
	// MaxLen is the maximum length of an encoded map in bytes.
	MaxLen = 4 << 10
	// MaxColumns is the maximum number of its columns.
	MaxColumns = 64
	// maxName is the maximum length of a column's name in bytes. Columns with longer names are left out.
	maxName = 128
	// maxBound is the maximum length of a string bound in bytes.
	maxBound = 64
	// maxFilter is the maximum length of a Bloom filter in blocks of blockLen bytes.
	maxFilter = 16
)

// Map is the zone map of a payload. It is immutable.
type Map struct {
	// Version is the schema version that the values were read under.
	Version uint32
	// Rows is the number of rows of the payload.
	Rows uint64
	// columns are in the order in which they were added.
	columns []columnZone
}

// columnZone holds the bounds and counts of one column.
type columnZone struct {
	name string
	kind schema.Kind
	// scale is the scale of a decimal column.
	scale int32
	// def is the fingerprint of the column's definition.
	def uint64
	// nulls is the number of rows without a value.
	nulls uint64
	// low and high are the bounds of the values if hasLow and hasHigh are set. They are values themselves unless truncated.
	low, high       boundValue
	hasLow, hasHigh bool
	lowCut, highCut bool
	filter          bloomFilter
	synthetic       bool // added by [Map.With], not encoded
}

// boundValue is a value. The kind determines the field that holds it.
type boundValue struct {
	i int64 // bool, int32, int64, date, timestamp
	u uint64
	f float64
	d decimal128.Num
	s []byte // string, binary
}

// isIntegral and isTextual report which kinds of columns may have a filter.
func isIntegral(k schema.Kind) bool {
	return k == schema.Int32 || k == schema.Int64 || k == schema.Uint64
}

func isTextual(k schema.Kind) bool { return k == schema.String || k == schema.Binary }

// compareBounds compares values of a kind.
func compareBounds(kind schema.Kind, a, b *boundValue) int {
	switch kind {
	case schema.Uint64:
		return cmp.Compare(a.u, b.u)
	case schema.Float64:
		return value.CompareFloats(a.f, b.f)
	case schema.Decimal:
		return a.d.Cmp(b.d)
	case schema.String, schema.Binary:
		return bytes.Compare(a.s, b.s)
	default:
		return cmp.Compare(a.i, b.i)
	}
}

// findColumn returns a column by its name, or nil if it is not in the map.
func (m *Map) findColumn(name string) *columnZone {
	for i := range m.columns {
		if m.columns[i].name == name {
			return &m.columns[i]
		}
	}
	return nil
}

// Has reports whether the map has a column.
func (m *Map) Has(name string) bool { return m.findColumn(name) != nil }

// Under returns the part of the map that is valid under a schema: the columns with the same definition as in the schema of the
// map.
func (m *Map) Under(defs *Definitions) *Map {
	out := &Map{Version: defs.version, Rows: m.Rows, columns: make([]columnZone, 0, len(m.columns))}
	for i := range m.columns {
		c := &m.columns[i]
		if d, ok := defs.columns[c.name]; c.synthetic || ok && d.fingerprint == c.def {
			out.columns = append(out.columns, *c)
		}
	}
	return out
}

// With returns the map with an added column that has the same value in every row, in the form of a literal of package expr. It is
// for the columns of the pointer, _persisted and _shard. m may be nil.
func (m *Map) With(name string, t schema.Type, literal any) *Map {
	out := &Map{}
	if m != nil {
		*out = Map{Version: m.Version, Rows: m.Rows, columns: slices.Clip(m.columns)}
	}
	c := columnZone{name: name, kind: t.Kind, scale: t.Scale, hasLow: true, hasHigh: true, synthetic: true}
	v, ok := boundOf(&t, literal)
	if !ok {
		return out
	}
	c.low, c.high = v, v
	out.columns = append(out.columns, c)
	return out
}

// Merge returns a map of the same payload with the columns of m plus the columns of o that m lacks, up to the limits. If o has
// another number of rows, it is not of the same payload and is ignored.
func (m *Map) Merge(o *Map) *Map {
	out := &Map{Version: m.Version, Rows: m.Rows, columns: slices.Clone(m.columns)}
	if o.Rows == m.Rows {
		for i := range o.columns {
			if c := &o.columns[i]; !c.synthetic && !m.Has(c.name) && len(out.columns) < MaxColumns {
				out.columns = append(out.columns, *c)
			}
		}
	}
	out.fitMaxLen()
	return out
}

// Lacks reports whether o has a column that m lacks.
func (m *Map) Lacks(o *Map) bool {
	for i := range o.columns {
		if c := m.findColumn(o.columns[i].name); c == nil || c.def != o.columns[i].def {
			return true
		}
	}
	return false
}
