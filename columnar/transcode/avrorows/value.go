package avrorows

import (
	"encoding/binary"
	"math"
	"math/big"

	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/avrotype"
	"scribe/columnar/schema"
	"scribe/columnar/transcode/column"
	"scribe/columnar/transcode/rows"
)

// avroShape says how to find the fields of a row or struct in values of an Avro type.
type avroShape struct {
	walk   *avroWalk
	fields []avroColumn
	none   []avroPosition // one empty position per slot
}

// avroColumn is a field of a shape.
type avroColumn struct {
	first, end int // its slots: the path, then the aliases
	dest       *avroDest
	nullable   bool
}

// avroDest is a column type that values are converted to, with the shapes of its structs by Avro type.
type avroDest struct {
	elem   *avroDest
	shapes map[*avrotype.Type]*avroShape
}

func newAvroShape(fields []schema.Field, t *avrotype.Type) *avroShape {
	find := rows.NewLookup(fields)
	types := make([][]*avrotype.Type, find.SlotCount())
	s := &avroShape{none: make([]avroPosition, find.SlotCount())}
	s.walk = newAvroWalk(t, find.Root, func(slot int, t *avrotype.Type) { types[slot] = append(types[slot], t) })
	if s.walk == nil {
		s.walk = &avroWalk{typ: t}
	}
	for i := range fields {
		c := avroColumn{first: find.FirstSlot[i], end: find.FirstSlot[i+1], nullable: fields[i].Nullable}
		var all []*avrotype.Type
		for slot := c.first; slot < c.end; slot++ {
			all = append(all, types[slot]...)
		}
		c.dest = newAvroDest(&fields[i].Type, all)
		s.fields = append(s.fields, c)
	}
	return s
}

func newAvroDest(t *schema.Type, from []*avrotype.Type) *avroDest {
	d := &avroDest{}
	var elems []*avrotype.Type
	for _, a := range from {
		flat := []*avrotype.Type{a}
		if a.Kind == avrotype.Union {
			flat = a.Branches
		}
		for _, a := range flat {
			switch {
			case t.Kind == schema.List && a.Kind == avrotype.Array, t.Kind == schema.Map && a.Kind == avrotype.Map:
				elems = append(elems, a.Elem)
			case t.Kind == schema.Struct && (a.Kind == avrotype.Record || a.Kind == avrotype.Map):
				if d.shapes == nil {
					d.shapes = map[*avrotype.Type]*avroShape{}
				}
				if d.shapes[a] == nil {
					d.shapes[a] = newAvroShape(t.Fields, a)
				}
			}
		}
	}
	if len(elems) > 0 {
		d.elem = newAvroDest(t.Elem, elems)
	}
	return d
}

// findPosition returns the position of the field's value: at its path, or at the first alias with a value. For a field that is
// not nullable, null does not count as a value.
func (r *avroReader) findPosition(c *avroColumn, places []avroPosition) avroPosition {
	for _, p := range places[c.first:c.end] {
		if p.typ != nil && (c.nullable || !r.isNull(p)) {
			return p
		}
	}
	return avroPosition{}
}

// isNull reports whether a value is null. The caller has checked the datum's structure.
func (r *avroReader) isNull(p avroPosition) bool {
	if p.typ.Kind == avrotype.Union {
		branch, _, why := r.readBranch(p.typ, p.pos)
		return why == "" && p.typ.Branches[branch].Kind == avrotype.Null
	}
	return p.typ.Kind == avrotype.Null
}

// appendValue appends the value at pos to a column and returns its end. The caller has checked the datum's structure.
func (r *avroReader) appendValue(d *avroDest, c *column.Buffer, t *avrotype.Type, pos int) (end int, why string) {
	switch t.Kind {
	case avrotype.Null:
		c.AppendNull()
		return pos, ""
	case avrotype.Union:
		branch, next, why := r.readBranch(t, pos)
		if why != "" {
			return pos, why
		}
		return r.appendValue(d, c, t.Branches[branch], next)
	case avrotype.Array:
		if c.Type.Kind != schema.List {
			return pos, column.WhyNotListOf(c)
		}
		return r.appendList(d, c, t, pos)
	case avrotype.Map, avrotype.Record:
		return r.appendObject(d, c, t, pos)
	default:
		return r.appendScalar(c, t, pos)
	}
}

func (r *avroReader) appendList(d *avroDest, c *column.Buffer, t *avrotype.Type, pos int) (end int, why string) {
	end, why = r.walkBlocks(pos, t.Elem.Least, func(pos int) (int, string) {
		if !r.memory.HasMemory(c) {
			return pos, rows.WhyTooMuchMemory
		}
		return r.appendValue(d.elem, c.Children[0], t.Elem, pos)
	})
	if why == "" {
		c.AppendList()
	}
	return end, why
}

