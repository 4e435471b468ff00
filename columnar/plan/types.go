package plan

import (
	"cmp"

	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/value"
)

var (
	typeNull      = schema.Type{Kind: schema.Null}
	typeBool      = schema.Type{Kind: schema.Bool}
	typeInt32     = schema.Type{Kind: schema.Int32}
	typeInt64     = schema.Type{Kind: schema.Int64}
	typeUint64    = schema.Type{Kind: schema.Uint64}
	typeFloat64   = schema.Type{Kind: schema.Float64}
	typeString    = schema.Type{Kind: schema.String}
	typeBinary    = schema.Type{Kind: schema.Binary}
	typeDate      = schema.Type{Kind: schema.Date}
	typeTimestamp = schema.Type{Kind: schema.Timestamp}
	typeInterval  = schema.Type{Kind: schema.Interval}
)

// freeScale is the scale of numeric without a given scale, if the value has none: when cast from double precision or text.
const freeScale = 9

// decimal returns a decimal type with the given digits before and after the point. If they do not fit, the digits before the
// point have priority, but at least keep digits remain after it.
func decimal(whole, scale, keep int32) schema.Type {
	if whole+scale > value.MaxPrecision {
		scale = max(min(scale, keep), min(scale, value.MaxPrecision-whole))
	}
	return schema.Type{Kind: schema.Decimal, Precision: max(1, min(whole+scale, value.MaxPrecision)), Scale: scale}
}

// decimalOf returns the decimal type that holds every value of an integer type, or a decimal type itself.
func decimalOf(t *schema.Type) schema.Type {
	switch t.Kind {
	case schema.Int32:
		return schema.Type{Kind: schema.Decimal, Precision: 10}
	case schema.Int64:
		return schema.Type{Kind: schema.Decimal, Precision: 19}
	case schema.Uint64:
		return schema.Type{Kind: schema.Decimal, Precision: 20}
	case schema.Decimal:
		return schema.Type{Kind: schema.Decimal, Precision: t.Precision, Scale: t.Scale}
	default:
		return schema.Type{Kind: schema.Decimal, Precision: value.MaxPrecision, Scale: freeScale}
	}
}

func isNumeric(k schema.Kind) bool { return k >= schema.Int32 && k <= schema.Decimal }

func isInteger(k schema.Kind) bool { return k >= schema.Int32 && k <= schema.Uint64 }

// isNested reports whether values of the kind have elements or fields.
func isNested(k schema.Kind) bool {
	return k == schema.List || k == schema.Struct || k == schema.Map
}

// plainType returns the type without its storage properties.
func plainType(t *schema.Type) schema.Type {
	return schema.Type{Kind: t.Kind, Precision: t.Precision, Scale: t.Scale, Elem: t.Elem, Fields: t.Fields}
}

// commonType returns the common type of two types, to which both sides of a comparison are cast. It exists for equal types, for
// numbers (int32, int64, decimal, float64 in that order; a uint64 with another integer type gives a decimal), and for date with
// timestamp. Nothing else is converted implicitly.
func commonType(a, b *schema.Type) (schema.Type, bool) {
	switch {
	case a.Kind == schema.Null:
		return plainType(b), true
	case b.Kind == schema.Null, a.Equal(b):
		return plainType(a), true
	case isNumeric(a.Kind) && isNumeric(b.Kind):
		return commonNumber(a, b), true
	case a.Kind == schema.Date && b.Kind == schema.Timestamp, a.Kind == schema.Timestamp && b.Kind == schema.Date:
		return typeTimestamp, true
	}
	return typeNull, false
}

func commonNumber(a, b *schema.Type) schema.Type {
	if a.Kind == schema.Float64 || b.Kind == schema.Float64 {
		return typeFloat64
	}
	if signed := a.Kind <= schema.Int64 && b.Kind <= schema.Int64; signed {
		return typeInt64 // the types differ
	}
	da, db := decimalOf(a), decimalOf(b)
	scale := max(da.Scale, db.Scale)
	return decimal(max(da.Precision-da.Scale, db.Precision-db.Scale), scale, scale)
}

// isImplicit reports whether a type converts to another without an explicit cast.
func isImplicit(from, to *schema.Type) bool {
	t, ok := commonType(from, to)
	return ok && t.Kind == to.Kind
}

// typeNames are PostgreSQL's names of the kinds that have another one in schemas.
var typeNames = map[schema.Kind]string{
	schema.Null: "unknown", schema.Bool: "boolean", schema.Int32: "integer", schema.Int64: "bigint", schema.Float64: "double precision",
	schema.Decimal: "numeric", schema.String: "text", schema.Binary: "bytea", schema.Timestamp: "timestamptz",
}

// typeName returns the name of a type for errors: PostgreSQL's, if it has one.
func typeName(t *schema.Type) string {
	if t.Kind == schema.List {
		return typeName(t.Elem) + "[]"
	}
	return cmp.Or(typeNames[t.Kind], t.Kind.String())
}

// namedTypes are the types by their names in SQL.
var namedTypes = func() map[string]schema.Type {
	m := map[string]schema.Type{}
	for kind := schema.Bool; kind <= schema.Interval; kind++ {
		t := schema.Type{Kind: kind}
		m[typeName(&t)] = t
	}
	return m
}()

// namedType returns the type with a name. numeric without a scale takes its scale from the operand.
func namedType(t sql.Type) schema.Type {
	named := namedTypes[t.Name]
	if t.Precision >= 0 {
		named.Precision, named.Scale = int32(t.Precision), int32(t.Scale) //nolint:gosec // at most 38
	}
	return named
}

// isCastable reports whether PostgreSQL has an explicit cast.
func isCastable(from, to schema.Kind) bool {
	switch {
	case from == schema.Null || from == to:
		return true
	case isNested(from) || isNested(to):
		return false
	case from == schema.String || to == schema.String:
		return true
	case isNumeric(from) && isNumeric(to):
		return true
	case from == schema.Bool:
		return to == schema.Int32
	case to == schema.Bool:
		return from == schema.Int32
	default:
		return from == schema.Date && to == schema.Timestamp || from == schema.Timestamp && to == schema.Date
	}
}

// parseText parses a constant of a type from its text.
func parseText(t *schema.Type, s string) (any, error) {
	switch t.Kind {
	case schema.Bool:
		return value.ParseBool(s)
	case schema.Int32:
		v, err := value.ParseInt(s, 32)
		return int32(v), err //nolint:gosec // 32 bits, as asked for
	case schema.Int64:
		return value.ParseInt(s, 64)
	case schema.Uint64:
		return value.ParseUint(s)
	case schema.Float64:
		return value.ParseFloat(s)
	case schema.Decimal:
		return value.ParseDecimal(s, t.Precision, t.Scale)
	case schema.String:
		return s, nil
	case schema.Binary:
		return value.ParseBinary(s)
	case schema.Date:
		return value.ParseDate(s)
	case schema.Timestamp:
		return value.ParseTimestamp(s)
	case schema.Interval:
		return value.ParseInterval(s)
	default:
		return nil, value.ErrSyntax
	}
}
