package finish

import (
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/vector"
)

// fixedColumn returns a column of 64-bit values without nulls.
func fixedColumn(t arrow.DataType, values []uint64) arrow.Array {
	data := array.NewData(t, len(values), []*memory.Buffer{nil, memory.NewBufferBytes(arrow.Uint64Traits.CastToBytes(values))}, nil, 0, 0)
	defer data.Release()
	return array.MakeFromData(data)
}

// repeatedValues returns a column with one repeated 64-bit value.
func repeatedValues(t arrow.DataType, n int, value uint64) arrow.Array {
	return fixedColumn(t, slices.Repeat([]uint64{value}, n))
}

// cutBatch removes the rows of messages that were delivered before or that are not rows, given the rows' index. The rows of a
// payload are in the order of its messages. The caller releases the batch.
func cutBatch(in arrow.RecordBatch, index []uint32, m Meta) arrow.RecordBatch {
	if len(m.Drop) == 0 && (len(index) == 0 || index[0] >= m.Skip) {
		in.Retain()
		return in
	}
	kept := vector.SelectRows(len(index), func(i int) bool {
		_, dropped := slices.BinarySearch(m.Drop, index[i])
		return index[i] >= m.Skip && !dropped
	})
	return kept.Take(in)
}

// conformBatch converts the columns of a batch to the types of a schema. The caller releases it.
func conformBatch(batch arrow.RecordBatch, s *arrow.Schema) (arrow.RecordBatch, error) {
	return vector.MakeBatch(s, batch.NumRows(), func(i int) (arrow.Array, error) {
		column, err := conformedArray(batch.Column(i), s.Field(i).Type)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", s.Field(i).Name, err)
		}
		return column, nil
	})
}

// conformedArray converts a column to an equivalent type: texts may be plain or dictionary codes. The caller releases it.
func conformedArray(a arrow.Array, t arrow.DataType) (arrow.Array, error) {
	if sameColumns(a.DataType(), t) {
		a.Retain()
		return a, nil
	}
	switch a := a.(type) {
	case *array.Dictionary:
		if values, ok := a.Dictionary().(*array.String); ok && t.ID() == arrow.STRING {
			return plainStrings(a, values), nil
		}
	case *array.String:
		if d, ok := t.(*arrow.DictionaryType); ok && d.ValueType.ID() == arrow.STRING {
			return dictionaryOf(a, d)
		}
	}
	return nil, fmt.Errorf("it is %s, not %s", a.DataType(), t)
}

// sameColumns compares types, ignoring what does not affect values: the nullability of nested parts, and their names in lists and
// maps.
func sameColumns(a, b arrow.DataType) bool {
	if a.ID() != b.ID() {
		return false
	}
	switch a := a.(type) {
	case *arrow.StructType:
		b := b.(*arrow.StructType)
		if a.NumFields() != b.NumFields() {
			return false
		}
		for i := range a.NumFields() {
			if a.Field(i).Name != b.Field(i).Name || !sameColumns(a.Field(i).Type, b.Field(i).Type) {
				return false
			}
		}
		return true
	case *arrow.ListType:
		return sameColumns(a.Elem(), b.(*arrow.ListType).Elem())
	case *arrow.MapType:
		b := b.(*arrow.MapType)
		return sameColumns(a.KeyType(), b.KeyType()) && sameColumns(a.ItemType(), b.ItemType())
	default:
		return arrow.TypeEqual(a, b)
	}
}

func plainStrings(a *array.Dictionary, values *array.String) arrow.Array {
	b := array.NewStringBuilder(memory.DefaultAllocator)
	defer b.Release()
	b.Reserve(a.Len())
	for i := range a.Len() {
		if a.IsNull(i) || values.IsNull(a.GetValueIndex(i)) {
			b.AppendNull()
		} else {
			b.Append(values.Value(a.GetValueIndex(i)))
		}
	}
	return b.NewArray()
}

func dictionaryOf(a *array.String, t *arrow.DictionaryType) (arrow.Array, error) {
	b := array.NewDictionaryBuilder(memory.DefaultAllocator, t).(*array.BinaryDictionaryBuilder)
	defer b.Release()
	for i := range a.Len() {
		if a.IsNull(i) {
			b.AppendNull()
		} else if err := b.AppendString(a.Value(i)); err != nil {
			return nil, err
		}
	}
	return b.NewArray(), nil
}
