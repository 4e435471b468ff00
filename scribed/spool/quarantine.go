package spool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/scribed/spool/layout"
)

// quarantineFolder is the folder of copies of damaged ranges, for people to look at. It is bounded to limit bytes: longer ranges
// are truncated, and the oldest files are removed.
type quarantineFolder struct {
	fs    vfs.FS
	dir   string
	limit int64

	mu struct {
		sync.Mutex
		files []quarantinedFile // oldest first
		bytes int64
	}
}

type quarantinedFile struct {
	name  string
	bytes int64
}

const quarantineSuffix = ".damaged"

// openFolder lists the files. A missing folder counts as empty.
func (q *quarantineFolder) openFolder() error {
	names, err := q.fs.List(q.dir)
	if isNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	slices.Sort(names) // names begin with the time
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, name := range names {
		info, err := q.fs.Stat(q.fs.PathJoin(q.dir, name))
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, quarantineSuffix) {
			q.mu.files = append(q.mu.files, quarantinedFile{name, info.Size()})
			q.mu.bytes += info.Size()
		}
	}
	return q.shrinkTo(q.limit)
}

// shrinkTo removes the oldest files until at most limit bytes are left. The mutex is held.
func (q *quarantineFolder) shrinkTo(limit int64) error {
	for len(q.mu.files) > 0 && q.mu.bytes > limit {
		if err := q.fs.Remove(q.fs.PathJoin(q.dir, q.mu.files[0].name)); err != nil && !isNotExist(err) {
			return err
		}
		q.mu.bytes -= q.mu.files[0].bytes
		q.mu.files = q.mu.files[1:]
	}
	return nil
}

// addRange copies a range, and returns the file's path.
func (q *quarantineFolder) addRange(now int64, segment uint64, r layout.FileRange, b []byte) (string, error) {
	b = b[:min(int64(len(b)), q.limit)]
	if len(b) == 0 {
		return "", nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.shrinkTo(q.limit - int64(len(b))); err != nil {
		return "", err
	}
	if err := q.fs.MkdirAll(q.dir, folderMode); err != nil {
		return "", err
	}
	name := fmt.Sprintf("%016d-%010d-%010d-%010d%s", now, segment, r.From, r.To, quarantineSuffix)
	path := q.fs.PathJoin(q.dir, name)
	f, err := q.fs.Create(path, diskCategory)
	if err != nil {
		return "", err
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = syncFolder(q.fs, q.dir)
	}
	if err != nil {
		return "", errors.Join(err, q.fs.Remove(path))
	}
	if !slices.ContainsFunc(q.mu.files, func(o quarantinedFile) bool { return o.name == name }) {
		q.mu.files = append(q.mu.files, quarantinedFile{name, int64(len(b))})
		q.mu.bytes += int64(len(b))
	}
	return path, nil
}

func (q *quarantineFolder) usedBytes() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.bytes
}

// keepDamaged copies a damaged range to the quarantine, and returns the file's path, "" if that failed.
func (s *Spool) keepDamaged(segment uint64, r layout.FileRange, b []byte) string {
	path, err := s.quarantine.addRange(s.clock().UnixMicro(), segment, r, b)
	if err != nil {
		s.logger.Error("copying a damaged range to the quarantine failed", "segment", segment, "from", r.From, "to", r.To, "error", err)
	}
	return path
}
