package layout

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// TrailerLen is the length of the trailer, the end of a sealed segment's file.
	TrailerLen   = 64
	trailerMagic = "SPFT"
	trailerEnd   = "SPFE"
	// MaxEntryLen bounds the bytes of a record in the index.
	MaxEntryLen = 35
	// CategoryLen is the bytes of a category in the table, besides its name.
	CategoryLen = 65
)

// IndexEntry says where a record is. The index of a segment has the entries of each category in order of position, which is the
// order of the records in the file.
type IndexEntry struct {
	Position Position
	Time     int64
	Offset   uint32 // in the file
	Size     uint32 // without padding
	Messages uint32
	// Encrypted: the record's data is.
	Encrypted bool
}

// FrameBytes returns the length of the record's frame, which is that of its data unless it is encrypted.
func (e *IndexEntry) FrameBytes(category string) int64 {
	n := int64(e.Size) - RecordSize(len(category), 0)
	if e.Encrypted {
		n -= EncryptionOverhead
	}
	return n
}

// FooterCategory is a category in a footer's table.
type FooterCategory struct {
	Name string
	IndexSummary
}

// IndexSummary sums up a category's records in a segment, and says where their index is, as it is encoded in a footer's table.
type IndexSummary struct {
	Records               uint32
	Messages, Bytes       uint64 // Bytes of frames
	FirstTime, LastTime   int64  // the least and the largest
	FirstPosition         Position
	LastPosition          Position
	IndexOffset, IndexLen uint32 // from the beginning of the footer
	IndexCRC              uint32
}

// SumRecords returns the sums of the records.
func (s *IndexSummary) SumRecords() Amount {
	return Amount{Records: int64(s.Records), Messages: int64(s.Messages), Bytes: int64(s.Bytes)}
}

// AddEntry adds the next record of the category.
func (s *IndexSummary) AddEntry(name string, e *IndexEntry) {
	if s.Records == 0 {
		s.FirstTime, s.LastTime, s.FirstPosition = e.Time, e.Time, e.Position
	}
	s.FirstTime, s.LastTime, s.LastPosition = min(s.FirstTime, e.Time), max(s.LastTime, e.Time), e.Position
	s.Records++
	s.Messages += uint64(e.Messages)
	s.Bytes += uint64(e.FrameBytes(name))
}

// Footer is the footer of a sealed segment, without the indexes.
type Footer struct {
	SegmentID
	// DataEnd is where the records end, Offset where the footer begins.
	DataEnd, Offset int64
	// Sum is the trailer's checksum, which covers the whole footer through the checksums in it. It distinguishes footers.
	Sum uint32
	// Encrypted: the segment may have encrypted records, which its indexes tell from others.
	Encrypted  bool
	Categories []FooterCategory
}

// NewCategory summarises the entries of a category.
func NewCategory(name string, entries []IndexEntry) FooterCategory {
	c := FooterCategory{Name: name}
	for i := range entries {
		c.AddEntry(name, &entries[i])
	}
	return c
}

// AppendFooter appends the footer of a segment: indexes, table, trailer. It sets f.Sum and the index fields of f.Categories.
// entries returns the entries of f.Categories[i]. The caller writes the footer at f.Offset, as the end of the file.
func AppendFooter(dst []byte, f *Footer, entries func(i int) []IndexEntry) []byte {
	start := len(dst)
	for i := range f.Categories {
		c := &f.Categories[i]
		at := len(dst)
		dst = appendIndex(dst, f, entries(i))
		c.IndexOffset, c.IndexLen, c.IndexCRC = uint32(at-start), uint32(len(dst)-at), Checksum(dst[at:])
	}
	table := len(dst)
	for i := range f.Categories {
		dst = appendCategory(dst, &f.Categories[i])
	}
	at := len(dst)
	dst = appendFixed(appendVersion(dst, trailerMagic, segmentVersion(f.Encrypted)), &footerTrailer{
		SegmentID: f.SegmentID, Categories: uint32(len(f.Categories)), DataEnd: f.DataEnd, Offset: f.Offset,
		Table: f.Offset + int64(table-start), TableLen: uint32(at - table), TableCRC: Checksum(dst[table:]),
	})
	f.Sum = Checksum(dst[at:])
	dst = binary.LittleEndian.AppendUint32(dst, f.Sum)
	return append(dst, trailerEnd...)
}

