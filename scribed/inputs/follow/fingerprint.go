package follow

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cespare/xxhash/v2"
)

// fileID tells files apart that exist at the same time. The number of a file that is gone can come back for another one, which is
// why prints decide whether it still is the same file.
type fileID struct {
	Device, Inode uint64
}

// fingerprint is a hash of some bytes of a file: Len bytes from Offset. Without bytes it matches everything.
type fingerprint struct {
	Offset int64  `json:"offset"`
	Len    int64  `json:"len"`
	Hash   uint64 `json:"hash"`
}

// takeFingerprint prints a range of a file. It fails with io.ErrUnexpectedEOF when the file ends before the range does.
func takeFingerprint(f io.ReaderAt, offset, n int64, buf []byte) (fingerprint, error) {
	p := fingerprint{Offset: offset, Len: n}
	if n == 0 {
		return p, nil
	}
	b := buf[:n]
	if got, err := f.ReadAt(b, offset); got < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fingerprint{}, err
	}
	p.Hash = xxhash.Sum64(b)
	return p, nil
}

// matches reports whether a file has the bytes that were printed.
func (p fingerprint) matches(f io.ReaderAt, buf []byte) (bool, error) {
	now, err := takeFingerprint(f, p.Offset, p.Len, buf)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return false, nil
	}
	return now == p, err
}

// fingerprints identify the content of a file as far as it has been read: some bytes from its beginning, and those before the position.
// Together they keep two files apart that begin alike, and find a file again that was copied or that has a new number.
type fingerprints struct {
	Head fingerprint `json:"head"`
	Tail fingerprint `json:"tail"`
}

func (p fingerprints) matchFile(f io.ReaderAt, buf []byte) (bool, error) {
	ok, err := p.Head.matches(f, buf)
	if !ok || err != nil {
		return false, err
	}
	return p.Tail.matches(f, buf)
}

// fingerprinted takes the prints of a file that has been read up to a position.
func fingerprinted(f io.ReaderAt, position, n int64, buf []byte) (p fingerprints, err error) {
	if p.Head, err = takeFingerprint(f, 0, min(position, n), buf); err != nil {
		return p, err
	}
	from := max(position-n, 0)
	p.Tail, err = takeFingerprint(f, from, position-from, buf)
	return p, err
}

// openRegular opens a file without waiting for a writer of a pipe, and returns what it is; only files with content can be followed.
func openRegular(path string) (*os.File, fileID, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fileID{}, err
	}
	if !info.Mode().IsRegular() {
		return nil, fileID{}, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fileID{}, err
	}
	// It may have become another file in between.
	if info, err = f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fileID{}, errors.Join(err, fmt.Errorf("%s is not a regular file any more", path), f.Close())
	}
	return f, idOf(info), nil
}
