package view

import (
	"slices"
	"strings"
)

// Constants of the cost model. They are estimates, not measurements: nanoseconds a row, for rows of some 300 bytes of a log in
// JSON, on one processor. Only their ratios matter, and they decide only which queries share a view, never the answer of a query.
// A walk over a row costs as much as a few of its columns, so similar queries share a view. A kept column costs more than one
// that is only evaluated, so queries with little in common do not.
const (
	// costWalk is the cost to find a row's values, costHurried that where a row can be left early.
	costWalk    = 60.0
	costHurried = 40.0
	// costInput is the cost of a column of the predicate, for every row.
	costInput = 15.0
	// costKeep is the cost of a column of a kept row: read, and written into the view.
	costKeep = 20.0
	// costTake is the cost of a column of a row for a reader: transferred and evaluated.
	costTake = 6.0
	// costView is the cost of a view in addition to its rows, per row of the payload.
	costView = 2.0
)

// unmeasured is the assumed share of rows that a predicate keeps before it is measured.
const unmeasured = 0.25

// costToMake returns the cost of making the shape per row of a payload, if it keeps the share kept of the rows.
func (s *Shape) costToMake(kept float64) float64 {
	walk := costWalk
	if s.EarlyStop && kept < 0.5 {
		walk = costHurried
	}
	return walk + costView + costInput*float64(s.inputs) + costKeep*kept*float64(len(s.Columns))
}

// costToTake returns the cost for a reader of the shape, per row of a payload.
func (s *Shape) costToTake(kept float64) float64 { return costTake * kept * float64(len(s.Columns)) }

// rowShares has the measured shares of rows that alternatives and shapes keep, by key.
type rowShares map[string]float64

// keptShare returns the share of rows that a shape keeps: as measured, else the sum of its alternatives' shares, at most 1.
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

// rowsKey identifies the rows of a shape; for a shape of one alternative it is the alternative's key.
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

// queryGroup is a group of queries that share a shape.
type queryGroup struct {
	shape   *Shape
	members []*TrackedQuery
	// sum and most are the sum and the maximum of the members' request rates.
	sum, most float64
}

// mergeWith returns the union of two groups.
func (g *queryGroup) mergeWith(o *queryGroup) *queryGroup {
	return &queryGroup{
		shape: mergeShapes(g.shape, o.shape), members: slices.Concat(g.members, o.members),
		sum: g.sum + o.sum, most: max(g.most, o.most),
	}
}

// cost returns the cost of the group. alone is the share of requests, 0 to 1, for payloads that no other query requests: each of
// these needs a view of its own.
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

// divideQueries divides queries into at most most groups with a low total cost. singles has one group for each query, the busiest
// first.
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
