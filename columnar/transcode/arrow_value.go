package transcode

import (
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/schema"
)

// fits reports whether a number has at most so many digits.
func fits(v decimal128.Num, precision int32) bool {
	return v.HighBits() != math.MinInt64 && v.FitsInPrecision(precision)
}

const whyArrowType = "the column of the Arrow batch has a type that is not read"

// value appends value i, which is not null, of an Arrow column. It returns why it does not fit; c may then have parts of it.
func (b *arrowBatch) value(c *column, a arrow.Array, i int) (why string) {
	switch a := a.(type) {
	case *array.Boolean:
		return putBool(c, a.Value(i))
	case *array.Int8:
		return putInt(c, int64(a.Value(i)))
	case *array.Int16:
		return putInt(c, int64(a.Value(i)))
	case *array.Int32:
		return putInt(c, int64(a.Value(i)))
	case *array.Int64:
		return putInt(c, a.Value(i))
	case *array.Uint8:
		return putInt(c, int64(a.Value(i)))
	case *array.Uint16:
		return putInt(c, int64(a.Value(i)))
	case *array.Uint32:
		return putInt(c, int64(a.Value(i)))
	case *array.Uint64:
		return putUint(c, a.Value(i))
	case *array.Float16:
		return putFloat(c, float64(a.Value(i).Float32()), 32)
	case *array.Float32:
		return putFloat(c, float64(a.Value(i)), 32)
	case *array.Float64:
		return putFloat(c, a.Value(i), 64)
	case *array.String:
		return putText(c, []byte(a.Value(i)))
	case *array.LargeString:
		return putText(c, []byte(a.Value(i)))
	case *array.Binary:
		return putBytes(c, a.Value(i))
	case *array.LargeBinary:
		return putBytes(c, a.Value(i))
	case *array.FixedSizeBinary:
		return putBytes(c, a.Value(i))
	case *array.Dictionary:
		at := a.GetValueIndex(i)
		if a.Dictionary().IsNull(at) {
			c.appendNull()
			return ""
		}
		return b.value(c, a.Dictionary(), at)
	case array.ExtensionArray:
		return b.value(c, a.Storage(), i)
	case *array.Struct:
		return b.structure(c, a, i)
	case *array.Map:
		return b.mapping(c, a, i)
	case array.ListLike:
		return b.list(c, a, i)
	default:
		return b.timed(c, a, i)
	}
}

// timed appends dates, instants and decimals.
func (b *arrowBatch) timed(c *column, a arrow.Array, i int) (why string) {
	switch a := a.(type) {
	case *array.Decimal32:
		return putDecimal(c, decimal128.FromI64(int64(a.Value(i))), a.DataType().(arrow.DecimalType).GetScale())
	case *array.Decimal64:
		return putDecimal(c, decimal128.FromI64(int64(a.Value(i))), a.DataType().(arrow.DecimalType).GetScale())
	case *array.Decimal128:
		return putDecimal(c, a.Value(i), a.DataType().(arrow.DecimalType).GetScale())
	case *array.Decimal256:
		return putBig(c, a.Value(i).BigInt(), a.DataType().(arrow.DecimalType).GetScale())
	case *array.Date32:
		return putDays(c, int32(a.Value(i)))
	case *array.Date64:
		if v := int64(a.Value(i)); v <= math.MaxInt64/1000 && v >= math.MinInt64/1000 {
			return putInstant(c, v*1000)
		}
		return whyFormats
	case *array.Timestamp:
		return putUnit(c, int64(a.Value(i)), a.DataType().(*arrow.TimestampType).Unit)
	case *array.Time32:
		return putInt(c, int64(a.Value(i)))
	case *array.Time64:
		return putInt(c, int64(a.Value(i)))
	case *array.Duration:
		return putInt(c, int64(a.Value(i)))
	default:
		return whyArrowType
	}
}

// putUnit appends an instant in a unit.
func putUnit(c *column, v int64, unit arrow.TimeUnit) (why string) {
	factor := int64(1)
	switch unit {
	case arrow.Second:
		factor = 1_000_000
	case arrow.Millisecond:
		factor = 1000
	case arrow.Nanosecond:
		return putInstant(c, floorDiv(v, 1000))
	default:
	}
	if v > math.MaxInt64/factor || v < math.MinInt64/factor {
		return whyFormats
	}
	return putInstant(c, v*factor)
}

// element appends a value that may be null, of a list, a map or a struct.
func (b *arrowBatch) element(c *column, a arrow.Array, i int, nullable bool) (why string) {
	if !isNull(a, i) {
		return b.value(c, a, i)
	}
	if !nullable {
		return whyNull
	}
	c.appendNull()
	return ""
}

func (b *arrowBatch) list(c *column, a array.ListLike, i int) (why string) {
	if c.typ.Kind != schema.List {
		return "a list does not belong here: " + wants(c.typ.Kind)
	}
	from, to := a.ValueOffsets(i)
	for k := from; k < to; k++ {
		if !b.room.left(c) {
			return whyRoom
		}
		if why := b.element(c.children[0], a.ListValues(), int(k), true); why != "" {
			return why
		}
	}
	c.appendList()
	return ""
}

func (b *arrowBatch) mapping(c *column, a *array.Map, i int) (why string) {
	if c.typ.Kind != schema.Map {
		return "an object does not belong here: " + wants(c.typ.Kind)
	}
	from, to := a.ValueOffsets(i)
	for k := from; k < to; k++ {
		if !b.room.left(c) {
			return whyRoom
		}
		if why := b.element(c.children[0], a.Keys(), int(k), false); why != "" {
			return "key of a map: " + why
		}
		if why := b.element(c.children[1], a.Items(), int(k), true); why != "" {
			return why
		}
	}
	c.appendList()
	return ""
}

func (b *arrowBatch) structure(c *column, a *array.Struct, i int) (why string) {
	if c.typ.Kind != schema.Struct {
		return "an object does not belong here: " + wants(c.typ.Kind)
	}
	for k := range c.typ.Fields {
		f, child := &c.typ.Fields[k], c.children[k]
		if why := b.part(f, child, a, i); why != "" {
			return f.Name + ": " + why
		}
	}
	c.appendStruct()
	return ""
}

// part appends the value that a struct has of a field.
func (b *arrowBatch) part(f *schema.Field, child *column, a *array.Struct, i int) (why string) {
	for _, path := range f.Sources() {
		s, ok := inside(a, path)
		if ok && source([]arrowSource{s}, i, f.Nullable) != nil {
			return b.element(child, s.values, i, true)
		}
	}
	missing, ok := b.absent[f]
	if !ok {
		missing = field{nullable: f.Nullable, fallback: fallbackOf(f)}
		b.absent[f] = missing
	}
	return missing.absent(child)
}
