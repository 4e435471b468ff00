package balance

import (
	"fmt"
	"math"
	"slices"
	"time"

	"scribe/internal/base/entropy"
	"scribe/internal/base/rendezvous"
)

// The simulation: callers that decide alone over a membership that is late, in virtual time. Nothing but the decision code is real.
const (
	simTick      = 250 * time.Millisecond
	simHeartbeat = 3333 * time.Millisecond // a third of a lease of 10 s
	simKeys      = 40                      // of each caller; each key's calls have one home
	simAnnounce  = time.Second             // least time between two lists
	simWatch     = 5 * time.Second         // after which the list is sent again anyway
)

// simInstance is an instance with a capacity. Its latency grows as it gets full.
type simInstance struct {
	id       string
	hash     uint64
	capacity float64
	rate     float64 // calls a second, at present
	load     float64 // as it is
	meter    LoadMeter
	told     uint32 // as its last heartbeat said
	listed   uint32 // as the last list said
	phase    time.Duration
	start    time.Duration // of its process
	away     bool
	// failing: it refuses every call at once, and says that it is idle; the calls go to the others afterwards, which adds to their rate.
	failing bool
	extra   float64
	// base is its latency without work in seconds, floor the least load, whatever its share; silent: the list does not have its load.
	base, floor float64
	silent      bool
}

// used returns the part of its capacity that an instance is offered.
func (s *simInstance) used() float64 { return (s.rate + s.extra) / s.capacity }

// latencyOf returns the latency in seconds at the present rate.
func (s *simInstance) latencyOf() float64 {
	if s.failing {
		return 0.001
	}
	return s.base / (1 - min(s.used(), 0.98))
}

// simCaller is a write proxy: each of its keys has a home among the instances by weight.
type simCaller struct {
	seen   []Instance
	keys   []uint64
	logs   [][]float64 // ln of the hash of key and instance
	homes  []int
	next   time.Duration // of the next decision
	random *entropy.Source
}

type simWorld struct {
	now       time.Duration
	instances []*simInstance
	callers   []*simCaller
	rate      float64 // of a key
	mute      bool    // answers tell no loads and no latencies: callers go by the list
	random    *entropy.Source

	listAt  time.Duration
	changed bool
	list    int // number of lists so far
	// moves counts keys that changed their home, messages those of the control plane: heartbeats, and lists to each watcher.
	moves, messages int
}

func newSimWorld(seed uint64, callers, instances int) *simWorld {
	w := &simWorld{random: entropy.NewSeeded(seed, "world")}
	total := 0.5 * float64(instances) * 1000 // half of what all can do
	w.rate = total / float64(callers*simKeys)
	for i := range instances {
		id := fmt.Sprint("batcher-", i)
		w.instances = append(w.instances, &simInstance{
			id: id, hash: rendezvous.WeightOf(uint64(i), seed), capacity: 1000, base: 0.01, start: -time.Hour, phase: w.random.Duration(simHeartbeat),
		})
	}
	for i := range callers {
		c := &simCaller{random: entropy.NewSeeded(seed, fmt.Sprint("caller ", i)), seen: make([]Instance, instances)}
		warmUp := DrawWarmUp(c.random)
		for j := range c.seen {
			c.seen[j].SetWarmUp(warmUp)
		}
		c.next = c.random.Duration(simTick * 4)
		for range simKeys {
			key := c.random.Uint64()
			c.keys = append(c.keys, key)
			logs := make([]float64, instances)
			for j, s := range w.instances {
				logs[j] = -math.Log((float64(rendezvous.WeightOf(key, s.hash)>>11) + 0.5) / (1 << 53))
			}
			c.logs = append(c.logs, logs)
		}
		c.homes = slices.Repeat([]int{-1}, simKeys)
		w.callers = append(w.callers, c)
	}
	w.announce()
	for _, c := range w.callers {
		w.place(c)
	}
	for _, s := range w.instances { // it has been so for a while
		w.measure(s)
		s.told = s.meter.Smooth(uint32(s.load))
	}
	w.announce()
	w.moves, w.messages = 0, 0
	return w
}

// announce sends the list to everybody.
func (w *simWorld) announce() {
	w.changed, w.listAt = false, w.now
	w.list++
	w.messages += len(w.callers) + len(w.instances)
	for _, s := range w.instances {
		s.listed = s.told
	}
	for _, c := range w.callers {
		for i, s := range w.instances {
			c.seen[i].Begin(w.now, int64(s.start), w.now-s.start)
			c.seen[i].Advertise(w.now, s.listed, !s.silent)
		}
	}
}

