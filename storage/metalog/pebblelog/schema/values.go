package schema

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"scribe/internal/format/record"
)

// Version is the version of the folders that this package makes. OldestVersion is the oldest version that it reads. Version 2
// added retired categories, version 3 annotations, version 4 the origin of recovered folders and of their shards; the encoding of
// everything else is unchanged. ReplicaVersion is that of the folder of a replica, which has MetaApplied as well, and no clock: its
// content continues in a journal.
//
// MovedVersion and MovedReplicaVersion are those of folders that have a shard that moved between engines, or the mark of a category. A folder
// gets them with the first of these, not before: as long as nothing has moved, older builds open it.
const (
	Version             = 4
	ReplicaVersion      = 5
	MovedVersion        = 6
	MovedReplicaVersion = 7
	OldestVersion       = 1
	// NewestVersion is the highest of all.
	NewestVersion = MovedReplicaVersion
)

// IsReplica reports whether a folder of a version is that of a replica.
func IsReplica(version int64) bool {
	return version == ReplicaVersion || version == MovedReplicaVersion
}

// HasMoved reports whether a folder of a version may have shards that moved.
func HasMoved(version int64) bool { return version == MovedVersion || version == MovedReplicaVersion }

// VersionOf returns the version of a folder: of a replica or not, with shards that moved or not.
func VersionOf(replica, moved bool) int64 {
	switch {
	case replica && moved:
		return MovedReplicaVersion
	case replica:
		return ReplicaVersion
	case moved:
		return MovedVersion
	default:
		return Version
	}
}

// ErrCorrupt means that a value does not match its checksum or its layout.
var ErrCorrupt = errors.New("damaged value")

// ErrNewer means that a newer build wrote a list of changes.
var ErrNewer = errors.New("a newer format")

func newerError(version byte) error {
	return fmt.Errorf("%w: a list of changes of version %d, this build reads up to %d", ErrNewer, version, ChangesVersion)
}

// RecordOverhead is the length in bytes of a record's value beyond its data.
const RecordOverhead = 4 + 8

// AnnotationOverhead is the length in bytes of an annotation's value beyond its data.
const AnnotationOverhead = 4

// Lengths of values in bytes.
const (
	numberLen   = 4 + 8
	stateLen    = 4 + 8 + 8 + 8 + 8 + 1
	originLen   = 8             // after the flags of a state that has one
	forwardLen  = 4 + 8 + 8 + 1 // without the name
	producerLen = 4 + 4 + 8 + 8 + 8
	retiredLen  = 4 + 4
)

const (
	flagSealed = 0x01
	flagOrigin = 0x02
	flagMoved  = 0x04
)

// MaxEngineName bounds the name of an engine in bytes, MaxStays the earlier stays of a shard.
const (
	MaxEngineName = 63
	MaxStays      = 16
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
	// Origin is the LSN at which the shard began in a recovery; 0 if it began at LSN 1.
	Origin record.LSN
	// Moved is what the state of a shard has that came from another engine, or was handed over to one; nil for others. It is never changed.
	Moved *Moved
}

// Moved is the part of a shard's state that is about other engines.
type Moved struct {
	// Stay is the newest stay but for what the state itself has: First, Next, Epoch and LastTime are zero here.
	Stay
	// Trimmed is the highest LSN that the shard was trimmed to here since it moved for the first time. What is below is gone in every engine.
	Trimmed record.LSN
	// Earlier are the earlier stays that were not trimmed as a whole, by LSN.
	Earlier []Stay
}

// Stay is a run of LSNs of a shard in this engine.
type Stay struct {
	// First is the oldest record's LSN, Next the LSN after its last record.
	First, Next record.LSN
	// Begin is the LSN with which the shard came, Adopted the epoch, From the engine that had it. They are zero if it was created here.
	Begin   record.LSN
	Adopted uint64
	From    string
	// To is the engine that it was handed over to, Left the time of that, Unix microseconds. They are zero while it is here.
	To   string
	Left int64
	// Epoch is the newest epoch, LastTime the persisted time of the newest record ever appended before Next.
	Epoch    uint64
	LastTime int64
}

