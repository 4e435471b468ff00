package aggregate

import (
	"bytes"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"

	"github.com/apache/arrow-go/v18/arrow"
)

// groupTable numbers the rows of some columns: rows with the same values have the same number, from 0 in order of first
// appearance. It is an open-addressing hash table of numbers over the columns of the distinct values.
type groupTable struct {
	// slots hold a number plus one, or 0 if free. Their count is a power of two and at least a third more than the numbers.
	slots  []uint32
	hashes []uint64 // by number
	keys   []keyStore
	limit  int
	// Keys are untrusted: without a secret seed an attacker could choose keys that all collide.
	seed   maphash.Seed
	secret uint64

	scratch []uint64
}

// none means that a row has no number.
const none = ^uint32(0)

const minSlots = 64

func newGroupTable(classes []valueClass, limit int) *groupTable {
	t := &groupTable{
		slots: make([]uint32, minSlots), keys: make([]keyStore, len(classes)), limit: limit,
		seed: maphash.MakeSeed(), secret: rand.Uint64() | 1, //nolint:forbidigo // rows are numbered as they come, wherever their hashes are
	}
	for i, c := range classes {
		t.keys[i].class = c
	}
	return t
}

func (t *groupTable) len() int { return len(t.hashes) }

// findRows sets dst to the number of each of n rows. Rows outside mask (nil: all rows) get none. fresh, if not nil, is set to
// whether each row is the first with its values. If there would be more numbers than allowed, findRows returns ErrLimit and
// leaves rows without a number.
func (t *groupTable) findRows(columns []*columnValues, n int, mask []bool, dst []uint32, fresh []bool) error {
	t.scratch = resizeSlice(t.scratch, n)
	t.hashRows(columns, t.scratch)
	last := none
	for i, h := range t.scratch {
		if fresh != nil {
			fresh[i] = false
		}
		if mask != nil && !mask[i] {
			dst[i] = none
			continue
		}
		// Equal rows come in runs: of one minute, of one status.
		if last != none && t.hashes[last] == h && t.equalRow(columns, i, last) {
			dst[i] = last
			continue
		}
		number, added := t.findOrAdd(columns, i, h)
		if number == none {
			return tooManyGroups(t.limit)
		}
		dst[i], last = number, number
		if fresh != nil {
			fresh[i] = added
		}
	}
	return nil
}

// findOrAdd finds or adds row i. It returns none if the table is full.
func (t *groupTable) findOrAdd(columns []*columnValues, i int, h uint64) (number uint32, added bool) {
	mask := uint64(len(t.slots) - 1)
	at := h & mask
	for ; t.slots[at] != 0; at = (at + 1) & mask {
		n := t.slots[at] - 1
		if t.hashes[n] == h && t.equalRow(columns, i, n) {
			return n, false
		}
	}
	if len(t.hashes) >= t.limit {
		return none, false
	}
	n := uint32(len(t.hashes))
	t.slots[at] = n + 1
	t.hashes = append(t.hashes, h)
	for k := range t.keys {
		t.keys[k].appendRow(columns[k], i)
	}
	if 4*len(t.hashes) > 3*len(t.slots) {
		t.growSlots()
	}
	return n, true
}

func (t *groupTable) growSlots() {
	t.slots = make([]uint32, 2*len(t.slots))
	mask := uint64(len(t.slots) - 1)
	for n, h := range t.hashes {
		at := h & mask
		for t.slots[at] != 0 {
			at = (at + 1) & mask
		}
		t.slots[at] = uint32(n) + 1
	}
}

// hashRows sets dst to the hash of each row.
func (t *groupTable) hashRows(columns []*columnValues, dst []uint64) {
	for i := range dst {
		dst[i] = t.secret
	}
	for _, c := range columns {
		switch c.class {
		case word:
			for i, w := range c.lo {
				dst[i] = mixHash(dst[i], w)
			}
		case wide:
			for i, w := range c.lo {
				dst[i] = mixHash(mixHash(dst[i], w), c.hi[i])
			}
		case text:
			for i, b := range c.text {
				dst[i] = mixHash(dst[i], maphash.Bytes(t.seed, b))
			}
		}
	}
}

// mixHash adds a word to a hash.
func mixHash(h, w uint64) uint64 {
	hi, lo := bits.Mul64(h^w^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93^h)
	return hi ^ lo
}

func (t *groupTable) equalRow(columns []*columnValues, i int, number uint32) bool {
	for k := range t.keys {
		if !t.keys[k].equalRow(columns[k], i, number) {
			return false
		}
	}
	return true
}

func (t *groupTable) heldBytes() int64 {
	n := 4*int64(cap(t.slots)) + 8*int64(cap(t.hashes))
	for k := range t.keys {
		n += t.keys[k].heldBytes()
	}
	return n
}

// keyStore is a column of the distinct values of a table.
type keyStore struct {
	class valueClass
	nulls int
	valid []bool
	lo    []uint64
	hi    []uint64
	spans []arrow.MonthDayNanoInterval
	ends  []int // of each text in data
	data  []byte
}

func (s *keyStore) appendRow(v *columnValues, i int) {
	valid := v.valid == nil || v.valid[i]
	s.valid = append(s.valid, valid)
	if !valid {
		s.nulls++
	}
	switch s.class {
	case word:
		s.lo = append(s.lo, v.lo[i])
	case wide:
		s.lo, s.hi = append(s.lo, v.lo[i]), append(s.hi, v.hi[i])
		if len(v.spans) > 0 {
			s.spans = append(s.spans, v.spans[i])
		}
	case text:
		if valid {
			s.data = append(s.data, v.text[i]...)
		}
		s.ends = append(s.ends, len(s.data))
	}
}

func (s *keyStore) equalRow(v *columnValues, i int, n uint32) bool {
	valid := v.valid == nil || v.valid[i]
	if !valid || !s.valid[n] {
		return valid == s.valid[n]
	}
	switch s.class {
	case word:
		return s.lo[n] == v.lo[i]
	case wide:
		return s.lo[n] == v.lo[i] && s.hi[n] == v.hi[i]
	default:
		return bytes.Equal(s.textAt(int(n)), v.text[i])
	}
}

func (s *keyStore) textAt(n int) []byte {
	begin := 0
	if n > 0 {
		begin = s.ends[n-1]
	}
	return s.data[begin:s.ends[n]]
}

func (s *keyStore) heldBytes() int64 {
	return int64(cap(s.valid)) + 8*int64(cap(s.lo)+cap(s.hi)+cap(s.ends)) + 16*int64(cap(s.spans)) + int64(cap(s.data))
}
