package vector

import (
	"encoding/binary"
	"unicode"
	"unicode/utf8"

	"scribe/columnar/schema"
)

// letterNode changes the case of texts.
type letterNode struct {
	a     exprNode
	upper bool
}

func (n *letterNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	a := ev.evalArgs(sel, n.a)[0]
	out := &columnVec{kind: schema.String, rows: ev.rows, valid: a.valid}
	convert := appendLower
	if n.upper {
		convert = appendUpper
	}
	if a.dense && ev.rows > 0 && (sel == nil || sel.count() >= ev.rows/sparse) {
		from, to := a.begin[0], a.end[ev.rows-1]
		if data := a.data[from:to]; isASCII(data) {
			// No letter changes its length, so the rows keep their offsets.
			if !ev.reserveBytes(len(data)) {
				return a
			}
			out.data = convert(make([]byte, 0, len(data)), data)
			out.begin, out.end, out.dense = a.begin, a.end, true
			if from > 0 {
				out.begin, out.end = shiftOffsets(ev.scratchMemory, a.begin, from), shiftOffsets(ev.scratchMemory, a.end, from)
			}
			return out
		}
	}
	ev.buildTexts(out, ev.liveRows(sel, a), func(b *textBuilder, i int) bool {
		b.data = convert(b.data, a.str(i))
		return true
	})
	return out
}

func shiftOffsets(s *scratchMemory, offsets []int32, by int32) []int32 {
	out := takeValues[int32](s, len(offsets))
	for i, v := range offsets {
		out[i] = v - by
	}
	return out
}

// isASCII reports whether every byte is ASCII.
func isASCII(s []byte) bool {
	for len(s) >= 32 {
		if (binary.LittleEndian.Uint64(s)|binary.LittleEndian.Uint64(s[8:])|
			binary.LittleEndian.Uint64(s[16:])|binary.LittleEndian.Uint64(s[24:]))&0x8080808080808080 != 0 {
			return false
		}
		s = s[32:]
	}
	for _, c := range s {
		if c >= 0x80 {
			return false
		}
	}
	return true
}

const (
	ones8 = 0x0101010101010101
	high8 = 0x8080808080808080
)

// flipCase changes the case of the ASCII letters from first to first+25 in eight ASCII bytes.
func flipCase(w uint64, first byte) uint64 {
	atLeast := w + (0x80-uint64(first))*ones8  // high bit: at or above first
	above := w + (0x80-uint64(first)-26)*ones8 // high bit: above the last
	return w ^ (atLeast&^above&high8)>>2       // 0x20
}

func appendLower(dst, s []byte) []byte { return appendCase(dst, s, 'A', unicode.ToLower) }

func appendUpper(dst, s []byte) []byte { return appendCase(dst, s, 'a', unicode.ToUpper) }

// appendCase appends s with the case changed for the 26 letters from first on, and for other letters by convert. Invalid UTF-8 is
// copied.
func appendCase(dst, s []byte, first byte, convert func(rune) rune) []byte {
	for len(s) > 0 {
		if len(s) >= 8 {
			if w := binary.LittleEndian.Uint64(s); w&high8 == 0 {
				dst = binary.LittleEndian.AppendUint64(dst, flipCase(w, first))
				s = s[8:]
				continue
			}
		}
		if c := s[0]; c < utf8.RuneSelf {
			if c-first < 26 {
				c ^= 0x20
			}
			dst = append(dst, c)
			s = s[1:]
			continue
		}
		r, size := utf8.DecodeRune(s)
		if r == utf8.RuneError && size == 1 {
			dst = append(dst, s[0])
		} else {
			dst = utf8.AppendRune(dst, convert(r))
		}
		s = s[size:]
	}
	return dst
}
