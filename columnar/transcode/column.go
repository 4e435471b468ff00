package transcode

import (
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/schema"
)

// column is the buffers of a column that grows by a row at a time. Arrow's builders take twice the time: they check for room and for
// nulls at every value. Of the slices only those of the column's kind are used.
type column struct {
	typ      *schema.Type
	nullable bool // of the parts of structs: what stands below a null struct
	n        int  // values
	nulls    int
	valid    []byte // a bit for each value; nil as long as there are no nulls
	spare    []byte // memory for valid

	bits    []byte    // Bool
	i32     []int32   // Int32, Date, codes of a dictionary
	i64     []int64   // Int64, Uint64, Timestamp
	f64     []float64 // Float64
	dec     []decimal128.Num
	offsets []int32 // String, Binary, List, Map: one more than values
	values  []byte
	dict    *dictionary
	// children are the column of a List's elements, the keys and values of a Map, the fields of a Struct.
	children []*column
	// times are the formats of a Timestamp or a Date.
	times []timeFormat
	// fallback appends the default of a struct's field; nil without one.
	fallback func(*column)
	// shape is what was learned of a struct as it stands in JSON, found what was found of its fields that have aliases; both are made when
	// they are needed.
	shape *shape
	found []place
	// full is set when a value was left out because the column had no room for it: the batch is too large.
	full bool
}

var stringType = schema.Type{Kind: schema.String}

func newColumn(t *schema.Type, nullable bool) *column {
	c := &column{typ: t, nullable: nullable}
	switch t.Kind {
	case schema.String, schema.Binary:
		if t.Kind == schema.String && t.Dictionary {
			c.dict = newDictionary()
			return c
		}
		c.offsets = []int32{0}
	case schema.Timestamp, schema.Date:
		c.times = timeFormats(t)
	case schema.List:
		c.offsets = []int32{0}
		c.children = []*column{newColumn(t.Elem, true)}
	case schema.Map:
		c.offsets = []int32{0}
		c.children = []*column{newColumn(&stringType, false), newColumn(t.Elem, true)}
	case schema.Struct:
		c.children = make([]*column, len(t.Fields))
		for i := range t.Fields {
			c.children[i] = newColumn(&t.Fields[i].Type, t.Fields[i].Nullable)
			c.children[i].fallback = fallbackOf(&t.Fields[i])
		}
	default:
	}
	return c
}

// reset empties the column.
func (c *column) reset() {
	c.n, c.nulls, c.full = 0, 0, false
	c.spare, c.valid = kept(c.validMemory()), nil
	c.bits, c.i32, c.i64, c.f64, c.dec = kept(c.bits), kept(c.i32), kept(c.i64), kept(c.f64), kept(c.dec)
	if c.offsets != nil {
		c.offsets = append(kept(c.offsets), 0)
	}
	c.values = kept(c.values)
	if c.dict != nil {
		c.dict.reset()
	}
	for _, child := range c.children {
		child.reset()
	}
}

// validMemory is the memory of the bitmap of nulls, in use or not.
func (c *column) validMemory() []byte {
	if c.valid != nil {
		return c.valid
	}
	return c.spare
}

// ok makes the last value, which has just been written, count as a value that is there.
func (c *column) ok() {
	if c.valid != nil {
		c.setValid(1)
	}
	c.n++
}

func (c *column) setValid(bit byte) {
	if c.n&7 == 0 {
		c.valid = append(c.valid, bit)
		return
	}
	c.valid[c.n>>3] |= bit << (c.n & 7)
}

// null is ok for a null.
func (c *column) null() {
	if c.valid == nil {
		c.valid = slices.Grow(c.spare[:0], c.n/8+64)[:(c.n+7)/8]
		for i := range c.valid {
			c.valid[i] = 0xFF
		}
		if c.n&7 != 0 {
			c.valid[c.n>>3] = 1<<(c.n&7) - 1
		}
	}
	c.setValid(0)
	c.nulls++
	c.n++
}

func (c *column) appendNull() {
	c.blank()
	c.null()
}

// appendEmpty appends what stands for nothing where there can't be a null.
func (c *column) appendEmpty() {
	if c.dict != nil {
		c.appendString(nil)
		return
	}
	c.blank()
	c.ok()
}

// blank writes the buffers of a value that is null or empty.
func (c *column) blank() {
	switch c.typ.Kind {
	case schema.Bool:
		c.bit(0)
	case schema.Int32, schema.Date:
		c.i32 = append(c.i32, 0)
	case schema.Int64, schema.Uint64, schema.Timestamp:
		c.i64 = append(c.i64, 0)
	case schema.Float64:
		c.f64 = append(c.f64, 0)
	case schema.Decimal:
		c.dec = append(c.dec, decimal128.Num{})
	case schema.String, schema.Binary, schema.List, schema.Map:
		if c.dict != nil {
			c.i32 = append(c.i32, 0)
			return
		}
		c.offsets = append(c.offsets, c.offsets[len(c.offsets)-1])
	case schema.Struct:
		for _, child := range c.children {
			if child.nullable {
				child.appendNull()
			} else {
				child.appendEmpty()
			}
		}
	default:
	}
}

func (c *column) bit(v byte) {
	if c.n&7 == 0 {
		c.bits = append(c.bits, v)
		return
	}
	c.bits[c.n>>3] |= v << (c.n & 7)
}

