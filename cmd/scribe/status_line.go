package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// statusLine is standard error for a command that shows its progress. On a terminal, progress is one line that is rewritten, and removed
// before any other output.
type statusLine struct {
	w  io.Writer
	mu struct {
		sync.Mutex
		shown bool
	}
}

func newStatusLine(w io.Writer) *statusLine { return &statusLine{w: w} }

// clearLine goes to the beginning of the line and empties it.
const clearLine = "\r\x1b[K"

// Write implements io.Writer.
func (s *statusLine) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clearText()
	return s.w.Write(b)
}

// printLine prints a line.
func (s *statusLine) printLine(format string, args ...any) {
	_, _ = fmt.Fprintf(s, format+"\n", args...) // an error can't be reported anywhere
}

func (s *statusLine) showText(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.WriteString(s.w, clearLine+text)
	s.mu.shown = true
}

// clearText is hideText for callers that hold the mutex.
func (s *statusLine) clearText() {
	if s.mu.shown {
		_, _ = io.WriteString(s.w, clearLine)
		s.mu.shown = false
	}
}

// progressEvery is how often progress is shown.
const progressEvery = time.Second

// keepShowing shows the result of text every progressEvery. The returned function stops it and removes the line.
func (s *statusLine) keepShowing(text func() string) (stop func()) {
	var (
		ended  = make(chan struct{})
		worker sync.WaitGroup
	)
	worker.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ended:
				return
			}
			s.showText(text())
		}
	})
	return func() {
		close(ended)
		worker.Wait()
		s.hideText()
	}
}

// hideText removes the progress line.
func (s *statusLine) hideText() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clearText()
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}
