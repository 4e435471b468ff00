package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"scribe/cmd/scribe/app"
	"scribe/internal/base/units"
	"scribe/producer"
)

const (
	// chunkBytes bounds the bytes read ahead of the write. A single longer line exceeds it.
	chunkBytes = 4 << 20
	// chunkLines bounds the lines of a chunk: empty ones take no bytes.
	chunkLines = 100_000
	// inputBuffer is how much of an input is read at once.
	inputBuffer = 1 << 20
	// maxNamed is how many too long lines are named; the others are only counted.
	maxNamed = 10
)

// lineReader reads lines into chunks. One goroutine reads, another takes. A chunk holds the lines read since the last one was taken, so that
// a slow stream is passed on at once and a fast one in large pieces. Its memory is bounded by chunkBytes and one line, and the buffer of
// the input.
type lineReader struct {
	maxLine int
	// keyField is the field of a JSON line that is its key, and keyDelimiter what stands between a line's key and its payload; empty = none.
	keyField, keyDelimiter string
	// wholeFiles: an input is one message.
	wholeFiles bool

	mu struct {
		sync.Mutex
		open  *lineChunk // being filled
		spare *lineChunk // to fill next; nil while the taker has it
		err   error      // what ended the reading; io.EOF is the ordinary end
		// stopped: no further read of the input begins. Lines that were read before still come.
		stopped bool
		// blocked: the input is being opened or read, which may never return.
		blocked bool
		// endless: the input has no end of its own, as far as one can tell, and no other follows. To stop it is its ordinary end.
		endless bool
		long    []string // places of lines over the limit
		longN   int
	}
	changed *sync.Cond // with mu: open has grown or was taken, or the reading ended
}

// errInterrupted ends the reading of inputs that have an end, before that end.
var errInterrupted = errors.New("interrupted before everything was read")

// lineChunk is a run of lines in one buffer.
type lineChunk struct {
	buf  []byte
	ends []int    // of each line in buf
	keys [][]byte // of each line, when lines have keys; nil = none
	file string
	// numbers are those of the lines in the file, from 1; lines that are too long are not among them.
	numbers []int
	// files are those of the messages, when each file is one.
	files []string
}

func newLineReader(maxLine int, keyField string) *lineReader {
	l := &lineReader{maxLine: maxLine, keyField: keyField}
	l.mu.open, l.mu.spare = new(lineChunk), new(lineChunk)
	l.changed = sync.NewCond(&l.mu.Mutex)
	return l
}

// takeChunk waits for lines and returns them; releaseChunk returns their memory. After the last chunk it returns the error that ended the
// reading, or io.EOF.
func (l *lineReader) takeChunk() (*lineChunk, error) {
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

func (l *lineReader) releaseChunk(c *lineChunk) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cap(c.buf) > 2*chunkBytes {
		c.buf = nil // a single long line must not hold its memory for ever
	}
	*c = lineChunk{buf: c.buf[:0], ends: c.ends[:0], keys: c.keys[:0], numbers: c.numbers[:0], files: c.files[:0]}
	l.mu.spare = c
	l.changed.Broadcast()
}

// stopReading ends the reading of the input. The lines that were read can still be taken; only a last line without a newline is left out,
// as its rest was not read.
func (l *lineReader) stopReading() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.stopped = true
	if l.mu.blocked {
		l.endStopped()
	}
}

// endStopped ends the reading after stopReading. The caller holds the mutex.
func (l *lineReader) endStopped() {
	if l.mu.err == nil {
		l.mu.err = errInterrupted
		if l.mu.endless {
			l.mu.err = io.EOF
		}
	}
	l.changed.Broadcast()
}

// discardLines stops the reading and returns the number of lines that were read and not taken, and the position of the first.
func (l *lineReader) discardLines() (lines uint64, first string) {
	l.stopReading()
	for {
		c, err := l.takeChunk()
		if err != nil {
			return lines, first
		}
		if lines == 0 {
			first = c.linePosition(0)
		}
		lines += uint64(len(c.ends))
		l.releaseChunk(c)
	}
}

// tooLongError returns an error that names the lines over the limit.
func (l *lineReader) tooLongError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	what := "line"
	if l.wholeFiles {
		what = "file"
	}
	var errs []error
	for _, place := range l.mu.long {
		errs = append(errs, fmt.Errorf("%s: the %s is over the limit of %v and was skipped; --max-message sets the limit", place, what, units.Bytes(l.maxLine)))
	}
	if more := l.mu.longN - len(l.mu.long); more > 0 {
		errs = append(errs, fmt.Errorf("skipped %d more %ss over the limit", more, what))
	}
	return errors.Join(errs...)
}

// countTooLong returns the number of lines over the limit.
func (l *lineReader) countTooLong() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return uint64(l.mu.longN) //nolint:gosec // not negative
}

// readInputs fills chunks from the files in turn, or from stdin when there are none, until ctx ends.
func (l *lineReader) readInputs(ctx context.Context, stdin io.Reader, files []string) {
	stop := context.AfterFunc(ctx, l.stopReading)
	defer stop()
	if len(files) == 0 {
		files = []string{"-"}
	}
	for i, name := range files {
		if err := l.readInput(stdin, name, i == len(files)-1); err != nil {
			l.endReading(err)
			return
		}
	}
	l.endReading(io.EOF)
}

// readInput reads one input; last says that no other follows.
func (l *lineReader) readInput(stdin io.Reader, name string, last bool) error {
	if !l.beginBlocking() {
		return errStopped
	}
	in, err := openInput(stdin, name)
	l.endBlocking()
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.mu.endless = last && isEndless(in.source)
	l.mu.Unlock()
	read := l.readLines
	if l.wholeFiles {
		read = l.readWhole
	}
	return errors.Join(read(stoppableInput{l, in.content}, name), in.close())
}

