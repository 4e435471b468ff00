package schema

import (
	"github.com/apache/arrow-go/v18/arrow"
)

// Kind is a family of types.
type Kind uint8

// Kinds. Null and Interval occur only in expressions, never in columns.
const (
	Invalid   Kind = 0
	Null      Kind = 1
	Bool      Kind = 2
	Int32     Kind = 3
	Int64     Kind = 4
	Uint64    Kind = 5
	Float64   Kind = 6
	Decimal   Kind = 7
	String    Kind = 8
	Binary    Kind = 9
	Date      Kind = 10
	Timestamp Kind = 11
	Interval  Kind = 12
	List      Kind = 13
	Struct    Kind = 14
	Map       Kind = 15
)

// Type is the type of a column or an expression. A Type is immutable once it is in use.
type Type struct {
	Kind Kind
	// Precision (1 to 38) and Scale (0 to Precision) of a Decimal, in decimal digits.
	Precision, Scale int32
	// Dictionary means that Arrow stores a String as dictionary codes. To a query it is the same type.
	Dictionary bool
	// Formats are the time formats of a Timestamp or a Date, tried in order. None means the default of the kind.
	Formats []TimeFormat
	// Elem is the element type of a List, or the value type of a Map. A Map's keys are strings. Elements and values are nullable.
	Elem *Type
	// Fields are the fields of a Struct, in order.
	Fields []Field
}

// TimeFormat is how an instant is written: one of the names rfc3339, unix_s, unix_ms, unix_us, unix_ns, or a layout of the
// package time. [TimeFormat.Parse] defines their meaning.
type TimeFormat string

// Field is a column, or a field of a Struct.
type Field struct {
	Name     string
	Type     Type
	Nullable bool
	// Path is the location of the value in a row, from the outermost object inwards. Empty means Name at the top level of the row or
	// enclosing struct.
	Path []string
	// Aliases are alternative paths, tried in order if Path has no value, such as the field's names in older versions.
	Aliases [][]string
	// Default is the value, as JSON, for rows without one. Empty means null.
	Default string
	// Doc is a description for readers.
	Doc string
}

// Equal reports whether two types are the same to a query. It ignores formats and dictionaries.
func (t *Type) Equal(o *Type) bool {
	if t.Kind != o.Kind || t.Precision != o.Precision || t.Scale != o.Scale || len(t.Fields) != len(o.Fields) || (t.Elem == nil) != (o.Elem == nil) {
		return false
	}
	for i := range t.Fields {
		if t.Fields[i].Name != o.Fields[i].Name || !t.Fields[i].Type.Equal(&o.Fields[i].Type) {
			return false
		}
	}
	return t.Elem == nil || t.Elem.Equal(o.Elem)
}

// String returns the type as error messages write it: decimal(10,2), list<string>, struct<a int64, b map<bool>>.
func (t *Type) String() string { return string(t.appendText(nil, false)) }

var kindNames = [...]string{
	Invalid: "invalid", Null: "null", Bool: "bool", Int32: "int32", Int64: "int64", Uint64: "uint64", Float64: "float64", Decimal: "decimal",
	String: "string", Binary: "binary", Date: "date", Timestamp: "timestamp", Interval: "interval", List: "list", Struct: "struct", Map: "map",
}

// String returns the name that schemas use for the kind.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return kindNames[Invalid]
}

var arrowTypes = map[Kind]arrow.DataType{
	Invalid: arrow.Null, Null: arrow.Null, Bool: arrow.FixedWidthTypes.Boolean, Int32: arrow.PrimitiveTypes.Int32, Int64: arrow.PrimitiveTypes.Int64,
	Uint64: arrow.PrimitiveTypes.Uint64, Float64: arrow.PrimitiveTypes.Float64, String: arrow.BinaryTypes.String, Binary: arrow.BinaryTypes.Binary,
	Date: arrow.FixedWidthTypes.Date32, Timestamp: &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"},
	Interval: arrow.FixedWidthTypes.MonthDayNanoInterval,
}

// Arrow returns the Arrow type that holds values of the type. Timestamps are timestamp[us, UTC], dates are date32, decimals are
// decimal128, dictionaries have int32 codes, intervals are month_day_nano.
func (t *Type) Arrow() arrow.DataType {
	switch t.Kind { //nolint:exhaustive // the others are in the table
	case Decimal:
		return &arrow.Decimal128Type{Precision: t.Precision, Scale: t.Scale}
	case List:
		return arrow.ListOf(t.Elem.Arrow())
	case Map:
		return arrow.MapOf(arrow.BinaryTypes.String, t.Elem.Arrow())
	case Struct:
		fields := make([]arrow.Field, len(t.Fields))
		for i := range t.Fields {
			fields[i] = t.Fields[i].Arrow()
		}
		return arrow.StructOf(fields...)
	}
	if t.Dictionary {
		return &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String}
	}
	return arrowTypes[t.Kind]
}

// Arrow returns the Arrow field of a column.
func (f *Field) Arrow() arrow.Field {
	return arrow.Field{Name: f.Name, Type: f.Type.Arrow(), Nullable: f.Nullable}
}
