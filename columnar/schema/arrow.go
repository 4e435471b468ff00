package schema

import (
	"github.com/apache/arrow-go/v18/arrow"
)

// FromArrow makes a schema of version 1 and format Arrow from the schema of record batches. Each column gets the type that holds
// its values. It is nullable if the Arrow field is, or always if nullable is set. If no type holds a column's values, the error
// names the column.
func FromArrow(a *arrow.Schema, nullable bool) (*Schema, error) {
	s := &Schema{Version: 1, Format: Arrow, OnError: OnErrorNull}
	if a.NumFields() > MaxTypes {
		return nil, problemf("too many columns: %d, the limit is %d", a.NumFields(), MaxTypes)
	}
	var err error
	if s.Fields, err = arrowFields(a.Fields(), nullable, "", 0); err != nil {
		return nil, err
	}
	return s, s.Validate()
}

func arrowFields(fields []arrow.Field, nullable bool, within string, depth int) ([]Field, error) {
	names := make([]string, len(fields))
	for i, a := range fields {
		names[i] = a.Name
	}
	out := fieldsOf(names, depth)
	for i, a := range fields {
		f := &out[i]
		f.Nullable = nullable || a.Nullable
		t, err := arrowType(a.Type, nullable, joinName(within, f.Name), depth)
		if err != nil {
			return nil, err
		}
		f.Type = *t
	}
	return out, nil
}

var arrowScalars = map[arrow.Type]Kind{
	arrow.BOOL: Bool, arrow.INT8: Int32, arrow.INT16: Int32, arrow.INT32: Int32, arrow.UINT8: Int32, arrow.UINT16: Int32,
	arrow.INT64: Int64, arrow.UINT32: Int64, arrow.UINT64: Uint64, arrow.FLOAT16: Float64, arrow.FLOAT32: Float64, arrow.FLOAT64: Float64,
	arrow.STRING: String, arrow.LARGE_STRING: String, arrow.BINARY: Binary, arrow.LARGE_BINARY: Binary, arrow.FIXED_SIZE_BINARY: Binary,
	arrow.DATE32: Date, arrow.DATE64: Date, arrow.TIMESTAMP: Timestamp, arrow.NULL: String,
}

func arrowType(dt arrow.DataType, nullable bool, name string, depth int) (*Type, error) {
	if depth >= MaxDepth {
		return nil, problemf("column %q is nested too deep: the limit is %d levels", clipText(name), MaxDepth)
	}
	if kind, ok := arrowScalars[dt.ID()]; ok {
		return &Type{Kind: kind}, nil
	}
	var err error
	t := &Type{}
	switch dt := dt.(type) {
	case arrow.ExtensionType:
		return arrowType(dt.StorageType(), nullable, name, depth)
	case arrow.DecimalType:
		if p, s := dt.GetPrecision(), dt.GetScale(); p >= 1 && p <= 38 && s >= 0 && s <= p {
			return &Type{Kind: Decimal, Precision: p, Scale: s}, nil
		}
	case *arrow.DictionaryType:
		if t, err = arrowType(dt.ValueType, nullable, name, depth); err == nil {
			t.Dictionary = t.Kind == String
		}
		return t, err
	case *arrow.StructType:
		t.Kind = Struct
		if t.Fields, err = arrowFields(dt.Fields(), nullable, name, depth+1); err == nil && len(t.Fields) > 0 {
			return t, nil
		}
	case *arrow.MapType:
		if id := dt.KeyType().ID(); id == arrow.STRING || id == arrow.LARGE_STRING {
			t.Kind = Map
			t.Elem, err = arrowType(dt.ItemType(), nullable, name+"{}", depth+1)
			return t, err
		}
	case arrow.ListLikeType:
		t.Kind = List
		t.Elem, err = arrowType(dt.Elem(), nullable, name+"[]", depth+1)
		return t, err
	}
	if err != nil {
		return nil, err
	}
	return nil, problemf("column %q has the Arrow type %s, which no schema type can hold", clipText(name), dt)
}