// readWhole reads an input as one message. Of one that is too large it reads no more than shows that.
func (l *lineReader) readWhole(in io.Reader, name string) error {
	content, err := io.ReadAll(io.LimitReader(in, int64(l.maxLine)+1))
	switch {
	case errors.Is(err, errStopped):
		return err
	case err != nil:
		return fmt.Errorf("read %s: %w", name, app.WithoutPath(err))
	}
	return l.appendLine(name, 0, content)
}

// beginBlocking is called before a call that may never return; it returns false if the reading was stopped.
func (l *lineReader) beginBlocking() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.blocked = !l.mu.stopped
	return l.mu.blocked
}

// endBlocking is called after a call that may never return.
func (l *lineReader) endBlocking() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.blocked = false
}

// isEndless reports whether an input is anything but a file: a pipe, for example, has no end that is known beforehand.
func isEndless(in io.Reader) bool {
	f, ok := in.(*os.File)
	if !ok {
		return true
	}
	info, err := f.Stat()
	return err != nil || !info.Mode().IsRegular()
}

// stoppableInput is an input that is not read any more after stopReading.
type stoppableInput struct {
	l  *lineReader
	in io.Reader
}

// Read implements io.Reader. It returns errStopped after stopReading.
func (s stoppableInput) Read(b []byte) (int, error) {
	if !s.l.beginBlocking() {
		return 0, errStopped
	}
	defer s.l.endBlocking()
	return s.in.Read(b)
}

func (l *lineReader) endReading(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(err, errStopped) {
		l.endStopped()
		return
	}
	if l.mu.err == nil {
		l.mu.err = err
	}
	l.changed.Broadcast()
}

// errStopped ends the reading of an input after stopReading.
var errStopped = errors.New("stopped")

// readLines splits one input at newlines. Memory is bounded by the longest allowed line, whatever the input holds.
func (l *lineReader) readLines(in io.Reader, name string) error {
	r := bufio.NewReaderSize(in, inputBuffer)
	var long []byte // the beginning of a line that did not fit into the reader's buffer
	for number := 1; ; {
		part, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			// One byte over the limit shows that the line is too long; the rest is read and discarded.
			long = append(long, part[:min(len(part), l.maxLine+1-min(len(long), l.maxLine+1))]...)
			continue
		}
		if errors.Is(err, errStopped) {
			return err
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read %s: %w", name, app.WithoutPath(err))
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
		if err := l.appendLine(name, number, line); err != nil {
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

// appendLine appends a line to the open chunk, waiting while it is full.
func (l *lineReader) appendLine(file string, number int, line []byte) error {
	var key []byte
	tooLong := len(line) > l.maxLine
	if !tooLong {
		var err error
		if key, line, err = l.splitKey(line); err != nil {
			return fmt.Errorf("%s: %w", inputPosition(file, number), err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if tooLong {
		l.mu.longN++
		if len(l.mu.long) < maxNamed {
			l.mu.long = append(l.mu.long, inputPosition(file, number))
		}
		return nil
	}
	for l.mu.err == nil && !l.fitsOpenChunk(file, line) {
		l.changed.Wait()
	}
	if l.mu.err != nil { // the reading was stopped while this line was awaited
		return errStopped
	}
	c := l.mu.open
	c.file, c.numbers = file, append(c.numbers, number)
	c.buf = append(c.buf, line...)
	c.ends = append(c.ends, len(c.buf))
	if l.hasKeys() {
		c.keys = append(c.keys, key)
	}
	if l.wholeFiles {
		c.files = append(c.files, file)
	}
	l.changed.Broadcast()
	return nil
}

// fitsOpenChunk reports whether the line fits into the open chunk, which holds lines of one file, or whole files.
func (l *lineReader) fitsOpenChunk(file string, line []byte) bool {
	c := l.mu.open
	return len(c.ends) == 0 || (c.file == file || l.wholeFiles) && len(c.buf)+len(line) <= chunkBytes && len(c.ends) < chunkLines
}

// hasKeys reports whether lines have keys of their own.
func (l *lineReader) hasKeys() bool { return l.keyField != "" || l.keyDelimiter != "" }

// splitKey returns the key of a line, which is nil without one, and its payload.
func (l *lineReader) splitKey(line []byte) (key, payload []byte, err error) {
	if l.keyDelimiter != "" {
		if before, after, ok := bytes.Cut(line, []byte(l.keyDelimiter)); ok {
			return bytes.Clone(before), after, nil // the buffer of the input is read into again
		}
		return nil, line, nil
	}
	if l.keyField != "" {
		key, err = lineKey(line, l.keyField)
	}
	return key, line, err
}

// appendMessages appends the chunk's lines to msgs. They point into the chunk; all else is as in common.
func (c *lineChunk) appendMessages(msgs []producer.Message, common *producer.Message) []producer.Message {
	begin := 0
	for i, end := range c.ends {
		m := *common
		m.Payload = c.buf[begin:end:end]
		if i < len(c.keys) {
			m.Key = c.keys[i]
		}
		msgs = append(msgs, m)
		begin = end
	}
	return msgs
}

// linePosition names line i as FILE:LINE, as editors do, and a whole file by its name.
func (c *lineChunk) linePosition(i int) string {
	if len(c.files) > 0 {
		return c.files[i]
	}
	return inputPosition(c.file, c.numbers[i])
}

// inputPosition names a line of an input; line 0 is all of it.
func inputPosition(file string, line int) string {
	if line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}

// lineKey returns the named field of a JSON object as a key: a string's text, any other value's JSON.
func lineKey(line []byte, field string) ([]byte, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(line, &object); err != nil {
		return nil, fmt.Errorf("--key-field %s: the line is not a JSON object: %w", field, err)
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
