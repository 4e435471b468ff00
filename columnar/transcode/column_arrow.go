package transcode

import (
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// keepBuffer is the size in bytes above which a column's buffer is not kept for the next batch.
const keepBuffer = 8 << 20

// copied makes a buffer of a slice's elements.
//
// Columns grow in memory that is used again, and batches get a copy of the right size: that costs less than to grow fresh memory, caches keep
// no slack, and who holds on to a text of a batch that was released, against Arrow's rules, holds garbage-collected memory and not
// the next batch's.
func copied[T byte | int32 | int64 | float64 | decimal128.Num](s []T) *memory.Buffer {
	if len(s) == 0 {
		return memory.NewBufferBytes([]byte{})
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
	return memory.NewBufferBytes(append([]byte(nil), b...))
}

// kept is an empty slice in the same memory, unless that is too much to keep.
func kept[T any](s []T) []T {
	var element T
	if cap(s)*int(unsafe.Sizeof(element)) > keepBuffer {
		return nil
	}
	return s[:0]
}

// finish copies the column into an array of the type. The caller releases the array.
func (c *column) finish(dt arrow.DataType) arrow.Array {
	data := c.data(dt)
	defer data.Release()
	return array.MakeFromData(data)
}

func (c *column) data(dt arrow.DataType) *array.Data {
	var valid *memory.Buffer
	if c.nulls > 0 {
		valid = copied(c.valid)
	}
	flat := func(b *memory.Buffer) *array.Data {
		return array.NewData(dt, c.n, []*memory.Buffer{valid, b}, nil, c.nulls, 0)
	}
	switch t := dt.(type) {
	case *arrow.BooleanType:
		return flat(copied(c.bits))
	case *arrow.Int32Type, *arrow.Uint32Type, *arrow.Date32Type:
		return flat(copied(c.i32))
	case *arrow.Int64Type, *arrow.Uint64Type, *arrow.TimestampType:
		return flat(copied(c.i64))
	case *arrow.Float64Type:
		return flat(copied(c.f64))
	case *arrow.Decimal128Type:
		return flat(copied(c.dec))
	case *arrow.StringType, *arrow.BinaryType:
		buffers := []*memory.Buffer{valid, copied(c.offsets), copied(c.values)}
		return array.NewData(dt, c.n, buffers, nil, c.nulls, 0)
	case *arrow.DictionaryType:
		dict := c.dict.data(t.ValueType)
		defer dict.Release()
		return array.NewDataWithDictionary(dt, c.n, []*memory.Buffer{valid, copied(c.i32)}, c.nulls, 0, dict)
	case *arrow.ListType:
		return c.nested(dt, valid, c.children[0].data(t.Elem()))
	case *arrow.MapType:
		return c.nested(dt, valid, c.entries(t))
	case *arrow.StructType:
		fields := make([]arrow.ArrayData, len(c.children))
		for i, child := range c.children {
			fields[i] = child.data(t.Field(i).Type)
		}
		out := array.NewData(dt, c.n, []*memory.Buffer{valid}, fields, c.nulls, 0)
		for _, f := range fields {
			f.Release()
		}
		return out
	default:
		panic("transcode: a column of type " + dt.String()) // New refuses such schemas
	}
}

// nested makes a list, or a map, of its elements.
func (c *column) nested(dt arrow.DataType, valid *memory.Buffer, elements *array.Data) *array.Data {
	defer elements.Release()
	return array.NewData(dt, c.n, []*memory.Buffer{valid, copied(c.offsets)}, []arrow.ArrayData{elements}, c.nulls, 0)
}

// entries makes the structs of keys and values that a map's elements are.
func (c *column) entries(t *arrow.MapType) *array.Data {
	keys, values := c.children[0].data(t.KeyType()), c.children[1].data(t.ItemType())
	defer keys.Release()
	defer values.Release()
	return array.NewData(t.Elem(), c.children[0].n, []*memory.Buffer{nil}, []arrow.ArrayData{keys, values}, 0, 0)
}
