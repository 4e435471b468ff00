package column

import (
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/schema"
	"scribe/columnar/transcode/jsonscan"
)

// Buffer holds the buffers of a column that grows one row at a time. Arrow's builders take twice the time, because they check for
// capacity and nulls at every value. Only the slices for the column's kind are used.
type Buffer struct {
	Type     *schema.Type
	Nullable bool // for struct fields: below a null struct the value is null if set, else empty
	Len      int  // number of values
	nulls    int
	valid    []byte // one bit per value; nil while there are no nulls
	spare    []byte // memory for valid

	bits    []byte  // Bool
	i32     []int32 // Int32, Date, codes of a dictionary
	i64     []int64 // Int64, Uint64, Timestamp, the bits of Float64
	dec     []decimal128.Num
	offsets []int32 // String, Binary, List, Map: one more than values
	values  []byte
	dict    *textDictionary
	// Children are the element column of a List, the key and value columns of a Map, or the field columns of a Struct.
	Children []*Buffer
	// Times are the formats of a Timestamp or a Date.
	Times []timeFormat
	// AppendDefault appends the default of a struct's field; nil if it has none.
	AppendDefault func(*Buffer)
	// Memo is state that a format's reader keeps about the values of a struct.
	Memo any
	// full is set if a value was omitted because the column reached its maximum size: the batch is too large.
	full bool
}

// Defaults returns the function that appends a field's default, or nil if it has none.
type Defaults func(*schema.Field) func(*Buffer)

// NewBuffer returns an empty column of a type. It calls defaults for the fields of structs.
func NewBuffer(t *schema.Type, nullable bool, defaults Defaults) *Buffer {
	c := &Buffer{Type: t, Nullable: nullable}
	switch t.Kind {
	case schema.String, schema.Binary:
		if t.Kind == schema.String && t.Dictionary {
			c.dict = newDictionary()
			return c
		}
		c.offsets = []int32{0}
	case schema.Timestamp, schema.Date:
		c.Times = timeFormats(t)
	case schema.List:
		c.offsets = []int32{0}
		c.Children = []*Buffer{NewBuffer(t.Elem, true, defaults)}
	case schema.Map:
		c.offsets = []int32{0}
		c.Children = []*Buffer{NewBuffer(&schema.Type{Kind: schema.String}, false, nil), NewBuffer(t.Elem, true, defaults)}
	case schema.Struct:
		c.Children = make([]*Buffer, len(t.Fields))
		for i := range t.Fields {
			c.Children[i] = NewBuffer(&t.Fields[i].Type, t.Fields[i].Nullable, defaults)
			c.Children[i].AppendDefault = defaults(&t.Fields[i])
		}
	default:
	}
	return c
}

// Reset empties the column.
func (c *Buffer) Reset() {
	c.Len, c.nulls, c.full = 0, 0, false
	c.spare, c.valid = keepMemory(c.validMemory()), nil
	c.bits, c.i32, c.i64, c.dec = keepMemory(c.bits), keepMemory(c.i32), keepMemory(c.i64), keepMemory(c.dec)
	if c.offsets != nil {
		c.offsets = append(keepMemory(c.offsets), 0)
	}
	c.values = keepMemory(c.values)
	if c.dict != nil {
		c.dict.reset()
	}
	for _, child := range c.Children {
		child.Reset()
	}
}

// validMemory returns the memory of the validity bitmap, in use or spare.
func (c *Buffer) validMemory() []byte {
	if c.valid != nil {
		return c.valid
	}
	return c.spare
}

// countValue counts the value just written as valid.
func (c *Buffer) countValue() {
	if c.valid != nil {
		c.setValid(1)
	}
	c.Len++
}

func (c *Buffer) setValid(bit byte) {
	if c.Len&7 == 0 {
		c.valid = append(c.valid, bit)
		return
	}
	c.valid[c.Len>>3] |= bit << (c.Len & 7)
}

// countNull counts the value just written as null.
func (c *Buffer) countNull() {
	if c.valid == nil {
		c.valid = slices.Grow(c.spare[:0], c.Len/8+64)[:(c.Len+7)/8]
		for i := range c.valid {
			c.valid[i] = 0xFF
		}
		if c.Len&7 != 0 {
			c.valid[c.Len>>3] = 1<<(c.Len&7) - 1
		}
	}
	c.setValid(0)
	c.nulls++
	c.Len++
}

// AppendNull appends a null.
func (c *Buffer) AppendNull() {
	c.appendBlank()
	c.countNull()
}

// appendEmpty appends an empty value where null is not allowed.
func (c *Buffer) appendEmpty() {
	if c.dict != nil {
		c.AppendString(nil)
		return
	}
	c.appendBlank()
	c.countValue()
}

