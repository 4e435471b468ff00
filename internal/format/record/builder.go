package record

import (
	"encoding/binary"
	"slices"
)

// Builder appends messages to one frame at the end of a buffer. It allocates only when the buffer has to grow. The zero Builder is ready
// for Reset; a Builder is used over and over, by one goroutine at a time.
//
// From Reset to Finish the buffer belongs to the Builder.
type Builder struct {
	// MaxMessageSize bounds [Message.Size] in bytes. 0 means [DefaultMaxMessageSize]; what does not fit a frame is refused whatever it
	// is. Set it before Reset.
	MaxMessageSize int

	env   Envelope
	buf   []byte // what the caller gave, then the frame so far; nil when none is begun
	start int    // where in buf the frame begins
	// end is the length that buf must not exceed; 0 when no frame is begun, so
	// that the one comparison in AppendPayload finds that out too.
	end        int
	maxMessage int
	count      int
	length     int // of the finished frame
	summed     int // how much of buf the checksum of the body covers
	sum        uint32
	previous   int64 // event time that the next delta counts from
}

// maxLead bounds the varint in front of a payload within a frame.
const maxLead = 5

// Reset begins a frame at the end of dst, and gives up a frame that was begun and not finished. The error is an [InvalidError] about env;
// no frame is begun then.
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

// sumStep is how much is appended between two updates of the body's checksum: bytes that are still in the cache are summed for a third of
// what it costs when the frame is finished, and a frame of a few messages is summed at once.
const sumStep = 16 << 10

// sumUp brings the checksum up to what has been appended.
func (b *Builder) sumUp() {
	b.sum = AddCRC(b.sum, b.buf[b.summed:])
	b.summed = len(b.buf)
}

// closeFrame forgets the buffer, which is the caller's again.
func (b *Builder) closeFrame() {
	b.buf, b.start, b.end, b.env.Category = nil, 0, 0, ""
}

// Append appends a copy of m. On an error the frame is as it was before: [ErrFrameFull] when m belongs in another frame,
// [MessageTooLargeError] or [LimitError] when it fits in none, [InvalidError] when its time cannot be stored or the name of an attribute
// is refused, [ErrNoFrame] before Reset.
func (b *Builder) Append(m *Message) error {
	if m.Key == nil && len(m.Attributes) == 0 && m.Time.IsZero() {
		return b.AppendPayload(m.Payload)
	}
	// First everything that can fail, then the bytes.
	var (
		lead    = uint64(len(m.Payload)) << messageFlagBits
		extra   int // bytes besides lead and payload
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

// AppendPayload appends a message of a copy of p alone, without key, time or attributes. Errors are as of [Builder.Append].
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

// checkFits reports whether the frame has room for a message of n bytes and its
// lead, counted at its longest: a frame may end a few bytes early.
func (b *Builder) checkFits(n int) bool {
	return len(b.buf)+maxLead+n <= b.end && b.count < MaxMessagesPerFrame
}

// refuseMessage says why a message of size bytes that takes n bytes of body beside its lead was not taken.
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

// sectionLen is the length in bytes of the section of attrs, without its own length in front.
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

// Count is the number of messages in the frame, begun or finished last.
func (b *Builder) Count() int { return b.count }

// Len is the length in bytes of the frame so far, header and name included, or of the frame finished last.
func (b *Builder) Len() int {
	if b.buf == nil {
		return b.length
	}
	return len(b.buf) - b.start
}

// SetSequence makes the frame sequenced, or changes its sequence: producers number messages when they seal a frame, not when they begin
// it. It counts for the frame begun, and must come before Finish.
func (b *Builder) SetSequence(producer uint64, epoch uint32, first uint64) {
	b.env.Sequenced = true
	b.env.Producer, b.env.Epoch, b.env.FirstSequence = producer, epoch, first
}

// Finish completes the frame and returns the buffer with it, which is the caller's again. On an error the buffer is returned without the
// frame: [ErrEmptyFrame] when it has no message, [InvalidError] when sequence numbers would wrap, [ErrNoFrame] (and a nil buffer) before
// Reset.
func (b *Builder) Finish() ([]byte, error) {
	if b.buf == nil {
		return nil, ErrNoFrame
	}
	buf, start := b.buf, b.start
	defer b.closeFrame()
	if b.count == 0 {
		return buf[:start], ErrEmptyFrame
	}
	if err := checkSequence(&b.env, b.count); err != nil {
		return buf[:start], err
	}
	b.length = len(buf) - start
	b.sumUp()
	frameHeader{encoding: EncodingMessages, count: b.count, env: &b.env, bodyCRC: b.sum}.writeHeader(buf[start:])
	return buf, nil
}

// AppendArrowFrame appends to dst a frame whose body is a copy of body, an Arrow IPC stream that holds one record batch of that many
// rows. The stream is not looked into. On an error ([InvalidError], [LimitError], [ErrEmptyFrame]) dst is returned as it was.
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
	if err := checkSequence(&env, rows); err != nil {
		return dst, err
	}
	start := len(dst)
	out := slices.Grow(dst, HeaderLen+len(env.Category)+len(body))
	out = append(out[:start+HeaderLen], env.Category...)
	out = append(out, body...)
	frameHeader{encoding: EncodingArrow, count: rows, env: &env, bodyCRC: CRC(body)}.writeHeader(out[start:])
	return out, nil
}
