package placement

import (
	"errors"
	"fmt"
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

// ParsePath parses a path as schemas have it: steps separated by dots. A step in double quotes may contain dots, and a quote
// written twice.
func ParsePath(text string) (Path, error) {
	fail := func(reason string) (Path, error) {
		return nil, fmt.Errorf("invalid field %q: %s", shortenText(text), reason)
	}
	switch {
	case text == "":
		return nil, errors.New("the field is missing: name a path, such as client_ip or user.id")
	case len(text) > MaxPathBytes:
		return fail(fmt.Sprintf("%d bytes, the limit is %d", len(text), MaxPathBytes))
	case !utf8.ValidString(text):
		return fail("not UTF-8")
	}
	var path Path
	for rest := text; ; {
		step, after, err := cutStep(rest)
		if err != "" {
			return fail(err)
		}
		if path = append(path, step); len(path) > MaxSteps {
			return fail(fmt.Sprintf("more than %d steps", MaxSteps))
		}
		if after == "" {
			return path, nil
		}
		if after[0] != '.' {
			return fail("a dot is missing after a step in quotes")
		}
		rest = after[1:]
	}
}

// cutStep cuts the first step off a path. after is empty, or begins with what follows the step.
func cutStep(text string) (step, after, err string) {
	if !strings.HasPrefix(text, `"`) {
		end := strings.IndexByte(text, '.')
		if end < 0 {
			end = len(text)
		}
		if end == 0 {
			return "", "", "a step is empty"
		}
		return text[:end], text[end:], ""
	}
	var b strings.Builder
	for rest := text[1:]; ; {
		before, more, closed := strings.Cut(rest, `"`)
		if !closed {
			return "", "", "a closing double quote is missing"
		}
		b.WriteString(before)
		if !strings.HasPrefix(more, `"`) {
			return b.String(), more, ""
		}
		b.WriteByte('"')
		rest = more[1:]
	}
}

func shortenText(text string) string {
	if len(text) <= 80 {
		return text
	}
	return strings.ToValidUTF8(text[:80], "") + "..."
}

// Equal reports whether the path has these steps.
func (p Path) Equal(steps []string) bool {
	if len(p) != len(steps) {
		return false
	}
	for i := range p {
		if p[i] != steps[i] {
			return false
		}
	}
	return true
}
