//go:build unix

package doctor

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// lockHolder returns which process holds the lock of a data folder, if one does.
func lockHolder(path string) (pid int, held bool) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, false
	}
	defer f.Close() //nolint:errcheck // nothing was written
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock); err != nil {
		return 0, false
	}
	return int(lock.Pid), lock.Type != unix.F_UNLCK
}

func readLimits() (Limits, error) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return Limits{}, err
	}
	return Limits{Files: files.Max, Memory: readMemory()}, nil
}