// appendBlank writes the buffers of a null or empty value.
func (c *Buffer) appendBlank() {
	switch c.Type.Kind {
	case schema.Bool:
		c.appendBit(0)
	case schema.Int32, schema.Date:
		c.i32 = append(c.i32, 0)
	case schema.Int64, schema.Uint64, schema.Timestamp, schema.Float64:
		c.i64 = append(c.i64, 0)
	case schema.Decimal:
		c.dec = append(c.dec, decimal128.Num{})
	case schema.String, schema.Binary, schema.List, schema.Map:
		if c.dict != nil {
			c.i32 = append(c.i32, 0)
			return
		}
		c.offsets = append(c.offsets, c.offsets[len(c.offsets)-1])
	case schema.Struct:
		for _, child := range c.Children {
			if child.Nullable {
				child.AppendNull()
			} else {
				child.appendEmpty()
			}
		}
	default:
	}
}

func (c *Buffer) appendBit(v byte) {
	if c.Len&7 == 0 {
		c.bits = append(c.bits, v)
		return
	}
	c.bits[c.Len>>3] |= v << (c.Len & 7)
}

// AppendBool appends to a column of kind Bool.
func (c *Buffer) AppendBool(v bool) {
	var b byte
	if v {
		b = 1
	}
	c.appendBit(b)
	c.countValue()
}

// AppendInt32 appends to a column of kind Int32 or Date.
func (c *Buffer) AppendInt32(v int32) {
	c.i32 = append(c.i32, v)
	c.countValue()
}

// AppendInt64 appends to a column of kind Int64, Timestamp, or, as its bits, Uint64 or Float64.
func (c *Buffer) AppendInt64(v int64) {
	c.i64 = append(c.i64, v)
	c.countValue()
}

// AppendFloat64 appends to a column of kind Float64.
func (c *Buffer) AppendFloat64(v float64) { c.AppendInt64(int64(math.Float64bits(v))) }

// AppendDecimal appends to a column of kind Decimal, in the scale of the type.
func (c *Buffer) AppendDecimal(v decimal128.Num) {
	c.dec = append(c.dec, v)
	c.countValue()
}

// AppendString appends to a column of kind String, with or without a dictionary, or Binary. Text must be UTF-8.
func (c *Buffer) AppendString(v []byte) {
	if c.dict != nil {
		code, ok := c.dict.codeOf(v)
		c.full = c.full || !ok
		c.i32 = append(c.i32, code)
		c.countValue()
		return
	}
	if len(v) > math.MaxInt32-len(c.values) {
		c.full = true
		v = nil
	}
	c.values = append(c.values, v...)
	c.offsets = append(c.offsets, int32(len(c.values)))
	c.countValue()
}

// Texts of up to short bytes are copied in steps of a fixed length, which is faster than copying their exact length.
const (
	step  = 64
	short = 2 * step
)

// copyStep copies in pieces that compile without a call. For longer pieces the compiler must assume an overlap.
func copyStep(to, from *[step]byte) {
	*(*[16]byte)(to[:]) = [16]byte(from[:])
	*(*[16]byte)(to[16:]) = [16]byte(from[16:])
	*(*[16]byte)(to[32:]) = [16]byte(from[32:])
	*(*[16]byte)(to[48:]) = [16]byte(from[48:])
}

// AppendPart is AppendString for b[at:end]. It may copy more bytes than the text has; the next text overwrites them.
func (c *Buffer) AppendPart(b []byte, at, end int) {
	n, size := len(c.values), end-at
	if c.dict != nil || size > short || at+short > len(b) || n+short > cap(c.values) || n > math.MaxInt32-short {
		c.AppendString(b[at:end])
		return
	}
	from, to := b[at:at+short], c.values[n:n+short]
	copyStep((*[step]byte)(to), (*[step]byte)(from))
	if size > step {
		copyStep((*[step]byte)(to[step:]), (*[step]byte)(from[step:]))
	}
	c.values = c.values[:n+size]
	c.offsets = append(c.offsets, int32(len(c.values)))
	c.countValue()
}

// AppendList ends a list or map whose elements were appended to its children.
func (c *Buffer) AppendList() {
	n := c.Children[0].Len
	if n > math.MaxInt32-1 {
		c.full = true
		n = int(c.offsets[len(c.offsets)-1])
	}
	c.offsets = append(c.offsets, int32(n))
	c.countValue()
}

// AppendStruct ends a struct. One value must have been appended to each child.
func (c *Buffer) AppendStruct() { c.countValue() }

