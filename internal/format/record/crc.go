package record

import "hash/crc32"

// castagnoli selects the polynomial that amd64 and arm64 have instructions for.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC is the checksum of every format of this module: CRC32C (Castagnoli, RFC 3720 appendix B.4) of b.
func CRC(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// AddCRC is the checksum of what sum covers and then b; that of nothing is 0.
func AddCRC(sum uint32, b []byte) uint32 { return crc32.Update(sum, castagnoli, b) }

// headerCRC covers the fixed header up to its own field, and the name.
func headerCRC(fixed, name []byte) uint32 {
	return crc32.Update(crc32.Checksum(fixed[:offHeaderCRC], castagnoli), castagnoli, name)
}
