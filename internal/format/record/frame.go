package record

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"strings"
)

// Limits of the format. A reader refuses larger values; a writer never writes them.
const (
	// HeaderLen is the length of the fixed header in bytes. The category name follows it.
	HeaderLen = 64
	// MaxFrameLen bounds a frame in bytes: header, name and body.
	MaxFrameLen = 64 << 20
	// DefaultMaxMessageSize is the default bound of [Message.Size] in bytes.
	DefaultMaxMessageSize = 16 << 20
	// MaxMessagesPerFrame bounds the messages, or rows, of one frame.
	MaxMessagesPerFrame = 1 << 20
	// MaxAttributes bounds the attributes of one message.
	MaxAttributes = 1024
	// MaxKeyLen bounds the key of a message in bytes.
	MaxKeyLen = 64 << 10
	// MaxCategoryName bounds the name of a category in bytes.
	MaxCategoryName = 255
	// MaxLogicalShard is the highest number of a logical shard.
	MaxLogicalShard = 65535
)

// Versions of the format. Version is the newest that this build reads. It writes version 1, which every reader knows, unless the
// frame has a placement tag.
const (
	Version       = 2
	versionPlain  = 1
	versionPlaced = 2
)

// MaxPlacement is the highest tag of a placement.
const MaxPlacement = 1<<24 - 1

// Encoding is the layout of a frame's body. The numbers are persisted and never reused.
type Encoding uint8

const (
	// EncodingMessages is the row encoding that [Builder] writes and [Decoder] reads.
	EncodingMessages Encoding = 1
	// EncodingArrow is one Arrow IPC stream that holds one record batch.
	EncodingArrow Encoding = 2
)

// String returns the name of the encoding in lower case.
func (e Encoding) String() string {
	switch e {
	case EncodingMessages:
		return "messages"
	case EncodingArrow:
		return "arrow"
	default:
		return fmt.Sprintf("encoding(%d)", uint8(e))
	}
}

// Flags of a frame. The bits are persisted and never reused; bits without a name are 0.
type Flags uint16

const (
	// FlagAtomic marks a frame that is stored and delivered contiguously or not at all.
	FlagAtomic Flags = 1
	// FlagSequenced marks a frame whose producer id, epoch and first sequence are set. Without it the three are 0.
	FlagSequenced Flags = 2

	knownFlags = FlagAtomic | FlagSequenced
)

// String lists the flags by name, for example "atomic|sequenced".
func (f Flags) String() string {
	var names []string
	if f&FlagAtomic != 0 {
		names = append(names, "atomic")
	}
	if f&FlagSequenced != 0 {
		names = append(names, "sequenced")
	}
	if rest := f &^ knownFlags; rest != 0 {
		names = append(names, fmt.Sprintf("%#x", uint16(rest)))
	}
	return cmp.Or(strings.Join(names, "|"), "none")
}

const magic = "SCRF"

// Offsets of the fields of the fixed header. All integers are little-endian.
const (
	offMagic         = 0
	offVersion       = 4
	offEncoding      = 5
	offFlags         = 6
	offLen           = 8
	offCount         = 12
	offShard         = 16
	offNameLen       = 20
	offPlacement     = 21
	offBaseTime      = 24
	offProducer      = 32
	offEpoch         = 40
	offSampleRate    = 44
	offFirstSequence = 48
	offBodyCRC       = 56
	offHeaderCRC     = 60
)

// Envelope is the content of the header that a writer chooses.
type Envelope struct {
	// Category is the name of the category, valid by [ValidateCategory].
	Category string
	// Shard is the logical shard, at most [MaxLogicalShard].
	Shard uint32
	// Atomic requests contiguous storage and delivery, or none at all.
	Atomic bool

	// Producer, Epoch and FirstSequence count only when Sequenced is set and are written as 0 otherwise. FirstSequence is the sequence
	// number of the first message; the frame covers FirstSequence and the count-1 that follow.
	Producer      uint64
	Epoch         uint32
	FirstSequence uint64
	Sequenced     bool

	// BaseTime is the event time, in Unix microseconds, of messages without a time of their own.
	BaseTime int64
	// SampleRate N means that one message in N was kept; 0 and 1 mean all.
	SampleRate uint32
	// Placement is the tag of the layout from which the shard follows (package placement), at most [MaxPlacement]; 0 for none.
	Placement uint32
}

func (env *Envelope) validateFields() error {
	if err := ValidateCategory(env.Category); err != nil {
		return err
	}
	if env.Shard > MaxLogicalShard {
		return &InvalidError{
			What: "logical shard", Value: fmt.Sprint(env.Shard),
			Reason: fmt.Sprintf("the highest is %d", MaxLogicalShard),
		}
	}
	if env.Placement > MaxPlacement {
		return &InvalidError{What: "placement", Value: fmt.Sprint(env.Placement), Reason: fmt.Sprintf("the highest is %d", MaxPlacement)}
	}
	return nil
}

