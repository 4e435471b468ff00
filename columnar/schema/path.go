package schema

import "scribe/internal/format/placement"

// PathText returns the text of a path: its steps separated by dots. A step with characters other than letters, digits and
// underscores is in double quotes. [ParsePath] reads it.
func PathText(path []string) string {
	var b []byte
	for i, step := range path {
		if i > 0 {
			b = append(b, '.')
		}
		b = appendName(b, step)
	}
	return string(b)
}

// ParsePath parses the text of a path: steps separated by dots, optionally in double quotes. An unquoted step is taken literally.
func ParsePath(text string) ([]string, error) { return placement.SplitPath(text) }

// Source returns the first path at which the field's value is looked up: its path, or its name.
func (f *Field) Source() []string {
	if len(f.Path) > 0 {
		return f.Path
	}
	return []string{f.Name}
}

// Sources returns all paths at which the field's value is looked up, in order.
func (f *Field) Sources() [][]string {
	return append([][]string{f.Source()}, f.Aliases...)
}