// Truncate removes all but the first n values, and any elements appended to the children of an unfinished value.
func (c *Buffer) Truncate(n int) {
	dropped := c.Len - n
	if c.valid != nil && dropped > 0 {
		for i := n; i < c.Len; i++ {
			if c.valid[i>>3]&(1<<(i&7)) == 0 {
				c.nulls--
			}
		}
		c.valid = cutBits(c.valid, n)
	}
	c.Len = n
	switch c.Type.Kind {
	case schema.Bool:
		c.bits = cutBits(c.bits, n)
	case schema.Int32, schema.Date:
		c.i32 = c.i32[:n]
	case schema.Int64, schema.Uint64, schema.Timestamp, schema.Float64:
		c.i64 = c.i64[:n]
	case schema.Decimal:
		c.dec = c.dec[:n]
	case schema.String, schema.Binary:
		if c.dict != nil {
			c.i32 = c.i32[:n] // an unused text may remain in the dictionary
			return
		}
		c.offsets = c.offsets[:n+1]
		c.values = c.values[:c.offsets[n]]
	case schema.List, schema.Map:
		c.offsets = c.offsets[:n+1]
		for _, child := range c.Children {
			child.Truncate(int(c.offsets[n]))
		}
	case schema.Struct:
		for _, child := range c.Children {
			child.Truncate(n)
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

// IsFull reports whether a value was omitted because this column or one below it reached its maximum size.
func (c *Buffer) IsFull() bool {
	if c.full {
		return true
	}
	for _, child := range c.Children {
		if child.IsFull() {
			return true
		}
	}
	return false
}

// Bytes returns the total size of the column's buffers in bytes.
func (c *Buffer) Bytes() int64 {
	s := int64(len(c.valid)+len(c.bits)+4*len(c.i32)+8*len(c.i64)+16*len(c.dec)+4*len(c.offsets)) + int64(len(c.values))
	if c.dict != nil {
		s += c.dict.memoryBytes()
	}
	for _, child := range c.Children {
		s += child.Bytes()
	}
	return s
}

// AppendAbsent appends the default or null for a struct field without a value. If the field has neither, it returns why.
func (c *Buffer) AppendAbsent() (why string) {
	switch {
	case c.AppendDefault != nil:
		c.AppendDefault(c)
	case c.Nullable:
		c.AppendNull()
	default:
		return whyAbsent
	}
	return ""
}

// Text returns value i of a column of strings without a dictionary.
func (c *Buffer) Text(i int) []byte { return c.values[c.offsets[i]:c.offsets[i+1]] }

// AppendUnescaped appends a JSON string with escapes to a column of texts.
func (c *Buffer) AppendUnescaped(raw []byte) jsonscan.Fault {
	if c.dict != nil || len(raw) > math.MaxInt32-len(c.values) {
		var memory []byte
		if c.dict != nil {
			memory = c.values[:0] // unused in a column with a dictionary
		}
		text, fault := jsonscan.AppendUnescaped(memory, raw)
		if fault.OK() {
			c.AppendString(text)
		}
		if c.dict != nil {
			c.values = text[:0]
		}
		return fault
	}
	n := len(c.values)
	values, fault := jsonscan.AppendUnescaped(c.values, raw) // the result is not longer than raw
	if !fault.OK() {
		c.values = values[:n]
		return fault
	}
	c.values = values
	c.offsets = append(c.offsets, int32(len(values)))
	c.countValue()
	return fault
}

// AppendWord appends a value as a word: a number, a time, 0 or 1 for a bool, or the bits of a float.
func (c *Buffer) AppendWord(val int64) {
	switch c.Type.Kind {
	case schema.Bool:
		c.AppendBool(val != 0)
	case schema.Int32, schema.Date:
		c.AppendInt32(int32(val))
	default:
		c.AppendInt64(val)
	}
}

// HasNulls reports whether any value is null.
func (c *Buffer) HasNulls() bool { return c.nulls > 0 }

// RepeatFirst returns a function that appends the column's first value to columns of the same type. It returns nil for nested
// types.
func (c *Buffer) RepeatFirst() func(*Buffer) {
	switch c.Type.Kind {
	case schema.Bool:
		return func(to *Buffer) { to.AppendBool(c.bits[0]&1 != 0) }
	case schema.Int32, schema.Date:
		return func(to *Buffer) { to.AppendInt32(c.i32[0]) }
	case schema.Int64, schema.Uint64, schema.Timestamp, schema.Float64:
		return func(to *Buffer) { to.AppendInt64(c.i64[0]) }
	case schema.Decimal:
		return func(to *Buffer) { to.AppendDecimal(c.dec[0]) }
	case schema.String, schema.Binary:
		value := c.values
		if c.dict != nil {
			value = c.dict.values
		}
		return func(to *Buffer) { to.AppendString(value) }
	default:
		return nil
	}
}
