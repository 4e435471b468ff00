package jsonrows

import (
	"scribe/columnar/transcode/column"
	"scribe/columnar/transcode/jsonscan"
)

// slotKind is the kind of value that a slot holds.
type slotKind uint8

const (
	slotNull   slotKind = iota
	slotTrue            // val is 1
	slotFalse           // val is 0
	slotInt             // an integer of at most 18 digits, in val; its text is from at to end
	slotNumber          // a number from at to end
	slotText            // a text between the quotes from at to end, without escapes
	slotEscaped
	slotContainer // including the brackets
	slotObject    // an object whose members have slots of their own
	slotValue     // val is the value in the column's type, see resolveSlot
	slotBad       // the value does not fit; why says why
	slotDone      // the value is already in its column
)

// valueSlot is the position of a value in a row. It is valid only if gen is the row's generation.
type valueSlot struct {
	gen     uint32
	kind    slotKind
	places  uint8 // digits after the point, for a slotNumber whose digits are val; else 0
	at, end int32
	val     int64
	why     string
	// into is the column that receives common values of class takes directly, and nulls if nullable is set. These fields stay the
	// same for all rows.
	into     *column.Buffer
	takes    fieldClass // otherField for a slot that only records positions
	nullable bool
}

// rowWalker walks over rows of JSON and fills slots. Its input is indexed text.
type rowWalker struct {
	b       []byte // may extend past the indexed part; those bytes may be read but are ignored
	x       jsonscan.Index
	limit   int // end of the row
	slots   []valueSlot
	gen     uint32
	fault   jsonscan.Fault
	scratch []byte

	// decide is called with the terms of a child of the top node after the child was read. It reports whether the rest of the row is
	// needed. It is nil if there is nothing to decide.
	decide   func(terms []int) bool
	wantRest bool
	rest     []restMember // undeclared top-level members, if wantRest is set
}

// restMember is a key and a value: the positions of the key's quote, of the value, and of its end.
type restMember struct{ key, value, end int }

// Results of a walk other than positions.
const (
	failed  = -1
	stopped = -2
)

// failAt records why a row can't be read.
func (w *rowWalker) failAt(at int, why string) int {
	w.fault = jsonscan.Fault{At: at, Why: why}
	return failed
}

// failText records why the string whose first byte is at at is not closed.
func (w *rowWalker) failText(at int) int {
	w.fault = w.x.StringFault(at, w.limit)
	return failed
}

// nextRow empties all slots.
func (w *rowWalker) nextRow() {
	w.rest = w.rest[:0]
	if w.gen++; w.gen == 0 {
		clear(w.slots)
		w.gen = 1
	}
}

// walkRow walks over the row from at to limit. s is the shape of its top-level object. The result is failed, stopped, or limit.
func (w *rowWalker) walkRow(s *objectShape, at, limit int) int {
	w.limit = limit
	w.nextRow()
	b := w.b
	if limit-at >= 3 && b[at] == 0xEF && b[at+1] == 0xBB && b[at+2] == 0xBF {
		at += 3
	}
	at = jsonscan.SkipSpace(b, at, limit)
	switch {
	case at >= limit:
		return w.failAt(at, whyEmpty)
	case b[at] != '{':
		return w.failAt(at, whyNoObject)
	}
	if at = w.walkObject(s, at+1, 1, true); at < 0 {
		return at
	}
	if at = jsonscan.SkipSpace(b, at, limit); at < limit {
		return w.failAt(at, whyTrailing)
	}
	return limit
}

// Reasons why a row can't be read.
const (
	whyEmpty    = "empty; an object belongs here"
	whyNoObject = "not an object"
	whyTrailing = "something follows the object"
	whyPath     = "the path to the value leads into something that is not an object"
)

