package columnar

import (
	"encoding/binary"
	"math"
)

// ipcMessage is one message of a stream: its flatbuffer and the buffers that the flatbuffer describes.
type ipcMessage struct {
	meta []byte
	body []byte
}

// Message kinds: numbers of the Arrow format (Message.fbs).
const (
	headerSchema     = 1
	headerDictionary = 2
	headerBatch      = 3
)

// continuation starts every message since version 0.15 of the format. Older streams are rejected.
const continuation = 0xFFFFFFFF

// splitStream splits a stream into messages and checks the structure of each: a schema, dictionaries, one batch, the end.
// (https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format)
func splitStream(b []byte) ([]ipcMessage, error) {
	var parts []ipcMessage
	for done := false; ; {
		if len(b) == 0 && done {
			return parts, nil // a stream may also end without an end marker
		}
		if len(b) < 8 {
			return nil, invalidError("the stream ends within a message")
		}
		if binary.LittleEndian.Uint32(b) != continuation {
			return nil, invalidError("message %d does not begin with the continuation marker", len(parts))
		}
		n := binary.LittleEndian.Uint32(b[4:])
		b = b[8:]
		if n == 0 {
			switch {
			case !done:
				return nil, invalidError("the stream ends without a batch")
			case len(b) > 0:
				return nil, invalidError("%d bytes follow the end of the stream", len(b))
			}
			return parts, nil
		}
		if done {
			return nil, unsupportedError("more than one batch in a stream")
		}
		switch {
		case n > maxMetadata:
			return nil, tooLargeError("metadata of %d bytes, the limit is %d", n, maxMetadata)
		case uint64(n) > uint64(len(b)) || n%alignment != 0:
			return nil, invalidError("message %d: metadata of %d bytes", len(parts), n)
		}
		p := ipcMessage{meta: b[:n:n]}
		b = b[n:]
		kind, bodyLen, err := checkMessage(p.meta, len(b))
		if err != nil {
			return nil, err
		}
		p.body = b[:bodyLen:bodyLen]
		b = b[bodyLen:]
		switch {
		case (kind == headerSchema) != (len(parts) == 0):
			return nil, invalidError("message %d is of kind %d", len(parts), kind)
		case len(parts) > MaxFields:
			return nil, tooLargeError("more than %d dictionaries", MaxFields)
		}
		done = kind == headerBatch
		parts = append(parts, p)
	}
}

// checkMessage checks everything in a message's flatbuffer that Arrow's reader follows, copies or uses as an allocation size. It
// returns the message kind and the length of its body, which is at most available.
func checkMessage(meta []byte, available int) (kind uint8, bodyLen int, err error) {
	c := &flatChecker{b: meta, budget: 4*len(meta) + 4096}
	msg := c.readTable(c.followOffset(0, "root"), "message")
	length := int64(c.readScalar(msg, 3, 8))
	if length < 0 || length > int64(available) || length%alignment != 0 {
		c.keepError(invalidError("a message body of %d bytes, %d are there", length, available))
	}
	kind = uint8(c.readScalar(msg, 1, 1))
	header := c.childTable(msg, 2, "message header")
	c.keyValues(msg, 4, "message metadata")
	switch kind {
	case headerSchema:
		c.keyValues(header, 2, "schema metadata")
		c.checkChildren(header, 1, MaxDepth)
	case headerDictionary:
		if c.readScalar(header, 2, 1) != 0 {
			c.keepError(unsupportedError("delta dictionaries"))
		}
		c.checkBatch(c.childTable(header, 1, "dictionary"), length)
	case headerBatch:
		c.checkBatch(header, length)
	default:
		c.keepError(unsupportedError("messages of kind %d", kind))
	}
	return kind, int(length), c.err
}

// flatChecker walks a flatbuffer. It visits a table once per reference, so a budget bounds the walk and with it the bytes that a
// reader copies. Buffers that share parts or refer back to themselves (offsets wrap at 32 bits) exhaust the budget.
//
// After an error it reads tables without fields and vectors without elements, so its callers need not look at err.
type flatChecker struct {
	b      []byte
	budget int
	fields int
	err    error // the first
}

