package layout

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Scanned is a record that Scan found by its header.
type Scanned struct {
	RecordHeader
	Offset int64
	// Err says what is wrong with the record's data; nil when it is whole.
	Err error
}

// End is where the next record begins.
func (s *Scanned) End() int64 { return s.Offset + Padded(s.Size()) }

// Entry is the record's entry in the index.
func (s *Scanned) Entry() Entry {
	return Entry{Position: s.Position, Time: s.Time, Offset: uint32(s.Offset), Size: uint32(s.Size()), Messages: s.Messages}
}

// Range is a part of a file: From and what is behind it, up to but not with To.
type Range struct {
	From, To int64
}

// Scan is what ScanSegment found besides records.
type Scan struct {
	// HeaderErr says what is wrong with the file's header; nil when it is whole.
	HeaderErr error
	// Unreadable ranges have no record's header, and records behind them.
	Unreadable []Range
	// End is where the last record ends. What is behind it was not written whole, or is a footer.
	End int64
	// Tail: there is something else than zeros behind End.
	Tail bool
	// Durable is where the bytes end that are known to have been synced, by what the records say.
	Durable int64
}

// ScanSegment reads the records of a file of size bytes from the first to the last, checks each, and calls fn with it. After damage
// it goes on with the next header that checks. It never takes bytes for a record's that stand elsewhere than the record was written
// (in files of the first generation), are of another segment, or would be out of order. The error is r's or fn's, or wraps
// ErrVersion.
func ScanSegment(r io.ReaderAt, size int64, id SegmentID, fn func(*Scanned) error) (*Scan, error) {
	w := &window{r: r, size: size}
	s := &scanner{w: w, id: id, out: &Scan{End: min(SegmentHeaderLen, size)}, fn: fn}
	head, err := w.at(0, SegmentHeaderLen)
	if err != nil {
		return nil, err
	}
	if _, s.out.HeaderErr = ParseSegmentHeader(head, id); errors.Is(s.out.HeaderErr, ErrVersion) {
		return nil, s.out.HeaderErr
	}
	at := int64(SegmentHeaderLen)
	for at < size {
		rec, err := s.record(at)
		if err != nil {
			return nil, err
		}
		if rec == nil {
			from := at
			if at, err = s.resync(at); err != nil {
				return nil, err
			}
			if at < size {
				s.out.Unreadable = append(s.out.Unreadable, Range{from, at})
			}
			continue
		}
		if err := s.take(rec); err != nil {
			return nil, err
		}
		at = rec.End()
	}
	if id.Generation > 1 {
		s.out.Durable = size // rewritten files are synced before they get their name
	}
	s.out.Tail, err = s.anything(s.out.End)
	return s.out, err
}

type scanner struct {
	w    *window
	id   SegmentID
	out  *Scan
	fn   func(*Scanned) error
	last Position
}

// record returns the record whose header is at an offset; nil when there is none.
func (s *scanner) record(at int64) (*Scanned, error) {
	b, err := s.w.at(at, RecordHeaderLen+MaxCategory)
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
	return &Scanned{RecordHeader: h, Offset: at}, nil
}

func (s *scanner) take(rec *Scanned) error {
	b, err := s.w.at(rec.Offset, rec.Size())
	if err != nil {
		return err
	}
	_, rec.Err = rec.Data(b)
	s.last = rec.Position
	s.out.End = min(rec.End(), s.w.size)
	if s.id.Generation == 1 {
		s.out.Durable = max(s.out.Durable, min(int64(rec.Durable), rec.Offset))
	}
	return s.fn(rec)
}

// resync returns the offset of the next record behind an offset, or the file's size.
func (s *scanner) resync(at int64) (int64, error) {
	at += Align
	for at < s.w.size {
		b, err := s.w.at(at, windowLen)
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
			rec, err := s.record(next)
			if rec != nil || err != nil {
				return next, err
			}
		}
		at = next&^(Align-1) + Align
	}
	return s.w.size, nil
}

// anything reports whether there is a byte that is not 0 from an offset on.
func (s *scanner) anything(from int64) (bool, error) {
	for from < s.w.size {
		b, err := s.w.at(from, windowLen)
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

// window reads a file in large pieces.
type window struct {
	r    io.ReaderAt
	size int64
	off  int64
	buf  []byte
}

// at returns n bytes at an offset, fewer at the file's end. They are good until the next call.
func (w *window) at(off, n int64) ([]byte, error) {
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
			n = min(n, int64(got)) // it was cut meanwhile
		}
	}
	b := w.buf[off-w.off:]
	return b[:min(n, int64(len(b)))], nil
}
