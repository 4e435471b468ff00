package balance

import (
	"fmt"
	"math"
	"testing"
	"time"

	"scribe/internal/base/entropy"
	"scribe/internal/base/rendezvous"
)

// Small cells, and what comes over whole cells. A handful of callers decide alone over two to six instances.
const smallCallers = 12

// newSmallWorld returns a cell whose instances are used to a part of what they can do.
func newSmallWorld(seed uint64, instances int, used float64) *simWorld {
	w := newSimWorld(seed, smallCallers, instances)
	w.setUse(used)
	w.run("it settles", 20*time.Second, 1)
	return w
}

// setUse changes the rate of all calls.
func (w *simWorld) setUse(used float64) {
	rate := used * 1000 * float64(len(w.instances)) / float64(len(w.callers)*simKeys)
	for _, s := range w.instances {
		s.rate *= rate / w.rate
	}
	w.rate = rate
}

// leastWeight returns the least weight that any caller gives an instance.
func (w *simWorld) leastWeight(i int) float64 {
	least := 1.0
	for _, c := range w.callers {
		least = min(least, c.seen[i].Weight())
	}
	return least
}

// TestSmallCells: in cells of two, three and four, one that restarts comes to its share, and takes none of what the others can do.
func TestSmallCells(t *testing.T) {
	for n := 2; n <= 4; n++ {
		for seed := range uint64(5) {
			t.Run(fmt.Sprintf("instances=%d/seed=%d", n, seed), func(t *testing.T) {
				w := newSmallWorld(seed, n, 0.3)
				if w.moves > len(w.callers)*simKeys/4 {
					t.Errorf("%d moves among equal ones", w.moves)
				}
				w.setAway(true, 1)
				w.run("away", 10*time.Second, 1)
				w.setAway(false, 1)
				first := w.instances[1].used()
				for range 160 {
					w.step()
					if light := w.leastWeight(0); light < 0.5 {
						t.Fatalf("a weight of %v of one that has always been there, %v after the restart", light, w.now-w.instances[1].start)
					}
				}
				if first > 0.15 || w.instances[1].used() < 0.15 {
					t.Errorf("the one that restarted is used to %.2f at first, to %.2f at last", first, w.instances[1].used())
				}
				// Half or more of them restart together.
				var most []int
				for i := 1; i < n; i++ {
					most = append(most, i)
				}
				w.setAway(true, most...)
				w.setAway(false, most...)
				moves := w.moves
				w.run("it settles", 50*time.Second, 1)
				if most, mean := w.mostUsed(); most > 1.9*mean {
					t.Errorf("after most have restarted one is used to %.2f, the mean is %.2f", most, mean)
				}
				if got := w.moves - moves; got > 2*len(w.callers)*simKeys {
					t.Errorf("%d moves of %d keys", got, len(w.callers)*simKeys)
				}
			})
		}
	}
}

// TestFastFailures: instances that refuse everything at once, and so are idle and fast, do not take the calls from those that work.
func TestFastFailures(t *testing.T) {
	for _, tc := range []struct{ instances, failing int }{{2, 1}, {4, 2}, {4, 1}, {4, 3}, {6, 2}} {
		for seed := range uint64(5) {
			w := newSmallWorld(seed, tc.instances, 0.25/float64(tc.instances)*float64(tc.instances-tc.failing)+0.05)
			for i := range tc.failing {
				w.instances[i].failing = true
			}
			w.run("some fail", 10*time.Second, 1)
			for range 200 {
				w.step()
				if got := w.leastWeight(tc.instances - 1); got < 0.5 {
					t.Fatalf("%d of %d fail: weight %v of one that works", tc.failing, tc.instances, got)
				}
			}
			failed := 0.0
			for i := range tc.failing {
				failed += w.instances[i].rate
			}
			if share := failed / (w.rate * float64(smallCallers*simKeys)); share > 0.3 {
				t.Errorf("%d of %d fail: they get %.2f of all calls", tc.failing, tc.instances, share)
			}
			for i := range tc.failing {
				w.instances[i].failing = false
			}
			w.run("they work again", 90*time.Second, 1)
			if got := w.leastWeight(0); got < 0.7 {
				t.Errorf("%d of %d failed: weight %v of one that works again", tc.failing, tc.instances, got)
			}
		}
	}
}

// TestControlFailover: a control plane that has just begun to lead knows the loads of those that have spoken since. Nothing moves for that.
func TestControlFailover(t *testing.T) {
	for seed := range uint64(5) {
		w := newSmallWorld(seed, 6, 0.5)
		w.mute = true
		for _, s := range w.instances[1:] {
			s.floor = 700 // the first one, which is the first to speak, is less busy
		}
		w.run("most are busy", 20*time.Second, 1)
		moves := w.moves
		for spoken := range 7 {
			for i, s := range w.instances {
				if s.silent = i >= spoken; s.silent {
					s.told = 0
				}
			}
			w.announce()
			for _, c := range w.callers {
				w.decide(c)
				w.place(c)
			}
			w.run("some have spoken", 2*time.Second, 1)
		}
		w.run("all have spoken", 20*time.Second, 1)
		if got := w.moves - moves; got > len(w.callers)*simKeys/10 {
			t.Errorf("%d of %d keys moved", got, len(w.callers)*simKeys)
		}
	}
}