// flatTable is a table: its start position and its vtable.
type flatTable struct {
	pos    int
	vtable []byte // 16 bits for each field, 0 = absent
	size   int    // length of the table's own bytes
}

// keepError keeps the first error.
func (c *flatChecker) keepError(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (c *flatChecker) boundsError(what string) {
	c.keepError(invalidError("metadata: %s is outside of its bounds", what))
}

// spendBytes takes n bytes and a constant from the budget. It returns false if the budget is exhausted.
func (c *flatChecker) spendBytes(n int) bool {
	if c.budget -= n + 4; c.budget < 0 {
		c.keepError(tooLargeError("the metadata has too many parts"))
	}
	return c.err == nil
}

// followOffset returns the position that the offset at pos refers to, or -1 after an error.
func (c *flatChecker) followOffset(pos int, what string) int {
	if pos >= 0 && pos <= len(c.b)-4 {
		// Offsets only point forward, which rules out cycles.
		if off := int64(binary.LittleEndian.Uint32(c.b[pos:])); off >= 4 && off <= int64(len(c.b)-pos) {
			return pos + int(off)
		}
	}
	c.boundsError(what)
	return -1
}

func (c *flatChecker) readTable(pos int, what string) flatTable {
	if pos >= 0 && pos <= len(c.b)-4 {
		at := int64(pos) - int64(int32(binary.LittleEndian.Uint32(c.b[pos:])))
		if at >= 0 && at <= int64(len(c.b)-4) {
			n := int(binary.LittleEndian.Uint16(c.b[at:]))
			size := int(binary.LittleEndian.Uint16(c.b[at+2:]))
			if n >= 4 && n%2 == 0 && int(at)+n <= len(c.b) && size >= 4 && pos+size <= len(c.b) && c.spendBytes(size) {
				return flatTable{pos: pos, vtable: c.b[int(at)+4 : int(at)+n], size: size}
			}
		}
	}
	c.boundsError(what)
	return flatTable{}
}

// findTableSlot returns the position of field i of a table. It is 0 if the field is absent, and -1 if it does not lie inside the table
// with width bytes.
func (c *flatChecker) findTableSlot(t flatTable, i, width int) int {
	if 2*i+2 > len(t.vtable) {
		return 0
	}
	switch off := int(binary.LittleEndian.Uint16(t.vtable[2*i:])); {
	case off == 0:
		return 0
	case off < 4 || off+width > t.size:
		return -1
	default:
		return t.pos + off
	}
}

// readScalar returns a number of 1, 2, 4 or 8 bytes, or 0 if the field is absent. For a field outside its table it returns a
// number that every check rejects.
func (c *flatChecker) readScalar(t flatTable, i, width int) uint64 {
	pos := c.findTableSlot(t, i, width)
	switch {
	case pos < 0:
		return math.MaxUint64
	case pos == 0:
		return 0
	case width == 1:
		return uint64(c.b[pos])
	case width == 2:
		return uint64(binary.LittleEndian.Uint16(c.b[pos:]))
	case width == 4:
		return uint64(binary.LittleEndian.Uint32(c.b[pos:]))
	}
	return binary.LittleEndian.Uint64(c.b[pos:])
}

// childTable follows field i to a table, which must be present.
func (c *flatChecker) childTable(t flatTable, i int, what string) flatTable {
	pos := c.findTableSlot(t, i, 4)
	if pos <= 0 {
		c.boundsError(what)
		return flatTable{}
	}
	return c.readTable(c.followOffset(pos, what), what)
}

// optionalTable follows field i to a table. An absent one has no fields.
func (c *flatChecker) optionalTable(t flatTable, i int, what string) flatTable {
	if c.findTableSlot(t, i, 4) == 0 {
		return flatTable{}
	}
	return c.childTable(t, i, what)
}

// readVector follows field i to a vector of elements of width bytes. An absent vector is empty.
func (c *flatChecker) readVector(t flatTable, i, width int, what string) (pos, n int) {
	if pos = c.findTableSlot(t, i, 4); pos == 0 {
		return 0, 0
	}
	if pos > 0 {
		pos = c.followOffset(pos, what)
	}
	if pos >= 0 && pos <= len(c.b)-4 {
		count := int64(binary.LittleEndian.Uint32(c.b[pos:]))
		pos += 4
		if count*int64(width) <= int64(len(c.b)-pos) && c.spendBytes(int(count)*width) {
			return pos, int(count)
		}
	}
	c.boundsError(what)
	return 0, 0
}

// checkString checks the string of field i.
func (c *flatChecker) checkString(t flatTable, i int, what string) { c.readVector(t, i, 1, what) }

// keyValues checks the vector of KeyValue tables of field i.
func (c *flatChecker) keyValues(t flatTable, i int, what string) {
	pos, n := c.readVector(t, i, 4, what)
	for j := 0; j < n && c.err == nil; j++ {
		kv := c.readTable(c.followOffset(pos+4*j, what), what)
		c.checkString(kv, 0, what)
		c.checkString(kv, 1, what)
	}
}

// checkChildren checks a vector of fields and their descendants.
func (c *flatChecker) checkChildren(t flatTable, slot, depth int) {
	pos, n := c.readVector(t, slot, 4, "fields")
	if c.fields += n; c.fields > MaxFields {
		c.keepError(tooLargeError("more than %d fields", MaxFields))
	}
	if n > 0 && depth == 0 {
		c.keepError(tooLargeError("fields nested more than %d deep", MaxDepth))
	}
	for i := 0; i < n && c.err == nil; i++ {
		f := c.readTable(c.followOffset(pos+4*i, "field"), "field")
		c.checkString(f, 0, "field")
		c.keyValues(f, 6, "field")
		c.fieldType(f)
		c.checkChildren(f, 5, depth-1)
	}
}

// Types of the Arrow format (Schema.fbs) that need checks of their own.
const (
	flatTimestamp     = 10
	flatUnion         = 14
	flatLargeList     = 21
	timestampTimezone = 1
)

func (c *flatChecker) fieldType(f flatTable) {
	kind := c.readScalar(f, 2, 1)
	// Types above large lists are run-end encoding, views and additions of later versions.
	if kind == 0 || kind == flatUnion || kind > flatLargeList {
		c.keepError(unsupportedError("fields of type %d", kind))
	}
	t := c.childTable(f, 3, "type")
	if kind == flatTimestamp {
		c.checkString(t, timestampTimezone, "time zone")
	}
	c.optionalTable(c.optionalTable(f, 4, "dictionary"), 1, "dictionary index")
}

// checkBatch checks the description of a batch, or of a dictionary's values, with a body of bodyLen bytes.
func (c *flatChecker) checkBatch(t flatTable, bodyLen int64) {
	if rows := int64(c.readScalar(t, 0, 8)); rows < 0 || rows > math.MaxInt32 {
		c.keepError(invalidError("a batch of %d rows", rows))
	}
	if c.findTableSlot(t, 3, 4) != 0 {
		c.keepError(unsupportedError("compressed batches"))
	}
	if _, n := c.readVector(t, 4, 8, "views"); n > 0 {
		c.keepError(unsupportedError("views"))
	}
	c.eachPair(t, 1, "nodes", func(length, nulls int64) {
		if length < 0 || length > math.MaxInt32 || nulls < 0 || nulls > length {
			c.keepError(invalidError("an array of %d values with %d nulls", length, nulls))
		}
	})
	c.eachPair(t, 2, "buffers", func(off, length int64) {
		if off < 0 || length < 0 || off%alignment != 0 || off > bodyLen || length > bodyLen-off {
			c.keepError(invalidError("a buffer of %d bytes at %d in a body of %d", length, off, bodyLen))
		}
	})
}

// eachPair calls visit for each element of a vector of pairs of numbers.
func (c *flatChecker) eachPair(t flatTable, slot int, what string, visit func(a, b int64)) {
	pos, n := c.readVector(t, slot, 16, what)
	for i := 0; i < n && c.err == nil; i++ {
		pair := c.b[pos+16*i:]
		visit(int64(binary.LittleEndian.Uint64(pair)), int64(binary.LittleEndian.Uint64(pair[8:])))
	}
}
