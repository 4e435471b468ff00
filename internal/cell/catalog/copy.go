package catalog

import (
	"bufio"
	"fmt"
	"os"

	scribev1 "scribe/proto/scribe/v1"
)

// FileCopy is the content of a file of the last good state: the categories as a process last had them.
type FileCopy struct {
	// Revision is the revision up to which the copy has every change.
	Revision uint64
	// SavedAt is when the file was written, in Unix microseconds, by its writer's clock.
	SavedAt    int64
	Categories []*scribev1.Category
}

// ReadCopy reads the file that a [View] keeps (Config.File), so that lost categories can be set up again. A damaged file is an
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
