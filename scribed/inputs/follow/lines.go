package follow

import (
	"bytes"
	"regexp"

	"scribe/internal/format/record"
	"scribe/producer"
)

// lineSplitter splits the bytes at a file's position into messages. It keeps no state between calls: bytes that it does not
// consume are read again.
type lineSplitter struct {
	maxLine   int
	long      string
	multiline *regexp.Regexp
}

// cutLines is the result of nextMessages.
type cutLines struct {
	messages []producer.Message
	consumed int // bytes up to the next position
	// skipping says that the position is inside a line whose rest is discarded.
	skipping                  bool
	split, truncated, dropped int // long lines, by how they were handled
}

// nextMessages splits b, which begins at the position, into messages. skipping says that b begins inside a line whose rest is
// discarded; flush that no bytes have followed b for long enough, so that a multi-line message is complete; last that no bytes
// will ever follow, so that even a line without an end is a message. The messages point into b and are appended to dst.
func (s *lineSplitter) nextMessages(dst []producer.Message, b []byte, skipping, flush, last bool) cutLines {
	c := cutLines{messages: dst, skipping: skipping}
	for c.consumed < len(b) && len(c.messages) < maxMessages {
		rest := b[c.consumed:]
		if c.skipping {
			end := bytes.IndexByte(rest, '\n')
			if end < 0 {
				c.consumed = len(b)
				break
			}
			c.consumed += end + 1
			c.skipping = false
			continue
		}
		size, complete := s.messageEnd(rest, flush, last)
		switch {
		case complete && len(trimLineEnd(rest[:size])) <= s.maxLine:
			c.addLine(trimLineEnd(rest[:size]))
			c.consumed += size
		case complete:
			s.takeLongLine(&c, rest[:s.maxLine], size)
		case len(rest) > s.maxLine:
			s.takeLongLine(&c, rest[:s.maxLine], 0)
		default:
			return c // the rest is not written yet
		}
	}
	return c
}

// messageEnd returns the length of the message at the beginning of b, including its line end, and whether it is complete.
func (s *lineSplitter) messageEnd(b []byte, flush, last bool) (size int, complete bool) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		return len(b), last
	}
	at := end + 1
	if s.multiline == nil {
		return at, true
	}
	// The message continues until a line begins another one.
	for at < len(b) {
		end = bytes.IndexByte(b[at:], '\n')
		if end < 0 {
			if s.multiline.Match(b[at:]) {
				return at, true
			}
			return len(b), last
		}
		if s.multiline.Match(b[at : at+end]) {
			return at, true
		}
		at += end + 1
	}
	return at, flush || last
}

// takeLongLine handles a message over the limit. text is its beginning; size is its length, 0 if not known yet.
func (s *lineSplitter) takeLongLine(c *cutLines, text []byte, size int) {
	switch s.long {
	case longSplit:
		c.split++
		c.addLine(text)
		c.consumed += len(text)
		return
	case longTruncate:
		c.truncated++
		c.addLine(text)
	default:
		c.dropped++
	}
	if size > 0 {
		c.consumed += size
		return
	}
	c.consumed += len(text)
	c.skipping = true
}

func (c *cutLines) addLine(text []byte) {
	c.messages = append(c.messages, producer.Message{Payload: text})
}

// trimLineEnd returns a line without its end.
func trimLineEnd(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte{'\n'})
	return bytes.TrimSuffix(line, []byte{'\r'})
}

// maxMessages bounds the messages of one delivery.
const maxMessages = record.MaxMessagesPerFrame / 16
