package program

import (
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
