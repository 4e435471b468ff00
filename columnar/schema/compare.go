package schema

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// Change is one difference between two schemas.
type Change struct {
	// Field is the new name of the changed column or nested field. It is empty for a change of the whole schema.
	Field string
	// Compatible is true if data read by the old schema reads the same by the new one.
	Compatible bool
	// Text describes the change. Hint says how to make it compatible; it may be empty.
	Text, Hint string
}

// String returns the change on one line.
func (c Change) String() string {
	text := c.Text
	if c.Field != "" {
		text = fmt.Sprintf("field %q: %s", clipText(c.Field), text)
	}
	if c.Hint != "" {
		text += "; " + c.Hint
	}
	return text
}

// Changes is the list of differences between two schemas.
type Changes []Change

// Compatible reports whether all changes are compatible.
func (c Changes) Compatible() bool {
	return !slices.ContainsFunc(c, func(c Change) bool { return !c.Compatible })
}

// Incompatible returns the changes that are not compatible.
func (c Changes) Incompatible() Changes {
	return slices.DeleteFunc(slices.Clone(c), func(c Change) bool { return c.Compatible })
}

// String returns the changes, one per line.
func (c Changes) String() string {
	lines := make([]string, len(c))
	for i := range c {
		lines[i] = c[i].String()
	}
	return strings.Join(lines, "\n")
}

// Same reports whether two schemas are equal apart from their versions.
func Same(a, b *Schema) bool {
	x, y := *a, *b
	x.Version, y.Version = 0, 0
	return bytes.Equal(x.Marshal(), y.Marshal())
}

// Compare returns the changes from one schema to another. Both must be valid.
//
// Compatible changes are: adding a field that is nullable or has a default; widening a type (int32 to int64 to a decimal with
// enough digits; an integer to float64; date to a timestamp that reads the same texts); adding time formats after the existing
// ones; turning dictionary on or off; making a type nullable; changing a name or path if the old paths are still read; changing
// descriptions or the order of fields. All other changes are incompatible. A chain of compatible changes is a compatible change.
func Compare(before, after *Schema) Changes {
	c := &schemaComparer{}
	c.compareOptions(before, after)
	c.compareFields(before.Fields, after.Fields, "")
	if before.Format == CSV && after.Format == CSV {
		c.compareLines(before, after)
	}
	return c.changes
}

type schemaComparer struct{ changes Changes }

func (c *schemaComparer) addChange(field string, compatible bool, hint, format string, args ...any) {
	c.changes = append(c.changes, Change{Field: field, Compatible: compatible, Text: fmt.Sprintf(format, args...), Hint: hint})
}

func (c *schemaComparer) compareOptions(before, after *Schema) {
	if before.Format != after.Format {
		c.addChange("", false, "", "the format changes from %s to %s: stored messages are in the old format", before.Format, after.Format)
		return
	}
	if before.OnError != after.OnError {
		c.addChange("", false, "", "on_error changes from %s to %s: rows with values that do not fit appear or disappear", before.OnError, after.OnError)
	}
	if a, b := before.CSV, after.CSV; a != nil && b != nil && (a.Delimiter != b.Delimiter || a.Header != b.Header || a.Null != b.Null) {
		c.addChange("", false, "", "delimiter, header or null changes: stored lines would read differently")
	}
	if before.Avro != after.Avro {
		c.addChange("", false, "", "the Avro schema changes: stored messages were written with the old one")
	}
	if a, b := before.Protobuf, after.Protobuf; a != nil && b != nil {
		c.compareProtobuf(a, b)
	}
}

// compareFields compares the fields of two schemas, or of two versions of a struct. The new version of a field is the field that
// reads the old one's first path. There is at most one, since no two fields share a path.
func (c *schemaComparer) compareFields(before, after []Field, within string) {
	owners := map[string]int{}
	for i := range after {
		for _, path := range after[i].Sources() {
			owners[PathText(path)] = i
		}
	}
	from := make(map[int]int, len(after)) // index of each surviving field: new to old
	last, moved := -1, false
	for i := range before {
		old := &before[i]
		name := joinName(within, old.Name)
		to, ok := owners[PathText(old.Source())]
		if other, taken := from[to]; ok && taken {
			c.addChange(joinName(within, after[to].Name), false, "", "replaces both %q and %q", clipText(before[other].Name), clipText(old.Name))
			continue
		}
		if !ok {
			if slices.ContainsFunc(after, func(f Field) bool { return f.Name == old.Name }) {
				c.addChange(name, false, fmt.Sprintf("keep it under aliases: [%s]", clipText(PathText(old.Source()))), "is no longer read from %s", clipText(PathText(old.Source())))
			} else {
				c.addChange(name, false, fmt.Sprintf("to rename it, give the new field aliases: [%s]", clipText(PathText(old.Source()))), "is removed")
			}
			continue
		}
		from[to] = i
		moved = moved || to < last
		last = max(last, to)
		c.compareField(old, &after[to], within)
	}
	for i := range after {
		if _, ok := from[i]; !ok {
			f := &after[i]
			if name := joinName(within, f.Name); f.Nullable || f.Default != "" {
				c.addChange(name, true, "", "is added, %s", f.Type.Text())
			} else {
				c.addChange(name, false, "make it nullable, or give it a default", "is added, %s, and is not nullable: stored messages do not have it", f.Type.Text())
			}
		}
	}
	if moved {
		c.addChange(within, true, "", "the order of the fields changes")
	}
}

