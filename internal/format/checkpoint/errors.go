package checkpoint

import (
	"errors"
	"fmt"
)

var (
	// ErrCorrupt is a text that does not come from [Checkpoint.String].
	ErrCorrupt = errors.New("checkpoint: damaged or not a checkpoint")
	// ErrVersion is a checkpoint of a newer version.
	ErrVersion = errors.New("checkpoint: version")
	// ErrInvalid is a field outside the format's rules.
	ErrInvalid = errors.New("checkpoint: invalid")
)

func corruptText(format string, args ...any) error {
	return fmt.Errorf("%w: %s; use the text exactly as it was printed", ErrCorrupt, fmt.Sprintf(format, args...))
}
