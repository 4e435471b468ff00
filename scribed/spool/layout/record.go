package layout

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

const (
	// RecordHeaderLen is the length of a record's header; the category's name and the data follow it.
	RecordHeaderLen = 48
	// RecordMagic is what a reader searches for after damage. It is not valid UTF-8.
	RecordMagic = "\x8aSPR"
	// Align is the alignment of a record's offset.
	Align = 8
	// MaxCategory bounds a category's name, in bytes.
	MaxCategory = 255
	// MaxData bounds a record's data, in bytes.
	MaxData = 1 << 30
	// EncryptionOverhead is by how many bytes encrypted data is longer than the frame: the id of the key, the nonce and the tag.
	EncryptionOverhead = 8 + 12 + 16
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the CRC32C of b.
func Checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// Position identifies a record for as long as it is held: the segment that it was first written to, and its offset there. It is
// part of the record's header. Rewriting a segment, or merging several, keeps it, so the state, which is by position, stays valid
// whatever file a record is in.
type Position uint64

// At returns the position of an offset in a segment.
func At(segment, offset uint32) Position { return Position(segment)<<32 | Position(offset) }

// Segment returns the number of the segment.
func (p Position) Segment() uint32 { return uint32(p >> 32) }

// Offset returns the offset in the segment.
func (p Position) Offset() uint32 { return uint32(p) }

// String returns SEGMENT:OFFSET.
func (p Position) String() string { return fmt.Sprintf("%d:%d", p.Segment(), p.Offset()) }

// RecordHeader is the header of a record, before its data.
type RecordHeader struct {
	Category string
	// DataLen is the length of the data as it is stored; that of an encrypted record has at least EncryptionOverhead bytes.
	DataLen  uint32
	Messages uint32
	Position Position
	// Time is the time of the append, in Unix microseconds.
	Time int64
	// Durable is an offset: all bytes of the segment before it were synced when the record was written.
	Durable uint32
	// DataCRC is the checksum of the data as it is stored.
	DataCRC uint32
	// Encrypted: the data is the frame, encrypted.
	Encrypted bool
}

// Size returns the length of the record without padding.
func (h *RecordHeader) Size() int64 { return RecordSize(len(h.Category), int(h.DataLen)) }

// RecordSize returns the length of a record with its header and its category's name, without padding.
func RecordSize(category, data int) int64 { return RecordHeaderLen + int64(category) + int64(data) }

// Padded returns the length including the padding.
func Padded(size int64) int64 { return (size + Align - 1) &^ (Align - 1) }

// boundLen is the length of the part of a header to which the data is bound if it is encrypted.
const boundLen = 40

// AppendBound appends what the data of the record is bound to if it is encrypted: the header up to the checksums, and the category's name.
func (h *RecordHeader) AppendBound(dst []byte) []byte {
	return append(h.appendFields(dst), h.Category...)
}

// appendFields appends the first boundLen bytes of the header.
func (h *RecordHeader) appendFields(dst []byte) []byte {
	encrypted := byte(0)
	if h.Encrypted {
		encrypted = 1
	}
	dst = append(dst, RecordMagic...)
	dst = append(dst, byte(len(h.Category)), encrypted, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, h.DataLen)
	dst = binary.LittleEndian.AppendUint32(dst, h.Messages)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Position))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Time))
	dst = binary.LittleEndian.AppendUint32(dst, h.Durable)
	return append(dst, 0, 0, 0, 0)
}

// AppendRecordHeader appends the header and the category's name. The data, and zeros up to a multiple of Align, must follow.
func AppendRecordHeader(dst []byte, h *RecordHeader) []byte {
	start := len(dst)
	dst = h.appendFields(dst)
	dst = binary.LittleEndian.AppendUint32(dst, h.DataCRC)
	sum := Checksum(dst[start:])
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = append(dst, h.Category...)
	sum = crc32.Update(sum, castagnoli, dst[at+4:])
	binary.LittleEndian.PutUint32(dst[at:], sum)
	return dst
}

// ParseRecordHeader reads and checks a header and the category's name at the beginning of b, which may be longer. The error wraps
// ErrDamaged.
func ParseRecordHeader(b []byte) (RecordHeader, error) {
	if len(b) < RecordHeaderLen {
		return RecordHeader{}, fmt.Errorf("%w: %d bytes are too few for a record's header", ErrDamaged, len(b))
	}
	if string(b[:4]) != RecordMagic {
		return RecordHeader{}, fmt.Errorf("%w: no record begins here", ErrDamaged)
	}
	n := int(b[4])
	if len(b) < RecordHeaderLen+n {
		return RecordHeader{}, fmt.Errorf("%w: a record ends inside its category's name", ErrDamaged)
	}
	sum := crc32.Update(Checksum(b[:44]), castagnoli, b[RecordHeaderLen:RecordHeaderLen+n])
	if sum != binary.LittleEndian.Uint32(b[44:]) {
		return RecordHeader{}, fmt.Errorf("%w: the checksum of a record's header does not match", ErrDamaged)
	}
	h := RecordHeader{
		DataLen:  binary.LittleEndian.Uint32(b[8:]),
		Messages: binary.LittleEndian.Uint32(b[12:]),
		Position: Position(binary.LittleEndian.Uint64(b[16:])),
		Time:     int64(binary.LittleEndian.Uint64(b[24:])),
		Durable:  binary.LittleEndian.Uint32(b[32:]),
		DataCRC:  binary.LittleEndian.Uint32(b[boundLen:]),

		Encrypted: b[5] == 1,
	}
	if n == 0 || h.DataLen > MaxData || b[5] > 1 || b[6]|b[7] != 0 || binary.LittleEndian.Uint32(b[36:]) != 0 || h.Encrypted && h.DataLen < EncryptionOverhead {
		return RecordHeader{}, fmt.Errorf("%w: a record's header breaks a limit", ErrDamaged)
	}
	h.Category = string(b[RecordHeaderLen : RecordHeaderLen+n])
	return h, nil
}

// Data checks the data of a complete record at the beginning of b, and returns it as it is stored. The error wraps ErrDamaged.
func (h *RecordHeader) Data(b []byte) ([]byte, error) {
	from, to := RecordHeaderLen+int64(len(h.Category)), h.Size()
	if int64(len(b)) < to {
		return nil, fmt.Errorf("%w: the record is cut at %d of %d bytes", ErrDamaged, len(b), to)
	}
	data := b[from:to:to]
	if Checksum(data) != h.DataCRC {
		return nil, fmt.Errorf("%w: the checksum of a record's data does not match", ErrDamaged)
	}
	return data, nil
}
