package backup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Version is the version of the lists of backups that this package writes and reads.
const Version = 1

// magic begins a list.
const magic = "SCBK"

// Limits of a list.
const (
	maxFiles = 1 << 20
	// maxText bounds a name and a text, in bytes.
	maxText = 255
	// maxList bounds a list in bytes.
	maxList = 512 << 20
)

// Errors that callers branch on.
var (
	// ErrDamaged means that a list, a file or an entry of a backup is not what was written.
	ErrDamaged = errors.New("the backup is damaged")
	// ErrVersion means that a newer program wrote the backup.
	ErrVersion = errors.New("the backup has a newer format")
)

// Manifest is the list of a backup: what it has, and as of when.
type Manifest struct {
	// Created is when the backup began, Unix microseconds.
	Created int64
	// Watermark is a time of the metadata engine, Unix microseconds: every record that is not in the backup has a persisted time of at least this.
	Watermark int64
	// Revision is that of the control store, which was read after the logs.
	Revision uint64
	// Store is the identity of the store of payloads; empty if it is not known. Program is the version of the program that made the backup.
	Store, Program string
	// Logs are the files of a folder of metadata logs, Control those with the entries of the control store, in their order.
	Logs, Control []File
}

// File is a file of a backup.
type File struct {
	Name string
	// Size is in bytes, CRC the CRC32C of the content.
	Size uint64
	CRC  uint32
	// ID is the first half of the SHA-256 of the content.
	ID [16]byte
}

// Bytes returns the size of all files.
func (m *Manifest) Bytes() (n uint64) {
	for _, list := range [][]File{m.Logs, m.Control} {
		for _, f := range list {
			n += f.Size
		}
	}
	return n
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func damagedError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
}

// AppendManifest appends the encoded list.
func AppendManifest(dst []byte, m *Manifest) []byte {
	n := len(dst)
	dst = append(append(dst, magic...), Version)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(m.Created))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(m.Watermark))
	dst = binary.LittleEndian.AppendUint64(dst, m.Revision)
	dst = appendText(appendText(dst, m.Store), m.Program)
	for _, files := range [][]File{m.Logs, m.Control} {
		dst = binary.AppendUvarint(dst, uint64(len(files)))
		for _, f := range files {
			dst = binary.AppendUvarint(appendText(dst, f.Name), f.Size)
			dst = append(binary.LittleEndian.AppendUint32(dst, f.CRC), f.ID[:]...)
		}
	}
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[n:], castagnoli))
}

func appendText(dst []byte, text string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// DecodeManifest decodes a list. The checksum is compared before the version, so damage is not taken for a newer version. Errors wrap ErrDamaged or
// ErrVersion.
func DecodeManifest(b []byte) (*Manifest, error) {
	const head = len(magic) + 1
	if len(b) < head+4 || string(b[:len(magic)]) != magic {
		return nil, damagedError("%d bytes are not the list of a backup", len(b))
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, damagedError("its list does not match its checksum")
	}
	if b[head-1] != Version {
		return nil, fmt.Errorf("%w: version %d, this program reads %d: use a newer one", ErrVersion, b[head-1], Version)
	}
	d := decoder{rest: body[head:]}
	m := &Manifest{Created: int64(d.number()), Watermark: int64(d.number()), Revision: d.number()} //nolint:gosec // as they were written
	m.Store, m.Program = d.text(), d.text()
	m.Logs, m.Control = d.files(), d.files()
	if d.err == nil && len(d.rest) > 0 {
		d.err = damagedError("%d bytes follow its list", len(d.rest))
	}
	if d.err != nil {
		return nil, d.err
	}
	return m, nil
}

// decoder reads fields one after another. After an error it returns zero values.
type decoder struct {
	rest []byte
	err  error
}

// take returns the next n bytes; nil if there are fewer.
func (d *decoder) take(n uint64) []byte {
	if d.err == nil && n > uint64(len(d.rest)) {
		d.err = damagedError("it ends early")
	}
	if d.err != nil {
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

// number reads 8 bytes.
func (d *decoder) number() uint64 {
	if b := d.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// varint reads an unsigned varint of at most limit.
func (d *decoder) varint(what string, limit uint64) uint64 {
	if d.err != nil {
		return 0
	}
	v, used := binary.Uvarint(d.rest)
	if used <= 0 || v > limit {
		d.err = damagedError("%s is %d, the limit is %d", what, v, limit)
		return 0
	}
	d.rest = d.rest[used:]
	return v
}

func (d *decoder) text() string { return string(d.take(d.varint("the length of a text", maxText))) }

// files reads a list of files. It grows as far as there are bytes.
func (d *decoder) files() (files []File) {
	for count := d.varint("the number of files", maxFiles); count > 0 && d.err == nil; count-- {
		f := File{Name: d.text(), Size: d.varint("the size of a file", 1<<62)}
		rest := d.take(4 + 16)
		switch {
		case d.err != nil:
		case !isFileName(f.Name):
			d.err = damagedError("%q is not the name of a file", f.Name)
		default:
			f.CRC = binary.LittleEndian.Uint32(rest)
			copy(f.ID[:], rest[4:])
			files = append(files, f)
		}
	}
	return files
}

// isFileName reports whether a name can be that of a file in a folder of a database, and is not a path.
func isFileName(name string) bool {
	if name == "" || len(name) > maxText || name[0] == '.' {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '-' && c != '_' {
			return false
		}
	}
	return true
}
