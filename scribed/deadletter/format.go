package deadletter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"scribe/internal/format/record"
	"scribe/scribed/keyring"
)

// Letter is one frame that could not be delivered.
type Letter struct {
	// Time is when the agent gave the frame up, to a microsecond.
	Time time.Time
	// Category is the frame's category; 1 to 255 bytes.
	Category string
	// Reason is the name of the reason in lower case, such as "unknown_category"; 1 to 64 bytes.
	Reason string
	// Message is the error's text; 4,096 bytes of it are kept.
	Message string
	// Frame is the frame as it was accepted; at most [record.MaxFrameLen] bytes.
	Frame []byte
	// Unread says why Message and Frame, which are encrypted, are not there; nil if they are.
	Unread error
}

// Versions of the format.
const (
	Version = 1
	// VersionEncrypted is that of files whose messages and frames are encrypted.
	VersionEncrypted = 2
)

// Limits of the format, in bytes.
const (
	maxCategory = 255
	maxReason   = 64
	maxMessage  = 4096
)

const (
	magic     = "SCDL"
	fileLen   = 8  // magic, version, 3 reserved bytes
	headerLen = 24 // of a letter
)

var (
	// ErrCorrupt says that bytes are not what was written.
	ErrCorrupt = errors.New("deadletter: corrupt")
	// ErrVersion says that a file has a newer version than this build reads.
	ErrVersion = errors.New("deadletter: unknown version")
)

// encodedLen is the length of an encoded letter, in bytes, without what encryption adds.
func (l *Letter) encodedLen() int {
	return headerLen + len(l.Category) + len(l.Reason) + min(len(l.Message), maxMessage) + len(l.Frame)
}

// appendLetter appends a letter to a file, encrypted if there are keys that do it.
func appendLetter(dst []byte, l *Letter, keys *keyring.Keyring) ([]byte, error) {
	switch {
	case len(l.Category) < 1 || len(l.Category) > maxCategory:
		return dst, fmt.Errorf("deadletter: category of %d bytes, want 1 to %d", len(l.Category), maxCategory)
	case len(l.Reason) < 1 || len(l.Reason) > maxReason:
		return dst, fmt.Errorf("deadletter: reason of %d bytes, want 1 to %d", len(l.Reason), maxReason)
	case len(l.Frame) > record.MaxFrameLen:
		return dst, fmt.Errorf("deadletter: frame of %d bytes, the limit is %d", len(l.Frame), record.MaxFrameLen)
	}
	message := l.Message
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "")
	}
	at := len(dst)
	length := headerLen + len(l.Category) + len(l.Reason) + len(message) + len(l.Frame)
	if keys.Encrypts() {
		length += keyring.Overhead
	}
	dst = append(dst, 0, 0, 0, 0)                               // the checksum
	dst = binary.LittleEndian.AppendUint32(dst, uint32(length)) //nolint:gosec // its parts are bounded
	dst = binary.LittleEndian.AppendUint64(dst, uint64(l.Time.UnixMicro()))
	dst = append(dst, byte(len(l.Category)), byte(len(l.Reason)))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(message)))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(l.Frame)))
	dst = append(append(dst, l.Category...), l.Reason...)
	if keys.Encrypts() {
		key, err := keys.WritingKey(l.Category)
		if err != nil {
			return dst, fmt.Errorf("deadletter: %w", err)
		}
		dst = key.AppendEncrypted(dst, append([]byte(message), l.Frame...), dst[at+boundFrom:])
	} else {
		dst = append(append(dst, message...), l.Frame...)
	}
	binary.LittleEndian.PutUint32(dst[at:], record.CRC(dst[at+4:]))
	return dst, nil
}

