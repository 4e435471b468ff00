//go:build !linux

package loopback

import (
	"fmt"
	"net"
)

// Reserve returns host:port of the loopback that is free now. Except on Linux, nothing keeps it free.
func Reserve() (addr string, release func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("loopback: %w", err)
	}
	return l.Addr().String(), func() {}, l.Close()
}
