package loopback

import (
	"errors"
	"os"
	"sync"
	"syscall"
)

// holdRow binds sockets to a free port and to those that follow it.
func holdRow(n int) (first int, release func(), err error) {
	var held []int
	var once sync.Once
	release = func() {
		once.Do(func() {
			for _, fd := range held {
				_ = syscall.Close(fd)
			}
		})
	}
	for i := range n {
		at := 0 // any
		if i > 0 {
			at = first + i
		}
		// The sockets are bound and do not listen. So the system does not choose their ports, but servers may listen there, since both
		// sockets have SO_REUSEADDR.
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			release()
			return 0, nil, os.NewSyscallError("socket", err)
		}
		held = append(held, fd)
		port, err := bindPort(fd, at)
		if err != nil {
			release()
			return 0, nil, err
		}
		if i == 0 {
			first = port
		}
	}
	return first, release, nil
}

// bindPort binds a socket to a port, or to a free one for 0. It has SO_REUSEADDR only afterwards: with it a port that another row holds could be bound as well.
func bindPort(fd, at int) (port int, err error) {
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Port: at, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, os.NewSyscallError("bind", err)
	}
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	bound, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		return 0, errors.New("a socket without a port")
	}
	return bound.Port, nil
}
