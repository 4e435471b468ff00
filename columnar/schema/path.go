package schema

import (
	"errors"
	"fmt"
	"strings"
)

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
func ParsePath(text string) ([]string, error) {
	p := &typeParser{text: text}
	var path []string
	for {
		var step string
		if p.at < len(text) && text[p.at] == '"' {
			var closed bool
			if step, closed = p.scanQuoted(); !closed {
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
