// Package field decodes the fields of persisted records: the decoders of pointers, checkpoints and blob footers are sequences of
// calls of one [Reader].
//
// Numbers are varints (as of encoding/binary) in their shortest form only, so that equal records are equal bytes. Every length is
// compared with the remaining bytes before anything is allocated.
package field

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
)

// Reader reads fields from the front of a buffer. After the first error it returns zeros and keeps the error. Callers check it
// once, and in any case before they allocate by a count.
type Reader struct {
	b   []byte
	pos int
	err *Error
}

// Error is an invalid field.
type Error struct {
	What string // the field
	// Offset is the offset of the field in bytes from the start of the buffer.
	Offset int
	Reason string
}

// Error names the field and the offset.
func (e *Error) Error() string { return fmt.Sprintf("%s at byte %d: %s", e.What, e.Offset, e.Reason) }

// NewReader returns a Reader of b from pos on. It keeps b.
func NewReader(b []byte, pos int) Reader { return Reader{b: b, pos: pos} }

// Err returns the first error, or nil.
func (r *Reader) Err() *Error { return r.err }

// Pos returns the offset of the next field, or of the field with the first error.
func (r *Reader) Pos() int { return r.pos }

// Left returns the number of remaining bytes.
func (r *Reader) Left() int { return len(r.b) - r.pos }

// Fail records an error of what at the current offset, unless there was one before.
func (r *Reader) Fail(what, format string, args ...any) {
	if r.err == nil {
		r.err = &Error{What: what, Offset: r.pos, Reason: fmt.Sprintf(format, args...)}
	}
}

// End fails unless all bytes were read.
func (r *Reader) End() {
	if r.err == nil && r.pos != len(r.b) {
		r.Fail("end", "%d bytes follow the last field", len(r.b)-r.pos)
	}
}

// Uvarint reads a number up to limit.
func (r *Reader) Uvarint(what string, limit uint64) uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b[r.pos:])
	switch {
	case n <= 0:
		r.Fail(what, "number does not end or is over 64 bits")
		return 0
	case n != UvarintLen(v):
		r.Fail(what, "number is not in its shortest form")
		return 0
	case v > limit:
		r.Fail(what, "%d is over the limit of %d", v, limit)
		return 0
	}
	r.pos += n
	return v
}

// Uint32 reads a number of up to 32 bits.
func (r *Reader) Uint32(what string) uint32 { return uint32(r.Uvarint(what, math.MaxUint32)) }

// Varint reads a signed number (zigzag).
func (r *Reader) Varint(what string) int64 {
	u := r.Uvarint(what, math.MaxUint64)
	return int64(u>>1) ^ -int64(u&1)
}

// Count reads the number of elements that follow, up to limit. Each element takes at least least bytes.
func (r *Reader) Count(what string, limit, least int) int {
	at := r.pos
	n := r.Uvarint(what, uint64(limit))
	if n > uint64(r.Left()/least) {
		r.pos = at
		r.Fail(what, "%d do not fit the bytes that are left", n)
		return 0
	}
	return int(n)
}

// Take reads n bytes, which alias the buffer; nil after an error.
func (r *Reader) Take(what string, n uint64) []byte {
	if r.err != nil {
		return nil
	}
	if n > uint64(r.Left()) {
		r.Fail(what, "needs %d bytes, %d are left", n, r.Left())
		return nil
	}
	end := r.pos + int(n)
	v := r.b[r.pos:end:end]
	r.pos = end
	return v
}

// Sized reads a length of up to limit bytes and that many bytes.
func (r *Reader) Sized(what string, limit uint64) []byte { return r.Take(what, r.Uvarint(what, limit)) }

// Fixed8 reads a byte.
func (r *Reader) Fixed8(what string) uint8 {
	if b := r.Take(what, 1); b != nil {
		return b[0]
	}
	return 0
}

// Fixed32 reads 4 bytes, little-endian.
func (r *Reader) Fixed32(what string) uint32 {
	if b := r.Take(what, 4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// Fixed64 reads 8 bytes, little-endian.
func (r *Reader) Fixed64(what string) uint64 {
	if b := r.Take(what, 8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// UvarintLen returns the number of bytes that [binary.AppendUvarint] appends.
func UvarintLen(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// VarintLen returns the number of bytes that [binary.AppendVarint] appends.
func VarintLen(v int64) int { return UvarintLen(uint64(v)<<1 ^ uint64(v>>63)) }