func appendIndex(dst []byte, f *Footer, entries []IndexEntry) []byte {
	offset, distance, time := int64(0), int64(At(f.First, 0)), int64(0)
	for i := range entries {
		e := &entries[i]
		size := uint64(e.Size)
		if f.Encrypted {
			size <<= 1
			if e.Encrypted {
				size |= 1
			}
		}
		dst = binary.AppendUvarint(dst, uint64(int64(e.Offset)-offset)/Align)
		dst = binary.AppendUvarint(dst, size)
		dst = binary.AppendUvarint(dst, uint64(e.Messages))
		dst = binary.AppendVarint(dst, e.Time-time)
		d := int64(e.Position) - int64(e.Offset)
		dst = binary.AppendVarint(dst, d-distance)
		offset, distance, time = int64(e.Offset), d, e.Time
	}
	return dst
}

func appendCategory(dst []byte, c *FooterCategory) []byte {
	dst = append(dst, byte(len(c.Name)))
	return appendFixed(append(dst, c.Name...), &c.IndexSummary)
}

// footerTrailer is the end of a footer, as it is encoded between version and checksum.
type footerTrailer struct {
	SegmentID

	Categories         uint32
	DataEnd, Offset    int64
	Table              int64 // offset in the file
	TableLen, TableCRC uint32
}

// footerRead is how many bytes of a file's end ReadFooter reads first: they include the table of most segments.
const footerRead = 4 << 10

// ReadFooter reads the footer of a file of size bytes, that is the trailer and the table of categories, without the indexes. The
// error wraps ErrDamaged or ErrVersion, or is that of r. If only the table is damaged, the footer is returned with the error,
// without categories.
func ReadFooter(r io.ReaderAt, size int64, id SegmentID) (*Footer, error) {
	if size < SegmentHeaderLen+TrailerLen {
		return nil, ErrNoFooter
	}
	tail := make([]byte, min(footerRead, size))
	if err := readAt(r, tail, size-int64(len(tail))); err != nil {
		return nil, err
	}
	f, t, err := parseTrailer(tail[len(tail)-TrailerLen:], size, id)
	if err != nil {
		return nil, err
	}
	var table []byte
	if from := t.Table - (size - int64(len(tail))); from >= 0 {
		table = tail[from : from+int64(t.TableLen)]
	} else {
		table = make([]byte, t.TableLen)
		if err := readAt(r, table, t.Table); err != nil {
			return nil, err
		}
	}
	if Checksum(table) != t.TableCRC {
		return f, fmt.Errorf("%w: the checksum of the footer's table does not match", ErrDamaged)
	}
	if err := f.parseTable(table, int(t.Categories), t.Table-f.Offset); err != nil {
		f.Categories = nil
		return f, err
	}
	return f, nil
}

func readAt(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: the file ends at byte %d", ErrDamaged, off+int64(n))
	}
	return err
}

func parseTrailer(b []byte, size int64, id SegmentID) (f *Footer, t footerTrailer, err error) {
	sum := binary.LittleEndian.Uint32(b[56:])
	parseFixed(b[8:56], &t)
	v := binary.LittleEndian.Uint32(b[4:])
	switch {
	case string(b[:4]) != trailerMagic || string(b[60:]) != trailerEnd:
		return nil, t, ErrNoFooter
	case Checksum(b[:56]) != sum:
		return nil, t, fmt.Errorf("%w: the checksum of the footer's trailer does not match", ErrDamaged)
	case v != Version && v != VersionEncrypted:
		return nil, t, fmt.Errorf("footer of version %d, known are up to %d: %w", v, VersionEncrypted, ErrVersion)
	case t.SegmentID != id:
		return nil, t, fmt.Errorf("%w: the footer says %s, the file is called %s", ErrDamaged, t.Name(), id.Name())
	case t.DataEnd < SegmentHeaderLen || t.Offset < t.DataEnd || t.Table < t.Offset || t.Table > size || t.Table+int64(t.TableLen) != size-TrailerLen:
		return nil, t, fmt.Errorf("%w: the footer's trailer breaks a limit", ErrDamaged)
	}
	return &Footer{SegmentID: id, DataEnd: t.DataEnd, Offset: t.Offset, Sum: sum, Encrypted: v == VersionEncrypted}, t, nil
}

