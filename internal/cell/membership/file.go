package membership

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// Layout of the file of the last list (docs/format/catalog.md). Integers are little-endian.
const (
	fileMagic   = "SMEM"
	fileVersion = 1
	// fileHeader: magic 4, version 4, saved at 8, length 4.
	fileHeader = 20
	// maxFileBody bounds the list. 65,000 members with the longest fields would exceed it; a real cell's members do not.
	maxFileBody = 16 << 20
)

// errDamaged means that the file is not a complete file of a view.
var errDamaged = errors.New("membership: damaged file")

// encodeFile returns a file with the members, without their loads, which are momentary.
func encodeFile(members []*scribev1.Member, savedAt int64) ([]byte, error) {
	list := &scribev1.WatchMembersResponse{Members: stripLoads(members)}
	b := make([]byte, 0, fileHeader+proto.Size(list)+4)
	b = append(b, fileMagic...)
	b = binary.LittleEndian.AppendUint32(b, fileVersion)
	b = binary.LittleEndian.AppendUint64(b, uint64(savedAt)) //nolint:gosec // the same bits
	b = append(b, 0, 0, 0, 0)
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, list)
	if err != nil {
		return nil, err
	}
	n := len(b) - fileHeader
	if n > maxFileBody {
		return nil, fmt.Errorf("%d members take %d bytes, the limit is %d", len(members), n, maxFileBody)
	}
	binary.LittleEndian.PutUint32(b[fileHeader-4:], uint32(n)) //nolint:gosec // bounded above
	return binary.LittleEndian.AppendUint32(b, record.CRC(b)), nil
}

// decodeFile returns the members of a file and when it was written. The error wraps errDamaged.
func decodeFile(b []byte) (members []*scribev1.Member, savedAt int64, err error) {
	damaged := func(format string, args ...any) ([]*scribev1.Member, int64, error) {
		return nil, 0, fmt.Errorf("%w: %w", errDamaged, fmt.Errorf(format, args...))
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
	if n := int64(binary.LittleEndian.Uint32(b[fileHeader-4:])); n != int64(len(b)-fileHeader-4) {
		return damaged("its header says %d bytes, the file has %d", n, len(b)-fileHeader-4)
	}
	sum := len(b) - 4
	if binary.LittleEndian.Uint32(b[sum:]) != record.CRC(b[:sum]) {
		return damaged("its checksum does not match")
	}
	list := new(scribev1.WatchMembersResponse)
	if err := proto.Unmarshal(b[fileHeader:sum], list); err != nil {
		return damaged("%w", err)
	}
	ids := make(map[string]bool, len(list.GetMembers()))
	for _, m := range list.GetMembers() {
		if m.GetId() == "" || ids[m.GetId()] {
			return damaged("member %q is listed twice, or has no id", m.GetId())
		}
		ids[m.GetId()] = true
	}
	return list.GetMembers(), int64(binary.LittleEndian.Uint64(b[8:])), nil //nolint:gosec // the same bits
}

// stripLoads returns copies of the members without momentary fields.
func stripLoads(members []*scribev1.Member) []*scribev1.Member {
	out := make([]*scribev1.Member, len(members))
	for i, m := range members {
		out[i] = proto.CloneOf(m)
		out[i].Load, out[i].Loads = 0, nil
	}
	return out
}

// sameIdentities reports whether two lists are equal except for loads.
func sameIdentities(a, b []*scribev1.Member) bool {
	return len(a) == len(b) && proto.Equal(&scribev1.WatchMembersResponse{Members: stripLoads(a)}, &scribev1.WatchMembersResponse{Members: stripLoads(b)})
}

// takeFile takes the members of a file into the view.
func (v *View) takeFile(r io.Reader) (savedAt int64, err error) {
	b, err := io.ReadAll(io.LimitReader(r, fileHeader+maxFileBody+4+1))
	if err != nil {
		return 0, err
	}
	members, savedAt, err := decodeFile(b)
	if err == nil {
		v.list.Store(newList(members, nil))
	}
	return savedAt, err
}

// writeMembers writes a file.
func (v *View) writeMembers(w io.Writer, savedAt int64) error {
	b, err := encodeFile(v.list.Load().all, savedAt)
	if err == nil {
		_, err = w.Write(b)
	}
	return err
}
