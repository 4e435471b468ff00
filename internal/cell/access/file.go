package access

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// Layout of the file of the last good state (docs/format/access.md). Integers are little-endian.
const (
	fileMagic   = "SACC"
	fileVersion = 1
	// fileHeader: magic 4, version 4, saved at 8, flags 4, length 4.
	fileHeader = 24
	// flagClosed: the cell was closed, also if there is no record.
	flagClosed = 1
	// maxFileBody bounds the records.
	maxFileBody = 256 << 20
)

var errFile = errors.New("access: damaged file")

// encodeFile returns a file with some records.
func encodeFile(records map[string][]byte, closed bool, savedAt int64) ([]byte, error) {
	list := &scribev1.WatchAccessResponse{}
	for _, key := range slices.Sorted(maps.Keys(records)) {
		list.Updated = append(list.Updated, &scribev1.AccessRecord{Key: key, Value: records[key]})
	}
	b := make([]byte, 0, fileHeader+proto.Size(list)+4)
	b = append(b, fileMagic...)
	b = binary.LittleEndian.AppendUint32(b, fileVersion)
	b = binary.LittleEndian.AppendUint64(b, uint64(savedAt)) //nolint:gosec // the same bits
	flags := uint32(0)
	if closed {
		flags = flagClosed
	}
	b = binary.LittleEndian.AppendUint32(b, flags)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, list)
	if err != nil {
		return nil, err
	}
	n := len(b) - fileHeader
	if n > maxFileBody {
		return nil, fmt.Errorf("%d records take %d bytes, the limit is %d", len(records), n, maxFileBody)
	}
	binary.LittleEndian.PutUint32(b[fileHeader-4:], uint32(n)) //nolint:gosec // bounded above
	return binary.LittleEndian.AppendUint32(b, record.CRC(b)), nil
}

// decodeFile returns the records of a file. The error wraps errFile. Records that are damaged in a whole file are returned: they deny.
func decodeFile(b []byte) (records map[string][]byte, closed bool, savedAt int64, err error) {
	damaged := func(format string, args ...any) (map[string][]byte, bool, int64, error) {
		return nil, false, 0, fmt.Errorf("%w: %w", errFile, fmt.Errorf(format, args...))
	}
	if len(b) < fileHeader+4 {
		return damaged("%d bytes, want at least %d", len(b), fileHeader+4)
	}
	if string(b[:4]) != fileMagic {
		return damaged("want it to begin with %q", fileMagic)
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != fileVersion {
		return damaged("unknown version %d: a newer program may have written it", v)
	}
	flags := binary.LittleEndian.Uint32(b[16:])
	if n := int64(binary.LittleEndian.Uint32(b[fileHeader-4:])); n != int64(len(b)-fileHeader-4) || flags&^flagClosed != 0 {
		return damaged("its header says %d bytes and flags %x, the file has %d bytes", n, flags, len(b)-fileHeader-4)
	}
	sum := len(b) - 4
	if binary.LittleEndian.Uint32(b[sum:]) != record.CRC(b[:sum]) {
		return damaged("its checksum does not match")
	}
	list := new(scribev1.WatchAccessResponse)
	if err := proto.Unmarshal(b[fileHeader:sum], list); err != nil {
		return damaged("%w", err)
	}
	records = make(map[string][]byte, len(list.GetUpdated()))
	for _, r := range list.GetUpdated() {
		if _, twice := records[r.GetKey()]; twice || r.GetKey() == "" {
			return damaged("record %q is there twice, or has no key", r.GetKey())
		}
		records[r.GetKey()] = r.GetValue()
	}
	return records, flags&flagClosed != 0, int64(binary.LittleEndian.Uint64(b[8:])), nil //nolint:gosec // the same bits
}

// takeFile takes the records of a file into the view.
func (v *View) takeFile(r io.Reader) (savedAt int64, err error) {
	b, err := io.ReadAll(io.LimitReader(r, fileHeader+maxFileBody+4+1))
	if err != nil {
		return 0, err
	}
	records, closed, savedAt, err := decodeFile(b)
	if err != nil {
		return 0, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	set, damaged := NewSet(records)
	set.closed = set.closed || closed
	v.mu.records = records
	v.publish(set, damaged)
	return savedAt, nil
}

// writeRecords writes a file.
func (v *View) writeRecords(w io.Writer, savedAt int64) error {
	v.mu.Lock()
	b, err := encodeFile(v.mu.records, v.Set().Closed(), savedAt)
	v.mu.Unlock()
	if err == nil {
		_, err = w.Write(b)
	}
	return err
}