// Forward says where shards of a category are created.
type Forward struct {
	// Version orders the marks of a category. It is not 0.
	Version uint64
	// Time is the engine's clock when the mark was stored, Unix microseconds.
	Time int64
	// To is the engine; empty if it is this one.
	To string
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
	if s.Moved != nil {
		flags |= flagMoved
	}
	dst = append(dst, flags)
	if s.Origin != 0 {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(s.Origin))
	}
	if s.Moved != nil {
		dst = s.Moved.append(dst)
	}
	appendChecksum(dst[n:], key)
	return dst
}

// append appends what a state has of other engines.
func (m *Moved) append(dst []byte) []byte {
	dst = m.Stay.append(binary.LittleEndian.AppendUint64(dst, uint64(m.Trimmed)))
	dst = append(dst, byte(len(m.Earlier))) //nolint:gosec // at most MaxStays
	for i := range m.Earlier {
		s := &m.Earlier[i]
		for _, n := range []uint64{uint64(s.First), uint64(s.Next), s.Epoch, uint64(s.LastTime)} {
			dst = binary.LittleEndian.AppendUint64(dst, n)
		}
		dst = s.append(dst)
	}
	return dst
}

// append appends the part of a stay that no state has.
func (s *Stay) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(s.Begin))
	dst = binary.LittleEndian.AppendUint64(dst, s.Adopted)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(s.Left))
	return appendName(appendName(dst, s.From), s.To)
}

// Len returns the length in bytes of what append appends.
func (m *Moved) Len() int {
	n := 8 + 1 + m.Stay.len()
	for i := range m.Earlier {
		n += 32 + m.Earlier[i].len()
	}
	return n
}

func (s *Stay) len() int { return 24 + 2 + len(s.From) + len(s.To) }

// decodeMoved decodes what append has appended, which is all of b. It is copied.
func decodeMoved(b []byte) (*Moved, error) {
	if len(b) < 8 {
		return nil, corruptError("a shard state that ends early")
	}
	m := &Moved{Trimmed: record.LSN(binary.LittleEndian.Uint64(b))}
	b, err := m.Stay.decode(b[8:])
	if err != nil {
		return nil, err
	}
	if len(b) < 1 || b[0] > MaxStays {
		return nil, corruptError("a shard state ends early, or has more than %d earlier stays", MaxStays)
	}
	m.Earlier = make([]Stay, b[0])
	b = b[1:]
	for i := range m.Earlier {
		s := &m.Earlier[i]
		if len(b) < 32 {
			return nil, corruptError("an earlier stay that ends early")
		}
		s.First, s.Next = record.LSN(binary.LittleEndian.Uint64(b)), record.LSN(binary.LittleEndian.Uint64(b[8:]))
		s.Epoch, s.LastTime = binary.LittleEndian.Uint64(b[16:]), int64(binary.LittleEndian.Uint64(b[24:]))
		if b, err = s.decode(b[32:]); err != nil {
			return nil, err
		}
		if s.First < record.FirstLSN || s.Next < s.First || s.Begin > s.First || s.Epoch < max(s.Adopted, 1) || s.To == "" {
			return nil, corruptError("an earlier stay that cannot be: %+v", *s)
		}
	}
	if len(b) > 0 {
		return nil, corruptError("%d bytes follow a shard state", len(b))
	}
	if len(m.Earlier) == 0 {
		m.Earlier = nil
	}
	return m, m.check()
}

// check returns an error for stays that do not follow each other.
func (m *Moved) check() error {
	if m.From == "" && m.To == "" {
		return corruptError("a shard state with stays in no other engine")
	}
	next, adopted := record.LSN(0), uint64(0)
	for i := range m.Earlier {
		s := &m.Earlier[i]
		if s.Begin < next || i > 0 && s.Adopted <= adopted {
			return corruptError("an earlier stay from LSN %d, adopted with epoch %d, after one up to LSN %d and epoch %d", s.Begin, s.Adopted, next, adopted)
		}
		next, adopted = s.Next, s.Epoch
	}
	if len(m.Earlier) > 0 && (m.Begin < next || m.Adopted <= adopted) {
		return corruptError("a stay from LSN %d, adopted with epoch %d, after one up to LSN %d and epoch %d", m.Begin, m.Adopted, next, adopted)
	}
	return nil
}

