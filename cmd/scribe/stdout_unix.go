//go:build unix

package main

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// readerGone reports whether f is a pipe or a socket whose reader has closed it. A write would fail too, but there may be nothing to write.
func readerGone(f *os.File) bool { return pollFile(f, 0, 0)&(unix.POLLERR|unix.POLLHUP) != 0 }

// awaitWritable waits until f accepts atOnce bytes or a write would fail. It returns false at the timeout.
func awaitWritable(f *os.File, wait time.Duration) bool { return pollFile(f, unix.POLLOUT, wait) != 0 }

func pollFile(f *os.File, events int16, wait time.Duration) int16 {
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: events}} //nolint:gosec // descriptors are small
	if n, err := unix.Poll(fds, int(wait.Milliseconds())); err != nil || n == 0 {
		return 0
	}
	return fds[0].Revents
}

// windowColumns returns the width of a terminal's window, 0 if it is unknown.
func windowColumns(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}
