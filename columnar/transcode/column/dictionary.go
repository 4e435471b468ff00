package column

import (
	"hash/maphash"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// textDictionary assigns a code to each distinct text of a column, in order of first appearance.
type textDictionary struct {
	seed    maphash.Seed // secret, so that an attacker can't choose colliding texts
	offsets []int32
	values  []byte
	// table is an open-addressing hash table of codes plus one; 0 is a free entry. hashes holds the hash of each code.
	table  []int32
	hashes []uint32
	last   int32 // the previous code: successive rows often have equal texts
}

const minDictionaryTable = 64

func newDictionary() *textDictionary {
	return &textDictionary{seed: maphash.MakeSeed(), offsets: []int32{0}, table: make([]int32, minDictionaryTable), last: -1} //nolint:forbidigo // texts are numbered as they come
}

func (d *textDictionary) reset() {
	d.offsets = append(keepMemory(d.offsets), 0)
	d.values, d.hashes = keepMemory(d.values), keepMemory(d.hashes)
	if 4*len(d.table) > keepBuffer {
		d.table = make([]int32, minDictionaryTable)
	}
	clear(d.table)
	d.last = -1
}

func (d *textDictionary) textOf(code int32) []byte {
	return d.values[d.offsets[code]:d.offsets[code+1]]
}

func (d *textDictionary) memoryBytes() int64 { return int64(len(d.values) + 4*len(d.offsets)) }

// codeOf returns the code of a text. It returns false if the dictionary can't take another text.
func (d *textDictionary) codeOf(v []byte) (int32, bool) {
	if d.last >= 0 && string(d.textOf(d.last)) == string(v) {
		return d.last, true
	}
	h := uint32(maphash.Bytes(d.seed, v))
	mask := uint32(len(d.table) - 1)
	at := h & mask
	for ; d.table[at] != 0; at = (at + 1) & mask {
		if code := d.table[at] - 1; d.hashes[code] == h && string(d.textOf(code)) == string(v) {
			d.last = code
			return code, true
		}
	}
	if len(v) > math.MaxInt32-len(d.values) {
		return 0, false
	}
	code := int32(len(d.hashes))
	d.table[at] = code + 1
	d.hashes = append(d.hashes, h)
	d.values = append(d.values, v...)
	d.offsets = append(d.offsets, int32(len(d.values)))
	d.last = code
	if 2*len(d.hashes) > len(d.table) {
		d.growTable()
	}
	return code, true
}

func (d *textDictionary) growTable() {
	d.table = make([]int32, 2*len(d.table))
	mask := uint32(len(d.table) - 1)
	for code, h := range d.hashes {
		at := h & mask
		for d.table[at] != 0 {
			at = (at + 1) & mask
		}
		d.table[at] = int32(code) + 1
	}
}

// makeData copies the texts into an array.
func (d *textDictionary) makeData(dt arrow.DataType) *array.Data {
	return array.NewData(dt, len(d.hashes), []*memory.Buffer{nil, copyBuffer(d.offsets), copyBuffer(d.values)}, nil, 0, 0)
}
