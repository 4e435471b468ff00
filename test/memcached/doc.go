// Package memcached tests the read proxies' shared tier with the real memcached: what its client stores there, and what consumers notice
// while memcached is killed, hangs, is full, restarts, or returns other bytes than were stored. They may notice only latency: every
// message arrives, once, as it was written.
//
// It needs memcached (Debian's package of that name). Corner cases of the protocol, which a real server does not show, are tested beside
// the client, with a server that violates the protocol (readproxy/memcached/memcachedtest).
package memcached
