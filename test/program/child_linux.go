package program

import "syscall"

// childAttributes make a process end with the test binary.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
