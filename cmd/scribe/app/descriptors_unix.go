//go:build unix

package app

import (
	"math"

	"golang.org/x/sys/unix"
)

// maxDescriptors returns how many file descriptors the process may have, 0 if that is not known.
func maxDescriptors() int {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 0
	}
	return int(min(files.Max, math.MaxInt32)) //nolint:gosec // bounded
}
