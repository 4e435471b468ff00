package schema

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// typeChooser derives types from observations.
type typeChooser struct {
	o      InferOptions
	report *Report
}

// chooseColumns returns the fields of the schema.
func (d *typeChooser) chooseColumns(root *seenValues) []Field {
	if root.dropped > 0 {
		d.report.Notes = append(d.report.Notes, fmt.Sprintf("%d values have no column: too many fields", root.dropped))
	}
	fields := d.chooseFields(root, "", 0)
	if n := countTypes(fields); n > MaxTypes {
		all := len(fields)
		for len(fields) > 1 && countTypes(fields) > MaxTypes {
			fields = fields[:len(fields)-1]
		}
		d.report.Notes = append(d.report.Notes, fmt.Sprintf("the last %d fields have no column: with them there are %d types, the limit is %d", all-len(fields), n, MaxTypes))
	}
	return fields
}

func countTypes(fields []Field) int {
	n := 0
	for i := range fields {
		n += countType(&fields[i].Type)
	}
	return n
}

func countType(t *Type) int {
	n := 1 + countTypes(t.Fields)
	if t.Kind == Map {
		n += 2
	}
	if t.Elem != nil {
		n += countType(t.Elem)
	}
	return n
}

// chooseFields returns the fields of an object's members.
func (d *typeChooser) chooseFields(n *seenValues, within string, depth int) []Field {
	fields := make([]Field, 0, len(n.keys))
	for i, f := range fieldsOf(n.keys, depth) {
		in := n.fields[n.keys[i]]
		if len(f.Name) > MaxName {
			d.report.Notes = append(d.report.Notes, fmt.Sprintf("the field %s has no column: its name is longer than %d bytes", clipText(n.keys[i]), MaxName))
			continue
		}
		f.Nullable = d.o.Nullable || in.nulls > 0 || in.rows < n.objects || n.objects < int64(d.o.MinRows)
		f.Type = d.chooseField(in, joinName(within, f.Name), f.Name, n.objects-in.rows, depth)
		fields = append(fields, f)
	}
	return fields
}

// fieldsOf returns fields without types that read the keys of an object. Their names are the keys where these can be names of
// columns, otherwise similar ones that no other field has.
func fieldsOf(keys []string, depth int) []Field {
	fields := make([]Field, len(keys))
	taken := map[string]bool{}
	for i, key := range keys { // names that need no change are assigned first
		fields[i].Name = columnName(key, depth)
		taken[key] = taken[key] || fields[i].Name == key
	}
	for i, key := range keys {
		f := &fields[i]
		if f.Name == key {
			continue
		}
		f.Path = []string{key}
		for name, n := f.Name, 2; taken[f.Name]; n++ {
			f.Name = fmt.Sprintf("%s_%d", name, n)
		}
		taken[f.Name] = true
	}
	return fields
}

// columnName returns the column name for a key.
func columnName(key string, depth int) string {
	name := strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return '_'
		}
		return c
	}, key)
	if depth == 0 {
		name = strings.TrimLeft(name, "_")
	}
	if name == "" {
		return "empty"
	}
	return name
}

// chooseField chooses the type of a position and reports it. full is its name with the names of its parents.
func (d *typeChooser) chooseField(n *seenValues, full, name string, absent int64, depth int) Type {
	at := len(d.report.Fields)
	d.report.Fields = append(d.report.Fields, FieldReport{})
	t, notes := d.chooseType(n, full, name, depth)
	r := FieldReport{
		Name: full, Type: t.Text(), Present: n.rows, Nulls: n.nulls, Absent: absent, Kinds: n.countKinds(), Example: n.example, Notes: notes, Distinct: len(n.distinct),
	}
	if n.tooMany {
		r.Distinct = -1
	}
	d.report.Fields[at] = r
	return t
}

// chooseType chooses a type and returns notes about the choice.
func (d *typeChooser) chooseType(n *seenValues, full, name string, depth int) (Type, []string) {
	kinds := n.countKinds()
	numbers := n.ints > 0 && n.floats > 0 && len(kinds) == 2
	switch {
	case len(kinds) == 0:
		return Type{Kind: String}, []string{"only null was seen"}
	case len(kinds) > 1 && !numbers:
		words := make([]string, len(kinds))
		for i, k := range kinds {
			words[i] = fmt.Sprintf("%s (%d)", k.Kind, k.Count)
		}
		return Type{Kind: String}, []string{"several kinds: " + strings.Join(words, ", ")}
	case numbers || n.floats > 0:
		return Type{Kind: Float64}, nil
	case n.bools > 0:
		return Type{Kind: Bool}, nil
	case n.ints > 0:
		return d.chooseInteger(n, name)
	case n.texts > 0:
		return d.chooseText(n, full)
	case n.arrays > 0:
		return d.chooseList(n, full, name, depth)
	default:
		return d.chooseObject(n, full, name, depth)
	}
}

// timeName matches field names that suggest an instant.
var timeName = regexp.MustCompile(`(?i:(?:^|[_.-])(?:ts|at|on|when|date|epoch|created|updated|modified)$|(?:time|timestamp|datetime)$|^(?:ts|time|date|epoch)[_.-])|[a-z](?:At|Date|Ts|TS|Ms)$`)

