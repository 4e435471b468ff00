package schema

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"scribe/columnar/near"
)

var (
	formats  = []string{string(JSON), string(NDJSON), string(CSV), string(Avro), string(Protobuf), string(Arrow)}
	onErrors = []string{string(OnErrorNull), string(OnErrorReject)}
	// messageColumns are the names that begin with an underscore and mean something.
	messageColumns = []string{ColumnTime, ColumnPersisted, ColumnKey, ColumnShard, ColumnOffset, ColumnAttr, ColumnRest, ColumnError}
)

// Validate reports everything that is wrong with the schema, as an *[Error].
//
// Beside what a type or a name by itself must be: names are unique within the schema and within a struct, and no path or alias of a field
// is another field's, or its beginning, so that each value of a row belongs to one column.
func (s *Schema) Validate() error { return validate(s, nil) }

func validate(s *Schema, places map[*Field]*node) error {
	v := &validator{places: places}
	if !slices.Contains(formats, string(s.Format)) {
		v.fail(nil, "format", near.Hint(string(s.Format), formats), "%q is none of %s", clip(string(s.Format)), strings.Join(formats, ", "))
	}
	if !slices.Contains(onErrors, string(s.OnError)) {
		v.fail(nil, "on_error", "", "%q is none of %s", clip(string(s.OnError)), strings.Join(onErrors, ", "))
	}
	if len(s.Fields) == 0 {
		v.fail(nil, "fields", "", "there are none")
	}
	v.options(s)
	v.fields(s.Fields, "", 0)
	if v.types > MaxTypes {
		v.fail(nil, "fields", "", "there are %d types, the limit is %d", v.types, MaxTypes)
	}
	if s.Format == CSV {
		v.flat(s)
	}
	return v.errors.or()
}

type validator struct {
	errors Error
	places map[*Field]*node
	types  int
}

// fail notes a problem of a field, or of the schema with nil.
func (v *validator) fail(f *Field, where, hint, format string, args ...any) {
	p := Problem{Where: where, Message: fmt.Sprintf(format, args...), Hint: hint}
	if n := v.places[f]; n != nil {
		p.Line, p.Column = n.line, n.column
	}
	v.errors.add(p)
}

// options checks what belongs to a format.
func (v *validator) options(s *Schema) {
	beside := func(key string, has bool, format Format) bool {
		if has && s.Format != format {
			v.fail(nil, key, "", "is there beside the format %q", clip(string(s.Format)))
		}
		return has && s.Format == format
	}
	if beside("csv", s.CSV != nil, CSV) {
		v.csv(s.CSV)
	} else if s.Format == CSV {
		v.fail(nil, "csv", "", "is missing")
	}
	if beside("avro", s.Avro != "", Avro) {
		if !json.Valid([]byte(s.Avro)) {
			v.fail(nil, "avro", "", "is no JSON")
		} else if err := checkAvro(s.Avro); err != nil {
			v.fail(nil, "avro", "", "%v", err)
		}
	} else if s.Format == Avro {
		v.fail(nil, "avro", "it is the schema that the messages were written with, as JSON", "is missing")
	}
	if beside("protobuf", s.Protobuf != nil, Protobuf) {
		if _, err := s.Protobuf.Descriptor(); err != nil {
			v.fail(nil, "protobuf", "", "%v", err)
		}
	} else if s.Format == Protobuf {
		v.fail(nil, "protobuf", "it has the keys message and descriptors, or descriptors_file", "is missing")
	}
}

func (v *validator) csv(o *CSVOptions) {
	if c, n := utf8.DecodeRuneInString(o.Delimiter); n == 0 || n != len(o.Delimiter) || c == utf8.RuneError || strings.ContainsAny(o.Delimiter, "\"\r\n") {
		v.fail(nil, "csv.delimiter", `a tab is "\t"`, "%q is not one character that can stand between values", clip(o.Delimiter))
	}
	if o.Header && len(o.Columns) > 0 {
		v.fail(nil, "csv.columns", "", "the first line of each message names the columns: they are not named here too")
	}
	if len(o.Columns) > MaxTypes {
		v.fail(nil, "csv.columns", "", "there are %d, the limit is %d", len(o.Columns), MaxTypes)
		return
	}
	seen := map[string]bool{}
	for _, c := range o.Columns {
		if seen[c] && c != "" {
			v.fail(nil, "csv.columns", "columns that no field stands for may be empty", "%q is there twice", clip(c))
		}
		seen[c] = true
		v.text(nil, "csv.columns", "a column's name", c, MaxKey)
	}
	v.text(nil, "csv.null", "the text", o.Null, MaxName)
}

