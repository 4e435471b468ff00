package avrorows

import (
	"errors"
	"fmt"

	"scribe/columnar/avrotype"
	"scribe/columnar/transcode/rows"
)

// NewReader compiles a plan for messages that are data of the writer's schema.
func NewReader(p *rows.Plan) (func() rows.FrameReader, error) {
	t, err := avrotype.Parse(p.Schema.Avro)
	if err != nil {
		return nil, fmt.Errorf("transcode: the Avro schema: %w", err)
	}
	if t.Kind != avrotype.Record {
		return nil, errors.New("transcode: the top type of the Avro schema is not a record: columns are fields of a record")
	}
	fields, indices := p.WantedFields()
	row := newAvroShape(fields, t)
	return func() rows.FrameReader {
		return &rows.PerMessage{MessageReader: &avroReader{row: row, indices: indices, memory: rows.MemoryGuard{Limit: p.Limits.Bytes}}}
	}, nil
}

// avroWalk is a compiled walk over values of a type. It finds the required parts of them.
type avroWalk struct {
	typ *avrotype.Type
	// slots receive the position of the value.
	slots []int
	// fields are the fields of a record that contain required values, in the record's order.
	fields []avroStep
	// branches are the branches of a union; nil for those without required values.
	branches []*avroWalk
	// keys are the keys of a map whose values contain required values.
	keys map[string]*avroWalk
}

// avroStep is a field of a record, either skipped or walked.
type avroStep struct {
	skip *avrotype.Type
	walk *avroWalk
}

// newAvroWalk compiles a walk over values of t. It returns nil if none are required. found is called with each type that a slot
// may get.
func newAvroWalk(t *avrotype.Type, at *rows.Target, found func(slot int, t *avrotype.Type)) *avroWalk {
	if at == nil {
		return nil
	}
	w := &avroWalk{typ: t, slots: at.Slots}
	for _, s := range w.slots {
		found(s, t)
	}
	wanted := len(w.slots) > 0
	switch t.Kind {
	case avrotype.Record:
		for i := range t.Fields {
			f := &t.Fields[i]
			step := avroStep{skip: f.Type, walk: newAvroWalk(f.Type, at.Children[f.Name], found)}
			w.fields = append(w.fields, step)
			wanted = wanted || step.walk != nil
		}
	case avrotype.Union:
		// The slots belong to the union: they record its value even if it is null.
		inside := &rows.Target{Children: at.Children}
		for _, b := range t.Branches {
			sub := newAvroWalk(b, inside, found)
			w.branches = append(w.branches, sub)
			wanted = wanted || sub != nil
		}
	case avrotype.Map:
		for name, part := range at.Children {
			if sub := newAvroWalk(t.Elem, part, found); sub != nil {
				if w.keys == nil {
					w.keys = map[string]*avroWalk{}
				}
				w.keys[name], wanted = sub, true
			}
		}
	default:
	}
	if !wanted {
		return nil
	}
	return w
}

// avroPosition is where a value begins, and its type; typ is nil if there is no value.
type avroPosition struct {
	typ *avrotype.Type
	pos int
}

// avroReader reads the data of messages.
type avroReader struct {
	row     *avroShape
	indices []int // schema indices of the row's fields
	data    []byte
	// positions holds the positions of the structs being read, as a stack: each struct takes a part at the end.
	positions []avroPosition
	empty     int64 // elements without bytes in the current value
	memory    rows.MemoryGuard
}

