package schema

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"

	"scribe/columnar/near"
)

// Parse reads a schema from the text of a file, YAML or JSON, and checks it as [Schema.Validate] does. The version is 1 if the text names
// none. Errors are of type *[Error] and name lines.
func Parse(text []byte) (*Schema, error) { return ParseFile(text, nil) }

// ParseFile is [Parse] of a file that may refer to others: the keys avro_file, and descriptors_file of protobuf, which load reads.
func ParseFile(text []byte, load func(name string) ([]byte, error)) (*Schema, error) {
	doc, err := readDocument(text)
	if err != nil {
		return nil, err
	}
	r := &reader{load: load, places: map[*Field]*node{}}
	s := r.schema(doc)
	if err := r.errors.or(); err != nil {
		return nil, err
	}
	if err := validate(s, r.places); err != nil {
		return nil, err
	}
	return s, nil
}

// reader makes a schema of a document. It collects what is wrong and goes on.
type reader struct {
	errors Error
	load   func(name string) ([]byte, error)
	// places are where the fields are written.
	places map[*Field]*node
	types  int
}

func (r *reader) fail(n *node, where, hint, format string, args ...any) {
	r.errors.add(Problem{Line: n.line, Column: n.column, Where: where, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// object calls fn with each key of an object that is in keys.
func (r *reader) object(n *node, where string, keys []string, fn func(key string, value *node)) {
	if n.kind != nodeObject {
		r.fail(n, where, "", "%v, where an object is wanted", n)
		return
	}
	for i, key := range n.keys {
		known := false
		for _, k := range keys {
			known = known || k == key
		}
		if !known {
			r.fail(n.items[i], where, near.Hint(key, keys), "the key %q is not known", clip(key))
			continue
		}
		fn(key, n.items[i])
	}
}

// string returns a text.
func (r *reader) string(n *node, where string) string {
	if n.kind != nodeText {
		hint := ""
		if n.kind == nodeNumber || n.kind == nodeBool {
			hint = "write it in quotes"
		}
		r.fail(n, where, hint, "%v, where a text is wanted", n)
	}
	return n.text
}

func (r *reader) bool(n *node, where string) bool {
	if n.kind != nodeBool {
		r.fail(n, where, "", "%v, where true or false is wanted", n)
	}
	return n.text == "true"
}

// list returns the items of a list.
func (r *reader) list(n *node, where string) []*node {
	if n.kind != nodeList {
		r.fail(n, where, "", "%v, where a list is wanted", n)
		return nil
	}
	return n.items
}

var schemaKeys = []string{"version", "format", "on_error", "fields", "csv", "avro", "avro_file", "protobuf"}

func (r *reader) schema(doc *node) *Schema {
	s := &Schema{Version: 1, Format: JSON, OnError: OnErrorNull}
	r.object(doc, "", schemaKeys, func(key string, n *node) {
		switch key {
		case "version":
			v, err := strconv.ParseUint(n.text, 10, 32)
			if n.kind != nodeNumber || err != nil || v == 0 {
				r.fail(n, key, "", "%v, where a number from 1 is wanted", n)
			}
			s.Version = uint32(v)
		case "format":
			s.Format = Format(r.string(n, key))
		case "on_error":
			if n.kind != nodeNull { // YAML's null is the name null
				s.OnError = OnError(r.string(n, key))
			}
		case "fields":
			s.Fields = r.fields(n, "")
		case "csv":
			s.CSV = r.csv(n)
		case "avro":
			if s.Avro = n.text; n.kind == nodeObject || n.kind == nodeList {
				s.Avro = string(n.json(nil))
			} else {
				r.string(n, key)
			}
		case "avro_file":
			s.Avro = string(r.file(n, key))
		case "protobuf":
			s.Protobuf = r.protobuf(n)
		}
	})
	if s.Format == CSV && s.CSV == nil {
		s.CSV = &CSVOptions{Delimiter: ","}
	}
	return s
}

// file reads a file that the schema refers to.
func (r *reader) file(n *node, where string) []byte {
	name := r.string(n, where)
	if r.load == nil {
		r.fail(n, where, "write its content into the schema", "a file can only be named in a file that the command line reads")
		return nil
	}
	content, err := r.load(name)
	if err != nil {
		r.fail(n, where, "", "%v", err)
	}
	return content
}

func (r *reader) csv(n *node) *CSVOptions {
	o := &CSVOptions{Delimiter: ","}
	r.object(n, "csv", []string{"delimiter", "header", "columns", "null"}, func(key string, n *node) {
		where := "csv." + key
		switch key {
		case "delimiter":
			o.Delimiter = r.string(n, where)
		case "header":
			o.Header = r.bool(n, where)
		case "columns":
			for _, item := range r.list(n, where) {
				o.Columns = append(o.Columns, r.string(item, where))
			}
		case "null":
			o.Null = r.string(n, where)
		}
	})
	return o
}

func (r *reader) protobuf(n *node) *ProtobufOptions {
	o := &ProtobufOptions{}
	r.object(n, "protobuf", []string{"message", "descriptors", "descriptors_file"}, func(key string, n *node) {
		where := "protobuf." + key
		switch key {
		case "message":
			o.Message = r.string(n, where)
		case "descriptors":
			b, err := base64.StdEncoding.DecodeString(r.string(n, where))
			if err != nil {
				r.fail(n, where, "it is a FileDescriptorSet in base64, as protoc --include_imports --descriptor_set_out makes it; or name it in descriptors_file", "%v", err)
			}
			o.Descriptors = b
		case "descriptors_file":
			o.Descriptors = r.file(n, where)
		}
	})
	return o
}

// maxListed is how many fields one list may have: more are not looked at.
const maxListed = MaxTypes

// fields reads the fields of a schema, or of a struct; within is the column that the struct is in.
func (r *reader) fields(n *node, within string) []Field {
	items := r.list(n, whereField(within, "", -1))
	if len(items) > maxListed {
		r.fail(n, "", "", "there are %d fields, the limit is %d types", len(items), MaxTypes)
		return nil
	}
	if len(items) == 0 {
		return nil
	}
	fields := make([]Field, len(items)) // places has their addresses
	for i, item := range items {
		r.places[&fields[i]] = item
		r.field(item, &fields[i], within, i)
	}
	return fields
}

var fieldKeys = []string{"name", "type", "nullable", "path", "aliases", "default", "doc", "formats", "fields"}

func (r *reader) field(n *node, f *Field, within string, index int) {
	f.Nullable = true
	if n.kind == nodeObject {
		for i, key := range n.keys { // for the errors of the others
			if key == "name" && n.items[i].kind == nodeText {
				f.Name = n.items[i].text
			}
		}
	}
	where := whereField(within, f.Name, index)
	var typ, formats, inner *node
	r.object(n, where, fieldKeys, func(key string, n *node) {
		at := where + ": " + key
		switch key {
		case "name":
			f.Name = r.string(n, at)
		case "type":
			typ = n
		case "formats":
			formats = n
		case "fields":
			inner = n
		case "nullable":
			f.Nullable = r.bool(n, at)
		case "path":
			f.Path = r.path(n, at)
		case "aliases":
			for _, item := range r.list(n, at) {
				f.Aliases = append(f.Aliases, r.path(item, at))
			}
		case "default":
			if n.kind != nodeNull {
				f.Default = string(n.json(nil))
			}
		case "doc":
			f.Doc = r.string(n, at)
		}
	})
	if len(f.Path) == 1 && f.Path[0] == f.Name {
		f.Path = nil
	}
	if n.kind != nodeObject {
		return
	}
	if typ == nil {
		r.fail(n, where, "", "a field has a type")
		return
	}
	r.fieldType(f, where, typ, formats, inner, joinName(within, f.Name))
}

// fieldType puts a type together from its text and what is written beside it.
func (r *reader) fieldType(f *Field, where string, typ, formats, inner *node, name string) {
	t, bare, err := parseType(r.string(typ, where+": type"))
	if err != nil {
		p := Problem{Line: typ.line, Column: typ.column, Where: where, Message: err.Error()}
		if te := new(typeError); errors.As(err, &te) {
			hint := te.hint
			te.hint = ""
			p.Message, p.Hint = te.Error(), hint
		}
		r.errors.add(p)
		return
	}
	if r.types++; r.types > MaxTypes {
		return // validate says so
	}
	if formats != nil {
		in := innermost(t)
		switch {
		case in.Kind != Timestamp && in.Kind != Date:
			r.fail(formats, where, "", "time formats beside the type %s", t)
		case len(in.Formats) > 0:
			r.fail(formats, where, "", "time formats both in the type and beside it")
		default:
			for _, item := range r.list(formats, where+": formats") {
				in.Formats = append(in.Formats, TimeFormat(r.string(item, where+": formats")))
			}
		}
	}
	switch {
	case inner != nil && bare == nil:
		r.fail(inner, where, "the type is then struct, list<struct> or map<struct>", "fields beside the type %s", t)
	case inner != nil:
		bare.Fields = r.fields(inner, name)
	case bare != nil:
		r.fail(typ, where, "write them in the type, struct<name type>, or as a list under the key fields", "a struct without fields")
	}
	f.Type = *t
}

// innermost returns what is in lists and maps.
func innermost(t *Type) *Type {
	for t.Elem != nil {
		t = t.Elem
	}
	return t
}

// path reads a path, a text or a list of texts.
func (r *reader) path(n *node, where string) []string {
	if n.kind == nodeList {
		path := make([]string, 0, min(len(n.items), MaxPath+1))
		for _, item := range n.items {
			path = append(path, r.string(item, where))
		}
		return path
	}
	path, err := ParsePath(r.string(n, where))
	if err != nil && n.kind == nodeText {
		r.fail(n, where, `a path is steps between dots, in double quotes where they have a dot: a."b.c"; or a list of steps`, "%v", err)
	}
	return path
}

// joinName is the name of a field within a column, for errors.
func joinName(within, name string) string {
	if within == "" {
		return name
	}
	return within + "." + name
}

// whereField says which field an error is about.
func whereField(within, name string, index int) string {
	switch {
	case name != "":
		return fmt.Sprintf("field %q", clip(joinName(within, name)))
	case index >= 0 && within != "":
		return fmt.Sprintf("field %d of %q", index+1, clip(within))
	case index >= 0:
		return fmt.Sprintf("field %d", index+1)
	case within != "":
		return fmt.Sprintf("field %q: fields", clip(within))
	default:
		return "fields"
	}
}
