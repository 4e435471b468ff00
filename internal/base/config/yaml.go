package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Load applies a YAML file to the struct that c points to. Its error names every invalid line and every unknown field. renamed
// maps former names to current ones.
func Load(path string, c any, renamed map[string]string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return fmt.Errorf("configuration %s: %w", path, err)
	}
	if len(doc.Content) == 0 {
		return nil
	}
	d := yamlDecoder{renamed: renamed}
	d.decodeStruct(doc.Content[0], reflect.ValueOf(c).Elem(), "")
	if len(d.errs) > 0 {
		return fmt.Errorf("configuration %s:\n%w", path, errors.Join(d.errs...))
	}
	return nil
}

type yamlDecoder struct {
	renamed map[string]string
	errs    []error
}

func (d *yamlDecoder) fail(n *yaml.Node, format string, args ...any) {
	d.errs = append(d.errs, fmt.Errorf("line %d: "+format, append([]any{n.Line}, args...)...))
}

// decodeStruct applies a mapping to a struct, which is at path in the file.
func (d *yamlDecoder) decodeStruct(n *yaml.Node, st reflect.Value, path string) {
	fields := map[string][]Setting{}
	for s := range walk(st, "", "") {
		if s.Name != "" && !strings.Contains(s.Name, "[") { // elements are decoded with their list
			fields[s.Name] = append(fields[s.Name], s)
		}
	}
	d.decodeSection(n, fields, path, "")
}

// decodeSection decodes the mapping under a name. fields has all fields of the struct.
func (d *yamlDecoder) decodeSection(n *yaml.Node, fields map[string][]Setting, path, section string) {
	n = resolve(n)
	if n.ShortTag() == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.fail(n, "%s: want fields with values", join(path, section))
		return
	}
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name := join(section, key.Value)
		switch {
		case key.Tag == "!!merge":
			d.decodeMerge(value, fields, path, section)
		case seen[name]:
			d.fail(key, "%s is given twice", join(path, name))
		case fields[name] != nil:
			for _, s := range fields[name] {
				d.decodeSetting(value, s, join(path, name))
			}
		case hasSection(fields, name):
			d.decodeSection(value, fields, path, name)
		case d.renamed[join(path, name)] != "":
			d.fail(key, "%s is called %s now", join(path, name), d.renamed[join(path, name)])
		default:
			d.fail(key, "unknown field %s: %s", join(path, name), knownNames(fields, section))
		}
		seen[name] = true
	}
}

// decodeMerge decodes the mapping to which "<<" refers. It is expected to come before the fields beside it.
func (d *yamlDecoder) decodeMerge(n *yaml.Node, fields map[string][]Setting, path, section string) {
	n = resolve(n)
	if n.Kind != yaml.SequenceNode {
		d.decodeSection(n, fields, path, section)
		return
	}
	for _, one := range slices.Backward(n.Content) {
		d.decodeSection(one, fields, path, section)
	}
}

func (d *yamlDecoder) decodeSetting(n *yaml.Node, s Setting, name string) {
	n = resolve(n)
	t := s.value.Type()
	switch {
	case n.ShortTag() == "!!null":
	case t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct:
		made := reflect.New(t.Elem())
		setDefaults(made.Elem())
		d.decodeStruct(n, made.Elem(), name)
		s.value.Set(made)
	case t.Kind() == reflect.Slice:
		d.decodeList(n, s, name)
	case n.Kind != yaml.ScalarNode:
		d.fail(n, "%s: want one value", name)
	default:
		if t.Kind() == reflect.Bool && n.Decode(s.value.Addr().Interface()) == nil { // YAML has other words for true and false
			return
		}
		if err := s.setText(n.Value); err != nil {
			d.fail(n, "%s: %w", name, err)
		}
	}
}

func (d *yamlDecoder) decodeList(n *yaml.Node, s Setting, name string) {
	if n.Kind != yaml.SequenceNode {
		d.fail(n, "%s: want a list", name)
		return
	}
	list := reflect.MakeSlice(s.value.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		place := fmt.Sprintf("%s[%d]", name, i)
		if v := list.Index(i); v.Kind() == reflect.Struct {
			setDefaults(v)
			d.decodeStruct(item, v, place)
		} else {
			d.decodeSetting(item, Setting{value: v, parent: s.parent}, place)
		}
	}
	s.value.Set(list)
}

func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func hasSection(fields map[string][]Setting, name string) bool {
	for known := range fields {
		if strings.HasPrefix(known, name+".") {
			return true
		}
	}
	return false
}

// knownNames lists the fields of a section, for errors.
func knownNames(fields map[string][]Setting, section string) string {
	var names []string
	for known := range fields {
		if rest, ok := strings.CutPrefix(known, section); ok {
			name, _, _ := strings.Cut(strings.TrimPrefix(rest, "."), ".")
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return "the fields here are " + strings.Join(slices.Compact(names), ", ")
}
