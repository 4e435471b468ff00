package program

import (
	"fmt"
	"net"
	"os"
	"testing"

	"scribe/internal/testkit/loopback"
)

// Reserve returns an address, host:port, that no other test's server gets until the end of the test. It is for servers that restart at
// the same address, for servers whose address must be known before they start, and for addresses at which no server must listen.
func Reserve(t testing.TB) string {
	t.Helper()
	addr, release, err := loopback.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return addr
}

// NodeAddress returns an address for the i-th node of a test: its port, and the two that follow, are free. The system gives programs that ask for any port others.
func NodeAddress(t testing.TB, i int) string {
	t.Helper()
	for port := 20000 + (os.Getpid()*37+i*1000)%11000; port < 32000; port += 3 {
		free := true
		for p := port; p < port+3; p++ {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
			if err != nil {
				free = false
				break
			}
			_ = l.Close()
		}
		if free {
			return fmt.Sprintf("127.0.0.1:%d", port)
		}
	}
	t.Fatal("no three free ports in a row")
	return ""
}
