// Package loopback reserves local addresses for tests and benchmarks that must know a server's address before it starts, or that restart
// a server at the same address.
//
//	addr, release, err := loopback.Reserve() // "127.0.0.1:41234"
//	defer release()
//
// A port that is free now may be taken a moment later: many tests run at the same time, and the system gives each of their servers a free
// port. The system does not choose a reserved port for a server that asks for any free one; a server that asks for the address gets it.
package loopback
