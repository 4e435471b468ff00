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
	root, ok := c.followOffset(0)
	if !ok {
		return 0, 0, c.boundsError("root")
	}
	msg, ok := c.readTable(root)
	if !ok {
		return 0, 0, c.boundsError("message")
	}
	length := int64(c.readScalar(msg, 3, 8))
	if length < 0 || length > int64(available) || length%alignment != 0 {
		return 0, 0, invalidError("a message body of %d bytes, %d are there", length, available)
	}
	kind = uint8(c.readScalar(msg, 1, 1))
	header, ok := c.childTable(msg, 2)
	if !ok {
		return 0, 0, c.boundsError("message header")
	}
	if !c.keyValues(msg, 4) {
		return 0, 0, c.boundsError("message metadata")
	}
	switch kind {
	case headerSchema:
		err = c.checkSchema(header)
	case headerDictionary:
		if c.readScalar(header, 2, 1) != 0 {
			return 0, 0, unsupportedError("delta dictionaries")
		}
		data, ok := c.childTable(header, 1)
		if !ok {
			return 0, 0, c.boundsError("dictionary")
		}
		err = c.checkBatch(data, length)
	case headerBatch:
		err = c.checkBatch(header, length)
	default:
		err = unsupportedError("messages of kind %d", kind)
	}
	return kind, int(length), err
}

// flatChecker walks a flatbuffer. It visits a table once per reference, so a budget bounds the walk and with it the bytes that a
// reader copies. Buffers that share parts or refer back to themselves (offsets wrap at 32 bits) exhaust the budget.
type flatChecker struct {
	b      []byte
	budget int
	fields int
	over   bool
}

// flatTable is a table: its start position and its vtable.
type flatTable struct {
	pos    int
	vtable []byte // 16 bits for each field, 0 = absent
	size   int    // length of the table's own bytes
}

func (c *flatChecker) boundsError(what string) error {
	if c.over {
		return tooLargeError("the metadata has too many parts")
	}
	return invalidError("metadata: %s is outside of its bounds", what)
}

// spendBytes takes n bytes and a constant from the budget. It returns false if the budget is exhausted.
func (c *flatChecker) spendBytes(n int) bool {
	c.budget -= n + 4
	if c.budget < 0 {
		c.over = true
	}
	return !c.over
}

// followOffset returns the position that the offset at pos refers to.
func (c *flatChecker) followOffset(pos int) (int, bool) {
	if pos < 0 || pos > len(c.b)-4 {
		return 0, false
	}
	off := int64(binary.LittleEndian.Uint32(c.b[pos:]))
	// Offsets only point forward, which rules out cycles.
	if off < 4 || off > int64(len(c.b)-pos) {
		return 0, false
	}
	return pos + int(off), true
}

func (c *flatChecker) readTable(pos int) (flatTable, bool) {
	if pos < 0 || pos > len(c.b)-4 {
		return flatTable{}, false
	}
	at := int64(pos) - int64(int32(binary.LittleEndian.Uint32(c.b[pos:])))
	if at < 0 || at > int64(len(c.b)-4) {
		return flatTable{}, false
	}
	n := int(binary.LittleEndian.Uint16(c.b[at:]))
	size := int(binary.LittleEndian.Uint16(c.b[at+2:]))
	if n < 4 || n%2 != 0 || int(at)+n > len(c.b) || size < 4 || pos+size > len(c.b) {
		return flatTable{}, false
	}
	return flatTable{pos: pos, vtable: c.b[int(at)+4 : int(at)+n], size: size}, c.spendBytes(size)
}

// findSlot returns the position of field i of a table, whether it is present, and whether it lies inside the table with width
// bytes.
func (c *flatChecker) findSlot(t flatTable, i, width int) (pos int, present, ok bool) {
	if 2*i+2 > len(t.vtable) {
		return 0, false, true
	}
	off := int(binary.LittleEndian.Uint16(t.vtable[2*i:]))
	if off == 0 {
		return 0, false, true
	}
	if off < 4 || off+width > t.size {
		return 0, true, false
	}
	return t.pos + off, true, true
}

