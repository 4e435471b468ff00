// Package readproxy is the role that gives consumers payloads by pointer, out of the blob stores, through caches. It serves
// rpc.ReadProxyService.
//
// # A fetch
//
// A request names pointers, a category and an encoding. The pointers are decoded and checked, the blocks that they point into are
// taken from the nearest tier that has them, several at a time, and the payloads are put into the answer in the order asked for, until
// the next one would bring it over Config.AnswerBytes: at least one is in it, and the client asks again for the rest. A payload that
// can't be served has an error of its own. The request as a whole fails only when it is not valid, its category is not known, or
// the server is busy or shutting down. A category whose payloads are all in other regions need not be known. A payload that is not in
// its store is REASON_TRIMMED when the category's retention has passed since its blob was made, which readers take as a gap, else
// REASON_MISSING.
//
// Encodings:
//
//   - RAW: the frames as producers wrote them. A payload that is a whole block goes out as it is stored, compressed, without a copy.
//     One that shares its block with others is cut out of the decompressed block and goes out uncompressed: it is small.
//   - JSON: an object a message, one a line, with "time" (event time, Unix microseconds), "key", "payload" and "attributes". Bytes
//     that are not UTF-8 stand in "key_base64", "payload_base64" and "attributes_base64" instead. An attribute whose name repeats
//     has an array.
//   - ARROW: one Arrow IPC stream with one batch, see columnar.Schema. What only the pointer's record knows (physical shard, LSN,
//     persisted time) is null there. With a view: the columns and rows that a query needs, see below.
//   - BLOCK: the whole block as it is stored, for read proxies of other regions.
//
// Payloads that hold Arrow batches of producers are served RAW only; JSON and ARROW answer REASON_INVALID for them.
//
// # Tiers
//
// A block is looked for in memory (cache.go: 2Q by bytes, so that a replay does not push out a tail that many follow); among the
// fetches that are under way (load.go: however many ask for a block, it is fetched once, and an asker that gives up does not fail the
// others); in memcached (shared.go, package memcached), where the category's policy says so and the block is young enough; at a read
// proxy of the region that has the blob (peers.go); in the blob store (reads.go, plan.go: neighbours that are wanted at the same time
// are read together). Blocks are kept in the tiers before the one that had them, as the category's policy says, else the first rule of
// this server that matches its name, else always (policy.go).
//
// Only the last step is needed. A tier in front of it that is away, hangs or lies costs a bounded time, is counted, is left alone when
// it goes on, and is passed by.
//
// # Views
//
// A request that names a query is answered with its payloads in a view that covers the query: maybe more columns and rows than it asks
// for, never fewer (package view, docs/columnar/views.md). A payload in a view is a block of the memory tier under a key of its own. It is
// looked for under each view that covers the query, before anything is loaded; else made once for all who ask (encode.go), by the first of them, and by
// the next one when that goes away. What is being made waits for one of as many places as there are processors. Requests end at once
// when their clients do, but for the payload that is being transcoded.
//
// What is learned of a payload on the way is written beside its pointer (zones.go), behind the requests: a bounded queue, of which what
// is too much is dropped and counted.
//
// # Regions
//
// A pointer names the region that has the blob; none is this server's own. Another region's blocks are asked for as blocks at its read
// proxies, which keep them for the next region, then read from its store where that can be reached from here. A server that is asked by
// a peer asks no third one. When the read proxies fail and there is no store to go to, the answer names the region and says when to try
// again; after a few failures it comes at once, and one request tries from time to time.
//
// # What is checked
//
// A block's checksum, which the pointer holds, is compared when the block arrives, wherever it comes from: bytes that do not match are
// neither kept nor sent. When they came from the store, it is read once more, for they may have come to harm on the way; then the
// answer (REASON_CORRUPT) names blob, block and payload. From another tier, the next one is asked. What is in memory is compared again each time before it is sent, of a decompressed block the part that is cut
// out: the cache is large and lives long, and what consumers would find would still be in it when they ask again.
//
// Every frame's category is compared with the request's, except in a block that is passed through compressed: there only the first
// frame is looked at, once, when the block arrives. All frames of a payload are of one physical shard, and the consumer checks every
// frame that it decodes, so more would cost a decompression to find what is found anyway. Checksums of frames are for the consumer to
// check (JSON and ARROW are made from frames that were checked).
//
// # Bounds
//
// Blocks in memory take at most Config.CacheBytes. Blocks being fetched take at most Config.FetchBytes; requests being served, with
// what is made for them and their answers until they have been sent, at most Config.RequestBytes, and a quarter as much requests as
// they are read; blocks on their way to memcached Config.FillBytes. A client that reads slowly holds its answer's bytes until the
// transport gives it up; a block that is in many answers is in memory once, and counts once. Config.Fetches bounds how many requests
// the stores see at a time, Config.ReadsPerSecond how many in a second: what is over that waits, and is read together with what comes
// to lie beside it.
//
// Requests are admitted by their announced length before they are read, then by package admission (gate.go): a token bucket against
// herds, whose refusals tell each when to come back; then the input queue, whose length a controller sets so that the host's
// utilisation stays near a target. What is refused is refused at once, with REASON_OVERLOADED and a hint.
//
// # Ownership
//
// Data in an answer may be the cache's memory: it must not be changed.
//
// The order of locks: flights.mu before cache.mu, the plan's before the bucket's. The views' own are taken alone. Nothing else is called
// under a lock.
package readproxy
