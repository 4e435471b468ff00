package view

import (
	"slices"
	"strings"
)

// What the model counts. They are estimates, not measurements: nanoseconds a row of what the parts of the work cost about for a row of a
// log in JSON of some 300 bytes on one processor. Only their ratios matter, and they decide which queries share a view, never what a query
// answers: that a walk over a row costs as much as a few columns of it is why similar queries are served by one view, and that a column
// which is kept costs more than one that is only looked at is why queries that have little in common are not.
const (
	// costWalk is to find a row's values, costHurried where a row can be left early.
	costWalk    = 60.0
	costHurried = 40.0
	// costInput is a column of the predicate, of every row.
	costInput = 15.0
	// costKeep is a column of a row that is kept: read, and written into the view.
	costKeep = 20.0
	// costTake is a column of a row that a reader gets: carried there, and looked at.
	costTake = 6.0
	// costView is what a view takes beside its rows, by row of the payload.
	costView = 2.0
)

// unmeasured is the share of rows that a predicate is taken to keep before that is known.
const unmeasured = 0.25

// costToMake is what making a shape costs of a payload's row, when it keeps the share kept.
func (s *Shape) costToMake(kept float64) float64 {
	walk := costWalk
	if s.EarlyStop && kept < 0.5 {
		walk = costHurried
	}
	return walk + costView + costInput*float64(s.inputs) + costKeep*kept*float64(len(s.Columns))
}

// costToTake is what a reader of it costs.
func (s *Shape) costToTake(kept float64) float64 { return costTake * kept * float64(len(s.Columns)) }

// rowShares are the measured parts of rows that alternatives and shapes keep, by their keys.
type rowShares map[string]float64

// keptShare is the share of rows that a shape keeps: as measured, else at most what its alternatives keep together.
func (m rowShares) keptShare(s *Shape) float64 {
	if v, ok := m[s.rowsKey()]; ok {
		return v
	}
	sum := 0.0
	for i := range s.any {
		a := &s.any[i]
		switch v, ok := m[a.key]; {
		case len(a.terms) == 0:
			return 1
		case ok:
			sum += v
		default:
			sum += unmeasured
		}
	}
	return min(sum, 1)
}

// rowsKey stands for the rows of a shape; of one alternative it is that one's key.
func (s *Shape) rowsKey() string {
	if len(s.any) == 1 {
		return s.any[0].key
	}
	var key strings.Builder
	for i := range s.any {
		key.WriteString("\x02" + s.any[i].key)
	}
	return key.String()
}

// queryGroup is queries that share a shape, as the policy weighs them.
type queryGroup struct {
	shape   *Shape
	members []*TrackedQuery
	// sum and most are of how often the members ask.
	sum, most float64
}

// mergeWith returns the group and others' members.
func (g *queryGroup) mergeWith(o *queryGroup) *queryGroup {
	return &queryGroup{
		shape: mergeShapes(g.shape, o.shape), members: slices.Concat(g.members, o.members),
		sum: g.sum + o.sum, most: max(g.most, o.most),
	}
}

// cost is what the group costs. alone is the part of asks that are for a payload that nobody else asks for, 0 to 1: a view is made
// for each of these.
func (g *queryGroup) cost(m rowShares, alone float64) float64 {
	kept := m.keptShare(g.shape)
	makes := max(g.most, alone*g.sum)
	return makes*g.shape.costToMake(kept) + g.sum*g.shape.costToTake(kept)
}

func totalCost(groups []*queryGroup, m rowShares, alone float64) float64 {
	sum := 0.0
	for _, g := range groups {
		sum += g.cost(m, alone)
	}
	return sum
}

// divideQueries divides queries, one group each and the busiest first, into at most so many groups of which the sum is cheap.
func divideQueries(singles []*queryGroup, most int, m rowShares, alone float64) []*queryGroup {
	var groups []*queryGroup
	for _, single := range singles {
		best, at := single.cost(m, alone), -1
		if len(groups) >= most {
			best = -1
		}
		for i, g := range groups {
			joined := g.mergeWith(single)
			if more := joined.cost(m, alone) - g.cost(m, alone); best < 0 || more < best {
				best, at = more, i
			}
		}
		if at < 0 {
			groups = append(groups, single)
			continue
		}
		groups[at] = groups[at].mergeWith(single)
	}
	for len(groups) > 1 {
		best, a, b := 0.0, -1, -1
		for i := range groups {
			for j := range i {
				joined := groups[i].mergeWith(groups[j])
				if saved := groups[i].cost(m, alone) + groups[j].cost(m, alone) - joined.cost(m, alone); saved > best {
					best, a, b = saved, j, i
				}
			}
		}
		if a < 0 {
			break
		}
		groups[a] = groups[a].mergeWith(groups[b])
		groups = append(groups[:b], groups[b+1:]...)
	}
	return groups
}
