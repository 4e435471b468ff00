package follow

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cespare/xxhash/v2"
)

// fileID distinguishes files that exist at the same time. The number of a removed file can be reused for another one, so
// fingerprints decide whether it is still the same file.
type fileID struct {
	Device, Inode uint64
}

// fingerprint is a hash of Len bytes of a file from Offset. With Len 0 it matches every file.
type fingerprint struct {
	Offset int64  `json:"offset"`
	Len    int64  `json:"len"`
	Hash   uint64 `json:"hash"`
}

// takeFingerprint hashes a range of a file. It returns io.ErrUnexpectedEOF if the file ends before the range does.
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

// matches reports whether a file has the hashed bytes.
func (p fingerprint) matches(f io.ReaderAt, buf []byte) (bool, error) {
	now, err := takeFingerprint(f, p.Offset, p.Len, buf)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return false, nil
	}
	return now == p, err
}

// fingerprints identify the content of a file up to its position: some bytes from its beginning, and those before the position.
// Together they distinguish files with the same beginning, and find a file again that was copied or has a new number.
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

// fingerprinted takes the fingerprints of a file that has been read up to a position.
func fingerprinted(f io.ReaderAt, position, n int64, buf []byte) (p fingerprints, err error) {
	if p.Head, err = takeFingerprint(f, 0, min(position, n), buf); err != nil {
		return p, err
	}
	from := max(position-n, 0)
	p.Tail, err = takeFingerprint(f, from, position-from, buf)
	return p, err
}

// openRegular opens a regular file and returns its identity; it does not block on pipes without a writer.
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
	// It may have been replaced in between.
	if info, err = f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fileID{}, errors.Join(err, fmt.Errorf("%s is not a regular file any more", path), f.Close())
	}
	return f, idOf(info), nil
}
