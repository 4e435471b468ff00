package record

import (
	"encoding/binary"
	"iter"
	"math"
	"math/bits"
	"time"
)

// Message is a message to append. A [Builder] copies it: the slices belong to the caller again when Append returns.
type Message struct {
	Payload []byte
	// Key is optional: nil means absent, an empty non-nil key is present.
	Key []byte
	// Time is the event time, truncated to the microsecond. The zero Time means none: readers then get the frame's base time.
	Time time.Time
	// Attributes are kept in order. Names may repeat.
	Attributes []Attribute
}

// Attribute is a name and a value beside the payload, for tracing, privacy or filtering.
type Attribute struct {
	Name  string // see ValidateAttributeName
	Value []byte
}

// Size returns the size of the message in bytes for limits and quotas: payload, key, and the names and values of the attributes.
func (m *Message) Size() int {
	n := len(m.Payload) + len(m.Key)
	for i := range m.Attributes {
		n += len(m.Attributes[i].Name) + len(m.Attributes[i].Value)
	}
	return n
}

// Flags of a message's optional parts: the low bits of its first varint. The bits are persisted.
const (
	hasKey        = 1
	hasTime       = 2
	hasAttributes = 4

	messageFlagBits = 3
)

// Record is one decoded message. Its slices point into the frame: they must not be changed, and live as long as the frame's bytes do.
type Record struct {
	Payload []byte
	// Key is nil unless HasKey; a key may be present and empty.
	Key    []byte
	HasKey bool
	// Time is the event time in Unix microseconds: the message's own when HasTime, else the frame's base time.
	Time    int64
	HasTime bool
	// Attributes is nil when the message has none.
	Attributes Attributes
	// Index is the index of the message in its frame, from 0.
	Index int
}

// Size returns [Message.Size] of the decoded message.
func (r *Record) Size() int {
	n := len(r.Payload) + len(r.Key)
	for name, value := range r.Attributes.All() {
		n += len(name) + len(value)
	}
	return n
}

// Attributes is the encoded attribute section of a message in a frame. A [Decoder] returns only well-formed sections; in other
// bytes the methods find the attributes in front of the damage. The nil section is empty.
type Attributes []byte

// All yields names and values in their order in the message. They point into the frame.
func (a Attributes) All() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		left, pos := a.readCount()
		for ; left > 0; left-- {
			var name, value []byte
			if name, value, pos = a.readNext(pos); pos < 0 {
				return
			}
			if !yield(name, value) {
				return
			}
		}
	}
}

// Get returns the value of the first attribute with that name. It does not allocate; it scans the attributes.
func (a Attributes) Get(name string) ([]byte, bool) {
	left, pos := a.readCount()
	for ; left > 0; left-- {
		var n, v []byte
		if n, v, pos = a.readNext(pos); pos < 0 {
			break
		}
		if string(n) == name {
			return v, true
		}
	}
	return nil, false
}

// Len returns the number of attributes that the section announces.
func (a Attributes) Len() int {
	n, _ := a.readCount()
	return n
}

// readCount returns the announced number of attributes, or 0 if it is impossible, and the offset of the first.
func (a Attributes) readCount() (count, pos int) {
	n, pos := readUvarint(a, 0)
	// An attribute takes at least two bytes: the lengths of name and value.
	if pos < 0 || n > MaxAttributes || n > uint64(len(a)-pos)/2 {
		return 0, -1
	}
	return int(n), pos
}

// readNext returns the attribute at pos, and the offset of the next one or -1.
func (a Attributes) readNext(pos int) (name, value []byte, end int) {
	if name, pos = readSized(a, pos); pos < 0 {
		return nil, nil, -1
	}
	if value, pos = readSized(a, pos); pos < 0 {
		return nil, nil, -1
	}
	return name, value, pos
}

// invalidReason returns the defect of a section, or "".
func (a Attributes) invalidReason() string {
	left, pos := a.readCount()
	if pos < 0 {
		return "the number of attributes is over the limit or cannot fit"
	}
	for ; left > 0; left-- {
		if _, _, pos = a.readNext(pos); pos < 0 {
			return "an attribute does not end within the section"
		}
	}
	if pos != len(a) {
		return "bytes follow the last attribute"
	}
	return ""
}

// readUvarint decodes the varint at pos and returns its end, or -1 if it does not end within b or exceeds 64 bits. The common
// case of one byte is inlined at the call.
func readUvarint(b []byte, pos int) (uint64, int) {
	if pos < len(b) && b[pos] < 0x80 {
		return uint64(b[pos]), pos + 1
	}
	return uvarintLong(b, pos)
}

func uvarintLong(b []byte, pos int) (uint64, int) {
	v, n := binary.Uvarint(b[pos:])
	if n <= 0 {
		return 0, -1
	}
	return v, pos + n
}

// readSized decodes a length and that many bytes at pos, and returns their end, or -1.
func readSized(b []byte, pos int) ([]byte, int) {
	n, pos := readUvarint(b, pos)
	if pos < 0 || n > uint64(len(b)-pos) {
		return nil, -1
	}
	end := pos + int(n)
	return b[pos:end:end], end
}

// uvarintLen returns the number of bytes that [binary.AppendUvarint] appends.
func uvarintLen(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// zigzag maps small deltas of either sign to small numbers. Deltas wrap at 64 bits, when encoding and decoding, so every pair of
// times has one.
func zigzag(d int64) uint64   { return uint64(d)<<1 ^ uint64(d>>63) }
func unzigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

// unixMicro returns [time.Time.UnixMicro], and whether the time is within its range (years -290307 to 294246).
func unixMicro(t time.Time) (int64, bool) {
	const limit = math.MaxInt64 / 1_000_000
	sec := t.Unix()
	return t.UnixMicro(), -limit <= sec && sec < limit
}