// compareField compares two versions of a field.
func (c *schemaComparer) compareField(before, after *Field, within string) {
	name := joinName(within, after.Name)
	if before.Name != after.Name {
		c.addChange(name, true, "", "is the new name of %q", clipText(before.Name))
	}
	if a, b := before.Sources(), after.Sources(); !slices.EqualFunc(a, b, slices.Equal) {
		if missing := notIn(a, b); missing != nil {
			c.addChange(name, false, fmt.Sprintf("keep all paths, in their order, under aliases: [%s]", clipText(PathText(missing))),
				"is no longer read from %s, or not in the same order", clipText(PathText(missing)))
		} else {
			c.addChange(name, true, "", "is also read from other paths")
		}
	}
	switch {
	case before.Nullable && !after.Nullable:
		c.addChange(name, false, "", "is no longer nullable: stored values may be null")
	case !before.Nullable && after.Nullable:
		c.addChange(name, true, "", "becomes nullable")
	}
	if before.Default != after.Default {
		c.addChange(name, false, "", "the default changes from %s to %s: rows without the value would read differently", defaultText(before), defaultText(after))
	}
	if before.Doc != after.Doc {
		c.addChange(name, true, "", "the description changes")
	}
	c.compareTypes(&before.Type, &after.Type, name)
}

func defaultText(f *Field) string {
	if f.Default == "" {
		return "none"
	}
	return clipText(f.Default)
}

// notIn returns the first path of a that b lacks or has in another order. It returns nil if b has all paths in a's order.
func notIn(a, b [][]string) []string {
	at := 0
	for _, path := range a {
		for at < len(b) && !slices.Equal(b[at], path) {
			at++
		}
		if at == len(b) {
			return path
		}
		at++
	}
	return nil
}

// compareTypes compares two versions of a type.
func (c *schemaComparer) compareTypes(before, after *Type, name string) {
	switch {
	case !before.Equal(after) && isWider(before, after):
		c.addChange(name, true, "", "becomes wider, from %s to %s", before.Text(), after.Text())
	case before.Kind == Date && after.Kind == Timestamp:
		if missing := slices.DeleteFunc(slices.Clone(before.TimeFormats()), func(f TimeFormat) bool {
			return slices.Contains(after.TimeFormats(), f)
		}); len(missing) > 0 {
			c.addChange(name, false, fmt.Sprintf("add '%s' to its formats", missing[0]), "becomes a timestamp that does not read dates written as %s", missing[0])
			return
		}
		c.addChange(name, true, "", "becomes wider, from %s to %s", before.Text(), after.Text())
	case before.Kind != after.Kind:
		c.addChange(name, false, "declare a second field with another name and path", "the type changes from %s to %s", clipText(before.Text()), clipText(after.Text()))
	case before.Kind == Decimal && !before.Equal(after):
		c.addChange(name, false, "keep as many digits before and after the point", "the type changes from %s to %s", before, after)
	case before.Dictionary != after.Dictionary:
		c.addChange(name, true, "", "the type changes from %s to %s, which reads the same", before.Text(), after.Text())
	case before.Elem != nil:
		c.compareTypes(before.Elem, after.Elem, name+"[]")
	case before.Kind == Struct:
		c.compareFields(before.Fields, after.Fields, name)
	default:
		a, b := before.TimeFormats(), after.TimeFormats()
		switch {
		case slices.Equal(a, b):
		case len(a) <= len(b) && slices.Equal(a, b[:len(a)]):
			c.addChange(name, true, "", "reads more time formats, from %s to %s", before.Text(), after.Text())
		default:
			c.addChange(name, false, "keep the old formats in their order, and add others after them", "the time formats change from %s to %s", before.Text(), after.Text())
		}
	}
}

// wholeDigits is the number of digits before the point that the integers of a kind need.
var wholeDigits = map[Kind]int32{Int32: 10, Int64: 19, Uint64: 20}

// isWider reports whether after is a number type that is at least as wide as before.
func isWider(before, after *Type) bool {
	if before.Kind == Decimal {
		return after.Kind == Decimal && after.Scale >= before.Scale && after.Precision-after.Scale >= before.Precision-before.Scale
	}
	whole := wholeDigits[before.Kind]
	switch {
	case whole == 0:
		return false
	case after.Kind == Decimal:
		return after.Precision-after.Scale >= whole
	default:
		return after.Kind == Float64 || before.Kind == Int32 && after.Kind == Int64
	}
}

// compareLines checks that the fields of CSV lines without a header keep their positions.
func (c *schemaComparer) compareLines(before, after *Schema) {
	if before.CSV == nil || after.CSV == nil || before.CSV.Header || after.CSV.Header {
		return
	}
	was, is := before.linePlaces(), after.linePlaces()
	for i := range after.Fields {
		f := &after.Fields[i]
		for j := range before.Fields {
			old := &before.Fields[j]
			if notIn([][]string{old.Source()}, f.Sources()) == nil && was[j] != is[i] {
				c.addChange(f.Name, false, "add columns after the others", "is read from column %d of a line instead of column %d", is[i]+1, was[j]+1)
			}
		}
	}
}

// LineColumns returns the column names of a CSV line without a header: the schema's csv.columns, or its field names.
func (s *Schema) LineColumns() []string {
	if s.CSV != nil && len(s.CSV.Columns) > 0 {
		return s.CSV.Columns
	}
	names := make([]string, len(s.Fields))
	for i := range s.Fields {
		names[i] = s.Fields[i].Source()[0]
	}
	return names
}

// linePlaces returns the index of the CSV column that each field is read from, or -1.
func (s *Schema) linePlaces() []int {
	columns := map[string]int{}
	for i, name := range s.LineColumns() {
		columns[name] = i
	}
	places := make([]int, len(s.Fields))
	for i := range s.Fields {
		places[i] = -1
		for _, path := range s.Fields[i].Sources() {
			if at, ok := columns[path[0]]; ok {
				places[i] = at
				break
			}
		}
	}
	return places
}
