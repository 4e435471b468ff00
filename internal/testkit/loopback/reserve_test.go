package loopback_test

import (
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"

	"scribe/internal/testkit/loopback"
)

// TestReserve: connections to what is reserved are refused, until somebody listens there: that works again and again, and is an error for a
// second one at the same time.
func TestReserve(t *testing.T) {
	addr, release, err := loopback.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for range 3 {
		if c, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("nobody listens: %v, %v", c, err)
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := net.Listen("tcp", addr); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("a second listener: %v", err)
		}
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		served, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		for _, end := range []interface{ Close() error }{served, c, l} { // the server's end first: it is the one that lingers
			if err := end.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	release()
	release()
}

// TestReserveRow: somebody may listen at each port of a row, and no two rows share one.
func TestReserveRow(t *testing.T) {
	taken := map[int]bool{}
	for range 300 {
		addr, release, err := loopback.ReserveRow(3)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(release)
		_, text, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		first, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		for port := first; port < first+3; port++ {
			if taken[port] {
				t.Errorf("port %d was given twice", port)
			}
			taken[port] = true
		}
	}
	for port := range taken {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
	}
}
