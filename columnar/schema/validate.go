package schema

import (
	"encoding/json"
	"errors"
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

	"scribe/columnar/avrotype"
	"scribe/columnar/near"
)

var (
	formats  = []string{string(JSON), string(NDJSON), string(CSV), string(Avro), string(Protobuf), string(Arrow)}
	onErrors = []string{string(OnErrorNull), string(OnErrorReject)}
	// messageColumns are the reserved names that begin with an underscore.
	messageColumns = []string{ColumnTime, ColumnPersisted, ColumnKey, ColumnShard, ColumnOffset, ColumnAttr, ColumnRate, ColumnRest, ColumnError}
)

// Validate reports all problems of the schema, as an *[Error].
//
// Besides checking each type and name, it checks that names are unique within the schema and within each struct, and that no path
// or alias of a field equals or is a prefix of another field's. So each value of a row belongs to one column.
func (s *Schema) Validate() error { return validateSchema(s, nil) }

func validateSchema(s *Schema, places map[*Field]*docNode) error {
	v := &schemaValidator{positions: places}
	v.failIf(!slices.Contains(formats, string(s.Format)), nil, "format", near.Hint(string(s.Format), formats),
		"invalid value %q: want one of %s", clipText(string(s.Format)), strings.Join(formats, ", "))
	v.failIf(!slices.Contains(onErrors, string(s.OnError)), nil, "on_error", "", "invalid value %q: want one of %s",
		clipText(string(s.OnError)), strings.Join(onErrors, ", "))
	v.failIf(len(s.Fields) == 0, nil, "fields", "", "the schema has no fields")
	v.checkOptions(s)
	v.checkFields(s.Fields, "", 0)
	v.failIf(v.types > MaxTypes, nil, "fields", "", "too many types: %d, the limit is %d", v.types, MaxTypes)
	if s.Format == CSV {
		v.checkFlat(s)
	}
	return v.errors.orNil()
}

type schemaValidator struct {
	errors    Error
	positions map[*Field]*docNode
	types     int
}

// failField records a problem of a field, or of the whole schema if f is nil.
func (v *schemaValidator) failField(f *Field, where, hint, format string, args ...any) {
	p := Problem{Where: where, Message: fmt.Sprintf(format, args...), Hint: hint}
	if n := v.positions[f]; n != nil {
		p.Line, p.Column = n.line, n.column
	}
	v.errors.addProblem(p)
}

// failIf records a problem of a field, as failField does, if there is one.
func (v *schemaValidator) failIf(failed bool, f *Field, where, hint, format string, args ...any) {
	if failed {
		v.failField(f, where, hint, format, args...)
	}
}

// checkOptions checks the format-specific options.
func (v *schemaValidator) checkOptions(s *Schema) {
	option := func(key string, has bool, format Format, hint string, check func()) {
		switch {
		case has && s.Format != format:
			v.failField(nil, key, "", "does not apply to the format %q", clipText(string(s.Format)))
		case has:
			check()
		case s.Format == format:
			v.failField(nil, key, hint, "is missing")
		}
	}
	option("csv", s.CSV != nil, CSV, "", func() { v.checkCSV(s.CSV) })
	option("avro", s.Avro != "", Avro, "want the schema that the messages were written with, as JSON", func() {
		if !json.Valid([]byte(s.Avro)) {
			v.failField(nil, "avro", "", "is not JSON")
		} else if err := checkAvro(s.Avro); err != nil {
			v.failField(nil, "avro", "", "%v", err)
		}
	})
	option("protobuf", s.Protobuf != nil, Protobuf, "want the keys message and descriptors, or descriptors_file", func() {
		if _, err := s.Protobuf.Descriptor(); err != nil {
			v.failField(nil, "protobuf", "", "%v", err)
		}
	})
}

func (v *schemaValidator) checkCSV(o *CSVOptions) {
	if c, n := utf8.DecodeRuneInString(o.Delimiter); n == 0 || n != len(o.Delimiter) || c == utf8.RuneError || strings.ContainsAny(o.Delimiter, "\"\r\n") {
		v.failField(nil, "csv.delimiter", `a tab is "\t"`, "invalid delimiter %q: want one character other than a quote or a line end", clipText(o.Delimiter))
	}
	v.failIf(o.Header && len(o.Columns) > 0, nil, "csv.columns", "",
		"the columns cannot be named here if the first line of each message names them")
	if len(o.Columns) > MaxTypes {
		v.failField(nil, "csv.columns", "", "too many columns: %d, the limit is %d", len(o.Columns), MaxTypes)
		return
	}
	seen := map[string]bool{}
	for _, c := range o.Columns {
		v.failIf(seen[c] && c != "", nil, "csv.columns", "a column that no field reads may have an empty name",
			"duplicate column %q", clipText(c))
		seen[c] = true
		v.checkText(nil, "csv.columns", "a column's name", c, MaxKey)
	}
	v.checkText(nil, "csv.null", "the text", o.Null, MaxName)
}

