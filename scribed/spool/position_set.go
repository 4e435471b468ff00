package spool

import (
	"slices"
	"sort"

	"scribe/scribed/spool/layout"
)

// positionSet is a set of positions, as ordered ranges that do not touch each other.
//
// A record of a part is represented by the range from just after the previous record of its category up to itself. So the ranges
// of neighbours touch, whatever other categories' records lie between them, and a category whose records are finished in order is
// one range.
type positionSet []layout.PositionRange

// findRange returns the index of the first range that ends after p.
func (s positionSet) findRange(p layout.Position) int {
	return sort.Search(len(s), func(i int) bool { return s[i].To > p })
}

func (s positionSet) contains(p layout.Position) bool {
	i := s.findRange(p)
	return i < len(s) && s[i].From <= p
}

func (s *positionSet) addRange(from, to layout.Position) {
	if from >= to {
		return
	}
	v := *s
	if n := len(v); n > 0 && v[n-1].To == from { // the common case: in order
		v[n-1].To = to
		return
	}
	// Ranges that overlap or touch it are merged.
	i := sort.Search(len(v), func(i int) bool { return v[i].To >= from })
	j := i
	for j < len(v) && v[j].From <= to {
		from, to = min(from, v[j].From), max(to, v[j].To)
		j++
	}
	*s = slices.Replace(v, i, j, layout.PositionRange{From: from, To: to})
}

func (s *positionSet) removeRange(from, to layout.Position) {
	if from >= to {
		return
	}
	v := *s
	i := v.findRange(from)
	var rest [2]layout.PositionRange
	n, j := 0, i
	for j < len(v) && v[j].From < to {
		if v[j].From < from {
			rest[n] = layout.PositionRange{From: v[j].From, To: from}
			n++
		}
		if v[j].To > to {
			rest[n] = layout.PositionRange{From: to, To: v[j].To}
			n++
		}
		j++
	}
	*s = slices.Replace(v, i, j, rest[:n]...)
}

// eachGap calls fn with the ranges of [first, end) that are not in the set.
func (s positionSet) eachGap(first, end layout.Position, fn func(from, to layout.Position)) {
	at := first
	for _, r := range s[s.findRange(first):] {
		if r.From >= end {
			break
		}
		if r.From > at {
			fn(at, r.From)
		}
		at = max(at, r.To)
	}
	if at < end {
		fn(at, end)
	}
}

// without returns the difference of two sets.
func (s positionSet) without(other positionSet) positionSet {
	out := slices.Clone(s)
	for _, r := range other {
		out.removeRange(r.From, r.To)
	}
	return out
}

func (s positionSet) union(other positionSet) positionSet {
	out := slices.Clone(s)
	for _, r := range other {
		out.addRange(r.From, r.To)
	}
	return out
}
