package sequenced

import (
	"encoding/binary"
	"fmt"
	"math"

	"scribe/internal/format/pointer"
	"scribe/internal/format/pointer/field"
	"scribe/internal/format/record"
)

// Version is the version that this build writes, and the newest that it reads, of both kinds of record.
const Version = 1

// MaxLen bounds an encoded record of either log in bytes: the limit of the metadata engine.
const MaxLen = 64 << 10

// Kind is the kind of a record of the sequenced log. The numbers are persisted and never reused.
type Kind uint8

// Kinds.
const (
	// KindPointer is a pointer of a source.
	KindPointer Kind = 1
	// KindGap is an unreadable range of a source.
	KindGap Kind = 2
)

// Cause is the cause of a gap. The numbers are persisted and never reused.
type Cause uint8

// Causes.
const (
	// CauseTrimmed: retention removed the pointers before they were sequenced.
	CauseTrimmed Cause = 1
	// CauseDamaged: they are damaged in the metadata engine.
	CauseDamaged Cause = 2
)

// Record is a record of the sequenced log.
type Record struct {
	Kind Kind
	// Source is the shard that was read, LSN the position of the pointer in it, or the first LSN of the gap. The category is not
	// stored: it is the log's.
	Source record.ShardID
	LSN    record.LSN
	// Offset is the number of the payload's first message, or of the message after the gap.
	Offset uint64
	// Horizon is the newest persisted time, in its source, of this record and all before it; Unix microseconds.
	Horizon int64

	// Time is the pointer's persisted time in its source; Unix microseconds.
	Time int64
	// Pointer is the encoded pointer, without sequences, which only the engine checks. After [Decode] it aliases the record.
	Pointer []byte

	// To is the first LSN after the gap.
	To    record.LSN
	Cause Cause
}

// Next returns the LSN of the source that is to be sequenced after the record.
func (r *Record) Next() record.LSN {
	if r.Kind == KindGap {
		return r.To
	}
	return r.LSN + 1
}

const (
	offVersion = 0
	offKind    = 1
	crcLen     = 4
	minLen     = 2 + crcLen
)

// maxFields bounds the length of a record beside its pointer: version and kind, source, LSN, offset, horizon, time, checksum.
const maxFields = 2 + 3 + 3 + 10 + 10 + 10 + 10 + crcLen

// MaxPointer is the longest encoded pointer that fits a record.
const MaxPointer = MaxLen - maxFields

// Append appends the encoded form of r to dst. It does not validate r: [Decode] refuses invalid records.
func Append(dst []byte, r *Record) []byte {
	start := len(dst)
	dst = append(dst, Version, byte(r.Kind))
	dst = binary.AppendUvarint(dst, uint64(r.Source.Logical()))
	dst = binary.AppendUvarint(dst, uint64(r.Source.Writer()))
	dst = binary.AppendUvarint(dst, uint64(r.LSN))
	dst = binary.AppendUvarint(dst, r.Offset)
	dst = binary.AppendUvarint(dst, uint64(r.Horizon))
	if r.Kind == KindGap {
		dst = binary.AppendUvarint(dst, uint64(r.To)-uint64(r.LSN))
		dst = append(dst, byte(r.Cause))
	} else {
		dst = binary.AppendUvarint(dst, uint64(r.Horizon)-uint64(r.Time))
		dst = append(dst, r.Pointer...)
	}
	return binary.LittleEndian.AppendUint32(dst, record.CRC(dst[start:]))
}

// Decode decodes all of b, the output of [Append], as a record of the log of a category. The errors match [ErrCorrupt] and
// [ErrVersion]. It does not decode the pointer.
func Decode(category uint32, b []byte) (Record, error) {
	body, err := openRecord(b)
	if err != nil {
		return Record{}, err
	}
	rec := Record{Kind: Kind(body[offKind])}
	r := field.NewReader(body, offKind+1)
	rec.Source = readSource(&r, category)
	rec.LSN = record.LSN(r.Uvarint("LSN", math.MaxUint64-1))
	rec.Offset = r.Uvarint("offset", math.MaxUint64-1)
	rec.Horizon = int64(r.Uvarint("horizon", math.MaxInt64))
	switch rec.Kind {
	case KindPointer:
		rec.Time = rec.Horizon - int64(r.Uvarint("time", uint64(rec.Horizon)))
		rec.Pointer = r.Take("pointer", uint64(r.Left()))
		if len(rec.Pointer) == 0 || len(rec.Pointer) > MaxPointer {
			r.Fail("pointer", "%d bytes, the limits are 1 and %d", len(rec.Pointer), MaxPointer)
		}
	case KindGap:
		rec.To = rec.LSN + record.LSN(r.Uvarint("end of the gap", uint64(math.MaxUint64-rec.LSN)))
		rec.Cause = Cause(r.Fixed8("cause"))
		if rec.To <= rec.LSN || rec.Cause != CauseTrimmed && rec.Cause != CauseDamaged {
			r.Fail("gap", "from LSN %d to %d with cause %d", rec.LSN, rec.To, rec.Cause)
		}
	default:
		return Record{}, corruptRecord("kind %d is unknown", rec.Kind)
	}
	r.End()
	if e := r.Err(); e != nil {
		return Record{}, corruptRecord("%v", e)
	}
	if rec.LSN < record.FirstLSN {
		return Record{}, corruptRecord("LSN %d of the source", rec.LSN)
	}
	return rec, nil
}

// readSource takes a source's logical shard and writer slot.
func readSource(r *field.Reader, category uint32) record.ShardID {
	logical := uint16(r.Uvarint("logical shard", uint64(Logical-1))) //nolint:gosec // bounded
	writer := uint16(r.Uvarint("writer slot", math.MaxUint16))       //nolint:gosec // bounded
	return record.MakeShardID(category, logical, writer)
}

// openRecord checks the parts that all versions and both logs share: the length, the checksum at the end, the version at the
// beginning. It returns everything in front of the checksum.
func openRecord(b []byte) ([]byte, error) {
	if len(b) < minLen || len(b) > MaxLen {
		return nil, corruptRecord("%d bytes, the limits are %d and %d", len(b), minLen, MaxLen)
	}
	body := b[:len(b)-crcLen]
	if stored, computed := binary.LittleEndian.Uint32(b[len(body):]), record.CRC(body); stored != computed {
		return nil, corruptRecord("checksum %#08x, computed %#08x", stored, computed)
	}
	switch v := body[offVersion]; {
	case v == 0:
		return nil, corruptRecord("version 0 was never written")
	case v > Version:
		return nil, fmt.Errorf("%w %d is newer than version %d, the newest that this build reads: upgrade it", ErrVersion, v, Version)
	}
	return body, nil
}

// Strip returns the form of a pointer for the sequenced log: encoded, without sequences. encoded is p's encoded form; Strip
// returns it if p has no sequences.
func Strip(p *pointer.Pointer, encoded []byte) ([]byte, error) {
	if len(p.Sequences) > 0 {
		bare := *p
		bare.Sequences = nil
		encoded = pointer.Append(nil, &bare)
	}
	if len(encoded) > MaxPointer {
		return nil, fmt.Errorf("%w: a pointer of %d bytes, the limit is %d", pointer.ErrInvalid, len(encoded), MaxPointer)
	}
	return encoded, nil
}
