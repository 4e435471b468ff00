package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"scribe/internal/base/units"
	"scribe/producer"
)

const (
	// chunkBytes is how much is read ahead of what is being written. It grows for a single line that is longer.
	chunkBytes = 4 << 20
	// chunkLines bounds the lines of a chunk: empty ones take no bytes.
	chunkLines = 100_000
	// maxNamed is how many lines over the limit are named; the others are counted.
	maxNamed = 10
)

// lines reads lines into chunks. One goroutine reads, another takes: a chunk holds what was read since the last one was taken,
// so that a slow stream is passed on at once and a fast one in large pieces. It is bounded by chunkBytes and one line.
type lines struct {
	maxLine  int
	keyField string

	mu struct {
		sync.Mutex
		open    *chunk // being filled
		spare   *chunk // to fill next; nil while the taker has it
		err     error  // what ended the reading; io.EOF is the ordinary end
		stopped bool
		long    []string // places of lines over the limit
		longN   int
	}
	changed *sync.Cond // of mu: open has grown, was taken, or the reading ended
}

// chunk is a run of lines in one buffer.
type chunk struct {
	buf  []byte
	ends []int    // of each line in buf
	keys [][]byte // of each line, when a key field is wanted; nil = none
	file string
	line int // number of the first line
	// skips are the indexes before which lines were left out, so that numbers stay right.
	skips []int
}

func newLines(maxLine int, keyField string) *lines {
	l := &lines{maxLine: maxLine, keyField: keyField}
	l.mu.open, l.mu.spare = new(chunk), new(chunk)
	l.changed = sync.NewCond(&l.mu.Mutex)
	return l
}

// take waits for lines and returns them; release gives their memory back. After the last ones it returns what ended the reading.
func (l *lines) take() (*chunk, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.mu.open.ends) == 0 && l.mu.err == nil {
		l.changed.Wait()
	}
	if len(l.mu.open.ends) == 0 {
		return nil, l.mu.err
	}
	c := l.mu.open
	l.mu.open, l.mu.spare = l.mu.spare, nil
	l.changed.Broadcast()
	return c, nil
}

func (l *lines) release(c *chunk) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cap(c.buf) > 2*chunkBytes {
		c.buf = nil // a single long line must not hold its memory for ever
	}
	*c = chunk{buf: c.buf[:0], ends: c.ends[:0], keys: c.keys[:0], skips: c.skips[:0]}
	l.mu.spare = c
	l.changed.Broadcast()
}

// stop makes the reader give up.
func (l *lines) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.stopped = true
	l.changed.Broadcast()
}

// tooLong returns an error that names the lines over the limit.
func (l *lines) tooLong() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, place := range l.mu.long {
		errs = append(errs, fmt.Errorf("%s: the line is over the limit of %v and is left out", place, units.Bytes(l.maxLine)))
	}
	if more := l.mu.longN - len(l.mu.long); more > 0 {
		errs = append(errs, fmt.Errorf("%d more lines are over the limit", more))
	}
	return errors.Join(errs...)
}

// overLimit is how many lines were over the limit.
func (l *lines) overLimit() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return uint64(l.mu.longN) //nolint:gosec // not negative
}

// read fills chunks from the files in turn, or from stdin when there are none, until ctx ends.
func (l *lines) read(ctx context.Context, stdin io.Reader, files []string) {
	stop := context.AfterFunc(ctx, func() { l.end(io.EOF) })
	defer stop()
	if len(files) == 0 {
		files = []string{"-"}
	}
	for _, name := range files {
		in, closeIn, err := openInput(stdin, name)
		if err == nil {
			err = errors.Join(l.readFile(in, name), closeIn())
		}
		if err != nil {
			l.end(err)
			return
		}
	}
	l.end(io.EOF)
}

// pathless is an error of the file system without the name, which the caller gives.
func pathless(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

func (l *lines) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.err == nil {
		l.mu.err = err
	}
	l.changed.Broadcast()
}

