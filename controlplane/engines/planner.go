package engines

import (
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"scribe/internal/base/rendezvous"
)

// Action is what a step does.
type Action uint8

// Actions. A category that goes to another engine takes Prepare, Relocate and Settle.
const (
	// Prepare stores that a category goes to another engine.
	Prepare Action = iota + 1
	// Learn asks the engines where a category is of which nothing is stored.
	Learn
	// Relocate moves the category and its logs, or what is left of that.
	Relocate
	// Settle stores that it is there.
	Settle
	// Sweep moves what logs of a category an engine has that is drained and is not its home.
	Sweep
)

// String names the action.
func (a Action) String() string {
	return [...]string{"none", "prepare", "learn", "relocate", "settle", "sweep"}[min(a, Sweep)]
}

// Step is what to do next, for one category.
type Step struct {
	Action   Action
	Category uint32
	// Home is what to store for Prepare and Settle, and where the category goes for the others.
	Home Home
	// From is the engine that a Sweep empties.
	From string
}

// RetryAfter is how long a category rests whose step has failed.
const RetryAfter = 5 * time.Second

// Planner decides on which engine each category is, and what to do for that. Categories go to the engine that rendezvous hashing chooses among those
// that are not drained: an engine that is added gets its share from all others, and one that is drained gives its own to all others. One category is
// on its way at a time. Times are of any clock that never goes back.
type Planner struct {
	list List
	// active are the engines that get categories, draining those that are drained.
	active     []candidate
	draining   []string
	categories map[uint32]*category
	// queue are the categories to look at, each once; resting those whose last step has failed, in the order of their ends.
	queue   []uint32
	resting []rest
}

type candidate struct {
	name string
	hash uint64
}

type rest struct {
	category uint32
	until    time.Duration
}

// category is what is known of a category.
type category struct {
	home Home
	// known: the home is stored, or the engines said it; else it is the root until they are asked.
	known bool
	// relocated: everything has moved, which is not stored yet.
	relocated bool
	// queued: it is in the queue, or rests.
	queued bool
	// swept counts those of Planner.draining that have nothing of it.
	swept int
}

// NewPlanner returns a planner for a cell with a root and nothing else.
func NewPlanner(root string) *Planner {
	p := &Planner{categories: map[uint32]*category{}}
	p.SetEngines(List{{Name: root}})
	return p
}

// SetEngines takes the list of engines.
func (p *Planner) SetEngines(l List) {
	if slices.Equal(p.list, l) {
		return
	}
	p.list, p.active, p.draining = slices.Clone(l), nil, nil
	for _, e := range l {
		if e.DrainingSince == 0 {
			p.active = append(p.active, candidate{e.Name, xxhash.Sum64String(e.Name)})
		} else {
			p.draining = append(p.draining, e.Name)
		}
	}
	ids := make([]uint32, 0, len(p.categories))
	for id, c := range p.categories {
		c.swept = 0
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		p.enqueue(id, p.categories[id])
	}
}

// Restore takes the home of a category: as it is stored, or as the engines have said.
func (p *Planner) Restore(id uint32, h Home) {
	c := p.categories[id]
	if c == nil {
		c = &category{}
		p.categories[id] = c
	}
	c.home, c.known, c.relocated, c.swept = h, true, false, 0
	p.enqueue(id, c)
}

// AddCategory makes a category known, unless it was restored. Where it is, the engines are asked as soon as there are several.
func (p *Planner) AddCategory(id uint32) {
	if p.categories[id] == nil {
		c := &category{home: Home{Engine: p.list[0].Name}}
		p.categories[id] = c
		p.enqueue(id, c)
	}
}

// Forget forgets a category that was deleted.
func (p *Planner) Forget(id uint32) { delete(p.categories, id) }

// Next returns the next step. Without one it returns how long to wait for it, 0 for until something changes. The caller then calls Done, Failed or
// Restore for the step before it asks for another.
func (p *Planner) Next(now time.Duration) (s Step, wait time.Duration, ok bool) {
	for len(p.resting) > 0 && p.resting[0].until <= now {
		p.queue, p.resting = append(p.queue, p.resting[0].category), p.resting[1:]
	}
	for len(p.queue) > 0 {
		id := p.queue[0]
		if c := p.categories[id]; c != nil {
			if s, ok = p.decide(id, c); ok {
				return s, 0, true
			}
			c.queued = false
		}
		p.queue = p.queue[1:]
	}
	if len(p.resting) > 0 {
		wait = p.resting[0].until - now
	}
	return Step{}, wait, false
}

// Done takes note of a step that was taken.
func (p *Planner) Done(s Step) {
	c := p.categories[s.Category]
	if c == nil {
		return
	}
	switch s.Action {
	case Prepare, Settle:
		c.home, c.relocated = s.Home, false
	case Relocate:
		c.relocated = true
	case Sweep:
		c.swept++
	}
}

// Failed takes note of a step that failed: its category rests.
func (p *Planner) Failed(s Step, now time.Duration) {
	if len(p.queue) > 0 && p.queue[0] == s.Category {
		p.queue = p.queue[1:]
		p.resting = append(p.resting, rest{s.Category, now + RetryAfter})
	}
}

// Homes returns how many categories are at home in each engine, as far as it is known, and how many are on their way, or have to be.
func (p *Planner) Homes() (homes map[string]int, pending int) {
	homes = map[string]int{}
	for id, c := range p.categories {
		homes[c.home.Engine]++
		if s, ok := p.decide(id, c); ok && s.Action != Learn {
			pending++
		}
	}
	return homes, pending
}

// decide returns the next step of a category, if there is one.
func (p *Planner) decide(id uint32, c *category) (s Step, ok bool) {
	s = Step{Category: id, Home: c.home}
	if !c.known {
		s.Action = Learn
		return s, len(p.list) > 1
	}
	if c.home.From != "" {
		s.Action = Relocate
		if c.relocated {
			s.Action, s.Home.From = Settle, ""
		}
		return s, true
	}
	if want := p.engineFor(id); want != c.home.Engine {
		s.Action, s.Home = Prepare, Home{Engine: want, Mark: c.home.Mark + 1, From: c.home.Engine}
		return s, true
	}
	if c.swept < len(p.draining) { // none of them is its home
		s.Action, s.From = Sweep, p.draining[c.swept]
		return s, true
	}
	return Step{}, false
}

// engineFor returns the engine on which a category belongs. The root is never drained, so there is one.
func (p *Planner) engineFor(id uint32) string {
	best, most := p.list[0].Name, uint64(0)
	for _, e := range p.active {
		if w := rendezvous.WeightOf(uint64(id), e.hash); w >= most {
			best, most = e.name, w
		}
	}
	return best
}

func (p *Planner) enqueue(id uint32, c *category) {
	if !c.queued {
		c.queued = true
		p.queue = append(p.queue, id)
	}
}
