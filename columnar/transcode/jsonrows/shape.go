package jsonrows

import (
	"encoding/binary"
	"math"

	"scribe/columnar/schema"
	"scribe/columnar/transcode/jsonscan"
)

// keyNode is an object with relevant keys: of rows, or of the values of a struct. Nodes are immutable once they are made.
type keyNode struct {
	children []keyChild
	byKey    map[string]int32 // indices of children
	slots    []int            // all slots at or below the node
}

// keyChild is a relevant key: a value, or an object on the path to values.
type keyChild struct {
	key string
	// slot receives the position of the value. It is -1 for an object on the path to values. An object with relevant members, on the
	// path or as the value of a struct, has a node of its own in below.
	slot  int
	below *keyNode
	// field is the field that the value is a source of, and alternative the index of that source.
	field, alternative int
	// terms are the predicate terms that may be decided once the child was read.
	terms []int
}

// slotTree makes nodes and numbers their slots.
type slotTree struct{ slots int }

func newKeyNode() *keyNode { return &keyNode{byKey: map[string]int32{}} }

// addSource adds a source of a field at a path from n and returns its slot and its key. In a valid schema no path is a prefix of
// another. Of such a pair the first one stays, and the other gets a slot that is never filled, and no key.
func (t *slotTree) addSource(n *keyNode, path []string, field, alternative int) (slot int, k *keyChild) {
	slot = t.slots
	t.slots++
	for i, key := range path {
		at, ok := n.byKey[key]
		if !ok {
			at = int32(len(n.children))
			n.byKey[key] = at
			n.children = append(n.children, keyChild{key: key, slot: -1, field: field, alternative: alternative})
			if i == len(path)-1 {
				n.children[at].slot = slot
				k = &n.children[at]
			} else {
				n.children[at].below = newKeyNode()
			}
		}
		n.slots = append(n.slots, slot)
		if n = n.children[at].below; n == nil {
			break
		}
	}
	return slot, k
}

// structNode returns the node for the values of a struct.
func structNode(typ *schema.Type) *keyNode {
	var t slotTree
	top := newKeyNode()
	for i := range typ.Fields {
		for j, path := range typ.Fields[i].Sources() {
			t.addSource(top, path, i, j)
		}
	}
	return top
}

// objectShape is what a worker has learned about the objects at a node: their keys, relevant or not, and the order of the keys.
type objectShape struct {
	node    *keyNode
	below   []*objectShape // by child; nil for those without a node
	start   keyEntry       // stands for the start of an object
	byKey   map[string]*keyEntry
	slots   []valueSlot // of the walk; nil for the values of structs, which have no slots
	objects uint64      // number of objects walked
	seen    uint64      // the objects count of the parent shape when this shape was last seen
}

// keyEntry is a key as written, with the key that followed it last time.
type keyEntry struct {
	// The first sixteen bytes of the key with its quotes and colon, and the mask of the bits that count.
	w0, m0, w1, m1 uint64
	size           int        // the length of text; for the start, longer than any row
	slot           *valueSlot // of the child; nil if it has none
	next           *keyEntry  // initially the start
	child          int32      // index in the node; -1 for an irrelevant key
	text           string     // the whole key
}

// Bounds of the learned keys. Keys beyond them are looked up every time.
const (
	maxLearned    = 512
	maxLearnedKey = 128
)

func newShape(n *keyNode, slots []valueSlot) *objectShape {
	s := &objectShape{node: n, slots: slots, below: make([]*objectShape, len(n.children)), byKey: map[string]*keyEntry{}}
	s.start.size, s.start.next = math.MaxInt32, &s.start
	for i := range n.children {
		if below := n.children[i].below; below != nil {
			s.below[i] = newShape(below, slots)
		}
	}
	return s
}

// learnKey adds a key without escapes. It returns nil if a bound is reached.
func (s *objectShape) learnKey(key []byte, child int32) *keyEntry {
	if len(s.byKey) >= maxLearned || len(key) > maxLearnedKey {
		return nil
	}
	e := &keyEntry{text: `"` + string(key) + `":`, child: child, next: &s.start}
	e.size = len(e.text)
	if child >= 0 && s.below[child] == nil && len(s.slots) > 0 {
		e.slot = &s.slots[s.node.children[child].slot]
	}
	var text [16]byte
	n := copy(text[:], e.text)
	e.w0, e.w1 = binary.LittleEndian.Uint64(text[:]), binary.LittleEndian.Uint64(text[8:])
	e.m0, e.m1 = ^uint64(0), ^uint64(0)
	if n < 8 {
		e.m0, e.m1 = 1<<(8*n)-1, 0
	} else if n < 16 {
		e.m1 = 1<<(8*(n-8)) - 1
	}
	s.byKey[string(key)] = e
	return e
}

// matchesAt reports whether the entry's text is at position at and ends before limit. 16 bytes must be readable at at. The start
// entry never matches.
func (e *keyEntry) matchesAt(b []byte, at, limit int) bool {
	w := b[at : at+16 : at+16]
	return (binary.LittleEndian.Uint64(w)^e.w0)&e.m0|(binary.LittleEndian.Uint64(w[8:])^e.w1)&e.m1 == 0 && at+e.size < limit && (e.size <= 16 || e.matchesRest(b, at))
}

func (e *keyEntry) matchesRest(b []byte, at int) bool {
	return string(b[at+16:at+len(e.text)]) == e.text[16:]
}

// readKey reads a key and its colon at at, which must be the key's opening quote. prev is the entry of the previous key, or of
// the start. It returns the key's entry, or prev for a key that was not learned; the index of the node's child, or -1 if the key
// is irrelevant; and the position of the value.
func (s *objectShape) readKey(w *rowWalker, at int, prev *keyEntry) (now *keyEntry, kid int32, value int) {
	b, limit := w.b, w.limit
	if at+16 <= len(b) {
		e := prev.next
		for range 3 {
			if e.matchesAt(b, at, limit) {
				prev.next = e
				if at += e.size; b[at] <= ' ' {
					at = jsonscan.SkipSpace(b, at, limit)
				}
				return e, e.child, at
			}
			e = e.next
		}
	}
	return s.lookUp(w, at, prev)
}

// lookUp is readKey without a guess from prev.
func (s *objectShape) lookUp(w *rowWalker, at int, prev *keyEntry) (now *keyEntry, kid int32, value int) {
	b, limit := w.b, w.limit
	if at >= limit || b[at] != '"' {
		return nil, 0, w.failAt(at, jsonscan.WantKey)
	}
	quote, escaped := w.x.StringEnd(at+1, limit)
	if quote < 0 {
		return nil, 0, w.failText(at + 1)
	}
	raw := b[at+1 : quote]
	value = jsonscan.SkipSpace(b, quote+1, limit)
	if value >= limit || b[value] != ':' {
		return nil, 0, w.failAt(value, jsonscan.WantColon)
	}
	value = jsonscan.SkipSpace(b, value+1, limit)
	if !escaped {
		if now = s.byKey[string(raw)]; now != nil {
			prev.next = now
			return now, now.child, value
		}
	}
	key := raw
	if escaped {
		unescaped, fault := jsonscan.AppendUnescaped(w.scratch[:0], raw)
		if !fault.OK() {
			return prev, -1, value // not the key of a field
		}
		key, w.scratch = unescaped, unescaped
	}
	kid = -1
	if at, ok := s.node.byKey[string(key)]; ok {
		kid = at
	}
	if !escaped {
		if now = s.learnKey(raw, kid); now != nil {
			prev.next = now
			return now, kid, value
		}
	}
	return prev, kid, value
}
