package pointer

import (
	"encoding/binary"
	"fmt"
	"math"

	"scribe/internal/format/pointer/field"
	"scribe/internal/format/record"
)

// Decode decodes all of b, the output of [Append]. The errors are [ErrCorrupt] and [ErrVersion]. The pointer shares no memory
// with b.
func Decode(b []byte) (Pointer, error) {
	if err := checkEnvelope(b); err != nil {
		return Pointer{}, err
	}
	p := Pointer{Codec: Codec(b[offCodec]), Blob: BlobID(b[offBlob:offClass])}
	r := field.NewReader(b[:len(b)-crcLen], offClass)
	p.Class = r.Uint32("class")
	p.Region = string(r.Sized("region", MaxRegion))
	p.BlockOffset = r.Uvarint("block offset", MaxBlobLen)
	p.BlockLen = r.Uint32("block length")
	p.BlockRawLen = r.Uint32("raw block length")
	p.BlockCRC = r.Fixed32("block checksum")
	p.Offset = r.Uint32("offset")
	p.Length = r.Uint32("length")
	p.Frames = r.Uint32("frames")
	p.Messages = r.Uint32("messages")
	p.MinTime = r.Varint("smallest time")
	p.MaxTime = ReadLater(&r, "largest time", p.MinTime)
	p.Sequences = ReadSequences(&r)
	r.End()
	if e := r.Err(); e != nil {
		return Pointer{}, corruptPointer(e.What, e.Offset, "%s", e.Reason)
	}
	// The checksum was valid, so whatever is refused here was written that way, by a faulty writer.
	if what, reason := p.firstViolation(); what != "" {
		return Pointer{}, corruptPointer(what, offCodec, "%s", reason)
	}
	if v := b[offVersion]; v != versionOf(p.Codec) {
		return Pointer{}, corruptPointer("codec", offCodec, "%s in version %d", p.Codec, v)
	}
	return p, nil
}

// checkEnvelope checks the parts that all versions share: the length, the checksum at the end, the version at the beginning.
func checkEnvelope(b []byte) error {
	switch {
	case len(b) < 1+crcLen:
		return corruptPointer("length", len(b), "%d bytes are too few", len(b))
	case len(b) > MaxLen:
		return corruptPointer("length", MaxLen, "%d bytes, the limit is %d", len(b), MaxLen)
	}
	end := len(b) - crcLen
	stored := binary.LittleEndian.Uint32(b[end:])
	if computed := record.CRC(b[:end]); computed != stored {
		return corruptPointer("checksum", end, "stored %#08x, computed %#08x", stored, computed)
	}
	switch v := b[offVersion]; {
	case v == 0:
		return corruptPointer("version", offVersion, "0 was never written")
	case v > Version:
		return fmt.Errorf("%w %d is newer than version %d, the newest that this build reads: upgrade the reader", ErrVersion, v, Version)
	}
	if len(b) < minLen {
		return corruptPointer("length", len(b), "%d bytes, the least is %d", len(b), minLen)
	}
	return nil
}

// ReadLater reads a distance and returns the time that far after t. Package layout uses it, too.
func ReadLater(r *field.Reader, what string, t int64) int64 {
	return int64(uint64(t) + r.Uvarint(what, uint64(math.MaxInt64)-uint64(t)))
}

// minSequenceLen is the least length of a run in bytes.
const minSequenceLen = 8 + 3

// AppendSequences appends the encoded form of runs: their number and the runs.
func AppendSequences(dst []byte, runs []Sequence) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(runs)))
	for i := range runs {
		s := &runs[i]
		dst = binary.LittleEndian.AppendUint64(dst, s.Producer)
		dst = binary.AppendUvarint(dst, uint64(s.Epoch))
		dst = binary.AppendUvarint(dst, s.First)
		dst = binary.AppendUvarint(dst, s.Last-s.First)
	}
	return dst
}

// ReadSequences reads the output of [AppendSequences].
func ReadSequences(r *field.Reader) []Sequence {
	n := r.Count("sequences", MaxSequences, minSequenceLen)
	if n == 0 {
		return nil
	}
	out := make([]Sequence, n)
	for i := range out {
		s := &out[i]
		s.Producer = r.Fixed64("sequences")
		s.Epoch = r.Uint32("sequences")
		// The sequence after the last one must be a number, too.
		s.First = r.Uvarint("sequences", math.MaxUint64-1)
		s.Last = s.First + r.Uvarint("sequences", math.MaxUint64-1-s.First)
	}
	if r.Err() != nil {
		return nil
	}
	return out
}
