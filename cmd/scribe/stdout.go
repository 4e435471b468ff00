package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// stdoutWriter is standard output for a command that must end properly whatever its reader does. It knows exactly how many bytes were
// accepted, and a stalled reader delays the end by at most endGrace.
type stdoutWriter struct {
	w io.Writer
	// slow is the file if its writes may block: a pipe, a socket or a terminal. Otherwise it is nil.
	slow *os.File
}

const (
	// endGrace is how long a command that must end waits for its reader to accept the remaining bytes.
	endGrace = 500 * time.Millisecond
	// lookEvery is how often a blocked writer checks whether it should end.
	lookEvery = 50 * time.Millisecond
	// atOnce is the size that a writable pipe accepts without blocking (PIPE_BUF).
	atOnce = 4096
)

func newOutput(w io.Writer) *stdoutWriter {
	o := &stdoutWriter{w: w}
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&(os.ModeNamedPipe|os.ModeSocket|os.ModeCharDevice) != 0 {
			o.slow = f
		}
	}
	return o
}

// errReader means that the reader did not accept the remaining bytes at the end.
var errReader = errors.New("the reader of standard output takes nothing")

// writeBytes returns how many bytes were accepted: all of them, or fewer with an error.
func (o *stdoutWriter) writeBytes(ctx context.Context, b []byte) (n int, err error) {
	if o.slow == nil {
		return o.w.Write(b)
	}
	var ended time.Time
	for n < len(b) {
		if ctx.Err() != nil {
			if ended.IsZero() {
				ended = time.Now()
			} else if time.Since(ended) > endGrace {
				return n, errors.Join(errReader, context.Cause(ctx))
			}
		}
		if !awaitWritable(o.slow, lookEvery) {
			continue
		}
		m, err := o.slow.Write(b[n:min(n+atOnce, len(b))])
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

// stdoutClosed reports whether a command ended because the reader of standard output exited, as in "scribe inspect log access | head".
func stdoutClosed(err error) bool {
	pe, ok := errors.AsType[*fs.PathError](err)
	return ok && pe.Path == os.Stdout.Name() && errors.Is(pe, syscall.EPIPE)
}

// untilReaderGone returns a context that also ends when the reader of out exits: "scribe tail access | head -3" should end with head, not
// with the first message after it.
func untilReaderGone(ctx context.Context, out io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	f, ok := out.(*os.File)
	if !ok {
		return ctx, cancel
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(unreadEvery)
		defer tick.Stop()
		for !readerGone(f) {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
		cancel()
	}()
	return ctx, func() {
		cancel()
		<-done
	}
}

// unreadEvery is how often a follower checks whether its reader still exists.
const unreadEvery = 200 * time.Millisecond