func (r *avroReader) ReadMessage(w *rows.Writer, payload []byte) {
	w.BeginRow()
	defer w.EndRow()
	r.data = payload
	if len(payload) == 0 {
		w.FailRow(0, "empty; a datum belongs here")
		return
	}
	if len(payload) > w.Plan.Limits.RowBytes {
		w.FailRow(0, rows.RowTooLong(len(payload), w.Plan.Limits.RowBytes))
		return
	}
	r.positions = r.positions[:0]
	places := r.takePositions(r.row)
	end, why := r.walkValue(r.row.walk, places, 0, 0)
	if why == "" && end != len(payload) {
		why = "the datum ends here, and bytes follow"
	}
	if why != "" {
		w.FailRow(end, why)
		return
	}
	for i, field := range r.indices {
		f, c := &r.row.fields[i], w.Declared[field]
		place := r.findPosition(f, places)
		if place.typ == nil {
			continue
		}
		r.empty = 0
		if _, why := r.appendValue(f.dest, c, place.typ, place.pos); why != "" {
			w.FailValue(field, place.pos, why)
		}
	}
}

// takePositions returns empty positions for a shape's slots.
func (r *avroReader) takePositions(s *avroShape) []avroPosition {
	base := len(r.positions)
	r.positions = append(r.positions, s.none...)
	return r.positions[base:]
}

// maxDepth is the maximum nesting depth of a message.
const maxDepth = 128

const (
	whyDeep    = "nested more than 128 deep"
	whyShort   = "the datum is cut off"
	whyVarint  = "a number longer than its type"
	whyLength  = "a negative length"
	whyBranch  = "a union has no such branch"
	whyNothing = "too many values that take no bytes"
)

// walkValue walks the value at pos, fills positions, and returns the value's end. On damage it returns the position and the
// reason.
func (r *avroReader) walkValue(n *avroWalk, places []avroPosition, pos, depth int) (end int, why string) {
	if depth > maxDepth {
		return pos, whyDeep
	}
	for _, s := range n.slots {
		places[s] = avroPosition{typ: n.typ, pos: pos}
	}
	switch {
	case n.fields != nil:
		for i := range n.fields {
			f := &n.fields[i]
			if f.walk == nil {
				pos, why = r.skipValue(f.skip, pos, depth+1)
			} else {
				pos, why = r.walkValue(f.walk, places, pos, depth+1)
			}
			if why != "" {
				return pos, why
			}
		}
		return pos, ""
	case n.branches != nil:
		branch, next, why := r.readBranch(n.typ, pos)
		if why != "" {
			return pos, why
		}
		if sub := n.branches[branch]; sub != nil {
			return r.walkValue(sub, places, next, depth+1)
		}
		return r.skipValue(n.typ.Branches[branch], next, depth+1)
	case n.keys != nil:
		return r.walkBlocks(pos, n.typ.Elem.Least+1, func(pos int) (int, string) {
			key, pos, why := r.readBytes(pos)
			if why != "" {
				return pos, why
			}
			if sub := n.keys[string(key)]; sub != nil {
				return r.walkValue(sub, places, pos, depth+1)
			}
			return r.skipValue(n.typ.Elem, pos, depth+1)
		})
	}
	return r.skipValue(n.typ, pos, depth)
}

// skipValue skips a value, checking only its structure.
func (r *avroReader) skipValue(t *avrotype.Type, pos, depth int) (end int, why string) {
	if t.Constant {
		if t.Least > len(r.data)-pos {
			return pos, whyShort
		}
		return pos + t.Least, ""
	}
	if depth > maxDepth {
		return pos, whyDeep
	}
	switch t.Kind {
	case avrotype.Int:
		_, pos, why = r.readInt(pos)
		return pos, why
	case avrotype.Long, avrotype.Enum:
		_, pos, why = r.readLong(pos)
		return pos, why
	case avrotype.Bytes, avrotype.String:
		_, pos, why = r.readBytes(pos)
		return pos, why
	case avrotype.Array:
		return r.skipArray(t, pos, depth)
	case avrotype.Map:
		return r.walkBlocks(pos, t.Elem.Least+1, func(pos int) (int, string) {
			_, pos, why := r.readBytes(pos)
			if why != "" {
				return pos, why
			}
			return r.skipValue(t.Elem, pos, depth+1)
		})
	case avrotype.Union:
		branch, next, why := r.readBranch(t, pos)
		if why != "" {
			return pos, why
		}
		return r.skipValue(t.Branches[branch], next, depth+1)
	default: // a record
		for i := range t.Fields {
			if pos, why = r.skipValue(t.Fields[i].Type, pos, depth+1); why != "" {
				return pos, why
			}
		}
		return pos, ""
	}
}

