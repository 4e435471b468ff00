package record

import "encoding/binary"

// SetSequence makes the frame at the start of b sequenced, or changes its sequence, in place, together with the header checksum;
// the body and its checksum stay. A producer numbers a frame when it is first sent, and again once it is certain that the frame
// was not stored under the old numbers. The header is checked first, so that damage does not get a valid checksum. [InvalidError]
// means that the numbers would wrap. b need not hold the body.
func SetSequence(b []byte, producer uint64, epoch uint32, first uint64) error {
	h, err := ParseHeader(b)
	if err != nil {
		return err
	}
	if err := checkSequence(true, first, h.Count); err != nil {
		return err
	}
	binary.LittleEndian.PutUint16(b[offFlags:], uint16(h.Flags|FlagSequenced))
	binary.LittleEndian.PutUint64(b[offProducer:], producer)
	binary.LittleEndian.PutUint32(b[offEpoch:], epoch)
	binary.LittleEndian.PutUint64(b[offFirstSequence:], first)
	binary.LittleEndian.PutUint32(b[offHeaderCRC:], headerCRC(b[:HeaderLen], h.Category))
	return nil
}
