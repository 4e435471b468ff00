package zone

import (
	"encoding/binary"

	"scribe/internal/format/record"
)

// Seal appends the checksum, so that the fuzzer gets beyond it.
func Seal(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(append([]byte{}, b...), record.CRC(b))
}
