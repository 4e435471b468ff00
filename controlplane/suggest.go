package controlplane

import (
	"cmp"
	"slices"
	"strings"

	"scribe/columnar/near"
)

// maxSuggestions is how many names an error suggests.
const maxSuggestions = 3

// maxName bounds the tables of distance; it is the largest name of a category.
const maxName = 255

// suggestion is a name near the one that was asked for.
type suggestion struct {
	name     string
	distance int
}

// suggester picks the names nearest to one that does not exist.
type suggester struct {
	want string // in lower case
	// limit is the largest distance that is worth a suggestion.
	limit int
	found []suggestion
}

func newSuggester(want string) *suggester {
	s := &suggester{want: strings.ToLower(want), limit: 3}
	switch {
	case len(want) <= 4:
		s.limit = 1
	case len(want) <= 10:
		s.limit = 2
	}
	return s
}

// offer considers a name.
func (s *suggester) offer(name string) {
	if diff := len(name) - len(s.want); diff > s.limit || -diff > s.limit || len(name) > maxName || len(s.want) > maxName {
		return
	}
	d := distance(s.want, strings.ToLower(name), s.limit)
	if d > s.limit {
		return
	}
	s.found = append(s.found, suggestion{name, d})
	if len(s.found) > 4*maxSuggestions {
		s.keep()
	}
}

// keep drops all but the nearest.
func (s *suggester) keep() {
	slices.SortFunc(s.found, func(a, b suggestion) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	s.found = slices.CompactFunc(s.found, func(a, b suggestion) bool { return a.name == b.name })
	s.found = s.found[:min(len(s.found), maxSuggestions)]
}

// text is the end of an error message: empty, or what may have been meant.
func (s *suggester) text() string {
	s.keep()
	names := make([]string, len(s.found))
	for i, f := range s.found {
		names[i] = f.name
	}
	if phrase := near.Phrase(names); phrase != "" {
		return "; " + phrase
	}
	return ""
}

// distance is the number of bytes to insert, remove, replace or swap with their neighbour that make a into b (optimal string
// alignment), or more than limit when it is more than that. Neither is longer than maxName.
//
// Only a band of the table around its diagonal is looked at: what is further from it than limit costs more than that.
func distance(a, b string, limit int) int {
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for a != "" && b != "" && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	var rows [3][maxName + 2]uint16
	before, last, row := &rows[0], &rows[1], &rows[2]
	far := uint16(limit + 1)
	for j := range min(len(b), limit+1) + 1 {
		last[j] = uint16(j)
	}
	for i := 1; i <= len(a); i++ {
		from, to := max(1, i-limit), min(len(b), i+limit)
		row[from-1] = far
		if from == 1 {
			row[0] = uint16(min(i, limit+1))
		}
		least := row[from-1]
		for j := from; j <= to; j++ {
			d := last[j-1]
			if a[i-1] != b[j-1] {
				d = min(d, last[j], row[j-1]) + 1
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, before[j-2]+1)
			}
			row[j] = d
			least = min(least, d)
		}
		row[to+1] = far // the next row's band ends there
		if least >= far {
			return limit + 1
		}
		before, last, row = last, row, before
	}
	if len(b)-len(a) > limit || len(a)-len(b) > limit {
		return limit + 1
	}
	return int(last[len(b)])
}
