package near

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxName is the maximum length in characters of a name to compare. Longer names are ignored.
const maxName = 255

// maxNames is the maximum number of suggestions.
const maxNames = 3

// Finder picks the names nearest to an unknown name from any number of offered names. Its memory does not grow with their number.
type Finder struct {
	want string
	// folded is want in lower case. It is empty if no name can be near want.
	folded []rune
	// limit is the maximum distance of a suggestion.
	limit int
	found []nearCandidate
}

// nearCandidate is a name and its distance.
type nearCandidate struct {
	name     string
	distance int
}

// NewFinder returns a finder for a name. Near means one inserted, removed, changed or swapped letter for a short name, and two or
// three for a long one. Case is ignored.
func NewFinder(want string) *Finder {
	f := &Finder{want: want, limit: 3}
	n := utf8.RuneCountInString(want)
	if n > maxName {
		return f
	}
	f.folded = []rune(strings.ToLower(want))
	switch {
	case n <= 4:
		f.limit = 1
	case n <= 10:
		f.limit = 2
	}
	return f
}

// Offer considers a name.
func (f *Finder) Offer(name string) {
	n := utf8.RuneCountInString(name)
	if len(f.folded) == 0 || n > maxName || name == f.want || n-len(f.folded) > f.limit || len(f.folded)-n > f.limit {
		return
	}
	if d := editDistance(f.folded, []rune(strings.ToLower(name)), f.limit); d <= f.limit {
		f.found = append(f.found, nearCandidate{name, d})
	}
	if len(f.found) > 4*maxNames {
		f.keepNearest()
	}
}

// keepNearest drops all but the nearest names.
func (f *Finder) keepNearest() {
	slices.SortStableFunc(f.found, func(a, b nearCandidate) int { return cmp.Compare(a.distance, b.distance) })
	kept := f.found[:0]
	for _, x := range f.found {
		if len(kept) < maxNames && !slices.Contains(kept, x) {
			kept = append(kept, x)
		}
	}
	f.found = kept
}

// Names returns the nearest names, nearest first, at most three. Among equally near names, those offered first come first.
func (f *Finder) Names() []string {
	f.keepNearest()
	var names []string
	for _, x := range f.found {
		names = append(names, x.name)
	}
	return names
}

// Names returns the names among have that a [Finder] for want picks.
func Names(want string, have []string) []string {
	f := NewFinder(want)
	for _, name := range have {
		f.Offer(name)
	}
	return f.Names()
}

// Hint returns the suggestion as a phrase: empty, or did you mean "a", "b" or "c"?
func Hint(want string, have []string) string { return Phrase(Names(want, have)) }

// Phrase returns the phrase that [Hint] makes for names, or an empty text if there are none.
func Phrase(names []string) string {
	if len(names) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("did you mean ")
	for i, name := range names {
		switch {
		case i == 0:
		case i == len(names)-1:
			b.WriteString(" or ")
		default:
			b.WriteString(", ")
		}
		b.WriteString(`"` + name + `"`)
	}
	return b.String() + "?"
}

// editDistance returns the number of inserted, removed, replaced or swapped neighbouring characters that turn a into b (optimal
// string alignment). If it exceeds limit, it returns some value above limit. Neither is longer than maxName.
//
// Only a band around the table's diagonal is computed, because anything further than limit from it costs more than limit.
func editDistance(a, b []rune, limit int) int {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	if len(b)-len(a) > limit || len(a)-len(b) > limit {
		return limit + 1
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
	return int(last[len(b)])
}
