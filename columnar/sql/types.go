package sql

import (
	"cmp"
	"strconv"
	"strings"

	"scribe/columnar/near"
)

// typeNames maps type names of PostgreSQL and of schemas to our types.
var typeNames = map[string]string{
	"bool": "boolean", "boolean": "boolean",
	"int": "integer", "integer": "integer", "int4": "integer", "int32": "integer",
	"bigint": "bigint", "int8": "bigint", "int64": "bigint",
	"uint64": "uint64",
	"float":  "double precision", "float8": "double precision", "float64": "double precision", "double": "double precision",
	"numeric": "numeric", "decimal": "numeric", "dec": "numeric",
	"text": "text", "varchar": "text", "character": "text", "string": "text",
	"bytea": "bytea", "binary": "bytea",
	"date":      "date",
	"timestamp": "timestamptz", "timestamptz": "timestamptz",
	"interval": "interval",
}

// otherTypes maps unsupported PostgreSQL types to an alternative.
var otherTypes = map[string]string{
	"smallint": "integer", "int2": "integer", "real": "double precision", "float4": "double precision", "char": "text", "bpchar": "text",
	"json": "text", "jsonb": "text", "uuid": "text", "time": "interval", "money": "numeric", "inet": "text", "name": "text", "bit": "integer",
	"uint32": "bigint", "float32": "double precision",
}

// NamedType returns the type for a single-word name. It returns false if there is none.
func NamedType(name string) (Type, bool) {
	n, ok := typeNames[name]
	return Type{Name: n, Precision: -1, Scale: -1}, ok
}

// parseType parses the name of a type.
func (p *queryParser) parseType() Type {
	t := p.token()
	p.failIf(t.kind != word && t.kind != quoted, "expected the name of a type")
	typ, ok := NamedType(t.text)
	if !ok {
		panic(p.typeError(t))
	}
	p.i++
	switch t.text {
	case "double":
		p.acceptWord("precision")
	case "character":
		p.refuseAt(!p.acceptWord("varying"), t.pos, "Use text.", "type character is not supported")
	case "timestamp":
		if p.isWord("with") || p.isWord("without") {
			p.i++
			for _, w := range []string{"time", "zone"} {
				p.expectWord(w)
			}
		}
	}
	if p.isSymbol("(") {
		typ = p.parseModifiers(t, typ)
	}
	p.refuseIf(p.isSymbol("[") || p.isWord("array"), "", "types of arrays are not supported")
	return typ
}

func (p *queryParser) typeError(t *queryToken) *Error {
	if instead, ok := otherTypes[t.text]; ok {
		return p.errorHere("Use "+instead+".", "type "+t.text+" is not supported")
	}
	hint := near.Hint(t.text, []string{
		"boolean", "integer", "bigint", "double", "numeric", "text", "bytea", "date", "timestamp", "timestamptz", "interval", "uint64", "varchar",
	})
	hint = cmp.Or(hint, "Types are boolean, integer, bigint, uint64, double precision, numeric, text, bytea, date, timestamptz and interval.")
	return p.errorHere(capitalize(hint), "type \""+ClipText(t.text)+"\" does not exist")
}

// parseModifiers parses the numbers in parentheses after a type.
func (p *queryParser) parseModifiers(t *queryToken, typ Type) Type {
	at := p.token().pos
	p.i++
	var numbers []int
	for {
		n := p.token()
		negative := p.acceptSymbol("-")
		if negative {
			n = p.token()
		}
		v, err := strconv.Atoi(n.text)
		p.failIf(n.kind != number || err != nil, "expected an integer")
		if negative {
			v = -v
		}
		p.i++
		numbers = append(numbers, v)
		if len(numbers) > 2 || !p.acceptSymbol(",") {
			break
		}
	}
	p.expectSymbol(")")
	switch {
	case typ.Name == "numeric":
		typ.Precision, typ.Scale = numbers[0], 0
		if len(numbers) > 1 {
			typ.Scale = numbers[1]
		}
		p.refuseAt(len(numbers) > 2 || typ.Precision < 1 || typ.Precision > 38 || typ.Scale < 0 || typ.Scale > typ.Precision, at,
			"The precision is from 1 to 38, the scale from 0 to the precision.", "invalid precision or scale of numeric")
	case t.text == "float" && len(numbers) == 1 && numbers[0] >= 25 && numbers[0] <= 53:
	case typ.Name == "text":
		panic(p.errorAt(at, "Use left(x, n).", "a length of "+t.text+" is not supported"))
	case typ.Name == "timestamptz", typ.Name == "interval":
		panic(p.errorAt(at, "Use date_trunc().", "a precision of "+t.text+" is not supported"))
	default:
		panic(p.errorAt(at, "", "type modifiers of "+t.text+" are not supported"))
	}
	return typ
}

// String returns the type as written in SQL.
func (t Type) String() string {
	if t.Precision < 0 {
		return t.Name
	}
	return t.Name + "(" + strings.Join([]string{strconv.Itoa(t.Precision), strconv.Itoa(t.Scale)}, ",") + ")"
}

// capitalize makes the first letter of a hint upper case.
func capitalize(hint string) string {
	return strings.ToUpper(hint[:1]) + hint[1:]
}
