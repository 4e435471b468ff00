package export

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/parquet-go/parquet-go"

	"scribe/columnar/value"
)

const (
	// groupBytes is the approximate size of a row group, and of the memory that it takes.
	groupBytes = 64 << 20
	// dictionaryBytes is where a column of texts stops to use a dictionary in a row group.
	dictionaryBytes = 1 << 20
	// parquetRows is the number of rows whose values are written at once. They take several times the memory of an array.
	parquetRows = 1024
)

// parquetFile writes a Parquet file, which is readable only after Close.
type parquetFile struct {
	file    *parquet.GenericWriter[any]
	columns []*parquetColumn
	leaves  []leafColumn
	group   int // bytes of values in the current row group
}

// leafColumn has the values of some rows for one column of the file.
type leafColumn struct {
	writer *parquet.ColumnWriter
	values []parquet.Value
}

func newParquet(w io.Writer, s *arrow.Schema) (*parquetFile, error) {
	root := fieldGroup{}
	p := &parquetFile{}
	leaves := 0
	fields := make([]arrow.Field, s.NumFields())
	for i, f := range s.Fields() {
		f.Type = withoutDictionary(f.Type)
		node, column, err := newParquetColumn(f, 0, &leaves)
		if err != nil {
			return nil, fmt.Errorf("column %q: Parquet cannot hold %w: cast it to text, or choose another format", f.Name, err)
		}
		fields[i] = f
		root.fields = append(root.fields, groupField{Node: node, name: f.Name})
		p.columns = append(p.columns, column)
	}
	p.file = parquet.NewGenericWriter[any](w, parquet.NewSchema("schema", root), parquet.Compression(&parquet.Zstd),
		parquet.CreatedBy("scribe", "", ""), parquet.DictionaryMaxBytes(dictionaryBytes))
	// Arrow's readers restore from it the types that Parquet lacks.
	p.file.SetKeyValueMetadata("ARROW:schema", encodeSchema(arrow.NewSchema(fields, nil)))
	for _, c := range p.file.ColumnWriters() {
		p.leaves = append(p.leaves, leafColumn{writer: c})
	}
	return p, nil
}

