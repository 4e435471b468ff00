package loopback

import (
	"fmt"
	"net"
	"strconv"
)

// Reserve returns host:port of the loopback whose port the system does not give out until release is called. Meanwhile Go servers, and
// others that set SO_REUSEADDR, may listen there repeatedly; while none does, connections are refused. Release may be called more than once. Except on Linux, nothing
// keeps the port free.
func Reserve() (addr string, release func(), err error) { return ReserveRow(1) }

// ReserveRow is Reserve for n ports in a row, of which addr has the first.
func ReserveRow(n int) (addr string, release func(), err error) {
	for range rowAttempts {
		var port int
		if port, release, err = holdRow(n); err == nil {
			return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), release, nil
		}
	}
	return "", nil, fmt.Errorf("loopback: %d ports in a row: %w", n, err)
}

// rowAttempts is how many ports are tried for the first of a row: the ones after it may be taken.
const rowAttempts = 100
