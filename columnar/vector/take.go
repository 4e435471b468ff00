package vector

import (
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// takeArray returns the rows of a at the given places, in that order, in newly allocated memory. A negative place gives null, and
// so does a row whose bit in valid, if it is not nil, is not set. a has one of the column types.
func takeArray(a arrow.Array, places []int32, valid bitmap) arrow.Array {
	d := takeData(a.Data(), places, valid)
	defer d.Release()
	return array.MakeFromData(d)
}

// TakeRows returns the rows of a batch at the given places, in that order, in newly allocated memory. The caller releases it.
func TakeRows(batch arrow.RecordBatch, places []int32) arrow.RecordBatch {
	out, _ := MakeBatch(batch.Schema(), int64(len(places)), func(i int) (arrow.Array, error) {
		return takeArray(batch.Column(i), places, nil), nil
	})
	return out
}

// MaskRows returns an array whose rows that are not selected are null, in newly allocated memory that has no byte of them. The caller releases it.
// An array of dictionary codes keeps its dictionary, and so the bytes: it must not be masked.
func MaskRows(a arrow.Array, shown *Selection) arrow.Array {
	places := make([]int32, a.Len())
	for i := range places {
		if places[i] = -1; shown.Has(i) {
			places[i] = int32(i)
		}
	}
	return takeArray(a, places, nil)
}

// ConcatBatches returns the rows of batches of one schema as one batch. The caller releases it.
func ConcatBatches(batches []arrow.RecordBatch) (arrow.RecordBatch, error) {
	rows := int64(0)
	for _, b := range batches {
		rows += b.NumRows()
	}
	arrays := make([]arrow.Array, len(batches))
	return MakeBatch(batches[0].Schema(), rows, func(i int) (arrow.Array, error) {
		for k, b := range batches {
			arrays[k] = b.Column(i)
		}
		a, err := concatArrays(arrays)
		if err == nil && len(arrays) == 1 {
			a.Retain()
		}
		return a, err
	})
}

func takeData(d arrow.ArrayData, places []int32, valid bitmap) *array.Data {
	n := len(places)
	bits, nulls := takeValid(d, places, valid)
	buffers := []*memory.Buffer{bits}
	var children []arrow.ArrayData
	switch t := d.DataType().(type) {
	case *arrow.NullType:
		return array.NewData(t, n, []*memory.Buffer{nil}, nil, n, 0)
	case *arrow.BooleanType:
		buffers = append(buffers, takeBits(d, places))
	case *arrow.StringType, *arrow.BinaryType:
		offsets, data := takeStrings(d, places)
		buffers = append(buffers, offsets, data)
	case *arrow.DictionaryType:
		out := array.NewDataWithDictionary(t, n, append(buffers, takeWidth[int32](d, places)), nulls, 0, d.Dictionary().(*array.Data))
		return out
	case *arrow.ListType, *arrow.MapType:
		offsets, inner := takeLists(d, places)
		buffers, children = append(buffers, offsets), []arrow.ArrayData{takeData(d.Children()[0], inner, nil)}
	case *arrow.StructType:
		inner := places
		if off := d.Offset(); off != 0 {
			inner = make([]int32, n)
			for i, p := range places {
				if inner[i] = -1; p >= 0 {
					inner[i] = p + int32(off)
				}
			}
		}
		for _, c := range d.Children() {
			children = append(children, takeData(c, inner, nil))
		}
	case arrow.FixedWidthDataType:
		buffers = append(buffers, takeFixed(d, places, t.Bytes()))
	default:
		// A schema produces no other types, and Compile has checked the columns.
		panic(fmt.Sprintf("vector: rows of an unexpected type %s", t))
	}
	out := array.NewData(d.DataType(), n, buffers, children, nulls, 0)
	for _, c := range children {
		c.Release()
	}
	return out
}

func takeValid(d arrow.ArrayData, places []int32, valid bitmap) (*memory.Buffer, int) {
	var src []byte
	if d.NullN() != 0 && d.Buffers()[0] != nil {
		src = d.Buffers()[0].Bytes()
	}
	if src == nil && valid == nil && !slices.ContainsFunc(places, func(p int32) bool { return p < 0 }) {
		return nil, 0
	}
	out := make(bitmap, wordsFor(len(places)))
	ones := 0
	for i, p := range places {
		if p < 0 || valid != nil && !valid.get(i) {
			continue
		}
		if src != nil {
			if at := d.Offset() + int(p); src[at/8]>>(at%8)&1 == 0 {
				continue
			}
		}
		out.set(i)
		ones++
	}
	if ones == len(places) {
		return nil, 0
	}
	return memory.NewBufferBytes(out.bytes()), len(places) - ones
}

func takeBits(d arrow.ArrayData, places []int32) *memory.Buffer {
	out := make(bitmap, wordsFor(len(places)))
	if d.Buffers()[1] == nil { // there are no rows
		return memory.NewBufferBytes(out.bytes())
	}
	src := d.Buffers()[1].Bytes()
	for i, p := range places {
		if p < 0 {
			continue
		}
		if at := d.Offset() + int(p); src[at/8]>>(at%8)&1 != 0 {
			out.set(i)
		}
	}
	return memory.NewBufferBytes(out.bytes())
}

// runLength returns the number of leading places that are consecutive, so that their values can be copied at once.
func runLength(places []int32) int {
	n := 1
	for p := places[0]; p >= 0 && n < len(places) && places[n] == p+int32(n); {
		n++
	}
	return n
}

func takeFixed(d arrow.ArrayData, places []int32, width int) *memory.Buffer {
	switch width {
	case 4:
		return takeWidth[int32](d, places)
	case 8:
		return takeWidth[int64](d, places)
	default: // decimals and intervals
		return takeWidth[decimal128.Num](d, places)
	}
}

// takeWidth copies values of one width, regardless of their meaning.
func takeWidth[T fixedValue](d arrow.ArrayData, places []int32) *memory.Buffer {
	out := make([]T, len(places))
	if b := d.Buffers()[1]; b != nil && b.Len() > 0 {
		src := castMemory[T](b.Bytes())[d.Offset():]
		for i := 0; i < len(places); {
			n := runLength(places[i:])
			if p := places[i]; p >= 0 {
				copy(out[i:i+n], src[p:])
			}
			i += n
		}
	}
	return bufferOf(out)
}

func offsetsOf(d arrow.ArrayData) []int32 {
	if d.Len() == 0 {
		return []int32{0}
	}
	return arrow.GetOffsets[int32](d, 1)
}

// takeEnds returns the offsets of the texts or lists at the given places.
func takeEnds(src, places []int32) []int32 {
	ends := make([]int32, len(places)+1)
	for i, p := range places {
		ends[i+1] = ends[i]
		if p >= 0 {
			ends[i+1] += src[p+1] - src[p]
		}
	}
	return ends
}

func takeStrings(d arrow.ArrayData, places []int32) (offsets, data *memory.Buffer) {
	src := offsetsOf(d)
	ends := takeEnds(src, places)
	out := make([]byte, 0, ends[len(places)])
	if b := d.Buffers()[2]; b != nil {
		bytes := b.Bytes()
		for len(places) > 0 {
			n := runLength(places)
			if p := places[0]; p >= 0 {
				out = append(out, bytes[src[p]:src[int(p)+n]]...)
			}
			places = places[n:]
		}
	}
	return bufferOf(ends), memory.NewBufferBytes(out)
}

// takeLists returns the lists' offsets and the places of their elements in the child.
func takeLists(d arrow.ArrayData, places []int32) (*memory.Buffer, []int32) {
	src := offsetsOf(d)
	ends := takeEnds(src, places)
	inner := make([]int32, 0, ends[len(places)])
	for _, p := range places {
		if p >= 0 {
			for at := src[p]; at < src[p+1]; at++ {
				inner = append(inner, at)
			}
		}
	}
	return bufferOf(ends), inner
}

// concatArrays concatenates arrays.
func concatArrays(arrays []arrow.Array) (arrow.Array, error) {
	if len(arrays) == 1 {
		return arrays[0], nil
	}
	out, err := array.Concatenate(arrays, memory.DefaultAllocator)
	if err != nil {
		return nil, fmt.Errorf("vector: %w", err)
	}
	return out, nil
}
