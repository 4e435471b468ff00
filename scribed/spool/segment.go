package spool

import (
	"errors"
	"io"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/buffers"
	"scribe/scribed/spool/layout"
)

// segmentState says what may be done with a segment.
type segmentState uint8

const (
	// active: it is appended to.
	active segmentState = iota
	// sealing: it is not appended to any more, and gets its footer when its data is synced.
	sealing
	// sealed: it does not change any more.
	sealed
	// failed: a sync of it failed. It is never written or synced again, but can be read, and is rewritten as another file.
	failed
)

// String is the name that metrics and logs use.
func (s segmentState) String() string {
	switch s {
	case active:
		return "active"
	case sealing:
		return "sealing"
	case sealed:
		return "sealed"
	default:
		return "failed"
	}
}

// segmentFile is a file of the log. The spool's mutex guards what changes; file and end are also read under the tail's mutex alone,
// under which they change while the segment is active.
type segmentFile struct {
	id    layout.SegmentID
	path  string
	state segmentState
	// file is open while the segment is not sealed.
	file vfs.File
	// charge is what counts against MaxBytes.
	charge int64
	// capacity: records and footer are to end before it.
	capacity int64
	// end is where the records end, footerAt where the footer begins.
	end, footerAt int64
	// footerSum is the footer's checksum; 0 while there is none.
	footerSum uint32
	// footerBytes is at most what the footer takes for what was appended.
	footerBytes int64
	// hasLeftovers: a failed write may have left bytes behind end.
	hasLeftovers bool

	parts []*segmentPart
	names map[string]*segmentPart // while active
	// held counts records that are not finished, live is at most the bytes that they take.
	held, live int64

	// synced is the end of what is known to be on disk. chunks are copies of what is behind it.
	synced int64
	chunks []unsyncedChunk
	// firstUnsynced is a lower bound of the sequence number of the first Append behind synced; 0 when there is none. lastAppend is
	// that of the last Append.
	firstUnsynced, lastAppend uint64

	// readers use the file or its name, who writes to it among them; whoever is the last of a gone segment lets the keeper remove it.
	readers int
	gone    bool
	// busy: it is being rewritten.
	busy bool
	// needsRewrite: its footer is damaged, so it should be rewritten.
	needsRewrite bool
}

// unsyncedChunk is a copy of a part of a segment that may not be on disk yet.
type unsyncedChunk struct {
	from int64
	buf  []byte
	mem  *buffers.Buffer // that buf is a part of
}

func (c *unsyncedChunk) end() int64 { return c.from + int64(len(c.buf)) }

// unsynced is how many bytes may not be on disk.
func (g *segmentFile) unsynced() int64 {
	if g.firstUnsynced == 0 {
		return 0
	}
	return g.end - g.synced
}

// salvageReader reads what can be read: blocks of a bad disk read as zeros, which no checksum matches.
type salvageReader struct{ r io.ReaderAt }

const salvageBlock = 4 << 10

// ReadAt implements io.ReaderAt.
func (s salvageReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := s.r.ReadAt(p, off)
	if err == nil || !errors.Is(err, syscall.EIO) {
		return n, err
	}
	for n = 0; n < len(p); {
		b := p[n:min(len(p), n+salvageBlock-int((off+int64(n))%salvageBlock))]
		got, err := s.r.ReadAt(b, off+int64(n))
		switch {
		case err == nil:
		case errors.Is(err, syscall.EIO):
			clear(b)
			got = len(b)
		default:
			return n + got, err
		}
		n += got
	}
	return n, nil
}

// noSpace reports whether an error says that a disk or a quota is full.
func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// cannotPreallocate reports whether an error says that the file system has no preallocation.
func cannotPreallocate(err error) bool {
	return errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, errors.ErrUnsupported)
}
