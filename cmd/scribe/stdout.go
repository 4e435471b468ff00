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

// output is standard output for a command that must end in good order whatever its reader does: how much was taken is known
// exactly, and a reader that takes nothing any more holds up the end only for endGrace.
type output struct {
	w io.Writer
	// slow is the file when it may keep a writer waiting: a pipe, a socket or a terminal. Else it is nil.
	slow *os.File
}

const (
	// endGrace is how long the reader of standard output has to take what is left when the command is told to end.
	endGrace = 500 * time.Millisecond
	// lookEvery is how often a writer that waits for its reader looks whether it should end.
	lookEvery = 50 * time.Millisecond
	// atOnce is what a pipe takes at once if it takes anything (PIPE_BUF).
	atOnce = 4096
)

func newOutput(w io.Writer) *output {
	o := &output{w: w}
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&(os.ModeNamedPipe|os.ModeSocket|os.ModeCharDevice) != 0 {
			o.slow = f
		}
	}
	return o
}

// errReader means that the reader did not take what was left at the end.
var errReader = errors.New("the reader of standard output takes nothing")

// write returns how many bytes were taken, which are less than all of them only with an error.
func (o *output) write(ctx context.Context, b []byte) (n int, err error) {
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
		if !writable(o.slow, lookEvery) {
			continue
		}
		m, err := o.slow.Write(b[n:min(n+atOnce, len(b))])
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

// unwanted reports whether a command ended since nobody reads standard output any more, which is how "scribe inspect log access | head"
// is meant.
func unwanted(err error) bool {
	pe, ok := errors.AsType[*fs.PathError](err)
	return ok && pe.Path == os.Stdout.Name() && errors.Is(pe, syscall.EPIPE)
}

// untilUnread returns a context that also ends when nobody reads out any more: "scribe tail access | head -3" should end with head,
// not with the first message after it.
func untilUnread(ctx context.Context, out io.Writer) (context.Context, func()) {
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
		for !unread(f) {
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

// unreadEvery is how often a follower looks whether its reader is there still.
const unreadEvery = 200 * time.Millisecond
