package syslog

import "bytes"

// streamFrames cuts the messages of a TCP stream out of the bytes that have arrived (RFC 6587): a message that begins with a digit is
// counted, "LEN SP MSG", another ends with its line. Messages over limit are cut.
type streamFrames struct {
	limit int
	// skip is how many bytes of a counted message are still to be thrown away; toLine says to throw away up to the end of a line.
	skip   int
	toLine bool
	// truncated counts messages that were cut.
	truncated int
}

// maxDigits bounds the length of a counted message.
const maxDigits = 9

// nextMessage returns the first whole message of b and how many bytes it takes. Without a whole one, ok is false, and n bytes are done with
// all the same. b must have room for a message of the limit and its length before it; end says that nothing follows.
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

// readCounted reads a message that says its length. counted is false when it does not after all.
func (f *streamFrames) readCounted(b []byte, end bool) (message []byte, n int, ok, counted bool) {
	size, i := 0, 0
	for ; i < len(b) && i < maxDigits && b[i] >= '0' && b[i] <= '9'; i++ {
		size = size*10 + int(b[i]-'0')
	}
	switch {
	case i == len(b) && !end:
		return nil, 0, false, true // its length is still to come
	case i == len(b) || b[i] != ' ':
		return nil, 0, false, false
	}
	i++
	whole := min(size, f.limit)
	if len(b)-i < whole {
		if !end {
			return nil, 0, false, true
		}
		whole = len(b) - i // the sender has broken off
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
