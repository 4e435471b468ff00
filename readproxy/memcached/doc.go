// Package memcached keeps values in memcached servers, for the read proxy's shared tier. It speaks the part of the text protocol that
// a cache of immutable values needs: get, set, delete.
//
// A value may be larger than what a server takes as one item (1 MiB unless it was started with -I): it is cut into items of
// Config.ItemBytes under the keys KEY/0, KEY/1 and so on, which are all on one server and go and come in one exchange. All of them
// have to be there: a value of which one item was evicted is not there.
//
// Whoever asks knows how long the value is, so the bytes are read from the connection into their position, and no length that a server
// announces is trusted. What the bytes are is not checked: the caller knows their checksum.
//
// The server of a key is chosen by rendezvous hashing. A server that is unavailable is not replaced by another: its share of the keys is
// not cached until it is back, instead of being cached twice afterwards. Calls to a server that failed several times in a row fail at
// once with [ErrUnavailable] for a while; one call tries from time to time.
//
// Every call ends within Config.Timeout, whatever the server does; a connection that was not read to the end of an answer is closed.
// At most Config.Connections calls go to a server at a time; others wait within their time. The package starts no goroutine.
package memcached
