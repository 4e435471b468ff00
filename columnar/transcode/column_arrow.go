package transcode

import (
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// bytesOf is the memory of a slice of numbers.
func bytesOf[T int32 | int64 | float64](s []T) []byte {
	if len(s) == 0 {
		return []byte{}
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}

// finish hands the column's buffers over to an array of the type, and leaves the column empty. The caller releases the array.
func (c *column) finish(dt arrow.DataType) arrow.Array {
	data := c.data(dt)
	defer data.Release()
	return array.MakeFromData(data)
}

func (c *column) data(dt arrow.DataType) *array.Data {
	var valid *memory.Buffer
	if c.nulls > 0 {
		valid = memory.NewBufferBytes(c.valid)
	}
	n, nulls := c.n, c.nulls
	flat := func(b []byte) *array.Data {
		return array.NewData(dt, n, []*memory.Buffer{valid, memory.NewBufferBytes(b)}, nil, nulls, 0)
	}
	var out *array.Data
	switch t := dt.(type) {
	case *arrow.BooleanType:
		out, c.bits = flat(c.bits), nil
	case *arrow.Int32Type, *arrow.Uint32Type, *arrow.Date32Type:
		out, c.i32 = flat(bytesOf(c.i32)), nil
	case *arrow.Int64Type, *arrow.Uint64Type, *arrow.TimestampType:
		out, c.i64 = flat(bytesOf(c.i64)), nil
	case *arrow.Float64Type:
		out, c.f64 = flat(bytesOf(c.f64)), nil
	case *arrow.Decimal128Type:
		out, c.dec = flat(arrow.Decimal128Traits.CastToBytes(c.dec)), nil
	case *arrow.StringType, *arrow.BinaryType:
		if c.values == nil {
			c.values = []byte{}
		}
		buffers := []*memory.Buffer{valid, memory.NewBufferBytes(bytesOf(c.offsets)), memory.NewBufferBytes(c.values)}
		out = array.NewData(dt, n, buffers, nil, nulls, 0)
		c.offsets, c.values = []int32{0}, nil
	case *arrow.DictionaryType:
		dict := c.dict.data(t.ValueType)
		out = array.NewDataWithDictionary(dt, n, []*memory.Buffer{valid, memory.NewBufferBytes(bytesOf(c.i32))}, nulls, 0, dict)
		dict.Release()
		c.i32 = nil
	case *arrow.ListType:
		out = c.nested(dt, valid, c.children[0].data(t.Elem()))
	case *arrow.MapType:
		out = c.nested(dt, valid, c.entries(t))
	case *arrow.StructType:
		fields := make([]arrow.ArrayData, len(c.children))
		for i, child := range c.children {
			fields[i] = child.data(t.Field(i).Type)
		}
		out = array.NewData(dt, n, []*memory.Buffer{valid}, fields, nulls, 0)
		for _, f := range fields {
			f.Release()
		}
	default:
		panic("transcode: a column of type " + dt.String()) // New refuses such schemas
	}
	c.valid = nil
	c.reset()
	return out
}

// nested makes a list, or a map, of its elements.
func (c *column) nested(dt arrow.DataType, valid *memory.Buffer, elements *array.Data) *array.Data {
	defer elements.Release()
	buffers := []*memory.Buffer{valid, memory.NewBufferBytes(bytesOf(c.offsets))}
	c.offsets = []int32{0}
	return array.NewData(dt, c.n, buffers, []arrow.ArrayData{elements}, c.nulls, 0)
}

// entries makes the structs of keys and values that a map's elements are.
func (c *column) entries(t *arrow.MapType) *array.Data {
	n := c.children[0].n
	keys, values := c.children[0].data(t.KeyType()), c.children[1].data(t.ItemType())
	defer keys.Release()
	defer values.Release()
	return array.NewData(t.Elem(), n, []*memory.Buffer{nil}, []arrow.ArrayData{keys, values}, 0, 0)
}
