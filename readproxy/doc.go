// Package readproxy is the role that serves payloads by pointer to consumers, from the blob stores, through caches. It implements
// rpc.ReadProxyService.
//
// Start reading with [Server.Fetch]. A request names pointers, a category and an encoding:
//
//   - RAW: the frames as producers wrote them. A payload that is a whole block goes out as it is stored, compressed, without a copy.
//     A part of a block is cut out of the decompressed block and goes out uncompressed.
//   - JSON: an object a message, one a line, with "time" (event time, Unix microseconds), "key", "payload" and "attributes". Bytes that
//     are not UTF-8 stand in "key_base64", "payload_base64" and "attributes_base64" instead. A repeated attribute has an array.
//   - ARROW: one Arrow IPC stream with one batch, see columnar.Schema. With a view: the columns and rows that a query needs.
//   - BLOCK: the whole block as it is stored, for read proxies of other regions.
//
// Payloads that hold Arrow batches of producers are served RAW only.
//
// The answer has payloads in the order of the request, up to Config.AnswerBytes, but at least one; the client requests the rest
// again. A payload that can't be served has an error of its own. The request fails as a whole only if it is invalid, its category
// is unknown, or the server is busy or shutting down.
//
// # Files
//
// A request passes gate.go (admission), answer.go (which blocks it needs, and the response), fetches.go (one fetch of a block for
// all who ask) and the tiers from near to far: cache.go, memcachedtier.go, regions.go, storereader.go with readplan.go. policy.go
// says which tiers keep a category's blocks. push.go takes the blocks that batchers push ([Server.Push]), of the categories that
// tailreads.go wants. views.go, viewbuild.go, sharedviews.go and package view serve queries; zones.go stores zone maps.
// DESIGN.md lists the checks and bounds.
//
// # Ownership and locks
//
// Data in an answer may be memory of the cache: it must not be changed.
//
// Lock order: fetches.mu before cache.mu and tails.mu, the read plan's lock before the token bucket's. The locks of views are leaves. Nothing
// else is called under a lock.
package readproxy
