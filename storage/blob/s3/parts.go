package s3

import (
	"errors"
	"io"
)

// partsReader reads the concatenation of parts without copying them. It can be rewound for another attempt. It has no ReadAt on
// purpose: with one, minio-go would wrap it in a reader of its own.
type partsReader struct {
	parts [][]byte
	part  int // the current one
	pos   int // in it
}

var _ io.ReadSeeker = (*partsReader)(nil)

func (r *partsReader) Read(p []byte) (n int, err error) {
	for n < len(p) && r.part < len(r.parts) {
		c := copy(p[n:], r.parts[r.part][r.pos:])
		n += c
		r.pos += c
		if r.pos == len(r.parts[r.part]) {
			r.part++
			r.pos = 0
		}
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Seek rewinds; it refuses other moves.
func (r *partsReader) Seek(offset int64, whence int) (int64, error) {
	if offset != 0 || whence != io.SeekStart {
		return 0, errors.New("s3: parts can only be rewound")
	}
	r.part, r.pos = 0, 0
	return 0, nil
}
