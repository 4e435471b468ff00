package schema

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"scribe/internal/format/record"
)

// Versions of a folder. Version 2 added retired categories, version 3 annotations, version 4 the origin of recovered folders and of their
// shards; the encoding of everything else is unchanged. ReplicaVersion is that of the folder of a replica, which has MetaApplied as well, and
// no clock: its content continues in a journal.
//
// StubVersion and StubReplicaVersion are those of a folder that may have stubs of removed shards. The batch that writes the first stub raises
// the version, nothing before does: until a shard is removed, a node can go back to a build that knows no stubs.
const (
	OldestVersion      = 1
	Version            = 4
	ReplicaVersion     = 5
	StubVersion        = 6
	StubReplicaVersion = 7
)

// IsReplica reports whether a version is that of the folder of a replica.
func IsReplica(version int64) bool { return version == ReplicaVersion || version == StubReplicaVersion }

// HasStubs reports whether a folder of a version may have stubs.
func HasStubs(version int64) bool { return version == StubVersion || version == StubReplicaVersion }

// VersionOf returns the version of a folder: that of a replica or of an engine without a journal, with stubs or without.
func VersionOf(replica, stubs bool) int64 {
	switch {
	case replica && stubs:
		return StubReplicaVersion
	case replica:
		return ReplicaVersion
	case stubs:
		return StubVersion
	default:
		return Version
	}
}

// ErrCorrupt means that a value does not match its checksum or its layout.
var ErrCorrupt = errors.New("damaged value")

// ErrNewer means that a newer build wrote a list of changes.
var ErrNewer = errors.New("a newer format")

func newerError(version byte) error {
	return fmt.Errorf("%w: a list of changes of version %d, this build reads %d", ErrNewer, version, ChangesVersion)
}

// RecordOverhead is the length in bytes of a record's value beyond its data.
const RecordOverhead = 4 + 8

// AnnotationOverhead is the length in bytes of an annotation's value beyond its data.
const AnnotationOverhead = 4

// Lengths of values in bytes.
const (
	numberLen   = 4 + 8
	stateLen    = 4 + 8 + 8 + 8 + 8 + 1
	originLen   = 8 // at the end of a state that has one, and for the time of it
	producerLen = 4 + 4 + 8 + 8 + 8
	retiredLen  = 4 + 4
)

const (
	flagSealed     = 0x01
	flagOrigin     = 0x02
	flagOriginTime = 0x04
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// State is the persisted state of a shard.
type State struct {
	// First is the oldest record's LSN, Next that of the next record.
	First, Next record.LSN
	Epoch       uint64
	// LastTime is the persisted time of the newest record ever appended, Unix microseconds; 0 if none was appended.
	LastTime int64
	Sealed   bool
	// Removed says that the shard is not listed until it is opened again: it has no records, and its state is stored as a stub.
	Removed bool
	// Origin is the LSN at which the shard began in a recovery, or when it was removed last; 0 if it began at LSN 1.
	Origin record.LSN
	// OriginTime is the persisted time of the newest record below Origin, which was trimmed before the shard was removed; 0 if the shard began
	// there in a recovery.
	OriginTime int64
}

// Producer is a shard's state of a producer.
type Producer struct {
	// Epoch is its newest epoch, Next the sequence expected next in it.
	Epoch uint32
	Next  uint64
	// LSN and Time are those of the newest record with messages of the producer.
	LSN  record.LSN
	Time int64
}

// PutRecord writes the value of a record into dst, which has RecordOverhead+len(data) bytes. key is the record's key.
func PutRecord(dst, key []byte, time int64, data []byte) {
	binary.LittleEndian.PutUint64(dst[4:], uint64(time))
	copy(dst[12:], data)
	appendChecksum(dst, key)
}

// Record decodes the value of a record. The data aliases value.
func Record(key, value []byte) (time int64, data []byte, err error) {
	if err := verifyChecksum(key, value); err != nil {
		return 0, nil, err
	}
	if len(value) <= RecordOverhead {
		return 0, nil, corruptError("a record of %d bytes", len(value))
	}
	return int64(binary.LittleEndian.Uint64(value[4:])), value[12:], nil
}

// AppendState appends the value of a shard's state.
func AppendState(dst, key []byte, s State) []byte {
	n := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(s.First))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(s.Next))
	dst = binary.LittleEndian.AppendUint64(dst, s.Epoch)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(s.LastTime))
	var flags byte
	if s.Sealed {
		flags |= flagSealed
	}
	if s.Origin != 0 {
		flags |= flagOrigin
	}
	if s.OriginTime != 0 {
		flags |= flagOriginTime
	}
	dst = append(dst, flags)
	if s.Origin != 0 {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(s.Origin))
	}
	if s.OriginTime != 0 {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(s.OriginTime))
	}
	appendChecksum(dst[n:], key)
	return dst
}