func (d *typeChooser) chooseInteger(n *seenValues, name string) (Type, []string) {
	for f, count := range n.unix {
		if count == n.ints && timeName.MatchString(name) {
			return Type{Kind: Timestamp, Formats: []TimeFormat{f}}, []string{"name and size are those of an instant"}
		}
	}
	switch {
	case !n.beyondInt:
		return Type{Kind: Int64}, nil
	case !n.beyondUint && !n.negative:
		return Type{Kind: Uint64}, nil
	case !n.large:
		return Type{Kind: Decimal, Precision: 38}, nil
	default:
		return Type{Kind: Float64}, []string{"numbers of more than 38 digits lose some"}
	}
}

func (d *typeChooser) chooseText(n *seenValues, full string) (Type, []string) {
	var found int64
	for _, count := range n.times {
		found += count
	}
	if found == n.texts {
		t := Type{Kind: Timestamp}
		for _, f := range guesses {
			if n.times[f] > 0 {
				t.Formats = append(t.Formats, f)
			}
		}
		if slices.Equal(t.Formats, []TimeFormat{DateOnly}) {
			return Type{Kind: Date}, nil
		}
		if slices.Equal(t.Formats, []TimeFormat{RFC3339}) {
			t.Formats = nil
		}
		return t, nil
	}
	// Few distinct values among many. Within lists and maps a dictionary saves little.
	few := n.texts >= 100 && !n.tooMany && int64(len(n.distinct)) <= n.texts/8
	return Type{Kind: String, Dictionary: few && !strings.Contains(full, "[]") && !strings.Contains(full, "{}")}, nil
}

func (d *typeChooser) chooseList(n *seenValues, full, name string, depth int) (Type, []string) {
	if n.item == nil || n.item.rows == 0 || depth+1 >= MaxDepth-1 {
		if n.item != nil && n.item.rows > 0 || n.deep {
			return Type{Kind: String}, []string{"nested too deep: kept as JSON"}
		}
		return Type{Kind: List, Elem: &Type{Kind: String}}, []string{"only empty lists were seen"}
	}
	elem := d.chooseField(n.item, full+"[]", name, 0, depth+1)
	return Type{Kind: List, Elem: &elem}, nil
}

func (d *typeChooser) chooseObject(n *seenValues, full, name string, depth int) (Type, []string) {
	switch {
	case n.deep || depth+1 >= MaxDepth-1 && len(n.keys) > 0:
		return Type{Kind: String}, []string{"nested too deep: kept as JSON"}
	case len(n.keys) == 0 && n.dropped > 0:
		return Type{Kind: String}, []string{"too many fields: kept as JSON"}
	case len(n.keys) == 0:
		return Type{Kind: Map, Elem: &Type{Kind: String}}, []string{"only empty objects were seen"}
	}
	if why := d.whyMap(n); why != "" {
		elem := d.chooseField(n.mergeMembers(), full+"{}", name, 0, depth+1)
		return Type{Kind: Map, Elem: &elem}, []string{why}
	}
	if n.elem != nil {
		return Type{Kind: String}, []string{fmt.Sprintf("has more than %d different keys, and values of several kinds: kept as JSON", maxObjectKeys)}
	}
	fields := d.chooseFields(n, full, depth+1)
	if len(fields) == 0 {
		return Type{Kind: String}, nil
	}
	return Type{Kind: Struct, Fields: fields}, nil
}

// dataKey matches keys that are data: hosts, paths, addresses, numbers, ids.
var dataKey = regexp.MustCompile(`[.:/@ ,=]|^\d+$|^[0-9a-fA-F]*\d[0-9a-fA-F]{7,}$|^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-`)

// whyMap returns why the keys of an object are data rather than field names. It returns an empty text if they are field names.
func (d *typeChooser) whyMap(n *seenValues) string {
	all := n.mergeMembers()
	kinds := all.countKinds()
	if len(kinds) > 1 && (len(kinds) != 2 || all.ints == 0 || all.floats == 0) {
		return ""
	}
	if n.elem != nil {
		return fmt.Sprintf("has more than %d different keys", maxObjectKeys)
	}
	count := len(n.keys)
	data := 0
	for _, key := range n.keys {
		if dataKey.MatchString(key) {
			data++
		}
	}
	switch {
	case 2*data >= count:
		return "its keys look like data"
	case count >= 8 && 4*all.rows <= int64(count)*n.objects:
		return fmt.Sprintf("has %d different keys, of which an object has few", count)
	case count >= 3 && all.objects > 0 && len(all.keys) >= 2 && d.haveSameFields(n, all):
		return "its values are objects with the same fields"
	}
	return ""
}

// haveSameFields reports whether all members of an object have the same fields.
func (d *typeChooser) haveSameFields(n, all *seenValues) bool {
	for _, key := range n.keys {
		if in := n.fields[key]; in.objects > 0 && len(in.keys) != len(all.keys) {
			return false
		}
	}
	return true
}