// TestWholeCellStarts: where all start within seconds, none gets much less or much more than the others, and none is thought busy.
func TestWholeCellStarts(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		for seed := range uint64(5) {
			w := newSmallWorld(seed, n, 0.3)
			for i, s := range w.instances {
				s.start = w.now - time.Duration(i)*time.Second
				s.told, s.meter = 0, LoadMeter{}
			}
			w.announce()
			for range 240 {
				w.step()
				if most, mean := w.mostUsed(); most > 2.2*mean {
					t.Fatalf("%d instances: one is used to %.2f, the mean is %.2f", n, most, mean)
				}
			}
			for i := range w.instances {
				if got := w.leastWeight(i); got < 0.7 {
					t.Errorf("%d instances: weight %v at last", n, got)
				}
			}
		}
	}
}

// TestFloors: an instance that is somewhat slower, or fuller, than the others whatever its share, but within what is normal, gets its share
// back after a bad moment: all callers agree again.
func TestFloors(t *testing.T) {
	for _, n := range []int{2, 3, 4} {
		for _, slow := range []bool{false, true} {
			w := newSmallWorld(uint64(n), n, 0.3)
			if slow {
				w.instances[0].base *= 1.6
			} else {
				for _, s := range w.instances {
					s.floor = 500
				}
				w.instances[0].floor = 600
			}
			w.run("it settles", 20*time.Second, 1)
			for i, c := range w.callers {
				if i%2 == 0 {
					c.seen[0].NoteLoad(w.now, MaxLoad)
					w.decide(c)
					w.place(c)
				}
			}
			if w.leastWeight(0) > 0.1 {
				t.Errorf("%d instances: weight %v when it is full", n, w.leastWeight(0))
			}
			w.run("it settles", 6*time.Minute, 1)
			if w.leastWeight(0) < 0.7 {
				t.Errorf("%d instances, slow: %v: weight %v after six minutes", n, slow, w.leastWeight(0))
			}
		}
	}
}

// TestFewKeys: where a few keys are all there is, a load that comes to an instance with its first key, and goes with its last one, moves none of them: what
// a batcher tells of a slow store is such a load.
func TestFewKeys(t *testing.T) {
	for n := 2; n <= 3; n++ {
		for _, keys := range []int{1, 2, 4} {
			for _, floor := range []float64{150, 250, 350} {
				for seed := range uint64(3) {
					if moves := countFewKeyMoves(seed, n, keys, floor); moves > 4 {
						t.Errorf("%d instances, %d keys, a load of %.0f with the first, seed %d: %d moves in ten minutes", n, keys, floor, seed, moves)
					}
				}
			}
		}
	}
}

// countFewKeyMoves returns how often three callers move keys in ten minutes.
func countFewKeyMoves(seed uint64, n, keys int, floor float64) (moves int) {
	random := entropy.NewSeeded(seed, "few keys")
	callers := make([][]Instance, 3)
	homes := make([][]int, len(callers))
	for c := range callers {
		callers[c], homes[c] = make([]Instance, n), make([]int, keys)
		for i := range callers[c] {
			callers[c][i].Begin(0, 0, 0)
		}
	}
	loads := make([]float64, n)
	for now := time.Duration(0); now < 10*time.Minute; now += 500 * time.Millisecond {
		busy := make([]bool, n)
		for c, seen := range callers {
			for k := range keys {
				home, best := 0, math.Inf(1)
				for i := range seen {
					u := (float64(rendezvous.WeightOf(seed<<32|uint64(k), uint64(i))>>11) + 0.5) / (1 << 53)
					if score := -math.Log(u) / seen[i].Weight(); score < best {
						home, best = i, score
					}
				}
				if now > 0 && homes[c][k] != home {
					moves++
				}
				homes[c][k], busy[home] = home, true
			}
		}
		for i := range loads {
			loads[i] *= math.Exp2(-0.1) // half of it is gone after five seconds
			if busy[i] {
				loads[i] = floor * (0.8 + 0.4*random.Float64())
			}
		}
		for _, seen := range callers {
			views := make([]View, n)
			for i := range seen {
				seen[i].Advertise(now, uint32(loads[i]), true)
				views[i] = seen[i].View(now)
			}
			for i := range seen {
				seen[i].Decide(now, TypicalOf(views), random)
			}
		}
	}
	return moves
}
