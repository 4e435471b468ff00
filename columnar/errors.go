package columnar

import (
	"errors"
	"fmt"
)

// Errors that callers branch on.
var (
	// ErrInvalid means that the bytes are not an Arrow IPC stream of one batch, or are inconsistent. The cause is damage or a faulty
	// writer; a retry does not help.
	ErrInvalid = errors.New("columnar: invalid Arrow stream")
	// ErrUnsupported means that a stream or a batch uses an Arrow feature that this package rejects.
	ErrUnsupported = errors.New("columnar: unsupported part of Arrow")
	// ErrTooLarge means that a stream or a batch exceeds a limit of this package.
	ErrTooLarge = errors.New("columnar: too large")
	// ErrArrowFrame means that a payload contains a frame with an Arrow batch where row messages are required.
	ErrArrowFrame = errors.New("columnar: the frame holds an Arrow batch, not messages")
)

func invalidError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

func unsupportedError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}

func tooLargeError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrTooLarge, fmt.Sprintf(format, args...))
}
