//go:build !linux

package child

import "syscall"

// Attributes has nothing that makes a process end with the test binary.
func Attributes() *syscall.SysProcAttr { return new(syscall.SysProcAttr) }

// GuardAttributes has nothing that makes a process survive signals to its process group.
func GuardAttributes() *syscall.SysProcAttr { return new(syscall.SysProcAttr) }
