package rpc

import (
	"encoding/binary"
	"io"

	"google.golang.org/protobuf/encoding/protowire"

	"scribe/internal/format/record"
)

const (
	// readAtOnce bounds the bytes read from a body between two steps of its check, so that they are still in the processor's
	// cache.
	readAtOnce = 256 << 10
	// minArriving is the minimum average size of frames that are checked on arrival, since their headers are read twice. The
	// first fewArriving frames may be of any size.
	minArriving = 64 << 10
	fewArriving = 16
)

// arrivingBody checks the frames of an encoded WriteRequest or SubmitRequest while its body is read. A later check would have to
// load the bytes from memory again, which costs several times as much as the checksum itself.
type arrivingBody struct {
	body     []byte
	smallest int // the minimum average size of frames
	frames   int
	begun    bool
	off      bool // the check has stopped or failed: the role checks the frames
	next     int  // the start of the next frame, or the end of the one being summed
	end      int  // the end of the frames
	summed   int
	frame    record.Header
	within   bool // a frame is being summed
	sum      uint32
}

// readBody reads the whole body, and reports whether all of its frames pass the checks of record.Check.
func (a *arrivingBody) readBody(r io.Reader) (checked bool, err error) {
	for n := 0; n < len(a.body); {
		m, err := r.Read(a.body[n:min(n+readAtOnce, len(a.body))])
		n += m
		a.sumArrived(n)
		if err != nil && n < len(a.body) {
			return false, noEOF(err)
		}
	}
	return a.begun && !a.off && !a.within && a.next == a.end && !a.hasFramesAgain(), nil
}

// hasFramesAgain reports whether the rest of the body may have a second field of frames, or is invalid. Of a repeated field the
// last one is decoded, so the summed bytes would not be the decoded ones.
func (a *arrivingBody) hasFramesAgain() bool {
	for rest := a.body[a.end:]; len(rest) > 0; {
		num, _, n := protowire.ConsumeField(rest)
		if n < 0 || num == framesField {
			return true
		}
		rest = rest[n:]
	}
	return false
}

// sumArrived processes the new bytes among the first n of the body.
func (a *arrivingBody) sumArrived(n int) {
	if !a.begun && !a.off {
		a.findFrames(n)
	}
	for a.begun && !a.off && a.summed < n {
		if !a.within && !a.beginFrame(n) {
			return
		}
		to := min(n, a.next)
		a.sum = record.AddCRC(a.sum, a.body[a.summed:to])
		if a.summed = to; to < a.next {
			return
		}
		a.within = false
		a.off = a.sum != a.frame.BodyCRC
	}
}

// findFrames finds the field of frames. It must be the first, as clients of this module encode it.
func (a *arrivingBody) findFrames(n int) {
	num, typ, tag := protowire.ConsumeTag(a.body[:n])
	size, length := protowire.ConsumeVarint(a.body[min(max(tag, 0), n):n])
	switch {
	case tag < 0 || length < 0:
		a.off = n >= 2*binary.MaxVarintLen64
	case num != framesField || typ != protowire.BytesType || size > uint64(len(a.body)-tag-length):
		a.off = true
	default:
		a.begun = true
		a.next = tag + length
		a.summed, a.end = a.next, a.next+int(size)
	}
}

// beginFrame begins the next frame if its header has arrived.
func (a *arrivingBody) beginFrame(n int) bool {
	if a.next == a.end {
		a.summed = n // other fields follow the frames
		return false
	}
	have := a.body[a.next:min(n, a.end)]
	h, err := record.ParseHeader(have)
	switch {
	case err != nil:
		a.off = n >= a.end || len(have) > record.HeaderLen+record.MaxCategoryName // otherwise the header may not have arrived completely
		return false
	case h.Len > a.end-a.next || a.frames >= fewArriving && a.next/a.frames < a.smallest:
		a.off = true
		return false
	}
	a.frames++
	a.frame, a.within, a.sum = h, true, 0
	a.summed = min(a.next+h.BodyOffset(), n)
	a.next += h.Len
	return true
}
