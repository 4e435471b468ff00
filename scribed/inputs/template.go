package inputs

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"scribe/internal/format/record"
)

// CategoryTemplate is a category name with fields in braces, such as "syslog.{facility}", which an input fills in for each
// message.
type CategoryTemplate struct {
	parts []string // texts and, in between, the names of fields
}

// ParseCategoryTemplate parses a template that may contain the given fields. A template without fields is a category name. It
// fails on unknown fields, and when the result would not be a valid name.
func ParseCategoryTemplate(text string, fields ...string) (CategoryTemplate, error) {
	var t CategoryTemplate
	for rest := text; ; {
		before, after, found := strings.Cut(rest, "{")
		t.parts = append(t.parts, before)
		if !found {
			break
		}
		name, behind, closed := strings.Cut(after, "}")
		if !closed {
			return CategoryTemplate{}, fmt.Errorf("%q: a brace is not closed", text)
		}
		if !slices.Contains(fields, name) {
			if len(fields) == 0 {
				return CategoryTemplate{}, fmt.Errorf("%q: there are no fields here, {%s} is unknown", text, name)
			}
			return CategoryTemplate{}, fmt.Errorf("%q: {%s} is unknown, the fields are {%s}", text, name, strings.Join(fields, "}, {"))
		}
		t.parts = append(t.parts, name)
		rest = behind
	}
	// Field values are made valid; the text around them must be valid.
	if err := record.ValidateCategory(t.Category(func(string) string { return "x" })); err != nil {
		return CategoryTemplate{}, fmt.Errorf("%q: %w", text, err)
	}
	return t, nil
}

// Fixed returns the category of a template without fields.
func (t CategoryTemplate) Fixed() (category string, ok bool) {
	if len(t.parts) == 1 {
		return t.parts[0], true
	}
	return "", false
}

// Category fills in the fields. The result is always a valid name: invalid characters become '_', an empty value becomes "none",
// and a long result is cut.
func (t CategoryTemplate) Category(value func(field string) string) string {
	if name, ok := t.Fixed(); ok {
		return name
	}
	var b strings.Builder
	for n, p := range t.parts {
		if n%2 == 0 {
			b.WriteString(p)
			continue
		}
		v := value(p)
		if v == "" {
			v = "none"
		}
		for i := 0; i < len(v) && i < record.MaxCategoryName; i++ {
			c := v[i]
			if !isNameByte(c) || b.Len() == 0 && !isAlphanumeric(c) {
				c = '_'
				if b.Len() == 0 {
					c = 'x' // a name begins with a letter or digit
				}
			}
			b.WriteByte(c)
		}
	}
	name := b.String()
	return name[:min(len(name), record.MaxCategoryName)]
}

func isAlphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func isNameByte(c byte) bool { return isAlphanumeric(c) || c == '.' || c == '_' || c == '-' }

// CategoryLimit bounds how many categories one input creates from foreign text, which must not create categories without limit.
// It is safe for concurrent use.
type CategoryLimit struct {
	limit    int
	fallback string

	mu struct {
		sync.RWMutex
		known map[string]struct{}
	}
}

// NewCategoryLimit returns a limit that allows the first limit names; later ones go to fallback.
func NewCategoryLimit(limit int, fallback string) *CategoryLimit {
	n := &CategoryLimit{limit: limit, fallback: fallback}
	n.mu.known = make(map[string]struct{})
	return n
}

// Allow returns the name, or the fallback and false when there are too many.
func (n *CategoryLimit) Allow(name string) (string, bool) {
	n.mu.RLock()
	_, ok := n.mu.known[name]
	full := len(n.mu.known) >= n.limit
	n.mu.RUnlock()
	switch {
	case ok:
		return name, true
	case full:
		return n.fallback, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.mu.known[name]; !ok && len(n.mu.known) >= n.limit {
		return n.fallback, false
	}
	n.mu.known[name] = struct{}{}
	return name, true
}
