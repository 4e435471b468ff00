package program

import (
	"testing"

	"scribe/internal/testkit/loopback"
)

// Reserve returns an address, host:port, that no other test's server is given until the end of the test. It is for servers that are started
// again where they were, that others have to know of before they start, and for where nobody shall listen.
func Reserve(t testing.TB) string {
	t.Helper()
	addr, release, err := loopback.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return addr
}