// errStopped ends the reading of a file when nobody takes lines any more.
var errStopped = errors.New("stopped")

// readFile splits one input at newlines. Memory is bounded by the longest allowed line, whatever the input holds.
func (l *lines) readFile(in io.Reader, name string) error {
	r := bufio.NewReaderSize(in, 1<<20)
	var long []byte // the beginning of a line that did not fit into the reader's buffer
	for number := 1; ; {
		part, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			// One byte over the limit is enough to know that the line is too long; the rest is read and forgotten.
			long = append(long, part[:min(len(part), l.maxLine+1-min(len(long), l.maxLine+1))]...)
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read %s: %w", name, pathless(err))
		}
		last := err != nil
		if last && len(part) == 0 && len(long) == 0 {
			return nil
		}
		line := bytes.TrimSuffix(part, []byte{'\n'})
		if len(long) > 0 {
			long = append(long, line...)
			line = long
		}
		if err := l.add(name, number, line); err != nil {
			if errors.Is(err, errStopped) {
				return nil
			}
			return err
		}
		if cap(long) > chunkBytes {
			long = nil
		}
		long = long[:0]
		number++
		if last {
			return nil //nolint:nilerr // io.EOF is the ordinary end
		}
	}
}

// add appends a line to the open chunk, waiting while it is full.
func (l *lines) add(file string, number int, line []byte) error {
	var key []byte
	if l.keyField != "" && len(line) <= l.maxLine {
		k, err := keyOf(line, l.keyField)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", file, number, err)
		}
		key = k
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(line) > l.maxLine {
		l.mu.longN++
		if len(l.mu.long) < maxNamed {
			l.mu.long = append(l.mu.long, fmt.Sprintf("%s:%d", file, number))
		}
		if c := l.mu.open; len(c.ends) > 0 {
			c.skips = append(c.skips, len(c.ends))
		}
		return nil
	}
	for !l.mu.stopped && l.mu.err == nil && !l.fits(file, line) {
		l.changed.Wait()
	}
	if l.mu.stopped || l.mu.err != nil {
		return errStopped
	}
	c := l.mu.open
	if len(c.ends) == 0 {
		c.file, c.line = file, number
	}
	c.buf = append(c.buf, line...)
	c.ends = append(c.ends, len(c.buf))
	if l.keyField != "" {
		c.keys = append(c.keys, key)
	}
	l.changed.Broadcast()
	return nil
}

// fits reports whether the open chunk takes the line: chunks hold lines of one file.
func (l *lines) fits(file string, line []byte) bool {
	c := l.mu.open
	return len(c.ends) == 0 || c.file == file && len(c.buf)+len(line) <= chunkBytes && len(c.ends) < chunkLines
}

// messages appends the chunk's lines to msgs. They point into the chunk.
func (c *chunk) messages(msgs []producer.Message, shard uint32) []producer.Message {
	begin := 0
	for i, end := range c.ends {
		m := producer.Message{Payload: c.buf[begin:end:end], Shard: shard}
		if i < len(c.keys) {
			m.Key = c.keys[i]
		}
		msgs = append(msgs, m)
		begin = end
	}
	return msgs
}

func (c *chunk) bytes() uint64 { return uint64(len(c.buf)) }

// place names line i as editors do.
func (c *chunk) place(i int) string {
	number := c.line + i
	for _, s := range c.skips {
		if s <= i {
			number++
		}
	}
	return fmt.Sprintf("%s:%d", c.file, number)
}

// keyOf returns the named field of a JSON object as a key: a string's text, any other value's JSON.
func keyOf(line []byte, field string) ([]byte, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(line, &object); err != nil {
		return nil, fmt.Errorf("--key-field %s needs JSON objects: %w", field, err)
	}
	raw, ok := object[field]
	if !ok || bytes.Equal(raw, []byte("null")) {
		return nil, nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []byte(text), nil
	}
	return raw, nil
}
