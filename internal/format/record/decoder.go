package record

import "fmt"

// Decoder yields the messages of a frame. The zero Decoder is ready for Reset. A Decoder is reusable, for one goroutine at a
// time, and allocates only if it fails.
//
//	h, err := d.Reset(frame)
//	if err != nil {
//		return err
//	}
//	for d.Next(&r) {
//		use(r.Payload)
//	}
//	return d.Err()
type Decoder struct {
	body     []byte
	pos      int // in body, of the next message
	offset   int // of body in the frame
	left     int
	count    int
	base     int64
	previous int64 // event time that the next delta is relative to
	err      error
}

// Reset checks the whole frame at the start of b, including both checksums, and moves to its first message. b may hold more after
// the frame. The errors are those of [Check], and [ErrEncoding], with the header, if the body is not in [EncodingMessages];
// [Decoder.Next] then yields nothing.
//
// The frame's bytes must not change while the Decoder or a [Record] of it is in use.
func (d *Decoder) Reset(b []byte) (Header, error) {
	*d = Decoder{}
	h, err := Check(b)
	if err != nil {
		d.err = err
		return Header{}, err
	}
	if h.Encoding != EncodingMessages {
		d.err = fmt.Errorf("%w: %s, want %s", ErrEncoding, h.Encoding, EncodingMessages)
		return h, d.err
	}
	d.offset = h.BodyOffset()
	d.body = b[d.offset:h.Len:h.Len]
	d.left, d.count = h.Count, h.Count
	d.base, d.previous = h.BaseTime, h.BaseTime
	return h, nil
}

// Next decodes the next message into r and reports whether there was one. False means the end of the frame or an error: see
// [Decoder.Err]. r is then unchanged.
//
// A message is returned only if all of it is well-formed, and the last one only if nothing follows it.
func (d *Decoder) Next(r *Record) bool {
	if d.left == 0 {
		return false
	}
	body := d.body
	lead, pos := readUvarint(body, d.pos)
	if pos < 0 {
		return d.failDecoding("payload length", d.pos, badVarint)
	}
	when, timed := d.base, false
	if lead&hasTime != 0 {
		u, next := readUvarint(body, pos)
		if next < 0 {
			return d.failDecoding("event time", pos, badVarint)
		}
		when, timed, pos = d.previous+unzigzag(u), true, next
	}
	var key []byte
	if lead&hasKey != 0 {
		k, next := readSized(body, pos)
		if next < 0 {
			return d.failDecoding("key", pos, overrun)
		}
		if len(k) > MaxKeyLen {
			return d.failDecoding("key", pos, "is over the limit")
		}
		key, pos = k, next
	}
	var attributes Attributes
	if lead&hasAttributes != 0 {
		section, next := readSized(body, pos)
		if next < 0 {
			return d.failDecoding("attributes", pos, overrun)
		}
		if reason := Attributes(section).invalidReason(); reason != "" {
			return d.failDecoding("attributes", pos, reason)
		}
		attributes, pos = section, next
	}
	n := lead >> messageFlagBits
	if n > uint64(len(body)-pos) {
		return d.failDecoding("payload", pos, overrun)
	}
	end := pos + int(n)
	if d.left == 1 && end != len(body) {
		d.left = 0
		d.err = corruptFrame("body", d.offset+end, "%d bytes follow the last message", len(body)-end)
		return false
	}

	r.Payload = body[pos:end:end]
	r.Key, r.HasKey = key, lead&hasKey != 0
	r.Time, r.HasTime = when, timed
	r.Attributes = attributes
	r.Index = d.count - d.left
	if timed {
		d.previous = when
	}
	d.pos = end
	d.left--
	return true
}

// Err returns why Next ended: nil at the end of the frame, else the error of Reset or a [CorruptError] that names the message.
func (d *Decoder) Err() error { return d.err }

// Defects of a part of a message.
const (
	badVarint = "varint does not end within the body or is over 64 bits"
	overrun   = "does not end within the body"
)

// failDecoding ends the frame. pos is an offset in the body.
func (d *Decoder) failDecoding(part string, pos int, reason string) bool {
	d.err = corruptFrame(fmt.Sprintf("message %d: %s", d.count-d.left, part), d.offset+pos, "%s", reason)
	d.left = 0
	return false
}
