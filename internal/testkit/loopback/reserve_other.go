//go:build !linux

package loopback

import (
	"errors"
	"fmt"
	"net"
	"strconv"
)

// holdRow returns the first of n ports that were free a moment ago.
func holdRow(n int) (first int, release func(), err error) {
	next := 0 // any
	for range n {
		l, failed := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(next)))
		if failed != nil {
			return 0, nil, failed
		}
		defer func() { err = errors.Join(err, l.Close()) }()
		at, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			return 0, nil, fmt.Errorf("a listener at %v", l.Addr())
		}
		if next == 0 {
			first = at.Port
		}
		next = at.Port + 1
	}
	return first, func() {}, nil
}
