package zone

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/schema"
	"scribe/internal/format/pointer/field"
	"scribe/internal/format/record"
)

// FormatVersion is the version that this build writes, and the newest one that it reads.
const FormatVersion = 1

// Errors of Decode.
var (
	// ErrInvalid means that the bytes are not a zone map, or are damaged.
	ErrInvalid = errors.New("zone: not a zone map")
	// ErrVersion means that a newer build wrote the map.
	ErrVersion = errors.New("zone: the map has a newer format")
)

// Flags of a column.
const (
	flagLow     = 1 << 0
	flagHigh    = 1 << 1
	flagLowCut  = 1 << 2
	flagHighCut = 1 << 3
	allFlags    = flagLow | flagHigh | flagLowCut | flagHighCut
)

// Persisted kind codes. They are never changed or reused.
var kindCodes = map[schema.Kind]byte{
	schema.Bool: 2, schema.Int32: 3, schema.Int64: 4, schema.Uint64: 5, schema.Float64: 6, schema.Decimal: 7, schema.String: 8,
	schema.Binary: 9, schema.Date: 10, schema.Timestamp: 11,
}

var codeKinds = func() map[byte]schema.Kind {
	out := make(map[byte]schema.Kind, len(kindCodes))
	for k, code := range kindCodes {
		out[code] = k
	}
	return out
}()

// Append appends the encoded form of m, at most MaxLen bytes. Columns added by [Map.With] are not included.
func (m *Map) Append(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, FormatVersion)
	dst = binary.AppendUvarint(dst, uint64(m.Version))
	dst = binary.AppendUvarint(dst, m.Rows)
	n := 0
	for i := range m.columns {
		if !m.columns[i].synthetic {
			n++
		}
	}
	dst = binary.AppendUvarint(dst, uint64(n))
	for i := range m.columns {
		if !m.columns[i].synthetic {
			dst = m.columns[i].appendColumn(dst)
		}
	}
	return binary.LittleEndian.AppendUint32(dst, record.CRC(dst[start:]))
}

func (c *columnZone) appendColumn(dst []byte) []byte {
	var flags byte
	for i, is := range []bool{c.hasLow, c.hasHigh, c.lowCut, c.highCut} {
		if is {
			flags |= 1 << i
		}
	}
	dst = append(dst, kindCodes[c.kind], flags)
	dst = appendText(dst, []byte(c.name))
	dst = binary.LittleEndian.AppendUint64(dst, c.def)
	dst = binary.AppendUvarint(dst, c.nulls)
	if c.kind == schema.Decimal {
		dst = append(dst, byte(c.scale))
	}
	if c.hasLow {
		dst = appendBound(dst, c.kind, &c.low)
	}
	if c.hasHigh {
		dst = appendBound(dst, c.kind, &c.high)
	}
	dst = append(dst, byte(len(c.filter)/blockLen)) //nolint:gosec // at most maxFilter
	return append(dst, c.filter...)
}

func appendText(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

func appendBound(dst []byte, kind schema.Kind, v *boundValue) []byte {
	switch kind {
	case schema.Uint64:
		return binary.LittleEndian.AppendUint64(dst, v.u)
	case schema.Float64:
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(v.f))
	case schema.Decimal:
		dst = binary.LittleEndian.AppendUint64(dst, v.d.LowBits())
		return binary.LittleEndian.AppendUint64(dst, uint64(v.d.HighBits())) //nolint:gosec // two's complement
	case schema.String, schema.Binary:
		return appendText(dst, v.s)
	default:
		return binary.AppendVarint(dst, v.i)
	}
}

// fitMaxLen shrinks the encoded map to MaxLen bytes. It removes the largest filters first, then the last columns.
func (m *Map) fitMaxLen() {
	for len(m.Append(nil)) > MaxLen {
		at := -1
		for i := range m.columns {
			if n := len(m.columns[i].filter); n > 0 && (at < 0 || n >= len(m.columns[at].filter)) {
				at = i
			}
		}
		if at < 0 {
			m.columns = m.columns[:len(m.columns)-1]
			continue
		}
		m.columns[at].filter = nil
	}
}

// Decode decodes a map, which must be all of b. It does not keep b. Errors are [ErrInvalid] and [ErrVersion].
func Decode(b []byte) (*Map, error) {
	const crcLen = 4
	if len(b) > MaxLen || len(b) < 1+crcLen {
		return nil, fmt.Errorf("%w: %d bytes", ErrInvalid, len(b))
	}
	body := b[:len(b)-crcLen]
	if stored, computed := binary.LittleEndian.Uint32(b[len(body):]), record.CRC(body); stored != computed {
		return nil, fmt.Errorf("%w: checksum %#08x, computed %#08x", ErrInvalid, stored, computed)
	}
	if body[0] != FormatVersion {
		return nil, fmt.Errorf("%w: version %d, this build reads %d", ErrVersion, body[0], FormatVersion)
	}
	d := field.NewReader(slices.Clone(body), 1) // bounds and filters point into it
	m := &Map{Version: d.Uint32("version"), Rows: d.Uvarint("rows", math.MaxUint64)}
	n := d.Uvarint("columns", MaxColumns)
	if d.Err() != nil {
		return nil, fmt.Errorf("%w: its beginning", ErrInvalid)
	}
	m.columns = make([]columnZone, 0, n)
	for i := range n {
		c, ok := readColumn(&d, m.Rows)
		if !ok || m.Has(c.name) {
			return nil, fmt.Errorf("%w: column %d", ErrInvalid, i)
		}
		m.columns = append(m.columns, c)
	}
	if d.Left() != 0 {
		return nil, fmt.Errorf("%w: %d bytes too many", ErrInvalid, d.Left())
	}
	return m, nil
}

func readColumn(d *field.Reader, rows uint64) (columnZone, bool) {
	kind, known := codeKinds[d.Fixed8("kind")]
	flags := d.Fixed8("flags")
	c := columnZone{kind: kind, name: string(d.Sized("name", maxName)), def: d.Fixed64("definition"), nulls: d.Uvarint("nulls", rows)}
	if !known || flags&^allFlags != 0 || c.name == "" {
		return c, false
	}
	c.hasLow, c.hasHigh, c.lowCut, c.highCut = flags&flagLow != 0, flags&flagHigh != 0, flags&flagLowCut != 0, flags&flagHighCut != 0
	if c.kind == schema.Decimal {
		c.scale = int32(d.Fixed8("scale"))
	}
	if c.hasLow {
		c.low = readBound(d, c.kind)
	}
	if c.hasHigh {
		c.high = readBound(d, c.kind)
	}
	if blocks := d.Fixed8("blocks"); blocks > 0 {
		if blocks > maxFilter || !isIntegral(c.kind) && !isTextual(c.kind) {
			return c, false
		}
		c.filter = d.Take("filter", uint64(blocks)*blockLen)
	}
	ordered := !c.hasLow || !c.hasHigh || compareBounds(c.kind, &c.low, &c.high) <= 0
	return c, d.Err() == nil && ordered
}

func readBound(d *field.Reader, kind schema.Kind) (v boundValue) {
	switch kind {
	case schema.Uint64:
		v.u = d.Fixed64("bound")
	case schema.Float64:
		v.f = math.Float64frombits(d.Fixed64("bound"))
	case schema.Decimal:
		low := d.Fixed64("bound")
		v.d = decimal128.New(int64(d.Fixed64("bound")), low) //nolint:gosec // two's complement
	case schema.String, schema.Binary:
		v.s = d.Sized("bound", maxBound)
	default:
		v.i = d.Varint("bound")
	}
	return v
}
