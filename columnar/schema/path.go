package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// PathText returns a path as schemas write it: its steps with dots between them, in double quotes where a step is not made of letters,
// digits and underscores. [ParsePath] reads it.
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

// ParsePath reads the text of a path: steps between dots, which may be in double quotes. What is not in quotes is a step as it is written.
func ParsePath(text string) ([]string, error) {
	p := &typeParser{text: text}
	var path []string
	for {
		var step string
		if p.at < len(text) && text[p.at] == '"' {
			var err error
			if step, err = p.parseQuoted('"'); err != nil {
				return nil, errors.New("missing closing double quote")
			}
		} else {
			end := strings.IndexByte(text[p.at:], '.')
			if end < 0 {
				end = len(text) - p.at
			}
			if step = text[p.at : p.at+end]; step == "" {
				return nil, errors.New("empty step in the path")
			}
			p.at += end
		}
		if path = append(path, step); len(path) > MaxPath {
			return nil, fmt.Errorf("the path has more than %d steps", MaxPath)
		}
		if p.at == len(text) {
			return path, nil
		}
		if text[p.at] != '.' {
			return nil, fmt.Errorf("unexpected %q after a step in quotes: want a dot", clipText(text[p.at:]))
		}
		p.at++
	}
}

// Source returns where the field's value is looked for first: its path, or its name.
func (f *Field) Source() []string {
	if len(f.Path) > 0 {
		return f.Path
	}
	return []string{f.Name}
}

// Sources returns all positions where the field's value is looked for, in their order.
func (f *Field) Sources() [][]string {
	return append([][]string{f.Source()}, f.Aliases...)
}

// hasPrefix reports whether a path is another's beginning, or the same.
func hasPrefix(path, prefix []string) bool {
	return len(path) >= len(prefix) && slices.Equal(path[:len(prefix)], prefix)
}
