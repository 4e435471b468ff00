package consumer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"scribe/internal/base/atomicfile"
	"scribe/internal/format/checkpoint"
)

// SaveCheckpoint replaces a file with the text of a checkpoint: it is written beside it, synced and renamed, so that the file holds the
// one before or this one at any moment, also after a crash. Calls for the same file must not run at the same time.
//
// An application whose output has transactions keeps the text in them instead: then output and place can't come apart.
func SaveCheckpoint(file, text string) error {
	if _, err := Checkpoint(text); err != nil {
		return fmt.Errorf("save %s: %w", file, err) // what could not be read again does not replace what can
	}
	if err := atomicfile.WriteBytes(file, []byte(text+"\n")); err != nil {
		return fmt.Errorf("consumer: save a checkpoint: %w", err)
	}
	return nil
}

// LoadCheckpoint returns where a file that [SaveCheckpoint] wrote says to begin; found is false when there is none. A file that was cut
// or changed is an error that matches [ErrCheckpoint], never another place.
func LoadCheckpoint(file string) (start Start, found bool, err error) {
	f, err := os.Open(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Start{}, false, nil
	case err != nil:
		return Start{}, false, fmt.Errorf("consumer: load a checkpoint: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	const ends = 2                   // "\r\n", after an editor
	b, err := io.ReadAll(io.LimitReader(f, checkpoint.MaxText+ends+1))
	if err != nil {
		return Start{}, false, fmt.Errorf("consumer: load a checkpoint: %w", err)
	}
	start, err = Checkpoint(strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r"))
	if err != nil {
		return Start{}, false, fmt.Errorf("load %s: %w", file, err)
	}
	return start, true, nil
}
