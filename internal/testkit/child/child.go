// Package child starts processes for tests. On Linux they end with the test binary, however that ends. Only tests may import this
// package.
package child

import (
	"bytes"
	"os/exec"
	"runtime"
	"strings"
	"sync"
)

// Start starts a command that has Attributes, and calls ended with the result of its Wait.
func Start(cmd *exec.Cmd, ended func(error)) error {
	started := make(chan error, 1)
	go func() {
		// The parent-death signal is sent when the thread that started the child ends: the thread must last as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended(cmd.Wait())
		}
	}()
	return <-started
}

// Log collects the output of a process.
type Log struct {
	mu struct {
		sync.Mutex
		b bytes.Buffer
	}
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.b.Write(p)
}

// String returns what was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.b.String()
}

// Tail returns the last lines of what was written so far.
func (l *Log) Tail(lines int) string {
	all := strings.SplitAfter(l.String(), "\n")
	return strings.Join(all[max(0, len(all)-1-lines):], "")
}
