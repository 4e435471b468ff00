package program

import "syscall"

// childAttributes make a process end with the test binary.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// guardAttributes make a process survive the test binary, and signals to its process group.
func guardAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
