package schema

import (
	"bytes"
	"encoding/base64"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Marshal returns the schema as JSON on one line, always the same for the same schema. [Parse] reads it.
func (s *Schema) Marshal() []byte {
	w := &writer{}
	w.schema(s)
	return w.b
}

// YAML returns the schema as a file that people edit. [Parse] reads it.
func (s *Schema) YAML() ([]byte, error) {
	// YAML reads JSON; the nodes keep the order of the keys, and lose the style.
	var doc yaml.Node
	w := &writer{expand: true}
	w.schema(s)
	if err := yaml.Unmarshal(w.b, &doc); err != nil {
		return nil, err
	}
	style(&doc, "")
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(&doc); err != nil {
		return nil, err
	}
	return b.Bytes(), e.Close()
}

// style chooses how YAML is written: paths and small fields on one line, the rest in blocks, quotes only where they are needed.
func style(n *yaml.Node, key string) {
	n.Style &^= yaml.DoubleQuotedStyle
	switch {
	case key == "path", key == "aliases", key == "columns", key == "fields" && smallField(n):
	default:
		n.Style &^= yaml.FlowStyle
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		var plain yaml.Node
		plain.SetString(n.Value)
		n.Style = plain.Style
		if (&yaml.Node{Kind: yaml.ScalarNode, Value: n.Value}).ShortTag() != "!!str" {
			n.Style = yaml.DoubleQuotedStyle
		}
	}
	for i, c := range n.Content {
		name := key
		if n.Kind == yaml.MappingNode {
			if name = ""; i%2 == 1 {
				name = n.Content[i-1].Value
			}
		}
		style(c, name)
	}
}

// smallField reports whether an object fits on a line.
func smallField(n *yaml.Node) bool {
	length := 0
	for _, c := range n.Content {
		if length += len(c.Value) + 2; c.Kind != yaml.ScalarNode || c.Value == "doc" {
			return false
		}
	}
	return n.Kind == yaml.MappingNode && length < 100
}

// writer writes JSON.
type writer struct {
	b []byte
	// first says that the next key or item is the first of its object or list.
	first bool
	// expand writes out the fields of structs whose text would be a long line.
	expand bool
}

func (w *writer) open(c byte)  { w.b, w.first = append(w.b, c), true }
func (w *writer) close(c byte) { w.b, w.first = append(w.b, c), false }

func (w *writer) next() {
	if !w.first {
		w.b = append(w.b, ',')
	}
	w.first = false
}

func (w *writer) key(k string) {
	w.next()
	w.b = append(appendString(w.b, k), ':')
}

func (w *writer) text(k, v string) {
	w.key(k)
	w.b = appendString(w.b, v)
}

// optional writes a text that is not empty.
func (w *writer) optional(k, v string) {
	if v != "" {
		w.text(k, v)
	}
}

func (w *writer) raw(k, v string) {
	w.key(k)
	w.b = append(w.b, v...)
}

func (w *writer) texts(texts []string) {
	w.open('[')
	for _, s := range texts {
		w.next()
		w.b = appendString(w.b, s)
	}
	w.close(']')
}

func (w *writer) schema(s *Schema) {
	w.open('{')
	w.raw("version", strconv.FormatUint(uint64(s.Version), 10))
	w.text("format", string(s.Format))
	w.text("on_error", string(s.OnError))
	if o := s.CSV; o != nil {
		w.key("csv")
		w.open('{')
		w.text("delimiter", o.Delimiter)
		if o.Header {
			w.raw("header", "true")
		}
		if len(o.Columns) > 0 {
			w.key("columns")
			w.texts(o.Columns)
		}
		w.optional("null", o.Null)
		w.close('}')
	}
	w.optional("avro", s.Avro)
	if o := s.Protobuf; o != nil {
		w.key("protobuf")
		w.open('{')
		w.text("message", o.Message)
		w.text("descriptors", base64.StdEncoding.EncodeToString(o.Descriptors))
		w.close('}')
	}
	w.key("fields")
	w.fields(s.Fields)
	w.close('}')
}

func (w *writer) fields(fields []Field) {
	w.open('[')
	for i := range fields {
		w.next()
		w.field(&fields[i])
	}
	w.close(']')
}

func (w *writer) field(f *Field) {
	w.open('{')
	w.text("name", f.Name)
	in := innermost(&f.Type)
	const longLine = 80
	// Where the fields of a struct have more than a type's text can say they are written out.
	expand := in.Kind == Struct && (!plainFields(in.Fields) || w.expand && len(f.Type.Text()) > longLine)
	if expand {
		w.text("type", f.Type.wrap("struct"))
	} else {
		w.text("type", f.Type.Text())
	}
	if !f.Nullable {
		w.raw("nullable", "false")
	}
	if len(f.Path) > 0 {
		w.key("path")
		w.texts(f.Path)
	}
	if len(f.Aliases) > 0 {
		w.key("aliases")
		w.open('[')
		for _, a := range f.Aliases {
			w.next()
			w.texts(a)
		}
		w.close(']')
	}
	if f.Default != "" {
		w.raw("default", f.Default)
	}
	w.optional("doc", f.Doc)
	if expand {
		w.key("fields")
		w.fields(in.Fields)
	}
	w.close('}')
}

// wrap returns the text of the lists and maps around what is innermost.
func (t *Type) wrap(inside string) string {
	if t.Elem == nil {
		return inside
	}
	return t.Kind.String() + "<" + t.Elem.wrap(inside) + ">"
}

// plainFields reports whether the text of a type says all of a struct's fields.
func plainFields(fields []Field) bool {
	for i := range fields {
		f := &fields[i]
		if len(f.Path) > 0 || len(f.Aliases) > 0 || f.Default != "" || f.Doc != "" {
			return false
		}
		if in := innermost(&f.Type); in.Kind == Struct && !plainFields(in.Fields) {
			return false
		}
	}
	return true
}
