package placement

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits of a path, those of a schema's.
const (
	MaxSteps     = 32
	MaxPathBytes = 1024
)

// Path names a field: the keys of objects on the way to it. Make it with ParsePath.
type Path []string

// ParsePath parses the text of a field that a category places messages by: see [SplitPath].
func ParsePath(text string) (Path, error) {
	switch {
	case text == "":
		return nil, errors.New("the field is missing: name a path, such as client_ip or user.id")
	case len(text) > MaxPathBytes:
		return nil, fmt.Errorf("invalid field %.80q...: %d bytes, the limit is %d", text, len(text), MaxPathBytes)
	case !utf8.ValidString(text):
		return nil, fmt.Errorf("invalid field %.80q: not UTF-8", text)
	}
	path, err := SplitPath(text)
	if err != nil {
		return nil, fmt.Errorf("invalid field %.80q: %w", text, err)
	}
	return path, nil
}

// SplitPath splits the text of a path, as schemas have it too: steps separated by dots. A step in double quotes may contain dots, and a
// quote written twice; any other is taken literally.
func SplitPath(text string) (Path, error) {
	var path Path
	for rest := text; ; {
		step, after, err := cutStep(rest)
		if err != nil {
			return nil, err
		}
		if path = append(path, step); len(path) > MaxSteps {
			return nil, fmt.Errorf("the path has more than %d steps", MaxSteps)
		}
		if after == "" {
			return path, nil
		}
		if after[0] != '.' {
			return nil, fmt.Errorf("unexpected %.40q after a step in quotes: want a dot", after)
		}
		rest = after[1:]
	}
}

// cutStep cuts the first step off a path. after is empty, or begins with what follows the step.
func cutStep(text string) (step, after string, err error) {
	if !strings.HasPrefix(text, `"`) {
		end := strings.IndexByte(text, '.')
		if end < 0 {
			end = len(text)
		}
		if end == 0 {
			return "", "", errors.New("empty step in the path")
		}
		return text[:end], text[end:], nil
	}
	var b strings.Builder
	for rest := text[1:]; ; {
		before, more, closed := strings.Cut(rest, `"`)
		if !closed {
			return "", "", errors.New("missing closing double quote")
		}
		b.WriteString(before)
		if !strings.HasPrefix(more, `"`) {
			return b.String(), more, nil
		}
		b.WriteByte('"')
		rest = more[1:]
	}
}

// Equal reports whether the path has these steps.
func (p Path) Equal(steps []string) bool { return slices.Equal(p, steps) }
