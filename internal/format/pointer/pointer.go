package pointer

import (
	"encoding/binary"
	"fmt"

	"scribe/internal/format/pointer/field"
	"scribe/internal/format/record"
)

// Version is the newest version that this build reads. It is that of pointers into encrypted blocks; all others are written as version 1, so
// that older builds read them.
const Version = 2

// Limits of the format. A reader refuses larger values; [Pointer.Validate] refuses them for a writer.
const (
	// MaxLen bounds an encoded pointer in bytes.
	MaxLen = 64 << 10
	// MaxBlockRaw bounds a decompressed block in bytes.
	MaxBlockRaw = 80 << 20
	// MaxBlockLen bounds a stored block in bytes: the raw block and the overhead of a codec for incompressible bytes.
	MaxBlockLen = MaxBlockRaw + 64<<10
	// MaxBlobLen bounds a blob in bytes. It is below the limit of object stores for one PUT.
	MaxBlobLen = 4 << 30
	// MaxRegion bounds the name of a region in bytes.
	MaxRegion = 64
	// MaxSequences bounds the runs of one pointer. A pointer with that many may still exceed MaxLen: see [Len].
	MaxSequences = 4096
)

// Codec is the compression of a block, and whether it is encrypted (docs/format/encryption.md). The numbers are persisted and never reused.
type Codec uint8

const (
	// CodecNone stores a block as it is.
	CodecNone Codec = 1
	// CodecZstd stores a block as consecutive zstd frames (RFC 8878), mostly one.
	CodecZstd Codec = 2
	// CodecEncrypted stores a block of CodecNone encrypted.
	CodecEncrypted Codec = 3
	// CodecEncryptedZstd stores a block of CodecZstd encrypted.
	CodecEncryptedZstd Codec = 4
)

// encryptedStep is by how much the number of a codec grows with encryption.
const encryptedStep = CodecEncrypted - CodecNone

// EncryptionOverhead is by how many bytes encryption makes a block longer.
const EncryptionOverhead = 48

// IsEncrypted reports whether the block is encrypted.
func (c Codec) IsEncrypted() bool { return c == CodecEncrypted || c == CodecEncryptedZstd }

// Encrypted returns the codec of a block of a compression that is encrypted.
func (c Codec) Encrypted() Codec {
	if c.IsEncrypted() {
		return c
	}
	return c + encryptedStep
}

// Compression returns the codec of the block without its encryption.
func (c Codec) Compression() Codec {
	if c.IsEncrypted() {
		return c - encryptedStep
	}
	return c
}

// String returns the name of the codec in lower case.
func (c Codec) String() string {
	switch c {
	case CodecNone:
		return "none"
	case CodecZstd:
		return "zstd"
	case CodecEncrypted:
		return "none, encrypted"
	case CodecEncryptedZstd:
		return "zstd, encrypted"
	default:
		return fmt.Sprintf("codec(%d)", uint8(c))
	}
}

// Sequence is a run of messages [First, Last] of one producer and epoch.
type Sequence struct {
	Producer uint64
	Epoch    uint32
	First    uint64
	Last     uint64
}

// Pointer describes a payload: its location and a summary of its content.
type Pointer struct {
	// Blob, Class (retention class in hours) and Region name the blob. An empty Region is the local one.
	Blob   BlobID
	Class  uint32
	Region string

	// Codec is the codec of the block, BlockOffset its offset in the blob, BlockLen its stored and BlockRawLen its
	// decompressed length, in bytes, and BlockCRC the CRC32C of its stored bytes.
	Codec       Codec
	BlockOffset uint64
	BlockLen    uint32
	BlockRawLen uint32
	BlockCRC    uint32

	// Offset and Length are the range of the payload in the decompressed block, in bytes.
	Offset uint32
	Length uint32

	// Frames and Messages are the payload's counts.
	Frames   uint32
	Messages uint32

	// MinTime and MaxTime are the smallest and the largest base time of the payload's frames, in Unix microseconds.
	MinTime int64
	MaxTime int64

	// Sequences are the runs of the sequenced frames, in the order of the frames, neighbours merged; at most MaxSequences. The
	// metadata engine checks them, so only exactly_once categories have them.
	Sequences []Sequence
}

// Key returns the key of the blob: "blobs/<class>h/<id>".
func (p *Pointer) Key() string { return Key(p.Class, p.Blob) }

// Encoded form: version, codec, blob id, uvarints (signed times as zigzag), checksum over everything before it.
const (
	offVersion = 0
	offCodec   = 1
	offBlob    = 2
	offClass   = offBlob + 16

	crcLen = 4
	// minLen is the length of a pointer whose numbers all take one byte.
	minLen = offClass + 12 + 4 + crcLen
)

// Append appends the encoded form of p to dst. It does not validate p: [Decode] refuses invalid pointers.
func Append(dst []byte, p *Pointer) []byte {
	start := len(dst)
	dst = append(dst, versionOf(p.Codec), byte(p.Codec))
	dst = append(dst, p.Blob[:]...)
	dst = binary.AppendUvarint(dst, uint64(p.Class))
	dst = binary.AppendUvarint(dst, uint64(len(p.Region)))
	dst = append(dst, p.Region...)
	dst = binary.AppendUvarint(dst, p.BlockOffset)
	dst = binary.AppendUvarint(dst, uint64(p.BlockLen))
	dst = binary.AppendUvarint(dst, uint64(p.BlockRawLen))
	dst = binary.LittleEndian.AppendUint32(dst, p.BlockCRC)
	dst = binary.AppendUvarint(dst, uint64(p.Offset))
	dst = binary.AppendUvarint(dst, uint64(p.Length))
	dst = binary.AppendUvarint(dst, uint64(p.Frames))
	dst = binary.AppendUvarint(dst, uint64(p.Messages))
	dst = binary.AppendVarint(dst, p.MinTime)
	dst = binary.AppendUvarint(dst, uint64(p.MaxTime)-uint64(p.MinTime))
	dst = AppendSequences(dst, p.Sequences)
	return binary.LittleEndian.AppendUint32(dst, record.CRC(dst[start:]))
}

// versionOf returns the oldest version that has the codec.
func versionOf(c Codec) byte {
	if c.IsEncrypted() {
		return 2
	}
	return 1
}

// Len returns the length of the encoded form of p in bytes. A writer that collects many sequences uses it to check whether p
// fits.
func Len(p *Pointer) int {
	n := offClass + field.UvarintLen(uint64(p.Class)) + field.UvarintLen(uint64(len(p.Region))) + len(p.Region)
	n += field.UvarintLen(p.BlockOffset) + field.UvarintLen(uint64(p.BlockLen)) + field.UvarintLen(uint64(p.BlockRawLen)) + 4
	n += field.UvarintLen(uint64(p.Offset)) + field.UvarintLen(uint64(p.Length))
	n += field.UvarintLen(uint64(p.Frames)) + field.UvarintLen(uint64(p.Messages))
	n += field.VarintLen(p.MinTime) + field.UvarintLen(uint64(p.MaxTime)-uint64(p.MinTime))
	n += field.UvarintLen(uint64(len(p.Sequences)))
	for i := range p.Sequences {
		n += SequenceLen(&p.Sequences[i])
	}
	return n + crcLen
}

// SequenceLen returns the length in bytes that a run adds to the encoded form. The count in front of the runs may grow by a byte
// as well.
func SequenceLen(s *Sequence) int {
	return 8 + field.UvarintLen(uint64(s.Epoch)) + field.UvarintLen(s.First) + field.UvarintLen(s.Last-s.First)
}
