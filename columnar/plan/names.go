package plan

import (
	"strconv"

	"scribe/columnar/sql"
)

// uniqueNames gives out names that are unique: who has the answer (Arrow, data frames) finds columns by name. The number is the last that was
// put after a name.
type uniqueNames map[string]int

// takeName returns a name, with _2, _3, ... after it if others have it.
func (n uniqueNames) takeName(name string) string {
	u := name
	for n[u] > 0 {
		n[name]++
		u = name + "_" + strconv.Itoa(n[name])
	}
	n[u] = 1
	return u
}

// itemName is the name of an element of the SELECT list: its alias, or what PostgreSQL takes; empty where that would be ?column?.
func itemName(it sql.Item) string {
	if it.Alias != "" {
		return it.Alias
	}
	name, _ := figureName(it.Expr)
	return name
}

// figureName is what PostgreSQL calls an expression; strong is a name that a cast does not replace.
func figureName(e sql.Expr) (name string, strong bool) {
	switch e := e.(type) {
	case *sql.Name:
		return e.Parts[len(e.Parts)-1], true
	case *sql.Field:
		return e.Name, true
	case *sql.Index:
		return figureName(e.X)
	case *sql.Call:
		return e.Func, true
	case *sql.Cast:
		if name, strong := figureName(e.X); strong {
			return name, true
		}
		return shortType(e.Type), false
	case *sql.Typed:
		return shortType(e.Type), false
	case *sql.Case:
		if e.Else != nil {
			if name, strong := figureName(e.Else); strong {
				return name, true
			}
		}
		return "case", false
	}
	return "", false
}

// shortType is the name of a type as PostgreSQL names columns after it.
func shortType(t sql.Type) string {
	switch t.Name {
	case "boolean":
		return "bool"
	case "integer":
		return "int4"
	case "bigint":
		return "int8"
	case "double precision":
		return "float8"
	default:
		return t.Name
	}
}
