package vector

import (
	"bytes"
	"sort"
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
	rare := rarest(text)
	row := 0
	for at := 0; at < len(data); {
		p := index(data[at:], text, rare)
		if p < 0 {
			break
		}
		p += at
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

// rowOf returns the first row from row on that ends behind at. The step doubles, since matches are often near to each other.
func rowOf(ends []int32, row int, at int32) int {
	step := 1
	for row+step < len(ends) && ends[row+step] <= at {
		row += step
		step *= 2
	}
	last := min(row+step, len(ends)-1)
	return row + sort.Search(last-row, func(i int) bool { return ends[row+i] > at })
}

// index is bytes.Index that looks for the text's rarest byte, since the standard library's, which looks for the first, is slow when that
// is common. Where the byte turns out to be common it hands over.
func index(data, text []byte, rare int) int {
	misses := 0
	for at := rare; at < len(data); {
		p := bytes.IndexByte(data[at:], text[rare])
		if p < 0 {
			return -1
		}
		from := at + p - rare
		if from+len(text) <= len(data) && string(data[from:from+len(text)]) == string(text) {
			return from
		}
		at += p + 1
		if misses++; misses > 16 && misses > (at-rare)/16 {
			if p := bytes.Index(data[at-rare:], text); p >= 0 {
				return at - rare + p
			}
			return -1
		}
	}
	return -1
}

// rarest returns the place of the byte of a text that is likely the rarest in data.
func rarest(text []byte) int {
	best := 0
	for i, c := range text {
		if frequency(c) < frequency(text[best]) {
			best = i
		}
	}
	return best
}

// frequency is how common a byte is in logs, roughly.
func frequency(c byte) int {
	switch {
	case bytes.IndexByte([]byte(" eaot/i.ns0r1l2"), c) >= 0:
		return 6
	case c >= 'a' && c <= 'z' && bytes.IndexByte([]byte("jqxzkvwy"), c) < 0, c == '3', c == '-', c == ':':
		return 5
	case c >= '0' && c <= '9', c == '"', c == ',', c == '_', c == '=':
		return 4
	case c >= 'A' && c <= 'Z' && bytes.IndexByte([]byte("JQXZKVWY"), c) < 0, c >= 'a' && c <= 'z':
		return 3
	case c >= 0x80:
		return 2
	case c >= 'A' && c <= 'Z':
		return 1
	}
	return 2
}
