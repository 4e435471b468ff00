package plan

import (
	"slices"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/zone"
)

// stopsEarly reports whether a row can be dropped as soon as the predicate is false on the part read so far.
//
// The rest of the row may turn out to be damaged. Then every declared column is null, while the message's own columns keep their
// values. So a predicate that is false on a part of the row must not be true with nulls for all declared columns. This holds if
// each term of ANDs and ORs names only the message's columns, or can't be true with those nulls. If the predicate were true with
// those nulls, it would be true through terms of the message's columns alone, whatever else the row contains, and could not have
// been false.
func stopsEarly(e expr.Expr) bool {
	if c, ok := e.(*expr.Call); ok && c.Op.Info().Decides != 0 {
		return !slices.ContainsFunc(c.Args, func(a expr.Expr) bool { return !stopsEarly(a) })
	}
	reserved, declared := false, false
	expr.Columns(e, func(c *expr.Column) {
		reserved = reserved || c.Name == schema.ColumnError || c.Name == schema.ColumnRest
		declared = declared || !ofMessage(c.Name)
	})
	return !reserved && (!declared || !zone.MayMatchNulls(e, ofMessage))
}

// ofMessage reports whether a column's value does not depend on the message's body.
func ofMessage(name string) bool {
	switch name {
	case schema.ColumnTime, schema.ColumnPersisted, schema.ColumnKey, schema.ColumnShard, schema.ColumnOffset, schema.ColumnAttr, schema.ColumnRate:
		return true
	}
	return false
}
