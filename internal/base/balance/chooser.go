package balance

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"scribe/internal/base/entropy"
	"scribe/internal/base/rendezvous"
)

const (
	// subset is the number of instances among which a caller chooses. It bounds a caller's connections, and is large enough that the subsets
	// of many callers overlap evenly.
	subset = 8
	// choiceMemory is the time constant with which the artificial load of a choice fades: by then the real one shows in reports.
	choiceMemory = 10 * time.Second
	// decideEvery is the least time between two decisions about the weights.
	decideEvery = time.Second
)

// Report is what the membership says of an instance.
type Report struct {
	// ID names the instance, before and after a restart.
	ID string
	// Load is 0 (idle) to 1000 (refusing). Known is false for one that does not advertise any.
	Load  uint32
	Known bool
	// Start differs from one start of the instance to the next, and Age is how long it has served. A Start of 0 is unknown.
	Start int64
	Age   time.Duration
}

// Chooser chooses an instance for each of a caller's calls. Each choice adds artificial load to its instance, in proportion to the
// inverse of the weight, and the instance of the subset with the least artificial load is the next: equal ones take turns.
type Chooser struct {
	key    uint64 // the caller's, for rendezvous
	random *entropy.Source
	byID   map[string]*candidate
	all    []*candidate  // those of byID, in an order that does not depend on chance
	next   time.Duration // of the next decision
	round  uint64        // of Order
	warmUp time.Duration // of all instances
}

type candidate struct {
	Instance
	rank   uint64  // for the caller, by rendezvous
	chosen float64 // choices, faded
	at     time.Duration
	round  uint64        // in which it was available last
	away   time.Duration // until when it is avoided
}

// NewChooser returns a chooser, which draws its subset, its jitter and where it begins from a source.
func NewChooser(random *entropy.Source) *Chooser {
	c := &Chooser{key: random.Uint64(), random: random, byID: make(map[string]*candidate)}
	c.warmUp = DrawWarmUp(random)
	return c
}

// SetInstances takes over what the membership says. Instances that it does not name are forgotten.
func (c *Chooser) SetInstances(now time.Duration, reports []Report) {
	before := c.byID
	c.byID, c.all = make(map[string]*candidate, len(reports)), make([]*candidate, 0, len(reports))
	for _, r := range reports {
		if c.byID[r.ID] != nil {
			continue
		}
		m := before[r.ID]
		if m == nil {
			m = c.newCandidate(r.ID)
		}
		m.Begin(now, r.Start, r.Age)
		m.Advertise(now, r.Load, r.Known)
		c.addCandidate(r.ID, m)
	}
	c.next = now
}

func (c *Chooser) newCandidate(id string) *candidate {
	m := &candidate{rank: rendezvous.WeightOf(c.key, xxhash.Sum64String(id))}
	m.SetWarmUp(c.warmUp)
	return m
}

func (c *Chooser) addCandidate(id string, m *candidate) {
	c.byID[id], c.all = m, append(c.all, m)
}

// candidateOf returns an instance, which may be one that the membership does not name: an address that the caller was given.
func (c *Chooser) candidateOf(id string) *candidate {
	m := c.byID[id]
	if m == nil {
		m = c.newCandidate(id)
		m.Begin(0, 0, 0)
		c.addCandidate(id, m)
	}
	return m
}

// decideWeights decides about all weights, if that is due.
func (c *Chooser) decideWeights(now time.Duration) {
	if now < c.next {
		return
	}
	c.next = now + decideEvery
	views := make([]View, 0, len(c.all))
	for _, m := range c.all {
		if now >= m.away {
			views = append(views, m.View(now))
		}
	}
	t := TypicalOf(views)
	for _, m := range c.all {
		before := m.Weight()
		if !m.Decide(now, t, c.random) {
			continue
		}
		if after := m.Weight(); after > before {
			m.chosen = max((m.chosen+1)*after/before-1, 0) // it gets more from now on, not what it would have got until now
		}
	}
}

// NoteOutcome notes whether a call at an instance did what it was to do.
func (c *Chooser) NoteOutcome(now time.Duration, id string, ok bool) {
	c.candidateOf(id).NoteOutcome(now, ok)
}

// NoteAvoided notes until when an instance is avoided, which is past if it is not any more. Meanwhile it is not compared with the others: it is
// idle since nobody calls it.
func (c *Chooser) NoteAvoided(id string, until time.Duration) { c.candidateOf(id).away = until }

// Weight returns the weight of an instance; 1 for one that is not known.
func (c *Chooser) Weight(id string) float64 {
	if m := c.byID[id]; m != nil {
		return m.Weight()
	}
	return 1
}

// costOf returns the artificial load that an instance would have after one more choice.
func (m *candidate) costOf(now time.Duration) float64 {
	m.fadeChoices(now)
	return (m.chosen + 1) / m.Weight()
}

func (m *candidate) fadeChoices(now time.Duration) {
	if now > m.at {
		m.chosen *= math.Exp(-(now - m.at).Seconds() / choiceMemory.Seconds())
		m.at = now
	}
}

// Order puts instances in the order in which a call tries them: the caller's subset by artificial load, then the others. It changes ids.
func (c *Chooser) Order(now time.Duration, ids []string) {
	c.decideWeights(now)
	ranked := make([]rankedCandidate, len(ids))
	for i, id := range ids {
		m := c.candidateOf(id)
		ranked[i] = rankedCandidate{id, m, 0}
	}
	slices.SortFunc(ranked, func(a, b rankedCandidate) int { return cmp.Compare(b.rank, a.rank) })
	own := ranked[:min(subset, len(ranked))]
	c.raiseReturned(now, own)
	for i := range own {
		own[i].cost = own[i].costOf(now)
	}
	slices.SortStableFunc(own, func(a, b rankedCandidate) int { return cmp.Compare(a.cost, b.cost) })
	for i := range ranked {
		ids[i] = ranked[i].id
	}
}

// rankedCandidate is an instance with its rank for the caller, and what it costs to choose it.
type rankedCandidate struct {
	id string
	*candidate
	cost float64
}

// raiseReturned gives instances that were not available in the last round as many choices as the others have: the calls that they missed
// must not come all at once.
func (c *Chooser) raiseReturned(now time.Duration, own []rankedCandidate) {
	least := math.Inf(1)
	for _, m := range own {
		if m.round == c.round && c.round > 0 {
			least = min(least, m.costOf(now))
		}
	}
	for _, m := range own {
		if m.round != c.round && !math.IsInf(least, 1) {
			m.fadeChoices(now)
			m.chosen = max(m.chosen, least*m.Weight()-1)
		}
		m.round = c.round + 1
	}
	c.round++
}

// Choose notes that a call goes to an instance.
func (c *Chooser) Choose(now time.Duration, id string) {
	m := c.candidateOf(id)
	m.fadeChoices(now)
	m.chosen++
}

// AvoidLoaded moves instances of at most half the full weight behind the others, and keeps the order otherwise. It changes ids.
func (c *Chooser) AvoidLoaded(now time.Duration, ids []string) {
	c.decideWeights(now)
	loaded := func(id string) int {
		if c.Weight(id) <= 0.5 {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(ids, func(a, b string) int { return cmp.Compare(loaded(a), loaded(b)) })
}