// Descriptor returns the type of the messages.
func (o *ProtobufOptions) Descriptor() (protoreflect.MessageDescriptor, error) {
	if len(o.Descriptors) == 0 {
		return nil, fmt.Errorf("descriptors are missing: a FileDescriptorSet, as protoc --include_imports --descriptor_set_out makes it")
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(o.Descriptors, &set); err != nil {
		return nil, fmt.Errorf("descriptors: %w", err)
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		return nil, fmt.Errorf("descriptors: %w; protoc makes a complete set with --include_imports", err)
	}
	d, err := files.FindDescriptorByName(protoreflect.FullName(o.Message))
	if m, ok := d.(protoreflect.MessageDescriptor); err == nil && ok {
		return m, nil
	}
	text := fmt.Sprintf("the message %q is not in the descriptors", clip(o.Message))
	if hint := near.Hint(o.Message, messageNames(files)); hint != "" {
		text += "; " + hint
	}
	return nil, fmt.Errorf("%s", text)
}

// messageNames are the messages at the top of files.
func messageNames(files *protoregistry.Files) []string {
	var names []string
	files.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Messages().Len() {
			names = append(names, string(f.Messages().Get(i).FullName()))
		}
		return len(names) < MaxTypes
	})
	return names
}

// text checks a text for its length and what it is made of.
func (v *validator) text(f *Field, where, what, s string, limit int) {
	switch {
	case len(s) > limit:
		v.fail(f, where, "", "%s has %d bytes, the limit is %d", what, len(s), limit)
	case !utf8.ValidString(s):
		v.fail(f, where, "", "%s is not UTF-8", what)
	case strings.ContainsFunc(s, unicode.IsControl):
		v.fail(f, where, "", "%s has a control character: %q", what, clip(s))
	}
}

// fields checks the fields of a schema or of a struct.
func (v *validator) fields(fields []Field, within string, depth int) {
	names := make(map[string]bool, len(fields))
	for i := range fields {
		f := &fields[i]
		where := whereField(within, f.Name, i)
		switch {
		case f.Name == "":
			v.fail(f, where, "", "a field has a name")
		case names[f.Name]:
			v.fail(f, where, "", "the name is there twice")
		case within == "" && f.Name[0] == '_':
			v.fail(f, where, "read the value under another name with the key path",
				"names that begin with an underscore are those of the columns that every category has (%s)", strings.Join(messageColumns, ", "))
		}
		names[f.Name] = true
		v.text(f, where, "the name", f.Name, MaxName)
		if len(f.Doc) > MaxDoc || !utf8.ValidString(f.Doc) {
			v.fail(f, where, "", "the doc is not UTF-8 of at most %d bytes", MaxDoc)
		}
		v.paths(f, where)
		v.typ(f, &f.Type, where, joinName(within, f.Name), depth)
		v.fallback(f, where)
	}
	v.overlaps(fields, within)
}

// paths checks the paths of a field by themselves.
func (v *validator) paths(f *Field, where string) {
	if len(f.Aliases) > MaxAliases {
		v.fail(f, where, "", "there are %d aliases, the limit is %d", len(f.Aliases), MaxAliases)
	}
	for i, path := range f.Sources() {
		what := "path"
		if i > 0 {
			what = "alias"
			if len(path) == 0 {
				v.fail(f, where, "", "an alias is empty")
			}
		} else if len(f.Path) == 0 {
			continue
		}
		if len(path) > MaxPath {
			v.fail(f, where, "", "the %s has %d steps, the limit is %d", what, len(path), MaxPath)
		}
		for _, step := range path {
			if len(step) > MaxKey || !utf8.ValidString(step) {
				v.fail(f, where, "", "a step of the %s is not UTF-8 of at most %d bytes", what, MaxKey)
			}
		}
	}
}

// source is a path and whose it is.
type source struct {
	path  []string
	field int
}

