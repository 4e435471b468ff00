package catalog

import (
	"bufio"
	"fmt"
	"os"

	scribev1 "scribe/proto/scribe/v1"
)

// FileCopy is what a file of the last good state holds: the categories as a process knew them.
type FileCopy struct {
	// Revision: the copy has every change up to it.
	Revision uint64
	// SavedAt is when it was written, in Unix microseconds, by the clock of who wrote it.
	SavedAt    int64
	Categories []*scribev1.Category
}

// ReadCopy reads the file that a [View] keeps (Config.File): for those who have to set up lost categories again. A damaged file is an
// error, and nothing of it is used.
func ReadCopy(path string) (FileCopy, error) {
	f, err := os.Open(path)
	if err != nil {
		return FileCopy{}, fmt.Errorf("catalog: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	s, err := decodeSnapshot(bufio.NewReaderSize(f, 256<<10))
	if err != nil {
		return FileCopy{}, fmt.Errorf("%s: %w", path, err)
	}
	return FileCopy{Revision: s.revision, SavedAt: s.savedAt, Categories: s.categories}, nil
}