// checkAvro returns an error if the writer's schema is invalid or messages can't be read with it.
func checkAvro(text string) error {
	t, err := avrotype.Parse(text)
	if err == nil && t.Kind != avrotype.Record {
		err = errors.New("the top type is not a record, whose fields become columns")
	}
	return err
}

// Descriptor returns the descriptor of the message type.
func (o *ProtobufOptions) Descriptor() (protoreflect.MessageDescriptor, error) {
	if len(o.Descriptors) == 0 {
		return nil, fmt.Errorf("descriptors are missing: want a FileDescriptorSet, as made by protoc --include_imports --descriptor_set_out")
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
	text := fmt.Sprintf("the message %q is not in the descriptors", clipText(o.Message))
	if hint := near.Hint(o.Message, messageNames(files)); hint != "" {
		text += "; " + hint
	}
	return nil, fmt.Errorf("%s", text)
}

// ProtobufField returns the field of a message that a step of a path names, by its name in the descriptors or by its JSON name; nil if there is none.
func ProtobufField(m protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if f := m.Fields().ByName(protoreflect.Name(name)); f != nil {
		return f
	}
	return m.Fields().ByJSONName(name)
}

// messageNames returns the names of the top-level messages of files.
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

// checkText checks a text's length and characters.
func (v *schemaValidator) checkText(f *Field, where, what, s string, limit int) {
	switch {
	case len(s) > limit:
		v.failField(f, where, "", "%s has %d bytes, the limit is %d", what, len(s), limit)
	case !utf8.ValidString(s):
		v.failField(f, where, "", "%s is not UTF-8", what)
	case strings.ContainsFunc(s, unicode.IsControl):
		v.failField(f, where, "", "%s has a control character: %q", what, clipText(s))
	}
}

// checkFields checks the fields of a schema or a struct.
func (v *schemaValidator) checkFields(fields []Field, within string, depth int) {
	names := make(map[string]bool, len(fields))
	for i := range fields {
		f := &fields[i]
		where := whereField(within, f.Name, i)
		switch {
		case f.Name == "":
			v.failField(f, where, "", "the name is missing")
		case names[f.Name]:
			v.failField(f, where, "", "duplicate name")
		case within == "" && f.Name[0] == '_':
			v.failField(f, where, "choose another name, and set path to where the value is",
				"names that begin with an underscore are reserved for built-in columns (%s)", strings.Join(messageColumns, ", "))
		}
		names[f.Name] = true
		v.checkText(f, where, "the name", f.Name, MaxName)
		v.failIf(len(f.Doc) > MaxDoc || !utf8.ValidString(f.Doc), f, where, "", "invalid doc: want at most %d bytes of UTF-8", MaxDoc)
		v.checkPaths(f, where)
		v.checkType(f, &f.Type, where, joinName(within, f.Name), depth)
		v.checkDefault(f, where)
	}
	v.checkOverlaps(fields, within)
}

// checkPaths checks the paths of one field.
func (v *schemaValidator) checkPaths(f *Field, where string) {
	v.failIf(len(f.Aliases) > MaxAliases, f, where, "", "too many aliases: %d, the limit is %d", len(f.Aliases), MaxAliases)
	for i, path := range f.Sources() {
		what := "path"
		if i > 0 {
			what = "alias"
			v.failIf(len(path) == 0, f, where, "", "an alias is empty")
		} else if len(f.Path) == 0 {
			continue
		}
		v.failIf(len(path) > MaxPath, f, where, "", "the %s has %d steps, the limit is %d", what, len(path), MaxPath)
		for _, step := range path {
			v.failIf(len(step) > MaxKey || !utf8.ValidString(step), f, where, "",
				"invalid step in the %s: want at most %d bytes of UTF-8", what, MaxKey)
		}
	}
}

// fieldPath is a path and the index of its field.
type fieldPath struct {
	path  []string
	field int
}

// checkOverlaps reports paths that are equal to or a prefix of another path.
func (v *schemaValidator) checkOverlaps(fields []Field, within string) {
	var all []fieldPath
	for i := range fields {
		for _, path := range fields[i].Sources() {
			all = append(all, fieldPath{path, i})
		}
	}
	// Sorting puts a path directly before the paths that it is a prefix of.
	slices.SortStableFunc(all, func(a, b fieldPath) int { return slices.Compare(a.path, b.path) })
	for i := 0; i+1 < len(all); i++ {
		a, b := all[i], all[i+1]
		if prefix := b.path[:min(len(a.path), len(b.path))]; !slices.Equal(prefix, a.path) {
			continue
		}
		all[i+1] = fieldPath{a.path, a.field} // it may also be a prefix of the next path
		f := &fields[b.field]
		where := whereField(within, f.Name, b.field)
		switch other := fields[a.field].Name; {
		case a.field == b.field && len(a.path) == len(b.path):
			v.failField(f, where, "", "duplicate path %s", clipText(PathText(a.path)))
		case a.field == b.field:
			v.failField(f, where, "", "the field's path %s is a prefix of its path %s", clipText(PathText(a.path)), clipText(PathText(b.path)))
		case len(a.path) == len(b.path):
			v.failField(f, where, "a value belongs to one column", "the path %s is already read by the field %q", clipText(PathText(a.path)), clipText(other))
		default:
			v.failField(f, where, "a value belongs to one column: declare what is inside as fields of a struct, or name each path",
				"the path %s is inside the field %q, which is read from %s", clipText(PathText(b.path)), clipText(other), clipText(PathText(a.path)))
		}
	}
}

func (v *schemaValidator) checkType(f *Field, t *Type, where, name string, depth int) {
	if v.types++; v.types > MaxTypes {
		return
	}
	if depth >= MaxDepth {
		v.failField(f, where, "declare the inner value as string, which holds JSON", "types are nested too deep: the limit is %d levels", MaxDepth)
		return
	}
	if (t.Elem != nil) != (t.Kind == List || t.Kind == Map) || (len(t.Fields) > 0) != (t.Kind == Struct) || t.Dictionary && t.Kind != String ||
		t.Kind != Decimal && (t.Precision != 0 || t.Scale != 0) {
		v.failField(f, where, "", "incomplete type %s", t.Kind)
		return
	}
	if len(t.Formats) > MaxFormats {
		v.failField(f, where, "", "too many time formats: %d, the limit is %d", len(t.Formats), MaxFormats)
		return
	}
	v.failIf(len(t.Formats) > 0 && t.Kind != Timestamp && t.Kind != Date, f, where, "", "the type %s has no time formats", t.Kind)
	for i, format := range t.Formats {
		if message, hint := format.checkFormat(t.Kind); message != "" {
			v.failField(f, where, hint, "%s", message)
		} else if slices.Contains(t.Formats[:i], format) {
			v.failField(f, where, "", "duplicate time format %q", format)
		}
	}
	switch t.Kind {
	case Bool, Int32, Int64, Uint64, Float64, String, Binary, Date, Timestamp:
	case Decimal:
		v.failIf(t.Precision < 1 || t.Precision > 38 || t.Scale < 0 || t.Scale > t.Precision, f, where, "for example decimal(18,2)",
			"invalid type %s: want a precision of 1 to 38 and a scale of 0 to the precision", t)
	case Map:
		v.types += 2 // the keys and the entries
		v.checkType(f, t.Elem, where, name, depth+1)
	case List:
		v.checkType(f, t.Elem, where, name, depth+1)
	case Struct:
		v.checkFields(t.Fields, name, depth+1)
	case Invalid, Null, Interval:
		v.failField(f, where, "types are "+strings.Join(typeNames, ", "), "%s cannot be the type of a column", t.Kind)
	default:
		v.failField(f, where, "", "unknown kind %d", t.Kind)
	}
}

// checkFlat checks the fields of a CSV schema, which has no nested values.
func (v *schemaValidator) checkFlat(s *Schema) {
	var columns []string
	if s.CSV != nil {
		columns = s.CSV.Columns
	}
	for i := range s.Fields {
		f := &s.Fields[i]
		where := whereField("", f.Name, i)
		found := len(columns) == 0
		for _, path := range f.Sources() {
			v.failIf(len(path) > 1, f, where, "", "the path %s has more than one step: CSV has no nested values",
				clipText(PathText(path)))
			found = found || len(path) == 1 && slices.Contains(columns, path[0])
		}
		if !found {
			v.failField(f, where, near.Hint(f.Source()[0], columns), "%q is not in csv.columns", clipText(f.Source()[0]))
		}
	}
}
