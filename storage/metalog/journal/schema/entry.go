package schema

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/klauspost/compress/zstd"

	"scribe/internal/format/pointer/field"
)

// Compression says how a payload is stored. The numbers are persisted.
type Compression uint8

// Kinds of compression.
const (
	CompressionNone Compression = 0
	CompressionZstd Compression = 1
)

// minCompressed is the payload below which compression is not tried: the frame of zstd would be most of it.
const minCompressed = 64

// Encoder encodes entries. It is not safe for concurrent use.
type Encoder struct {
	z *zstd.Encoder
	// compressed is scratch.
	compressed []byte
}

// NewEncoder returns an encoder.
func NewEncoder() (*Encoder, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, fmt.Errorf("journal: make an encoder: %w", err)
	}
	return &Encoder{z: z}, nil
}

// maxScratch bounds the memory that an encoder keeps between entries.
const maxScratch = 4 << 20

// Encode returns an encoded entry, in memory of its own. The payload is compressed if that makes it smaller. The error is
// ErrInvalid.
func (c *Encoder) Encode(e Entry) ([]byte, error) {
	if len(e.Payload) == 0 || len(e.Payload) > MaxPayload || e.Seq == 0 || e.Term == 0 || e.Time < 0 {
		return nil, fmt.Errorf("%w: entry %d of term %d, time %d, with %d bytes, the limit is %d", ErrInvalid, e.Seq, e.Term, e.Time, len(e.Payload), MaxPayload)
	}
	stored, how := e.Payload, CompressionNone
	if len(e.Payload) >= minCompressed {
		c.compressed = c.z.EncodeAll(e.Payload, c.compressed[:0])
		if len(c.compressed) < len(e.Payload) {
			stored, how = c.compressed, CompressionZstd
		}
	}
	b := appendEntry(make([]byte, 0, len(stored)+128), e, how, stored)
	if cap(c.compressed) > maxScratch {
		c.compressed = nil
	}
	return b, nil
}

func appendEntry(b []byte, e Entry, how Compression, stored []byte) []byte {
	start := len(b)
	b = append(b, Version, byte(how))
	b = binary.AppendUvarint(b, e.Seq)
	b = binary.AppendUvarint(b, e.Term)
	b = append(b, e.ID[:]...)
	b = append(b, e.Before[:]...)
	b = binary.AppendUvarint(b, uint64(e.Time))
	b = binary.AppendUvarint(b, uint64(len(e.Payload)))
	b = append(b, stored...)
	return sealRecord(b, start)
}

// Decoder decodes entries. It is not safe for concurrent use.
type Decoder struct {
	z *zstd.Decoder
}

// NewDecoder returns a decoder.
func NewDecoder() (*Decoder, error) {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(MaxPayload),
		zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		return nil, fmt.Errorf("journal: make a decoder: %w", err)
	}
	return &Decoder{z: z}, nil
}

// Decode decodes an entry, whose payload may alias b. The errors are ErrCorrupt and ErrVersion.
func (d *Decoder) Decode(b []byte) (Entry, error) {
	e, how, stored, size, err := parseEntry(b)
	if err != nil {
		return Entry{}, err
	}
	switch {
	case how == CompressionNone && len(stored) == size:
		e.Payload = stored
	case how == CompressionZstd:
		e.Payload, err = d.z.DecodeAll(stored, make([]byte, 0, size))
		if err != nil || len(e.Payload) != size {
			return Entry{}, corrupt("entry %d: its payload does not decompress to %d bytes: %v", e.Seq, size, err)
		}
	default:
		return Entry{}, corrupt("entry %d: %d bytes of a payload of %d, compression %d", e.Seq, len(stored), size, how)
	}
	return e, nil
}

// PeekEntry decodes an entry without its payload. The errors are ErrCorrupt and ErrVersion.
func PeekEntry(b []byte) (Entry, error) {
	e, _, _, _, err := parseEntry(b)
	return e, err
}

func parseEntry(b []byte) (e Entry, how Compression, stored []byte, size int, err error) {
	body, err := openRecord(b, MaxEntry, Version, "entry")
	if err != nil {
		return Entry{}, 0, nil, 0, err
	}
	r := field.NewReader(body, 1)
	how = Compression(r.Fixed8("compression"))
	e.Seq = r.Uvarint("seq", math.MaxUint64)
	e.Term = r.Uvarint("term", math.MaxUint64)
	copy(e.ID[:], r.Take("id", uint64(len(e.ID))))
	copy(e.Before[:], r.Take("chain", uint64(len(e.Before))))
	e.Time = int64(r.Uvarint("time", math.MaxInt64))
	size = int(r.Uvarint("length", MaxPayload))
	stored = r.Take("payload", uint64(r.Left()))
	if e := r.Err(); e != nil {
		return Entry{}, 0, nil, 0, corrupt("entry: %v", e)
	}
	if e.Seq == 0 || e.Term == 0 || size == 0 {
		return Entry{}, 0, nil, 0, corrupt("entry %d of term %d with %d bytes", e.Seq, e.Term, size)
	}
	return e, how, stored, size, nil
}

// ChainAfter returns the chain after an encoded entry: the first 16 bytes of its SHA-256. The entry contains the chain before it.
func ChainAfter(entry []byte) Chain {
	sum := sha256.Sum256(entry)
	return Chain(sum[:len(Chain{})])
}
