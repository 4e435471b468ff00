package columns

import (
	"slices"
	"strconv"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/internal/format/placement"
	"scribe/internal/transport/layouts"
	scribev1 "scribe/proto/scribe/v1"
)

// maxValues bounds the values of an IN by which shards are chosen.
const maxValues = 1000

// matchingShards returns the logical shards in which rows that satisfy a WHERE can be, ascending; ok is false if that may be any. A
// category that places messages by key or field has all rows with a value in the shards of the layouts that it had.
func matchingShards(where expr.Expr, s *schema.Schema, c *scribev1.Category) (shards []uint32, ok bool) {
	for _, term := range expr.Conjuncts(where) {
		some, known := shardsOfTerm(term, s, c)
		switch {
		case !known:
		case !ok:
			shards, ok = some, true
		default: // all terms hold of a row
			shards = slices.DeleteFunc(shards, func(n uint32) bool { return !slices.Contains(some, n) })
		}
	}
	return shards, ok
}

// shardsOfTerm is matchingShards for one term: column = constant, or column IN (constants).
func shardsOfTerm(term expr.Expr, s *schema.Schema, c *scribev1.Category) (shards []uint32, ok bool) {
	call, isCall := term.(*expr.Call)
	if !isCall || len(call.Args) < 2 || call.Op != expr.Eq && call.Op != expr.In || len(call.Args) > maxValues {
		return nil, false
	}
	column, values := call.Args[0], call.Args[1:]
	if _, reversed := column.(*expr.Literal); reversed && call.Op == expr.Eq {
		column, values = call.Args[1], call.Args[:1]
	}
	named, isColumn := column.(*expr.Column)
	if !isColumn {
		return nil, false
	}
	places := placedBy(named.Name, s)
	if places == nil {
		return nil, false
	}
	for _, v := range values {
		literal, isLiteral := v.(*expr.Literal)
		if !isLiteral {
			return nil, false
		}
		if literal.Value == nil { // equal to nothing
			continue
		}
		text, canonical := canonicalText(literal)
		if !canonical {
			return nil, false
		}
		some, known := layouts.ShardsOf(c, text, places)
		if !known {
			return nil, false
		}
		shards = append(shards, some...)
	}
	slices.Sort(shards)
	return slices.Compact(shards), true
}

// placedBy returns a function that reports whether a layout places messages by a column; nil if none does. Only rows that are whole
// messages count, and columns whose values are always the field's: not those with aliases or a default.
func placedBy(column string, s *schema.Schema) func(*placement.Layout) bool {
	if column == schema.ColumnKey {
		return func(l *placement.Layout) bool { return l.Kind() == placement.ByKey }
	}
	if s.Format != schema.JSON && s.Format != schema.Arrow {
		return nil
	}
	i := slices.IndexFunc(s.Fields, func(f schema.Field) bool { return f.Name == column })
	if i < 0 || len(s.Fields[i].Aliases) > 0 || s.Fields[i].Default != "" {
		return nil
	}
	path := s.Fields[i].Source()
	return func(l *placement.Layout) bool { return l.Kind() == placement.ByField && l.Path().Equal(path) }
}

// canonicalText returns the text by which values equal to a constant are placed. ok is false if there may be others: of floats,
// decimals and times, for example.
func canonicalText(l *expr.Literal) (text []byte, ok bool) {
	switch v := l.Value.(type) {
	case string:
		return []byte(v), placement.IsCanonical(v)
	case []byte:
		return v, l.T.Kind == schema.Binary // of a key
	case int32:
		return strconv.AppendInt(nil, int64(v), 10), true
	case int64:
		return strconv.AppendInt(nil, v, 10), true
	case uint64:
		return strconv.AppendUint(nil, v, 10), true
	}
	return nil, false
}
