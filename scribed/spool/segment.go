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
	// active: the segment is appended to.
	active segmentState = iota
	// sealing: the segment is no longer appended to, and gets its footer when its data is synced.
	sealing
	// sealed: the segment does not change any more.
	sealed
	// failed: a sync of the segment failed. It is never written or synced again, but can be read, and is rewritten to another
	// file.
	failed
)

// segmentFile is a file of the log. The spool's mutex guards its mutable fields; file and end are also read under the tail's
// mutex alone, which is held when they change while the segment is active.
type segmentFile struct {
	id    layout.SegmentID
	path  string
	state segmentState
	// file is open while the segment is not sealed.
	file vfs.File
	// charge is the bytes that count against MaxBytes.
	charge int64
	// capacity is the offset before which records and footer must end.
	capacity int64
	// end is where the records end, footerAt where the footer begins.
	end, footerAt int64
	// footerSum is the footer's checksum; 0 while there is none.
	footerSum uint32
	// footerBytes is the most bytes that the footer takes for the records appended so far.
	footerBytes int64
	// hasLeftovers says that a failed write may have left bytes after end.
	hasLeftovers bool

	parts []*segmentPart
	names map[string]*segmentPart // only while active
	// held counts the records that are not finished, live is the most bytes that they take.
	held, live int64

	// synced is the end of the bytes known to be on disk. chunks are copies of the bytes after it.
	synced int64
	chunks []unsyncedChunk
	// firstUnsynced is a lower bound of the sequence number of the first Append after synced; 0 when everything is synced.
	// lastAppend is the number of the last Append.
	firstUnsynced, lastAppend uint64

	// readers counts the users of the file or its name, writers included. The keeper removes a gone segment once the last one has
	// unpinned it.
	readers int
	gone    bool
	// busy says that the segment is being rewritten.
	busy bool
	// needsRewrite says that the footer is damaged, so the segment should be rewritten.
	needsRewrite bool
	// encrypted says that the segment may have encrypted records. It never changes.
	encrypted bool
}

// maxSpace is the most space that records of an amount take in the segment.
func (g *segmentFile) maxSpace(category string, a Amount) int64 {
	each := layout.RecordSize(len(category), 0) + layout.Align - 1
	if g.encrypted {
		each += layout.EncryptionOverhead
	}
	return a.Bytes + a.Records*each
}

// unsyncedChunk is a copy of a range of a segment that may not be on disk yet.
type unsyncedChunk struct {
	from int64
	buf  []byte
	mem  *buffers.Buffer // the pooled buffer of buf
}

func (c *unsyncedChunk) end() int64 { return c.from + int64(len(c.buf)) }

// recycleChunks returns the memory of chunks that are on disk to the pool.
func (g *segmentFile) recycleChunks(pool *buffers.Pool) {
	for len(g.chunks) > 0 && g.chunks[0].end() <= g.synced {
		pool.Put(g.chunks[0].mem)
		g.chunks = g.chunks[1:]
	}
}

// unsynced is how many bytes may not be on disk.
func (g *segmentFile) unsynced() int64 {
	if g.firstUnsynced == 0 {
		return 0
	}
	return g.end - g.synced
}

// salvageReader reads around disk errors: unreadable blocks read as zeros, which no checksum matches.
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

// cannotPreallocate reports whether an error says that the file system does not support preallocation.
func cannotPreallocate(err error) bool {
	return errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, errors.ErrUnsupported)
}
