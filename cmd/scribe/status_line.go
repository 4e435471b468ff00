package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"scribe/consumer"
	"scribe/internal/base/units"
)

// statusLine is standard error for a command that shows how far it is: on a terminal a line that is written again and again, which
// gives way to whatever else is said.
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
	s.clear()
	return s.w.Write(b)
}

// say prints a line.
func (s *statusLine) say(format string, args ...any) {
	_, _ = fmt.Fprintf(s, format+"\n", args...) // there is nobody else to tell
}

func (s *statusLine) show(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.WriteString(s.w, clearLine+text)
	s.mu.shown = true
}

// clear takes the line away. The mutex is held.
func (s *statusLine) clear() {
	if s.mu.shown {
		_, _ = io.WriteString(s.w, clearLine)
		s.mu.shown = false
	}
}

// progressEvery is how often progress is shown.
const progressEvery = time.Second

// progress shows how far a reader is, when a person looks at standard error and messages go elsewhere. The function that it returns
// ends that.
func (s *statusLine) progress(stdout io.Writer, p *printer, c *consumer.Consumer) (stop func()) {
	if !isTerminal(s.w) || isTerminal(stdout) {
		return func() {}
	}
	before, at := uint64(0), time.Now()
	return s.keepShowing(func() string {
		bytes := p.bytes.Load()
		rate := float64(bytes-before) / time.Since(at).Seconds()
		before, at = bytes, time.Now()
		return fmt.Sprintf("%d messages, %s, %s/s, %v behind", p.messages.Load(), units.About(bytes), units.About(rate), c.Lag().Round(100*time.Millisecond))
	})
}

// keepShowing shows what text returns again and again. The function that it returns ends that, and removes the line.
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
			s.show(text())
		}
	})
	return func() {
		close(ended)
		worker.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.clear()
	}
}

// isTerminal reports whether a person may look at w.
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
