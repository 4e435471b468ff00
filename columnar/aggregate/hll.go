package aggregate

import (
	"math"
	"math/bits"
)

// distinctCounter estimates the number of distinct hashes. Up to maxExact it keeps all of them, in as many bytes as the
// HyperLogLog registers that represent more. It depends only on the set of hashes, not on their order.
type distinctCounter struct {
	// set is an open-addressing hash table of nonzero hashes, until registers are used.
	set       []uint64
	n         int
	zero      bool // the hash 0 was added
	registers []uint8
}

const (
	hllBits   = 14
	registers = 1 << hllBits // standard error: 1.04/sqrt(16384) = 0.8 %
	maxSet    = registers / 8
	maxExact  = maxSet * 3 / 4
	minSet    = 8
)

// addHash adds a hash.
func (d *distinctCounter) addHash(h uint64) {
	if d.registers != nil {
		d.registerHash(h)
		return
	}
	if h == 0 {
		d.zero = true
		return
	}
	if d.set == nil {
		d.set = make([]uint64, minSet)
	}
	if !insertHash(d.set, h) {
		return
	}
	if d.n++; 4*d.n <= 3*len(d.set) {
		return
	}
	if len(d.set) < maxSet {
		grown := make([]uint64, 2*len(d.set))
		for _, x := range d.set {
			if x != 0 {
				insertHash(grown, x)
			}
		}
		d.set = grown
		return
	}
	d.spreadSet()
}

// insertHash inserts h into an open-addressing hash table with a free slot, and reports whether it is new.
func insertHash(set []uint64, h uint64) bool {
	mask := uint64(len(set) - 1)
	for at := h & mask; ; at = (at + 1) & mask {
		switch set[at] {
		case h:
			return false
		case 0:
			set[at] = h
			return true
		}
	}
}

// spreadSet converts the set into registers.
func (d *distinctCounter) spreadSet() {
	set, zero := d.set, d.zero
	*d = distinctCounter{registers: make([]uint8, registers)}
	for _, h := range set {
		if h != 0 {
			d.registerHash(h)
		}
	}
	if zero {
		d.registerHash(0)
	}
}

func (d *distinctCounter) registerHash(h uint64) {
	rank := uint8(bits.LeadingZeros64(h<<hllBits|1<<(hllBits-1)) + 1)
	at := h >> (64 - hllBits)
	d.registers[at] = max(d.registers[at], rank)
}

// estimateCount returns the estimate, which is exact while there are no registers. It is the improved raw estimator of O. Ertl,
// "New cardinality estimation algorithms for HyperLogLog sketches" (2017), algorithm 6, which needs no correction tables.
func (d *distinctCounter) estimateCount() int64 {
	if d.registers == nil {
		n := int64(d.n)
		if d.zero {
			n++
		}
		return n
	}
	const q = 64 - hllBits
	var ranks [q + 2]int
	for _, r := range d.registers {
		ranks[r]++
	}
	const m = float64(registers)
	z := m * tau(1-float64(ranks[q+1])/m)
	for k := q; k >= 1; k-- {
		z = 0.5 * (z + float64(ranks[k]))
	}
	z += m * sigma(float64(ranks[0])/m)
	return int64(math.Round(m * m / (2 * math.Ln2 * z)))
}

func sigma(x float64) float64 {
	if x == 1 {
		return math.Inf(1)
	}
	y, z := 1.0, x
	for {
		x *= x
		before := z
		z += x * y
		y += y
		if z == before {
			return z
		}
	}
}

func tau(x float64) float64 {
	if x == 0 || x == 1 {
		return 0
	}
	y, z := 1.0, 1-x
	for {
		x = math.Sqrt(x)
		before := z
		y *= 0.5
		z -= (1 - x) * (1 - x) * y
		if z == before {
			return z / 3
		}
	}
}

func (d *distinctCounter) heldBytes() int64 { return int64(8*cap(d.set) + cap(d.registers)) }
