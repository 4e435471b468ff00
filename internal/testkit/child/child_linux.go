package child

import "syscall"

// Attributes make a process end with the test binary.
func Attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// GuardAttributes make a process survive the test binary, and signals to its process group.
func GuardAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
