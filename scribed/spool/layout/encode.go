package layout

import "encoding/binary"

// appendVersion appends the beginning of a structure: its magic and the version.
func appendVersion(dst []byte, magic string, version uint32) []byte {
	return binary.LittleEndian.AppendUint32(append(dst, magic...), version)
}

// segmentVersion returns the version of a segment's header and footer.
func segmentVersion(encrypted bool) uint32 {
	if encrypted {
		return VersionEncrypted
	}
	return Version
}

// appendFixed appends a value of fixed size: an integer, or a struct of such values. Its blank fields are zeros.
func appendFixed(dst []byte, v any) []byte {
	out, _ := binary.Append(dst, binary.LittleEndian, v) // fails only for values of variable size
	return out
}

// parseFixed reads what appendFixed wrote. b has the size of the value that v points to.
func parseFixed(b []byte, v any) {
	_, _ = binary.Decode(b, binary.LittleEndian, v) // fails only for values of another size
}
