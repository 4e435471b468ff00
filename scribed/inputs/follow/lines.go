package follow

import (
	"bytes"
	"regexp"

	"scribe/internal/format/record"
	"scribe/producer"
)

// lineSplitter cuts messages out of the bytes at a file's position. It keeps nothing between two calls but what the file's position
// keeps: what it does not consume is read again.
type lineSplitter struct {
	maxLine   int
	long      string
	multiline *regexp.Regexp
}

// cutLines is what a splitter found.
type cutLines struct {
	messages []producer.Message
	consumed int // bytes up to the next position
	// skipping: the position is inside of a line whose rest is not wanted.
	skipping                  bool
	split, truncated, dropped int // long lines, by what was done with them
}

// nextMessages cuts messages from b, which begins at the position. skipping says that b begins inside of a line whose rest is not wanted;
// flush that nothing has followed b for long enough, so that a message of several lines is complete; last that nothing will ever
// follow, so that even a line without its end is a message. The messages point into b and are appended to dst.
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
			c.addMessage(trimLineEnd(rest[:size]))
			c.consumed += size
		case complete:
			s.tooLong(&c, rest[:s.maxLine], size)
		case len(rest) > s.maxLine:
			s.tooLong(&c, rest[:s.maxLine], 0)
		default:
			return c // the rest of it is still to come
		}
	}
	return c
}

// messageEnd returns the length of the message that b begins with, its line end included, and whether it is complete.
func (s *lineSplitter) messageEnd(b []byte, flush, last bool) (size int, complete bool) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		return len(b), last
	}
	at := end + 1
	if s.multiline == nil {
		return at, true
	}
	// It goes on until a line begins another one.
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

// tooLong deals with a message over the limit, of which text is the beginning; size is its length, 0 when that is not known yet.
func (s *lineSplitter) tooLong(c *cutLines, text []byte, size int) {
	switch s.long {
	case longSplit:
		c.split++
		c.addMessage(text)
		c.consumed += len(text)
		return
	case longTruncate:
		c.truncated++
		c.addMessage(text)
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

func (c *cutLines) addMessage(text []byte) {
	c.messages = append(c.messages, producer.Message{Payload: text})
}

// trimLineEnd is a line without its end.
func trimLineEnd(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte{'\n'})
	return bytes.TrimSuffix(line, []byte{'\r'})
}

// maxMessages bounds the messages of one delivery.
const maxMessages = record.MaxMessagesPerFrame / 16
