package syslog

import "bytes"

// streamFrames splits the bytes of a TCP stream into messages (RFC 6587): a message that begins with a digit is counted, "LEN SP
// MSG"; any other ends with its line. Messages over limit are cut.
type streamFrames struct {
	limit int
	// skip is how many bytes of a counted message are still to be discarded; toLine says to discard up to the end of the line.
	skip   int
	toLine bool
	// truncated counts messages that were cut.
	truncated int
}

// maxDigits bounds the length of a counted message.
const maxDigits = 9

// nextMessage returns the first complete message of b and the number of bytes consumed. Without a complete one, ok is false, and
// n bytes are consumed nevertheless. b must have space for a message of the limit with its length prefix; end says that no bytes
// follow.
func (f *streamFrames) nextMessage(b []byte, end bool) (message []byte, n int, ok bool) {
	if f.skip > 0 {
		n = min(f.skip, len(b))
		f.skip -= n
		return nil, n, false
	}
	if f.toLine {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return nil, len(b), false
		}
		f.toLine = false
		return nil, i + 1, false
	}
	if len(b) > 0 && b[0] >= '1' && b[0] <= '9' {
		if message, n, ok, counted := f.readCounted(b, end); counted {
			return message, n, ok
		}
	}
	return f.readLine(b, end)
}

// readCounted reads a message with a length prefix. counted is false if it has none after all.
func (f *streamFrames) readCounted(b []byte, end bool) (message []byte, n int, ok, counted bool) {
	size, i := 0, 0
	for ; i < len(b) && i < maxDigits && b[i] >= '0' && b[i] <= '9'; i++ {
		size = size*10 + int(b[i]-'0')
	}
	switch {
	case i == len(b) && !end:
		return nil, 0, false, true // its length is incomplete
	case i == len(b) || b[i] != ' ':
		return nil, 0, false, false
	}
	i++
	whole := min(size, f.limit)
	if len(b)-i < whole {
		if !end {
			return nil, 0, false, true
		}
		whole = len(b) - i // the sender closed the connection
	}
	if size > whole {
		f.truncated++
		f.skip = size - whole
	}
	return b[i : i+whole], i + whole, true, true
}

func (f *streamFrames) readLine(b []byte, end bool) (message []byte, n int, ok bool) {
	i := bytes.IndexByte(b, '\n')
	switch {
	case i > f.limit || i < 0 && len(b) > f.limit:
		f.truncated++
		if f.toLine = i < 0; f.toLine {
			return b[:f.limit], len(b), true
		}
		return b[:f.limit], i + 1, true
	case i >= 0:
		return bytes.TrimRight(b[:i], "\r\x00"), i + 1, true
	case end && len(b) > 0:
		return bytes.TrimRight(b, "\r\x00"), len(b), true
	}
	return nil, 0, false
}
