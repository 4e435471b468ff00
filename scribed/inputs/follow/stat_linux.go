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
	return fileID{Device: st.Dev, Inode: st.Ino}
}

// linkCount returns the number of names of a file: 0 when it was removed.
func linkCount(info os.FileInfo) uint64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 1
	}
	return uint64(st.Nlink) //nolint:unconvert // 32 bits on arm64
}