func (r *avroReader) appendObject(d *avroDest, c *column.Buffer, t *avrotype.Type, pos int) (end int, why string) {
	switch {
	case c.Type.Kind == schema.Map && t.Kind == avrotype.Map:
		end, why = r.walkBlocks(pos, t.Elem.Least+1, func(pos int) (int, string) {
			key, pos, why := r.readBytes(pos)
			if why != "" {
				return pos, why
			}
			if !r.memory.HasMemory(c) {
				return pos, rows.WhyTooMuchMemory
			}
			if why := column.PutText(c.Children[0], key); why != "" {
				return pos, why
			}
			return r.appendValue(d.elem, c.Children[1], t.Elem, pos)
		})
		if why == "" {
			c.AppendList()
		}
		return end, why
	case c.Type.Kind == schema.Struct:
		return r.appendStruct(d.shapes[t], c, pos)
	default:
		return pos, column.WhyNotObjectOf(c)
	}
}

func (r *avroReader) appendStruct(s *avroShape, c *column.Buffer, pos int) (end int, why string) {
	base := len(r.positions)
	places := r.takePositions(s)
	defer func() { r.positions = r.positions[:base] }()
	if end, why = r.walkValue(s.walk, places, pos, 0); why != "" {
		return pos, why
	}
	for i := range s.fields {
		f, child := &s.fields[i], c.Children[i]
		if place := r.findPosition(f, places); place.typ == nil {
			why = child.AppendAbsent()
		} else {
			_, why = r.appendValue(f.dest, child, place.typ, place.pos)
		}
		if why != "" {
			return pos, c.Type.Fields[i].Name + ": " + why
		}
	}
	c.AppendStruct()
	return end, ""
}

// appendScalar appends a value without elements.
func (r *avroReader) appendScalar(c *column.Buffer, t *avrotype.Type, pos int) (end int, why string) {
	switch t.Kind {
	case avrotype.Boolean:
		if r.data[pos] > 1 {
			return pos, column.WhyEncoding
		}
		return pos + 1, column.PutBool(c, r.data[pos] == 1)
	case avrotype.Int, avrotype.Long:
		v, end, why := r.readLong(pos)
		if why != "" {
			return pos, why
		}
		return end, putAvroInt(c, t, v)
	case avrotype.Float:
		return pos + 4, column.PutFloat(c, float64(math.Float32frombits(binary.LittleEndian.Uint32(r.data[pos:]))), 32)
	case avrotype.Double:
		return pos + 8, column.PutFloat(c, math.Float64frombits(binary.LittleEndian.Uint64(r.data[pos:])), 64)
	case avrotype.Enum:
		v, end, why := r.readLong(pos)
		if why != "" {
			return pos, why
		}
		if v < 0 || v >= int64(len(t.Symbols)) {
			return pos, "an enum has no such symbol"
		}
		return end, column.PutText(c, []byte(t.Symbols[v]))
	case avrotype.String:
		v, end, why := r.readBytes(pos)
		if why != "" {
			return pos, why
		}
		return end, column.PutText(c, v)
	case avrotype.Fixed:
		end = pos + t.Size
		return end, putAvroBytes(c, t, r.data[pos:end])
	default:
		v, end, why := r.readBytes(pos)
		if why != "" {
			return pos, why
		}
		return end, putAvroBytes(c, t, v)
	}
}

// putAvroInt appends an int or a long. In columns of dates and instants its logical type determines the unit.
func putAvroInt(c *column.Buffer, t *avrotype.Type, v int64) (why string) {
	if c.Type.Kind != schema.Timestamp && c.Type.Kind != schema.Date {
		return column.PutInt(c, v)
	}
	switch t.Logical {
	case "date":
		return column.PutDays(c, int32(v))
	case "timestamp-millis", "local-timestamp-millis":
		return column.PutInstantIn(c, v, 1000)
	case "timestamp-micros", "local-timestamp-micros":
		return column.PutInstantIn(c, v, 1)
	case "timestamp-nanos", "local-timestamp-nanos":
		return column.PutInstantIn(c, v, 0)
	}
	return column.PutInt(c, v)
}

// maxDecimalBytes is larger than any decimal column can hold.
const maxDecimalBytes = 32

// putAvroBytes appends a bytes or fixed value. It is a number if that is its logical type and the column is not binary.
func putAvroBytes(c *column.Buffer, t *avrotype.Type, v []byte) (why string) {
	if t.Logical != "decimal" || c.Type.Kind == schema.Binary {
		return column.PutBytes(c, v)
	}
	for len(v) > 1 && (v[0] == 0 && v[1] < 0x80 || v[0] == 0xFF && v[1] >= 0x80) {
		v = v[1:]
	}
	if len(v) > maxDecimalBytes {
		return column.WhyDecimalRange
	}
	if len(v) <= 16 {
		var lo, hi uint64
		if len(v) > 0 && v[0] >= 0x80 {
			lo, hi = math.MaxUint64, math.MaxUint64
		}
		for _, b := range v {
			hi, lo = hi<<8|lo>>56, lo<<8|uint64(b)
		}
		return column.PutDecimal(c, decimal128.New(int64(hi), lo), t.Scale)
	}
	n := new(big.Int).SetBytes(v)
	if v[0] >= 0x80 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(v))))
	}
	return column.PutBig(c, n, t.Scale)
}