// Encode returns a file with the letters, encrypted if there are keys that do it.
func Encode(letters []Letter, keys *keyring.Keyring) ([]byte, error) {
	n := fileLen
	for i := range letters {
		n += letters[i].encodedLen() + keyring.Overhead
	}
	version := byte(Version)
	if keys.Encrypts() {
		version = VersionEncrypted
	}
	dst := append(append(make([]byte, 0, n), magic...), version, 0, 0, 0)
	for i := range letters {
		var err error
		if dst, err = appendLetter(dst, &letters[i], keys); err != nil {
			return nil, err
		}
	}
	return dst, nil
}

// Decode returns the letters of a file. Their frames point into b, in which encrypted ones are decrypted. If a letter is damaged or truncated,
// Decode returns those before it with an error that wraps [ErrCorrupt] and names the offset. The error wraps [ErrVersion] if the file has a newer
// version. Without the keys, a letter says so in Unread.
func Decode(b []byte, keys *keyring.Keyring) ([]Letter, error) {
	if len(b) < fileLen || string(b[:4]) != magic {
		return nil, fmt.Errorf("%w: no dead letters begin with %q", ErrCorrupt, b[:min(len(b), 4)])
	}
	if b[4] > VersionEncrypted {
		return nil, fmt.Errorf("%w: the file is of version %d, this build reads up to %d", ErrVersion, b[4], VersionEncrypted)
	}
	if b[4] == 0 || b[5]|b[6]|b[7] != 0 {
		return nil, fmt.Errorf("%w: version or reserved bytes are wrong", ErrCorrupt)
	}
	var letters []Letter
	for at := fileLen; at < len(b); {
		l, n, err := decodeLetter(b[at:], b[4] == VersionEncrypted, keys)
		if err != nil {
			return letters, fmt.Errorf("%w: letter at byte %d: %w", ErrCorrupt, at, err)
		}
		letters = append(letters, l)
		at += n
	}
	return letters, nil
}

// boundFrom is where the part of a letter begins to which message and frame are bound if they are encrypted: the header without checksum and
// length, the category and the reason.
const boundFrom = 8

func decodeLetter(b []byte, encrypted bool, keys *keyring.Keyring) (l Letter, n int, err error) {
	if len(b) < headerLen {
		return l, 0, fmt.Errorf("%d bytes are left of a header of %d", len(b), headerLen)
	}
	length := binary.LittleEndian.Uint32(b[4:])
	category, reason := int(b[16]), int(b[17])
	message, frame := int(binary.LittleEndian.Uint16(b[18:])), binary.LittleEndian.Uint32(b[20:])
	overhead := 0
	if encrypted {
		overhead = keyring.Overhead
	}
	switch {
	case frame > record.MaxFrameLen || category == 0 || reason == 0 || reason > maxReason || message > maxMessage:
		return l, 0, errors.New("a length is over its limit")
	case uint32(headerLen+category+reason+message+overhead)+frame != length:
		return l, 0, errors.New("the lengths do not add up")
	case int64(length) > int64(len(b)):
		return l, 0, fmt.Errorf("%d bytes are left of %d", len(b), length)
	}
	b = b[:length:length]
	if stored, computed := binary.LittleEndian.Uint32(b), record.CRC(b[4:]); stored != computed {
		return l, 0, fmt.Errorf("checksum: stored %#08x, computed %#08x", stored, computed)
	}
	l.Time = time.UnixMicro(int64(binary.LittleEndian.Uint64(b[8:])))
	rest := b[headerLen:]
	l.Category, rest = string(rest[:category]), rest[category:]
	l.Reason, rest = string(rest[:reason]), rest[reason:]
	if encrypted {
		rest, err = keys.Decrypt(l.Category, rest, b[boundFrom:headerLen+category+reason])
		switch {
		case errors.Is(err, keyring.ErrNotAuthentic):
			return l, 0, err
		case err != nil:
			l.Unread = err
			return l, int(length), nil //nolint:nilerr // the letter has it
		}
	}
	l.Message, rest = string(rest[:message]), rest[message:]
	l.Frame = rest
	return l, int(length), nil
}
