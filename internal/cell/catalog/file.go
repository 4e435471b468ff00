package catalog

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// Layout of the file of the last good state (docs/format/catalog.md). Integers are little-endian.
const (
	fileMagic   = "SCAT"
	fileVersion = 1
	// fileHeader: magic 4, version 4, revision 8, saved at 8, count 4, reserved 4.
	fileHeader = 32
	// maxFileCategories and maxFileCategory bound the count of a header and the length of an entry.
	maxFileCategories = 16 << 20
	maxFileCategory   = 3 << 19 // 1.5 MiB
)

// errDamaged means that the file is not a complete file of a view.
var errDamaged = errors.New("catalog: damaged file")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

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
func ReadCopy(fsys vfs.FS, path string) (FileCopy, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return FileCopy{}, fmt.Errorf("catalog: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	s, err := decodeSnapshot(bufio.NewReaderSize(f, 256<<10))
	if err != nil {
		return FileCopy{}, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// encodeSnapshot writes a file.
func encodeSnapshot(w io.Writer, s FileCopy) error {
	sum := crc32.New(castagnoli)
	out := io.MultiWriter(w, sum)
	header := make([]byte, 0, fileHeader)
	header = append(header, fileMagic...)
	header = binary.LittleEndian.AppendUint32(header, fileVersion)
	header = binary.LittleEndian.AppendUint64(header, s.Revision)
	header = binary.LittleEndian.AppendUint64(header, uint64(s.SavedAt))
	header = binary.LittleEndian.AppendUint32(header, uint32(len(s.Categories)))
	header = append(header, 0, 0, 0, 0)
	if _, err := out.Write(header); err != nil {
		return err
	}
	var buf []byte
	for _, c := range s.Categories {
		var err error
		buf, err = proto.MarshalOptions{}.MarshalAppend(append(buf[:0], 0, 0, 0, 0), c)
		if err != nil {
			return fmt.Errorf("category %q: %w", c.GetName(), err)
		}
		if len(buf)-4 > maxFileCategory {
			return fmt.Errorf("category %q takes %d bytes, the limit is %d", c.GetName(), len(buf)-4, maxFileCategory)
		}
		binary.LittleEndian.PutUint32(buf, uint32(len(buf)-4))
		if _, err := out.Write(buf); err != nil {
			return err
		}
	}
	_, err := w.Write(binary.LittleEndian.AppendUint32(nil, sum.Sum32()))
	return err
}

// decodeSnapshot reads a file. The error wraps errDamaged, or is the reader's.
func decodeSnapshot(r io.Reader) (FileCopy, error) {
	running := crc32.New(castagnoli)
	in := io.TeeReader(r, running)
	var s FileCopy
	header := make([]byte, fileHeader)
	if err := readFull(in, header, "header"); err != nil {
		return s, err
	}
	if string(header[:4]) != fileMagic {
		return s, fmt.Errorf("%w: want it to begin with %q", errDamaged, fileMagic)
	}
	if v := binary.LittleEndian.Uint32(header[4:]); v != fileVersion {
		return s, fmt.Errorf("%w: unknown version %d: a newer program may have written it", errDamaged, v)
	}
	s.Revision = binary.LittleEndian.Uint64(header[8:])
	s.SavedAt = int64(binary.LittleEndian.Uint64(header[16:]))
	count := binary.LittleEndian.Uint32(header[24:])
	if count > maxFileCategories || binary.LittleEndian.Uint32(header[28:]) != 0 {
		return s, fmt.Errorf("%w: its header says %d categories", errDamaged, count)
	}
	names, ids := make(map[string]bool), make(map[uint32]bool)
	buf := make([]byte, 4, 4096)
	for i := range count {
		c, err := readCategory(in, &buf)
		if err != nil {
			return s, fmt.Errorf("category %d of %d: %w", i+1, count, err)
		}
		if names[c.GetName()] || ids[c.GetId()] {
			return s, fmt.Errorf("%w: category %q or id %d is listed twice", errDamaged, c.GetName(), c.GetId())
		}
		names[c.GetName()], ids[c.GetId()] = true, true
		s.Categories = append(s.Categories, c)
	}
	sum := running.Sum32()
	if err := readFull(in, buf[:4], "checksum"); err != nil {
		return s, err
	}
	if binary.LittleEndian.Uint32(buf[:4]) != sum {
		return s, fmt.Errorf("%w: its checksum does not match", errDamaged)
	}
	if n, err := io.ReadFull(r, buf[:1]); n != 0 || !errors.Is(err, io.EOF) {
		return s, fmt.Errorf("%w: unexpected bytes after its end", errDamaged)
	}
	return s, nil
}

// readCategory reads one category. buf is reused.
func readCategory(r io.Reader, buf *[]byte) (*scribev1.Category, error) {
	if err := readFull(r, (*buf)[:4], "length"); err != nil {
		return nil, err
	}
	n := int64(binary.LittleEndian.Uint32(*buf))
	if n > maxFileCategory {
		return nil, fmt.Errorf("%w: a length of %d", errDamaged, n)
	}
	if int64(cap(*buf)) < n {
		*buf = make([]byte, n)
	}
	b := (*buf)[:n]
	if err := readFull(r, b, "body"); err != nil {
		return nil, err
	}
	c := new(scribev1.Category)
	if err := proto.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if err := record.ValidateCategory(c.GetName()); err != nil || c.GetId() == 0 {
		return nil, fmt.Errorf("%w: category %q with id %d", errDamaged, c.GetName(), c.GetId())
	}
	return c, nil
}

// readFull fills b. what names the part in the error if the file ends early.
func readFull(r io.Reader, b []byte, what string) error {
	_, err := io.ReadFull(r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends inside a %s", errDamaged, what)
	}
	return err
}

// decodeFile takes the categories of a file into the view.
func (v *View) decodeFile(r io.Reader) (savedAt int64, err error) {
	s, err := decodeSnapshot(r)
	if err != nil {
		return 0, err
	}
	x := newIndex()
	for _, c := range s.Categories {
		x.putCategory(c)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.index.Store(x)
	v.mu.revision = s.Revision
	return s.SavedAt, nil
}

// encodeFile writes a file. Concurrent changes may or may not be in it; all of it has reached its revision.
func (v *View) encodeFile(w io.Writer, savedAt int64) error {
	if err := v.saveTenants(); err != nil { // the categories are worth more
		v.logger.Error("failed to keep the quotas of owners and prefixes", "error", err)
	}
	revision := v.Revision()
	return encodeSnapshot(w, FileCopy{Revision: revision, SavedAt: savedAt, Categories: slices.Collect(v.All())})
}
