//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// unread reports that f is a pipe or a socket whose reader has gone. A write would say so too, but there may be nothing to write.
func unread(f *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(f.Fd())}} //nolint:gosec // descriptors are small
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}
