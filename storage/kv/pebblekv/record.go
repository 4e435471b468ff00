package pebblekv

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"scribe/storage/kv"
)

// The first byte of a key in Pebble is the kind of the entry.
const (
	spaceKey  = 'k' // then the key of kv.Store
	spaceMeta = 'm' // then a name
)

// Layout of a value (docs/format/catalog.md). Integers are little-endian.
const (
	valueVersion = 1
	// offVersion 1 byte, 3 bytes 0, CRC32C, revision.
	offCRC      = 4
	offRevision = 8
	headerLen   = 16
)

// Layout of the store's state under stateKey.
const (
	stateVersion = 1
	stateLen     = 20
)

var (
	stateKey   = []byte{spaceMeta, 's'}
	stateMagic = [4]byte{'S', 'C', 'K', 'V'}
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// appendStored appends the stored form of an entry. The checksum covers the key as well, so that a value is not valid under
// another key.
func appendStored(dst []byte, key string, revision uint64, value []byte) []byte {
	start := len(dst)
	dst = append(dst, valueVersion, 0, 0, 0, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint64(dst, revision)
	dst = append(dst, value...)
	binary.LittleEndian.PutUint32(dst[start+offCRC:], valueCRC(key, dst[start:]))
	return dst
}

// valueCRC covers the key and the stored value without the checksum itself.
func valueCRC(key string, stored []byte) uint32 {
	crc := crc32.Checksum([]byte(key), castagnoli)
	crc = crc32.Update(crc, castagnoli, stored[:offCRC])
	return crc32.Update(crc, castagnoli, stored[offRevision:])
}

// parseValue decodes a stored entry. The value aliases stored.
func parseValue(key string, stored []byte) (revision uint64, value []byte, err error) {
	damaged := func(format string, args ...any) (uint64, []byte, error) {
		return 0, nil, fmt.Errorf("%w of key %q: %s", kv.ErrCorrupt, key, fmt.Sprintf(format, args...))
	}
	switch {
	case len(stored) < headerLen || len(stored) > headerLen+kv.MaxValue:
		return damaged("%d bytes, want %d to %d", len(stored), headerLen, headerLen+kv.MaxValue)
	case stored[0] != valueVersion:
		return damaged("unknown version %d: a newer program may have written it", stored[0])
	case binary.LittleEndian.Uint32(stored[offCRC:]) != valueCRC(key, stored):
		return damaged("its checksum does not match")
	case stored[1] != 0 || stored[2] != 0 || stored[3] != 0:
		return damaged("reserved bytes are set")
	}
	revision = binary.LittleEndian.Uint64(stored[offRevision:])
	if revision == 0 {
		return damaged("revision 0")
	}
	return revision, stored[headerLen:], nil
}

// encodeState returns the stored form of the store's state: magic, version, revision, CRC32C.
func encodeState(revision uint64) []byte {
	b := make([]byte, 0, stateLen)
	b = append(b, stateMagic[:]...)
	b = binary.LittleEndian.AppendUint32(b, stateVersion)
	b = binary.LittleEndian.AppendUint64(b, revision)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// parseState returns the store's revision.
func parseState(stored []byte) (uint64, error) {
	switch {
	case len(stored) < stateLen || [4]byte(stored) != stateMagic:
		return 0, fmt.Errorf("%w: the folder does not hold a key-value store", kv.ErrCorrupt)
	case binary.LittleEndian.Uint32(stored[4:]) != stateVersion:
		return 0, fmt.Errorf("%w: the store has version %d, this program knows version %d: use the program that wrote it or a newer one",
			kv.ErrCorrupt, binary.LittleEndian.Uint32(stored[4:]), stateVersion)
	case len(stored) != stateLen || binary.LittleEndian.Uint32(stored[16:]) != crc32.Checksum(stored[:16], castagnoli):
		return 0, fmt.Errorf("%w: the checksum of the store's state does not match", kv.ErrCorrupt)
	}
	return binary.LittleEndian.Uint64(stored[8:]), nil
}
