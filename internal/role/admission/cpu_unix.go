//go:build unix

package admission

import (
	"syscall"
	"time"
)

// processTime returns the CPU time that the process has used, in user and system mode.
func processTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