// walkObject walks over the members of an object, from after its opening bracket to after its closing one. depth is the number of
// open objects and lists.
func (w *rowWalker) walkObject(s *objectShape, at, depth int, top bool) int {
	b, limit := w.b, w.limit
	s.objects++
	if at < limit && b[at] <= ' ' {
		at = jsonscan.SkipSpace(b, at, limit)
	}
	if at < limit && b[at] == '}' {
		return at + 1
	}
	prev := &s.start
	for {
		key := at
		var kid int32
		if e := prev.next; at+16 <= len(b) && e.matchesAt(b, at, limit) {
			// The key is the same as last time.
			prev, kid = e, e.child
			if at += e.size; b[at] <= ' ' {
				at = jsonscan.SkipSpace(b, at, limit)
			}
			if e.slot != nil && e.slot.gen != w.gen {
				e.slot.gen = w.gen
				at = w.walkValue(e.slot, at, depth)
			} else {
				at = w.walkMember(s, kid, key, at, depth, top)
			}
		} else {
			if prev, kid, at = s.readKey(w, at, prev); at < 0 {
				return at
			}
			at = w.walkMember(s, kid, key, at, depth, top)
		}
		if at < 0 {
			return at
		}
		if kid >= 0 && top && w.decide != nil {
			if terms := s.node.children[kid].terms; terms != nil && !w.decide(terms) {
				return stopped
			}
		}
		if at < limit && b[at] <= ' ' {
			at = jsonscan.SkipSpace(b, at, limit)
		}
		switch {
		case at >= limit:
			return w.failAt(at, jsonscan.Unclosed)
		case b[at] == '}':
			return at + 1
		case b[at] != ',':
			return w.failAt(at, jsonscan.WantCommaObject)
		}
		if at++; at < limit && b[at] <= ' ' {
			at = jsonscan.SkipSpace(b, at, limit)
		}
	}
}

// walkMember walks over the value of the member whose key is at key.
func (w *rowWalker) walkMember(s *objectShape, kid int32, key, value, depth int, top bool) int {
	if kid < 0 {
		end := w.skipValue(value, depth)
		if end >= 0 && top && w.wantRest {
			w.rest = append(w.rest, restMember{key, value, end})
		}
		return end
	}
	slot := s.node.children[kid].slot
	below := s.below[kid]
	if slot < 0 {
		return w.walkPath(below, s.objects, value, depth)
	}
	if below == nil || value >= w.limit || w.b[value] != '{' || w.slots[slot].gen == w.gen {
		return w.walkLeaf(slot, value, depth)
	}
	if depth == jsonscan.MaxDepth {
		return w.failAt(value, jsonscan.TooDeep)
	}
	w.slots[slot].gen, w.slots[slot].kind, w.slots[slot].at = w.gen, slotObject, int32(value)
	return w.walkObject(below, value+1, depth+1, false)
}

// skipValue returns the position after a value, checking only its structure.
func (w *rowWalker) skipValue(at, depth int) int {
	if at >= w.limit {
		return w.failAt(at, jsonscan.WantValue)
	}
	switch w.b[at] {
	case '"':
		quote, _ := w.x.StringEnd(at+1, w.limit)
		if quote < 0 {
			return w.failText(at + 1)
		}
		return quote + 1
	case '{', '[':
		end, fault := w.x.Skip(at, w.limit, depth)
		if !fault.OK() {
			return w.failAt(fault.At, fault.Why)
		}
		return end
	}
	end := jsonscan.ScalarEnd(w.b, at, w.limit)
	if end == at {
		return w.failAt(at, jsonscan.WantValue)
	}
	return end
}

// walkLeaf walks over the value of a relevant key. The first of duplicate keys counts.
func (w *rowWalker) walkLeaf(i, at, depth int) int {
	s := &w.slots[i]
	if s.gen == w.gen {
		return w.skipValue(at, depth)
	}
	s.gen = w.gen
	return w.walkValue(s, at, depth)
}

// walkPath walks over a value where an object is expected on the path to values. number is the count of objects of the parent
// shape walked so far.
func (w *rowWalker) walkPath(s *objectShape, number uint64, at, depth int) int {
	if s.seen == number {
		return w.skipValue(at, depth)
	}
	s.seen = number
	if at < w.limit && w.b[at] == '{' {
		if depth == jsonscan.MaxDepth {
			return w.failAt(at, jsonscan.TooDeep)
		}
		return w.walkObject(s, at+1, depth+1, false)
	}
	end := w.skipValue(at, depth)
	if end >= 0 && string(w.b[at:end]) != "null" {
		for _, i := range s.node.slots {
			s := &w.slots[i]
			s.gen, s.kind, s.at, s.why = w.gen, slotBad, int32(at), whyPath
		}
	}
	return end
}

