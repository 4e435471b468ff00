package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"scribe/cmd/scribe/app"
)

// lineInput is an open input. content is what its source contains when it is decompressed.
type lineInput struct {
	source, content io.Reader
	close           func() error
}

// openInput opens a file; "-" is standard input. A file whose name ends with .gz or .zst is decompressed as it is read.
func openInput(stdin io.Reader, name string) (lineInput, error) {
	if name == "-" {
		return lineInput{source: stdin, content: stdin, close: func() error { return nil }}, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return lineInput{}, err
	}
	in := lineInput{source: f, content: f, close: f.Close}
	switch {
	case strings.HasSuffix(name, ".gz"):
		in.content, err = newGzipReader(f)
	case strings.HasSuffix(name, ".zst"):
		err = in.decompressZstd(f)
	}
	if err != nil {
		return lineInput{}, errors.Join(fmt.Errorf("decompress %s: %w", name, app.WithoutPath(err)), f.Close())
	}
	return in, nil
}

// newGzipReader returns a reader of what a gzip file contains, which may have several parts. An empty file contains nothing.
func newGzipReader(f io.Reader) (io.Reader, error) {
	r, err := gzip.NewReader(f)
	if errors.Is(err, io.EOF) {
		return strings.NewReader(""), nil
	}
	return r, err
}

// zstdMemory bounds the window of a compressed file, and so the memory that its decoder takes. Level 19 of zstd has windows of 8 MiB, its
// --long of 128 MiB.
const zstdMemory = 128 << 20

func (in *lineInput) decompressZstd(f *os.File) error {
	decoder, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdMemory))
	if err != nil {
		return err
	}
	in.content = decoder
	in.close = func() error {
		decoder.Close()
		return f.Close()
	}
	return nil
}
