package follow

import (
	"os"
	"syscall"
)

// idOf is the identity of a file that exists.
func idOf(info os.FileInfo) fileID {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}
	}
	return fileID{Device: st.Dev, Inode: st.Ino}
}

// linkCount is the number of names that a file has: 0 when it was removed.
func linkCount(info os.FileInfo) uint64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 1
	}
	return uint64(st.Nlink) //nolint:unconvert // 32 bits on arm64
}
