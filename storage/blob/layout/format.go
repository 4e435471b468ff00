package layout

import (
	"encoding/binary"
	"fmt"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
)

// Version is the newest version that this build reads. Version 2 added the writer's [History], the first LSN of each entry's epoch, whether
// its position was predicted, and the settings of categories; version 3 encrypted blocks. A blob without any is written as version 2, so
// that older builds read it.
const (
	Version      = 3
	plainVersion = 2
)

// Limits of the format. Readers refuse larger values; a [Builder] never writes them.
const (
	// MaxBlocks bounds the blocks of a blob.
	MaxBlocks = 100_000
	// MaxEntries bounds the payloads of a blob. It equals the limit of one transaction of package metalog.
	MaxEntries = 100_000
	// MaxFooter bounds the footer in bytes.
	MaxFooter = 16 << 20
)

// Fixed parts.
const (
	// HeaderLen is the length of the header in bytes, and so the offset of the first block.
	HeaderLen = 128
	// TrailerLen is the length of the trailer in bytes.
	TrailerLen = 32

	headerMagic  = "SCRBLOB1"
	trailerMagic = "SCRBEND1"
)

// Offsets of the fields of the header. All integers are little-endian.
const (
	offMagic     = 0
	offVersion   = 8
	offRegionLen = 9
	offReserved1 = 10
	offClass     = 12
	offID        = 16
	offCreated   = 32
	offRegion    = 40
	offReserved2 = 104
	offHeaderCRC = 124
)

// Offsets of the fields of the trailer, from its start.
const (
	offFooterOffset   = 0
	offFooterLen      = 8
	offFooterCRC      = 12
	offTrailerVersion = 16
	offReserved3      = 17
	offTrailerCRC     = 20
	offTrailerMagic   = 24
)

// blobIdentity is the identity that header and footer share.
type blobIdentity struct {
	id      pointer.BlobID
	class   uint32
	region  string
	created int64
}

// partDamage is damage within a part, before the part's offset and blob are known.
type partDamage struct {
	what   string
	offset int // from the start of the part
	reason string
}

func damagef(what string, offset int, format string, args ...any) *partDamage {
	return &partDamage{what: what, offset: offset, reason: fmt.Sprintf(format, args...)}
}

func (f *partDamage) damageError(key string, start int64) *DamageError {
	return &DamageError{Key: key, What: f.what, Offset: start + int64(f.offset), Reason: f.reason}
}

func encodeHeader(v blobIdentity, version uint8) []byte {
	b := make([]byte, HeaderLen)
	copy(b[offMagic:], headerMagic)
	b[offVersion] = version
	b[offRegionLen] = uint8(len(v.region))
	binary.LittleEndian.PutUint32(b[offClass:], v.class)
	copy(b[offID:], v.id[:])
	binary.LittleEndian.PutUint64(b[offCreated:], uint64(v.created))
	copy(b[offRegion:offReserved2], v.region)
	binary.LittleEndian.PutUint32(b[offHeaderCRC:], record.CRC(b[:offHeaderCRC]))
	return b
}

// decodeHeader checks and decodes the HeaderLen bytes of b. For a newer version it returns a zero identity.
func decodeHeader(b []byte) (v blobIdentity, version uint8, _ *partDamage) {
	if string(b[offMagic:offVersion]) != headerMagic {
		return blobIdentity{}, 0, damagef("header magic", offMagic, "found %q, want %q", b[offMagic:offVersion], headerMagic)
	}
	stored := binary.LittleEndian.Uint32(b[offHeaderCRC:])
	if computed := record.CRC(b[:offHeaderCRC]); computed != stored {
		return blobIdentity{}, 0, damagef("header checksum", offMagic, "stored %#08x, computed %#08x", stored, computed)
	}
	switch version = b[offVersion]; {
	case version == 0:
		return blobIdentity{}, 0, damagef("header version", offVersion, "0 was never written")
	case version > Version:
		return blobIdentity{}, version, nil
	}
	n := int(b[offRegionLen])
	if n > pointer.MaxRegion {
		return blobIdentity{}, 0, damagef("header region", offRegionLen, "%d bytes, the limit is %d", n, pointer.MaxRegion)
	}
	v = blobIdentity{
		id:      pointer.BlobID(b[offID:offCreated]),
		class:   binary.LittleEndian.Uint32(b[offClass:]),
		region:  string(b[offRegion : offRegion+n]),
		created: int64(binary.LittleEndian.Uint64(b[offCreated:])),
	}
	if i := firstNonZero(b[offReserved1:offClass]); i >= 0 {
		return blobIdentity{}, 0, damagef("header", offReserved1+i, "reserved bytes must be 0")
	}
	if i := firstNonZero(b[offRegion+n : offHeaderCRC]); i >= 0 {
		return blobIdentity{}, 0, damagef("header", offRegion+n+i, "reserved bytes must be 0")
	}
	if f := v.validateIdentity(offMagic); f != nil {
		return blobIdentity{}, 0, f
	}
	return v, version, nil
}

