package spool

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/durable"
	"scribe/scribed/boundedfolder"
	"scribe/scribed/spool/layout"
)

// quarantineFolder is the folder of copies of damaged ranges, for people to look at. It is bounded: longer ranges are truncated, and
// the oldest files are removed.
type quarantineFolder struct {
	mu sync.Mutex
	boundedfolder.Folder
}

const quarantineSuffix = ".damaged"

// newQuarantine returns the quarantine of a spool's folder, bounded to limit bytes.
func newQuarantine(fsys vfs.FS, spoolDir string, limit int64) *quarantineFolder {
	return &quarantineFolder{Folder: boundedfolder.Folder{FS: fsys, Dir: fsys.PathJoin(spoolDir, quarantineName), MaxBytes: limit}}
}

// openFolder lists the files, and removes those beyond the limit. A missing folder counts as empty.
func (q *quarantineFolder) openFolder() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	err := q.FindFiles(func(name string) bool { return strings.HasSuffix(name, quarantineSuffix) }) // names begin with the time
	if err == nil {
		_, _, err = q.MakeSpace(0)
	}
	if isNotExist(err) {
		return nil
	}
	return err
}

// addRange copies a range, and returns the file's path.
func (q *quarantineFolder) addRange(now int64, segment uint64, r layout.FileRange, b []byte) (string, error) {
	b = b[:min(int64(len(b)), q.MaxBytes)]
	if len(b) == 0 {
		return "", nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, _, err := q.MakeSpace(int64(len(b))); err != nil {
		return "", err
	}
	if err := durable.CreateFolder(q.FS, q.Dir, 0o750); err != nil {
		return "", err
	}
	name := fmt.Sprintf("%016d-%010d-%010d-%010d%s", now, segment, r.From, r.To, quarantineSuffix)
	path := q.FS.PathJoin(q.Dir, name)
	f, err := q.FS.Create(path, diskCategory)
	if err != nil {
		return "", err
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = durable.SyncFolder(q.FS, q.Dir)
	}
	if err != nil {
		return "", errors.Join(err, q.FS.Remove(path))
	}
	q.AddFile(name, int64(len(b)))
	return path, nil
}

func (q *quarantineFolder) usedBytes() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, bytes := q.CountFiles()
	return bytes
}

// keepDamaged copies a damaged range to the quarantine, and returns the file's path, "" if that failed.
func (s *Spool) keepDamaged(segment uint64, r layout.FileRange, b []byte) string {
	path, err := s.quarantine.addRange(s.clock().UnixMicro(), segment, r, b)
	if err != nil {
		s.logger.Error("copying a damaged range to the quarantine failed", "segment", segment, "from", r.From, "to", r.To, "error", err)
	}
	return path
}