func encodeSchema(s *arrow.Schema) string {
	payload := ipc.GetSchemaPayload(s, memory.DefaultAllocator)
	defer payload.Release()
	var b bytes.Buffer
	payload.WritePayload(&b) //nolint:errcheck,gosec // a buffer takes everything
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// Write implements Writer.
func (w *parquetFile) Write(batch arrow.RecordBatch) (err error) {
	defer recoverError(&err)
	for i, c := range w.columns {
		c.bindArray(batch.Column(i))
	}
	for from, rows := 0, int(batch.NumRows()); from < rows; from += parquetRows {
		for _, c := range w.columns {
			for row := from; row < min(from+parquetRows, rows); row++ {
				c.appendRow(w.leaves, row, 0, 0)
			}
		}
		if err := w.writeValues(); err != nil {
			return err
		}
	}
	return nil
}

// writeValues writes the values of some rows, to a new row group if the current one would be too large.
func (w *parquetFile) writeValues() error {
	size := 0
	for i := range w.leaves {
		size += w.leaves[i].valueBytes()
	}
	if w.group > 0 && w.group+size > groupBytes {
		if err := w.file.Flush(); err != nil {
			return err
		}
		w.group = 0
	}
	w.group += size
	for i := range w.leaves {
		leaf := &w.leaves[i]
		if _, err := leaf.writer.WriteRowValues(leaf.values); err != nil {
			return err
		}
		clear(leaf.values) // they point into the batch
		leaf.values = leaf.values[:0]
	}
	return nil
}

// valueBytes returns the approximate size of the values in a file, without dictionary and compression.
func (l *leafColumn) valueBytes() int {
	size := 8 * len(l.values)
	for i := range l.values {
		if v := &l.values[i]; v.Kind() == parquet.ByteArray {
			size += len(v.ByteArray())
		}
	}
	return size
}

// Flush implements Writer. It does nothing: a row group is written only when it is complete.
func (w *parquetFile) Flush() error { return nil }

// Close implements Writer.
func (w *parquetFile) Close() (err error) {
	defer recoverError(&err)
	return w.file.Close()
}

// parquetColumn writes the arrays of one Arrow field as Parquet's leaf columns, with repetition and definition levels as in the Dremel paper.
type parquetColumn struct {
	optional bool
	depth    int // how many lists contain it
	first    int // the leaf columns below it are [first, last)
	last     int
	children []*parquetColumn // a struct's fields, a list's element, a map's key and value
	read     func(arrow.Array) func(row int) parquet.Value

	// Of the current batch.
	array arrow.Array
	value func(row int) parquet.Value // of a leaf
	list  array.ListLike
}

// newParquetColumn returns an error that names the type, if Parquet cannot represent it.
func newParquetColumn(f arrow.Field, depth int, leaves *int) (node parquet.Node, c *parquetColumn, err error) {
	c = &parquetColumn{optional: f.Nullable, depth: depth, first: *leaves}
	addChild := func(f arrow.Field, depth int) parquet.Node {
		child, column, childErr := newParquetColumn(f, depth, leaves)
		c.children = append(c.children, column)
		err = cmp.Or(err, childErr)
		return child
	}
	switch t := withoutDictionary(f.Type).(type) {
	case *arrow.StructType:
		if t.NumFields() == 0 {
			return nil, nil, errors.New("an empty struct")
		}
		group := fieldGroup{}
		for _, field := range t.Fields() {
			group.fields = append(group.fields, groupField{Node: addChild(field, depth), name: field.Name})
		}
		node = group
	case *arrow.MapType:
		key, item := t.KeyField(), t.ItemField()
		key.Nullable = false
		node = parquet.Map(addChild(key, depth+1), addChild(item, depth+1))
	case arrow.ListLikeType:
		node = parquet.List(addChild(t.ElemField(), depth+1))
	default:
		if node, c.read = parquetLeaf(t); node == nil {
			return nil, nil, errors.New(value.TypeName(t))
		}
		*leaves++
	}
	if err != nil {
		return nil, nil, err
	}
	c.last = *leaves
	if f.Nullable {
		node = parquet.Optional(node)
	}
	return node, c, nil
}

// bindArray sets the array whose rows are next.
func (c *parquetColumn) bindArray(a arrow.Array) {
	c.array = a
	switch a := a.(type) {
	case *array.Struct:
		for i, child := range c.children {
			child.bindArray(a.Field(i))
		}
	case *array.Map:
		c.list = a
		c.children[0].bindArray(a.Keys())
		c.children[1].bindArray(a.Items())
	case array.ListLike:
		c.list = a
		c.children[0].bindArray(a.ListValues())
	default:
		c.value = c.read(a)
	}
}

// appendRow appends the values of a row. repetition is the level at which the row repeats, definition how many optional and repeated
// ancestors it has.
func (c *parquetColumn) appendRow(leaves []leafColumn, row, repetition, definition int) {
	if isNull(c.array, row) {
		c.appendAbsent(leaves, repetition, definition)
		return
	}
	if c.optional {
		definition++
	}
	switch {
	case c.list != nil:
		start, end := c.list.ValueOffsets(row)
		if start == end {
			c.appendAbsent(leaves, repetition, definition)
		}
		for i := start; i < end; i++ {
			for _, child := range c.children {
				child.appendRow(leaves, int(i), repetition, definition+1)
			}
			repetition = c.depth + 1
		}
	case c.children != nil:
		for _, child := range c.children {
			child.appendRow(leaves, row, repetition, definition)
		}
	default:
		leaf := &leaves[c.first]
		leaf.values = append(leaf.values, c.value(row).Level(repetition, definition, c.first))
	}
}

// appendAbsent appends to each leaf column that there is no value below the level definition.
func (c *parquetColumn) appendAbsent(leaves []leafColumn, repetition, definition int) {
	for i := c.first; i < c.last; i++ {
		leaves[i].values = append(leaves[i].values, parquet.NullValue().Level(repetition, definition, i))
	}
}

// parquetLeaf returns the type of a leaf column and what reads an array's values, or nil for a type that Parquet lacks. It knows the types
// that columns of queries have.
func parquetLeaf(t arrow.DataType) (parquet.Node, func(arrow.Array) func(row int) parquet.Value) {
	switch t := t.(type) {
	case *arrow.BooleanType:
		return parquet.Leaf(parquet.BooleanType), readLeaf((*array.Boolean).Value, parquet.BooleanValue)
	case *arrow.Int32Type:
		return parquet.Int(32), readLeaf((*array.Int32).Value, parquet.Int32Value)
	case *arrow.Int64Type:
		return parquet.Int(64), readLeaf((*array.Int64).Value, parquet.Int64Value)
	case *arrow.Uint64Type:
		return parquet.Uint(64), readLeaf((*array.Uint64).Value, func(v uint64) parquet.Value { return parquet.Int64Value(int64(v)) })
	case *arrow.Float64Type:
		return parquet.Leaf(parquet.DoubleType), readLeaf((*array.Float64).Value, parquet.DoubleValue)
	case *arrow.Date32Type:
		return parquet.Date(), readLeaf((*array.Date32).Value, func(v arrow.Date32) parquet.Value { return parquet.Int32Value(int32(v)) })
	case *arrow.TimestampType: // always in microseconds
		return parquet.TimestampAdjusted(parquet.Microsecond, t.TimeZone != ""), readLeaf((*array.Timestamp).Value, func(v arrow.Timestamp) parquet.Value { return parquet.Int64Value(int64(v)) })
	case *arrow.Decimal128Type:
		node := parquet.Decimal(int(t.Scale), int(t.Precision), parquet.FixedLenByteArrayType(16))
		var free []byte // memory for values, allocated for many at once
		return node, readLeaf((*array.Decimal128).Value, func(v decimal.Decimal128) parquet.Value {
			if len(free) == 0 {
				free = make([]byte, 16*parquetRows)
			}
			b := free[:16]
			free = free[16:]
			binary.BigEndian.PutUint64(b, uint64(v.HighBits()))
			binary.BigEndian.PutUint64(b[8:], v.LowBits())
			return parquet.FixedLenByteArrayValue(b)
		})
	case *arrow.StringType:
		return parquet.Encoded(parquet.String(), &parquet.RLEDictionary), readText
	case *arrow.BinaryType:
		return parquet.Leaf(parquet.ByteArrayType), readLeaf((*array.Binary).Value, parquet.ByteArrayValue)
	}
	return nil, nil
}

// readLeaf composes an array's accessor with the conversion of its values.
func readLeaf[A arrow.Array, V any](get func(A, int) V, convert func(V) parquet.Value) func(arrow.Array) func(row int) parquet.Value {
	return func(a arrow.Array) func(row int) parquet.Value {
		values := a.(A)
		return func(row int) parquet.Value { return convert(get(values, row)) }
	}
}

// readText reads texts with and without a dictionary. It does not copy them: as binary values, their memory is a slice of bytes.
func readText(a arrow.Array) func(row int) parquet.Value {
	if d, ok := a.(*array.Dictionary); ok {
		value := readText(d.Dictionary())
		return func(row int) parquet.Value { return value(d.GetValueIndex(row)) }
	}
	return readLeaf((*array.Binary).Value, parquet.ByteArrayValue)(array.NewBinaryData(a.Data()))
}

// withoutDictionary returns a type without its dictionary. Parquet makes dictionaries by itself.
func withoutDictionary(t arrow.DataType) arrow.DataType {
	if d, ok := t.(*arrow.DictionaryType); ok {
		return d.ValueType
	}
	return t
}

// fieldGroup is a group whose fields keep their order, which a parquet.Group sorts by name.
type fieldGroup struct {
	parquet.Group
	fields []parquet.Field
}

func (g fieldGroup) Fields() []parquet.Field { return g.fields }

// GoType implements parquet.Node. No Go values are written, and the default rejects names with commas.
func (g fieldGroup) GoType() reflect.Type { return reflect.TypeFor[struct{}]() }

type groupField struct {
	parquet.Node
	name string
}

func (f groupField) Name() string { return f.name }

func (f groupField) Value(base reflect.Value) reflect.Value { return base }
