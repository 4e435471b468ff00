package protorows

import (
	"encoding/binary"
	"math"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"scribe/columnar/schema"
	"scribe/columnar/transcode/column"
	"scribe/columnar/transcode/rows"
)

// appendValue appends the values of a position to a column. If they do not fit, it returns where and why.
func (r *protoReader) appendValue(d *protoDest, c *column.Buffer, p *protoPosition) (at int, why string) {
	if p.first >= 0 {
		at = int(r.found[p.first].pos)
	}
	t := p.typ
	switch {
	case t.list:
		return r.appendList(d, c, p, at)
	case t.kind == protoMap:
		return r.appendMap(d, c, p, at)
	case p.first < 0 && t.kind == protoScalar:
		return at, r.appendScalar(c, t, protoValue{})
	case p.first < 0: // the value of a map entry: an empty message
		r.addValue(p, t, protoValue{next: -1, wire: protowire.BytesType})
		return at, r.appendSingle(d, c, t, p.first, true)
	case t.kind == protoScalar:
		return at, r.appendScalar(c, t, r.found[p.first])
	default:
		return at, r.appendSingle(d, c, t, p.first, true)
	}
}

func (r *protoReader) appendList(d *protoDest, c *column.Buffer, p *protoPosition, at int) (int, string) {
	if c.Type.Kind != schema.List {
		return at, column.WhyNotListOf(c)
	}
	for i := p.first; i >= 0; i = r.found[i].next {
		v := r.found[i]
		if p.typ.kind != protoScalar || v.wire != protowire.BytesType || wireOf(p.typ.scalar) == protowire.BytesType {
			if !r.memory.HasMemory(c) {
				return int(v.pos), rows.WhyTooMuchMemory
			}
			if why := r.appendSingle(d.elem, c.Children[0], p.typ, i, false); why != "" {
				return int(v.pos), why
			}
			continue
		}
		if at, why := r.appendPacked(c, p.typ, v); why != "" {
			return at, why
		}
	}
	c.AppendList()
	return at, ""
}

// appendPacked appends the elements of a packed list.
func (r *protoReader) appendPacked(c *column.Buffer, t *protoType, v protoValue) (at int, why string) {
	wire := wireOf(t.scalar)
	for v.pos < v.end {
		size := protowire.ConsumeFieldValue(1, wire, r.data[v.pos:v.end])
		if size < 0 {
			return int(v.pos), whyWire
		}
		if !r.memory.HasMemory(c) {
			return int(v.pos), rows.WhyTooMuchMemory
		}
		one := protoValue{pos: v.pos, end: v.pos + int32(size), wire: wire}
		if why := r.appendScalar(c.Children[0], t, one); why != "" {
			return int(v.pos), why
		}
		v.pos = one.end
	}
	return 0, ""
}

// appendMap appends a map to a column of maps or structs.
func (r *protoReader) appendMap(d *protoDest, c *column.Buffer, p *protoPosition, at int) (int, string) {
	if c.Type.Kind == schema.Struct {
		return at, r.appendStruct(d.shape, c, p.first, true)
	}
	if c.Type.Kind != schema.Map {
		return at, column.WhyNotObjectOf(c)
	}
	for i := p.first; i >= 0; i = r.found[i].next {
		if !r.memory.HasMemory(c) {
			return at, rows.WhyTooMuchMemory
		}
		v := r.found[i]
		key, why := r.readKey(p.typ.key, int(v.pos), int(v.end))
		if why == "" {
			why = column.PutString(c.Children[0], key)
		}
		if why == "" {
			why = r.appendInside(d.elem, c.Children[1], p.typ.value, mapValue, i)
		}
		if why != "" {
			return int(v.pos), why
		}
	}
	c.AppendList()
	return at, ""
}

// Field numbers of well-known messages.
const (
	mapValue     = 2 // of a map entry
	wrapperValue = 1
	seconds      = 1 // of Timestamp and Duration
	nanos        = 2
)

// appendInside appends the field with the given number of a message, or its zero value if it is absent. It is for messages with
// few fields.
func (r *protoReader) appendInside(d *protoDest, c *column.Buffer, t *protoType, number protowire.Number, at int32) (why string) {
	f := &protoField{typ: t, wire: wireOf(t.scalar), slots: []int{0}}
	w := &protoWalk{zeros: []protoSlot{{typ: t}}}
	w.small[number] = f
	p := []protoPosition{{first: -1}}
	v := r.found[at]
	if _, why := r.walkMessage(w, p, int(v.pos), int(v.end)); why != "" {
		return why
	}
	_, why = r.appendValue(d, c, &p[0])
	return why
}

// appendSingle appends one value of a field. If merged is set, the value at at and all following ones are parts of one message.
func (r *protoReader) appendSingle(d *protoDest, c *column.Buffer, t *protoType, at int32, merged bool) (why string) {
	if c.Type.Kind == schema.Struct && t.message != nil {
		return r.appendStruct(d.shape, c, at, merged)
	}
	switch t.kind {
	case protoScalar:
		return r.appendScalar(c, t, r.found[at])
	case protoWrapper:
		for merged && r.found[at].next >= 0 {
			at = r.found[at].next
		}
		return r.appendInside(d, c, t.value, wrapperValue, at)
	case protoTimestamp, protoDuration:
		return r.appendInstant(c, t, at, merged)
	default:
		return column.WhyNotObjectOf(c)
	}
}

