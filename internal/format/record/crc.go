package record

import "hash/crc32"

// castagnoli is the table of the polynomial for which amd64 and arm64 have instructions.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC returns the checksum that all formats of this module use: CRC32C (Castagnoli, RFC 3720 appendix B.4) of b.
func CRC(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// AddCRC returns the checksum of the bytes that sum covers followed by b. The checksum of no bytes is 0.
func AddCRC(sum uint32, b []byte) uint32 { return crc32.Update(sum, castagnoli, b) }

// headerCRC returns the checksum of the name and of the fixed header up to the checksum's own field.
func headerCRC(fixed, name []byte) uint32 {
	return crc32.Update(crc32.Checksum(fixed[:offHeaderCRC], castagnoli), castagnoli, name)
}
