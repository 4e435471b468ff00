package column

import (
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// keepBuffer is the size in bytes above which a column's buffer is not reused for the next batch.
const keepBuffer = 8 << 20

// copyBuffer makes a buffer with a copy of a slice's elements.
//
// Columns grow in reused memory, and batches get a copy of the exact size. That costs less than growing fresh memory, and caches
// keep no slack. A caller that, against Arrow's rules, keeps a text of a released batch refers to garbage-collected memory, not
// to the next batch's.
func copyBuffer[T byte | int32 | int64 | decimal128.Num](s []T) *memory.Buffer {
	if len(s) == 0 {
		return memory.NewBufferBytes([]byte{})
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
	return memory.NewBufferBytes(append([]byte(nil), b...))
}

// keepMemory returns an empty slice of the same memory, or nil if the memory is too large to keep.
func keepMemory[T any](s []T) []T {
	var element T
	if cap(s)*int(unsafe.Sizeof(element)) > keepBuffer {
		return nil
	}
	return s[:0]
}

// MakeArray copies the column into an array of the type. The caller releases the array.
func (c *Buffer) MakeArray(dt arrow.DataType) arrow.Array {
	data := c.makeData(dt)
	defer data.Release()
	return array.MakeFromData(data)
}

func (c *Buffer) makeData(dt arrow.DataType) *array.Data {
	var valid *memory.Buffer
	if c.nulls > 0 {
		valid = copyBuffer(c.valid)
	}
	flat := func(b *memory.Buffer) *array.Data {
		return array.NewData(dt, c.Len, []*memory.Buffer{valid, b}, nil, c.nulls, 0)
	}
	switch t := dt.(type) {
	case *arrow.BooleanType:
		return flat(copyBuffer(c.bits))
	case *arrow.Int32Type, *arrow.Uint32Type, *arrow.Date32Type:
		return flat(copyBuffer(c.i32))
	case *arrow.Int64Type, *arrow.Uint64Type, *arrow.TimestampType, *arrow.Float64Type:
		return flat(copyBuffer(c.i64))
	case *arrow.Decimal128Type:
		return flat(copyBuffer(c.dec))
	case *arrow.StringType, *arrow.BinaryType:
		buffers := []*memory.Buffer{valid, copyBuffer(c.offsets), copyBuffer(c.values)}
		return array.NewData(dt, c.Len, buffers, nil, c.nulls, 0)
	case *arrow.DictionaryType:
		dict := c.dict.makeData(t.ValueType)
		defer dict.Release()
		return array.NewDataWithDictionary(dt, c.Len, []*memory.Buffer{valid, copyBuffer(c.i32)}, c.nulls, 0, dict)
	case *arrow.ListType:
		return c.nestData(dt, valid, c.Children[0].makeData(t.Elem()))
	case *arrow.MapType:
		return c.nestData(dt, valid, c.makeEntries(t))
	case *arrow.StructType:
		fields := make([]arrow.ArrayData, len(c.Children))
		for i, child := range c.Children {
			fields[i] = child.makeData(t.Field(i).Type)
		}
		out := array.NewData(dt, c.Len, []*memory.Buffer{valid}, fields, c.nulls, 0)
		for _, f := range fields {
			f.Release()
		}
		return out
	default:
		panic("transcode: a column of type " + dt.String()) // NewPlan rejects such schemas
	}
}

// nestData makes the data of a list or map from its elements.
func (c *Buffer) nestData(dt arrow.DataType, valid *memory.Buffer, elements *array.Data) *array.Data {
	defer elements.Release()
	return array.NewData(dt, c.Len, []*memory.Buffer{valid, copyBuffer(c.offsets)}, []arrow.ArrayData{elements}, c.nulls, 0)
}

// makeEntries makes the key-value structs that are a map's elements.
func (c *Buffer) makeEntries(t *arrow.MapType) *array.Data {
	keys, values := c.Children[0].makeData(t.KeyType()), c.Children[1].makeData(t.ItemType())
	defer keys.Release()
	defer values.Release()
	return array.NewData(t.Elem(), c.Children[0].Len, []*memory.Buffer{nil}, []arrow.ArrayData{keys, values}, 0, 0)
}
