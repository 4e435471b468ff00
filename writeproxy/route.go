package writeproxy

import (
	"math"
	"time"

	"scribe/internal/base/rendezvous"
	"scribe/internal/role/affinity"
	"scribe/internal/transport/rpc"
)

// Batcher is a batcher that frames can be sent to.
type Batcher struct {
	// ID names the batcher. Routing depends on it, so it should be the same after a restart.
	ID string
	// Load is the batcher's advertised load: 0 idle, 1000 refusing. The load in its answers takes precedence. LoadKnown is false if it does not
	// advertise any.
	Load      uint32
	LoadKnown bool
	// Start names the start of the batcher, and Age is how long ago that was, when the snapshot was made: it gets little at first. A Start
	// of 0 is unknown, and long ago.
	Start int64
	Age   time.Duration
	// Service is the batcher itself, or a client. It must answer requests without frames at once.
	Service rpc.BatchService
}

// routeTable is a snapshot of batchers, the hashes of their ids, and their weights. It is never changed.
//
// Every key has its own order of the batchers, by weighted rendezvous hashing (Thaler and Ravishankar, 1996; the weights as in
// Schindelhauer and Schomaker, 2005): the score of a batcher of weight w whose hash with the key is u, in (0, 1), is -w/ln(u), and
// it is the highest with a probability in proportion to w. A batcher that joins, leaves, or changes its weight moves nothing
// between the others.
type routeTable struct {
	batchers []Batcher
	hashes   []uint64
	members  []*fleetMember
	// weights are above 0 and at most 1, or 0 for an unavailable batcher. These come last in every order, so that they are used
	// only if there are no others: frames sent to them may still arrive.
	weights []float64
	// usable is the number of weights above 0.
	usable int
	// even says that all are 1.
	even bool
}

func newRouteTable(batchers []Batcher, members []*fleetMember, weights []float64) *routeTable {
	t := &routeTable{batchers: batchers, members: members, weights: weights, hashes: make([]uint64, len(batchers)), even: true}
	for i := range batchers {
		t.hashes[i] = affinity.HashOf(batchers[i].ID)
		t.even = t.even && weights[i] == 1
		if weights[i] > 0 {
			t.usable++
		}
	}
	return t
}

// isOf reports whether the table was made from this snapshot. Snapshots do not change, so their address tells.
func (t *routeTable) isOf(batchers []Batcher) bool {
	return len(t.batchers) == len(batchers) && (len(batchers) == 0 || &t.batchers[0] == &batchers[0])
}

// scoreOf is the rank of a batcher in a key's order: higher comes first.
func (t *routeTable) scoreOf(key uint64, i int) float64 {
	u := affinity.ScoreOf(key, t.hashes[i])
	switch w := t.weights[i]; {
	case t.even:
		return u // the same order, for less
	case w == 0:
		return u - 1
	default:
		return -w / math.Log(u)
	}
}

// homeOf returns the batcher of a key's micro-shard: the first batchers in the key's order have one each. It returns -1 when there is
// no batcher.
func (t *routeTable) homeOf(key uint64, micro int) int {
	if len(t.batchers) == 0 {
		return -1
	}
	return t.rankedAt(key, micro%max(t.usable, 1))
}

// rankedAt returns the batcher with a rank in the key's order, from 0. Ranks are small, so selection is cheaper than sorting.
func (t *routeTable) rankedAt(key uint64, rank int) int {
	last, at := math.Inf(1), -1
	for ; rank >= 0; rank-- {
		best, score := -1, math.Inf(-1)
		for i := range t.hashes {
			if s := t.scoreOf(key, i); s < last && s > score {
				best, score = i, s
			}
		}
		if best < 0 {
			return at // two ids with one hash: the lower rank stands for both
		}
		at, last = best, score
	}
	return at
}

// fallbackOf returns a batcher for a key whose home, named by its id, does not take it: one of the n others that come first in the
// key's order, chosen by a hash salted with the attempt. So the overflow of a key goes to the same few batchers, wherever it comes
// from, and the overflow of a batcher is spread over all. It returns -1 when there is no other.
func (t *routeTable) fallbackOf(key uint64, home string, n, attempt int) int {
	others, usable := 0, 0
	for i := range t.batchers {
		if t.batchers[i].ID != home {
			others++
			if t.weights[i] > 0 {
				usable++
			}
		}
	}
	if usable > 0 {
		others = usable
	}
	n = min(n, others)
	if n <= 0 {
		return -1
	}
	skip := (int(rendezvous.WeightOf(key, 0x5ca1ab1e)%uint64(n)) + attempt) % n // another one at each attempt, until all have been tried
	for rank := range t.batchers {
		at := t.rankedAt(key, rank)
		if t.batchers[at].ID == home {
			continue
		}
		if skip == 0 {
			return at
		}
		skip--
	}
	return -1
}
