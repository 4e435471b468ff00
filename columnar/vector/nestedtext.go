package vector

import (
	"bytes"

	"github.com/apache/arrow-go/v18/arrow/array"

	"scribe/columnar/schema"
)

// nestedTextNode writes lists, structs and maps as text.
type nestedTextNode struct {
	a exprNode
	t *schema.Type // type of a
}

func (n *nestedTextNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	a := ev.evalArgs(sel, n.a)[0]
	if a.arr == nil {
		return ev.allNull(&schema.Type{Kind: schema.String})
	}
	out := &columnVec{kind: schema.String, rows: ev.rows, valid: a.valid}
	write := printNested(ev.scratchMemory, n.t, a)
	ev.buildTexts(out, ev.liveRows(sel, a), func(b *textBuilder, i int) bool {
		b.data = write(b.data, i)
		return true
	})
	return out
}

// isPrintable reports whether values of the type have a text.
func isPrintable(t *schema.Type) bool {
	switch t.Kind {
	case schema.List, schema.Map:
		return isPrintable(t.Elem)
	case schema.Struct:
		for i := range t.Fields {
			if !isPrintable(&t.Fields[i].Type) {
				return false
			}
		}
		return true
	default:
		return textPrinter(t) != nil
	}
}

// printNested returns a function that appends the text of a row of v that is not null. It writes lists like PostgreSQL's arrays,
// structs like its composite values, and maps like those of its extension hstore.
func printNested(s *scratchMemory, t *schema.Type, v *columnVec) func(dst []byte, i int) []byte {
	switch t.Kind {
	case schema.List:
		return printingList(s, t, v)
	case schema.Struct:
		return printingStruct(s, t, v)
	case schema.Map:
		return printingMap(s, t, v)
	default:
		write := textPrinter(t)
		return func(dst []byte, i int) []byte { return write(dst, v, i) }
	}
}

func printingList(s *scratchMemory, t *schema.Type, v *columnVec) func(dst []byte, i int) []byte {
	e := elementsOf(v.arr)
	values := loadArray(s, t.Elem, e.values)
	write := printNested(s, t.Elem, values)
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
			if values.isNull(int(p)) {
				dst = append(dst, "NULL"...)
				continue
			}
			from := len(dst)
			dst = write(dst, int(p))
			if quoted(dst[from:]) {
				dst = quoteText(dst, from, '\\')
			}
		}
		return append(dst, '}')
	}
}

func printingStruct(s *scratchMemory, t *schema.Type, v *columnVec) func(dst []byte, i int) []byte {
	values := make([]*columnVec, len(t.Fields))
	writes := make([]func([]byte, int) []byte, len(t.Fields))
	for i := range t.Fields {
		ft := &t.Fields[i].Type
		values[i] = loadArray(s, ft, v.arr.(*array.Struct).Field(i))
		writes[i] = printNested(s, ft, values[i])
	}
	return func(dst []byte, i int) []byte {
		dst = append(dst, '(')
		for f, write := range writes {
			if f > 0 {
				dst = append(dst, ',')
			}
			if values[f].isNull(i) {
				continue
			}
			from := len(dst)
			dst = write(dst, i)
			if text := dst[from:]; len(text) == 0 || bytes.ContainsAny(text, "(),\"\\ \t\n\v\f\r") {
				dst = quoteText(dst, from, 0)
			}
		}
		return append(dst, ')')
	}
}

func printingMap(s *scratchMemory, t *schema.Type, v *columnVec) func(dst []byte, i int) []byte {
	e := elementsOf(v.arr)
	entries := e.values.(*array.Struct)
	keys := loadArray(s, &schema.Type{Kind: schema.String}, entries.Field(0))
	values := loadArray(s, t.Elem, entries.Field(1))
	write := printNested(s, t.Elem, values)
	return func(dst []byte, i int) []byte {
		for p := e.offsets[i]; p < e.offsets[i+1]; p++ {
			if p > e.offsets[i] {
				dst = append(dst, ", "...)
			}
			from := len(dst)
			dst = quoteText(append(dst, keys.str(int(p))...), from, '\\')
			dst = append(dst, "=>"...)
			if values.isNull(int(p)) {
				dst = append(dst, "NULL"...)
				continue
			}
			from = len(dst)
			dst = quoteText(write(dst, int(p)), from, '\\')
		}
		return dst
	}
}

// quoteText puts the text from offset from on in quotes. Special characters in it are escaped by escape, or doubled if it is 0.
func quoteText(dst []byte, from int, escape byte) []byte {
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