// DecodeState decodes the value of a shard's state.
func DecodeState(key, value []byte) (State, error) {
	length := stateLen
	var flags byte
	if len(value) >= stateLen {
		flags = value[stateLen-1]
	}
	if flags&flagOrigin != 0 {
		length += originLen
	}
	if flags&flagOriginTime != 0 {
		length += originLen
	}
	if err := verifyValue(key, value, length, "a shard state"); err != nil {
		return State{}, err
	}
	s := State{
		First:    record.LSN(binary.LittleEndian.Uint64(value[4:])),
		Next:     record.LSN(binary.LittleEndian.Uint64(value[12:])),
		Epoch:    binary.LittleEndian.Uint64(value[20:]),
		LastTime: int64(binary.LittleEndian.Uint64(value[28:])),
		Sealed:   flags&flagSealed != 0,
	}
	began, timed := flags&flagOrigin != 0, flags&flagOriginTime != 0
	if began {
		s.Origin = record.LSN(binary.LittleEndian.Uint64(value[stateLen:]))
	}
	if began && timed {
		s.OriginTime = int64(binary.LittleEndian.Uint64(value[stateLen+originLen:]))
	}
	if s.First < record.FirstLSN || s.Next < s.First || s.Epoch == 0 || flags&^(flagSealed|flagOrigin|flagOriginTime) != 0 ||
		began != (s.Origin != 0) || timed != (s.OriginTime != 0) || s.Origin > s.First {
		return State{}, corruptError("a shard state that cannot be: first LSN %d, next %d, epoch %d, flags %#x, origin %d", s.First, s.Next, s.Epoch, flags, s.Origin)
	}
	return s, nil
}

// AppendStub appends the value of a removed shard's stub: what of its state does not follow from there being no records, and from its having
// been removed (see DecodeStub).
func AppendStub(dst, key []byte, s State) []byte {
	n := len(dst)
	var flags byte
	if s.Sealed {
		flags |= flagSealed
	}
	dst = append(dst, 0, 0, 0, 0, flags)
	for _, v := range [...]uint64{uint64(s.Next), s.Epoch, uint64(s.LastTime)} {
		dst = binary.AppendUvarint(dst, v)
	}
	appendChecksum(dst[n:], key)
	return dst
}

// DecodeStub decodes the value of a removed shard's stub to the state that the shard has: its first and its next LSN are one, which is also its
// origin if there ever were records.
func DecodeStub(key, value []byte) (State, error) {
	if err := verifyChecksum(key, value); err != nil {
		return State{}, err
	}
	if len(value) < 5 || value[4]&^flagSealed != 0 {
		return State{}, corruptError("a stub of %d bytes", len(value))
	}
	rest := value[5:]
	var fields [3]uint64
	for i := range fields {
		v, used := binary.Uvarint(rest)
		if used <= 0 {
			return State{}, corruptError("a stub of %d bytes", len(value))
		}
		fields[i], rest = v, rest[used:]
	}
	s := State{
		First: record.LSN(fields[0]), Next: record.LSN(fields[0]), Epoch: fields[1],
		LastTime: int64(fields[2]), Sealed: value[4]&flagSealed != 0, Removed: true, //nolint:gosec // AppendStub wrote it from an int64
	}
	if len(rest) > 0 || s.Next < record.FirstLSN || s.Epoch == 0 {
		return State{}, corruptError("a stub that cannot be: next LSN %d, epoch %d, %d bytes more", s.Next, s.Epoch, len(rest))
	}
	return s.WithOrigin(), nil
}

// WithOrigin returns the state of an empty shard that is being removed, or was: it begins at its next LSN, unless it never had a record.
func (s State) WithOrigin() State {
	if s.Next > record.FirstLSN {
		s.Origin, s.OriginTime = s.Next, s.LastTime
	}
	return s
}

