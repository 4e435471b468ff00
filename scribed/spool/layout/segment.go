package layout

import (
	"encoding/binary"
	"fmt"
)

const (
	// SegmentHeaderLen is the length of a segment's header; the records follow it.
	SegmentHeaderLen = 64
	segmentMagic     = "SPSG"
	segmentSuffix    = ".segment"
)

// SegmentID says which segments' records a file holds: those with positions in First to Last. A new file has Generation 1, and
// each rewrite gets a higher one.
type SegmentID struct {
	First, Last, Generation uint32
}

// Name returns the file's name.
func (id SegmentID) Name() string {
	return fmt.Sprintf("%010d-%010d-%010d%s", id.First, id.Last, id.Generation, segmentSuffix)
}

// Covers reports whether the file supersedes another one.
func (id SegmentID) Covers(other SegmentID) bool {
	return id.First <= other.First && other.Last <= id.Last && id.Generation > other.Generation
}

// Contains reports whether a record with the position may be in the file.
func (id SegmentID) Contains(p Position) bool {
	return p.Segment() >= id.First && p.Segment() <= id.Last
}

func (id SegmentID) valid() bool { return id.First > 0 && id.First <= id.Last && id.Generation > 0 }

// ParseSegmentName is the inverse of Name. It returns false for names of other files.
func ParseSegmentName(name string) (SegmentID, bool) {
	var id SegmentID
	_, err := fmt.Sscanf(name, "%d-%d-%d"+segmentSuffix, &id.First, &id.Last, &id.Generation)
	return id, err == nil && id.valid() && id.Name() == name
}

// SegmentHeader is the header of a segment's file, as it is encoded between version and checksum.
type SegmentHeader struct {
	SegmentID

	_ [4]byte
	// Created is in Unix microseconds.
	Created int64
	_       [28]byte
}

// AppendSegmentHeader appends the header of a segment that may have encrypted records, or has none.
func AppendSegmentHeader(dst []byte, h *SegmentHeader, encrypted bool) []byte {
	start := len(dst)
	dst = appendFixed(appendVersion(dst, segmentMagic, segmentVersion(encrypted)), h)
	return binary.LittleEndian.AppendUint32(dst, Checksum(dst[start:]))
}

// ParseSegmentHeader reads the header of a file whose name is that of id. The error wraps ErrDamaged or ErrVersion.
func ParseSegmentHeader(b []byte, id SegmentID) (SegmentHeader, error) {
	if len(b) < SegmentHeaderLen || string(b[:4]) != segmentMagic {
		return SegmentHeader{}, fmt.Errorf("%w: no segment begins here", ErrDamaged)
	}
	b = b[:SegmentHeaderLen]
	if Checksum(b[:60]) != binary.LittleEndian.Uint32(b[60:]) {
		return SegmentHeader{}, fmt.Errorf("%w: the checksum of the segment's header does not match", ErrDamaged)
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != Version && v != VersionEncrypted {
		return SegmentHeader{}, fmt.Errorf("segment of version %d, known are up to %d: %w", v, VersionEncrypted, ErrVersion)
	}
	var h SegmentHeader
	parseFixed(b[8:60], &h)
	if h.SegmentID != id {
		return h, fmt.Errorf("%w: the header says %s, the file is called %s", ErrDamaged, h.Name(), id.Name())
	}
	return h, nil
}