// place gives each key of a caller its home.
func (w *simWorld) place(c *simCaller) {
	weights := make([]float64, len(w.instances))
	for i, s := range w.instances {
		if !s.away {
			weights[i] = c.seen[i].Weight()
		}
	}
	for k, logs := range c.logs {
		best, score := -1, -1.0
		for i, l := range logs {
			if s := weights[i] / l; s > score {
				best, score = i, s
			}
		}
		if best != c.homes[k] {
			if c.homes[k] >= 0 {
				w.instances[c.homes[k]].rate -= w.rate
			}
			w.instances[best].rate += w.rate
			c.homes[k] = best
			w.moves++
		}
	}
}

// measure sets the load of an instance: memory in use and latency, with the noise of flushes that fill and empty.
func (w *simWorld) measure(s *simInstance) {
	if s.failing {
		s.load = 10
		return
	}
	late := s.latencyOf() * 10
	full := min(s.used(), 1) * 0.3 * (0.5 + w.random.Float64())
	s.load = max(MaxLoad*(1-(1-full)*(1-late/(1+late))), s.floor)
}

// spreadFailed gives the calls of failing instances to the others.
func (w *simWorld) spreadFailed() {
	failed, well := 0.0, 0
	for _, s := range w.instances {
		if s.failing {
			failed += s.rate
		} else if !s.away {
			well++
		}
	}
	for _, s := range w.instances {
		if s.extra = 0; !s.failing && !s.away {
			s.extra = failed / float64(well)
		}
	}
}

// step passes a tick of time.
func (w *simWorld) step() {
	w.now += simTick
	w.spreadFailed()
	for _, s := range w.instances {
		w.measure(s)
		if w.now >= s.phase {
			s.phase += simHeartbeat
			w.messages++
			if !s.away {
				s.told = s.meter.Smooth(uint32(min(s.load, MaxLoad)))
				w.changed = w.changed || Differs(s.listed, s.told)
			}
		}
	}
	w.messages += int(float64(len(w.callers)) * simTick.Seconds() / simHeartbeat.Seconds()) // heartbeats of the callers
	if since := w.now - w.listAt; w.changed && since >= simAnnounce || since >= simWatch {
		w.announce()
	}
	for _, c := range w.callers {
		for k, home := range c.homes { // one answer of each busy key in a while
			if !w.mute && w.random.Uint64()%4 == uint64(k)%4 {
				took := w.instances[home].latencyOf() * (0.6 + 0.8*w.random.Float64())
				if c.seen[home].NoteOutcome(w.now, !w.instances[home].failing); !w.instances[home].failing {
					c.seen[home].NoteLatency(w.now, time.Duration(took*1e9))
				}
				c.seen[home].NoteLoad(w.now, uint32(min(w.instances[home].load, MaxLoad)))
			}
		}
		if w.now < c.next {
			continue
		}
		c.next = w.now + 4*simTick
		if w.decide(c) {
			w.place(c)
		}
	}
}

// decide has a caller decide about all weights.
func (w *simWorld) decide(c *simCaller) (changed bool) {
	var views []View
	for i := range c.seen {
		if !w.instances[i].away {
			views = append(views, c.seen[i].View(w.now))
		}
	}
	t := TypicalOf(views)
	for i := range c.seen {
		if !w.instances[i].away && c.seen[i].Decide(w.now, t, c.random) {
			changed = true
		}
	}
	return changed
}

// setAway takes instances out of the list, or puts them back as having just started.
func (w *simWorld) setAway(away bool, which ...int) {
	for _, i := range which {
		s := w.instances[i]
		if s.away = away; !away {
			s.start, s.told, s.meter = w.now, 0, LoadMeter{}
		}
	}
	w.announce()
	for _, c := range w.callers { // who gets another list decides at once
		w.decide(c)
		w.place(c)
	}
}

// mostUsed returns the largest part of its capacity that an instance is offered, and the mean of all.
func (w *simWorld) mostUsed() (most, mean float64) {
	n := 0.0
	for _, s := range w.instances {
		if !s.away {
			most = max(most, s.used())
			mean += s.used()
			n++
		}
	}
	return most, mean / n
}
