package loopback_test

import (
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"scribe/internal/testkit/loopback"
)

// ipLocalPortRange is IP_LOCAL_PORT_RANGE of ip(7): from which ports a socket is given one, since Linux 6.3.
const ipLocalPortRange = 51

// TestReservedIsNotGiven: who asks for a free port, to listen or to connect from, is not given one that is reserved, even if there is no other.
func TestReservedIsNotGiven(t *testing.T) {
	row, release, err := loopback.ReserveRow(3)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	host, text, err := net.SplitHostPort(row)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	port += 2 // the last of the row
	addr := net.JoinHostPort(host, strconv.Itoa(port))
	only := func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, ipLocalPortRange, port<<16|port)
		})
		return errors.Join(err, failed)
	}
	l, err := (&net.ListenConfig{Control: only}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if errors.Is(err, unix.ENOPROTOOPT) || errors.Is(err, unix.ENOTSUP) {
		t.Log("this system can't be asked for one port: nothing was tried")
		return
	}
	if !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a listener was given %v, %v", l, err)
	}
	other, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	c, err := (&net.Dialer{Control: only}).DialContext(t.Context(), "tcp4", other.Addr().String())
	if !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("a connection was made from %v, %v", c, err)
	}
	release()
	if l, err = (&net.ListenConfig{Control: only}).Listen(t.Context(), "tcp4", "127.0.0.1:0"); err != nil || l.Addr().String() != addr {
		t.Fatalf("released, it is not given: %v", err)
	}
	_ = l.Close()
}
