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

// SaveCheckpoint replaces a file with the text of a checkpoint. It writes a temporary file beside it, syncs and renames it, so
// that the file always holds the previous checkpoint or this one, also after a crash. Calls for the same file must not run
// concurrently.
//
// An application whose output has transactions stores the text in them instead: then output and position can't diverge.
func SaveCheckpoint(file, text string) error {
	if _, err := Checkpoint(text); err != nil {
		return fmt.Errorf("save %s: %w", file, err) // an unreadable text must not replace a readable one
	}
	if err := atomicfile.WriteBytes(file, []byte(text+"\n")); err != nil {
		return fmt.Errorf("consumer: save a checkpoint: %w", err)
	}
	return nil
}

// LoadCheckpoint returns the start position stored in a file that [SaveCheckpoint] wrote; found is false when the file does not
// exist. A truncated or changed file yields an error that matches [ErrCheckpoint], never a wrong position.
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
