//go:build unix

package sim

import (
	"syscall"
	"time"
)

// stackSignal makes a Go program print all stacks and end.
const stackSignal = syscall.SIGQUIT

// cpuTime returns the processor time that this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
