package jsonscan

import (
	"encoding/binary"
	"math/bits"
)

// Block classifies 64 bytes: bit i stands for byte i.
type Block struct {
	Special uint64 // possible string ends: quotes, backslashes, controls
	Back    uint64 // backslashes
	Control uint64 // bytes below 0x20
	Op      uint64 // { } [ ] : ,
	Space   uint64 // space, tab, line feed, carriage return
	High    uint64 // bytes 0x80 and above
}

// blockLen is the number of bytes of a Block.
const blockLen = 64

// Index is the index of a slice of bytes. The zero Index covers no bytes. Reset reuses its memory.
type Index struct {
	b      []byte
	blocks []Block
}

// Reset makes x the index of b. The index keeps a reference to b.
func (x *Index) Reset(b []byte) {
	n := (len(b) + blockLen - 1) / blockLen
	if cap(x.blocks) < n {
		x.blocks = make([]Block, n+n/4)
	}
	x.blocks = x.blocks[:n]
	x.b = b
	whole := len(b) / blockLen
	if whole > 0 {
		if useAVX2 {
			indexAVX2(&x.blocks[0], &b[0], whole)
		} else {
			indexPortable(x.blocks[:whole], b)
		}
	}
	if whole < n {
		var tail [blockLen]byte
		for i := copy(tail[:], b[whole*blockLen:]); i < blockLen; i++ {
			tail[i] = ' '
		}
		indexPortable(x.blocks[whole:], tail[:])
	}
}

// Release drops the bytes, and also the memory of an index of more than keep bytes.
func (x *Index) Release(keep int) {
	x.b = nil
	if cap(x.blocks) > keep/blockLen+1 {
		x.blocks = nil
	}
	x.blocks = x.blocks[:0]
}

// Bits of byte classes.
const (
	classSpecial = 1 << iota
	classBack
	classControl
	classOp
	classSpace
	classHigh
)

var classes = func() (t [256]uint8) {
	for i := range t {
		switch {
		case i == ' ':
			t[i] = classSpace
		case i == '\t', i == '\n', i == '\r':
			t[i] = classSpecial | classControl | classSpace
		case i < 0x20:
			t[i] = classSpecial | classControl
		case i == '"':
			t[i] = classSpecial
		case i == '\\':
			t[i] = classSpecial | classBack
		case i >= 0x80:
			t[i] = classHigh
		}
	}
	for _, c := range "{}[]:," {
		t[c] = classOp
	}
	return t
}()

// indexPortable makes a Block of each 64 bytes. It computes the classes of eight bytes side by side in a word, then gathers each
// bit plane by a multiplication.
func indexPortable(blocks []Block, b []byte) {
	const plane, gather = 0x0101010101010101, 0x0102040810204080
	for i := range blocks {
		chunk := b[i*blockLen:][:blockLen]
		var k Block
		for j := 0; j < blockLen; j += 8 {
			w := binary.LittleEndian.Uint64(chunk[j:])
			c := uint64(classes[byte(w)]) | uint64(classes[byte(w>>8)])<<8 | uint64(classes[byte(w>>16)])<<16 |
				uint64(classes[byte(w>>24)])<<24 | uint64(classes[byte(w>>32)])<<32 | uint64(classes[byte(w>>40)])<<40 |
				uint64(classes[byte(w>>48)])<<48 | uint64(classes[byte(w>>56)])<<56
			if c == 0 {
				continue
			}
			k.Special |= (c & plane * gather >> 56) << j
			k.Back |= (c >> 1 & plane * gather >> 56) << j
			k.Control |= (c >> 2 & plane * gather >> 56) << j
			k.Op |= (c >> 3 & plane * gather >> 56) << j
			k.Space |= (c >> 4 & plane * gather >> 56) << j
			k.High |= (c >> 5 & plane * gather >> 56) << j
		}
		blocks[i] = k
	}
}

