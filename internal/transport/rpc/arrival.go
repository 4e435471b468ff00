package rpc

import (
	"encoding/binary"
	"io"

	"google.golang.org/protobuf/encoding/protowire"

	"scribe/internal/format/record"
)

const (
	// readAtOnce bounds what is read of a body between two steps of its check: it is still in the cache then.
	readAtOnce = 256 << 10
	// minArriving is how large frames must be on average to be checked on arrival: headers are read twice for that. The first
	// fewArriving may be of any size.
	minArriving = 64 << 10
	fewArriving = 16
)

// arrivingBody checks the frames of an encoded WriteRequest or SubmitRequest while its body is read. Later it would have to fetch
// the bytes from memory again, which costs several times what the sum does.
type arrivingBody struct {
	body     []byte
	smallest int // frames are to be as large, on average
	frames   int
	begun    bool
	off      bool // it does not look, or has found something wrong: the role will
	next     int  // where the next frame begins, or the one being summed ends
	end      int  // of the frames
	summed   int
	frame    record.Header
	within   bool // of a frame
	sum      uint32
}

// readBody reads the whole body, and reports whether all frames in it are as record.Check wants them.
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

// hasFramesAgain reports whether the rest of the body is anything but small fields: what was summed must be what is decoded, and of a field
// that comes twice that is the last.
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

// sumArrived looks at what is new in the first n bytes of the body.
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

// findFrames finds the frames: clients of this module put them first.
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

// beginFrame begins the next frame, when its header is there.
func (a *arrivingBody) beginFrame(n int) bool {
	if a.next == a.end {
		a.summed = n // what follows the frames is not theirs
		return false
	}
	have := a.body[a.next:min(n, a.end)]
	h, err := record.ParseHeader(have)
	switch {
	case err != nil:
		a.off = n >= a.end || len(have) > record.HeaderLen+record.MaxCategoryName // else it may not be there yet
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
