package schema

import (
	"encoding/binary"
	"math"

	"scribe/internal/format/record"
)

// Kind is the first byte of a key.
type Kind byte

// Kinds of keys. The numbers are persisted.
const (
	// KindMeta: one of the Meta keys.
	KindMeta Kind = 0x01
	// KindState: a shard's state, under the shard.
	KindState Kind = 0x02
	// KindRecord: a record, under shard and LSN.
	KindRecord Kind = 0x03
	// KindProducer: a shard's state of a producer, under shard and producer.
	KindProducer Kind = 0x04
	// KindRetired: a run of retired categories, under the first of them.
	KindRetired Kind = 0x05
	// KindAnnotation: an annotation, under shard, its own kind and LSN.
	KindAnnotation Kind = 0x06
)

// Meta is the second byte of a KindMeta key.
type Meta byte

// Keys of the folder itself. The numbers are persisted.
const (
	// MetaFormat: the version of this format, as a number.
	MetaFormat Meta = 0x01
	// MetaClock: the time below which the engine's clock never falls, Unix microseconds.
	MetaClock Meta = 0x02
	// MetaBoundary: the creation time below which blobs may be deleted, Unix microseconds.
	MetaBoundary Meta = 0x03
	// MetaOrigin: the LSN at which shards of categories below MetaOriginEnd begin, in a recovered folder.
	MetaOrigin Meta = 0x04
	// MetaOriginEnd: the first category whose shards begin at LSN 1 all the same.
	MetaOriginEnd Meta = 0x05
	// MetaApplied: how far a replica has applied its journal.
	MetaApplied Meta = 0x06
)

// Lengths of keys in bytes.
const (
	MetaKeyLen     = 2
	StateKeyLen    = 1 + 8
	RecordKeyLen   = 1 + 8 + 8
	ProducerKeyLen = 1 + 8 + 8
	retiredKeyLen  = 1 + 4

	AnnotationKeyLen = 1 + 8 + 1 + 8
)

// MetaKey returns the key of m.
func MetaKey(m Meta) []byte { return []byte{byte(KindMeta), byte(m)} }

// AppendStateKey appends the key of a shard's state.
func AppendStateKey(dst []byte, s record.ShardID) []byte {
	return binary.BigEndian.AppendUint64(append(dst, byte(KindState)), uint64(s))
}

// CategoryBounds returns the first possible key of a category's shards, of a kind whose keys begin with the shard, and the first
// key after them.
func CategoryBounds(kind Kind, category uint32) (low, high []byte) {
	low = binary.BigEndian.AppendUint32([]byte{byte(kind)}, category)
	if category == math.MaxUint32 {
		return low, []byte{byte(kind) + 1}
	}
	return low, binary.BigEndian.AppendUint32([]byte{byte(kind)}, category+1)
}

// CategoryOf returns the category of the first key of CategoryBounds.
func CategoryOf(low []byte) (uint32, error) {
	if len(low) != 1+4 {
		return 0, corruptError("a key of %d bytes does not begin a category", len(low))
	}
	return binary.BigEndian.Uint32(low[1:]), nil
}

// StateKeyShard returns the shard in the key of a state.
func StateKeyShard(key []byte) (record.ShardID, error) {
	if len(key) != StateKeyLen || Kind(key[0]) != KindState {
		return 0, corruptError("a key of %d bytes is no shard state's", len(key))
	}
	return record.ShardID(binary.BigEndian.Uint64(key[1:])), nil
}

// AppendRecordKey appends the key of a record.
func AppendRecordKey(dst []byte, s record.ShardID, lsn record.LSN) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, byte(KindRecord)), uint64(s))
	return binary.BigEndian.AppendUint64(dst, uint64(lsn))
}

// RecordKeyPlace returns shard and LSN in the key of a record.
func RecordKeyPlace(key []byte) (record.ShardID, record.LSN, error) {
	if len(key) != RecordKeyLen || Kind(key[0]) != KindRecord {
		return 0, 0, corruptError("a key of %d bytes is not that of a record", len(key))
	}
	return record.ShardID(binary.BigEndian.Uint64(key[1:])), record.LSN(binary.BigEndian.Uint64(key[9:])), nil
}

// RecordKeyLSN returns the LSN in the key of a record of s. It returns 0, which no record has, for any other key.
func RecordKeyLSN(key []byte, s record.ShardID) record.LSN {
	if len(key) != RecordKeyLen || Kind(key[0]) != KindRecord || binary.BigEndian.Uint64(key[1:]) != uint64(s) {
		return 0
	}
	return record.LSN(binary.BigEndian.Uint64(key[9:]))
}

// AppendProducerKey appends the key of a shard's state of a producer.
func AppendProducerKey(dst []byte, s record.ShardID, producer uint64) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, byte(KindProducer)), uint64(s))
	return binary.BigEndian.AppendUint64(dst, producer)
}

// ProducerKeyID returns the producer in the key of a shard's state of a producer.
func ProducerKeyID(key []byte) (uint64, error) {
	if len(key) != ProducerKeyLen || Kind(key[0]) != KindProducer {
		return 0, corruptError("a key of %d bytes is not that of a producer", len(key))
	}
	return binary.BigEndian.Uint64(key[9:]), nil
}

// RetiredKey returns the key of the run of retired categories that begins with first.
func RetiredKey(first uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{byte(KindRetired)}, first)
}

// RetiredBounds returns the first possible key of a run of retired categories, and the first key after all of them.
func RetiredBounds() (low, high []byte) {
	return []byte{byte(KindRetired)}, []byte{byte(KindRetired) + 1}
}

// AppendAnnotationKey appends the key of an annotation of a kind.
func AppendAnnotationKey(dst []byte, s record.ShardID, kind uint8, lsn record.LSN) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, byte(KindAnnotation)), uint64(s))
	return binary.BigEndian.AppendUint64(append(dst, kind), uint64(lsn))
}

// AnnotationKeyLSN returns the LSN in the key of an annotation of s and kind; 0 for any other key.
func AnnotationKeyLSN(key []byte, s record.ShardID, kind uint8) record.LSN {
	if len(key) != AnnotationKeyLen || Kind(key[0]) != KindAnnotation || binary.BigEndian.Uint64(key[1:]) != uint64(s) || key[9] != kind {
		return 0
	}
	return record.LSN(binary.BigEndian.Uint64(key[10:]))
}
