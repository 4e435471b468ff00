package balance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"scribe/internal/base/entropy"
)

// simPhase is what happened in one phase of a simulation.
type simPhase struct {
	name string
	// before, most and after are the largest part of its capacity that an instance was offered: in the first tick, in any later one, and at
	// the end. mean is that of all.
	before, most, after, mean float64
	// settled is when no instance was offered more than it should be, for good.
	settled  time.Duration
	moves    int
	messages float64 // a second
	lists    int
}

// run passes time. bound is what no instance should be offered more of than that part of its capacity.
func (w *simWorld) run(name string, d time.Duration, bound float64) simPhase {
	p := simPhase{name: name}
	begin, moves, messages, lists := w.now, w.moves, w.messages, w.list
	for end := w.now + d; w.now < end; {
		w.step()
		most, mean := w.mostUsed()
		if p.before == 0 {
			p.before = most
		} else {
			p.most = max(p.most, most)
		}
		if most > bound {
			p.settled = w.now - begin
		}
		p.after, p.mean = most, mean
	}
	p.moves, p.messages, p.lists = w.moves-moves, float64(w.messages-messages)/d.Seconds(), w.list-lists
	return p
}

func (p *simPhase) String() string {
	return fmt.Sprintf("%-24s most/mean %.2f at first, %.2f at most, %.2f at the end; settled after %5.1f s; %4d moves, %.0f messages/s, %d lists",
		p.name, p.before/p.mean, p.most/p.mean, p.after/p.mean, p.settled.Seconds(), p.moves, p.messages, p.lists)
}

// simSize is the number of callers.
func simSize() int {
	if testing.Short() {
		return 200
	}
	return 1000
}

// TestSimulatedBatchers: 1,000 write proxies give 40,000 micro-shards to 100 batchers, each by its own decisions.
//
//	go test ./internal/base/balance -run Simulated -v
func TestSimulatedBatchers(t *testing.T) {
	callers := simSize()
	w := newSimWorld(1, callers, 100)
	keys := callers * simKeys
	share := keys / 100

	even := w.run("even", 20*time.Second, 0.65)
	t.Log(&even)
	if even.moves > share/4 {
		t.Errorf("%d of %d micro-shards moved among equal batchers", even.moves, keys)
	}

	w.instances[0].capacity /= 4
	bound := 0.8
	if testing.Short() {
		bound = 0.9 // one micro-shard is a fortieth of what the slow one can do
	}
	slow := w.run("one four times slower", 40*time.Second, bound)
	t.Log(&slow)
	if slow.before < 1.5 || slow.settled > 15*time.Second || slow.after > bound || slow.moves > 2*share {
		t.Error("the slow batcher did not get what it can do, or more moved than there was cause for")
	}

	w.instances[0].capacity *= 4
	again := w.run("it is fast again", 60*time.Second, 0.7)
	t.Log(&again)
	if got := w.instances[0].rate / w.instances[0].capacity; got < 0.35 {
		t.Errorf("a batcher that is fast again is used to %.2f, the others to %.2f", got, again.mean)
	}

	restarted := []int{10, 11, 12, 13, 14, 15, 16, 17, 18, 19}
	w.setAway(true, restarted...)
	away := w.run("a tenth is away", 10*time.Second, 0.8)
	t.Log(&away)
	w.setAway(false, restarted...)
	first := w.instances[10].rate / w.instances[10].capacity
	back := w.run("it is back", 45*time.Second, 0.8)
	t.Log(&back)
	if first > 0.15 {
		t.Errorf("a batcher that had just started was used to %.2f at once", first)
	}
	if back.most > 0.9 || back.after > 0.75 {
		t.Error("somebody was flooded after the restart")
	}
	// A heartbeat in 3.3 s and a list in 5 s for each process, and few more lists.
	if all := float64(callers + len(w.instances)); even.messages > 0.8*all || back.messages > all {
		t.Errorf("%.0f messages a second of the control plane in calm, %.0f after the restart, of %.0f processes", even.messages, back.messages, all)
	}
}

