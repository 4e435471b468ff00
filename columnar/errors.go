package columnar

import (
	"errors"
	"fmt"
)

// Errors that callers branch on.
var (
	// ErrInvalid means that bytes are not an Arrow IPC stream of one batch, or contradict themselves. It is damage, or the work
	// of a faulty writer: no retry helps.
	ErrInvalid = errors.New("columnar: invalid Arrow stream")
	// ErrUnsupported means that a stream or a batch uses a part of Arrow that this package refuses.
	ErrUnsupported = errors.New("columnar: unsupported part of Arrow")
	// ErrTooLarge means that a stream or a batch is over a limit of this package.
	ErrTooLarge = errors.New("columnar: too large")
	// ErrArrowFrame means that a payload holds a frame whose body is an Arrow batch, where row messages are wanted.
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
