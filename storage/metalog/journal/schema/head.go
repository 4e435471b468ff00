package schema

import (
	"encoding/binary"
	"fmt"
	"math"

	"scribe/internal/format/pointer/field"
	"scribe/internal/format/record"
)

const crcLen = 4

// AppendHead appends the encoded head to b. The head's Revision is not encoded. The error is ErrInvalid.
func AppendHead(b []byte, h Head) ([]byte, error) {
	if len(h.Leader) > MaxURL || len(h.Detached) > MaxDetached || h.Time < 0 || h.Bound < 0 {
		return b, fmt.Errorf("%w: head with a URL of %d bytes (limit %d), detached to a name of %d bytes (limit %d), time %d, bound %d",
			ErrInvalid, len(h.Leader), MaxURL, len(h.Detached), MaxDetached, h.Time, h.Bound)
	}
	start := len(b)
	if h.Detached == "" {
		b = append(b, Version)
	} else {
		b = append(b, DetachedVersion)
	}
	b = binary.AppendUvarint(b, h.Term)
	b = append(b, h.Owner[:]...)
	b = binary.AppendUvarint(b, uint64(len(h.Leader)))
	b = append(b, h.Leader...)
	b = binary.AppendUvarint(b, h.Beat)
	b = binary.AppendUvarint(b, h.Seq)
	b = append(b, h.Entry[:]...)
	b = append(b, h.Chain[:]...)
	b = binary.AppendUvarint(b, uint64(h.Time))
	b = binary.AppendUvarint(b, uint64(h.Bound))
	b = binary.AppendUvarint(b, h.Snapshot)
	if h.Detached != "" {
		b = binary.AppendUvarint(b, uint64(len(h.Detached)))
		b = append(b, h.Detached...)
	}
	return sealRecord(b, start), nil
}

// ParseHead decodes a head, which gets no Revision. The errors are ErrCorrupt and ErrVersion.
func ParseHead(b []byte) (Head, error) {
	body, err := openRecord(b, MaxHead, DetachedVersion, "head")
	if err != nil {
		return Head{}, err
	}
	var h Head
	r := field.NewReader(body, 1)
	h.Term = r.Uvarint("term", math.MaxUint64)
	copy(h.Owner[:], r.Take("owner", uint64(len(h.Owner))))
	h.Leader = string(r.Sized("leader", MaxURL))
	h.Beat = r.Uvarint("beat", math.MaxUint64)
	h.Seq = r.Uvarint("seq", math.MaxUint64)
	copy(h.Entry[:], r.Take("entry id", uint64(len(h.Entry))))
	copy(h.Chain[:], r.Take("chain", uint64(len(h.Chain))))
	h.Time = int64(r.Uvarint("time", math.MaxInt64))
	h.Bound = int64(r.Uvarint("bound", math.MaxInt64))
	h.Snapshot = r.Uvarint("snapshot", h.Seq)
	if body[0] == DetachedVersion {
		if h.Detached = string(r.Sized("detached", MaxDetached)); h.Detached == "" && r.Err() == nil {
			return Head{}, corrupt("head: of version %d without the name of a node", DetachedVersion)
		}
	}
	r.End()
	if e := r.Err(); e != nil {
		return Head{}, corrupt("head: %v", e)
	}
	return h, nil
}

// sealRecord appends the checksum over b from start on.
func sealRecord(b []byte, start int) []byte {
	return binary.LittleEndian.AppendUint32(b, record.CRC(b[start:]))
}

// openRecord checks length, checksum and version, in this order, and returns b without the checksum. So damage is never taken for
// a newer version.
func openRecord(b []byte, limit int, newest byte, what string) ([]byte, error) {
	if len(b) > limit {
		return nil, corrupt("%s: %d bytes, the limit is %d", what, len(b), limit)
	}
	if len(b) < 1+crcLen {
		return nil, corrupt("%s: cut after %d bytes", what, len(b))
	}
	body := b[:len(b)-crcLen]
	if record.CRC(body) != binary.LittleEndian.Uint32(b[len(body):]) {
		return nil, corrupt("%s: the checksum does not match", what)
	}
	if body[0] > newest {
		return nil, fmt.Errorf("%w: %s of version %d, this build reads up to %d: upgrade it", ErrVersion, what, body[0], newest)
	}
	if body[0] == 0 {
		return nil, corrupt("%s: version 0", what)
	}
	return body, nil
}
