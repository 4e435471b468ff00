package sql

import "iter"

// maxNear is how long a name is at most for which a near one is looked for, in bytes.
const maxNear = 64

// Nearest returns the name that is so near to name that it was probably meant: at most a third of its letters are changed, left out,
// added or exchanged with the next. Names that differ in case alone are nearest.
func Nearest(name string, names iter.Seq[string]) (string, bool) {
	if len(name) > maxNear {
		return "", false
	}
	best, distance := "", 1+max(1, len(name)/3)
	for n := range names {
		if len(n) > maxNear || n == "" {
			continue
		}
		if d := distanceOf(lower(name), lower(n), distance); d < distance && d < len(n) {
			best, distance = n, d
		}
	}
	return best, best != ""
}

// distanceOf returns how many edits make b of a, or bound if that is not less.
func distanceOf(a, b string, bound int) int {
	if abs(len(a)-len(b)) >= bound {
		return bound
	}
	var rows [3][maxNear + 1]int
	before, last, row := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return min(last[len(b)], bound)
}

func abs(n int) int {
	if n < 0 {
		return -n
	}
	return n
}
