//go:build unix

package sim

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// sealProcess makes every further opening of a file or a socket fail: it takes away the descriptors that are free.
func sealProcess() error {
	_ = time.Now().String() // reads the time zone once
	free, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	next := uint64(free.Fd())
	if err := free.Close(); err != nil {
		return err
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: next, Max: next}); err != nil {
		return err
	}
	if f, err := os.Open(os.DevNull); err == nil {
		return errors.Join(errors.New("a file can still be opened"), f.Close())
	}
	return nil
}

// stackSignal makes a Go program print all stacks and end.
const stackSignal = syscall.SIGQUIT

// endWithStacks ends this process so.
func endWithStacks() {
	_ = syscall.Kill(syscall.Getpid(), stackSignal)
	select {}
}

// cpuTime returns the processor time that this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
