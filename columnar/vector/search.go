package vector

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// sparse is how many of a column's rows are selected at most, as a fraction of all, for a search row by row to be faster than one through
// the whole column.
const sparse = 8

// containing sets the rows of live that contain the text, which is not empty.
func containing(out bitmap, a *vec, text []byte, live bitmap) {
	if a.rows == 0 {
		return
	}
	if !a.dense || live != nil && live.count() < a.rows/sparse {
		for i := range each(live, a.rows) {
			if bytes.Contains(a.str(i), text) {
				out.set(i)
			}
		}
		return
	}
	base := int(a.begin[0])
	data := a.data[base:a.end[a.rows-1]]
	find := newFinder(text, data)
	row := 0
	for at := 0; at < len(data); {
		p := find.next(data, at)
		if p < 0 {
			break
		}
		row = rowOf(a.end, row, int32(base+p))
		end := int(a.end[row]) - base
		if p+len(text) > end {
			at = p + 1 // across the border of two rows
			continue
		}
		out.set(row)
		at = end // the rest of the row does not matter
	}
	if live != nil {
		out.and(live)
	}
}

// rowOf returns the first row from row on that ends behind at: often one of the next, else the step doubles.
func rowOf(ends []int32, row int, at int32) int {
	for range 4 {
		if ends[row] > at {
			return row
		}
		row++
	}
	step := 1
	for row+step < len(ends) && ends[row+step] <= at {
		row += step
		step *= 2
	}
	last := min(row+step, len(ends)-1)
	for row < last {
		if middle := int(uint(row+last) / 2); ends[middle] > at {
			last = middle
		} else {
			row = middle + 1
		}
	}
	return row
}

// finder looks for a text. The standard library looks for its first byte, which is slow where that is common.
type finder struct {
	text []byte
	// rare and other are the places of the two bytes of the text that are the rarest in a sample of the data.
	rare, other int
	// common: even the rarest is so common that it is better to look for both, eight places at a time.
	common bool
}

const (
	// sampled bytes of the data are counted.
	sampled = 2048
	// commonAbove is how many of them a byte that is common has at least.
	commonAbove = sampled / 128
)

func newFinder(text, data []byte) finder {
	var counts [256]uint16
	step := max(len(data)/sampled, 1)
	for at := 0; at < len(data); at += step {
		counts[data[at]]++
	}
	f := finder{text: text}
	for i, c := range text {
		if counts[c] < counts[text[f.rare]] {
			f.rare = i
		}
	}
	if f.rare == 0 {
		f.other = len(text) - 1
	}
	for i, c := range text {
		if i != f.rare && counts[c] < counts[text[f.other]] {
			f.other = i
		}
	}
	f.common = counts[text[f.rare]] > commonAbove
	return f
}

// next returns the first place from at on where the text is, -1 if there is none.
func (f *finder) next(data []byte, at int) int {
	if f.common {
		return f.nextOfTwo(data, at)
	}
	for at += f.rare; at < len(data); at++ {
		p := bytes.IndexByte(data[at:], f.text[f.rare])
		if p < 0 {
			return -1
		}
		at += p
		if f.at(data, at-f.rare) {
			return at - f.rare
		}
	}
	return -1
}

func (f *finder) at(data []byte, from int) bool {
	return from+len(f.text) <= len(data) && string(data[from:from+len(f.text)]) == string(f.text)
}

// nextOfTwo compares eight places at a time with both bytes.
func (f *finder) nextOfTwo(data []byte, at int) int {
	a, b := uint64(f.text[f.rare])*ones8, uint64(f.text[f.other])*ones8
	for ; at+len(f.text)+7 <= len(data); at += 8 {
		// Bytes are 0 where both are as in the text.
		x := binary.LittleEndian.Uint64(data[at+f.rare:]) ^ a | binary.LittleEndian.Uint64(data[at+f.other:]) ^ b
		// The high bit of those that are 0, and maybe of some above the first.
		for found := (x - ones8) &^ x & high8; found != 0; found &= found - 1 {
			if p := at + bits.TrailingZeros64(found)/8; f.at(data, p) {
				return p
			}
		}
	}
	for ; at+len(f.text) <= len(data); at++ {
		if f.at(data, at) {
			return at
		}
	}
	return -1
}
