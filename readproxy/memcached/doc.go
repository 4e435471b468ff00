// Package memcached stores values in memcached servers, for the read proxy's shared tier. It implements the part of the text
// protocol that a cache of immutable values needs: get, set, delete.
//
// A value may exceed a server's limit for one item (1 MiB unless it was started with -I). It is divided into items of
// Config.ItemBytes under the keys KEY/0, KEY/1 and so on, which are all on one server and are transferred in one exchange. If one
// item was evicted, the value is not found.
//
// The caller knows the length of the value. So the bytes are read from the connection directly into their position, and no length
// that a server announces is trusted. The content is not verified: the caller knows its checksum.
//
// The server of a key is chosen by rendezvous hashing. An unavailable server is not replaced by another: its share of the keys is
// not cached until it is back, instead of being cached twice afterwards. Calls to a server that failed several times in a row
// fail at once with [ErrUnavailable] for a while; one call tries from time to time.
//
// Every call ends within Config.Timeout. A connection whose answer was not read completely is closed. At most Config.Connections
// calls to a server run concurrently; others wait within their time. The package starts no goroutine.
package memcached
