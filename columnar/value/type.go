package value

import (
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
)

// TypeName returns the name of a type in queries: int64, string, timestamp, decimal(10,2), list<string>.
func TypeName(t arrow.DataType) string {
	switch t := t.(type) {
	case *arrow.StringType:
		return "string"
	case *arrow.BooleanType:
		return "bool"
	case *arrow.Date32Type:
		return "date"
	case *arrow.TimestampType:
		return "timestamp"
	case *arrow.MonthDayNanoIntervalType:
		return "interval"
	case *arrow.Decimal128Type:
		return "decimal(" + strconv.Itoa(int(t.Precision)) + "," + strconv.Itoa(int(t.Scale)) + ")"
	case *arrow.DictionaryType:
		return TypeName(t.ValueType)
	case *arrow.MapType:
		return "map<" + TypeName(t.ItemType()) + ">"
	case *arrow.ListType:
		return "list<" + TypeName(t.Elem()) + ">"
	case *arrow.StructType:
		fields := make([]string, t.NumFields())
		for i, f := range t.Fields() {
			fields[i] = f.Name + " " + TypeName(f.Type)
		}
		return "struct<" + strings.Join(fields, ", ") + ">"
	case *arrow.Float64Type:
		return "float64"
	default:
		return t.String()
	}
}
