package schema

import (
	"bytes"
	"encoding/base64"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Marshal returns the schema as JSON on one line, always the same for the same schema. [Parse] reads it.
func (s *Schema) Marshal() []byte {
	w := &jsonWriter{}
	w.writeSchema(s)
	return w.b
}

// YAML returns the schema as a file that people edit. [Parse] reads it.
func (s *Schema) YAML() ([]byte, error) {
	// YAML reads JSON; the nodes keep the order of the keys, and lose the style.
	var doc yaml.Node
	w := &jsonWriter{expand: true}
	w.writeSchema(s)
	if err := yaml.Unmarshal(w.b, &doc); err != nil {
		return nil, err
	}
	setStyle(&doc, "")
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(&doc); err != nil {
		return nil, err
	}
	return b.Bytes(), e.Close()
}

// setStyle chooses how YAML is written: paths and small fields on one line, the rest in blocks, quotes only where they are needed.
func setStyle(n *yaml.Node, key string) {
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
		setStyle(c, name)
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

// jsonWriter writes JSON.
type jsonWriter struct {
	b []byte
	// first says that the next key or item is the first of its object or list.
	first bool
	// expand writes out the fields of structs whose text would be a long line.
	expand bool
}

func (w *jsonWriter) openBracket(c byte)  { w.b, w.first = append(w.b, c), true }
func (w *jsonWriter) closeBracket(c byte) { w.b, w.first = append(w.b, c), false }

func (w *jsonWriter) writeComma() {
	if !w.first {
		w.b = append(w.b, ',')
	}
	w.first = false
}

func (w *jsonWriter) writeKey(k string) {
	w.writeComma()
	w.b = append(appendString(w.b, k), ':')
}

func (w *jsonWriter) writeText(k, v string) {
	w.writeKey(k)
	w.b = appendString(w.b, v)
}

// writeOptional writes a text that is not empty.
func (w *jsonWriter) writeOptional(k, v string) {
	if v != "" {
		w.writeText(k, v)
	}
}

func (w *jsonWriter) writeRaw(k, v string) {
	w.writeKey(k)
	w.b = append(w.b, v...)
}

func (w *jsonWriter) writeList(texts []string) {
	w.openBracket('[')
	for _, s := range texts {
		w.writeComma()
		w.b = appendString(w.b, s)
	}
	w.closeBracket(']')
}

func (w *jsonWriter) writeSchema(s *Schema) {
	w.openBracket('{')
	w.writeRaw("version", strconv.FormatUint(uint64(s.Version), 10))
	w.writeText("format", string(s.Format))
	w.writeText("on_error", string(s.OnError))
	if o := s.CSV; o != nil {
		w.writeKey("csv")
		w.openBracket('{')
		w.writeText("delimiter", o.Delimiter)
		if o.Header {
			w.writeRaw("header", "true")
		}
		if len(o.Columns) > 0 {
			w.writeKey("columns")
			w.writeList(o.Columns)
		}
		w.writeOptional("null", o.Null)
		w.closeBracket('}')
	}
	w.writeOptional("avro", s.Avro)
	if o := s.Protobuf; o != nil {
		w.writeKey("protobuf")
		w.openBracket('{')
		w.writeText("message", o.Message)
		w.writeText("descriptors", base64.StdEncoding.EncodeToString(o.Descriptors))
		w.closeBracket('}')
	}
	w.writeKey("fields")
	w.writeFields(s.Fields)
	w.closeBracket('}')
}

func (w *jsonWriter) writeFields(fields []Field) {
	w.openBracket('[')
	for i := range fields {
		w.writeComma()
		w.writeField(&fields[i])
	}
	w.closeBracket(']')
}

func (w *jsonWriter) writeField(f *Field) {
	w.openBracket('{')
	w.writeText("name", f.Name)
	in := innermostType(&f.Type)
	const longLine = 80
	// Where the fields of a struct have more than a type's text can say they are written out.
	expand := in.Kind == Struct && (!plainFields(in.Fields) || w.expand && len(f.Type.Text()) > longLine)
	if expand {
		w.writeText("type", f.Type.wrapText("struct"))
	} else {
		w.writeText("type", f.Type.Text())
	}
	if !f.Nullable {
		w.writeRaw("nullable", "false")
	}
	if len(f.Path) > 0 {
		w.writeKey("path")
		w.writeList(f.Path)
	}
	if len(f.Aliases) > 0 {
		w.writeKey("aliases")
		w.openBracket('[')
		for _, a := range f.Aliases {
			w.writeComma()
			w.writeList(a)
		}
		w.closeBracket(']')
	}
	if f.Default != "" {
		w.writeRaw("default", f.Default)
	}
	w.writeOptional("doc", f.Doc)
	if expand {
		w.writeKey("fields")
		w.writeFields(in.Fields)
	}
	w.closeBracket('}')
}

// wrapText returns the text of the lists and maps around what is innermost.
func (t *Type) wrapText(inside string) string {
	if t.Elem == nil {
		return inside
	}
	return t.Kind.String() + "<" + t.Elem.wrapText(inside) + ">"
}

// plainFields reports whether the text of a type says all of a struct's fields.
func plainFields(fields []Field) bool {
	for i := range fields {
		f := &fields[i]
		if len(f.Path) > 0 || len(f.Aliases) > 0 || f.Default != "" || f.Doc != "" {
			return false
		}
		if in := innermostType(&f.Type); in.Kind == Struct && !plainFields(in.Fields) {
			return false
		}
	}
	return true
}
