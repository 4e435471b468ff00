//go:build !linux

package loopback

import (
	"errors"
	"fmt"
	"net"
	"strconv"
)

// Reserve returns host:port of the loopback that is free now. Except on Linux, nothing keeps it free.
func Reserve() (addr string, release func(), err error) { return ReserveRow(1) }

// ReserveRow is Reserve for n ports in a row, of which addr has the first.
func ReserveRow(n int) (addr string, release func(), err error) {
	for range rowAttempts {
		if addr, err = findRow(n); err == nil {
			return addr, func() {}, nil
		}
	}
	return "", nil, fmt.Errorf("loopback: %d ports in a row: %w", n, err)
}

// rowAttempts is how many ports are tried for the first of a row: the ones after it may be taken.
const rowAttempts = 100

// findRow returns the first of n ports that were free a moment ago.
func findRow(n int) (addr string, err error) {
	next := 0 // any
	for range n {
		l, failed := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(next)))
		if failed != nil {
			return "", failed
		}
		defer func() { err = errors.Join(err, l.Close()) }()
		at, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			return "", fmt.Errorf("a listener at %v", l.Addr())
		}
		if addr == "" {
			addr = l.Addr().String()
		}
		next = at.Port + 1
	}
	return addr, nil
}
