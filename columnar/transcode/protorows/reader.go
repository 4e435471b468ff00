package protorows

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"scribe/columnar/schema"
	"scribe/columnar/transcode/column"
	"scribe/columnar/transcode/rows"
)

// NewReader compiles a plan for messages of the schema's protobuf type.
func NewReader(p *rows.Plan) (func() rows.FrameReader, error) {
	if p.Schema.Protobuf == nil {
		return nil, errors.New("transcode: the schema names no protobuf message")
	}
	m, err := p.Schema.Protobuf.Descriptor()
	if err != nil {
		return nil, fmt.Errorf("transcode: protobuf: %w", err)
	}
	fields, indices := p.WantedFields()
	row := newProtoShape(fields, m, nil)
	return func() rows.FrameReader {
		return &rows.PerMessage{MessageReader: &protoReader{row: row, indices: indices, memory: rows.MemoryGuard{Limit: p.Limits.Bytes}}}
	}, nil
}

// protoShape says how to find the fields of a row or struct in messages of a type, or in maps.
type protoShape struct {
	walk   *protoWalk           // for a message; nil if nothing is required
	keys   map[string]*protoKey // for a map
	key    *protoType           // key type of a map
	fields []protoColumn
	dests  []*protoDest    // by slot
	none   []protoPosition // one empty position per slot
}

// protoColumn is a field of a shape.
type protoColumn struct {
	first, end int // its slots: the path, then the aliases
}

// protoDest says how a field's values are converted into a column.
type protoDest struct {
	elem  *protoDest
	shape *protoShape
}

// newProtoShape compiles a shape for messages of type m, or for the values of a map.
func newProtoShape(fields []schema.Field, m protoreflect.MessageDescriptor, of *protoType) *protoShape {
	find := rows.NewLookup(fields)
	s := &protoShape{none: make([]protoPosition, find.SlotCount()), dests: make([]*protoDest, find.SlotCount())}
	for i := range s.none {
		s.none[i].first = -1
	}
	types := make([]*protoType, find.SlotCount())
	found := func(slot int, t *protoType) { types[slot] = t }
	if of != nil {
		s.keys, s.key = map[string]*protoKey{}, of.key
		for key, part := range find.Root.Children {
			if k := newProtoKey(m, part, found); k != nil {
				s.keys[key] = k
			}
		}
	} else {
		s.walk = newProtoWalk(m, find.Root, found)
	}
	for i := range fields {
		c := protoColumn{first: find.FirstSlot[i], end: find.FirstSlot[i+1]}
		s.fields = append(s.fields, c)
		for slot := c.first; slot < c.end; slot++ {
			if types[slot] != nil {
				s.dests[slot] = newProtoDest(&fields[i].Type, types[slot])
			}
		}
	}
	return s
}

func newProtoDest(t *schema.Type, from *protoType) *protoDest {
	d := &protoDest{}
	switch {
	case from.list:
		if t.Kind == schema.List {
			one := *from
			one.list = false
			d.elem = newProtoDest(t.Elem, &one)
		}
	case from.kind == protoMap:
		if t.Kind == schema.Map {
			d.elem = newProtoDest(t.Elem, from.value)
		}
		if t.Kind == schema.Struct {
			d.shape = newProtoShape(t.Fields, from.message, from)
		}
	case from.message != nil && t.Kind == schema.Struct:
		d.shape = newProtoShape(t.Fields, from.message, nil)
	}
	return d
}

// protoPosition is the walk's result for a slot: the values of a field, in order.
type protoPosition struct {
	typ         *protoType // nil if there are none
	first, last int32      // in protoReader.found; first is -1 for an absent field with its zero value
	// why is set if an enclosing message is damaged at pos.
	why string
	pos int
}

// protoValue is the range of a value in the message, without its tag and, for bytes and messages, without its length.
type protoValue struct {
	pos, end, next int32 // next is the next value of the same slot, or -1
	wire           protowire.Type
}

// protoReader reads messages.
type protoReader struct {
	row       *protoShape
	indices   []int // schema indices of the row's fields
	data      []byte
	positions []protoPosition // a stack for the structs being read: each takes a part at the end
	found     []protoValue
	memory    rows.MemoryGuard
}

// keepFound is the number of values up to which a reader keeps their memory between messages.
const keepFound = 1 << 14

func (r *protoReader) ReadMessage(w *rows.Writer, payload []byte) {
	w.BeginRow()
	defer w.EndRow()
	if len(payload) > w.Plan.Limits.RowBytes {
		w.FailRow(0, rows.RowTooLong(len(payload), w.Plan.Limits.RowBytes))
		return
	}
	r.data, r.positions, r.found = payload, r.positions[:0], r.found[:0]
	if cap(r.found) > keepFound {
		r.found = nil
	}
	places := r.takePositions(r.row)
	if at, why := r.walkMessage(r.row.walk, places, 0, len(payload)); why != "" {
		w.FailRow(at, why)
		return
	}
	for i, field := range r.indices {
		slot := r.row.fields[i].findFilled(places)
		if slot < 0 {
			continue
		}
		place := &places[slot]
		at, why := place.pos, place.why
		if why == "" {
			at, why = r.appendValue(r.row.dests[slot], w.Declared[field], place)
		}
		if why != "" {
			w.FailValue(field, at, why)
		}
	}
}

