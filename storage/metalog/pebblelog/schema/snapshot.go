package schema

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// SnapshotVersion is the version of the lists of snapshots that this package writes and reads.
const SnapshotVersion = 1

// snapshotMagic begins the list of a snapshot.
const snapshotMagic = "SCMS"

// Limits of a snapshot's list.
const (
	maxSnapshotFiles = 1 << 20
	maxSnapshotName  = 255
)

// Snapshot is the list of a snapshot: the files of a folder after an entry of the journal.
type Snapshot struct {
	Applied
	Files []SnapshotFile
}

// SnapshotFile is a file of a snapshot.
type SnapshotFile struct {
	Name string
	// Size is in bytes, CRC the CRC32C of the content.
	Size uint64
	CRC  uint32
	// ID names the blob with the content. It is zero if Data is the content.
	ID   [16]byte
	Data []byte
}

// AppendSnapshot appends the list of a snapshot.
func AppendSnapshot(dst []byte, s Snapshot) []byte {
	n := len(dst)
	dst = append(append(dst, snapshotMagic...), SnapshotVersion)
	dst = binary.LittleEndian.AppendUint64(dst, s.Seq)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(s.Time))
	dst = append(dst, s.Chain[:]...)
	dst = binary.AppendUvarint(dst, uint64(len(s.Files)))
	for _, f := range s.Files {
		dst = append(binary.AppendUvarint(dst, uint64(len(f.Name))), f.Name...)
		dst = binary.LittleEndian.AppendUint32(binary.AppendUvarint(dst, f.Size), f.CRC)
		dst = append(dst, f.ID[:]...)
		dst = append(binary.AppendUvarint(dst, uint64(len(f.Data))), f.Data...)
	}
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[n:], castagnoli))
}

// DecodeSnapshot decodes the list of a snapshot. The files' data alias b. The checksum is compared before the version, so damage is not
// taken for a newer version.
func DecodeSnapshot(b []byte) (s Snapshot, err error) {
	const head = len(snapshotMagic) + 1
	if len(b) < head+4 || string(b[:len(snapshotMagic)]) != snapshotMagic {
		return s, corruptError("%d bytes are not the list of a snapshot", len(b))
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return s, corruptError("the list of a snapshot does not match its checksum")
	}
	if b[head-1] != SnapshotVersion {
		return s, fmt.Errorf("%w: the list of a snapshot of version %d, this build reads %d", ErrNewer, b[head-1], SnapshotVersion)
	}
	rest := body[head:]
	if len(rest) < 8+8+16 {
		return s, corruptError("the list of a snapshot ends early")
	}
	s.Seq, s.Time = binary.LittleEndian.Uint64(rest), int64(binary.LittleEndian.Uint64(rest[8:]))
	copy(s.Chain[:], rest[16:])
	rest = rest[32:]
	count, used := binary.Uvarint(rest)
	if used <= 0 || count > maxSnapshotFiles {
		return s, corruptError("a snapshot of %d files", count)
	}
	for rest = rest[used:]; count > 0; count-- {
		var f SnapshotFile
		if f, rest, err = decodeSnapshotFile(rest); err != nil {
			return s, err
		}
		s.Files = append(s.Files, f)
	}
	if len(rest) > 0 {
		return s, corruptError("%d bytes follow the list of a snapshot", len(rest))
	}
	return s, nil
}

// decodeSnapshotFile decodes the first file of a list.
func decodeSnapshotFile(b []byte) (f SnapshotFile, rest []byte, err error) {
	name, rest, err := cutBytes(b)
	if err != nil {
		return f, nil, err
	}
	size, used := binary.Uvarint(rest)
	if used <= 0 || len(rest)-used < 4+16 || !isFileName(string(name)) {
		return f, nil, corruptError("a file of a snapshot with the name %q", name)
	}
	rest = rest[used:]
	f.Name, f.Size, f.CRC = string(name), size, binary.LittleEndian.Uint32(rest)
	copy(f.ID[:], rest[4:])
	f.Data, rest, err = cutBytes(rest[4+16:])
	if err == nil && f.ID == [16]byte{} && uint64(len(f.Data)) != size || err == nil && f.ID != [16]byte{} && len(f.Data) > 0 {
		err = corruptError("file %q of a snapshot has %d bytes of %d in the list", f.Name, len(f.Data), size)
	}
	return f, rest, err
}

// isFileName reports whether a name can be that of a database's file, and is not a path.
func isFileName(name string) bool {
	if name == "" || len(name) > maxSnapshotName || name[0] == '.' {
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
