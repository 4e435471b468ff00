package vector

import (
	"bytes"

	"scribe/columnar/transcode/jsonscan"
)

// sparse is the divisor of a column's rows: if at most one in sparse is selected, a search row by row is faster than one through
// the whole column.
const sparse = 8

// findContaining sets the rows of live that contain a text, which must not be empty.
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
		p := find.findNext(data, at)
		if p < 0 {
			break
		}
		row = rowOf(a.end, row, int32(base+p))
		end := int(a.end[row]) - base
		if p+len(text) > end {
			at = p + 1 // the match crosses a row boundary
			continue
		}
		out.set(row)
		at = end // the rest of the row is irrelevant
	}
	if live != nil {
		out.and(live)
	}
}

// rowOf returns the first row, from row on, that ends after at. It is often one of the next rows; otherwise the step doubles.
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

// textFinder searches for a text by its rarest bytes, as counted in a sample of the data.
type textFinder struct {
	text []byte
	// rare is the position of the rarest byte in the text; first and second are those of the two rarest.
	rare, first, second int
	// common means that even the rarest byte is so common that searching for two at once is faster.
	common bool
}

const (
	// sampled is the number of bytes of the data that are counted.
	sampled = 2048
	// commonAbove is the count in the sample from which a byte is common.
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

// findNext returns the first position, from at on, where the text is found, or -1 if there is none.
func (f *textFinder) findNext(data []byte, at int) int {
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
