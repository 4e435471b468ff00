package vector

import (
	"bytes"

	"github.com/apache/arrow-go/v18/arrow/array"

	"scribe/columnar/schema"
)

// nestedTextNode writes lists, structs and maps.
type nestedTextNode struct {
	a node
	t *schema.Type // of a
}

func (n *nestedTextNode) eval(ev *eval, sel bitmap) *vec {
	a := ev.args(sel, n.a)[0]
	out := &vec{kind: schema.String, rows: ev.rows, valid: a.valid}
	b := ev.builder()
	if a.arr != nil {
		write := printing(ev.scratch, n.t, a)
		for i := range each(ev.live(sel, a), ev.rows) {
			b.data = write(b.data, i)
			if !b.row(i) {
				break
			}
		}
	}
	b.into(out)
	return out
}

// printable reports whether values of the type have a text.
func printable(t *schema.Type) bool {
	switch t.Kind {
	case schema.List, schema.Map:
		return printable(t.Elem)
	case schema.Struct:
		for i := range t.Fields {
			if !printable(&t.Fields[i].Type) {
				return false
			}
		}
		return true
	default:
		return printer(t) != nil
	}
}

// printing returns what appends the text of a row of v that is not null: of lists as PostgreSQL writes arrays, of structs as it writes
// composite values, of maps as it writes those of its extension hstore.
func printing(s *scratch, t *schema.Type, v *vec) func(dst []byte, i int) []byte {
	switch t.Kind {
	case schema.List:
		return printingList(s, t, v)
	case schema.Struct:
		return printingStruct(s, t, v)
	case schema.Map:
		return printingMap(s, t, v)
	default:
		write := printer(t)
		return func(dst []byte, i int) []byte { return write(dst, v, i) }
	}
}

func printingList(s *scratch, t *schema.Type, v *vec) func(dst []byte, i int) []byte {
	e := elementsOf(v.arr)
	values := load(s, t.Elem, e.values)
	write := printing(s, t.Elem, values)
	quoted := func(text []byte) bool {
		return len(text) == 0 || bytes.EqualFold(text, []byte("null")) || bytes.ContainsAny(text, "{}\",\\ \t\n\v\f\r")
	}
	if t.Elem.Kind == schema.List {
		quoted = func([]byte) bool { return false }
	}
	return func(dst []byte, i int) []byte {
		dst = append(dst, '{')
		for p := e.offsets[i]; p < e.offsets[i+1]; p++ {
			if p > e.offsets[i] {
				dst = append(dst, ',')
			}
			if values.null(int(p)) {
				dst = append(dst, "NULL"...)
				continue
			}
			from := len(dst)
			dst = write(dst, int(p))
			if quoted(dst[from:]) {
				dst = quote(dst, from, '\\')
			}
		}
		return append(dst, '}')
	}
}

func printingStruct(s *scratch, t *schema.Type, v *vec) func(dst []byte, i int) []byte {
	values := make([]*vec, len(t.Fields))
	writes := make([]func([]byte, int) []byte, len(t.Fields))
	for i := range t.Fields {
		ft := &t.Fields[i].Type
		values[i] = load(s, ft, v.arr.(*array.Struct).Field(i))
		writes[i] = printing(s, ft, values[i])
	}
	return func(dst []byte, i int) []byte {
		dst = append(dst, '(')
		for f, write := range writes {
			if f > 0 {
				dst = append(dst, ',')
			}
			if values[f].null(i) {
				continue
			}
			from := len(dst)
			dst = write(dst, i)
			if text := dst[from:]; len(text) == 0 || bytes.ContainsAny(text, "(),\"\\ \t\n\v\f\r") {
				dst = quote(dst, from, 0)
			}
		}
		return append(dst, ')')
	}
}

func printingMap(s *scratch, t *schema.Type, v *vec) func(dst []byte, i int) []byte {
	e := elementsOf(v.arr)
	entries := e.values.(*array.Struct)
	keys := load(s, &schema.Type{Kind: schema.String}, entries.Field(0))
	values := load(s, t.Elem, entries.Field(1))
	write := printing(s, t.Elem, values)
	return func(dst []byte, i int) []byte {
		for p := e.offsets[i]; p < e.offsets[i+1]; p++ {
			if p > e.offsets[i] {
				dst = append(dst, ", "...)
			}
			from := len(dst)
			dst = quote(append(dst, keys.str(int(p))...), from, '\\')
			dst = append(dst, "=>"...)
			if values.null(int(p)) {
				dst = append(dst, "NULL"...)
				continue
			}
			from = len(dst)
			dst = quote(write(dst, int(p)), from, '\\')
		}
		return dst
	}
}

// quote puts the text from there on in quotes. What must be escaped in it is by the character, 0 for being doubled.
func quote(dst []byte, from int, escape byte) []byte {
	extra := 2 + bytes.Count(dst[from:], []byte{'"'}) + bytes.Count(dst[from:], []byte{'\\'})
	read := len(dst) - 1
	dst = append(dst, make([]byte, extra)...)
	at := len(dst) - 1
	dst[at] = '"'
	for ; read >= from; read-- {
		c := dst[read]
		at--
		dst[at] = c
		if c == '"' || c == '\\' {
			at--
			if dst[at] = c; escape != 0 {
				dst[at] = escape
			}
		}
	}
	dst[from] = '"'
	return dst
}
