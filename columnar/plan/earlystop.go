package plan

import (
	"slices"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/zone"
)

// stopsEarly reports whether a row can be given up as soon as the predicate is false on what is known of it.
//
// What is not known yet may turn out to be damaged, and then every declared column of the row is null, but the message's own columns are
// as they were. So it is to be shown that a predicate which is false on a part of the row is not true with nulls for all declared
// columns. That holds if each term of ANDs and ORs names the message's columns only, or can't be true with those nulls: were the
// predicate true then, it would be so through terms of the message's columns alone, whatever the row has, and could not have been false.
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

// ofMessage reports whether a column is known whatever is in the message's body.
func ofMessage(name string) bool {
	switch name {
	case schema.ColumnTime, schema.ColumnPersisted, schema.ColumnKey, schema.ColumnShard, schema.ColumnOffset, schema.ColumnAttr:
		return true
	}
	return false
}
