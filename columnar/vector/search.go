package vector

import (
	"bytes"

	"scribe/columnar/transcode/jsonscan"
)

// sparse is how many of a column's rows are selected at most, as a fraction of all, for a search row by row to be faster than one through
// the whole column.
const sparse = 8

// findContaining sets the rows of live that contain the text, which is not empty.
func findContaining(out bitmap, a *columnVec, text []byte, live bitmap) {
	if a.rows == 0 {
		return
	}
	if !a.dense || live != nil && live.count() < a.rows/sparse {
		for i := range eachRow(live, a.rows) {
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

// rowOf returns the first row from row on that ends after at: often one of the next, else the step doubles.
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

// textFinder looks for a text by its rarest bytes in a sample of the data.
type textFinder struct {
	text []byte
	// rare is the place of the rarest byte in the text, first and second those of the rarest two.
	rare, first, second int
	// common: even the rarest is so common that it is better to look for two at once.
	common bool
}

const (
	// sampled bytes of the data are counted.
	sampled = 2048
	// commonAbove is how many of them a byte that is common has at least.
	commonAbove = sampled / 128
)

func newFinder(text, data []byte) textFinder {
	var counts [256]uint16
	step := max(len(data)/sampled, 1)
	for at := 0; at < len(data); at += step {
		counts[data[at]]++
	}
	f := textFinder{text: text}
	for i, c := range text {
		if counts[c] < counts[text[f.rare]] {
			f.rare = i
		}
	}
	other := 0
	if f.rare == 0 {
		other = len(text) - 1
	}
	for i, c := range text {
		if i != f.rare && counts[c] < counts[text[other]] {
			other = i
		}
	}
	f.first, f.second = min(f.rare, other), max(f.rare, other)
	f.common = len(text) > 1 && counts[text[f.rare]] > commonAbove
	return f
}

// next returns the first place from at on where the text is, -1 if there is none.
func (f *textFinder) next(data []byte, at int) int {
	if f.common {
		if p := jsonscan.SearchPair(data[at:], f.text, f.first, f.second); p >= 0 {
			return at + p
		}
		return -1
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

func (f *textFinder) at(data []byte, from int) bool {
	return from+len(f.text) <= len(data) && string(data[from:from+len(f.text)]) == string(f.text)
}
