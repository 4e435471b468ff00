package jsonscan

import "math/bits"

// MaxDepth is the maximum nesting depth of containers, including the row's own object.
const MaxDepth = 128

// Kinds of token in a container.
const (
	tokOpenObject = iota
	tokCloseObject
	tokOpenArray
	tokCloseArray
	tokColon
	tokComma
	tokString
	tokScalar
	tokControl // an invalid control character
	tokBack    // a backslash outside a string
	numTokens
)

var tokens = func() (t [256]uint8) {
	for i := range t {
		t[i] = tokScalar
		if i < 0x20 {
			t[i] = tokControl
		}
	}
	t['{'], t['}'], t['['], t[']'], t[':'], t[','], t['"'] = tokOpenObject, tokCloseObject, tokOpenArray, tokCloseArray, tokColon, tokComma, tokString
	t['\\'] = tokBack
	return t
}()

// States of the walk through containers: the last token seen.
const (
	stArrayOpen  = iota // [
	stArrayValue        // a value in an array
	stArrayComma        // a comma in an array
	stObjectOpen        // {
	stObjectKey
	stObjectColon
	stObjectValue
	stObjectComma
	numStates
)

// Results of a step other than states.
const (
	stPush = 0x40 // an opening bracket where a value may be
	stPop  = 0x41 // a closing bracket where one may be
	stFail = 0x80
)

var steps = func() (t [numStates][numTokens]uint8) {
	for s := range t {
		for k := range t[s] {
			t[s][k] = stFail
		}
	}
	for _, s := range []int{stArrayOpen, stArrayComma, stObjectColon} {
		after := uint8(stArrayValue)
		if s == stObjectColon {
			after = stObjectValue
		}
		t[s][tokString], t[s][tokScalar] = after, after
		t[s][tokOpenObject], t[s][tokOpenArray] = stPush, stPush
	}
	t[stArrayOpen][tokCloseArray], t[stArrayValue][tokCloseArray] = stPop, stPop
	t[stObjectOpen][tokCloseObject], t[stObjectValue][tokCloseObject] = stPop, stPop
	t[stArrayValue][tokComma], t[stObjectValue][tokComma] = stArrayComma, stObjectComma
	t[stObjectOpen][tokString], t[stObjectComma][tokString] = stObjectKey, stObjectKey
	t[stObjectKey][tokColon] = stObjectColon
	return t
}()

// Skip returns the position after the container whose opening bracket is at at. The container must end within limit. depth is the
// number of enclosing containers.
func (x *Index) Skip(at, limit, depth int) (end int, fault Fault) {
	var (
		stack    [MaxDepth + 1]uint8 // the state to return to, for each depth
		inString uint64              // all ones while a string continues into the next block
		escape   uint64              // 1 if the next block's first byte is escaped
		scalar   uint64              // 1 if a scalar continues into the next block
	)
	level := depth
	state := uint8(stObjectOpen)
	if x.b[at] == '[' {
		state = stArrayOpen
	}
	if level++; level > MaxDepth {
		return -1, Fault{At: at, Why: TooDeep}
	}
	base := level
	from := at + 1
	for i := from / blockLen; i*blockLen < limit; i++ {
		k := &x.blocks[i]
		mask := ^uint64(0)
		if i == from/blockLen {
			mask <<= from % blockLen
		}
		if rest := limit - i*blockLen; rest < blockLen {
			mask &= 1<<rest - 1
		}
		quotes := k.Special &^ (k.Back | k.Control) & mask
		if back := k.Back & mask; back != 0 || escape != 0 {
			escaped := escapedBy(back, &escape)
			quotes &^= escaped
		}
		text := prefixXor(quotes) ^ inString
		inString = uint64(int64(text) >> 63)
		outside := mask &^ text
		wrong := k.Control&mask&(text|^k.Space) | k.Back&outside
		plain := outside &^ (k.Op | k.Space | quotes)
		starts := plain &^ (plain<<1 | scalar)
		scalar = plain >> 63
		for w := k.Op&outside | quotes&text | starts | wrong; w != 0; w &= w - 1 {
			p := i*blockLen + bits.TrailingZeros64(w)
			tok := tokens[x.b[p]]
			next := steps[state][tok]
			if next < stPush {
				state = next
				continue
			}
			switch next {
			case stPush:
				stack[level] = stArrayValue
				if state == stObjectColon {
					stack[level] = stObjectValue
				}
				if level++; level > MaxDepth {
					return -1, Fault{At: p, Why: TooDeep}
				}
				state = stObjectOpen
				if tok == tokOpenArray {
					state = stArrayOpen
				}
			case stPop:
				if level == base {
					return p + 1, Fault{}
				}
				level--
				state = stack[level]
			default:
				return -1, Fault{At: p, Why: wanted(state, tok, text>>(p%blockLen)&1 != 0)}
			}
		}
	}
	if inString != 0 {
		return -1, Fault{At: limit, Why: Unterminated}
	}
	return -1, Fault{At: limit, Why: Unclosed}
}

// wanted returns the error text for a token that is not allowed in a state.
func wanted(state, tok uint8, inString bool) string {
	switch {
	case tok == tokControl && inString:
		return ControlInString
	case tok == tokControl:
		return Control
	case tok == tokBack:
		return Backslash
	}
	switch state {
	case stObjectOpen, stObjectComma:
		return WantKey
	case stObjectKey:
		return WantColon
	case stObjectValue:
		if tok == tokCloseArray {
			return Mismatch
		}
		return WantCommaObject
	case stArrayValue:
		if tok == tokCloseObject {
			return Mismatch
		}
		return WantCommaArray
	default:
		return WantValue
	}
}

const oddBits = 0xAAAAAAAAAAAAAAAA

// escapedBy returns the bytes that follow an unescaped backslash. carry is 1 if the first byte is escaped by the previous block;
// escapedBy sets it for the next block.
func escapedBy(back uint64, carry *uint64) uint64 {
	if back == 0 {
		escaped := *carry
		*carry = 0
		return escaped
	}
	// A run of backslashes escapes the byte after it if its length is odd. Subtracting the run's start from the bits after it
	// carries through the run, which reveals the parity of its end position.
	potential := back &^ *carry
	ends := ((potential<<1 | oddBits) - potential) ^ oddBits
	escaped := ends ^ (back | *carry)
	*carry = ends & back >> 63
	return escaped
}

// prefixXor sets each bit to the parity of the bits up to and including it.
func prefixXor(w uint64) uint64 {
	w ^= w << 1
	w ^= w << 2
	w ^= w << 4
	w ^= w << 8
	w ^= w << 16
	return w ^ w<<32
}
