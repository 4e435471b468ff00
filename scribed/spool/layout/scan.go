package layout

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// ScannedRecord is a record that ScanSegment found by its header.
type ScannedRecord struct {
	RecordHeader
	Offset int64
	// Stored is the data as it is stored, valid until the callback returns; nil if it is not valid.
	Stored []byte
	// Err says what is wrong with the record's data; nil when it is valid.
	Err error
}

// End returns the offset of the next record.
func (s *ScannedRecord) End() int64 { return s.Offset + Padded(s.Size()) }

// Entry returns the record's index entry.
func (s *ScannedRecord) Entry() IndexEntry {
	return IndexEntry{Position: s.Position, Time: s.Time, Offset: uint32(s.Offset), Size: uint32(s.Size()), Messages: s.Messages, Encrypted: s.Encrypted}
}

// FileRange is the range [From, To) of a file, in bytes.
type FileRange struct {
	From, To int64
}

// SegmentScan is the result of ScanSegment, besides the records.
type SegmentScan struct {
	// HeaderErr says what is wrong with the file's header; nil when it is valid.
	HeaderErr error
	// Unreadable are ranges without a valid record header that are followed by records.
	Unreadable []FileRange
	// End is where the last record ends. Bytes after it were not written completely, or are a footer.
	End int64
	// Tail says that there are nonzero bytes after End.
	Tail bool
	// Durable is the end of the bytes that were synced for sure, according to the records.
	Durable int64
}

// ScanSegment reads the records of a file of size bytes from first to last, checks each, and calls fn with it. After damage it
// continues at the next valid header. It does not accept records at another offset than they were written to (in files of the
// first generation), of other segments, or out of order. The error is that of r, or wraps ErrVersion.
func ScanSegment(r io.ReaderAt, size int64, id SegmentID, fn func(*ScannedRecord)) (*SegmentScan, error) {
	w := &readWindow{r: r, size: size}
	s := &segmentScanner{w: w, id: id, out: &SegmentScan{End: min(SegmentHeaderLen, size)}, fn: fn}
	head, err := w.bytesAt(0, SegmentHeaderLen)
	if err != nil {
		return nil, err
	}
	if _, s.out.HeaderErr = ParseSegmentHeader(head, id); errors.Is(s.out.HeaderErr, ErrVersion) {
		return nil, s.out.HeaderErr
	}
	at := int64(SegmentHeaderLen)
	for at < size {
		rec, err := s.parseRecord(at)
		if err != nil {
			return nil, err
		}
		if rec == nil {
			from := at
			if at, err = s.resync(at); err != nil {
				return nil, err
			}
			if at < size {
				s.out.Unreadable = append(s.out.Unreadable, FileRange{from, at})
			}
			continue
		}
		if err := s.emitRecord(rec); err != nil {
			return nil, err
		}
		at = rec.End()
	}
	if id.Generation > 1 {
		s.out.Durable = size // rewritten files are synced before they are renamed
	}
	s.out.Tail, err = s.hasData(s.out.End)
	return s.out, err
}

type segmentScanner struct {
	w    *readWindow
	id   SegmentID
	out  *SegmentScan
	fn   func(*ScannedRecord)
	last Position
}

// parseRecord returns the record whose header is at an offset; nil when there is none.
func (s *segmentScanner) parseRecord(at int64) (*ScannedRecord, error) {
	b, err := s.w.bytesAt(at, RecordHeaderLen+MaxCategory)
	if err != nil {
		return nil, err
	}
	h, err := ParseRecordHeader(b)
	if err != nil {
		return nil, nil //nolint:nilerr // it is not a record
	}
	if !s.id.Contains(h.Position) || h.Position <= s.last || s.id.Generation == 1 && h.Position != At(s.id.First, uint32(at)) {
		return nil, nil
	}
	return &ScannedRecord{RecordHeader: h, Offset: at}, nil
}

func (s *segmentScanner) emitRecord(rec *ScannedRecord) error {
	b, err := s.w.bytesAt(rec.Offset, rec.Size())
	if err != nil {
		return err
	}
	rec.Stored, rec.Err = rec.Data(b)
	s.last = rec.Position
	s.out.End = min(rec.End(), s.w.size)
	if s.id.Generation == 1 {
		s.out.Durable = max(s.out.Durable, min(int64(rec.Durable), rec.Offset))
	}
	s.fn(rec)
	return nil
}

// resync returns the offset of the next record after an offset, or the file's size.
func (s *segmentScanner) resync(at int64) (int64, error) {
	at += Align
	for at < s.w.size {
		b, err := s.w.bytesAt(at, windowLen)
		if err != nil {
			return 0, err
		}
		i := bytes.Index(b, []byte(RecordMagic))
		if i < 0 {
			// The magic may begin in the last bytes; at stays a multiple of Align.
			at += max(Align, int64(len(b))&^(Align-1)-Align)
			continue
		}
		next := at + int64(i)
		if next%Align == 0 {
			rec, err := s.parseRecord(next)
			if rec != nil || err != nil {
				return next, err
			}
		}
		at = next&^(Align-1) + Align
	}
	return s.w.size, nil
}

// hasData reports whether there is a nonzero byte at or after an offset.
func (s *segmentScanner) hasData(from int64) (bool, error) {
	for from < s.w.size {
		b, err := s.w.bytesAt(from, windowLen)
		if err != nil {
			return false, err
		}
		if len(bytes.TrimLeft(b, "\x00")) > 0 {
			return true, nil
		}
		from += int64(len(b))
	}
	return false, nil
}

const windowLen = 1 << 20

// readWindow reads a file in large chunks.
type readWindow struct {
	r    io.ReaderAt
	size int64
	off  int64
	buf  []byte
}

// bytesAt returns n bytes at an offset, fewer at the end of the file. They are valid until the next call.
func (w *readWindow) bytesAt(off, n int64) ([]byte, error) {
	n = max(0, min(n, w.size-off))
	if off < w.off || off+n > w.off+int64(len(w.buf)) {
		want := min(max(n, windowLen), w.size-off)
		if int64(cap(w.buf)) < want {
			w.buf = make([]byte, want)
		}
		w.buf, w.off = w.buf[:want], off
		got, err := w.r.ReadAt(w.buf, off)
		if int64(got) < want {
			w.buf = w.buf[:got]
			if err != nil && !errors.Is(err, io.EOF) {
				w.buf = w.buf[:0]
				return nil, fmt.Errorf("read %d bytes at %d: %w", want, off, err)
			}
			n = min(n, int64(got)) // the file was truncated meanwhile
		}
	}
	b := w.buf[off-w.off:]
	return b[:min(n, int64(len(b)))], nil
}
