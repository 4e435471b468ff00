package record

import (
	"encoding/binary"
	"slices"
)

// Builder appends messages to one frame at the end of a buffer. It allocates only when the buffer has to grow. The zero Builder
// is ready for Reset. A Builder is reusable, and for one goroutine at a time.
//
// From Reset to Finish the buffer belongs to the Builder.
type Builder struct {
	// MaxMessageSize bounds [Message.Size] in bytes. 0 means [DefaultMaxMessageSize]. A message that does not fit a frame is
	// always refused. Set it before Reset.
	MaxMessageSize int

	env   Envelope
	buf   []byte // the caller's buffer, then the frame so far; nil without a begun frame
	start int    // offset of the frame in buf
	// end is the length that buf must not exceed. It is 0 without a begun frame, so that one comparison in AppendPayload covers
	// both.
	end        int
	maxMessage int
	count      int
	length     int // of the finished frame
	summed     int // bytes of buf that the checksum of the body covers
	sum        uint32
	previous   int64 // event time that the next delta is relative to
}

// maxLead bounds the varint in front of a payload.
const maxLead = 5

// Reset begins a frame at the end of dst, and abandons an unfinished frame. The error is an [InvalidError] about env; then no
// frame is begun.
func (b *Builder) Reset(dst []byte, env Envelope) error {
	b.closeFrame()
	b.count, b.length = 0, 0
	if err := env.validateFields(); err != nil {
		return err
	}
	b.env = env
	b.start = len(dst)
	b.end = len(dst) + MaxFrameLen
	b.maxMessage = b.MaxMessageSize
	if b.maxMessage <= 0 {
		b.maxMessage = DefaultMaxMessageSize
	}
	b.maxMessage = min(b.maxMessage, MaxFrameLen)
	b.previous = env.BaseTime

	dst = slices.Grow(dst, HeaderLen+len(env.Category))
	dst = dst[:len(dst)+HeaderLen] // written by Finish
	b.buf = append(dst, env.Category...)
	b.summed, b.sum = len(b.buf), 0
	return nil
}

// sumStep is the number of appended bytes between two updates of the body's checksum. Summing bytes that are still in the cache
// costs a third of summing them in Finish, and a frame of a few messages is summed at once.
const sumStep = 16 << 10

// sumUp extends the checksum to all appended bytes.
func (b *Builder) sumUp() {
	b.sum = AddCRC(b.sum, b.buf[b.summed:])
	b.summed = len(b.buf)
}

// closeFrame drops the buffer, which belongs to the caller again.
func (b *Builder) closeFrame() {
	b.buf, b.start, b.end, b.env.Category = nil, 0, 0, ""
}

// Append appends a copy of m. On an error the frame is unchanged: [ErrFrameFull] if m belongs in another frame,
// [MessageTooLargeError] or [LimitError] if it fits in none, [InvalidError] if its time cannot be stored or the name of an
// attribute is refused, [ErrNoFrame] before Reset.
func (b *Builder) Append(m *Message) error {
	if m.Key == nil && len(m.Attributes) == 0 && m.Time.IsZero() {
		return b.AppendPayload(m.Payload)
	}
	// All checks come before the first write.
	var (
		lead    = uint64(len(m.Payload)) << messageFlagBits
		extra   int // bytes beside lead and payload
		delta   uint64
		micros  int64
		section int
	)
	if size := m.Size(); size > b.maxMessage {
		return b.tooLarge(size)
	}
	if !m.Time.IsZero() {
		var ok bool
		if micros, ok = unixMicro(m.Time); !ok {
			return &InvalidError{What: "event time", Value: m.Time.String(), Reason: "is out of range"}
		}
		delta = zigzag(micros - b.previous)
		lead |= hasTime
		extra += uvarintLen(delta)
	}
	if m.Key != nil {
		if len(m.Key) > MaxKeyLen {
			return &LimitError{What: "key bytes", Value: len(m.Key), Limit: MaxKeyLen}
		}
		lead |= hasKey
		extra += uvarintLen(uint64(len(m.Key))) + len(m.Key)
	}
	if len(m.Attributes) > 0 {
		var err error
		if section, err = sectionLen(m.Attributes); err != nil {
			return err
		}
		lead |= hasAttributes
		extra += uvarintLen(uint64(section)) + section
	}
	if !b.checkFits(extra + len(m.Payload)) {
		return b.refuseMessage(m.Size(), extra+len(m.Payload))
	}

	buf := binary.AppendUvarint(b.buf, lead)
	if lead&hasTime != 0 {
		buf = binary.AppendUvarint(buf, delta)
		b.previous = micros
	}
	if lead&hasKey != 0 {
		buf = binary.AppendUvarint(buf, uint64(len(m.Key)))
		buf = append(buf, m.Key...)
	}
	if lead&hasAttributes != 0 {
		buf = binary.AppendUvarint(buf, uint64(section))
		buf = binary.AppendUvarint(buf, uint64(len(m.Attributes)))
		for i := range m.Attributes {
			a := &m.Attributes[i]
			buf = binary.AppendUvarint(buf, uint64(len(a.Name)))
			buf = append(buf, a.Name...)
			buf = binary.AppendUvarint(buf, uint64(len(a.Value)))
			buf = append(buf, a.Value...)
		}
	}
	b.buf = append(buf, m.Payload...)
	b.count++
	if len(b.buf)-b.summed >= sumStep {
		b.sumUp()
	}
	return nil
}