func (r *avroReader) skipArray(t *avrotype.Type, pos, depth int) (end int, why string) {
	if t.Elem.Constant {
		return r.walkBlocks(pos, t.Elem.Least, nil)
	}
	return r.walkBlocks(pos, t.Elem.Least, func(pos int) (int, string) { return r.skipValue(t.Elem, pos, depth+1) })
}

// walkBlocks calls element for each element of an array or a map. An element takes at least least bytes, or exactly least if
// element is nil.
func (r *avroReader) walkBlocks(pos, least int, element func(pos int) (int, string)) (end int, why string) {
	for {
		at := pos
		count, next, why := r.readLong(pos)
		if why != "" {
			return pos, why
		}
		pos = next
		if count == 0 {
			return pos, ""
		}
		stop := -1
		if count < 0 {
			if count == -count { // the smallest integer has no negation
				return at, whyLength
			}
			count = -count
			size, next, why := r.readLong(pos)
			switch {
			case why != "":
				return pos, why
			case size < 0:
				return pos, whyLength
			case size > int64(len(r.data)-next):
				return pos, whyShort
			}
			pos, stop = next, next+int(size)
		}
		if least > 0 && count > int64((len(r.data)-pos)/least) {
			return at, whyShort
		}
		if pos, why = r.walkBlock(pos, least, count, element); why != "" {
			return pos, why
		}
		if stop >= 0 && pos != stop {
			return at, "a block of an array or map has another length than it says"
		}
	}
}

// maxEmpty is the maximum number of elements without bytes in one value of a column. A message can claim any number of them at no
// cost.
const maxEmpty = 4096

// walkBlock calls element for the elements of one block.
func (r *avroReader) walkBlock(pos, least int, count int64, element func(pos int) (int, string)) (end int, why string) {
	if element == nil {
		return pos + int(count)*least, ""
	}
	if least == 0 {
		if count > maxEmpty-r.empty {
			return pos, whyNothing
		}
		r.empty += count
	}
	for range count {
		if pos, why = element(pos); why != "" {
			return pos, why
		}
	}
	return pos, ""
}

// readBranch reads the branch number of a union value.
func (r *avroReader) readBranch(t *avrotype.Type, pos int) (branch, next int, why string) {
	n, next, why := r.readLong(pos)
	if why != "" {
		return 0, pos, why
	}
	if n < 0 || n >= int64(len(t.Branches)) {
		return 0, pos, whyBranch
	}
	return int(n), next, ""
}

// readLong reads a variable-length integer of at most ten bytes.
func (r *avroReader) readLong(pos int) (v int64, next int, why string) {
	var u uint64
	for i := range 10 {
		if pos+i >= len(r.data) {
			return 0, pos, whyShort
		}
		b := r.data[pos+i]
		if i == 9 && b > 1 {
			break
		}
		u |= uint64(b&0x7F) << (7 * i)
		if b < 0x80 {
			return int64(u>>1) ^ -int64(u&1), pos + i + 1, ""
		}
	}
	return 0, pos, whyVarint
}

func (r *avroReader) readInt(pos int) (v int64, next int, why string) {
	v, next, why = r.readLong(pos)
	if why == "" && v != int64(int32(v)) {
		return 0, pos, whyVarint
	}
	return v, next, why
}

// readBytes reads a length-prefixed byte string or text.
func (r *avroReader) readBytes(pos int) (v []byte, next int, why string) {
	n, next, why := r.readLong(pos)
	switch {
	case why != "":
		return nil, pos, why
	case n < 0:
		return nil, pos, whyLength
	case n > int64(len(r.data)-next):
		return nil, pos, whyShort
	}
	return r.data[next : next+int(n)], next + int(n), ""
}
