//go:build unix

package follow

import (
	"os"
	"syscall"
)

// idOf returns the identity of an existing file.
func idOf(info os.FileInfo) fileID {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}
	}
	return fileID{Device: uint64(st.Dev), Inode: st.Ino} //nolint:unconvert,gosec // 32 bits, and never negative, on Darwin
}

// linkCount returns the number of names of a file: 0 when it was removed.
func linkCount(info os.FileInfo) uint64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 1
	}
	return uint64(st.Nlink) //nolint:unconvert // its size depends on the platform
}
