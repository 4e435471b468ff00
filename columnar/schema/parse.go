package schema

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"

	"scribe/columnar/near"
)

// Parse parses a schema from the text of a YAML or JSON file and checks it as [Schema.Validate] does. The version defaults to 1.
// Errors are of type *[Error] and have line numbers.
func Parse(text []byte) (*Schema, error) { return ParseFile(text, nil) }

// ParseFile is [Parse] for a file that may refer to others by the keys avro_file and, under protobuf, descriptors_file. load
// reads them.
func ParseFile(text []byte, load func(name string) ([]byte, error)) (*Schema, error) {
	doc, err := readDocument(text)
	if err != nil {
		return nil, err
	}
	r := &schemaReader{load: load, positions: map[*Field]*docNode{}}
	s := r.readSchema(doc)
	if err := r.errors.orNil(); err != nil {
		return nil, err
	}
	if err := validateSchema(s, r.positions); err != nil {
		return nil, err
	}
	return s, nil
}

// schemaReader builds a schema from a document. It collects problems and continues.
type schemaReader struct {
	errors Error
	load   func(name string) ([]byte, error)
	// positions maps fields to their nodes in the document.
	positions map[*Field]*docNode
	types     int
}

func (r *schemaReader) failAt(n *docNode, where, hint, format string, args ...any) {
	r.errors.addProblem(Problem{Line: n.line, Column: n.column, Where: where, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// objectKey is a key that an object may have, and what reads its value. at names the key in errors.
type objectKey struct {
	name string
	read func(n *docNode, at string)
}

// readObject reads an object's values by keys, and reports other keys. In errors, names of keys follow prefix.
func (r *schemaReader) readObject(n *docNode, where, prefix string, keys ...objectKey) {
	if n.kind != nodeObject {
		r.failAt(n, where, "", "got %v, want an object", n)
		return
	}
	for i, name := range n.keys {
		if k := slices.IndexFunc(keys, func(k objectKey) bool { return k.name == name }); k >= 0 {
			keys[k].read(n.items[i], prefix+name)
			continue
		}
		var names []string
		for _, k := range keys {
			names = append(names, k.name)
		}
		r.failAt(n.items[i], where, near.Hint(name, names), "unknown key %q", clipText(name))
	}
}

// readTexts returns the texts of a list.
func (r *schemaReader) readTexts(n *docNode, where string) (texts []string) {
	for _, item := range r.readList(n, where) {
		texts = append(texts, r.readString(item, where))
	}
	return texts
}

// readString returns a text.
func (r *schemaReader) readString(n *docNode, where string) string {
	if n.kind != nodeText {
		hint := ""
		if n.kind == nodeNumber || n.kind == nodeBool {
			hint = "put it in quotes"
		}
		r.failAt(n, where, hint, "got %v, want a text", n)
	}
	return n.text
}

func (r *schemaReader) readBool(n *docNode, where string) bool {
	if n.kind != nodeBool {
		r.failAt(n, where, "", "got %v, want true or false", n)
	}
	return n.text == "true"
}

func (r *schemaReader) readVersion(n *docNode, where string) uint32 {
	v, err := strconv.ParseUint(n.text, 10, 32)
	if n.kind != nodeNumber || err != nil || v == 0 {
		r.failAt(n, where, "", "got %v, want a number from 1 on", n)
	}
	return uint32(v)
}

// readList returns the items of a list.
func (r *schemaReader) readList(n *docNode, where string) []*docNode {
	if n.kind != nodeList {
		r.failAt(n, where, "", "got %v, want a list", n)
		return nil
	}
	return n.items
}

func (r *schemaReader) readSchema(doc *docNode) *Schema {
	s := &Schema{Version: 1, Format: JSON, OnError: OnErrorNull}
	r.readObject(doc, "", "",
		objectKey{"version", func(n *docNode, at string) { s.Version = r.readVersion(n, at) }},
		objectKey{"format", func(n *docNode, at string) { s.Format = Format(r.readString(n, at)) }},
		objectKey{"on_error", func(n *docNode, at string) {
			if n.kind != nodeNull { // YAML's null is accepted as the name null
				s.OnError = OnError(r.readString(n, at))
			}
		}},
		objectKey{"fields", func(n *docNode, _ string) { s.Fields = r.readFields(n, "") }},
		objectKey{"csv", func(n *docNode, at string) { s.CSV = r.readCSV(n, at) }},
		objectKey{"avro", func(n *docNode, at string) {
			if s.Avro = n.text; n.kind == nodeObject || n.kind == nodeList {
				s.Avro = string(n.appendJSON(nil))
			} else {
				r.readString(n, at)
			}
		}},
		objectKey{"avro_file", func(n *docNode, at string) { s.Avro = string(r.readReference(n, at)) }},
		objectKey{"protobuf", func(n *docNode, at string) { s.Protobuf = r.readProtobuf(n, at) }},
	)
	if s.Format == CSV && s.CSV == nil {
		s.CSV = &CSVOptions{Delimiter: ","}
	}
	return s
}

// readReference reads a file that the schema refers to.
func (r *schemaReader) readReference(n *docNode, where string) []byte {
	name := r.readString(n, where)
	if r.load == nil {
		r.failAt(n, where, "put the file's content into the schema", "files can be named only in a schema file that the command line reads")
		return nil
	}
	content, err := r.load(name)
	if err != nil {
		r.failAt(n, where, "", "%v", err)
	}
	return content
}

func (r *schemaReader) readCSV(n *docNode, where string) *CSVOptions {
	o := &CSVOptions{Delimiter: ","}
	r.readObject(n, where, where+".",
		objectKey{"delimiter", func(n *docNode, at string) { o.Delimiter = r.readString(n, at) }},
		objectKey{"header", func(n *docNode, at string) { o.Header = r.readBool(n, at) }},
		objectKey{"columns", func(n *docNode, at string) { o.Columns = r.readTexts(n, at) }},
		objectKey{"null", func(n *docNode, at string) { o.Null = r.readString(n, at) }},
	)
	return o
}

func (r *schemaReader) readProtobuf(n *docNode, where string) *ProtobufOptions {
	o := &ProtobufOptions{}
	r.readObject(n, where, where+".",
		objectKey{"message", func(n *docNode, at string) { o.Message = r.readString(n, at) }},
		objectKey{"descriptors", func(n *docNode, at string) {
			b, err := base64.StdEncoding.DecodeString(r.readString(n, at))
			if err != nil {
				r.failAt(n, at, "want a FileDescriptorSet in base64, as made by protoc --include_imports --descriptor_set_out; or name the file in descriptors_file", "%v", err)
			}
			o.Descriptors = b
		}},
		objectKey{"descriptors_file", func(n *docNode, at string) { o.Descriptors = r.readReference(n, at) }},
	)
	return o
}

// maxListed is the maximum number of fields read from one list. The rest is ignored.
const maxListed = MaxTypes

// readFields reads the fields of a schema or a struct. within is the name of the enclosing column.
func (r *schemaReader) readFields(n *docNode, within string) []Field {
	items := r.readList(n, whereField(within, "", -1))
	if len(items) > maxListed {
		r.failAt(n, "", "", "too many fields: %d, the limit is %d types", len(items), MaxTypes)
		return nil
	}
	if len(items) == 0 {
		return nil
	}
	fields := make([]Field, len(items)) // allocated once: positions keeps the addresses of its elements
	for i, item := range items {
		r.positions[&fields[i]] = item
		r.readField(item, &fields[i], within, i)
	}
	return fields
}

func (r *schemaReader) readField(n *docNode, f *Field, within string, index int) {
	f.Nullable = true
	for i, key := range n.keys { // read the name first: errors of the other keys need it
		if key == "name" && n.items[i].kind == nodeText {
			f.Name = n.items[i].text
		}
	}
	where := whereField(within, f.Name, index)
	var typ, formats, inner *docNode
	r.readObject(n, where, where+": ",
		objectKey{"name", func(n *docNode, at string) { f.Name = r.readString(n, at) }},
		objectKey{"type", func(n *docNode, _ string) { typ = n }},
		objectKey{"nullable", func(n *docNode, at string) { f.Nullable = r.readBool(n, at) }},
		objectKey{"path", func(n *docNode, at string) { f.Path = r.readPath(n, at) }},
		objectKey{"aliases", func(n *docNode, at string) {
			for _, item := range r.readList(n, at) {
				f.Aliases = append(f.Aliases, r.readPath(item, at))
			}
		}},
		objectKey{"default", func(n *docNode, _ string) {
			if n.kind != nodeNull {
				f.Default = string(n.appendJSON(nil))
			}
		}},
		objectKey{"doc", func(n *docNode, at string) { f.Doc = r.readString(n, at) }},
		objectKey{"formats", func(n *docNode, _ string) { formats = n }},
		objectKey{"fields", func(n *docNode, _ string) { inner = n }},
	)
	if len(f.Path) == 1 && f.Path[0] == f.Name {
		f.Path = nil
	}
	if n.kind != nodeObject {
		return
	}
	if typ == nil {
		r.failAt(n, where, "", "the type is missing")
		return
	}
	r.readFieldType(f, where, typ, formats, inner, joinName(within, f.Name))
}

// readFieldType combines a type's text with the keys next to it.
func (r *schemaReader) readFieldType(f *Field, where string, typ, formats, inner *docNode, name string) {
	t, bare, failed := parseType(r.readString(typ, where+": type"))
	if failed != nil {
		r.failAt(typ, where, failed.hint, "%s, at character %d of the type", failed.message, failed.at+1)
		return
	}
	if r.types++; r.types > MaxTypes {
		return // Validate reports it
	}
	if formats != nil {
		in := innermostType(t)
		switch {
		case in.Kind != Timestamp && in.Kind != Date:
			r.failAt(formats, where, "", "the type %s has no time formats", t)
		case len(in.Formats) > 0:
			r.failAt(formats, where, "", "time formats are given twice: in the type and under formats")
		default:
			for _, format := range r.readTexts(formats, where+": formats") {
				in.Formats = append(in.Formats, TimeFormat(format))
			}
		}
	}
	switch {
	case inner != nil && bare == nil:
		r.failAt(inner, where, "want the type struct, list<struct> or map<struct>", "the type %s has no fields", t)
	case inner != nil:
		bare.Fields = r.readFields(inner, name)
	case bare != nil:
		r.failAt(typ, where, "write them in the type, as struct<name type>, or as a list under the key fields", "the struct has no fields")
	}
	f.Type = *t
}

// innermostType returns the type inside all enclosing lists and maps.
func innermostType(t *Type) *Type {
	for t.Elem != nil {
		t = t.Elem
	}
	return t
}

// readPath reads a path: a text or a list of texts.
func (r *schemaReader) readPath(n *docNode, where string) []string {
	if n.kind == nodeList {
		path := make([]string, 0, min(len(n.items), MaxPath+1))
		for _, item := range n.items {
			path = append(path, r.readString(item, where))
		}
		return path
	}
	path, err := ParsePath(r.readString(n, where))
	if err != nil && n.kind == nodeText {
		r.failAt(n, where, `separate the steps by dots, and quote a step that has a dot: a."b.c"; or write a list of steps`, "%v", err)
	}
	return path
}

// joinName returns the full name of a nested field, for errors.
func joinName(within, name string) string {
	if within == "" {
		return name
	}
	return within + "." + name
}

// whereField returns the field part of an error.
func whereField(within, name string, index int) string {
	switch {
	case name != "":
		return fmt.Sprintf("field %q", clipText(joinName(within, name)))
	case index >= 0 && within != "":
		return fmt.Sprintf("field %d of %q", index+1, clipText(within))
	case index >= 0:
		return fmt.Sprintf("field %d", index+1)
	case within != "":
		return fmt.Sprintf("field %q: fields", clipText(within))
	default:
		return "fields"
	}
}