func (r *protoReader) takePositions(s *protoShape) []protoPosition {
	base := len(r.positions)
	r.positions = append(r.positions, s.none...)
	return r.positions[base:]
}

// findFilled returns the slot with the field's value, or -1 if there is none.
func (c *protoColumn) findFilled(places []protoPosition) int {
	for s := c.first; s < c.end; s++ {
		if places[s].typ != nil || places[s].why != "" {
			return s
		}
	}
	return -1
}

const whyWire = "the message is cut off, or not a protobuf message"

// walkMessage walks over the fields of the message from pos to end and records the required ones. On damage it returns where and
// why.
func (r *protoReader) walkMessage(n *protoWalk, places []protoPosition, pos, end int) (at int, why string) {
	if n != nil {
		for _, z := range n.zeros {
			if places[z.slot].typ == nil {
				places[z.slot].typ = z.typ
			}
		}
	}
	for pos < end {
		number, wire, size := protowire.ConsumeTag(r.data[pos:end])
		if size < 0 {
			return pos, whyWire
		}
		value := pos + size
		size = protowire.ConsumeFieldValue(number, wire, r.data[value:end])
		if size < 0 {
			return pos, whyWire
		}
		if n != nil {
			if f := n.fieldOf(number); f != nil {
				r.noteField(f, wire, number, places, value, value+size)
			}
		}
		pos = value + size
	}
	return end, ""
}

// noteField records a value of a required field. A value with a wire type other than the field's is ignored, as everywhere in
// protobuf.
func (r *protoReader) noteField(f *protoField, wire protowire.Type, number protowire.Number, places []protoPosition, pos, end int) {
	packed := f.typ.list && wire == protowire.BytesType && f.wire != protowire.BytesType && f.wire != protowire.StartGroupType
	if wire != f.wire && !packed {
		return
	}
	pos, end = r.contentOf(wire, number, pos, end)
	for _, s := range f.slots {
		r.addValue(&places[s], f.typ, protoValue{pos: int32(pos), end: int32(end), next: -1, wire: wire})
	}
	if f.below != nil {
		if at, why := r.walkMessage(f.below, places, pos, end); why != "" {
			f.markDamaged(places, at, why)
		}
	}
	if f.keys != nil {
		if at, why := r.walkEntry(f.typ.key, f.keys, places, pos, end); why != "" {
			f.markDamaged(places, at, why)
		}
	}
}

// walkEntry records the required values of a map entry. The last entry of a key counts.
func (r *protoReader) walkEntry(t *protoType, keys map[string]*protoKey, places []protoPosition, pos, end int) (at int, why string) {
	key, why := r.readKey(t, pos, end)
	if why != "" {
		return pos, why
	}
	k := keys[string(key)]
	if k == nil {
		// Entries that are not required are still checked.
		return r.walkMessage(nil, places, pos, end)
	}
	for _, s := range k.slots {
		places[s] = protoPosition{first: -1}
	}
	return r.walkMessage(k.walk, places, pos, end)
}

// contentOf returns the range of a value's bytes, without their length or group end.
func (r *protoReader) contentOf(wire protowire.Type, number protowire.Number, pos, end int) (int, int) {
	switch wire {
	case protowire.BytesType:
		_, n := protowire.ConsumeVarint(r.data[pos:end])
		return pos + n, end
	case protowire.StartGroupType:
		v, _ := protowire.ConsumeGroup(number, r.data[pos:end])
		return pos, pos + len(v)
	default:
		return pos, end
	}
}

// markDamaged marks all slots that a field may fill as damaged.
func (f *protoField) markDamaged(places []protoPosition, at int, why string) {
	for _, s := range f.all {
		places[s].why, places[s].pos = why, at
	}
}

// addValue adds a value to a position. For a single scalar the last value counts; repeated occurrences of a single message are
// merged.
func (r *protoReader) addValue(p *protoPosition, t *protoType, v protoValue) {
	if p.first >= 0 && !t.list && t.kind == protoScalar {
		r.found[p.first] = v
		return
	}
	at := int32(len(r.found))
	r.found = append(r.found, v)
	if p.first < 0 {
		p.typ, p.first = t, at
	} else {
		r.found[p.last].next = at
	}
	p.last = at
}

// readKey returns the key of a map entry as text.
func (r *protoReader) readKey(t *protoType, pos, end int) (key []byte, why string) {
	var last protoValue
	for pos < end {
		number, wire, size := protowire.ConsumeTag(r.data[pos:end])
		if size < 0 {
			return nil, whyWire
		}
		value := pos + size
		if size = protowire.ConsumeFieldValue(number, wire, r.data[value:end]); size < 0 {
			return nil, whyWire
		}
		pos = value + size
		if number == 1 && wire == wireOf(t.scalar) {
			from, to := r.contentOf(wire, number, value, pos)
			last = protoValue{pos: int32(from), end: int32(to), wire: wire}
		}
	}
	if t.scalar == protoreflect.StringKind {
		return r.data[last.pos:last.end], ""
	}
	c := column.NewBuffer(&schema.Type{Kind: schema.String}, false, nil)
	if why := r.appendScalar(c, t, last); why != "" {
		return nil, why
	}
	return c.Text(0), ""
}