// TestSimulatedWriteProxies: 1,000 producers choose among 100 write proxies for each call (with -short 200 among 20), by lists that are up to five seconds old.
func TestSimulatedWriteProxies(t *testing.T) {
	const (
		tick  = 500 * time.Millisecond // each caller calls once in it
		lists = 5 * time.Second
	)
	callers := simSize()
	const perCapacity = 10 / 0.5 / 0.5 // ten callers for each, which offer half of what it can do
	type proxy struct {
		capacity, rate, load float64
		told                 uint32
		meter                LoadMeter
		start                time.Duration
		calls                int
	}
	proxies := make([]proxy, callers/10)
	ids := make([]string, len(proxies))
	for i := range proxies {
		proxies[i] = proxy{capacity: perCapacity, start: -time.Hour}
		ids[i] = fmt.Sprint("http://proxy-", i)
	}
	random := entropy.NewSeeded(1, "producers")
	choosers := make([]*Chooser, callers)
	next := make([]time.Duration, callers)
	for i := range choosers {
		choosers[i] = NewChooser(entropy.NewSeeded(1, fmt.Sprint("producer ", i)))
	}
	var now time.Duration
	order := make([]string, len(ids))
	index := make(map[string]int)
	for i, id := range ids {
		index[id] = i
	}
	step := func() {
		now += tick
		for i, c := range choosers {
			if now >= next[i] {
				next[i] = now + lists*4/5 + random.Duration(lists*2/5)
				reports := make([]Report, len(proxies))
				for j := range proxies {
					p := &proxies[j]
					reports[j] = Report{ID: ids[j], Load: p.told, Known: true, Start: int64(p.start), Age: now - p.start}
				}
				c.SetInstances(now, reports)
			}
			copy(order, ids)
			c.Order(now, order)
			c.Choose(now, order[0])
			proxies[index[order[0]]].calls++
		}
		for i := range proxies {
			p := &proxies[i]
			p.rate += (float64(p.calls)/tick.Seconds() - p.rate) / 8 // mean of four seconds
			p.calls = 0
			p.load = MaxLoad * min(p.rate/p.capacity, 1) * (0.4 + 0.2*random.Float64())
			if int(now/tick)%7 == i%7 {
				p.told = p.meter.Smooth(uint32(p.load))
			}
		}
	}
	run := func(name string, d time.Duration) (most float64) {
		for end := now + d; now < end; {
			step()
			mean := 0.0
			for i := range proxies {
				most = max(most, proxies[i].rate/proxies[i].capacity)
				mean += proxies[i].rate / proxies[i].capacity / float64(len(proxies))
			}
			if now >= end {
				last := slices.MaxFunc(proxies, func(a, b proxy) int { return int(1e6 * (a.rate/a.capacity - b.rate/b.capacity)) })
				t.Logf("%-24s most/mean %.2f at most, %.2f at the end; the first is used to %.2f, the eleventh to %.2f", name, most/mean, last.rate/last.capacity/mean,
					proxies[0].rate/proxies[0].capacity, proxies[10].rate/proxies[10].capacity)
			}
		}
		return most
	}
	run("it begins", 10*time.Second)
	if most := run("even", 10*time.Second); most > 0.85 {
		t.Errorf("one of equal write proxies is used to %.2f, the mean is 0.5", most)
	}
	proxies[0].capacity /= 4
	run("one four times slower", 30*time.Second)
	run("it settles", 20*time.Second)
	if used := proxies[0].rate / proxies[0].capacity; used > 1.1 {
		t.Errorf("the slow one is used to %.2f", used)
	}
	proxies[0].capacity *= 4
	for i := 10; i < 10+callers/100; i++ {
		proxies[i] = proxy{capacity: perCapacity, start: now}
	}
	for range 12 { // the callers have the new list
		step()
	}
	if used := proxies[10].rate / proxies[10].capacity; used > 0.3 {
		t.Errorf("a write proxy that has just started is used to %.2f", used)
	}
	if most := run("a tenth has restarted", 35*time.Second); most > 0.95 {
		t.Errorf("somebody was flooded after the restart: %.2f", most)
	}
	if used := proxies[10].rate / proxies[10].capacity; used < 0.25 {
		t.Errorf("a write proxy that started %v ago is used to %.2f", 41*time.Second, used)
	}
}
