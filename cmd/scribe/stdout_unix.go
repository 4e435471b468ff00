//go:build unix

package main

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// unread reports that f is a pipe or a socket whose reader has gone. A write would say so too, but there may be nothing to write.
func unread(f *os.File) bool { return poll(f, 0, 0)&(unix.POLLERR|unix.POLLHUP) != 0 }

// writable waits until f takes a piece of atOnce bytes, or a write would fail; false means that it did neither for so long.
func writable(f *os.File, wait time.Duration) bool { return poll(f, unix.POLLOUT, wait) != 0 }

func poll(f *os.File, events int16, wait time.Duration) int16 {
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: events}} //nolint:gosec // descriptors are small
	if n, err := unix.Poll(fds, int(wait.Milliseconds())); err != nil || n == 0 {
		return 0
	}
	return fds[0].Revents
}