// walkValue records a value and returns the position after it.
func (w *rowWalker) walkValue(s *valueSlot, at, depth int) int {
	b, limit := w.b, w.limit
	if at >= limit {
		return w.failAt(at, jsonscan.WantValue)
	}
	switch c := b[at]; {
	case c == '"':
		quote, escaped := w.x.StringEnd(at+1, limit)
		if quote < 0 {
			return w.failText(at + 1)
		}
		s.kind, s.at, s.end = slotText, int32(at+1), int32(quote)
		switch {
		case escaped && s.takes == textField && w.unescapeInto(s.into, at+1, quote).OK():
			s.kind = slotDone
		case escaped:
			s.kind = slotEscaped
		case s.takes == textField:
			s.kind = slotDone
			s.into.AppendPart(b, at+1, quote)
		case s.takes == timeField:
			if v, ok := column.ParseInstant(s.into.Times, b[at+1:quote], false); ok {
				s.kind = slotDone
				s.into.AppendInt64(v)
			}
		}
		return quote + 1
	case c-'0' <= 9 || c == '-':
		if v, end, ok := jsonscan.ShortInteger(b, at, limit); ok {
			if s.takes == intField {
				s.kind = slotDone
				s.into.AppendInt64(v)
				return end
			}
			s.kind, s.val, s.at, s.end = slotInt, v, int32(at), int32(end)
			return end
		}
		if v, places, end, ok := jsonscan.ShortDecimal(b, at, limit); ok {
			if s.takes == floatField && v != 0 {
				s.kind = slotDone
				s.into.AppendFloat64(float64(v) / tens[places]) // both operands are exact, so the quotient is the nearest float
				return end
			}
			s.kind, s.val, s.places, s.at, s.end = slotNumber, v, uint8(places), int32(at), int32(end)
			return end
		}
	case c == '{' || c == '[':
		if c == '[' && s.takes == listField {
			if end := w.simpleList(s.into, at+1); end >= 0 {
				s.kind = slotDone
				return end
			}
		}
		end, fault := w.x.Skip(at, limit, depth)
		if !fault.OK() {
			return w.failAt(fault.At, fault.Why)
		}
		s.kind, s.at, s.end = slotContainer, int32(at), int32(end)
		return end
	}
	return w.walkScalar(s, at)
}

// walkScalar is walkValue for a value that has neither quotes nor brackets and is not a short number.
func (w *rowWalker) walkScalar(s *valueSlot, at int) int {
	b := w.b
	end := jsonscan.ScalarEnd(b, at, w.limit)
	kind := jsonscan.Scalar(b[at:end])
	s.at, s.end = int32(at), int32(end)
	switch kind {
	case jsonscan.Null:
		s.kind = slotNull
		if s.nullable {
			s.kind = slotDone
			s.into.AppendNull()
		}
	case jsonscan.True, jsonscan.False:
		if s.takes == boolField {
			s.kind = slotDone
			s.into.AppendBool(kind == jsonscan.True)
			break
		}
		s.kind, s.val = slotFalse, 0
		if kind == jsonscan.True {
			s.kind, s.val = slotTrue, 1
		}
	case jsonscan.Integer, jsonscan.Fraction:
		s.kind, s.places = slotNumber, 0
	default:
		if end == at {
			return w.failAt(at, jsonscan.WantValue)
		}
		s.kind, s.why = slotBad, whyMalformed(b[at:end])
	}
	return end
}

// simpleList appends a list of texts without escapes, or of short integers, if the column holds such elements. It returns the
// position after the list. For any other value, valid or damaged, it appends nothing and returns failed; the caller then uses
// skipValue or listInto.
func (w *rowWalker) simpleList(c *column.Buffer, at int) int {
	b, limit, items := w.b, w.limit, c.Children[0]
	start := items.Len
	at = jsonscan.SkipSpace(b, at, limit)
	if at < limit && b[at] == ']' {
		c.AppendList()
		return at + 1
	}
	for {
		if at = w.simpleItem(items, at); at < 0 {
			break
		}
		if at = jsonscan.SkipSpace(b, at, limit); at >= limit {
			break
		}
		if b[at] == ']' {
			c.AppendList()
			return at + 1
		}
		if b[at] != ',' {
			break
		}
		at = jsonscan.SkipSpace(b, at+1, limit)
	}
	items.Truncate(start)
	return failed
}

// simpleItem appends an element of a simple list and returns the position after it. It returns failed if the element is not
// simple.
func (w *rowWalker) simpleItem(items *column.Buffer, at int) int {
	switch b := w.b; {
	case at >= w.limit:
	case isText(items.Type.Kind):
		if b[at] != '"' {
			break
		}
		if quote, escaped := w.x.StringEnd(at+1, w.limit); quote >= 0 && !escaped {
			items.AppendPart(b, at+1, quote)
			return quote + 1
		}
	default:
		if v, end, ok := jsonscan.ShortInteger(b, at, w.limit); ok {
			items.AppendInt64(v)
			return end
		}
	}
	return failed
}