// appendInstant appends a Timestamp or a Duration.
func (r *protoReader) appendInstant(c *column.Buffer, t *protoType, at int32, merged bool) (why string) {
	var s, n int64
	for i := at; i >= 0; i = r.found[i].next {
		v := r.found[i]
		for pos := int(v.pos); pos < int(v.end); {
			number, wire, size := protowire.ConsumeTag(r.data[pos:v.end])
			if size < 0 {
				return whyWire
			}
			pos += size
			if size = protowire.ConsumeFieldValue(number, wire, r.data[pos:v.end]); size < 0 {
				return whyWire
			}
			if wire == protowire.VarintType {
				u, _ := protowire.ConsumeVarint(r.data[pos:v.end])
				if number == seconds {
					s = int64(u)
				}
				if number == nanos {
					n = int64(int32(u))
				}
			}
			pos += size
		}
		if !merged {
			break
		}
	}
	if t.kind == protoDuration {
		return putDuration(c, s, n)
	}
	if n < 0 || n > 999_999_999 || s < -62_135_596_800 || s > 253_402_300_799 {
		return "a Timestamp out of its range: the years 1 to 9999, and 0 to 999999999 nanoseconds"
	}
	return column.PutInstant(c, s*1_000_000+n/1000)
}

// putDuration appends a Duration: as a number of seconds, or in columns of texts as in JSON, such as 1.5s.
func putDuration(c *column.Buffer, s, n int64) (why string) {
	const most = 315_576_000_000 // seconds in 10000 years
	if s < -most || s > most || n < -999_999_999 || n > 999_999_999 || s < 0 && n > 0 || s > 0 && n < 0 {
		return "a Duration out of its range: 10000 years, and nanoseconds of the same sign"
	}
	var buf [48]byte
	text := buf[:0]
	if s < 0 || n < 0 {
		text, s, n = append(text, '-'), -s, -n
	}
	text = strconv.AppendInt(text, s, 10)
	if n != 0 {
		fraction := strconv.AppendInt(nil, 1_000_000_000+n, 10)
		for fraction[len(fraction)-1] == '0' {
			fraction = fraction[:len(fraction)-1]
		}
		fraction[0] = '.'
		text = append(text, fraction...)
	}
	if c.Type.Kind == schema.String {
		text = append(text, 's')
	}
	return column.PutNumber(c, text)
}

// appendStruct appends a struct of the fields of a message or the values of a map. If merged is set, the value at at and all
// following ones are parts of one message.
func (r *protoReader) appendStruct(s *protoShape, c *column.Buffer, at int32, merged bool) (why string) {
	base := len(r.positions)
	places := r.takePositions(s)
	defer func() { r.positions = r.positions[:base] }()
	for i := at; i >= 0; i = r.found[i].next {
		v := r.found[i]
		if s.keys != nil {
			_, why = r.walkEntry(s.key, s.keys, places, int(v.pos), int(v.end))
		} else {
			_, why = r.walkMessage(s.walk, places, int(v.pos), int(v.end))
		}
		if why != "" {
			return why
		}
		if !merged {
			break
		}
	}
	for i := range s.fields {
		f, child := &s.fields[i], c.Children[i]
		slot := f.findFilled(places)
		switch {
		case slot < 0:
			why = child.AppendAbsent()
		case places[slot].why != "":
			why = places[slot].why
		default:
			_, why = r.appendValue(s.dests[slot], child, &places[slot])
		}
		if why != "" {
			return c.Type.Fields[i].Name + ": " + why
		}
	}
	c.AppendStruct()
	return ""
}

// appendScalar appends a number, bool, text, bytes or enum, or the zero value if v is absent.
func (r *protoReader) appendScalar(c *column.Buffer, t *protoType, v protoValue) (why string) {
	var (
		u    uint64
		data = r.data[v.pos:v.end]
	)
	switch wireOf(t.scalar) {
	case protowire.VarintType:
		u, _ = protowire.ConsumeVarint(data)
	case protowire.Fixed32Type:
		if len(data) == 4 {
			u = uint64(binary.LittleEndian.Uint32(data))
		}
	case protowire.Fixed64Type:
		if len(data) == 8 {
			u = binary.LittleEndian.Uint64(data)
		}
	default:
	}
	switch t.scalar {
	case protoreflect.BoolKind:
		return column.PutBool(c, u != 0)
	case protoreflect.Int32Kind, protoreflect.Sfixed32Kind:
		return column.PutInt(c, int64(int32(u)))
	case protoreflect.Sint32Kind:
		return column.PutInt(c, int64(int32(protowire.DecodeZigZag(u&math.MaxUint32))))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return column.PutInt(c, int64(uint32(u)))
	case protoreflect.Int64Kind, protoreflect.Sfixed64Kind:
		return column.PutInt(c, int64(u))
	case protoreflect.Sint64Kind:
		return column.PutInt(c, protowire.DecodeZigZag(u))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return column.PutUint(c, u)
	case protoreflect.FloatKind:
		return column.PutFloat(c, float64(math.Float32frombits(uint32(u))), 32)
	case protoreflect.DoubleKind:
		return column.PutFloat(c, math.Float64frombits(u), 64)
	case protoreflect.EnumKind:
		return putEnum(c, t, protoreflect.EnumNumber(int32(u)))
	case protoreflect.StringKind:
		return column.PutText(c, data)
	case protoreflect.BytesKind:
		return column.PutBytes(c, data)
	default:
		return column.WhyNotObjectOf(c)
	}
}

// putEnum appends the name of an enum number. It appends the number itself if it has no name or the column is not of strings.
func putEnum(c *column.Buffer, t *protoType, n protoreflect.EnumNumber) (why string) {
	name, ok := t.enum[n]
	if !ok || c.Type.Kind != schema.String {
		return column.PutInt(c, int64(n))
	}
	c.AppendString([]byte(name))
	return ""
}
