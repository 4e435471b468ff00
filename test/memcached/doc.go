// Package memcached tests the read proxies' shared tier with the real memcached: what its client keeps there, and what consumers notice
// while it is killed, hangs, is full, starts anew, or has other bytes than it was given. They notice nothing but time: every message
// arrives, once, as it was written.
//
// It needs memcached (Debian's package of that name). The protocol's corners, which a real server does not show, are tested beside the
// client, with a server that lies (readproxy/memcached/memcachedtest).
package memcached