// Header is a checked, decoded header. It comes from [ParseHeader] or [Check].
type Header struct {
	// Len is the length of the frame in bytes: header, name and body.
	Len int
	// Count is the number of messages, or rows of an Arrow body; at least 1.
	Count    int
	Encoding Encoding
	Flags    Flags
	Shard    uint32
	// Category points into the buffer that was parsed; it must not be changed,
	// and lives as long as the buffer. See [Header.CategoryName].
	Category []byte
	// BaseTime is in Unix microseconds.
	BaseTime int64
	// Producer, Epoch and FirstSequence are 0 unless [Header.Sequenced].
	Producer      uint64
	Epoch         uint32
	FirstSequence uint64
	// SampleRate is as stored: 0 and 1 both mean that all messages were kept.
	SampleRate uint32
	// Placement is as in [Envelope.Placement].
	Placement uint32
	// BodyCRC is the stored checksum of the body. [ParseHeader] does not verify it; [Check] does.
	BodyCRC uint32
	// HeaderCRC is the stored checksum of header and name, verified by [ParseHeader].
	HeaderCRC uint32
}

// CategoryName returns a copy of the category's name.
func (h *Header) CategoryName() string { return string(h.Category) }

// Atomic reports whether [FlagAtomic] is set.
func (h *Header) Atomic() bool { return h.Flags&FlagAtomic != 0 }

// Sequenced reports whether [FlagSequenced] is set.
func (h *Header) Sequenced() bool { return h.Flags&FlagSequenced != 0 }

// NextSequence returns the sequence number that follows the frame's last message. It has no meaning unless [Header.Sequenced].
func (h *Header) NextSequence() uint64 { return h.FirstSequence + uint64(h.Count) }

// BodyOffset returns the offset of the body in bytes from the start of the frame.
func (h *Header) BodyOffset() int { return HeaderLen + len(h.Category) }

// BodyLen returns the length of the body in bytes.
func (h *Header) BodyLen() int { return h.Len - h.BodyOffset() }

// Envelope returns the header as a writer gave it. It copies the category's name.
func (h *Header) Envelope() Envelope {
	return Envelope{
		Category:      h.CategoryName(),
		Shard:         h.Shard,
		Atomic:        h.Atomic(),
		Producer:      h.Producer,
		Epoch:         h.Epoch,
		FirstSequence: h.FirstSequence,
		Sequenced:     h.Sequenced(),
		BaseTime:      h.BaseTime,
		SampleRate:    h.SampleRate,
		Placement:     h.Placement,
	}
}

// ParseHeader checks and decodes the header and the category name at the start of b. It does not read the body, which need not be
// in b. It allocates only if it fails.
//
// The errors are [CorruptError], [VersionError] and [TruncatedError]. For a prefix of a valid frame, the error is always a
// TruncatedError.
func ParseHeader(b []byte) (Header, error) {
	// As many bytes of the magic as b has are compared, so that other data is never taken for the beginning of a frame.
	if n := min(len(b), len(magic)); string(b[:n]) != magic[:n] {
		return Header{}, corruptFrame("magic", offMagic, "found %q, want %q", b[:n], magic)
	}
	// In another version only the offset of the version byte is known, so this check comes before length and checksum.
	if len(b) > offVersion {
		switch v := b[offVersion]; {
		case v == 0:
			return Header{}, corruptFrame("version", offVersion, "0 was never written")
		case v > Version:
			return Header{}, &VersionError{Version: v, Supported: Version}
		}
	}
	if len(b) < HeaderLen {
		return Header{}, &TruncatedError{What: "header", Need: HeaderLen, Have: len(b)}
	}
	nameEnd := HeaderLen + int(b[offNameLen])
	if len(b) < nameEnd {
		return Header{}, &TruncatedError{What: "category name", Need: nameEnd, Have: len(b)}
	}
	fixed, name := b[:HeaderLen:HeaderLen], b[HeaderLen:nameEnd:nameEnd]
	stored := binary.LittleEndian.Uint32(fixed[offHeaderCRC:])
	if computed := headerCRC(fixed, name); computed != stored {
		return Header{}, corruptFrame("header checksum", offHeaderCRC, "stored %#08x, computed %#08x", stored, computed)
	}
	return decodeHeader(fixed, name, stored)
}