// overlaps finds paths that are others', or their beginning.
func (v *validator) overlaps(fields []Field, within string) {
	var all []source
	for i := range fields {
		for _, path := range fields[i].Sources() {
			all = append(all, source{path, i})
		}
	}
	// In this order a path stands directly before those that it is the beginning of.
	slices.SortStableFunc(all, func(a, b source) int { return slices.Compare(a.path, b.path) })
	for i := 0; i+1 < len(all); i++ {
		a, b := all[i], all[i+1]
		if !hasPrefix(b.path, a.path) {
			continue
		}
		all[i+1] = source{a.path, a.field} // it may be the beginning of what comes next, too
		f := &fields[b.field]
		where := whereField(within, f.Name, b.field)
		switch other := fields[a.field].Name; {
		case a.field == b.field && len(a.path) == len(b.path):
			v.fail(f, where, "", "the path %s is there twice", clip(PathText(a.path)))
		case a.field == b.field:
			v.fail(f, where, "", "of the field's paths %s is the beginning of %s", clip(PathText(a.path)), clip(PathText(b.path)))
		case len(a.path) == len(b.path):
			v.fail(f, where, "a value belongs to one column", "the path %s is that of the field %q", clip(PathText(a.path)), clip(other))
		default:
			v.fail(f, where, "a value belongs to one column: declare what is inside as fields of a struct, or name each path",
				"the path %s leads into the field %q, which is read from %s", clip(PathText(b.path)), clip(other), clip(PathText(a.path)))
		}
	}
}

// typ checks a type.
func (v *validator) typ(f *Field, t *Type, where, name string, depth int) {
	if v.types++; v.types > MaxTypes {
		return
	}
	if depth >= MaxDepth {
		v.fail(f, where, "a string takes what is deeper, as JSON", "types nest more than %d deep", MaxDepth)
		return
	}
	if (t.Elem != nil) != (t.Kind == List || t.Kind == Map) || (len(t.Fields) > 0) != (t.Kind == Struct) || t.Dictionary && t.Kind != String ||
		t.Kind != Decimal && (t.Precision != 0 || t.Scale != 0) {
		v.fail(f, where, "", "the type %s does not have the parts of its kind", t.Kind)
		return
	}
	if len(t.Formats) > MaxFormats {
		v.fail(f, where, "", "there are %d time formats, the limit is %d", len(t.Formats), MaxFormats)
		return
	}
	if len(t.Formats) > 0 && t.Kind != Timestamp && t.Kind != Date {
		v.fail(f, where, "", "time formats of the type %s", t.Kind)
	}
	for i, format := range t.Formats {
		if message, hint := format.check(t.Kind); message != "" {
			v.fail(f, where, hint, "%s", message)
		} else if slices.Contains(t.Formats[:i], format) {
			v.fail(f, where, "", "the time format %q is there twice", format)
		}
	}
	switch t.Kind {
	case Bool, Int32, Int64, Uint64, Float64, String, Binary, Date, Timestamp:
	case Decimal:
		if t.Precision < 1 || t.Precision > 38 || t.Scale < 0 || t.Scale > t.Precision {
			v.fail(f, where, "for example decimal(18,2)", "%s: the precision is 1 to 38, the scale 0 to the precision", t)
		}
	case Map:
		v.types += 2 // its keys, and the pairs
		v.typ(f, t.Elem, where, name, depth+1)
	case List:
		v.typ(f, t.Elem, where, name, depth+1)
	case Struct:
		v.fields(t.Fields, name, depth+1)
	case Invalid, Null, Interval:
		v.fail(f, where, "types are "+strings.Join(typeNames, ", "), "%s is no type of a column", t.Kind)
	default:
		v.fail(f, where, "", "the kind %d is not known", t.Kind)
	}
}

// flat checks fields of lines, which have no inside.
func (v *validator) flat(s *Schema) {
	var columns []string
	if s.CSV != nil {
		columns = s.CSV.Columns
	}
	for i := range s.Fields {
		f := &s.Fields[i]
		where := whereField("", f.Name, i)
		found := len(columns) == 0
		for _, path := range f.Sources() {
			if len(path) > 1 {
				v.fail(f, where, "", "the path %s has more than one step: a line has columns only", clip(PathText(path)))
			}
			found = found || len(path) == 1 && slices.Contains(columns, path[0])
		}
		if !found {
			v.fail(f, where, near.Hint(f.Source()[0], columns), "%q is none of csv.columns", clip(f.Source()[0]))
		}
	}
}