func (v *blobIdentity) validateIdentity(offset int) *partDamage {
	if !v.id.IsValid() {
		return damagef("blob id", offset, "%x is not a UUID of version 7", v.id[:])
	}
	if err := pointer.ValidateRegion(v.region); err != nil {
		return damagef("region", offset, "%v", err)
	}
	return nil
}

func firstNonZero(b []byte) int {
	for i, c := range b {
		if c != 0 {
			return i
		}
	}
	return -1
}

// blobTrailer is the location of the footer.
type blobTrailer struct {
	footerOffset uint64
	footerLen    uint32
	footerCRC    uint32
}

func encodeTrailer(t blobTrailer, version uint8) []byte {
	b := make([]byte, TrailerLen)
	binary.LittleEndian.PutUint64(b[offFooterOffset:], t.footerOffset)
	binary.LittleEndian.PutUint32(b[offFooterLen:], t.footerLen)
	binary.LittleEndian.PutUint32(b[offFooterCRC:], t.footerCRC)
	b[offTrailerVersion] = version
	binary.LittleEndian.PutUint32(b[offTrailerCRC:], record.CRC(b[:offTrailerCRC]))
	copy(b[offTrailerMagic:], trailerMagic)
	return b
}

// decodeTrailer checks and decodes the TrailerLen bytes of b, the last ones of a blob of size bytes.
func decodeTrailer(b []byte, size int64) (t blobTrailer, version uint8, _ *partDamage) {
	if string(b[offTrailerMagic:]) != trailerMagic {
		return blobTrailer{}, 0, damagef("trailer magic", offTrailerMagic, "found %q, want %q: cut short, or not a blob", b[offTrailerMagic:], trailerMagic)
	}
	stored := binary.LittleEndian.Uint32(b[offTrailerCRC:])
	if computed := record.CRC(b[:offTrailerCRC]); computed != stored {
		return blobTrailer{}, 0, damagef("trailer checksum", 0, "stored %#08x, computed %#08x", stored, computed)
	}
	switch version = b[offTrailerVersion]; {
	case version == 0:
		return blobTrailer{}, 0, damagef("trailer version", offTrailerVersion, "0 was never written")
	case version > Version:
		return blobTrailer{}, version, nil
	}
	t = blobTrailer{
		footerOffset: binary.LittleEndian.Uint64(b[offFooterOffset:]),
		footerLen:    binary.LittleEndian.Uint32(b[offFooterLen:]),
		footerCRC:    binary.LittleEndian.Uint32(b[offFooterCRC:]),
	}
	if i := firstNonZero(b[offReserved3:offTrailerCRC]); i >= 0 {
		return blobTrailer{}, 0, damagef("trailer", offReserved3+i, "reserved bytes must be 0")
	}
	if t.footerLen == 0 || t.footerLen > MaxFooter {
		return blobTrailer{}, 0, damagef("footer length", offFooterLen, "%d is not in 1..%d", t.footerLen, MaxFooter)
	}
	if t.footerOffset < HeaderLen || t.footerOffset > pointer.MaxBlobLen || int64(t.footerOffset)+int64(t.footerLen)+TrailerLen != size {
		return blobTrailer{}, 0, damagef("footer offset", offFooterOffset,
			"%d bytes at %d and a trailer do not end a blob of %d bytes", t.footerLen, t.footerOffset, size)
	}
	return t, version, nil
}
