package plan

import (
	"cmp"
	"strconv"

	"scribe/columnar/sql"
)

// uniqueNames assigns unique names, because readers of the result (Arrow, data frames) look up columns by name. The value is the
// last suffix number used for a name.
type uniqueNames map[string]int

// takeName returns a name, with a suffix _2, _3, ... if it is taken.
func (n uniqueNames) takeName(name string) string {
	u := name
	for n[u] > 0 {
		n[name]++
		u = name + "_" + strconv.Itoa(n[name])
	}
	n[u] = 1
	return u
}

// itemName returns the name of a SELECT element: its alias, or PostgreSQL's choice. It is empty where PostgreSQL uses ?column?.
func itemName(it sql.Item) string {
	if it.Alias != "" {
		return it.Alias
	}
	name, _ := figureName(it.Expr)
	return name
}

// figureName returns PostgreSQL's name for an expression. strong means that a cast does not replace the name.
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

// shortTypes are the names that PostgreSQL uses for columns, where they differ from those in casts.
var shortTypes = map[string]string{"boolean": "bool", "integer": "int4", "bigint": "int8", "double precision": "float8"}

func shortType(t sql.Type) string { return cmp.Or(shortTypes[t.Name], t.Name) }
