// Package readproxy is the role that gives consumers payloads by pointer, out of the blob stores, through a cache. It serves
// rpc.ReadProxyService.
//
// # A fetch
//
// A request names pointers, a category and an encoding. The pointers are decoded and checked, the blocks that they point into are
// taken from the cache or fetched, several at a time, and the payloads are put into the answer in the order asked for, until the
// next one would bring it over Config.AnswerBytes: at least one is in it, and the client asks again for the rest. A payload that
// can't be served has an error of its own. The request as a whole fails only when it is not valid, its category is not known, or
// the server is full or shutting down.
//
// Encodings:
//
//   - RAW: the frames as producers wrote them. A payload that is a whole block goes out as it is stored, compressed, without a copy.
//     One that shares its block with others is cut out of the decompressed block and goes out uncompressed: it is small.
//   - JSON: an object a message, one a line, with "time" (event time, Unix microseconds), "key", "payload" and "attributes". Bytes
//     that are not UTF-8 stand in "key_base64", "payload_base64" and "attributes_base64" instead. An attribute whose name repeats
//     has an array.
//   - ARROW: one Arrow IPC stream with one batch, see columnar.Schema. What only the pointer's record knows (physical shard, LSN,
//     persisted time) is null there.
//
// Payloads that hold Arrow batches of producers are served RAW only; JSON and ARROW answer REASON_INVALID for them.
//
// # What is checked
//
// A block's checksum, which the pointer holds, is compared when the block is fetched: bytes that do not match are neither cached nor
// sent, and the answer (REASON_CORRUPT) names blob, block and payload. Every frame's category is compared with the request's, except
// in a block that is passed through compressed: there only the first frame is looked at, once, when the block is fetched. All frames
// of a payload are of one physical shard, and the consumer checks every frame that it decodes, so more would cost a decompression
// to find what is found anyway. Checksums of frames are for the consumer to check (JSON and ARROW are made from frames that were
// checked).
//
// # Bounds
//
// The cache holds blocks, stored ones and decompressed shared ones, within Config.CacheBytes, and gives up those that were not
// used for longest. However many ask for a block at the same time, it is fetched once; an asker that gives up does not fail the
// others. Blocks being fetched take at most Config.FetchBytes, answers being made at most Config.RequestBytes (by the blocks
// that they need; what the transport holds after that is its own). What is over a bound is refused at once with
// REASON_OVERLOADED and a hint when to come back. Config.Fetches bounds how many requests the stores see at a time.
//
// # Ownership
//
// Data in an answer may be the cache's memory: it must not be changed.
package readproxy
