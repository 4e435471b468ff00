// Package listing makes the rows of SHOW TABLES and DESCRIBE, for all that answer them.
package listing

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/schema"
	"scribe/columnar/value"
)

var (
	tableSchema  = textSchema("name")
	columnSchema = textSchema("column_name", "column_type", "null")
)

func textSchema(names ...string) *arrow.Schema {
	fields := make([]arrow.Field, len(names))
	for i, name := range names {
		fields[i] = arrow.Field{Name: name, Type: arrow.BinaryTypes.String}
	}
	return arrow.NewSchema(fields, nil)
}

// Columns returns every column that a query of a category with a schema can name.
func Columns(s *schema.Schema) *arrow.Schema {
	var fields []arrow.Field
	for _, c := range s.Columns() {
		fields = append(fields, arrow.Field{Name: c.Name, Type: c.Type.Arrow(), Nullable: c.Field < 0 || s.Fields[c.Field].Nullable})
	}
	return arrow.NewSchema(fields, nil)
}

// TableRows returns the answer of SHOW TABLES: the names, in order. The caller releases it.
func TableRows(names []string) arrow.RecordBatch {
	names = slices.Sorted(slices.Values(names))
	rows := make([][]string, len(names))
	for i, name := range names {
		rows[i] = []string{name}
	}
	return textRows(tableSchema, rows)
}

// ColumnRows returns the answer of DESCRIBE: names, types, and YES or NO for null, of the columns that [Columns] returns. The caller releases
// it.
func ColumnRows(columns *arrow.Schema) arrow.RecordBatch {
	rows := make([][]string, columns.NumFields())
	for i, f := range columns.Fields() {
		null := "NO"
		if f.Nullable {
			null = "YES"
		}
		rows[i] = []string{f.Name, value.TypeName(f.Type), null}
	}
	return textRows(columnSchema, rows)
}

func textRows(s *arrow.Schema, rows [][]string) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	for _, row := range rows {
		for i, text := range row {
			b.Field(i).(*array.StringBuilder).Append(text)
		}
	}
	return b.NewRecordBatch()
}
