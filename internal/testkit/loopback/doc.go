// Package loopback reserves addresses of this machine for tests and benchmarks that have to know where a server will be before it
// starts, or that start one again where it was.
//
//	addr, release, err := loopback.Reserve() // "127.0.0.1:41234"
//	defer release()
//
// A port that was free a moment ago may be somebody else's a moment later: many tests run at the same time, and each of their servers is
// given a free port by the system. What is reserved is not given to anybody who asks for a free port; who asks for that address gets it.
package loopback
