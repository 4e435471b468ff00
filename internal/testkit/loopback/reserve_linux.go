package loopback

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
)

// Reserve returns host:port of the loopback whose port the system does not give out until release is called. Meanwhile Go servers, and
// others that set SO_REUSEADDR, may listen there repeatedly; while none does, connections are refused. Release may be called more than once.
func Reserve() (addr string, release func(), err error) {
	// This socket is bound and does not listen. So the system does not choose its port, but servers may listen there, since both sockets
	// have SO_REUSEADDR.
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("loopback: %w", os.NewSyscallError("socket", err))
	}
	var once sync.Once
	release = func() { once.Do(func() { _ = syscall.Close(fd) }) }
	port, err := bindPort(fd)
	if err != nil {
		release()
		return "", nil, fmt.Errorf("loopback: %w", err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), release, nil
}

// bindPort binds a socket to a free port.
func bindPort(fd int) (port int, err error) {
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, os.NewSyscallError("bind", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	at, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		return 0, errors.New("a socket without a port")
	}
	return at.Port, nil
}
