package record

import (
	"errors"
	"fmt"
	"io"
)

var (
	// ErrCorrupt matches every [CorruptError].
	ErrCorrupt = errors.New("record: corrupt frame")
	// ErrVersion matches every [VersionError].
	ErrVersion = errors.New("record: unsupported frame version")
	// ErrTruncated matches every [TruncatedError].
	ErrTruncated = errors.New("record: truncated frame")
	// ErrTooLarge matches [MessageTooLargeError] and [LimitError].
	ErrTooLarge = errors.New("record: too large")
	// ErrInvalid matches every [InvalidError].
	ErrInvalid = errors.New("record: invalid argument")
	// ErrFrameFull means that a message is within its limits but does not fit this frame. Finish the frame and append to another.
	ErrFrameFull = errors.New("record: frame is full")
	// ErrEmptyFrame means that a frame was finished without a message.
	ErrEmptyFrame = errors.New("record: frame without a message")
	// ErrNoFrame means that a Builder was used outside Reset and Finish.
	ErrNoFrame = errors.New("record: no frame begun")
	// ErrEncoding means that a frame's body is not in the encoding that the call decodes: an Arrow body given to a [Decoder].
	ErrEncoding = errors.New("record: frame has another encoding")
)

// CorruptError is damage, or bytes that no writer of the format produces. It matches [ErrCorrupt].
type CorruptError struct {
	// What names the damaged part, for example "header checksum" or "message 3: key length". Messages count from 0.
	What string
	// Reason describes the damage. It may be empty.
	Reason string
	// Offset is the offset of the part in bytes from the start of the frame, or, in errors of [Split], from the start of its
	// buffer.
	Offset int64
}

// Error names the part and the offset.
func (e *CorruptError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("record: corrupt frame: %s at byte %d", e.What, e.Offset)
	}
	return fmt.Sprintf("record: corrupt frame: %s at byte %d: %s", e.What, e.Offset, e.Reason)
}

// Is reports whether target is [ErrCorrupt].
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// VersionError is a frame of a version that this build does not read. It matches [ErrVersion]. It is not damage: a newer build reads it.
type VersionError struct {
	Version   uint8 // of the frame
	Supported uint8 // the newest that this build reads
	// Offset is the offset of the frame in bytes from the start of the buffer.
	Offset int64
}

// Error names the version and a remedy.
func (e *VersionError) Error() string {
	return fmt.Sprintf("record: frame version %d at byte %d is newer than version %d, the newest that this build reads: upgrade the reader",
		e.Version, e.Offset, e.Supported)
}

// Is reports whether target is [ErrVersion].
func (e *VersionError) Is(target error) bool { return target == ErrVersion }

// TruncatedError is a buffer that ends before the frame does. It matches [ErrTruncated] and [io.ErrUnexpectedEOF]. The caller
// decides whether it is damage: a stream may not have been read far enough.
type TruncatedError struct {
	What string // the part that is cut: "header", "category name" or "body"
	Need int    // bytes of the frame needed to read that part
	Have int    // bytes at hand
	// Offset is the offset of the frame in bytes from the start of the buffer.
	Offset int64
}

// Error names the truncated part and the missing bytes.
func (e *TruncatedError) Error() string {
	return fmt.Sprintf("record: truncated frame at byte %d: %s needs %d bytes, have %d", e.Offset, e.What, e.Need, e.Have)
}

// Is reports whether target is [ErrTruncated] or [io.ErrUnexpectedEOF].
func (e *TruncatedError) Is(target error) bool {
	return target == ErrTruncated || target == io.ErrUnexpectedEOF
}

// MessageTooLargeError is a message whose [Message.Size] is over the limit. It matches [ErrTooLarge].
type MessageTooLargeError struct {
	Size  int // bytes of the message
	Limit int // bytes allowed
}

// Error gives the size of the message and the limit.
func (e *MessageTooLargeError) Error() string {
	return fmt.Sprintf("record: message of %d bytes is over the limit of %d bytes", e.Size, e.Limit)
}

// Is reports whether target is [ErrTooLarge].
func (e *MessageTooLargeError) Is(target error) bool { return target == ErrTooLarge }

// LimitError is a part of a message, or a whole frame, over its fixed limit. It matches [ErrTooLarge].
type LimitError struct {
	What  string // for example "key bytes", "attributes", "frame bytes"
	Value int
	Limit int
}

// Error names the part and the limit.
func (e *LimitError) Error() string {
	return fmt.Sprintf("record: %d %s, the limit is %d", e.Value, e.What, e.Limit)
}

// Is reports whether target is [ErrTooLarge].
func (e *LimitError) Is(target error) bool { return target == ErrTooLarge }

// InvalidError is an argument that the format cannot hold or forbids. It matches [ErrInvalid].
type InvalidError struct {
	What   string // for example "category name"
	Value  string // as given, shortened when it is long
	Reason string
}

// Error names the argument, its value, and the reason. Users who do not know this package see it.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("invalid %s %q: %s", e.What, e.Value, e.Reason)
}

// Is reports whether target is [ErrInvalid].
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// shiftOffset returns err with its offset moved by n bytes, for a frame that begins n bytes into a buffer. The errors of this package are
// fresh values, never shared, so they may be changed in place.
func shiftOffset(err error, n int) error {
	switch e := err.(type) { //nolint:errorlint // only the errors that ParseHeader returns, unwrapped
	case *CorruptError:
		e.Offset += int64(n)
	case *VersionError:
		e.Offset += int64(n)
	case *TruncatedError:
		e.Offset += int64(n)
	}
	return err
}

// shortened shortens a value for an error: errors travel to logs and over RPCs.
func shortened[T string | []byte](v T) string {
	const limit = 64
	if len(v) > limit {
		return string(v[:limit]) + "..."
	}
	return string(v)
}