// ASCII reports whether no byte from at up to end is above 0x7F.
func (x *Index) ASCII(at, end int) bool {
	if at >= end {
		return true
	}
	first, last := at/blockLen, (end-1)/blockLen
	over := uint(end-1)%blockLen ^ (blockLen - 1)
	if first == last {
		return x.blocks[first].High>>(at%blockLen)<<(at%blockLen)<<over == 0
	}
	high := x.blocks[first].High>>(at%blockLen) | x.blocks[last].High<<over
	for i := first + 1; i < last; i++ {
		high |= x.blocks[i].High
	}
	return high == 0
}

// special returns the quotes, backslashes and controls in the 64 bytes from at on, regardless of block boundaries: most strings
// end within them. At the end of the index it returns 0.
func (x *Index) special(at int) uint64 {
	i, shift := uint(at)/blockLen, uint(at)%blockLen
	if i+1 >= uint(len(x.blocks)) {
		return 0
	}
	return x.blocks[i].Special>>shift | x.blocks[i+1].Special<<1<<(blockLen-1-shift)
}

// findSpecial returns the position of the first quote, backslash or control at or after at, or len(b) if there is none.
func (x *Index) findSpecial(at int) int {
	if w := x.special(at); w != 0 {
		return at + bits.TrailingZeros64(w)
	}
	return x.far(at)
}

// far continues next if special finds none.
func (x *Index) far(at int) int {
	i := at / blockLen
	if i >= len(x.blocks) {
		return len(x.b)
	}
	if w := x.blocks[i].Special >> (at % blockLen); w != 0 {
		return at + bits.TrailingZeros64(w)
	}
	for i++; i < len(x.blocks); i++ {
		if w := x.blocks[i].Special; w != 0 {
			return i*blockLen + bits.TrailingZeros64(w)
		}
	}
	return len(x.b)
}

// StringEnd returns the position of the quote that ends a string, and whether the string contains a backslash. at is the string's
// first byte, after its opening quote. The quote must be before limit. If there is none, or a control character comes first,
// quote is -1 and StringFault returns the reason.
func (x *Index) StringEnd(at, limit int) (quote int, escaped bool) {
	if w := x.special(at); w != 0 {
		quote = at + bits.TrailingZeros64(w)
	} else {
		quote = x.far(at)
	}
	if quote < limit && x.b[quote] == '"' {
		return quote, false
	}
	quote, fault := x.stringEnd(quote, limit)
	if !fault.OK() {
		return -1, true
	}
	return quote, true
}

// StringFault returns why StringEnd has returned -1.
func (x *Index) StringFault(at, limit int) Fault {
	_, fault := x.stringEnd(x.findSpecial(at), limit)
	return fault
}

// stringEnd continues from the first position where a string may end.
func (x *Index) stringEnd(at, limit int) (quote int, fault Fault) {
	for ; at < limit; at = x.findSpecial(at + 2) {
		switch c := x.b[at]; {
		case c == '"':
			return at, Fault{}
		case c != '\\':
			return -1, Fault{At: at, Why: ControlInString}
		case at+1 < limit && x.b[at+1] < 0x20:
			return -1, Fault{At: at + 1, Why: ControlInString}
		}
	}
	return -1, Fault{At: limit, Why: Unterminated}
}

// Fault says where and why a row or value can't be read. The zero Fault means success.
type Fault struct {
	At  int
	Why string
}

// OK reports whether there is no fault.
func (f Fault) OK() bool { return f.Why == "" }

// Reasons why a row can't be read.
const (
	Unterminated    = "a string does not end"
	ControlInString = "a control character in a string; it must be escaped"
	Control         = "a control character"
	TooDeep         = "nested too deep; the limit is 128"
	Unclosed        = "a bracket is not closed"
	WantValue       = "a value is missing"
	WantKey         = "a key in quotes is missing"
	WantColon       = "a colon is missing behind a key"
	WantCommaObject = "a comma or } is missing behind a value"
	WantCommaArray  = "a comma or ] is missing behind a value"
	Backslash       = "a backslash outside of a string"
	Mismatch        = "a bracket does not match the one that was opened"
)
