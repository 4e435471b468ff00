package arrowrows

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/schema"
	"scribe/columnar/transcode/column"
	"scribe/columnar/transcode/rows"
)

// micros is the number of microseconds per unit. Nanoseconds are absent, so they map to 0.
var micros = map[arrow.TimeUnit]int64{arrow.Second: 1_000_000, arrow.Millisecond: 1000, arrow.Microsecond: 1}

const whyArrowType = "the column of the Arrow batch has a type that is not read"

// appendValue appends value i of an Arrow column, which must not be null. It returns why the value does not fit; c may then
// contain parts of it.
func (b *arrowBatch) appendValue(c *column.Buffer, a arrow.Array, i int) (why string) {
	switch a := a.(type) {
	case *array.Boolean:
		return column.PutBool(c, a.Value(i))
	case *array.Int8:
		return column.PutInt(c, int64(a.Value(i)))
	case *array.Int16:
		return column.PutInt(c, int64(a.Value(i)))
	case *array.Int32:
		return column.PutInt(c, int64(a.Value(i)))
	case *array.Int64:
		return column.PutInt(c, a.Value(i))
	case *array.Uint8:
		return column.PutInt(c, int64(a.Value(i)))
	case *array.Uint16:
		return column.PutInt(c, int64(a.Value(i)))
	case *array.Uint32:
		return column.PutInt(c, int64(a.Value(i)))
	case *array.Uint64:
		return column.PutUint(c, a.Value(i))
	case *array.Float16:
		return column.PutFloat(c, float64(a.Value(i).Float32()), 32)
	case *array.Float32:
		return column.PutFloat(c, float64(a.Value(i)), 32)
	case *array.Float64:
		return column.PutFloat(c, a.Value(i), 64)
	case *array.String:
		return column.PutText(c, []byte(a.Value(i)))
	case *array.LargeString:
		return column.PutText(c, []byte(a.Value(i)))
	case *array.Binary:
		return column.PutBytes(c, a.Value(i))
	case *array.LargeBinary:
		return column.PutBytes(c, a.Value(i))
	case *array.FixedSizeBinary:
		return column.PutBytes(c, a.Value(i))
	case *array.Dictionary:
		at := a.GetValueIndex(i)
		if a.Dictionary().IsNull(at) {
			c.AppendNull()
			return ""
		}
		return b.appendValue(c, a.Dictionary(), at)
	case array.ExtensionArray:
		return b.appendValue(c, a.Storage(), i)
	case *array.Struct:
		return b.appendStruct(c, a, i)
	case *array.Map:
		return b.appendMap(c, a, i)
	case array.ListLike:
		return b.appendList(c, a, i)
	default:
		return b.appendTimed(c, a, i)
	}
}

// appendTimed appends dates, instants and decimals.
func (b *arrowBatch) appendTimed(c *column.Buffer, a arrow.Array, i int) (why string) {
	switch a := a.(type) {
	case *array.Decimal32:
		return column.PutDecimal(c, decimal128.FromI64(int64(a.Value(i))), a.DataType().(arrow.DecimalType).GetScale())
	case *array.Decimal64:
		return column.PutDecimal(c, decimal128.FromI64(int64(a.Value(i))), a.DataType().(arrow.DecimalType).GetScale())
	case *array.Decimal128:
		return column.PutDecimal(c, a.Value(i), a.DataType().(arrow.DecimalType).GetScale())
	case *array.Decimal256:
		return column.PutBig(c, a.Value(i).BigInt(), a.DataType().(arrow.DecimalType).GetScale())
	case *array.Date32:
		return column.PutDays(c, int32(a.Value(i)))
	case *array.Date64:
		return column.PutInstantIn(c, int64(a.Value(i)), 1000)
	case *array.Timestamp:
		return column.PutInstantIn(c, int64(a.Value(i)), micros[a.DataType().(*arrow.TimestampType).Unit])
	case *array.Time32:
		return column.PutInt(c, int64(a.Value(i)))
	case *array.Time64:
		return column.PutInt(c, int64(a.Value(i)))
	case *array.Duration:
		return column.PutInt(c, int64(a.Value(i)))
	default:
		return whyArrowType
	}
}

// appendElement appends an element of a list, map or struct, which may be null.
func (b *arrowBatch) appendElement(c *column.Buffer, a arrow.Array, i int, nullable bool) (why string) {
	if !isNull(a, i) {
		return b.appendValue(c, a, i)
	}
	if !nullable {
		return column.WhyNull
	}
	c.AppendNull()
	return ""
}

func (b *arrowBatch) appendList(c *column.Buffer, a array.ListLike, i int) (why string) {
	if c.Type.Kind != schema.List {
		return column.WhyNotListOf(c)
	}
	from, to := a.ValueOffsets(i)
	for k := from; k < to; k++ {
		if !b.memory.HasMemory(c) {
			return rows.WhyTooMuchMemory
		}
		if why := b.appendElement(c.Children[0], a.ListValues(), int(k), true); why != "" {
			return why
		}
	}
	c.AppendList()
	return ""
}

func (b *arrowBatch) appendMap(c *column.Buffer, a *array.Map, i int) (why string) {
	if c.Type.Kind != schema.Map {
		return column.WhyNotObjectOf(c)
	}
	from, to := a.ValueOffsets(i)
	for k := from; k < to; k++ {
		if !b.memory.HasMemory(c) {
			return rows.WhyTooMuchMemory
		}
		if why := b.appendElement(c.Children[0], a.Keys(), int(k), false); why != "" {
			return "key of a map: " + why
		}
		if why := b.appendElement(c.Children[1], a.Items(), int(k), true); why != "" {
			return why
		}
	}
	c.AppendList()
	return ""
}

func (b *arrowBatch) appendStruct(c *column.Buffer, a *array.Struct, i int) (why string) {
	if c.Type.Kind != schema.Struct {
		return column.WhyNotObjectOf(c)
	}
	for k := range c.Type.Fields {
		f, child := &c.Type.Fields[k], c.Children[k]
		if why := b.appendField(f, child, a, i); why != "" {
			return f.Name + ": " + why
		}
	}
	c.AppendStruct()
	return ""
}

// appendField appends a struct's value for a field.
func (b *arrowBatch) appendField(f *schema.Field, child *column.Buffer, a *array.Struct, i int) (why string) {
	for _, path := range f.Sources() {
		s, ok := followPath(a, path)
		if ok && findValue([]arrowSource{s}, i, f.Nullable) != nil {
			return b.appendElement(child, s.values, i, true)
		}
	}
	return child.AppendAbsent()
}