func (f *Footer) parseTable(b []byte, count int, indexes int64) error {
	bad := func(what string) error { return fmt.Errorf("%w: the footer's table %s", ErrDamaged, what) }
	if count > len(b)/CategoryLen {
		return bad("is too short")
	}
	f.Categories = make([]FooterCategory, 0, count)
	last := ""
	for range count {
		if len(b) < CategoryLen || len(b) < CategoryLen+int(b[0]) {
			return bad("is too short")
		}
		n := int(b[0])
		c := FooterCategory{Name: string(b[1 : 1+n])}
		parseFixed(b[1+n:n+CategoryLen], &c.IndexSummary)
		b = b[n+CategoryLen:]
		switch {
		case c.Name <= last:
			return bad("is not in order of name")
		case c.Records == 0 || int64(c.Bytes) < 0 || int64(c.Messages) < 0 || int64(c.Bytes) > f.DataEnd || c.LastPosition < c.FirstPosition || c.LastTime < c.FirstTime:
			return bad("breaks a limit")
		case !f.Contains(c.FirstPosition) || !f.Contains(c.LastPosition):
			return bad("names a record of another segment")
		case int64(c.IndexOffset)+int64(c.IndexLen) > indexes || int64(c.Records) > int64(c.IndexLen)/5:
			return bad("refers to bytes outside of the footer")
		}
		f.Categories = append(f.Categories, c)
		last = c.Name
	}
	if len(b) != 0 {
		return bad("is too long")
	}
	return nil
}

// ReadIndex reads the index of a category of f. The error wraps ErrDamaged, or is that of r.
func ReadIndex(r io.ReaderAt, f *Footer, c *FooterCategory) ([]IndexEntry, error) {
	b := make([]byte, c.IndexLen)
	if err := readAt(r, b, f.Offset+int64(c.IndexOffset)); err != nil {
		return nil, err
	}
	return ParseIndex(b, f, c)
}

// ParseIndex checks and decodes the index of a category of f. The error wraps ErrDamaged.
func ParseIndex(b []byte, f *Footer, c *FooterCategory) ([]IndexEntry, error) {
	bad := func(what string) error { return fmt.Errorf("%w: the index of %q %s", ErrDamaged, c.Name, what) }
	if Checksum(b) != c.IndexCRC {
		return nil, bad("does not match its checksum")
	}
	if int64(c.Records) > int64(len(b))/5 {
		return nil, bad("is too short")
	}
	entries := make([]IndexEntry, c.Records)
	offset, distance, time := uint64(0), int64(At(f.First, 0)), int64(0)
	for i := range entries {
		var v [5]int64
		encrypted := false
		for j := range v {
			var n int
			if j < 3 {
				var u uint64
				u, n = binary.Uvarint(b)
				if j == 1 && f.Encrypted {
					encrypted, u = u&1 == 1, u>>1
				}
				if u > 1<<32-1 {
					return nil, bad("breaks a limit")
				}
				v[j] = int64(u)
			} else {
				v[j], n = binary.Varint(b)
			}
			if n <= 0 {
				return nil, bad("is cut")
			}
			b = b[n:]
		}
		offset += uint64(v[0]) * Align
		distance += v[4]
		time += v[3]
		e := IndexEntry{Position: Position(distance + int64(offset)), Time: time, Offset: uint32(offset), Size: uint32(v[1]), Messages: uint32(v[2]), Encrypted: encrypted}
		if offset < SegmentHeaderLen || int64(offset)+v[1] > f.DataEnd || e.FrameBytes(c.Name) < 0 || !f.Contains(e.Position) ||
			i > 0 && (v[0] == 0 || e.Position <= entries[i-1].Position) {
			return nil, bad("breaks a limit")
		}
		entries[i] = e
	}
	if len(b) != 0 {
		return nil, bad("is too long")
	}
	if sum := NewCategory(c.Name, entries); sum.Messages != c.Messages || sum.Bytes != c.Bytes || sum.LastPosition != c.LastPosition || sum.FirstPosition != c.FirstPosition {
		return nil, bad("is not what the table says")
	}
	return entries, nil
}