// AppendProducer appends the value of a shard's state of a producer.
func AppendProducer(dst, key []byte, p Producer) []byte {
	n := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, p.Epoch)
	dst = binary.LittleEndian.AppendUint64(dst, p.Next)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(p.LSN))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(p.Time))
	appendChecksum(dst[n:], key)
	return dst
}

// DecodeProducer decodes the value of a shard's state of a producer.
func DecodeProducer(key, value []byte) (Producer, error) {
	if err := verifyValue(key, value, producerLen, "a producer's state"); err != nil {
		return Producer{}, err
	}
	p := Producer{
		Epoch: binary.LittleEndian.Uint32(value[4:]),
		Next:  binary.LittleEndian.Uint64(value[8:]),
		LSN:   record.LSN(binary.LittleEndian.Uint64(value[16:])),
		Time:  int64(binary.LittleEndian.Uint64(value[24:])),
	}
	if p.Next == 0 || p.LSN < record.FirstLSN {
		return Producer{}, corruptError("a producer's state that cannot be: next sequence %d, LSN %d", p.Next, p.LSN)
	}
	return p, nil
}

// AppendNumber appends the value of a Meta key.
func AppendNumber(dst, key []byte, v int64) []byte {
	n := len(dst)
	dst = binary.LittleEndian.AppendUint64(append(dst, 0, 0, 0, 0), uint64(v))
	appendChecksum(dst[n:], key)
	return dst
}

// DecodeNumber decodes the value of a Meta key.
func DecodeNumber(key, value []byte) (int64, error) {
	if err := verifyValue(key, value, numberLen, "a number"); err != nil {
		return 0, err
	}
	return int64(binary.LittleEndian.Uint64(value[4:])), nil
}

// AppendRetired appends the value of a run of retired categories: its last category.
func AppendRetired(dst, key []byte, last uint32) []byte {
	n := len(dst)
	dst = binary.LittleEndian.AppendUint32(append(dst, 0, 0, 0, 0), last)
	appendChecksum(dst[n:], key)
	return dst
}

// DecodeRetired decodes a run of retired categories, from first to last inclusive.
func DecodeRetired(key, value []byte) (first, last uint32, err error) {
	if err := verifyValue(key, value, retiredLen, "a run of retired categories"); err != nil {
		return 0, 0, err
	}
	if len(key) != retiredKeyLen || Kind(key[0]) != KindRetired {
		return 0, 0, corruptError("a key of %d bytes is not that of retired categories", len(key))
	}
	first = binary.BigEndian.Uint32(key[1:])
	if last = binary.LittleEndian.Uint32(value[4:]); last < first {
		return 0, 0, corruptError("a run of retired categories from %d to %d", first, last)
	}
	return first, last, nil
}

// AppendAnnotation appends the value of an annotation.
func AppendAnnotation(dst, key, data []byte) []byte {
	n := len(dst)
	dst = append(append(dst, 0, 0, 0, 0), data...)
	appendChecksum(dst[n:], key)
	return dst
}

// Annotation decodes the value of an annotation. The data aliases value.
func Annotation(key, value []byte) ([]byte, error) {
	if err := verifyChecksum(key, value); err != nil {
		return nil, err
	}
	if len(value) <= AnnotationOverhead {
		return nil, corruptError("an annotation of %d bytes", len(value))
	}
	return value[AnnotationOverhead:], nil
}

// appendChecksum writes the checksum of key and the rest of value into value's first four bytes.
func appendChecksum(value, key []byte) {
	binary.LittleEndian.PutUint32(value, checksum(key, value[4:]))
}

func verifyChecksum(key, value []byte) error {
	if len(value) < 4 {
		return corruptError("a value of %d bytes", len(value))
	}
	if stored, sum := binary.LittleEndian.Uint32(value), checksum(key, value[4:]); stored != sum {
		return corruptError("its checksum is %08x, the bytes give %08x", stored, sum)
	}
	return nil
}

// verifyValue checks the checksum of a value, and its length.
func verifyValue(key, value []byte, length int, what string) error {
	if err := verifyChecksum(key, value); err != nil {
		return err
	}
	if len(value) != length {
		return corruptError("%s of %d bytes", what, len(value))
	}
	return nil
}

func checksum(key, rest []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, rest)
}

func corruptError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}
