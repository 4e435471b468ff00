package pointer

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"strconv"
	"strings"
	"time"

	"scribe/internal/base/entropy"
)

// BlobID names a blob. It is a UUID of version 7 (RFC 9562): its first 48 bits are the Unix milliseconds of its creation,
// big-endian, so ids sort by time, as bytes and as text; 74 bits are random, so ids are unique without coordination.
type BlobID [16]byte

// maxMillis is the latest time that fits an id.
const maxMillis = 1<<48 - 1

// NewBlobID returns a new id with the current time.
func NewBlobID() BlobID { return NewBlobIDAt(time.Now().UnixMicro(), nil) }

// NewBlobIDAt returns a new id with a time in Unix microseconds, as [MakeBlobID] does, whose other bits come from a source.
func NewBlobIDAt(micros int64, random *entropy.Source) BlobID {
	var bits [10]byte
	random.Read(bits[:])
	return MakeBlobID(micros, bits)
}

// MakeBlobID returns the id for a time in Unix microseconds, truncated to milliseconds, and 74 of the 80 bits of entropy. Times
// outside 1970 to 10889 become the nearest time inside.
func MakeBlobID(micros int64, entropy [10]byte) BlobID {
	ms := min(max(micros, 0)/1000, maxMillis)
	var id BlobID
	binary.BigEndian.PutUint64(id[:], uint64(ms)<<16)
	copy(id[6:], entropy[:])
	id[6] = id[6]&0x0f | 0x70 // version 7
	id[8] = id[8]&0x3f | 0x80 // variant of RFC 9562
	return id
}

// Time returns when the id was made, in Unix microseconds, truncated to the millisecond.
func (id BlobID) Time() int64 { return int64(binary.BigEndian.Uint64(id[:])>>16) * 1000 }

// IsValid reports whether id is a UUID of version 7; the zero BlobID is not.
func (id BlobID) IsValid() bool { return id[6]>>4 == 7 && id[8]>>6 == 2 }

// String returns the usual form of a UUID: 36 bytes, lower case.
func (id BlobID) String() string { return string(id.appendTo(make([]byte, 0, blobIDLen))) }

// blobIDLen is the length of an id's text.
const blobIDLen = 36

func (id BlobID) appendTo(dst []byte) []byte {
	dst = hex.AppendEncode(dst, id[0:4])
	dst = hex.AppendEncode(append(dst, '-'), id[4:6])
	dst = hex.AppendEncode(append(dst, '-'), id[6:8])
	dst = hex.AppendEncode(append(dst, '-'), id[8:10])
	return hex.AppendEncode(append(dst, '-'), id[10:16])
}

// ParseBlobID parses exactly the output of [BlobID.String]: an id has one text. The error is an [ErrInvalid].
func ParseBlobID(text string) (BlobID, error) {
	id, reason := parseBlobID(text)
	if reason != "" {
		return BlobID{}, invalidArgument("blob id", text, reason)
	}
	return id, nil
}

// parseBlobID returns the id, or the defect of its text.
func parseBlobID(text string) (BlobID, string) {
	const form = "want a UUID of version 7 in lower case, for example 01890a5d-ac96-774b-bcce-b302099a8057"
	var id BlobID
	digits := strings.ReplaceAll(text, "-", "")
	if len(text) != blobIDLen || len(digits) != hex.EncodedLen(len(id)) {
		return BlobID{}, form
	}
	if _, err := hex.Decode(id[:], []byte(digits)); err != nil {
		return BlobID{}, form
	}
	if id.String() != text || !id.IsValid() {
		return BlobID{}, form
	}
	return id, ""
}

// KeyRoot is the prefix of the keys of all blobs: "blobs/<class>h/<id>".
const KeyRoot = "blobs/"

const keyMiddle = "h/"

// Key returns the key of the blob with that retention class (in hours) and id. Keys of a class sort by time.
func Key(class uint32, id BlobID) string {
	dst := make([]byte, 0, len(KeyRoot)+10+len(keyMiddle)+blobIDLen)
	dst = append(dst, KeyRoot...)
	dst = strconv.AppendUint(dst, uint64(class), 10)
	dst = append(dst, keyMiddle...)
	return string(id.appendTo(dst))
}

// ParseKey parses exactly the output of [Key]. The error is an [ErrInvalid].
func ParseKey(key string) (class uint32, id BlobID, err error) {
	refuse := func(reason string) (uint32, BlobID, error) {
		return 0, BlobID{}, invalidArgument("blob key", key, reason)
	}
	rest, ok := strings.CutPrefix(key, KeyRoot)
	number, text, found := strings.Cut(rest, keyMiddle)
	if !ok || !found {
		return refuse(`want "blobs/<hours>h/<id>"`)
	}
	hours, perr := strconv.ParseUint(number, 10, 32)
	if perr != nil || strconv.FormatUint(hours, 10) != number {
		return refuse("the retention class is a number of hours up to " + strconv.FormatUint(math.MaxUint32, 10) + ", without leading zeros")
	}
	id, reason := parseBlobID(text)
	if reason != "" {
		return refuse(reason)
	}
	return uint32(hours), id, nil
}