// decode decodes what append has appended, and returns what follows.
func (s *Stay) decode(b []byte) (rest []byte, err error) {
	if len(b) < 24 {
		return nil, corruptError("a stay that ends early")
	}
	s.Begin, s.Adopted, s.Left = record.LSN(binary.LittleEndian.Uint64(b)), binary.LittleEndian.Uint64(b[8:]), int64(binary.LittleEndian.Uint64(b[16:]))
	if s.From, rest, err = cutName(b[24:]); err == nil {
		s.To, rest, err = cutName(rest)
	}
	if came := s.From != ""; err == nil && (came != (s.Begin != 0) || came != (s.Adopted != 0) || (s.To != "") != (s.Left > 0) || s.Left < 0) {
		err = corruptError("a stay that cannot be: %+v", *s)
	}
	return rest, err
}

// appendName appends the name of an engine behind its length.
func appendName(dst []byte, name string) []byte {
	return append(append(dst, byte(len(name))), name...) //nolint:gosec // at most MaxEngineName
}

// cutName cuts the name of an engine off a value.
func cutName(b []byte) (name string, rest []byte, err error) {
	if len(b) < 1 || b[0] > MaxEngineName || len(b)-1 < int(b[0]) {
		return "", nil, corruptError("the name of an engine ends early, or is longer than %d bytes", MaxEngineName)
	}
	end := 1 + int(b[0])
	return string(b[1:end]), b[end:], nil
}

// AppendForward appends the value of where shards of a category are created.
func AppendForward(dst, key []byte, f Forward) []byte {
	n := len(dst)
	dst = binary.LittleEndian.AppendUint64(append(dst, 0, 0, 0, 0), f.Version)
	dst = appendName(binary.LittleEndian.AppendUint64(dst, uint64(f.Time)), f.To)
	appendChecksum(dst[n:], key)
	return dst
}

// DecodeForward decodes where shards of a category are created.
func DecodeForward(key, value []byte) (category uint32, f Forward, err error) {
	if err := verifyChecksum(key, value); err != nil {
		return 0, f, err
	}
	if category, err = ForwardKeyCategory(key); err != nil {
		return 0, f, err
	}
	if len(value) < forwardLen {
		return 0, f, corruptError("a mark of a category of %d bytes", len(value))
	}
	f.Version, f.Time = binary.LittleEndian.Uint64(value[4:]), int64(binary.LittleEndian.Uint64(value[12:]))
	to, rest, err := cutName(value[20:])
	if err != nil {
		return 0, f, err
	}
	if f.To = to; len(rest) > 0 || f.Version == 0 || f.Time <= 0 {
		return 0, f, corruptError("a mark of a category that cannot be: version %d, time %d, %d bytes too many", f.Version, f.Time, len(rest))
	}
	return category, f, nil
}

// DecodeState decodes the value of a shard's state. It allocates only for a shard that moved.
func DecodeState(key, value []byte) (State, error) {
	if err := verifyChecksum(key, value); err != nil {
		return State{}, err
	}
	length := stateLen
	if len(value) >= stateLen && value[stateLen-1]&flagOrigin != 0 {
		length += originLen
	}
	if len(value) < length || len(value) > length && value[stateLen-1]&flagMoved == 0 {
		return State{}, corruptError("a shard state of %d bytes", len(value))
	}
	s := State{
		First:    record.LSN(binary.LittleEndian.Uint64(value[4:])),
		Next:     record.LSN(binary.LittleEndian.Uint64(value[12:])),
		Epoch:    binary.LittleEndian.Uint64(value[20:]),
		LastTime: int64(binary.LittleEndian.Uint64(value[28:])),
		Sealed:   value[36]&flagSealed != 0,
	}
	began := value[36]&flagOrigin != 0
	if began {
		s.Origin = record.LSN(binary.LittleEndian.Uint64(value[stateLen:]))
	}
	if s.First < record.FirstLSN || s.Next < s.First || s.Epoch == 0 || value[36]&^(flagSealed|flagOrigin|flagMoved) != 0 || began != (s.Origin != 0) || s.Origin > s.First {
		return State{}, corruptError("a shard state that cannot be: first LSN %d, next %d, epoch %d, flags %#x, origin %d", s.First, s.Next, s.Epoch, value[36], s.Origin)
	}
	if value[36]&flagMoved == 0 {
		return s, nil
	}
	m, err := decodeMoved(value[length:])
	if err != nil {
		return State{}, err
	}
	if m.Begin > s.First || m.Adopted > s.Epoch || m.Trimmed > s.Next {
		return State{}, corruptError("a shard state that cannot be: first LSN %d, next %d, epoch %d, %+v", s.First, s.Next, s.Epoch, *m)
	}
	s.Moved = m
	return s, nil
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