func (c *column) appendBool(v bool) {
	var b byte
	if v {
		b = 1
	}
	c.bit(b)
	c.ok()
}

func (c *column) appendInt32(v int32) {
	c.i32 = append(c.i32, v)
	c.ok()
}

// appendInt64 is for Int64, Timestamp, and for the bits of a Uint64.
func (c *column) appendInt64(v int64) {
	c.i64 = append(c.i64, v)
	c.ok()
}

func (c *column) appendFloat64(v float64) {
	c.f64 = append(c.f64, v)
	c.ok()
}

func (c *column) appendDecimal(v decimal128.Num) {
	c.dec = append(c.dec, v)
	c.ok()
}

// appendString is for String, with a dictionary or without, and for Binary. Text must be UTF-8.
func (c *column) appendString(v []byte) {
	if c.dict != nil {
		code, ok := c.dict.code(v)
		c.full = c.full || !ok
		c.i32 = append(c.i32, code)
		c.ok()
		return
	}
	if len(v) > math.MaxInt32-len(c.values) {
		c.full = true
		v = nil
	}
	c.values = append(c.values, v...)
	c.offsets = append(c.offsets, int32(len(c.values)))
	c.ok()
}

// Texts of up to short bytes are copied in steps of a fixed length, which is faster than to look at how long they are.
const (
	step  = 64
	short = 2 * step
)

// copyStep copies in pieces that take no call: for longer ones the compiler fears that they overlap.
func copyStep(to, from *[step]byte) {
	*(*[16]byte)(to[:]) = [16]byte(from[:])
	*(*[16]byte)(to[16:]) = [16]byte(from[16:])
	*(*[16]byte)(to[32:]) = [16]byte(from[32:])
	*(*[16]byte)(to[48:]) = [16]byte(from[48:])
}

// appendPart is appendString for b[at:end]. More bytes may be copied than the text has: the next text overwrites them.
func (c *column) appendPart(b []byte, at, end int) {
	n, size := len(c.values), end-at
	if c.dict != nil || size > short || at+short > len(b) || n+short > cap(c.values) || n > math.MaxInt32-short {
		c.appendString(b[at:end])
		return
	}
	from, to := b[at:at+short], c.values[n:n+short]
	copyStep((*[step]byte)(to), (*[step]byte)(from))
	if size > step {
		copyStep((*[step]byte)(to[step:]), (*[step]byte)(from[step:]))
	}
	c.values = c.values[:n+size]
	c.offsets = append(c.offsets, int32(len(c.values)))
	c.ok()
}

// appendList ends a list, or a map, to whose children the elements were appended.
func (c *column) appendList() {
	n := c.children[0].n
	if n > math.MaxInt32-1 {
		c.full = true
		n = int(c.offsets[len(c.offsets)-1])
	}
	c.offsets = append(c.offsets, int32(n))
	c.ok()
}

// appendStruct ends a struct, to each of whose children a value was appended.
func (c *column) appendStruct() { c.ok() }

// truncate takes back all but the first n values, and whatever was appended to the children of one that was not ended.
func (c *column) truncate(n int) {
	dropped := c.n - n
	if c.valid != nil && dropped > 0 {
		for i := n; i < c.n; i++ {
			if c.valid[i>>3]&(1<<(i&7)) == 0 {
				c.nulls--
			}
		}
		c.valid = cutBits(c.valid, n)
	}
	c.n = n
	switch c.typ.Kind {
	case schema.Bool:
		c.bits = cutBits(c.bits, n)
	case schema.Int32, schema.Date:
		c.i32 = c.i32[:n]
	case schema.Int64, schema.Uint64, schema.Timestamp:
		c.i64 = c.i64[:n]
	case schema.Float64:
		c.f64 = c.f64[:n]
	case schema.Decimal:
		c.dec = c.dec[:n]
	case schema.String, schema.Binary:
		if c.dict != nil {
			c.i32 = c.i32[:n] // a text that nobody refers to may stay in the dictionary
			return
		}
		c.offsets = c.offsets[:n+1]
		c.values = c.values[:c.offsets[n]]
	case schema.List, schema.Map:
		c.offsets = c.offsets[:n+1]
		for _, child := range c.children {
			child.truncate(int(c.offsets[n]))
		}
	case schema.Struct:
		for _, child := range c.children {
			child.truncate(n)
		}
	default:
	}
}

func cutBits(b []byte, n int) []byte {
	b = b[:(n+7)/8]
	if n&7 != 0 {
		b[n>>3] &= 1<<(n&7) - 1
	}
	return b
}

// tooFull reports whether a value was left out for lack of room, here or below.
func (c *column) tooFull() bool {
	if c.full {
		return true
	}
	for _, child := range c.children {
		if child.tooFull() {
			return true
		}
	}
	return false
}

// size is the bytes that the column's buffers hold.
func (c *column) size() int64 {
	s := int64(len(c.valid)+len(c.bits)+4*len(c.i32)+8*len(c.i64)+8*len(c.f64)+16*len(c.dec)+4*len(c.offsets)) + int64(len(c.values))
	if c.dict != nil {
		s += c.dict.size()
	}
	for _, child := range c.children {
		s += child.size()
	}
	return s
}