// decodeHeader decodes a header with a valid checksum. Whatever it refuses was written that way, by a faulty or hostile writer.
func decodeHeader(fixed, name []byte, crc uint32) (Header, error) {
	var (
		length = binary.LittleEndian.Uint32(fixed[offLen:])
		count  = binary.LittleEndian.Uint32(fixed[offCount:])
	)
	h := Header{
		Encoding:      Encoding(fixed[offEncoding]),
		Flags:         Flags(binary.LittleEndian.Uint16(fixed[offFlags:])),
		Shard:         binary.LittleEndian.Uint32(fixed[offShard:]),
		Category:      name,
		BaseTime:      int64(binary.LittleEndian.Uint64(fixed[offBaseTime:])),
		Producer:      binary.LittleEndian.Uint64(fixed[offProducer:]),
		Epoch:         binary.LittleEndian.Uint32(fixed[offEpoch:]),
		SampleRate:    binary.LittleEndian.Uint32(fixed[offSampleRate:]),
		Placement:     binary.LittleEndian.Uint32(fixed[offPlacement-1:]) >> 8,
		FirstSequence: binary.LittleEndian.Uint64(fixed[offFirstSequence:]),
		BodyCRC:       binary.LittleEndian.Uint32(fixed[offBodyCRC:]),
		HeaderCRC:     crc,
	}
	// Lengths stay unsigned until they are known to be small.
	bodyOffset := uint32(HeaderLen + len(name))
	switch {
	case h.Encoding != EncodingMessages && h.Encoding != EncodingArrow:
		return Header{}, corruptFrame("encoding", offEncoding, "%d is unknown", uint8(h.Encoding))
	case h.Flags&^knownFlags != 0:
		return Header{}, corruptFrame("flags", offFlags, "%s: unknown bits are set", h.Flags)
	case length > MaxFrameLen:
		return Header{}, corruptFrame("frame length", offLen, "%d is over the limit of %d", length, MaxFrameLen)
	case length <= bodyOffset:
		return Header{}, corruptFrame("frame length", offLen, "%d leaves no body after %d bytes of header and name", length, bodyOffset)
	case count == 0 || count > MaxMessagesPerFrame:
		return Header{}, corruptFrame("message count", offCount, "%d is not in 1..%d", count, MaxMessagesPerFrame)
	// A message takes at least one byte. An Arrow row may take none: a column of nulls has no buffers.
	case h.Encoding == EncodingMessages && count > length-bodyOffset:
		return Header{}, corruptFrame("message count", offCount, "%d messages do not fit a body of %d bytes", count, length-bodyOffset)
	case h.Shard > MaxLogicalShard:
		return Header{}, corruptFrame("logical shard", offShard, "%d is over the limit of %d", h.Shard, MaxLogicalShard)
	case fixed[offVersion] == versionPlain && h.Placement != 0:
		return Header{}, corruptFrame("reserved bytes", offPlacement, "must be 0 in version 1")
	case fixed[offVersion] == versionPlaced && h.Placement == 0:
		return Header{}, corruptFrame("placement", offPlacement, "must not be 0 in version 2")
	case !h.Sequenced() && (h.Producer != 0 || h.Epoch != 0 || h.FirstSequence != 0):
		return Header{}, corruptFrame("producer id", offProducer, "producer, epoch and first sequence must be 0 in a frame that is not sequenced")
	case h.FirstSequence > math.MaxUint64-uint64(count):
		return Header{}, corruptFrame("first sequence", offFirstSequence, "%d leaves no room for %d messages", h.FirstSequence, count)
	}
	if reason := checkName(name); reason != "" {
		return Header{}, corruptFrame("category name", HeaderLen, "%s", reason)
	}
	h.Len, h.Count = int(length), int(count)
	return h, nil
}

func corruptFrame(what string, offset int, format string, args ...any) *CorruptError {
	return &CorruptError{What: what, Offset: int64(offset), Reason: fmt.Sprintf(format, args...)}
}

// Check is [ParseHeader], and also checks that the whole frame is in b and that its body matches the header's checksum. Every hop
// runs it on each frame that it takes over. b may hold more after the frame.
//
// Check does not decode messages. A body that was encoded wrongly and then checksummed passes, and is refused by the [Decoder].
func Check(b []byte) (Header, error) {
	h, err := CheckHeader(b)
	if err != nil {
		return Header{}, err
	}
	if computed := CRC(b[h.BodyOffset():h.Len]); computed != h.BodyCRC {
		return Header{}, corruptFrame("body checksum", h.BodyOffset(), "stored %#08x, computed %#08x", h.BodyCRC, computed)
	}
	return h, nil
}

// CheckHeader is [Check] without the body's checksum, for a hop within a process that has already checked the frame.
func CheckHeader(b []byte) (Header, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return Header{}, err
	}
	if len(b) < h.Len {
		return Header{}, &TruncatedError{What: "body", Need: h.Len, Have: len(b)}
	}
	return h, nil
}