// readScalar returns a number of 1, 2, 4 or 8 bytes, or 0 if the field is absent. For a field outside its table it returns a
// number that every check rejects.
func (c *flatChecker) readScalar(t flatTable, i, width int) uint64 {
	pos, present, ok := c.findSlot(t, i, width)
	switch {
	case !ok:
		return math.MaxUint64
	case !present:
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
func (c *flatChecker) childTable(t flatTable, i int) (flatTable, bool) {
	pos, present, ok := c.findSlot(t, i, 4)
	if !ok || !present {
		return flatTable{}, false
	}
	if pos, ok = c.followOffset(pos); !ok {
		return flatTable{}, false
	}
	return c.readTable(pos)
}

// readVector follows field i to a vector of elements of width bytes. An absent vector is empty.
func (c *flatChecker) readVector(t flatTable, i, width int) (pos, n int, ok bool) {
	pos, present, ok := c.findSlot(t, i, 4)
	if !ok || !present {
		return 0, 0, ok
	}
	if pos, ok = c.followOffset(pos); !ok || pos > len(c.b)-4 {
		return 0, 0, false
	}
	count := int64(binary.LittleEndian.Uint32(c.b[pos:]))
	pos += 4
	if count*int64(width) > int64(len(c.b)-pos) {
		return 0, 0, false
	}
	return pos, int(count), c.spendBytes(int(count) * width)
}

// checkString checks the string of field i.
func (c *flatChecker) checkString(t flatTable, i int) bool {
	_, _, ok := c.readVector(t, i, 1)
	return ok
}

// keyValues checks the vector of KeyValue tables of field i.
func (c *flatChecker) keyValues(t flatTable, i int) bool {
	pos, n, ok := c.readVector(t, i, 4)
	if !ok {
		return false
	}
	for j := range n {
		at, ok := c.followOffset(pos + 4*j)
		if !ok {
			return false
		}
		kv, ok := c.readTable(at)
		if !ok || !c.checkString(kv, 0) || !c.checkString(kv, 1) {
			return false
		}
	}
	return true
}

func (c *flatChecker) checkSchema(t flatTable) error {
	if !c.keyValues(t, 2) {
		return c.boundsError("schema metadata")
	}
	return c.checkChildren(t, 1, MaxDepth)
}

// checkChildren checks a vector of fields and their descendants.
func (c *flatChecker) checkChildren(t flatTable, slot, depth int) error {
	pos, n, ok := c.readVector(t, slot, 4)
	if !ok {
		return c.boundsError("fields")
	}
	if c.fields += n; c.fields > MaxFields {
		return tooLargeError("more than %d fields", MaxFields)
	}
	if n > 0 && depth == 0 {
		return tooLargeError("fields nested more than %d deep", MaxDepth)
	}
	for i := range n {
		at, ok := c.followOffset(pos + 4*i)
		if !ok {
			return c.boundsError("field")
		}
		f, ok := c.readTable(at)
		if !ok || !c.checkString(f, 0) || !c.keyValues(f, 6) {
			return c.boundsError("field")
		}
		if err := c.fieldType(f); err != nil {
			return err
		}
		if err := c.checkChildren(f, 5, depth-1); err != nil {
			return err
		}
	}
	return nil
}

// Types of the Arrow format (Schema.fbs) that need checks of their own.
const (
	flatTimestamp     = 10
	flatUnion         = 14
	flatLargeList     = 21
	timestampTimezone = 1
)

func (c *flatChecker) fieldType(f flatTable) error {
	kind := c.readScalar(f, 2, 1)
	// Types above large lists are run-end encoding, views and additions of later versions.
	if kind == 0 || kind == flatUnion || kind > flatLargeList {
		return unsupportedError("fields of type %d", kind)
	}
	t, ok := c.childTable(f, 3)
	if !ok {
		return c.boundsError("type")
	}
	if kind == flatTimestamp && !c.checkString(t, timestampTimezone) {
		return c.boundsError("time zone")
	}
	if _, present, ok := c.findSlot(f, 4, 4); !ok {
		return c.boundsError("dictionary")
	} else if present {
		d, ok := c.childTable(f, 4)
		if !ok {
			return c.boundsError("dictionary")
		}
		if _, present, ok := c.findSlot(d, 1, 4); !ok {
			return c.boundsError("dictionary index")
		} else if present {
			if _, ok := c.childTable(d, 1); !ok {
				return c.boundsError("dictionary index")
			}
		}
	}
	return nil
}

// checkBatch checks the description of a batch, or of a dictionary's values, with a body of bodyLen bytes.
func (c *flatChecker) checkBatch(t flatTable, bodyLen int64) error {
	if rows := int64(c.readScalar(t, 0, 8)); rows < 0 || rows > math.MaxInt32 {
		return invalidError("a batch of %d rows", rows)
	}
	if _, present, ok := c.findSlot(t, 3, 4); !ok || present {
		return unsupportedError("compressed batches")
	}
	if _, n, ok := c.readVector(t, 4, 8); !ok || n > 0 {
		return unsupportedError("views")
	}
	pos, n, ok := c.readVector(t, 1, 16)
	if !ok {
		return c.boundsError("nodes")
	}
	for i := range n {
		length := int64(binary.LittleEndian.Uint64(c.b[pos+16*i:]))
		nulls := int64(binary.LittleEndian.Uint64(c.b[pos+16*i+8:]))
		if length < 0 || length > math.MaxInt32 || nulls < 0 || nulls > length {
			return invalidError("an array of %d values with %d nulls", length, nulls)
		}
	}
	if pos, n, ok = c.readVector(t, 2, 16); !ok {
		return c.boundsError("buffers")
	}
	for i := range n {
		off := int64(binary.LittleEndian.Uint64(c.b[pos+16*i:]))
		length := int64(binary.LittleEndian.Uint64(c.b[pos+16*i+8:]))
		if off < 0 || length < 0 || off%alignment != 0 || off > bodyLen || length > bodyLen-off {
			return invalidError("a buffer of %d bytes at %d in a body of %d", length, off, bodyLen)
		}
	}
	return nil
}
