package near

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxName bounds the work for a name; longer ones are not compared.
const maxName = 255

// maxNames is how many names are suggested.
const maxNames = 3

// Names returns those of have that are nearest to want, the nearest first, at most three, and only if they are near: a letter more, less,
// wrong or swapped for a short name, two or three for a long one. Case does not count.
func Names(want string, have []string) []string {
	if want == "" || len(want) > maxName {
		return nil
	}
	limit := 3
	switch n := utf8.RuneCountInString(want); {
	case n <= 4:
		limit = 1
	case n <= 10:
		limit = 2
	}
	type found struct {
		name     string
		distance int
	}
	var all []found
	folded := []rune(strings.ToLower(want))
	for _, name := range have {
		if len(name) > maxName {
			continue
		}
		if d := distance(folded, []rune(strings.ToLower(name)), limit); d <= limit && name != want {
			all = append(all, found{name, d})
		}
	}
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(a.distance, b.distance) })
	var names []string
	for _, f := range all {
		if len(names) < maxNames && !slices.Contains(names, f.name) {
			names = append(names, f.name)
		}
	}
	return names
}

// Hint is the suggestion as a phrase: empty, or did you mean "a", "b" or "c"?
func Hint(want string, have []string) string { return Phrase(Names(want, have)) }

// Phrase is the suggestion of names as [Hint] gives it; empty if there are none.
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

// distance is the number of characters to insert, remove, replace or swap with their neighbour that make a into b, or something above
// limit when it is more than that.
func distance(a, b []rune, limit int) int {
	if len(a)-len(b) > limit || len(b)-len(a) > limit {
		return limit + 1
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		least := i
		for j := 1; j <= len(b); j++ {
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
		if least > limit {
			return limit + 1
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