// Frame is one frame in a buffer that holds several.
type Frame struct {
	Header
	// Bytes is the whole frame. It aliases the buffer.
	Bytes []byte
	// Offset is the offset of the frame in the buffer, in bytes.
	Offset int
}

// Body returns the frame's body. It aliases the buffer.
func (f Frame) Body() []byte { return f.Bytes[f.BodyOffset():] }

// Split yields the consecutive frames in b. It checks headers, and that each frame is complete; it does not check bodies (see
// [Check]). An error ends the sequence. The Frame yielded with it has only the Offset at which no valid frame begins, and the
// error's own offset counts from the start of b. An empty b yields nothing.
func Split(b []byte) iter.Seq2[Frame, error] {
	return func(yield func(Frame, error) bool) {
		for offset := 0; offset < len(b); {
			rest := b[offset:]
			h, err := CheckHeader(rest)
			if err != nil {
				yield(Frame{Offset: offset}, shiftOffset(err, offset))
				return
			}
			if !yield(Frame{Header: h, Bytes: rest[:h.Len:h.Len], Offset: offset}, nil) {
				return
			}
			offset += h.Len
		}
	}
}

// SetSampleRate changes the sample rate of the frame at the start of b, in place, together with the header checksum; the body and
// its checksum stay. The header is checked first, so that damage does not get a valid checksum. b need not hold the body.
func SetSampleRate(b []byte, rate uint32) error {
	h, err := ParseHeader(b)
	if err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(b[offSampleRate:], rate)
	binary.LittleEndian.PutUint32(b[offHeaderCRC:], headerCRC(b[:HeaderLen], h.Category))
	return nil
}

// SetPlacement changes the logical shard and the placement tag of the frame at the start of b, in place, together with the header
// checksum; the body and its checksum stay. Otherwise it is like [SetSampleRate].
func SetPlacement(b []byte, shard, tag uint32) error {
	h, err := ParseHeader(b)
	if err != nil {
		return err
	}
	env := Envelope{Category: h.CategoryName(), Shard: shard, Placement: tag}
	if err := env.validateFields(); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(b[offShard:], shard)
	setPlacement(b, tag)
	binary.LittleEndian.PutUint32(b[offHeaderCRC:], headerCRC(b[:HeaderLen], h.Category))
	return nil
}

// setPlacement writes the tag, and the version that goes with it.
func setPlacement(frame []byte, tag uint32) {
	frame[offVersion] = versionPlain
	if tag != 0 {
		frame[offVersion] = versionPlaced
	}
	frame[offPlacement], frame[offPlacement+1], frame[offPlacement+2] = byte(tag), byte(tag>>8), byte(tag>>16)
}

// writeHeader writes the header in front of a complete frame: HeaderLen bytes of any content, the name, the body. The frame must
// be within MaxFrameLen and env valid.
func writeHeader(frame []byte, encoding Encoding, count int, env *Envelope, bodyCRC uint32) {
	var (
		nameEnd = HeaderLen + len(env.Category)
		flags   Flags
	)
	if env.Atomic {
		flags |= FlagAtomic
	}
	clear(frame[:HeaderLen])
	copy(frame[offMagic:], magic)
	setPlacement(frame, env.Placement)
	frame[offEncoding] = uint8(encoding)
	if env.Sequenced {
		flags |= FlagSequenced
		binary.LittleEndian.PutUint64(frame[offProducer:], env.Producer)
		binary.LittleEndian.PutUint32(frame[offEpoch:], env.Epoch)
		binary.LittleEndian.PutUint64(frame[offFirstSequence:], env.FirstSequence)
	}
	binary.LittleEndian.PutUint16(frame[offFlags:], uint16(flags))
	binary.LittleEndian.PutUint32(frame[offLen:], uint32(len(frame)))
	binary.LittleEndian.PutUint32(frame[offCount:], uint32(count))
	binary.LittleEndian.PutUint32(frame[offShard:], env.Shard)
	frame[offNameLen] = uint8(len(env.Category))
	binary.LittleEndian.PutUint64(frame[offBaseTime:], uint64(env.BaseTime))
	binary.LittleEndian.PutUint32(frame[offSampleRate:], env.SampleRate)
	binary.LittleEndian.PutUint32(frame[offBodyCRC:], bodyCRC)
	binary.LittleEndian.PutUint32(frame[offHeaderCRC:], headerCRC(frame[:HeaderLen], frame[HeaderLen:nameEnd]))
}

// checkSequence refuses a first sequence if count messages from it wrap.
func checkSequence(sequenced bool, first uint64, count int) error {
	if sequenced && first > math.MaxUint64-uint64(count) {
		return &InvalidError{
			What: "first sequence", Value: fmt.Sprint(first),
			Reason: fmt.Sprintf("leaves no room for %d messages", count),
		}
	}
	return nil
}