// AppendPayload appends a message with a copy of p as its payload, without key, time or attributes. It returns the errors of
// [Builder.Append].
func (b *Builder) AppendPayload(p []byte) error {
	if len(p) > b.maxMessage || !b.checkFits(len(p)) {
		return b.refuseMessage(len(p), len(p))
	}
	buf := binary.AppendUvarint(b.buf, uint64(len(p))<<messageFlagBits)
	b.buf = append(buf, p...)
	b.count++
	if len(b.buf)-b.summed >= sumStep {
		b.sumUp()
	}
	return nil
}

// checkFits reports whether the frame has room for a message of n bytes and its lead, counted with its largest length: a frame
// may end a few bytes early.
func (b *Builder) checkFits(n int) bool {
	return len(b.buf)+maxLead+n <= b.end && b.count < MaxMessagesPerFrame
}

// refuseMessage returns the error for a message of size bytes that takes n bytes of body beside its lead.
func (b *Builder) refuseMessage(size, n int) error {
	if b.buf == nil {
		return ErrNoFrame
	}
	if size > b.maxMessage || HeaderLen+len(b.env.Category)+maxLead+n > MaxFrameLen {
		return b.tooLarge(size)
	}
	return ErrFrameFull
}

func (b *Builder) tooLarge(size int) error {
	if b.buf == nil {
		return ErrNoFrame
	}
	return &MessageTooLargeError{Size: size, Limit: min(b.maxMessage, MaxFrameLen-HeaderLen-len(b.env.Category)-maxLead)}
}

// sectionLen returns the length in bytes of the section of attrs, without the length in front of it.
func sectionLen(attrs []Attribute) (int, error) {
	if len(attrs) > MaxAttributes {
		return 0, &LimitError{What: "attributes", Value: len(attrs), Limit: MaxAttributes}
	}
	n := uvarintLen(uint64(len(attrs)))
	for i := range attrs {
		a := &attrs[i]
		if err := ValidateAttributeName(a.Name); err != nil {
			return 0, err
		}
		n += uvarintLen(uint64(len(a.Name))) + len(a.Name)
		n += uvarintLen(uint64(len(a.Value))) + len(a.Value)
	}
	return n, nil
}

// Move continues the frame in dst, whose content is overwritten. The former buffer belongs to the caller again.
func (b *Builder) Move(dst []byte) { b.buf = append(dst[:0], b.buf...) }

// Count returns the number of messages in the current frame, or in the last finished one.
func (b *Builder) Count() int { return b.count }

// Len returns the length in bytes of the current frame, header and name included, or of the last finished one.
func (b *Builder) Len() int {
	if b.buf == nil {
		return b.length
	}
	return len(b.buf) - b.start
}

// SetSequence makes the frame sequenced, or changes its sequence: producers number messages when they seal a frame, not when they
// begin it. It affects the current frame, and must be called before Finish.
func (b *Builder) SetSequence(producer uint64, epoch uint32, first uint64) {
	b.env.Sequenced = true
	b.env.Producer, b.env.Epoch, b.env.FirstSequence = producer, epoch, first
}

// Finish completes the frame and returns the buffer with it; the buffer belongs to the caller again. On an error it returns the
// buffer without the frame: [ErrEmptyFrame] if the frame has no message, [InvalidError] if sequence numbers would wrap,
// [ErrNoFrame] (and a nil buffer) before Reset.
func (b *Builder) Finish() ([]byte, error) {
	if b.buf == nil {
		return nil, ErrNoFrame
	}
	buf, start := b.buf, b.start
	defer b.closeFrame()
	if b.count == 0 {
		return buf[:start], ErrEmptyFrame
	}
	if err := checkSequence(b.env.Sequenced, b.env.FirstSequence, b.count); err != nil {
		return buf[:start], err
	}
	b.length = len(buf) - start
	b.sumUp()
	writeHeader(buf[start:], EncodingMessages, b.count, &b.env, b.sum)
	return buf, nil
}

// AppendArrowFrame appends to dst a frame with a copy of body, an Arrow IPC stream of one record batch of rows rows. It does not
// parse the stream. On an error ([InvalidError], [LimitError], [ErrEmptyFrame]) it returns dst unchanged.
func AppendArrowFrame(dst []byte, env Envelope, rows int, body []byte) ([]byte, error) {
	if err := env.validateFields(); err != nil {
		return dst, err
	}
	if rows <= 0 || len(body) == 0 {
		return dst, ErrEmptyFrame
	}
	if rows > MaxMessagesPerFrame {
		return dst, &LimitError{What: "rows", Value: rows, Limit: MaxMessagesPerFrame}
	}
	if limit := MaxFrameLen - HeaderLen - len(env.Category); len(body) > limit {
		return dst, &LimitError{What: "bytes of body", Value: len(body), Limit: limit}
	}
	if err := checkSequence(env.Sequenced, env.FirstSequence, rows); err != nil {
		return dst, err
	}
	start := len(dst)
	out := slices.Grow(dst, HeaderLen+len(env.Category)+len(body))
	out = append(out[:start+HeaderLen], env.Category...)
	out = append(out, body...)
	writeHeader(out[start:], EncodingArrow, rows, &env, CRC(body))
	return out, nil
}
