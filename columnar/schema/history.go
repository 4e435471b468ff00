package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// inferText stands in place of schemas if a category's first schema is to be inferred from its messages.
const inferText = "infer"

// ErrIncompatible is the sentinel that an [IncompatibleError] matches.
var ErrIncompatible = errors.New("the schema is not compatible with the newest version")

// IncompatibleError says why a schema can't follow the newest version.
type IncompatibleError struct {
	// Version is the number of the newest version.
	Version uint32
	// Changes are the incompatible changes.
	Changes Changes
}

// Error implements error.
func (e *IncompatibleError) Error() string {
	return fmt.Sprintf("not compatible with version %d, stored messages would read differently:\n%s", e.Version, e.Changes)
}

// Is reports whether target is ErrIncompatible.
func (e *IncompatibleError) Is(target error) bool { return target == ErrIncompatible }

// History holds all versions of a category's schema that are kept. Version numbers are never reused, neither after a schema was
// removed nor after the oldest versions were dropped because the text became too long.
//
// A parsed history is not changed, except by a caller that parsed it for that purpose. It may be shared.
type History struct {
	infer    bool
	next     uint32
	versions []*Schema // in increasing order of version numbers
}

// ParseHistory parses a category's schema text: an empty text, the word infer, or all versions as [History.Marshal] writes them.
func ParseHistory(text string) (*History, error) {
	switch text {
	case "":
		return &History{next: 1}, nil
	case inferText:
		return &History{next: 1, infer: true}, nil
	}
	doc, err := readDocument([]byte(text))
	if err != nil {
		return nil, err
	}
	if doc.kind != nodeObject || !doc.seen["next"] {
		return nil, problemf("the text is not a history of schemas: it has no versions")
	}
	h := &History{}
	r := &schemaReader{positions: map[*Field]*docNode{}}
	var versions []*docNode
	r.readObject(doc, "", "",
		objectKey{"next", func(n *docNode, at string) { h.next = r.readVersion(n, at) }},
		objectKey{"infer", func(n *docNode, at string) { h.infer = r.readBool(n, at) }},
		objectKey{"versions", func(n *docNode, at string) { versions = r.readList(n, at) }},
	)
	if err := r.errors.orNil(); err != nil {
		return nil, err
	}
	if len(versions) > MaxVersions {
		return nil, problemf("too many versions: %d, the limit is %d", len(versions), MaxVersions)
	}
	for _, n := range versions {
		s := r.readSchema(n)
		if err := r.errors.orNil(); err != nil {
			return nil, err
		}
		if err := validateSchema(s, r.positions); err != nil {
			return nil, fmt.Errorf("version %d: %w", s.Version, err)
		}
		if l := h.Latest(); l != nil && s.Version <= l.Version {
			return nil, problemf("version %d follows version %d: versions must increase", s.Version, l.Version)
		}
		h.versions = append(h.versions, s)
	}
	if l := h.Latest(); h.next == 0 || l != nil && l.Version >= h.next {
		return nil, problemf("invalid next version %d: want a number above all versions", h.next)
	}
	return h, nil
}

// IsHistory reports whether a text was written by [History.Marshal] with versions, rather than being one schema.
func IsHistory(text string) bool { return strings.HasPrefix(text, `{"next":`) }

// Marshal returns the text that the category keeps.
func (h *History) Marshal() string {
	if len(h.versions) == 0 && h.next == 1 {
		if h.infer {
			return inferText
		}
		return ""
	}
	d := historyDocument{Next: h.next, Infer: h.infer, Versions: make([]schemaDocument, len(h.versions))}
	for i, s := range h.versions {
		d.Versions[i] = documentOf(s, false)
	}
	return string(marshalJSON(d))
}

// HistoryOf returns a history of one version alone, under its number.
func HistoryOf(s *Schema) *History {
	if s.Version == 0 {
		return &History{next: 1}
	}
	return &History{next: s.Version + 1, versions: []*Schema{s}}
}

// Infer reports whether the next schema is to be inferred from the category's messages, because there is none or all were
// removed.
func (h *History) Infer() bool { return h.infer && len(h.versions) == 0 }

// Latest returns the newest version, or nil if there is none.
func (h *History) Latest() *Schema {
	if len(h.versions) == 0 {
		return nil
	}
	return h.versions[len(h.versions)-1]
}

// Current returns the schema that a new query binds to: the newest version, or [Opaque] if there is none.
func (h *History) Current() *Schema {
	if s := h.Latest(); s != nil {
		return s
	}
	return Opaque()
}

// Version returns a version by its number. It returns [Opaque] for 0, and nil if the version is not kept.
func (h *History) Version(n uint32) *Schema {
	if n == 0 {
		return Opaque()
	}
	for _, s := range h.versions {
		if s.Version == n {
			return s
		}
	}
	return nil
}

// Versions returns the kept versions, oldest first.
func (h *History) Versions() []*Schema { return h.versions }

// Opaque returns the schema of categories that have none. Its version is 0, and messages are bytes.
func Opaque() *Schema { return opaqueSchema }

var opaqueSchema = &Schema{}

// Append makes a valid schema the newest version and assigns its number. If it equals the newest version, added is false. An
// incompatible schema returns an *[IncompatibleError] unless force is set. The history takes ownership of s.
func (h *History) Append(s *Schema, force bool) (added bool, changes Changes, err error) {
	if err := s.Validate(); err != nil {
		return false, nil, err
	}
	if last := h.Latest(); last != nil {
		if Same(last, s) {
			return false, nil, nil
		}
		changes = Compare(last, s)
		if bad := changes.Incompatible(); len(bad) > 0 && !force {
			return false, changes, &IncompatibleError{Version: last.Version, Changes: bad}
		}
	}
	if h.next == 1<<32-1 {
		return false, nil, problemf("no version numbers are left")
	}
	s.Version = h.next
	all := append(slices.Clip(h.versions), s)
	after := &History{next: h.next + 1, versions: all[max(0, len(all)-MaxVersions):]}
	for {
		_, err := ParseHistory(after.Marshal())
		if err == nil {
			break
		}
		if len(after.versions) == 1 {
			return false, nil, fmt.Errorf("keep the schema: %w", err)
		}
		after.versions = after.versions[1:]
	}
	*h = *after
	return true, changes, nil
}

// Clear removes all versions. If infer is set, the next one is to be inferred. Running queries that use a removed version can't
// continue.
func (h *History) Clear(infer bool) { h.versions, h.infer = nil, infer }
