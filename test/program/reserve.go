package program

import (
	"testing"

	"scribe/internal/testkit/loopback"
)

// Reserve returns an address, host:port, that no other test's server gets until the end of the test. It is for servers that restart at
// the same address, for servers whose address must be known before they start, and for addresses at which no server must listen.
func Reserve(t testing.TB) string {
	t.Helper()
	if CountNodes(t) > 0 { // a server may be a node
		return NodeAddress(t)
	}
	return reserveRow(t, 1)
}

// NodeAddress is Reserve for a node, whose etcd listens at the two ports after it.
func NodeAddress(t testing.TB) string {
	t.Helper()
	return reserveRow(t, 3)
}

func reserveRow(t testing.TB, ports int) string {
	t.Helper()
	addr, release, err := loopback.ReserveRow(ports)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return addr
}
